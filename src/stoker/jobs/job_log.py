"""Pages of what a job printed: the lines that stages logged to the journal, then the logs of its stages one by one.

That is their order at the first look; what comes later is behind it (`log_order`), so that a line keeps its number.
"""

from __future__ import annotations

import heapq
import os
import threading
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter, itemgetter

from stoker.core.errors import NotFound
from stoker.core.frozen import frozen
from stoker.core.text import did_you_mean, format_size, safe_name
from stoker.host.writers import older_log
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import HistoryCache, RunHistory
from stoker.jobs.log_order import LogOrder, LogSpan, LogState
from stoker.jobs.log_text import LogIndex, LogText, LogTextLine, shown_text
from stoker.protocol.screen_messages import LogLineView, LogPage, LogRequest

MOST_SEARCHED_BYTES = 512 << 20
_MOST_TEXT = 1 << 20
"""Characters of one page, whatever the number of its lines."""
_MOST_ORDERS = 256
_DIGITS = 18
_MOST_UNFINISHED = 20
_END = ".log"
_OLDER = ".1.log"


class JobLogPages:
    """Reads pages of logs; what it finds out about a log is kept for the next page. Thread-safe."""

    def __init__(self, histories: HistoryCache) -> None:
        self._histories = histories
        self._index = LogIndex()
        self._guard = threading.Lock()
        self._orders: OrderedDict[str, tuple[threading.Lock, LogOrder]] = OrderedDict()

    def read(
        self, job: str, folder: JobFolder, asked: LogRequest, *, is_over: bool, is_meant: frozenset[str] | None = None
    ) -> LogPage:
        """Return a page of what is called `job`; `is_meant` are the only nodes, of one trial.

        Raises `NotFound` if no stage has this name.
        """
        look = self._look(folder, is_over=is_over)
        nodes = [node for node in look.nodes if is_meant is None or node.partition("[")[0] in is_meant]
        chosen = {node for node in nodes if not asked.node or _is_of(node, asked.node)}
        if asked.node and not chosen and asked.node not in look.known:
            known = ", ".join(nodes[:12]) or "none yet"
            raise NotFound(
                f"no stage {asked.node!r} has a log", hint=did_you_mean(asked.node, nodes) or f"stages: {known}"
            )
        lines = _NumberedLines(look, chosen)
        start, is_anew = lines.start_of(asked)
        page = lines.search(asked) if asked.search else lines.page(start, asked.limit)
        return LogPage(
            job=job,
            lines=tuple(page.lines),
            nodes=tuple(nodes),
            is_over=is_over,
            total=lines.total,
            unfinished=() if asked.search else tuple(lines.unfinished()),
            next="" if asked.search else lines.cursor(page.next),
            is_anew=is_anew,
            matches=page.matches,
            note=page.note or (f"{look.dropped:,} older lines of the journal are not shown" if look.dropped else ""),
        )

    def _look(self, folder: JobFolder, *, is_over: bool) -> _Look:
        with self._guard:
            lock, order = self._orders.pop(folder.path, (threading.Lock(), LogOrder()))
            self._orders[folder.path] = lock, order
            while len(self._orders) > _MOST_ORDERS:
                self._orders.popitem(last=False)
        # One look after the other: lines of an older one would seem to be gone.
        with lock:
            journal = self._histories.read(folder.status_path, _journal_of)
            files = self._files(folder, list(journal.live))
            sources: dict[str, LogText | _Logged] = {f":{node}": one for node, one in journal.logged.items()}
            node_of = {f":{node}": node for node in journal.logged}
            states = [
                LogState(source=f":{node}", end=one.total, first=one.first) for node, one in journal.logged.items()
            ]
            for node, paths in files.items():
                is_ended = is_over or not journal.live.get(node, True)
                for path in paths:
                    source, log = os.path.basename(path), self._index.log(path)
                    sources[source], node_of[source] = log, node
                    is_open = log.is_open and not is_ended and path == paths[-1]
                    states.append(LogState(source=source, end=log.total - is_open, inode=log.inode))
            order.note(states, journal.pieces)
            return _Look(
                order=order.name,
                spans=tuple(order.spans),
                sources=sources,
                node_of=node_of,
                ends={state.source: state.end for state in states},
                nodes=list(dict.fromkeys([*journal.logged, *files])),
                known=frozenset(journal.live),
                dropped=journal.dropped,
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


@frozen
class _Journal:
    """What the journal tells of the lines of a job."""

    logged: Mapping[str, _Logged]
    """By node."""
    pieces: Sequence[LogSpan]
    """Their order."""
    live: Mapping[str, bool]
    """Nodes that are known: True if more may come of one."""
    dropped: int


def _journal_of(story: RunHistory) -> _Journal:
    texts: dict[str, list[str]] = {}
    for node, text in story.logged:
        texts.setdefault(node, []).append(text)
    logged = {node: _Logged(texts.get(node, ()), count) for node, count in story.logged_of.items()}
    places = Counter({node: one.first for node, one in logged.items()})
    pieces = []
    for node, _ in story.logged:
        pieces.append(LogSpan(f":{node}", places[node], 1))
        places[node] += 1
    return _Journal(
        logged=logged,
        pieces=pieces,
        live={name: node.ending in _LIVE for name, node in story.nodes.items()},
        dropped=story.logged_count - len(story.logged),
    )


_LIVE = frozenset({"running", "waiting"})


def _is_of(node: str, meant: str) -> bool:
    return node == meant or node.startswith(f"{meant}[")


class _Logged:
    """Lines that one node logged to the journal: the last ones of so many."""

    size_bytes = 0
    is_open = False

    def __init__(self, texts: Sequence[str], total: int) -> None:
        self._texts = texts
        self.total = total
        self.first = total - len(texts)

    def lines(self, start: int, end: int) -> Iterator[LogTextLine]:
        first = max(start, self.first)
        for number, text in enumerate(self._texts[first - self.first : max(0, end - self.first)], first):
            yield LogTextLine(number=number, text=shown_text(text.encode("utf-8", "backslashreplace")))

    def search(self, needle: bytes) -> Iterator[LogTextLine]:
        wanted = needle.decode("utf-8", "replace")
        return (line for line in self.lines(0, self.total) if wanted in line.text.lower())


@frozen
class _Look:
    """The logs of a job as they are at one moment."""

    order: str
    spans: Sequence[LogSpan]
    sources: Mapping[str, LogText | _Logged]
    node_of: Mapping[str, str]
    """By source."""
    ends: Mapping[str, int]
    """Whole lines of each source."""
    nodes: Sequence[str]
    known: frozenset[str]
    dropped: int


@frozen
class _Found:
    lines: Sequence[LogLineView]
    next: int = 0
    """Number of the line that follows."""
    matches: int | None = None
    note: str = ""


class _NumberedLines:
    """The lines of some nodes, with their numbers."""

    def __init__(self, look: _Look, nodes: Collection[str]) -> None:
        self._look = look
        self._sources = {one: log for one, log in look.sources.items() if look.node_of[one] in nodes}
        self._begins: list[tuple[int, LogSpan]] = []
        self.total = 0
        for span in look.spans:
            if span.source in self._sources:
                self._begins.append((self.total, span))
                self.total += span.count

    def start_of(self, asked: LogRequest) -> tuple[int | None, bool]:
        """Return where a page begins (None: with the last lines), and whether its lines were numbered anew."""
        if not asked.after:
            return asked.start, False
        order, _, number = asked.after.partition("-")
        if order != self._look.order or not number.isdecimal() or int(number[:_DIGITS]) > self.total:
            return None, True
        return int(number[:_DIGITS]), False

    def cursor(self, number: int) -> str:
        return f"{self._look.order}-{number}"

    def page(self, start: int | None, limit: int) -> _Found:
        """Return lines from a number on, or the last ones."""
        is_tail = start is None
        first = max(0, self.total - limit) if start is None else start
        end = min(self.total, first + limit)
        lines = list(self._between(first, end))
        size, kept = 0, 0
        for line in reversed(lines) if is_tail else lines:
            size += len(line.text)
            if size > _MOST_TEXT and kept:
                break
            kept += 1
        if is_tail:
            return _Found(lines=lines[len(lines) - kept :], next=self.total)
        # What is left out begins the next page.
        return _Found(lines=lines[:kept], next=lines[kept].number if kept < len(lines) else max(first, end))

    def _between(self, first: int, end: int) -> Iterator[LogLineView]:
        at = max(0, bisect_right(self._begins, first, key=itemgetter(0)) - 1)
        wanted: list[tuple[int, LogSpan]] = []
        for begin, span in self._begins[at:]:
            if begin >= end:
                break
            low, high = max(first, begin), min(end, begin + span.count)
            if low < high:
                wanted.append((low, LogSpan(span.source, span.first + low - begin, high - low)))
        ranges: dict[str, tuple[int, int]] = {}
        for _, span in wanted:
            low, _ = ranges.get(span.source, (span.first, 0))
            ranges[span.source] = low, span.first + span.count
        # Lines of a source follow each other in its spans: it is read once.
        found = {one: {line.number: line for line in self._sources[one].lines(*ends)} for one, ends in ranges.items()}
        for begin, span in wanted:
            for place in range(span.count):
                line = found[span.source].get(span.first + place)
                if line is not None:
                    yield self._view(span.source, line, begin + place)

    def unfinished(self) -> Iterator[LogLineView]:
        """Return the last lines of logs that have no end yet."""
        ends = self._look.ends
        growing = [one for one, log in self._sources.items() if log.total > ends[one]]
        for source in growing[-_MOST_UNFINISHED:]:
            for line in self._sources[source].lines(ends[source], ends[source] + 1):
                yield self._view(source, line, self.total)

    def search(self, asked: LogRequest) -> _Found:
        """Return the last lines that hold a text, or the first ones from a number on; counts all of them."""
        needle = asked.search.lower().encode("utf-8", "replace")
        most = max(1, min(asked.limit, _MOST_TEXT // 512))
        note, sources, read_bytes = "", [], 0
        for source, log in self._sources.items():
            read_bytes += log.size_bytes
            if read_bytes > MOST_SEARCHED_BYTES:
                note = f"only the first {format_size(MOST_SEARCHED_BYTES)} were searched; choose a stage"
                break
            sources.append(source)
        matches = Counter[str]()
        found = self._matches(sources, needle, matches)
        if asked.start is None:
            lines = heapq.nlargest(most, found, key=attrgetter("number"))[::-1]
        else:
            start = asked.start
            lines = heapq.nsmallest(most, (one for one in found if one.number >= start), key=attrgetter("number"))
        return _Found(lines=lines, matches=matches.total(), note=note)

    def _matches(self, sources: Sequence[str], needle: bytes, matches: Counter[str]) -> Iterator[LogLineView]:
        places: dict[str, list[tuple[int, int]]] = {source: [] for source in sources}
        for begin, span in self._begins:
            if span.source in places:
                places[span.source].append((span.first, begin))
        for source in sources:
            for line in self._sources[source].search(needle):
                matches[source] += 1
                at = bisect_right(places[source], line.number, key=itemgetter(0)) - 1
                first, begin = places[source][at] if at >= 0 else (line.number, self.total)
                is_whole = line.number < self._look.ends[source]
                yield self._view(source, line, begin + line.number - first if is_whole else self.total)

    def _view(self, source: str, line: LogTextLine, number: int) -> LogLineView:
        return LogLineView(number=number, text=line.text, node=self._look.node_of[source], is_cut=line.is_cut)
