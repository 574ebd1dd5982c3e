"""How a process ended, whoever waited for it."""

from __future__ import annotations

import os
import signal
import sys

from stoker.core.frozen import frozen


@frozen
class ProcessExit:
    """How a process ended: with a status or by a signal."""

    status: int | None
    signal: int | None
    max_rss_bytes: int
    """The most memory it held at once. Forked work counts the pages that it shares with its zygote, too."""
    cpu_s: float
    """Of the process and of all children that it waited for."""

    @property
    def is_success(self) -> bool:
        return self.status == 0

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit status {self.status}"
        try:
            return f"signal {self.signal} ({signal.Signals(self.signal).name})"
        except ValueError:
            return f"signal {self.signal}"


def exit_from(wait_status: int, max_rss: int, cpu_s: float) -> ProcessExit:
    """Return the record for what `wait4` said."""
    code = os.waitstatus_to_exitcode(wait_status)
    return ProcessExit(
        status=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        # macOS counts bytes where Linux counts KiB.
        max_rss_bytes=max_rss if sys.platform == "darwin" else max_rss * 1024,
        cpu_s=cpu_s,
    )
