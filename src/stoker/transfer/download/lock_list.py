"""Lock lists: a JSON file that names every file of a project by its digest, with all its URLs.

    [{"id": "org/repo/model.gguf", "sha256": "…64 hex digits…", "bytes": 1187801280,
      "urls": ["https://…", "https://mirror/…"], "license": "mit"}]

A list is parsed strictly: all faults at once, with line and key. A listed file is stored below a folder named by its
digest, so that two versions never collide; its URLs are tried in order.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from stoker.core.digests import Digest, is_digest
from stoker.core.errors import BadInput, Diagnostic, InvalidInput
from stoker.core.frozen import changed, frozen
from stoker.core.jsontext import JsonPlaces, Place, dumps, find_places, has_repeated_keys, loads
from stoker.core.text import did_you_mean
from stoker.host.durable import read_regular, translated, write_file
from stoker.host.folders import name_fault
from stoker.host.http.exchange import origin, read_address
from stoker.transfer.download.partial import companion_clashes

LARGEST_BYTES = 64 * 1024 * 1024
LARGEST_FILE_BYTES = 2**63 - 1
"""No file system has larger ones."""
SUFFIX = ".lock.json"
LOCK_FOLDER = "models"
"""Default folder of a lock list's files."""
DEFAULT_NAME = f"models{SUFFIX}"
MOST_FAULTS = 20
"""How many faults are listed; the others are counted."""
_HEAD_BYTES = 4096
_LOOKS_LISTED = re.compile(rb"""\s*\[\s*(?:\]\s*\Z|\{[^{}]*"(?:sha256|urls)"\s*:)""")
_FIELDS = ("id", "sha256", "bytes", "urls", "license")


@frozen
class LockedFile:
    """One file of a lock list."""

    id: str
    sha256: Digest
    size_bytes: int
    urls: tuple[str, ...]
    license: str = ""

    @property
    def name(self) -> str:
        """Its path below the folder of all listed files: the digest, then the file name in its first URL."""
        return f"{self.sha256}/{leaf_of(self.urls[0])}"

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "sha256": self.sha256,
            "bytes": self.size_bytes,
            "urls": list(self.urls),
            "license": self.license or None,
        }


def leaf_of(url: str) -> str:
    """Return the last part of a URL's path, decoded; empty if it ends with a slash."""
    return unquote(urlsplit(url).path).rpartition("/")[2]


def is_lock_list(path: str) -> bool:
    """Return True if a file begins like a lock list. It may still be invalid."""
    try:
        # Not a pipe: reading it could block forever.
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return _LOOKS_LISTED.match(head) is not None


def read_lock_list(path: str) -> tuple[LockedFile, ...]:
    """Read a lock list. Raises `InvalidInput` with all its faults."""
    with translated(path):
        data = read_regular(path, LARGEST_BYTES)
    try:
        text = data.decode()
        raw = loads(text)
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON: {error}", faults=(Diagnostic(path, str(error)),)) from None
    reader = _Reader(path, text)
    files = reader.read(raw)
    if reader.faults:
        count = len(reader.faults)
        more = [Diagnostic(path, f"{count - MOST_FAULTS} more errors")] if count > MOST_FAULTS else []
        faults = (*reader.faults[:MOST_FAULTS], *more)
        headline = str(faults[0]) if count == 1 else f"{count} errors in {path}"
        raise InvalidInput(headline, faults=faults, hint="an entry has id, sha256, bytes, urls and perhaps license")
    return files


def write_lock_list(path: str, files: tuple[LockedFile, ...]) -> None:
    """Write a lock list, durably."""
    write_file(path, f"{dumps([file.to_json() for file in files], indent=2)}\n".encode())


def merge_lists(old: Sequence[LockedFile], new: Sequence[LockedFile]) -> tuple[LockedFile, ...]:
    """Return both lists as one; a new file replaces the old one of the same id.

    If its bytes are the same, it keeps its old mirrors on other servers than the new URLs.
    """
    by_id = {file.id: file for file in old}
    for file in new:
        before = by_id.get(file.id)
        if before is not None and before.sha256 == file.sha256:
            servers = {origin(url) for url in file.urls}
            mirrors = tuple(url for url in before.urls if origin(url) not in servers)
            by_id[file.id] = changed(file, urls=file.urls + mirrors)
        else:
            by_id[file.id] = file
    return tuple(by_id.values())


