"""Room on a device for the length of a block: waited for, renewed and measured meanwhile, and given back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from stoker.hardware.ledger.answers import Held
from stoker.model.errors import StokerError


class Guard:
    """The block. `as` gives what is held; the devices are `held.uuids`."""

    def __init__(
        self,
        wait: Callable[[], Held],
        *,
        renew: Callable[[Held], None],
        release: Callable[[Held], None],
        every_s: float,
    ) -> None:
        self._wait = wait
        self._renew = renew
        self._release = release
        self._every_s = every_s
        self._held: Held | None = None
        self._pid = 0
        self._is_over = threading.Event()
        self._beating: threading.Thread | None = None

    def __enter__(self) -> Held:
        self._held = held = self._wait()
        self._pid = os.getpid()
        self._is_over.clear()
        self._beating = threading.Thread(target=self._beat, args=(held,), name="device-lease", daemon=True)
        self._beating.start()
        return held

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A forked child that leaves the block must not give back what its parent holds.
        if self._held is None or self._pid != os.getpid():
            return
        self._is_over.set()
        if self._beating is not None:
            self._beating.join()
        self._release(self._held)
        self._held = None

    def _beat(self, held: Held) -> None:
        while not self._is_over.wait(self._every_s):
            # The next beat tries again; while its owner is seen alive, the reservation counts without it.
            with suppress(StokerError):
                self._renew(held)
