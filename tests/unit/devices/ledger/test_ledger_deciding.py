"""Who gets room on a device, and who is told what."""

from __future__ import annotations

import pytest

from stoker.core.device import MIB, MemoryType
from stoker.core.frozen import changed
from stoker.devices.ledger.ledger_rules import DeviceAssignment, LedgerDecisionInputs, could_hold, decide, first_for
from stoker.devices.ledger.reservations import (
    CandidateDevice,
    DeviceLimit,
    DeviceRequest,
    DevicesBusy,
    NeverFits,
    QueueTicket,
)
from tests.unit.devices.ledger.lab import CARD, OTHER, SMALL, USABLE_BYTES, entry, gib, sharing, someone, whole

EMPTY = LedgerDecisionInputs()


def ticket(number: int, *uuids: str) -> QueueTicket:
    return QueueTicket(
        id=f"{number:016x}",
        number=number,
        job=f"waiter{number}",
        owner=someone(1000 + number),
        uuids=uuids,
        count=1,
        vram_bytes=gib(6),
        may_share=True,
        since_s=0.0,
        seen_until_s=30.0,
    )


def granted(ask: DeviceRequest, books: LedgerDecisionInputs = EMPTY) -> list[str]:
    answer = decide(ask, books)
    assert isinstance(answer, DeviceAssignment), answer
    return [device.uuid for device in answer.devices]


def refused(ask: DeviceRequest, books: LedgerDecisionInputs = EMPTY) -> DevicesBusy:
    answer = decide(ask, books)
    assert isinstance(answer, DevicesBusy), answer
    return answer


def impossible(ask: DeviceRequest, books: LedgerDecisionInputs = EMPTY) -> NeverFits:
    answer = decide(ask, books)
    assert isinstance(answer, NeverFits), answer
    return answer


def test_an_exact_fit_is_granted_and_one_mib_more_is_not() -> None:
    books = LedgerDecisionInputs(entries=(entry(USABLE_BYTES - gib(6)),))
    assert granted(sharing(gib(6)), books) == ["GPU-a"]
    answer = refused(sharing(gib(6) + MIB), books)
    assert answer.bound is DeviceLimit.LEDGER
    assert answer.nearest.missing_bytes == MIB


def test_one_byte_more_is_not_granted_either() -> None:
    assert (
        refused(
            sharing(gib(6) + 1), LedgerDecisionInputs(entries=(entry(USABLE_BYTES - gib(6)),))
        ).nearest.missing_bytes
        == 1
    )


def test_an_empty_card_shares_out_85_percent_and_unified_memory_60() -> None:
    unified = CandidateDevice(uuid="GPU-u", total_bytes=8192 * MIB, memory_type=MemoryType.UNIFIED)
    for device, most_bytes in ((CARD, USABLE_BYTES), (unified, 4915 * MIB)):
        beside = LedgerDecisionInputs(entries=(entry(MIB, uuid=device.uuid),))
        assert granted(sharing(most_bytes, devices=(device,))) == [device.uuid]
        assert granted(sharing(most_bytes - MIB, devices=(device,)), beside) == [device.uuid]
        assert refused(sharing(most_bytes, devices=(device,)), beside).bound is DeviceLimit.LEDGER


def test_who_does_not_share_may_have_the_whole_card() -> None:
    assert granted(whole(gib(22))) == ["GPU-a"]
    assert granted(whole(CARD.total_bytes)) == ["GPU-a"]
    assert impossible(whole(CARD.total_bytes + 1)).shortfalls[0].missing_bytes == 1


def test_a_job_that_is_too_large_to_share_has_the_card_alone() -> None:
    assert granted(sharing(USABLE_BYTES + MIB)) == ["GPU-a"]
    answer = refused(sharing(USABLE_BYTES + MIB), LedgerDecisionInputs(entries=(entry(MIB),)))
    assert answer.bound is DeviceLimit.OCCUPIED
    assert impossible(sharing(gib(25))).shortfalls[0].room_bytes == CARD.total_bytes


def test_nobody_joins_who_has_a_card_to_himself() -> None:
    books = LedgerDecisionInputs(entries=(entry(gib(1), is_exclusive=True),))
    for ask in (sharing(gib(1)), whole(gib(1)), whole()):
        answer = refused(ask, books)
        assert answer.bound is DeviceLimit.TAKEN
        assert "job7 (process 7)" in answer.why


def test_who_wants_a_whole_card_waits_for_those_who_share_it() -> None:
    answer = refused(whole(gib(1)), LedgerDecisionInputs(entries=(entry(gib(1)),)))
    assert answer.bound is DeviceLimit.OCCUPIED
    assert "job7" in answer.why


