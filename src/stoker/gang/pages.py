"""The mailboxes of a gang: for each rank its page and a black box of 64 KiB, in memory that has no name.

Each rank gets the descriptor of its own mailbox alone, so none can spoil another's. Nothing can be left behind, whoever
is killed when.

    0 …… 4096   the page (`page`)
    4096 ……     what the interpreter said of the error: as much of a traceback as fits 48 KiB
    53248 ……    what `faulthandler` wrote when the process crashed, or when it was asked where it is
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from stoker.gang.memory import unnamed_memory
from stoker.gang.page import PAGE_BYTES, Page, Torn, decode
from stoker.model.closable import Closable

BOX_BYTES = 64 * 1024
TRACEBACK_AT = PAGE_BYTES
TRACEBACK_BYTES = 48 * 1024
CRASH_AT = TRACEBACK_AT + TRACEBACK_BYTES
CRASH_BYTES = BOX_BYTES - TRACEBACK_BYTES
MAILBOX_BYTES = PAGE_BYTES + BOX_BYTES

# One of them is expected to be whole: a rank writes two pieces in a row.
_LOOKS = 3


class Pages(Closable):
    """The mailboxes, seen by the owner of the gang."""

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds = list(fds)

    @classmethod
    def make(cls, count: int) -> Pages:
        fds: list[int] = []
        try:
            for rank in range(count):
                fds.append(unnamed_memory(f"stoker-rank-{rank}", MAILBOX_BYTES))  # noqa: PERF401 - closed if one fails
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return cls(fds)

    def __len__(self) -> int:
        return len(self._fds)

    def fd(self, rank: int) -> int:
        """Give the descriptor that this rank is handed."""
        return self._fds[rank]

    def read(self, rank: int) -> Page | Torn:
        """Read a rank's page, once more if it is being written."""
        page = decode(os.pread(self._fds[rank], PAGE_BYTES, 0))
        for _ in range(_LOOKS - 1):
            if isinstance(page, Page):
                break
            page = decode(os.pread(self._fds[rank], PAGE_BYTES, 0))
        return page

    def traceback(self, rank: int, page: Page) -> str:
        """Give what a rank's interpreter said of its error."""
        size = min(page.traceback_bytes, TRACEBACK_BYTES)
        return os.pread(self._fds[rank], size, TRACEBACK_AT).decode(errors="replace")

    def crash(self, rank: int) -> str:
        """Give what the C side wrote when a rank crashed, or was asked where it is."""
        return os.pread(self._fds[rank], CRASH_BYTES, CRASH_AT).rstrip(b"\0").decode(errors="replace")

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())
