"""A ledger in a folder of its own, with processes and clocks that tests make up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.core.clock import FakeClock, SystemClock
from stoker.core.device import GIB, MIB
from stoker.devices.ledger.ledger import Ledger, QueuedRequest
from stoker.devices.ledger.liveness import ReservationLiveness
from stoker.devices.ledger.reservations import (
    CandidateDevice,
    DeviceRequest,
    DevicesBusy,
    FakeMeter,
    Meter,
    NeverFits,
    Reservation,
    ReservationShare,
)
from stoker.host.durable import NO_STEP
from stoker.host.identity import Liveness, ProcessIdentity

CARD = CandidateDevice(uuid="GPU-a", total_bytes=24564 * MIB)
"""Of which 20879 MiB may be shared out."""
OTHER = CandidateDevice(uuid="GPU-b", total_bytes=24564 * MIB)
SMALL = CandidateDevice(uuid="GPU-s", total_bytes=8192 * MIB)
USABLE_BYTES = 20879 * MIB


def someone(pid: int, **changes: Any) -> ProcessIdentity:
    """A process that nobody started."""
    fields = {"pid": pid, "start_ticks": pid * 10, "boot_id": "this-boot", "host": "here", "pid_space": "ours"}
    return ProcessIdentity(**{**fields, **changes})


def sharing(
    size_bytes: int, *, job: str = "job", devices: tuple[CandidateDevice, ...] = (CARD,), **more: Any
) -> DeviceRequest:
    return DeviceRequest(job=job, devices=devices, vram_bytes=size_bytes, may_share=True, **more)


def whole(
    size_bytes: int = 0, *, job: str = "job", devices: tuple[CandidateDevice, ...] = (CARD,), **more: Any
) -> DeviceRequest:
    return DeviceRequest(job=job, devices=devices, vram_bytes=size_bytes, **more)


def entry(size_bytes: int, *, uuid: str = "GPU-a", pid: int = 7, **more: Any) -> Reservation:
    """A reservation on one card."""
    share_fields = {name: more.pop(name) for name in ("is_exclusive", "measured_bytes") if name in more}
    share = ReservationShare(uuid=uuid, promised_bytes=size_bytes, total_bytes=CARD.total_bytes, **share_fields)
    fields: dict[str, Any] = {
        "id": f"{pid:016x}",
        "job": f"job{pid}",
        "owner": someone(pid),
        "shares": (share,),
        "since_s": 1.0,
        "since_wall_s": 1.0,
        "lease_s": 90.0,
        "lease_until_s": 91.0,
    }
    return Reservation(**{**fields, **more})


class Lab:
    """A ledger whose processes live and die as the test says; the real ones live as they do."""

    def __init__(self, folder: Path, *, meter: Meter | None = None, on_step: Callable[[str], None] = NO_STEP) -> None:
        self.folder = folder / "ledger"
        self.clock = FakeClock()
        self.meter = meter or FakeMeter({CARD.uuid: CARD.total_bytes, OTHER.uuid: OTHER.total_bytes})
        self.says: dict[ProcessIdentity, Liveness] = {}
        self.users: dict[int, frozenset[int]] = {}
        self._places: list[QueuedRequest] = []
        self.ledger = self.another(on_step)

    def another(self, on_step: Callable[[str], None] = NO_STEP) -> Ledger:
        """One more ledger on the same folder, as another process would have."""
        living = ReservationLiveness(
            self.clock.monotonic_s,
            lambda identity: self.says.get(identity, Liveness.ALIVE),
            users_of=lambda pid: self.users.get(pid, frozenset()),
        )
        return Ledger(str(self.folder), clock=self.clock, meter=self.meter, living=living, on_step=on_step)

    def place(self, ask: DeviceRequest) -> QueuedRequest:
        """A place in line, as another process would have."""
        place = self.another().line_up(ask)
        self._places.append(place)
        return place

    def close(self) -> None:
        for place in self._places:
            place.leave()

    def leases(self) -> list[Path]:
        return sorted((self.folder / "leases").iterdir())

    def tickets(self) -> list[Path]:
        return sorted((self.folder / "line").iterdir())


def real_ledger(folder: Path, **more: Any) -> Ledger:
    """A ledger among real processes."""
    meter = more.pop("meter", None) or FakeMeter({CARD.uuid: CARD.total_bytes, OTHER.uuid: OTHER.total_bytes})
    return Ledger(str(folder / "ledger"), clock=SystemClock(), meter=meter, **more)


def held(answer: Reservation | DevicesBusy | NeverFits) -> Reservation:
    assert isinstance(answer, Reservation), answer
    return answer


def not_now(answer: Reservation | DevicesBusy | NeverFits) -> DevicesBusy:
    assert isinstance(answer, DevicesBusy), answer
    return answer


def never(answer: Reservation | DevicesBusy | NeverFits) -> NeverFits:
    assert isinstance(answer, NeverFits), answer
    return answer


def gib(count: float) -> int:
    return int(count * GIB)
