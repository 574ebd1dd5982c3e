"""How much of the memory in use belongs to those who were promised it."""

from __future__ import annotations

from stoker.core.device import usable_bytes
from stoker.core.frozen import changed
from stoker.devices.ledger.ledger_rules import (
    DeviceCharge,
    DeviceReading,
    ceiling_of,
    left_for,
    taken_of_promised,
    total_of,
)
from stoker.devices.ledger.reservations import Reservation
from stoker.host.identity import mine
from tests.unit.devices.ledger.lab import CARD, entry, gib

TOTAL = CARD.total_bytes


def here(size_bytes: int, pid: int) -> Reservation:
    """A reservation of a process that we can see."""
    return entry(size_bytes, pid=pid, owner=changed(mine(), pid=pid))


def taken(entries: list[Reservation], used_by: dict[int, int] | None, chains: dict[int, tuple[int, ...] | None]) -> int:
    used = gib(10) if used_by is None else sum(used_by.values())
    reading = DeviceReading(free_bytes=TOTAL - used, used_by=used_by)
    return taken_of_promised(CARD, entries, reading, chains)


def test_what_an_owner_uses_is_taken_up_to_its_promise() -> None:
    assert taken([here(gib(6), 7)], {7: gib(2)}, {7: ()}) == gib(2)
    assert taken([here(gib(6), 7)], {7: gib(9)}, {7: ()}) == gib(6)


def test_what_an_owners_children_use_is_the_owners() -> None:
    assert taken([here(gib(6), 7)], {8: gib(2), 9: gib(1)}, {8: (7,), 9: (8, 7)}) == gib(3)


def test_what_strangers_use_is_not_taken_from_any_promise() -> None:
    assert taken([here(gib(6), 7)], {7: gib(1), 99: gib(5)}, {7: (), 99: (1,)}) == gib(1)


def test_what_unseen_processes_use_may_be_of_holders_who_were_not_seen() -> None:
    # As in a container: the driver names processes by numbers that mean nothing here.
    assert taken([here(gib(6), 7)], {4711: gib(5)}, {4711: None}) == gib(5)
    assert taken([here(gib(6), 7)], {4711: gib(9)}, {4711: None}) == gib(6)
    # A holder who was seen has not taken what somebody unseen has.
    assert taken([here(gib(6), 7)], {7: gib(1), 4711: gib(9)}, {7: (), 4711: None}) == gib(1)


def test_where_nobody_says_who_uses_a_device_its_holders_do() -> None:
    assert taken([here(gib(6), 7)], None, {}) == gib(6)
    assert taken([here(gib(16), 7)], None, {}) == gib(10)


def test_several_promises_of_one_owner_are_taken_together() -> None:
    two = [here(gib(3), 7), changed(here(gib(3), 7), id="a" * 16)]
    assert taken(two, {7: gib(5)}, {7: ()}) == gib(5)


def test_the_number_of_a_process_of_another_container_is_not_taken_for_ours() -> None:
    theirs = changed(here(gib(6), 7), owner=changed(mine(), pid=7, pid_space="another"))
    # Process 7 of ours is a stranger to it.
    assert taken([theirs], {7: gib(2)}, {7: (1,)}) == 0


def test_an_unmeasured_device_has_nothing_taken() -> None:
    assert taken_of_promised(CARD, [here(gib(6), 7)], DeviceReading(), {}) == 0


def test_what_holders_have_taken_counts_as_free_up_to_what_they_are_charged_together() -> None:
    assert left_for(gib(8), gib(2), gib(10)) == gib(12)
    assert left_for(gib(8), gib(0), gib(3)) == gib(3)
    # Two processes hold one base, which is charged once.
    assert left_for(gib(8), gib(9), gib(3)) == gib(11)


def test_what_the_holder_of_a_whole_device_uses_is_taken_though_it_declared_nothing() -> None:
    alone = entry(0, pid=7, owner=changed(mine(), pid=7), is_exclusive=True)
    assert taken([alone], {7: gib(5)}, {7: ()}) == gib(5)
    assert taken([alone], {7: gib(5), 99: gib(2)}, {7: (), 99: (1,)}) == gib(5)


def test_a_base_without_a_name_is_nothing_that_holders_have_in_common() -> None:
    nameless = DeviceCharge(charged_bytes=gib(6), base_bytes=gib(5))
    assert total_of([nameless, nameless]) == gib(12)
    named = DeviceCharge(charged_bytes=gib(6), base="b", base_bytes=gib(5))
    assert total_of([named, named]) == gib(7)
    assert total_of([named, DeviceCharge(charged_bytes=gib(3), base="b", base_bytes=gib(9))]) == gib(6)


def member(pid: int, own: int, base: int = 2) -> Reservation:
    return entry(gib(base + own), pid=pid, base="b", base_bytes=gib(base))


def test_a_shared_process_may_take_what_its_members_were_promised_and_its_part_of_what_nobody_is() -> None:
    usable = usable_bytes(CARD.total_bytes, CARD.memory_type)
    assert ceiling_of([member(1, 1), member(2, 3)]) == gib(6) * TOTAL // usable
    # All who share the card keep to theirs: the card is never full.
    assert ceiling_of([entry(usable)]) == TOTAL
    # What was measured is no promise.
    assert ceiling_of([changed(member(1, 1), shares=entry(gib(3), measured_bytes=gib(9)).shares)]) == ceiling_of(
        [member(1, 1)]
    )


def test_a_shared_process_that_holds_a_card_whole_or_none_has_no_ceiling() -> None:
    assert ceiling_of([entry(gib(20), is_exclusive=True)]) is None
    assert ceiling_of([entry(0, is_exclusive=True)]) is None
    assert ceiling_of([]) is None
