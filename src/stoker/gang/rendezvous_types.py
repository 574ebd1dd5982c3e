"""Several hosts that bring up one gang: who is there, where the ranks' store is, who got there, and who did not.

    host_ranks = rendezvous.gather(HostPart(ranks=2, devices=(…)), timeout_s=…)     every host, in one order
    rendezvous.publish("10.0.0.1:41233")                                       the first host: where the store is
    rendezvous.arrive("up"); rendezvous.has_passed("up")                          all of them, or none
    rendezvous.fail(cause); rendezvous.verdict()                                  one that fails, fails it for all

A rendezvous is for one bring-up, its epoch: what a member of an older one says is refused. `RendezvousHost` and
`RendezvousClient` are its two sides; a gang on one host needs none.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from stoker.core.clock import SystemClock
from stoker.core.errors import Cancelled, RankFailed, RankTimeout, RendezvousFailed, StokerError
from stoker.core.frozen import fresh, frozen
from stoker.gang.gang_failures import RankFailureMode, RankSnapshot, is_echo
from stoker.gang.mailbox import STORE_PLACE, RankState
from stoker.gang.rank_messages import FrameKind, pack

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


# One host's ranks among those of other hosts: the store's place goes out or comes in, and so does the first cause.
#
# While its ranks are waited for, every look at them passes here: what the other hosts say is acted on at once.


_FACTS = ("rank", "device", "phase", "how", "type", "text", "exit", "after_s", "traceback")
_NS = 1_000_000_000


class RendezvousLink:
    """What ties one host's ranks to the rendezvous."""

    def __init__(
        self, rendezvous: Rendezvous, host_ranks: HostRanks, ends: Sequence[socket.socket], timeout_s: float
    ) -> None:
        """`ends` are our ends of what the owner tells each rank, there once all ranks are started."""
        self._rendezvous = rendezvous
        self._host_ranks = host_ranks
        self._ends = ends
        self._timeout_s = timeout_s
        self._deadline_ns = time.monotonic_ns() + round(timeout_s * _NS)
        self._have_ranks_heard = False
        self._raised: StokerError | None = None

    def attend(self, looks: Sequence[RankSnapshot]) -> None:
        """Hand on what is new on either side. Raises `RankFailed`, `RendezvousFailed` if another host gave up."""
        verdict = self._rendezvous.verdict()
        if verdict is not None:
            self._raised = self._told(verdict, _failures(looks, self._host_ranks.first_rank))
            raise self._raised
        page = looks[0].page
        if self._host_ranks.first_rank == 0 and not self._rendezvous.published() and page.handle_kind == STORE_PLACE:
            self._rendezvous.publish(page.handle.decode(errors="replace"))
        place = self._rendezvous.published()
        if place and not self._have_ranks_heard:
            self._have_ranks_heard = True
            for end in self._ends:
                # The end of a rank is reported by its process.
                with suppress(ConnectionError):
                    end.sendall(pack(FrameKind.PLACE, place.encode()))

    def attend_up(self, looks: Sequence[RankSnapshot]) -> None:
        """Do the same while all ranks here are ready, and others' are waited for."""
        self.attend(looks)
        missing = self._rendezvous.missing(UP)
        if missing and time.monotonic_ns() >= self._deadline_ns:
            verdict = settled(self._rendezvous, not_arrived(missing, self._timeout_s, UP))
            self._raised = self._told(verdict, [])
            raise self._raised

    def has_come_up(self, look: RankSnapshot) -> bool:
        """Return whether a rank is up, and all hosts are."""
        return look.page.state is RankState.SUCCESS and self._rendezvous.has_passed(UP)

    def settle(self, error: StokerError) -> StokerError:
        """Report an error of this host to the others; return it, or an earlier one of another host."""
        if error is self._raised:
            return error
        own = cause_of(error, self._host_ranks.name)
        verdict = settled(self._rendezvous, own)
        if isinstance(error, Cancelled):
            return error
        if verdict.cause.host != own.host:
            dragged = [*_own_facts(error), *error.data.get("collateral", ())]  # type: ignore[misc]
            return self._told(verdict, dragged)
        if isinstance(error, RankFailed):
            error.data["collateral"] = [*error.collateral, *_elsewhere(verdict)]
        return error

    def _told(self, verdict: RendezvousOutcome, here: Sequence[dict[str, Any]]) -> StokerError:
        """Return the error of this host when the cause is another's."""
        cause = verdict.cause
        if "rank" not in cause.facts:
            return failed(verdict)
        kind = RankTimeout if cause.facts.get("how") == RankFailureMode.SILENT else RankFailed
        return kind(
            cause.message,
            hint=cause.hint,
            host=cause.host,
            nranks=self._host_ranks.nranks,
            **cause.facts,
            collateral=[*_elsewhere(verdict, but=self._host_ranks.name), *here],
            pending=[],
        )


def cause_of(error: BaseException, host: str) -> HostFailure:
    """Return an error as other hosts get it."""
    if not isinstance(error, StokerError):
        return HostFailure(host=host, message=type(error).__name__)
    facts = {name: error.data.get(name) for name in _FACTS} if isinstance(error, RankFailed) else {}
    return HostFailure(
        host=host,
        message=error.message,
        code=error.code,
        hint=error.hint,
        is_echo=facts.get("how") == RankFailureMode.RAISED and is_echo(str(facts.get("text"))),
        facts=facts,
    )


def _own_facts(error: StokerError) -> list[dict[str, Any]]:
    return [{name: error.data.get(name) for name in _FACTS}] if isinstance(error, RankFailed) else []


def _elsewhere(verdict: RendezvousOutcome, but: str = "") -> list[dict[str, Any]]:
    return [{"host": one.host, **one.facts} for one in verdict.collateral if one.facts and one.host != but]


def _failures(looks: Sequence[RankSnapshot], first_rank: int) -> list[dict[str, Any]]:
    """Return the ranks here that have reported a failure by now."""
    return [
        {
            "rank": first_rank + look.rank,
            "device": look.device,
            "phase": look.page.phase.name,
            "how": str(RankFailureMode.RAISED),
            "type": look.page.error_type,
            "text": look.page.error_text,
            "exit": None,
            "after_s": 0.0,
            "traceback": "",
        }
        for look in looks
        if look.page.state is RankState.ERROR
    ]


_LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16


def variables_for(address: str) -> dict[str, str]:
    """Return the variables by which gloo and NCCL find the way to other hosts; none if it is not known (IPv6).

    Without an address the ranks are on one host: gloo listens on loopback, not at the address of this host's name.
    """
    name = interface_of(address or _LOOPBACK)
    if not address:
        return {"GLOO_SOCKET_IFNAME": name} if name else {}
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} if name else {}


def interface_of(address: str) -> str:
    """Return the name of the interface with this IPv4 address; empty if there is none, or not on Linux."""
    if sys.platform != "linux":
        return ""
    from fcntl import ioctl  # noqa: PLC0415 - not everywhere

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[: _NAME_BYTES - 1])
                found = ioctl(asks.fileno(), _SIOCGIFADDR, request)
                # An address family, a port, then the address itself.
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return ""
