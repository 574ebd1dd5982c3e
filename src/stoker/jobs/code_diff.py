"""How the code of two runs differs: a unified diff where the files are stored, else their names.

A run of a program on this machine keeps the small text files of its code in `code.json` of its folder, for this alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.text import printable
from stoker.host.durable import read_regular
from stoker.jobs.job_folder import JobFolder

MOST_TEXT = 200_000
MOST_FILES = 500
LARGEST_FILE_BYTES = 256 * 1024
_MOST_LINES = 4000
"""Of one side: what finds the differences takes seconds for more."""
_COMPARED_LINES = 100_000
"""Of all files together."""
_LONGEST_LINE = 2000

CODE = "code.json"
_KEPT_FILE_BYTES = 64 * 1024
_KEPT_BYTES = 1 << 20
_LARGEST_PAPER_BYTES = 8 << 20

ReadFile = Callable[[str], bytes | None]
"""Returns the bytes of a digest; None if they are not stored, or too many."""


@frozen
class CodeChange:
    """What differs between two sets of files."""

    files: tuple[str, ...]
    text: str
    is_cut: bool = False


def code_paper(paths: Sequence[str]) -> dict[str, bytes]:
    """Return the file that keeps the texts of a program's code, by its name; large files and others are left out."""
    texts: dict[str, str] = {}
    kept_bytes = 0
    for path in paths:
        try:
            data = read_regular(path, _KEPT_FILE_BYTES)
            text = data.decode()
        except (OSError, ValueError, StokerError):
            continue
        kept_bytes += len(data)
        if kept_bytes > _KEPT_BYTES:
            break
        texts[hashlib.sha256(data).hexdigest()] = text
    return {CODE: dumps({"v": 1, "texts": texts}).encode()} if texts else {}


def read_code(folder: JobFolder) -> dict[str, bytes]:
    """Return the texts that a run keeps of its code, by digest. Never raises."""
    try:
        raw = loads(read_regular(os.path.join(folder.path, CODE), _LARGEST_PAPER_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    texts = raw.get("texts") if isinstance(raw, dict) else None
    return {name: str(text).encode() for name, text in texts.items()} if isinstance(texts, dict) else {}


def nothing_stored(_digest: str, /) -> None:
    """Return nothing: the files are known by their digests alone."""


def compare_code(before: Mapping[str, str], after: Mapping[str, str], read: ReadFile = nothing_stored) -> CodeChange:
    """Return how files, by path with their digests, changed; both texts are bounded."""
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    pieces: list[str] = []
    size, is_cut = 0, len(paths) > MOST_FILES
    room = _Room(_COMPARED_LINES)
    for path in paths[:MOST_FILES]:
        for line in _file_diff(path, before.get(path), after.get(path), read, room):
            size += len(line) + 1
            if size > MOST_TEXT:
                return CodeChange(files=tuple(paths[:MOST_FILES]), text="\n".join(pieces), is_cut=True)
            pieces.append(line)
    return CodeChange(files=tuple(paths[:MOST_FILES]), text="\n".join(pieces), is_cut=is_cut)


class _Room:
    """How many lines may still be compared."""

    def __init__(self, lines: int) -> None:
        self._left = lines

    def takes(self, *sides: Sequence[str]) -> bool:
        """Return True if there is room for these lines."""
        self._left -= sum(map(len, sides))
        return self._left >= 0


def _file_diff(path: str, before: str | None, after: str | None, read: ReadFile, room: _Room) -> Iterator[str]:
    shown = printable(path).replace("\n", "\\x0a")
    yield f"--- {f'a/{shown}' if before is not None else '/dev/null'}"
    yield f"+++ {f'b/{shown}' if after is not None else '/dev/null'}"
    sides = [_lines(digest, read) for digest in (before, after)]
    if sides[0] is None or sides[1] is None:
        digests = " → ".join((digest or "none")[:12] for digest in (before, after))
        yield f"# not shown: binary, large, or not stored ({digests})"
        return
    if not room.takes(sides[0], sides[1]):
        yield "# not shown: too many lines have changed in all files together"
        return
    from difflib import unified_diff  # noqa: PLC0415 - 4 ms that a run should not cost

    # The first two lines are the names.
    for number, line in enumerate(unified_diff(sides[0], sides[1], lineterm="")):
        if number > 1:
            yield line[:_LONGEST_LINE]


def _lines(digest: str | None, read: ReadFile) -> list[str] | None:
    if digest is None:
        return []
    data = read(digest)
    if data is None or len(data) > LARGEST_FILE_BYTES or b"\0" in data:
        return None
    lines = [printable(line) for line in data.decode("utf-8", "backslashreplace").split("\n")]
    return lines if len(lines) <= _MOST_LINES else None