def test_who_declares_nothing_takes_the_card_whole_even_if_he_would_share() -> None:
    ask = DeviceRequest(job="undeclared", devices=(CARD,), may_share=True)
    assert refused(ask, LedgerDecisionInputs(entries=(entry(gib(1)),))).bound is DeviceLimit.OCCUPIED
    assert granted(ask) == ["GPU-a"]


def test_a_machine_that_shares_its_cards_shares_them_for_those_who_did_not_ask() -> None:
    shared = changed(CARD, shares=True)
    books = LedgerDecisionInputs(entries=(entry(gib(6)),))
    assert granted(whole(gib(6), devices=(shared,)), books) == ["GPU-a"]
    # What is more than may be shared out gets the card alone, or waits for it.
    assert refused(whole(gib(22), devices=(shared,)), books).bound is DeviceLimit.OCCUPIED
    assert granted(whole(gib(22), devices=(shared,))) == ["GPU-a"]


def test_what_is_really_taken_counts_if_it_is_more_than_was_promised() -> None:
    over = LedgerDecisionInputs(entries=(entry(gib(6), measured_bytes=gib(16)),))
    assert refused(sharing(gib(6)), over).nearest.room_bytes == USABLE_BYTES - gib(16)
    under = LedgerDecisionInputs(entries=(entry(gib(16), measured_bytes=gib(1)),))
    assert refused(sharing(gib(6)), under).nearest.room_bytes == USABLE_BYTES - gib(16)


def test_a_base_is_charged_once() -> None:
    first = entry(gib(8), base="llama", base_bytes=gib(7))
    second = changed(entry(gib(8), pid=8), base="llama", base_bytes=gib(7))
    books = LedgerDecisionInputs(entries=(first, second))
    left = USABLE_BYTES - gib(9)
    assert granted(sharing(gib(7) + left, base="llama", base_bytes=gib(7)), books) == ["GPU-a"]
    assert refused(sharing(gib(7) + left + 1, base="llama", base_bytes=gib(7)), books).nearest.missing_bytes == 1
    assert refused(sharing(left + 1, base="other", base_bytes=gib(1)), books).nearest.missing_bytes == 1


def test_a_base_that_somebody_says_is_larger_counts_as_the_larger_one() -> None:
    books = LedgerDecisionInputs(entries=(entry(gib(8), base="llama", base_bytes=gib(7)),))
    left = USABLE_BYTES - gib(8)
    # Its own gigabyte, and the one that the base is larger than was thought.
    assert granted(sharing(gib(9) + left - gib(2), base="llama", base_bytes=gib(8)), books) == ["GPU-a"]
    assert granted(sharing(left + gib(3), base="llama", base_bytes=gib(3)), books) == ["GPU-a"]
    assert refused(sharing(left + gib(3) + 1, base="llama", base_bytes=gib(3)), books).nearest.missing_bytes == 1


def test_who_has_the_base_loaded_is_preferred() -> None:
    books = LedgerDecisionInputs(entries=(entry(gib(8), uuid="GPU-b", base="llama", base_bytes=gib(7)),))
    assert granted(sharing(gib(8), devices=(CARD, OTHER), base="llama", base_bytes=gib(7)), books) == ["GPU-b"]


def test_small_ones_fill_the_fullest_card_that_fits() -> None:
    books = LedgerDecisionInputs(entries=(entry(gib(8), uuid="GPU-b"),))
    assert granted(sharing(gib(2), devices=(CARD, OTHER)), books) == ["GPU-b"]
    assert granted(sharing(gib(18), devices=(CARD, OTHER)), books) == ["GPU-a"]


def test_whole_cards_are_taken_as_listed() -> None:
    assert granted(whole(devices=(OTHER, CARD))) == ["GPU-b"]
    assert granted(whole(gib(9), devices=(SMALL, CARD))) == ["GPU-a"]


def test_several_devices_come_together_or_not_at_all() -> None:
    ask = whole(gib(2), devices=(CARD, OTHER, SMALL), count=2)
    assert granted(ask) == ["GPU-a", "GPU-b"]
    assert granted(ask, LedgerDecisionInputs(entries=(entry(gib(1)),))) == ["GPU-b", "GPU-s"]
    both = LedgerDecisionInputs(entries=(entry(gib(1)), entry(gib(1), uuid="GPU-b", pid=8)))
    answer = refused(ask, both)
    assert "1 of 2 devices have room" in answer.why
    assert {short.uuid for short in answer.shortfalls} == {"GPU-a", "GPU-b"}


def test_memory_of_two_cards_is_never_added_up() -> None:
    answer = impossible(whole(gib(30), devices=(CARD, OTHER)))
    assert len(answer.shortfalls) == 2
    assert "30.0 GiB are needed" in answer.why


