"""Pages of what a job printed: the lines that stages logged to the journal, then the logs of its stages one by one."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

from stoker.core.errors import NotFound
from stoker.core.frozen import frozen
from stoker.core.text import did_you_mean, format_size, safe_name
from stoker.host.writers import older_log
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import HistoryCache, RunHistory
from stoker.jobs.log_text import LogIndex, LogText, LogTextLine, shown_text
from stoker.protocol.screen_messages import LogLineView, LogPage

MOST_LINES = 2000
MOST_SEARCHED_BYTES = 512 << 20
_MOST_TEXT = 1 << 20
"""Characters of one page, whatever the number of its lines."""
_END = ".log"
_OLDER = ".1.log"


@frozen
class LogRange:
    """Which lines are wanted."""

    node: str = ""
    """Empty: of all stages."""
    start: int | None = None
    """None: the last ones."""
    limit: int = 500
    search: str = ""


class JobLogPages:
    """Reads pages of logs; what it finds out about a log is kept for the next page. Thread-safe."""

    def __init__(self, histories: HistoryCache) -> None:
        self._histories = histories
        self._index = LogIndex()

    def read(
        self, job: str, folder: JobFolder, asked: LogRange, *, is_over: bool, is_meant: frozenset[str] | None = None
    ) -> LogPage:
        """Return a page of what is called `job`; `is_meant` are the only nodes, of one trial.

        Raises `NotFound` if no stage has this name.
        """
        logged, dropped, order = self._histories.read(folder.status_path, _logged)
        files = self._files(folder, order)
        nodes = list(dict.fromkeys([*(node for node, _ in logged), *files]))
        if is_meant is not None:
            nodes = [node for node in nodes if node.partition("[")[0] in is_meant]
        chosen = [node for node in nodes if not asked.node or _is_of(node, asked.node)]
        if asked.node and not chosen and asked.node not in order:
            known = ", ".join(nodes[:12]) or "none yet"
            raise NotFound(
                f"no stage {asked.node!r} has a log", hint=did_you_mean(asked.node, nodes) or f"stages: {known}"
            )
        meant = set(chosen)
        parts = [_Part(source=_Logged([one for one in logged if one[0] in meant]), node="")]
        parts += [_Part(source=self._index.log(path), node=node) for node in chosen for path in files.get(node, ())]
        page = _search(parts, asked) if asked.search else _page(parts, asked)
        return LogPage(
            job=job,
            lines=tuple(page.lines),
            nodes=tuple(nodes),
            is_over=is_over,
            total=sum(part.source.total for part in parts),
            matches=page.matches,
            note=page.note or (f"{dropped:,} older lines of the journal are not shown" if dropped else ""),
        )

    def _files(self, folder: JobFolder, order: Sequence[str]) -> dict[str, list[str]]:
        """Return the logs of each stage, in the order in which the journal names them, then the others."""
        names: set[str] = set()
        with suppress(OSError):
            names = {name for name in os.listdir(folder.log_folder) if name.endswith(_END) and name[0] != "."}
        stems = {safe_name(node): node for node in order}
        older = {name for name in names if name.endswith(_OLDER) and f"{name.removesuffix(_OLDER)}{_END}" in names}
        found = {stems.get(name.removesuffix(_END), name.removesuffix(_END)): name for name in names - older}
        ordered = [node for node in order if node in found] + sorted(node for node in found if node not in set(order))
        paths = {node: os.path.join(folder.log_folder, found[node]) for node in ordered}
        return {
            node: [one for one in (older_log(path), path) if os.path.basename(one) in names]
            for node, path in paths.items()
        }


def _logged(story: RunHistory) -> tuple[list[tuple[str, str]], int, list[str]]:
    return list(story.logged), story.logged_count - len(story.logged), list(story.nodes)


def _is_of(node: str, meant: str) -> bool:
    return node == meant or node.startswith(f"{meant}[")


class _Logged:
    """Lines of the journal as a source of lines."""

    def __init__(self, lines: Sequence[tuple[str, str]]) -> None:
        self._lines = lines
        self.total = len(lines)
        self.size_bytes = 0

    def lines(self, start: int, end: int) -> Iterator[LogTextLine]:
        for number, (_, text) in enumerate(self._lines[start:end], start):
            yield LogTextLine(number=number, text=shown_text(text.encode("utf-8", "backslashreplace")))

    def search(self, needle: bytes) -> Iterator[LogTextLine]:
        wanted = needle.decode("utf-8", "replace")
        return (line for line in self.lines(0, self.total) if wanted in line.text.lower())

    def node_of(self, number: int) -> str:
        return self._lines[number][0]


@frozen
class _Part:
    source: LogText | _Logged
    node: str

    def line(self, line: LogTextLine, before: int) -> LogLineView:
        """Return a line of it, numbered behind those of the parts before it."""
        node = self.source.node_of(line.number) if isinstance(self.source, _Logged) else self.node
        return LogLineView(number=before + line.number, text=line.text, node=node, is_cut=line.is_cut)


@frozen
class _Found:
    lines: Sequence[LogLineView]
    matches: int | None = None
    note: str = ""


def _page(parts: Sequence[_Part], asked: LogRange) -> _Found:
    total, limit = sum(part.source.total for part in parts), min(asked.limit, MOST_LINES)
    start = max(0, total - limit) if asked.start is None else asked.start
    found: deque[LogLineView] = deque()
    size = before = 0
    for part in parts:
        for line in part.source.lines(max(0, start - before), start + limit - before):
            size += len(line.text)
            if size > _MOST_TEXT and asked.start is not None and found:
                # The next page begins here.
                return _Found(lines=found)
            found.append(part.line(line, before))
            while size > _MOST_TEXT and len(found) > 1:
                size -= len(found.popleft().text)
        before += part.source.total
    return _Found(lines=found)


def _search(parts: Sequence[_Part], asked: LogRange) -> _Found:
    """Return the last lines that hold a text, or the first ones from a number on; counts all of them."""
    needle, limit = asked.search.lower().encode("utf-8", "replace"), min(asked.limit, MOST_LINES)
    most = max(1, min(limit, _MOST_TEXT // 512))
    found: deque[LogLineView] = deque(maxlen=most)
    matches = before = read_bytes = 0
    for part in parts:
        read_bytes += part.source.size_bytes
        if read_bytes > MOST_SEARCHED_BYTES:
            searched = format_size(MOST_SEARCHED_BYTES)
            return _Found(lines=found, matches=matches, note=f"only the first {searched} were searched; choose a stage")
        for line in part.source.search(needle):
            matches += 1
            is_wanted = asked.start is None or (before + line.number >= asked.start and len(found) < most)
            if is_wanted:
                found.append(part.line(line, before))
        before += part.source.total
    return _Found(lines=found, matches=matches)
