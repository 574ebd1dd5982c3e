"""A meeting over TCP: one host, the first, holds it; the others are its guests.

    HeldMeeting(["lab1", "lab2"], at=("10.0.0.1", 29400), token=token, epoch=3)      on lab1
    JoinedMeeting("lab2", at=("10.0.0.1", 29400), token=token, epoch=3)              on lab2

A shared token proves who belongs here, both ways, and is never sent. Nothing is encrypted, neither here nor in what
ranks say to each other later: use it on a private network, or through a tunnel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from stoker.core.clock import SystemClock
from stoker.core.errors import BadGang, Cancelled, Fault
from stoker.gang.rendezvous import LEAST_TOKEN_CHARS, MOST_HOSTS, is_name
from stoker.gang.rendezvous_types import HostFailure, HostRanks, RendezvousOutcome

_LOOK_S = 0.1
_MOST_EPOCH = 2**53
_JOIN_S = 2.0


class TcpRendezvous:
    """What both sides have: what is known so far, and threads that learn more."""

    def __init__(self, name: str, token: str, epoch: int) -> None:
        self.name = name
        self.epoch = epoch
        self._token = token
        self._news = threading.Condition()
        self._seats: HostRanks | None = None
        self._place = ""
        self._passed: set[str] = set()
        self._verdict: RendezvousOutcome | None = None
        self._wake: Callable[[], object] = bool
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def published(self) -> str:
        return self._place

    def has_passed(self, point: str) -> bool:
        return point in self._passed

    def verdict(self) -> RendezvousOutcome | None:
        return self._verdict

    def on_news(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def _tell_news(self) -> None:
        """Wake whoever waits; the lock is not held."""
        with self._news:
            self._news.notify_all()
        self._wake()

    def _wait(self, is_there: Callable[[], bool], timeout_s: float, is_cancelled: Callable[[], bool]) -> bool:
        """Wait until something holds or the meeting is over; say whether that was in time. Raises `Cancelled`."""
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + timeout_s
        with self._news:
            while not is_there() and self._verdict is None:
                left_s = deadline_s - clock.monotonic_s()
                if left_s <= 0:
                    return False
                if is_cancelled():
                    raise Cancelled("the gang was cancelled")
                self._news.wait(min(left_s, _LOOK_S))
        return True

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name=f"meeting of {self.name}", daemon=True)
        with self._news:
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
            thread.start()

    def _end_threads(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_S)


def check_words(names: Sequence[str], token: str, epoch: int) -> None:
    """See that a meeting can be called that. Raises `BadGang`."""
    faults = [Fault("host", f"{name!r} is not the name of a host") for name in names if not is_name(name)]
    if len(set(names)) != len(names) or not 1 <= len(names) <= MOST_HOSTS:
        faults.append(Fault("hosts", f"{len(names)} names, of which {len(set(names))} differ", "name each host once"))
    if len(token) < LEAST_TOKEN_CHARS:
        faults.append(Fault("token", f"has fewer than {LEAST_TOKEN_CHARS} characters", "openssl rand -hex 16"))
    if not 0 <= epoch <= _MOST_EPOCH:
        faults.append(Fault("epoch", f"{epoch} is not the number of an attempt"))
    if faults:
        raise BadGang(f"hosts can't meet like that: {'; '.join(map(str, faults))}", faults=tuple(faults))


def vanished(host: str, why: str) -> HostFailure:
    """Return the cause of a host that went without a word."""
    return HostFailure(
        host=host,
        message=f"{host} vanished ({why})",
        code="host_vanished",
        hint="was it killed, or its network cut?",
        missing=(host,),
    )
