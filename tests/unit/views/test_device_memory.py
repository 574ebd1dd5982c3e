"""The ledger as lines: who holds what, and a base that several have in common."""

from __future__ import annotations

from stoker.core.device import GIB
from stoker.devices.ledger.reservations import CandidateDevice, Reservation, ReservationShare
from stoker.devices.ledger.snapshot import DeviceHolder, DeviceState, LedgerState
from stoker.host.identity import ProcessIdentity
from stoker.views.device_lines import memory_lines

CARD = CandidateDevice(uuid="GPU-a", total_bytes=24 * GIB)


def holder(
    own_gib: int, job: str, *, base: str = "llama", measured_gib: int | None = None, pid: int = 9
) -> DeviceHolder:
    base_bytes = 7 * GIB if base else 0
    share = ReservationShare(
        uuid="GPU-a",
        promised_bytes=base_bytes + own_gib * GIB,
        total_bytes=CARD.total_bytes,
        measured_bytes=None if measured_gib is None else measured_gib * GIB,
    )
    owner = ProcessIdentity(pid=pid, start_ticks=1, boot_id="b", host="h", pid_space="p")
    entry = Reservation(
        id="0" * 16, job=job, owner=owner, shares=(share,), base=base, base_bytes=base_bytes,
        since_s=0.0, since_wall_s=0.0, lease_s=90.0, lease_until_s=90.0,
    )  # fmt: skip
    return DeviceHolder(entry=entry, share=share, held_s=60.0, is_late=False)


def lines(*holders: DeviceHolder) -> list[str]:
    device = DeviceState(device=CARD, holders=holders, reserved_bytes=11 * GIB, free_bytes=None)
    return memory_lines(LedgerState(devices=(device,), waiting=(), warnings=()))[3:]


def test_a_shared_process_shows_its_base_once_and_each_members_increment():
    shared, first, second, other = lines(
        holder(1, "sweep/0", measured_gib=8), holder(1, "eval", base="", pid=3), holder(2, "sweep/1", measured_gib=10)
    )
    assert shared.split("  ")[1] == "process 9"
    assert "reserved 10.0 GiB, of that 7.0 GiB for the base" in shared
    assert "actual 11.0 GiB" in shared
    assert shared.endswith("2 share a base")
    assert (first.split()[:3], first.split()[-1]) == (["+", "1.0", "GiB"], "sweep/0")
    assert (second.split()[:3], second.split()[-1]) == (["+", "2.0", "GiB"], "sweep/1")
    assert "reserved 1.0 GiB" in other


def test_a_member_that_is_alone_still_shows_what_its_base_takes():
    shared, member = lines(holder(1, "lora"))
    assert "reserved 8.0 GiB, of that 7.0 GiB for the base" in shared
    assert "measuring" in shared
    assert shared.endswith("1 with a base")
    assert member.split()[:3] == ["+", "1.0", "GiB"]
