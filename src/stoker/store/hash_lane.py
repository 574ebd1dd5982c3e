"""Hashing beside the work: blocks are handed to a thread, and whoever reads or compresses does not wait for it."""

from __future__ import annotations

import queue
import threading
from typing import Protocol

from stoker.model.closable import Closable

_DEPTH = 8
_WORTH_A_HANDOVER_BYTES = 32 * 1024


class Hashing(Protocol):
    """What a lane feeds: an object of `hashlib`."""

    def update(self, data: bytes, /) -> None: ...


class HashLane(Closable):
    """One thread that feeds blocks to hashes, in order, at most a few blocks behind. For one thread to use.

    Its memory is bounded: whoever is much quicker waits. A block must not change after it was given.
    """

    def __init__(self) -> None:
        self._blocks: queue.Queue[tuple[Hashing, bytes] | None] = queue.Queue(_DEPTH)
        self._thread: threading.Thread | None = None

    def feed(self, hashing: Hashing, block: bytes) -> None:
        """Have a block added to a hash."""
        if len(block) < _WORTH_A_HANDOVER_BYTES and not self._blocks.unfinished_tasks:
            hashing.update(block)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hash lane", daemon=True)
            self._thread.start()
        self._blocks.put((hashing, block))

    def wait(self) -> None:
        """Wait until every block that was given is in its hash."""
        self._blocks.join()

    def close(self) -> None:
        """Let the thread end, after the blocks that it was given."""
        if self._thread is not None:
            self._blocks.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (given := self._blocks.get()) is not None:
            hashing, block = given
            try:
                hashing.update(block)
            finally:
                self._blocks.task_done()
        self._blocks.task_done()
