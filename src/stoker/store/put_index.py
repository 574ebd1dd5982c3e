"""The index of what was put: one line of JSON for each putting and each taking away of a name, only ever added to.

It is the story, not the truth: refs and records say what there is. Each line vouches for itself (`sealed`), so one that
was torn by a crash or edited is told apart and passed over; the next line begins anew behind it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from stoker.host.brief_lock import BriefLocks
from stoker.host.durable import NO_STEP, open_regular, sync_dir, translated
from stoker.model.frozen import frozen
from stoker.store.places import Places
from stoker.store.sealed import BrokenSeal, seal, unseal

_SEAL = "put/1"


@frozen
class Row:
    """One line of the index; `damage` says why there is nothing in it."""

    fields: dict[str, Any]
    damage: str = ""


def add_row(places: Places, fields: dict[str, Any], *, on_step: Callable[[str], None] = NO_STEP) -> None:
    """Write one line, durably."""
    append_line(places.index, seal(_SEAL, fields), lock=os.path.join(places.refs, ".lock"), on_step=on_step)


def append_line(path: str, line: bytes, *, lock: str, on_step: Callable[[str], None] = NO_STEP) -> None:
    """Add a line to a file of lines, durably and alone: whole, or not at all if the disk is full."""
    with closing(BriefLocks()) as locks, locks.hold(lock), translated(path):
        is_new = not os.path.lexists(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
                # Whoever wrote last did not come to the end of the line.
                line = b"\n" + line
            on_step("index")
            _write_whole(descriptor, line, size_bytes)
            on_step("index_sync")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_dir(os.path.dirname(path))


def read_index(places: Places) -> Iterator[Row]:
    """Give every line, the oldest first; nothing if there is no index."""
    try:
        file = open_regular(places.index)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Row(fields={}, damage=str(error))
        return
    with file, translated(places.index):
        for line in file:
            yield _read(line)


def _read(line: bytes) -> Row:
    try:
        return Row(fields=unseal(_SEAL, line))
    except BrokenSeal as broken:
        return Row(fields={}, damage=f"the line {broken}")


def _write_whole(descriptor: int, line: bytes, size_bytes: int) -> None:
    try:
        if os.write(descriptor, line) == len(line):
            return
    except OSError:
        os.ftruncate(descriptor, size_bytes)
        raise
    # A disk that became full in the middle of a line: what fits is worth nothing.
    os.ftruncate(descriptor, size_bytes)
    os.fsync(descriptor)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
