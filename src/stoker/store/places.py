"""All paths of a store. The only module that knows them.

A Stoker with another layout must use another root: an older one would take what it can't read for damage.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

from stoker.core.digests import Digest
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.host.durable import read_regular, translated
from stoker.host.resources import folder_bytes


class StorePaths:
    """Paths below one store root. All on one file system, since names are given by rename."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.blobs = os.path.join(root, "blobs")
        self.records = os.path.join(root, "records")
        self.staging = os.path.join(root, "staging")
        self.views = os.path.join(root, "views")
        self.quarantine = os.path.join(root, "quarantine")
        self.pins = os.path.join(root, "pins")
        self.refs = os.path.join(root, "refs")
        self.index = os.path.join(root, "index.jsonl")
        self.uploads = os.path.join(root, "uploads")
        self.incoming = os.path.join(root, "incoming")
        """Trees being received from other machines: their listings, and large files that grow."""
        self.held = os.path.join(root, "held")
        """A mark for each received tree that other machines may get from here."""
        self.leases = os.path.join(root, "leases")
        self.memo = os.path.join(root, "memo.db")

    def make(self) -> None:
        """Create missing folders."""
        with translated(self.root):
            for folder in (
                self.blobs, self.records, self.staging, self.views, self.quarantine, self.pins, self.refs, self.leases
            ):  # fmt: skip
                os.makedirs(folder, exist_ok=True)

    def blob_files(self) -> Iterator[tuple[str, str]]:
        """Return the name and the path of every file among the blobs, in the order of their names.

        Files with other names may be there; concurrent changes may be among them.
        """
        for shard in _names(self.blobs):
            for name in _names(f"{self.blobs}/{shard}"):
                yield name, f"{self.blobs}/{shard}/{name}"

    def blob(self, digest: Digest) -> str:
        return f"{self.blobs}/{digest[0]}/{digest}"

    def record(self, key: Digest) -> str:
        return f"{self.records}/{key[0]}/{key}"

    def upload(self, upload_id: str) -> str:
        return f"{self.uploads}/{upload_id}"

    def view(self, digest: Digest) -> str:
        return f"{self.views}/{digest}"


def names_in(folder: str) -> list[str]:
    """Return the names in a folder, sorted; none if there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _names(folder: str) -> list[str]:
    with translated(folder):
        return names_in(folder)


# Damaged files, moved aside with their reason: evidence is never deleted, and never served.

_counter = itertools.count()
_REASON = ".reason.json"
_LARGEST_REASON_BYTES = 1 << 16


@frozen
class QuarantinedItem:
    """Something damaged, and where it is now."""

    path: str
    reason: str
    at_s: float
    size_bytes: int

    @property
    def paths(self) -> tuple[str, str]:
        """The damaged file, and the file with the reason."""
        return self.path, f"{self.path}{_REASON}"


def list_quarantine(quarantine: str) -> list[QuarantinedItem]:
    """Return what was set aside, the oldest first."""
    found = [_describe(os.path.join(quarantine, name)) for name in names_in(quarantine) if not name.endswith(_REASON)]
    return sorted(found, key=lambda one: (one.at_s, one.path))


def set_aside(path: str, quarantine: str, *, reason: str, now_s: float, seen: os.stat_result | None = None) -> str:
    """Move a damaged file (or whatever is in its place) into quarantine, its reason beside it; return its new path.

    Returns an empty text if it stays where it is: it disappeared, it is no longer the file that was `seen` to be
    damaged, or the store is read-only. That is no error: the caller does not use the file either way.
    """
    name = f"{os.path.basename(path)}.{int(now_s)}.{os.getpid()}.{next(_counter)}"
    target = os.path.join(quarantine, name)
    try:
        if seen is not None and not os.path.samestat(seen, os.lstat(path)):
            return ""
        os.makedirs(quarantine, exist_ok=True)
        os.rename(path, target)
        if seen is not None and not os.path.samestat(seen, os.lstat(target)):
            # A good one was put there in the last moment: move it back, unless the name is taken again already.
            with contextlib.suppress(FileExistsError):
                os.link(target, path)
            os.unlink(target)
            return ""
    except OSError:
        return ""
    # A full disk still takes the move, and that is what counts.
    with contextlib.suppress(OSError), open(f"{target}{_REASON}", "w", encoding="utf-8") as file:
        file.write(dumps({"path": path, "reason": reason, "at": now_s}) + "\n")
    return target


def _describe(path: str) -> QuarantinedItem:
    try:
        raw = loads(read_regular(f"{path}{_REASON}", _LARGEST_REASON_BYTES))
        reason, at_s = str(raw["reason"]), float(raw["at"])
    except (OSError, ValueError, KeyError, TypeError):
        reason, at_s = "reason unknown", _changed_s(path)
    return QuarantinedItem(path=path, reason=reason, at_s=at_s, size_bytes=folder_bytes(path))


def _changed_s(path: str) -> float:
    try:
        return os.lstat(path).st_ctime
    except OSError:
        return 0.0


# The folders of a home (`STOKER_HOME`).
