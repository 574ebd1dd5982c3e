"""What is said of an attempt before it starts, written down and mirrored beside what it prints later.

    spool/preparing-JOB-ATTEMPT/logs/preparing.log

Made with its first line: an attempt that finds everything here has none.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from stoker.host.durable import remove_tree, translated
from stoker.host.log_file import LogFile
from stoker.model.clock import Clock
from stoker.model.errors import StokerError
from stoker.model.leases import Token
from stoker.worker.shipping.line import FleetLine
from stoker.worker.shipping.mirror import Mirror

_DRAIN_S = 2.0


class PreparingLog:
    """One attempt's. Lines come from one thread at a time."""

    def __init__(self, spool: str, token: Token, line: FleetLine, clock: Clock) -> None:
        self._folder = os.path.join(spool, f"preparing-{token.job[:16]}-{token.attempt}-{token.epoch}")
        self._open: Callable[[], Mirror] = lambda: Mirror(self._folder, token, line, clock=clock)
        self._clock = clock
        self._turn = threading.Lock()
        self._log: LogFile | None = None
        self._mirror: Mirror | None = None

    def hear(self, text: str) -> None:
        """Write a line. What can't be written stops nobody."""
        if not text:
            return
        with self._turn, suppress(StokerError):
            if self._log is None:
                logs = os.path.join(self._folder, "logs")
                with translated(logs):
                    os.makedirs(logs, mode=0o700, exist_ok=True)
                self._log = LogFile(os.path.join(logs, "preparing.log"))
                self._mirror = self._open()
                self._mirror.begin()
            self._log.write(f"{text}\n".encode(errors="replace"))

    def close(self) -> None:
        """Bring what is left of it, for a moment, and remove it here."""
        with self._turn:
            log, mirror, self._log, self._mirror = self._log, self._mirror, None, None
        if log is not None:
            log.close()
        if mirror is not None:
            mirror.drain(self._clock.monotonic_s() + _DRAIN_S)
            with suppress(StokerError):
                remove_tree(self._folder)
