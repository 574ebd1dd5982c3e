"""Damaged files, moved aside with their reason: evidence is never deleted, and never served."""

from __future__ import annotations

import contextlib
import itertools
import os

from stoker.host.disk import folder_bytes
from stoker.host.durable import read_regular
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps, loads
from stoker.store.places import names_in

_counter = itertools.count()
_REASON = ".reason.json"
_LARGEST_REASON_BYTES = 1 << 16


@frozen
class SetAside:
    """Something that was found damaged, where it lies now."""

    path: str
    reason: str
    at_s: float
    size_bytes: int

    @property
    def paths(self) -> tuple[str, str]:
        """The thing itself, and the file that says why it lies here."""
        return self.path, f"{self.path}{_REASON}"


def list_quarantine(quarantine: str) -> list[SetAside]:
    """Give what was set aside, the oldest first."""
    found = [_describe(os.path.join(quarantine, name)) for name in names_in(quarantine) if not name.endswith(_REASON)]
    return sorted(found, key=lambda one: (one.at_s, one.path))


def set_aside(path: str, quarantine: str, *, reason: str, now_s: float, seen: os.stat_result | None = None) -> str:
    """Move a damaged file (or whatever lies in its place) into quarantine, its reason beside it; give its new path.

    Gives an empty text if it stays where it is: it vanished, it is no longer the file that was `seen` to be damaged,
    or the store can't be written. That is no error: whoever found the damage does not use the file either way.
    """
    name = f"{os.path.basename(path)}.{int(now_s)}.{os.getpid()}.{next(_counter)}"
    target = os.path.join(quarantine, name)
    try:
        if seen is not None and not os.path.samestat(seen, os.lstat(path)):
            return ""
        os.makedirs(quarantine, exist_ok=True)
        os.rename(path, target)
        if seen is not None and not os.path.samestat(seen, os.lstat(target)):
            # Somebody put a good one there in the last moment: back with it, unless the name is taken again already.
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


def _describe(path: str) -> SetAside:
    try:
        raw = loads(read_regular(f"{path}{_REASON}", _LARGEST_REASON_BYTES))
        reason, at_s = str(raw["reason"]), float(raw["at"])
    except (OSError, ValueError, KeyError, TypeError):
        reason, at_s = "nobody wrote down why", _changed_s(path)
    return SetAside(path=path, reason=reason, at_s=at_s, size_bytes=folder_bytes(path))


def _changed_s(path: str) -> float:
    try:
        return os.lstat(path).st_ctime
    except OSError:
        return 0.0
