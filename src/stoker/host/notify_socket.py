"""Words to whoever started us as a service: ready, alive, ending. systemd's protocol, a datagram each.

Where nobody listens nothing is said. A word that can't be sent is lost: no service ends because of it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

from stoker.model.clock import Clock

_ADDRESS = "NOTIFY_SOCKET"
_WATCHDOG = "WATCHDOG_USEC"
_OURS_ALONE = (_ADDRESS, _WATCHDOG, "WATCHDOG_PID", "INVOCATION_ID", "JOURNAL_STREAM", "MANAGERPID", "SYSTEMD_EXEC_PID")
# So many times within the time after which we count as dead.
_BEATS = 4


class NotifySocket:
    """One process's line to its supervisor."""

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        self._address = _address(environment.get(_ADDRESS, ""))
        self._clock = clock
        limit = environment.get(_WATCHDOG, "")
        is_meant = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._every_s = int(limit) / 1e6 / _BEATS if limit.isdigit() and is_meant else None
        self._next_s = 0.0

    def ready(self) -> None:
        """Say that we do now what we are for."""
        self._say("READY=1")

    def alive(self) -> None:
        """Say that we live, if it is time to; cheap to call often, and only from where it proves something."""
        if self._every_s is None:
            return
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._say("WATCHDOG=1")

    def ending(self) -> None:
        """Say that the end has begun."""
        self._say("STOPPING=1")

    @property
    def beats_every_s(self) -> float | None:
        """How often `alive` says something; nothing: never."""
        return self._every_s if self._address else None

    def _say(self, word: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.setblocking(False)
            line.sendto(word.encode(), self._address)


def for_children(environment: Mapping[str, str]) -> dict[str, str]:
    """Give an environment without what a supervisor tells its service alone: children are not that service."""
    return {name: value for name, value in environment.items() if name not in _OURS_ALONE}


def _address(text: str) -> str:
    # An abstract address is written with @ and begins with a zero byte.
    return f"\0{text[1:]}" if text.startswith("@") else text if text.startswith("/") else ""