@pytest.mark.parametrize(("count", "devices"), [(1, ()), (3, (CARD, OTHER))], ids=["none", "too-few"])
def test_too_few_devices_never_become_enough(count: int, devices: tuple[CandidateDevice, ...]) -> None:
    assert "wanted" in impossible(whole(devices=devices, count=count)).why


def test_slots_limit_how_many_hold_some_of_a_card() -> None:
    one = changed(CARD, slots=1)
    answer = refused(sharing(gib(1), devices=(one,)), LedgerDecisionInputs(entries=(entry(gib(1)),)))
    assert answer.bound is DeviceLimit.SLOTS
    assert granted(
        sharing(gib(1), devices=(changed(CARD, slots=2),)), LedgerDecisionInputs(entries=(entry(gib(1)),))
    ) == ["GPU-a"]


def test_the_drivers_measure_binds_too_and_the_answer_says_which_did() -> None:
    for ask in (sharing(gib(6)), whole(gib(6))):
        books = LedgerDecisionInputs(free_bytes={"GPU-a": gib(6)})
        assert granted(ask, books) == ["GPU-a"]
        short = LedgerDecisionInputs(free_bytes={"GPU-a": gib(6) - 1})
        answer = refused(ask, short)
        assert answer.bound is DeviceLimit.MEASURED
        assert answer.nearest.missing_bytes == 1


def test_free_memory_that_others_were_promised_and_have_not_taken_yet_is_not_free() -> None:
    starting = LedgerDecisionInputs(entries=(entry(gib(8)),), free_bytes={"GPU-a": gib(14)})
    assert refused(sharing(gib(7)), starting).nearest.room_bytes == gib(6)
    running = changed(starting, taken_bytes={"GPU-a": gib(8)})
    assert granted(sharing(gib(7)), running) == ["GPU-a"]


def test_a_device_that_nobody_can_measure_is_bound_by_the_ledger_alone() -> None:
    assert granted(sharing(USABLE_BYTES), LedgerDecisionInputs(free_bytes={"GPU-b": 0})) == ["GPU-a"]


def test_nobody_overtakes_who_waits_for_the_same_device() -> None:
    books = LedgerDecisionInputs(ahead=(ticket(1, "GPU-a"), ticket(2, "GPU-a", "GPU-b")))
    answer = refused(sharing(gib(1)), books)
    assert answer.bound is DeviceLimit.LINE
    assert answer.why == "2 wait before you"
    assert answer.ahead == 2


def test_a_device_that_nobody_waits_for_is_given_out_of_turn() -> None:
    books = LedgerDecisionInputs(ahead=(ticket(1, "GPU-a"),))
    assert granted(sharing(gib(1), devices=(CARD, OTHER)), books) == ["GPU-b"]
    assert granted(sharing(gib(1), devices=(OTHER,)), books) == ["GPU-b"]


def test_what_is_lacking_is_told_before_the_line() -> None:
    books = LedgerDecisionInputs(entries=(entry(gib(20)),), ahead=(ticket(1, "GPU-a"),))
    answer = refused(sharing(gib(6)), books)
    assert answer.bound is DeviceLimit.LEDGER
    assert answer.why.endswith("; 1 waits before you")


def test_a_reservation_that_nobody_can_read_may_hold_anything() -> None:
    answer = refused(sharing(gib(1), devices=(CARD, OTHER)), LedgerDecisionInputs(unreadable=("process 9",)))
    assert answer.bound is DeviceLimit.TAKEN
    assert "process 9" in answer.why


def test_who_waits_does_so_only_for_devices_that_could_hold_it() -> None:
    assert could_hold(whole(gib(9), devices=(SMALL, CARD))) == ("GPU-a",)


def test_only_who_is_first_for_a_freed_device_is_woken() -> None:
    line = [ticket(1, "GPU-a"), ticket(2, "GPU-a"), ticket(3, "GPU-a", "GPU-b"), ticket(4, "GPU-b")]
    assert [one.number for one in first_for(["GPU-a"], line)] == [1]
    assert [one.number for one in first_for(["GPU-a", "GPU-b"], line)] == [1, 3]
    assert first_for(["GPU-c"], line) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"vram_bytes": -1},
        {"vram_bytes": 5, "base": "b", "base_bytes": 6},
        {"vram_bytes": 5, "base_bytes": 2},
        {"devices": (CARD, CARD)},
        {"lease_s": 0.0},
        {"lease_s": float("nan")},
    ],
    ids="-".join,
)
def test_a_wish_that_makes_no_sense_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="invalid request for device memory"):
        DeviceRequest(**{"job": "job", "devices": (CARD,), **wrong})
