"""Several hosts that bring up one gang: who is there, where the ranks' store is, who got there, and who did not.

    host_ranks = rendezvous.gather(HostPart(ranks=2, devices=(…)), timeout_s=…)     every host, in one order
    rendezvous.publish("10.0.0.1:41233")                                       the first host: where the store is
    rendezvous.arrive("up"); rendezvous.has_passed("up")                          all of them, or none
    rendezvous.fail(cause); rendezvous.verdict()                                  one that fails, fails it for all

A rendezvous is for one bring-up, its epoch: what a member of an older one says is refused. `RendezvousHost` and
`RendezvousClient` are its two sides; a gang on one host needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from stoker.core.clock import SystemClock
from stoker.core.errors import RendezvousFailed
from stoker.core.frozen import fresh, frozen

UP = "up"
"""The point at which every rank of every host is ready."""
CLOSED = "closed"
"""The point from which on no host needs the others any more."""
COLLECT_S = 0.2
"""How long others have to say what happened to them, after the first has."""
SETTLE_S = 1.0
_LOOK_S = 0.005


@frozen
class HostPart:
    """What one host brings."""

    ranks: int
    devices: tuple[str, ...] = ()
    """How people know the device of each rank."""
    name: str = ""


@frozen
class HostRanks:
    """All hosts of a gang, in the order that numbers their ranks."""

    hosts: tuple[HostPart, ...]
    place: int = 0
    """Which of them this host is."""
    address: str = ""
    """Where the others reach this host; empty for one that is alone."""
    epoch: int = 0

    @property
    def first_rank(self) -> int:
        """The number of this host's first rank."""
        return sum(host.ranks for host in self.hosts[: self.place])

    @property
    def nranks(self) -> int:
        return sum(host.ranks for host in self.hosts)

    @property
    def is_alone(self) -> bool:
        return len(self.hosts) == 1

    @property
    def name(self) -> str:
        return self.hosts[self.place].name


@frozen
class HostFailure:
    """Why a host gave up."""

    host: str
    message: str
    code: str = ""
    """That of its error."""
    hint: str = ""
    is_echo: bool = False
    """True if it only reports that a peer is gone."""
    missing: tuple[str, ...] = ()
    """Hosts that did not arrive, or vanished, if that is why."""
    facts: Mapping[str, Any] = fresh(factory=dict)
    """The rank that failed there: its number in the whole gang, device, phase, type, text, traceback."""


@frozen
class RendezvousOutcome:
    """The end of a rendezvous: the first cause on any host, and who was dragged along."""

    cause: HostFailure
    collateral: tuple[HostFailure, ...] = ()


class Rendezvous(Protocol):
    """What a gang needs of the other hosts. One gang uses it once; any thread may `fail` or `close` it."""

    def gather(self, part: HostPart, timeout_s: float, is_cancelled: Callable[[], bool] = ...) -> HostRanks:
        """Wait until every host is there. Raises `RendezvousFailed` with who is not, `Cancelled`."""

    def publish(self, place: str) -> None:
        """Publish the address of the store; the first host does."""

    def published(self) -> str:
        """Return where the store is; empty until that is known."""

    def arrive(self, point: str) -> None:
        """Report that this host reached a point."""

    def has_passed(self, point: str) -> bool:
        """Return whether every host got there."""

    def missing(self, point: str) -> tuple[str, ...]:
        """Return the hosts that are not known to have got there."""

    def fail(self, cause: HostFailure) -> None:
        """Report that this host failed, and why; only the first call counts."""

    def verdict(self) -> RendezvousOutcome | None:
        """Return why the rendezvous failed, once it did."""

    def on_news(self, wake: Callable[[], None]) -> None:
        """Set a function that another thread calls when any of the above changes."""

    def close(self) -> None:
        """Leave. Twice is fine."""


def has_passed(rendezvous: Rendezvous, point: str, timeout_s: float) -> bool:
    """Arrive, and wait for all hosts; return whether all did."""
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + timeout_s
    rendezvous.arrive(point)
    while not rendezvous.has_passed(point) and rendezvous.verdict() is None and clock.monotonic_s() < deadline_s:
        clock.sleep(_LOOK_S)
    return rendezvous.has_passed(point)


def settled(rendezvous: Rendezvous, own: HostFailure) -> RendezvousOutcome:
    """Report that this host gives up, and wait a moment for what all hosts agree to be the first cause."""
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + SETTLE_S
    rendezvous.fail(own)
    while (verdict := rendezvous.verdict()) is None and clock.monotonic_s() < deadline_s:
        clock.sleep(_LOOK_S)
    return verdict or RendezvousOutcome(cause=own)


def not_arrived(missing: Sequence[str], after_s: float, point: str = "") -> HostFailure:
    """Return the cause of hosts that did not come; of none, if the last one came the moment after the time was over."""
    where = f" at {point!r}" if point else ""
    return HostFailure(
        host=missing[0] if missing else "",
        message=f"{', '.join(missing) or 'the last host'} did not arrive{where} in {after_s:.3g} s",
        code=RendezvousFailed.code,
        hint="check that it runs there with the same token and epoch, and that the hosts reach each other",
        missing=tuple(missing),
    )


def failed(verdict: RendezvousOutcome) -> RendezvousFailed:
    """Return the error of a host that learns why the rendezvous failed."""
    cause = verdict.cause
    return RendezvousFailed(
        cause.message if cause.missing else f"{cause.host} failed: {cause.message}",
        hint=cause.hint,
        host=cause.host,
        cause=cause.code,
        missing=list(cause.missing),
        collateral=[{"host": one.host, "message": one.message} for one in verdict.collateral],
    )
