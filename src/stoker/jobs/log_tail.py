"""Lines of files that may still grow, read from where the last look ended."""

from __future__ import annotations

import os
from collections.abc import Iterator

from stoker.host.durable import open_regular, translate


class GrowingLines:
    """Whole lines of files that may still grow. Several files are read one after the other; the last one grows."""

    def __init__(self, *paths: str) -> None:
        self._before = paths[:-1]
        self._path = paths[-1]
        self._read_bytes = 0
        self._rest = b""

    def fresh(self) -> Iterator[bytes]:
        """Return the lines that were finished since the last time."""
        for path in self._before:
            yield from self._from(path, 0)
        self._before = ()
        try:
            # A journal that was set aside begins anew.
            self._read_bytes = min(self._read_bytes, os.stat(self._path).st_size)
        except FileNotFoundError:
            return
        yield from self._from(self._path, self._read_bytes)

    def rest(self) -> Iterator[bytes]:
        """Return a last line that has no end."""
        if self._rest:
            yield self._rest
            self._rest = b""

    def _from(self, path: str, start: int) -> Iterator[bytes]:
        try:
            file = open_regular(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise translate(error, path) from error
        with file:
            file.seek(start)
            self._read_bytes = start
            # Line by line: a log may be larger than the memory.
            for line in file:
                self._read_bytes += len(line)
                self._rest += line
                if line.endswith(b"\n"):
                    whole, self._rest = self._rest[:-1], b""
                    yield whole
