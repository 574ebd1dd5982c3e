"""The file through which a program's `stoker_trainer` reports: JSON lines, only ever appended to.

The program owns it, so anything may be found in its place. Nothing here waits, and no look reads more than it may.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from stoker.host.durable import remove_tree
from stoker.model.errors import StokerError

_LOOK_BYTES = 1 << 18
# What the last look reads at most; a trainer writes far less in an hour.
_REST_BYTES = 1 << 24


class ControlFile:
    """One attempt's file, which need not be there."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read_bytes = 0

    def fresh(self) -> bytes:
        """Give what was written since the last look, some of it if it is much."""
        try:
            # Most looks end here. A pipe or a device has no size, and a link is never followed.
            if os.lstat(self._path).st_size <= self._read_bytes:
                return b""
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return b""
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return b""
            data = os.pread(descriptor, _LOOK_BYTES, self._read_bytes)
        except OSError:
            return b""
        finally:
            os.close(descriptor)
        self._read_bytes += len(data)
        return data

    def rest(self) -> Iterator[bytes]:
        """Give all that is left, up to a bound; for when the program has ended."""
        end_bytes = self._read_bytes + _REST_BYTES
        while self._read_bytes < end_bytes and (data := self.fresh()):
            yield data


def remove_if_odd(path: str) -> bool:
    """Remove what a program put in the place of a file of ours and is none, so that no reader waits for it.

    Says whether there was such a thing.
    """
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISREG(mode):
            return False
        if stat.S_ISDIR(mode):
            remove_tree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return False
    except (OSError, StokerError):
        return True
    return True
