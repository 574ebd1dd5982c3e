"""What who waits is told. How lines move is tested with the gate."""

from __future__ import annotations

import os

import pytest

from stoker.core.device import GIB
from stoker.core.frozen import changed
from stoker.devices.ledger.ledger_rules import LedgerDecisionInputs, decide
from stoker.devices.ledger.reservations import (
    CandidateDevice,
    DeviceRequest,
    DevicesBusy,
    QueueTicket,
    Reservation,
    ReservationShare,
)
from stoker.devices.ledger.snapshot import DeviceHolder, DeviceState
from stoker.engine.device_gate import DeviceWait
from stoker.engine.ledger_gate import describe, short_uuid
from stoker.host.identity import mine

LONG = "GPU-8f1c2a3b-0d5e-4b6f-9a7c-112233445566"
CARDS = tuple(CandidateDevice(uuid=uuid, total_bytes=24 * GIB) for uuid in (LONG, "GPU-2", "GPU-3", "GPU-4", "GPU-5"))
ME = mine()


def entry(number: int, uuid: str, *, gib: int = 0, user: int | None = None, held_s: float = 240.0) -> DeviceHolder:
    share = ReservationShare(uuid=uuid, promised_bytes=gib * GIB, total_bytes=24 * GIB, is_exclusive=not gib)
    made = Reservation(
        id=f"{number:016x}",
        job=f"job{number}/run",
        owner=changed(ME, pid=1000 + number),
        shares=(share,),
        since_s=0.0,
        since_wall_s=0.0,
        lease_s=90.0,
        lease_until_s=90.0,
        user=os.geteuid() if user is None else user,
    )
    return DeviceHolder(entry=made, share=share, held_s=held_s, is_late=False)


def told(
    ask: DeviceRequest, *holders: DeviceHolder, ahead: int = 0, free_gib: int = 24, ours: tuple[int, ...] = ()
) -> DeviceWait:
    """Decide as the ledger does, and say it as the gate does."""
    line = tuple(
        QueueTicket(
            id=f"{number:016x}", number=number, job="", owner=ME, uuids=tuple(one.uuid for one in ask.devices),
            count=1, vram_bytes=0, may_share=False, since_s=0.0, seen_until_s=9.0,
        )
        for number in range(ahead)
    )  # fmt: skip
    free = {device.uuid: free_gib * GIB for device in ask.devices}
    books = LedgerDecisionInputs(entries=tuple(one.entry for one in holders), ahead=line, free_bytes=free)
    answer = decide(ask, books)
    assert isinstance(answer, DevicesBusy)
    states = []
    for device in ask.devices:
        on_it = tuple(one for one in holders if one.share.uuid == device.uuid)
        reserved = sum(one.share.promised_bytes for one in on_it)
        states.append(DeviceState(device=device, holders=on_it, reserved_bytes=reserved, free_bytes=free_gib * GIB))
    return describe(ask, answer, states, [f"{number:016x}" for number in ours])


def wish(count: int = 1, *, of: int = 1, gib: int = 0) -> DeviceRequest:
    return DeviceRequest(job="me", devices=CARDS[:of], count=count, vram_bytes=gib * GIB, may_share=gib > 0)


def test_one_card_and_one_holder() -> None:
    wait = told(wish(), entry(1, LONG))
    assert wait.waits_for == "waits for GPU-8f1c2a3b: held by job job1/run (pid 1001)"
    assert wait.why == "waits for GPU-8f1c2a3b: held by job job1/run (pid 1001) for 4m00s"
    assert (wait.place, wait.is_ours, wait.is_known) == (1, False, True)


def test_the_text_stays_the_same_while_time_passes() -> None:
    early, late = (told(wish(), entry(1, LONG, held_s=held_s)) for held_s in (1.0, 3600.0))
    assert early.waits_for == late.waits_for
    assert early.why != late.why


def test_another_users_job_is_named_as_that() -> None:
    assert "job job1/run of nobody (pid 1001)" in told(wish(), entry(1, LONG, user=65534)).why
    assert "job job1/run of user 4000000000 (pid 1001)" in told(wish(), entry(1, LONG, user=4_000_000_000)).why


def test_what_another_user_calls_his_job_is_shown_and_not_obeyed() -> None:
    theirs = entry(1, LONG)
    odd = changed(theirs, entry=changed(theirs.entry, job="\x1b]0;mine\x07" + "x" * 500))
    said = told(wish(), odd).waits_for
    assert said.isprintable()
    assert len(said) < 200


def test_several_cards_are_told_apart() -> None:
    wait = told(wish(of=2), entry(1, LONG), entry(2, "GPU-2"))
    assert wait.waits_for == (
        "waits for a GPU: GPU-8f1c2a3b held by job job1/run (pid 1001); GPU-2 held by job job2/run (pid 1002)"
    )
    both = told(wish(2, of=2), entry(2, "GPU-2"))
    assert both.waits_for == "waits for 2 GPUs: GPU-2 held by job job2/run (pid 1002)"


def test_of_many_only_some_are_told() -> None:
    wait = told(wish(of=5), *(entry(number, card.uuid) for number, card in enumerate(CARDS)))
    assert wait.waits_for.endswith("GPU-3 held by job job2/run (pid 1002) and 2 more")


def test_who_shares_hears_how_much_is_left() -> None:
    wait = told(wish(gib=8), entry(1, LONG, gib=10), entry(2, LONG, gib=6))
    assert wait.waits_for == (
        "waits for 8.0 GiB of GPU-8f1c2a3b: 4.4 GiB left to share, held by job job1/run (pid 1001), "
        "job job2/run (pid 1002)"
    )


def test_a_card_that_is_full_for_reasons_of_its_own() -> None:
    wait = told(DeviceRequest(job="me", devices=CARDS[:1], vram_bytes=8 * GIB), free_gib=3)
    assert wait.waits_for == f"waits: {LONG} has 3.0 GiB free by the driver's measure, and 8.0 GiB are needed"


@pytest.mark.parametrize("ahead", [1, 2, 10, 20])
def test_the_queue_position_is_shown(ahead: int) -> None:
    wait = told(wish(), entry(1, LONG), ahead=ahead)
    assert wait.waits_for.endswith(f"(pid 1001), queue position {ahead + 1}")
    assert wait.place == ahead + 1


def test_a_free_card_that_others_wait_for() -> None:
    assert told(wish(), ahead=1).waits_for == "waits for GPU-8f1c2a3b, queue position 2"


def test_only_what_is_all_ours_is_ours() -> None:
    holders = (entry(1, LONG, gib=10), entry(2, LONG, gib=6))
    assert told(wish(gib=8), *holders, ours=(1, 2)).is_ours
    assert not told(wish(gib=8), *holders, ours=(1,)).is_ours
    assert not told(wish(gib=8), *holders, ours=(1, 2), ahead=1).is_ours


def test_short_names_are_for_long_ones_only() -> None:
    assert short_uuid(f"MIG-{LONG[4:]}") == "MIG-8f1c2a3b"
    assert [short_uuid(uuid) for uuid in ("FAKE-cuda-0-8ee5d289", "GPU-2", "")] == ["FAKE-cuda-0-8ee5d289", "GPU-2", ""]
