"""Room is taken, kept, handed on and given back; who is gone is forgotten, who lives is not."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.device import MIB
from stoker.core.errors import Cancelled, DeviceWaitTimeout, InsufficientDeviceMemory
from stoker.core.frozen import changed
from stoker.devices.ledger.reservations import DeviceLimit, DeviceWaitProgress, FakeMeter, Reservation
from stoker.devices.ledger.transactions import LedgerPhase, Phases
from stoker.host.identity import Liveness, mine
from tests.unit.devices.ledger.lab import (
    CARD,
    OTHER,
    USABLE_BYTES,
    Lab,
    gib,
    held,
    never,
    not_now,
    real_ledger,
    sharing,
    someone,
    whole,
)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    lab.close()


def test_room_is_promised_until_it_is_released(lab: Lab) -> None:
    first = held(lab.ledger.reserve(sharing(gib(12))))
    assert not_now(lab.another().reserve(sharing(gib(12)))).bound is DeviceLimit.LEDGER
    lab.ledger.release(first)
    assert held(lab.another().reserve(sharing(gib(12)))).uuids == ("GPU-a",)


def test_an_exact_fit_succeeds_and_one_mib_over_fails(lab: Lab) -> None:
    held(lab.ledger.reserve(sharing(USABLE_BYTES - gib(6))))
    assert not_now(lab.ledger.reserve(sharing(gib(6) + MIB))).nearest.missing_bytes == MIB
    held(lab.ledger.reserve(sharing(gib(6))))
    assert not_now(lab.ledger.reserve(sharing(1))).nearest.room_bytes == 0


def test_releasing_again_does_nothing(lab: Lab) -> None:
    first = held(lab.ledger.reserve(whole()))
    lab.ledger.release(first)
    lab.ledger.release(first)
    second = held(lab.ledger.reserve(whole()))
    lab.ledger.release(first)
    assert not_now(lab.ledger.reserve(whole())).bound is DeviceLimit.TAKEN
    lab.ledger.release(second)


def test_what_never_fits_is_said_at_once(lab: Lab) -> None:
    never(lab.ledger.reserve(whole(gib(99))))
    with pytest.raises(InsufficientDeviceMemory) as caught:
        lab.ledger.wait(whole(gib(99), job="giant"))
    assert caught.value.exit_code == 50
    assert "giant never fits" in caught.value.message
    assert lab.tickets() == []


def test_a_dead_owners_room_is_free_at_once(lab: Lab) -> None:
    gone = someone(7)
    held(lab.ledger.reserve(whole(owner=gone)))
    lab.says[gone] = Liveness.GONE
    held(lab.another().reserve(whole()))
    assert len(lab.leases()) == 1


def test_a_recycled_number_does_not_keep_a_dead_reservation_alive(tmp_path: Path) -> None:
    ledger = real_ledger(tmp_path)
    # Our own number, as somebody before us had it.
    held(ledger.reserve(whole(owner=changed(mine(), start_ticks=mine().start_ticks - 1))))
    held(ledger.reserve(whole()))


def test_another_boot_ended_everybody(tmp_path: Path) -> None:
    ledger = real_ledger(tmp_path)
    held(ledger.reserve(whole(owner=changed(mine(), boot_id="an-earlier-boot"))))
    held(ledger.reserve(whole(owner=changed(mine(), boot_id="an-earlier-boot", host="its-name-then"))))
    held(ledger.reserve(whole()))


def test_an_owner_that_lives_keeps_its_room_however_late_its_lease_is(lab: Lab) -> None:
    held(lab.ledger.reserve(whole()))
    lab.clock.advance(10_000)
    assert not_now(lab.another().reserve(whole())).bound is DeviceLimit.TAKEN
    assert lab.ledger.state([CARD]).devices[0].holders[0].is_late


def test_an_owner_that_can_not_be_seen_keeps_its_room_for_the_length_of_its_lease(lab: Lab) -> None:
    elsewhere = someone(7, pid_space="another container")
    lab.says[elsewhere] = Liveness.UNKNOWN
    first = held(lab.ledger.reserve(whole(owner=elsewhere)))
    lab.clock.advance(89)
    not_now(lab.another().reserve(whole()))
    lab.ledger.renew(first)
    lab.clock.advance(89)
    not_now(lab.another().reserve(whole()))
    lab.clock.advance(1)
    held(lab.another().reserve(whole()))


def test_setting_the_wall_clock_ends_no_lease(lab: Lab) -> None:
    elsewhere = someone(7)
    lab.says[elsewhere] = Liveness.UNKNOWN
    held(lab.ledger.reserve(whole(owner=elsewhere)))
    for seconds in (1e6, -5e6):
        lab.clock.jump(seconds)
        not_now(lab.another().reserve(whole()))


def test_what_is_handed_over_lives_as_long_as_its_new_owner(lab: Lab) -> None:
    parent, child = someone(7), someone(8)
    mine_now = held(lab.ledger.reserve(whole(owner=parent)))
    theirs = lab.ledger.hand_over(mine_now, child)
    assert theirs.owner == child
    assert len(lab.leases()) == 1
    lab.says[parent] = Liveness.GONE
    not_now(lab.another().reserve(whole()))
    lab.says[child] = Liveness.GONE
    held(lab.another().reserve(whole()))


def test_what_was_handed_over_can_still_be_released_by_who_did_it(lab: Lab) -> None:
    first = held(lab.ledger.reserve(whole()))
    lab.ledger.hand_over(first, someone(8))
    # By the answer of before the handover, too.
    lab.ledger.release(first)
    held(lab.another().reserve(whole()))


def test_a_release_is_final_for_renewals_that_come_late(lab: Lab) -> None:
    first = held(lab.ledger.reserve(whole()))
    lab.ledger.release(first)
    assert lab.ledger.renew(first) == (first,)
    with pytest.raises(InsufficientDeviceMemory, match="no longer has its room"):
        lab.ledger.hand_over(first, someone(8))
    assert lab.leases() == []


def test_a_lease_that_is_renewed_too_late_is_lost_if_others_were_promised_its_room(lab: Lab) -> None:
    elsewhere = someone(7, pid_space="another container")
    lab.says[elsewhere] = Liveness.UNKNOWN
    first = held(lab.ledger.reserve(sharing(gib(12), owner=elsewhere)))
    lab.clock.advance(91)
    second = held(lab.another().reserve(sharing(gib(12))))
    # It can see itself, and still must not have what somebody else has now.
    lab.says[elsewhere] = Liveness.ALIVE
    assert lab.ledger.renew(first) == (first,)
    with pytest.raises(InsufficientDeviceMemory):
        lab.ledger.hand_over(first, someone(8))
    assert [one.entry.id for one in lab.another().state().devices[0].holders] == [second.id]


@pytest.mark.parametrize("size", [0, 1, 8])
def test_a_lease_that_is_renewed_late_stands_again_if_there_is_room_for_it(lab: Lab, size: int) -> None:
    elsewhere = someone(7)
    lab.says[elsewhere] = Liveness.UNKNOWN
    first = held(lab.ledger.reserve(sharing(gib(12), owner=elsewhere)))
    lab.clock.advance(91)
    if size:
        held(lab.another().reserve(sharing(gib(size))))
    else:
        assert lab.another().state().devices == ()
    assert lab.ledger.renew(first) == ()
    assert not_now(lab.another().reserve(sharing(gib(12)))).nearest.room_bytes == USABLE_BYTES - gib(12) - gib(size)


def test_a_whole_card_that_was_given_to_another_one_meanwhile_is_lost(lab: Lab) -> None:
    elsewhere = someone(7)
    lab.says[elsewhere] = Liveness.UNKNOWN
    for mine_is, theirs_is in ((whole, sharing), (sharing, whole)):
        first = held(lab.ledger.reserve(mine_is(gib(1), owner=elsewhere)))
        lab.clock.advance(91)
        other = lab.another()
        second = held(other.reserve(theirs_is(gib(1))))
        assert lab.ledger.renew(first) == (first,)
        other.release(second)


def test_a_reservation_is_there_once_even_if_a_handover_was_cut_in_two(lab: Lab) -> None:
    first = held(lab.ledger.reserve(sharing(gib(12))))
    before = lab.leases()[0]
    data = before.read_bytes()
    lab.ledger.hand_over(first, someone(8))
    before.write_bytes(data)
    assert len(lab.leases()) == 2
    assert lab.another().state([CARD]).devices[0].reserved_bytes == gib(12)


def test_what_is_measured_counts_and_the_peak_stays(lab: Lab) -> None:
    first = held(lab.ledger.reserve(sharing(gib(10))))
    noted = lab.ledger.note_measured(first, {"GPU-a": gib(11)})
    assert (noted.percent, noted.is_over, noted.is_past_limit) == (110, False, False)
    assert lab.ledger.note_measured(first, {"GPU-a": gib(2)}).measured_bytes == gib(11)
    assert not_now(lab.another().reserve(sharing(gib(10)))).nearest.room_bytes == USABLE_BYTES - gib(11)


def test_more_than_a_fifth_above_the_promise_is_worth_a_warning_and_a_limit_is_a_limit(lab: Lab) -> None:
    first = held(lab.ledger.reserve(sharing(gib(10))))
    exactly = lab.ledger.note_measured(first, {"GPU-a": gib(12)}, limit_percent=150)
    assert (exactly.percent, exactly.is_over) == (120, False)
    above = lab.ledger.note_measured(first, {"GPU-a": gib(12) + 1}, limit_percent=121)
    assert (above.percent, above.is_over, above.is_past_limit) == (121, True, False)
    assert lab.ledger.note_measured(first, {"GPU-a": gib(13)}, limit_percent=121).is_past_limit


def test_what_the_driver_says_of_an_owner_is_recorded(tmp_path: Path) -> None:
    meter = FakeMeter({"GPU-a": CARD.total_bytes})
    lab = Lab(tmp_path, meter=meter)
    first = held(lab.ledger.reserve(sharing(gib(2))))
    assert lab.ledger.measure(first) is None
    meter.use("GPU-a", os.getpid(), gib(3))
    noted = lab.ledger.measure(first)
    assert noted is not None
    assert (noted.measured_bytes, noted.is_over) == (gib(3), True)
    assert lab.another().state().devices[0].holders[0].share.measured_bytes == gib(3)


def test_the_drivers_measure_keeps_room_from_being_promised(tmp_path: Path) -> None:
    meter = FakeMeter({"GPU-a": CARD.total_bytes})
    lab = Lab(tmp_path, meter=meter)
    # Somebody who never asked the ledger; process 1 is not ours, and always there.
    meter.use("GPU-a", 1, gib(20))
    answer = not_now(lab.ledger.reserve(sharing(gib(6))))
    assert answer.bound is DeviceLimit.MEASURED
    assert dict(lab.ledger.state([CARD]).devices[0].outside) == {1: gib(20)}
    meter.use("GPU-a", 1, 0)
    held(lab.ledger.reserve(sharing(gib(6))))


def test_who_waits_is_not_overtaken_by_who_does_not(lab: Lab) -> None:
    first = held(lab.ledger.reserve(sharing(gib(12))))
    with lab.place(sharing(gib(12), job="second")) as place:
        assert not_now(place.look()).ahead == 0
        small = not_now(lab.another().reserve(sharing(gib(1))))
        assert small.bound is DeviceLimit.LINE
        assert small.why == "1 waits before you"
        held(lab.another().reserve(sharing(gib(1), devices=(OTHER,))))
        lab.ledger.release(first)
        not_now(lab.another().reserve(sharing(gib(1))))
        held(place.look())
    held(lab.another().reserve(sharing(gib(1))))
    assert lab.tickets() == []


def test_who_came_first_is_served_first(lab: Lab) -> None:
    first = held(lab.ledger.reserve(whole()))
    second, third = lab.place(whole(job="second")), lab.place(whole(job="third"))
    assert (not_now(second.look()).ahead, not_now(third.look()).ahead) == (0, 1)
    assert [one.place for one in lab.ledger.state().waiting] == [1, 2]
    lab.ledger.release(first)
    assert not_now(third.look()).bound is DeviceLimit.LINE
    granted = held(second.look())
    assert not_now(third.look()).ahead == 0
    lab.ledger.release(granted)
    held(third.look())


def test_everybody_who_came_earlier_is_before_who_came_later(lab: Lab) -> None:
    held(lab.ledger.reserve(whole()))
    held(lab.ledger.reserve(sharing(gib(12), devices=(OTHER,))))
    not_now(lab.place(whole()).look())
    not_now(lab.place(whole(devices=(OTHER,))).look())
    assert not_now(lab.place(sharing(gib(1), devices=(CARD, OTHER))).look()).ahead == 2
    assert not_now(lab.place(sharing(gib(1), devices=(OTHER,))).look()).bound is DeviceLimit.LINE


def test_a_place_that_is_given_up_lets_the_next_one_in(lab: Lab) -> None:
    held(lab.ledger.reserve(sharing(gib(12))))
    large, small = lab.place(sharing(gib(12))), lab.place(sharing(gib(1)))
    not_now(large.look())
    assert not_now(small.look()).ahead == 1
    large.leave()
    held(small.look())


def test_a_dead_waiter_holds_nobody_up(lab: Lab) -> None:
    held(lab.ledger.reserve(sharing(gib(12))))
    not_now(lab.place(sharing(gib(12))).look())
    not_now(lab.another().reserve(sharing(gib(1))))
    lab.says[mine()] = Liveness.GONE
    # Its holder is judged by the same, so only the line is looked at.
    assert lab.another().state().waiting == ()


def test_a_waiter_that_sleeps_holds_nobody_up_and_keeps_its_number(lab: Lab) -> None:
    first = held(lab.ledger.reserve(sharing(gib(12))))
    sleeper = lab.place(sharing(gib(12)))
    not_now(sleeper.look())
    lab.clock.advance(31)
    later = lab.place(sharing(gib(12)))
    assert not_now(later.look()).ahead == 0
    assert lab.ledger.state().waiting[0].is_asleep
    # It wakes, and is before the other again.
    assert not_now(sleeper.look()).ahead == 0
    assert not_now(later.look()).ahead == 1
    lab.ledger.release(first)
    held(sleeper.look())


def test_a_lost_ticket_is_written_again_with_its_number(lab: Lab) -> None:
    held(lab.ledger.reserve(whole()))
    place = lab.place(whole())
    number = not_now(place.look()).number
    lab.tickets()[0].write_bytes(b"garbage")
    assert lab.another().state().waiting == ()
    assert not_now(place.look()).number == number
    assert len(lab.tickets()) == 1


def test_waiting_gives_up_in_time_and_says_why(tmp_path: Path) -> None:
    ledger = real_ledger(tmp_path)
    held(ledger.reserve(whole(job="the other one")))
    seen: list[DeviceWaitProgress] = []
    with pytest.raises(DeviceWaitTimeout) as caught:
        ledger.wait(whole(job="mine"), timeout_s=0.5, on_progress=seen.append)
    assert caught.value.exit_code == 51
    assert "held whole by the other one" in caught.value.message
    assert seen[0].place == 1
    assert seen[0].remaining_s <= 0.5
    assert ledger.state().waiting == ()


def test_waiting_for_no_time_tries_once(tmp_path: Path) -> None:
    ledger = real_ledger(tmp_path)
    first = ledger.wait(whole(), timeout_s=0.0)
    with pytest.raises(DeviceWaitTimeout):
        ledger.wait(whole(), timeout_s=0.0)
    ledger.release(first)


def test_a_wait_that_is_stopped_gives_its_place_back(tmp_path: Path) -> None:
    ledger = real_ledger(tmp_path)
    held(ledger.reserve(whole()))
    with pytest.raises(Cancelled):
        ledger.wait(whole(), stop=lambda: True)
    assert ledger.state().waiting == ()


def test_a_release_wakes_who_waits(tmp_path: Path) -> None:
    ledger = real_ledger(tmp_path)
    first = held(ledger.reserve(whole()))
    is_waiting, got = threading.Event(), []
    waiter = threading.Thread(
        target=lambda: got.append(real_ledger(tmp_path).wait(whole(), 30.0, lambda _progress: is_waiting.set()))
    )
    waiter.start()
    assert is_waiting.wait(5)
    ledger.release(first)
    # Without a knock it would look again after five seconds.
    waiter.join(4)
    assert len(got) == 1
    assert isinstance(got[0], Reservation)


def test_a_guard_holds_room_for_the_length_of_a_block(tmp_path: Path) -> None:
    ledger = real_ledger(tmp_path)
    with ledger.guard(whole(lease_s=0.03)) as room:
        assert room.uuids == ("GPU-a",)
        begun_s = ledger.state().devices[0].holders[0].entry.lease_until_s
        deadline = threading.Event()
        for _ in range(400):
            if ledger.state().devices[0].holders[0].entry.lease_until_s > begun_s:
                break
            deadline.wait(0.005)
        else:
            pytest.fail("nobody renewed the lease")
    assert ledger.state([CARD]).devices[0].holders == ()


def test_a_guard_gives_room_back_when_its_block_fails(tmp_path: Path) -> None:
    ledger = real_ledger(tmp_path)
    message = "the training failed"
    with pytest.raises(RuntimeError, match=message), ledger.guard(whole()):
        raise RuntimeError(message)
    held(ledger.reserve(whole()))


def test_a_child_that_leaves_a_guard_does_not_give_its_parents_room_back(tmp_path: Path) -> None:
    ledger = real_ledger(tmp_path)
    guard = ledger.guard(whole())
    with guard:
        pid = os.fork()
        if not pid:
            guard.__exit__(None, None, None)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        not_now(ledger.reserve(whole()))


def test_an_interruption_after_the_promise_was_written_takes_it_back(tmp_path: Path) -> None:
    def interrupt(step: str) -> None:
        if step == "leases:named":
            raise KeyboardInterrupt

    lab = Lab(tmp_path, on_step=interrupt)
    with pytest.raises(KeyboardInterrupt):
        lab.ledger.reserve(whole())
    assert lab.leases() == []


def test_six_phases_are_counted_and_none_without_a_clock(tmp_path: Path) -> None:
    ticks = iter(range(1000))
    phases = Phases(lambda: float(next(ticks)))
    ledger = real_ledger(tmp_path, phases=phases)
    ledger.release(held(ledger.reserve(whole())))
    spent = phases.spent
    assert [str(phase) for phase in spent] == [
        "lock_acq", "ledger_rd", "vram_qry", "ledger_wr", "lock_rel", "wait_poll",
    ]  # fmt: skip
    assert spent[LedgerPhase.LOCK].times == spent[LedgerPhase.UNLOCK].times == 2
    assert spent[LedgerPhase.WRITE].times == spent[LedgerPhase.MEASURE].times == spent[LedgerPhase.READ].times == 1
    assert spent[LedgerPhase.WAIT].times == 0
    silent = Phases()
    ledger = real_ledger(tmp_path, phases=silent)
    ledger.release(held(ledger.reserve(whole())))
    assert all(one.times == 0 for one in silent.spent.values())


def test_the_state_tells_who_holds_what_and_who_waits(lab: Lab) -> None:
    held(lab.ledger.reserve(sharing(gib(6), job="one", base="llama", base_bytes=gib(4))))
    lab.clock.advance(1)
    held(lab.ledger.reserve(sharing(gib(6), job="two", base="llama", base_bytes=gib(4))))
    held(lab.ledger.reserve(whole(job="alone", devices=(OTHER,))))
    lab.clock.advance(60)
    place = lab.place(whole(job="later", devices=(OTHER,)))
    not_now(place.look())
    state = lab.another().state([CARD, OTHER])
    shared, taken = state.devices
    assert [one.entry.job for one in shared.holders] == ["one", "two"]
    assert (shared.reserved_bytes, shared.available_bytes) == (gib(8), USABLE_BYTES - gib(8))
    assert (taken.is_taken, taken.available_bytes) == (True, 0)
    assert taken.holders[0].held_s == 60
    assert [(one.ticket.job, one.place) for one in state.waiting] == [("later", 1)]
    assert shared.to_dict()["holders"][0]["budget_bytes"] == gib(6)


def test_what_one_process_takes_for_a_shared_process_is_shared_out_among_its_members(lab: Lab) -> None:
    shared = someone(9)
    asks = [sharing(gib(7 + own), job=f"rank-{own}", base="llama", base_bytes=gib(7)) for own in (1, 1, 2)]
    members = [lab.ledger.hand_over(held(lab.ledger.reserve(ask)), shared) for ask in asks]
    seen = [lab.ledger.note_measured(one, {"GPU-a": gib(12)}) for one in members]
    assert [one.measured_bytes for one in seen] == [gib(8) + gib(1) // 4, gib(8) + gib(1) // 4, gib(9) + gib(1) // 2]
    assert not any(one.is_over for one in seen)
    assert lab.another().state([CARD]).devices[0].reserved_bytes == gib(12)


def test_a_base_that_two_processes_hold_is_measured_for_each_of_them(lab: Lab) -> None:
    first, second = (
        lab.ledger.hand_over(
            held(lab.ledger.reserve(sharing(gib(6), base="llama", base_bytes=gib(4)))), someone(process)
        )
        for process in (8, 9)
    )
    assert lab.ledger.note_measured(first, {"GPU-a": gib(6)}).measured_bytes == gib(6)
    assert lab.ledger.note_measured(second, {"GPU-a": gib(7)}).measured_bytes == gib(7)


def test_the_state_tells_a_base_once_and_what_each_member_adds(lab: Lab) -> None:
    for own in (1, 2):
        ask = sharing(gib(7 + own), job=f"rank-{own}", base="llama", base_bytes=gib(7))
        lab.ledger.hand_over(held(lab.ledger.reserve(ask)), someone(9))
        lab.clock.advance(1)
    told = lab.another().state([CARD]).devices[0].to_dict()
    assert [one["own_bytes"] for one in told["holders"]] == [gib(1), gib(2)]
    assert told["bases"] == [
        {"base": "llama", "base_bytes": gib(7), "holders": 2, "budget_bytes": gib(10), "actual_bytes": None}
    ]
    assert told["reserved_bytes"] == gib(10)