class _Reader:
    """Reads entries, collecting faults."""

    def __init__(self, path: str, text: str) -> None:
        self.faults: list[Diagnostic] = []
        self._path = path
        self._text = text
        self._places: JsonPlaces | None = None
        self._seen: dict[str, int] = {}

    def read(self, raw: Any) -> tuple[LockedFile, ...]:
        if not isinstance(raw, list):
            self._fault((), f"a lock list is a list of files, not {_short(raw)}")
            return ()
        if has_repeated_keys(self._text):
            for place, line in self._found().repeated:
                self._fault(place, "is given twice", line=line)
        files = [self._file((number,), entry) for number, entry in enumerate(raw)]
        self._find_clashes(files)
        return tuple(file for file in files if file is not None)

    def _find_clashes(self, files: Sequence[LockedFile | None]) -> None:
        """Find files whose names are those of the lock or partial file of another one in the same folder."""
        numbers = {file.name: number for number, file in enumerate(files) if file is not None}
        for first, second in companion_clashes(numbers):
            leaf = second.rpartition("/")[2]
            message = f"{_short(leaf)} is a name that fetching [{numbers[first]}] into the same folder uses itself"
            self._fault((numbers[second], "urls", 0), message)

    def _file(self, place: Place, raw: Any) -> LockedFile | None:
        if not isinstance(raw, dict):
            self._fault(place, f"must be an object, is {_short(raw)}")
            return None
        for key in raw:
            if key not in _FIELDS:
                self._fault((*place, key), "is not a field of a listed file", did_you_mean(key, _FIELDS))
        before = len(self.faults)
        name = self._id(place, raw.get("id"))
        sha256 = self._sha256(place, raw.get("sha256"))
        size_bytes: Any = raw.get("bytes")
        if type(size_bytes) is not int or not 0 <= size_bytes <= LARGEST_FILE_BYTES:
            self._fault((*place, "bytes"), f"must be a whole number from 0 to 2^63 - 1, is {_short(size_bytes)}")
        urls = self._urls(place, raw.get("urls"))
        licence = raw.get("license") or ""
        if not isinstance(licence, str):
            self._fault((*place, "license"), f"must be text, is {_short(licence)}")
        if len(self.faults) > before:
            return None
        return LockedFile(id=name, sha256=sha256, size_bytes=size_bytes, urls=urls, license=licence)

    def _id(self, place: Place, raw: Any) -> str:
        if not isinstance(raw, str) or not raw.strip():
            self._fault((*place, "id"), f"must be text, is {_short(raw)}")
            return ""
        if raw in self._seen:
            self._fault((*place, "id"), f"{_short(raw)} is in the list twice, first as [{self._seen[raw]}]")
        self._seen.setdefault(raw, int(place[0]))
        return raw

    def _sha256(self, place: Place, raw: Any) -> Digest:
        if not isinstance(raw, str) or not is_digest(raw.lower()):
            self._fault((*place, "sha256"), f"must be 64 hexadecimal digits, is {_short(raw)}")
            return Digest("")
        return Digest(raw.lower())

    def _urls(self, place: Place, raw: Any) -> tuple[str, ...]:
        if not isinstance(raw, list) or not raw:
            self._fault((*place, "urls"), f"must be a list of at least one URL, is {_short(raw)}")
            return ()
        for number, url in enumerate(raw):
            wrong = _wrong_with(url, names_file=number == 0)
            if wrong:
                self._fault((*place, "urls", number), wrong)
        return tuple(url for url in raw if isinstance(url, str))

    def _fault(self, place: Place, message: str, hint: str = "", *, line: int | None = None) -> None:
        line = line or self._found().line_of(place) or 1
        spelt = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
        self.faults.append(
            Diagnostic(": ".join(part for part in (f"{self._path}:{line}", spelt) if part), message, hint)
        )

    def _found(self) -> JsonPlaces:
        if self._places is None:
            self._places = find_places(self._text)
        return self._places


def _wrong_with(url: Any, *, names_file: bool) -> str:
    """Return the fault of a URL, or an empty text; the first URL of a file also gives its name on disk."""
    if not isinstance(url, str):
        return f"must be a URL, is {_short(url)}"
    try:
        read_address(url)
    except BadInput as error:
        return error.message
    fault = name_fault(leaf_of(url)) if names_file else ""
    return f"it can't name a file: {fault}" if fault else ""


def _short(value: Any) -> str:
    return "missing" if value is None else reprlib.repr(value)
