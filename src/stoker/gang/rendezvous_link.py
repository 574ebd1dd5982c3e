"""One host's ranks among those of other hosts: the store's place goes out or comes in, and so does the first cause.

While its ranks are waited for, every look at them passes here: what the other hosts say is acted on at once.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from stoker.core.errors import Cancelled, RankFailed, RankTimeout, StokerError
from stoker.gang.gang_failures import RankFailureMode, RankSnapshot, is_echo
from stoker.gang.mailbox import STORE_PLACE, RankState
from stoker.gang.rank_messages import FrameKind, pack
from stoker.gang.rendezvous_types import (
    UP,
    HostFailure,
    HostRanks,
    Rendezvous,
    RendezvousOutcome,
    failed,
    not_arrived,
    settled,
)

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


_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16


def variables_for(address: str) -> dict[str, str]:
    """Return the variables by which gloo and NCCL find the way to other hosts; none if it is not known (IPv6)."""
    name = interface_of(address)
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
