"""What jobs wait for ends, also where estimates are wrong and machines do not do what is expected of them."""

from __future__ import annotations

import pytest

from stoker.core.machine import SchedulableJob, UserPolicy
from stoker.protocol.lease_messages import WorkerMeasurements
from stoker.scheduler.calls import ANSWER_S
from stoker.scheduler.leases import MOST_LONGER, HoldDecision, HoldReason, StartReason
from stoker.scheduler.machine_index import MatchableMachine
from stoker.scheduler.offers import offer_of
from tests.unit.scheduler.policy_fleet import HOUR_S, Fleet, board, cpu, device, node


def reasons(fleet: Fleet, name: str) -> dict[str, int]:
    hold = fleet.scheduler.choose(name, fleet.now_s, tells=True)
    assert isinstance(hold, HoldDecision), hold
    return dict(hold.waiting)


def test_a_machine_is_busy_no_longer_than_its_jobs_run() -> None:
    fleet = Fleet([node("a", "RTX 4090")], device(8, hours=100), cpu(hours=1))
    long, short = fleet.run(0, "a"), fleet.run(1, "a", devices=0)
    machine = fleet.scheduler.machines.machines["a"]
    long_s, short_s = (lease.until_s for lease in machine.leases)
    assert machine.busy_until_s == long_s > short_s
    fleet.scheduler.release(long, 60.0)
    assert machine.busy_until_s == short_s
    fleet.scheduler.release(short, 60.0)
    assert machine.busy_until_s == 0.0


def test_a_machine_that_comes_back_is_as_busy_as_before() -> None:
    fleet = Fleet([node("a", "RTX 4090")], device(8, hours=100))
    fleet.run(0, "a")
    before_s = fleet.scheduler.machines.machines["a"].busy_until_s
    fleet.scheduler.remove_machine("a")
    fleet.scheduler.put_machine(MatchableMachine(offer_of(node("a", "RTX 4090"))))
    assert fleet.scheduler.machines.machines["a"].busy_until_s == before_s > 0.0


def test_of_two_jobs_alike_the_one_that_ended_is_learned_from() -> None:
    fleet = Fleet([node("box")], cpu(hours=None))
    for _ in range(2):
        fleet.run(0, "box", devices=0)
    fleet.now_s = 1000.0
    later = [fleet.run(0, "box", devices=0) for _ in range(3)]
    for one in later:
        fleet.scheduler.release(one, 1010.0, is_completed=True)
    assert fleet.scheduler.durations.expected_s(0) == 10.0


def test_progress_changes_the_expected_end_of_one_job_only() -> None:
    fleet = Fleet([node("box")], cpu(hours=1))
    first, second = fleet.run(0, "box", devices=0), fleet.run(0, "box", devices=0)
    leases = fleet.scheduler.machines.machines["box"].leases
    before_s = leases[0].until_s
    fleet.scheduler.leases.expect(second, 60.0, 0.0)
    assert [one.until_s for one in leases] == [before_s, 60.0]
    fleet.scheduler.release(first, 60.0)
    assert fleet.scheduler.machines.machines["box"].busy_until_s == 60.0


def test_progress_that_says_about_the_same_changes_nothing() -> None:
    fleet = Fleet([node("box")], cpu(hours=1))
    one = fleet.run(0, "box", devices=0)
    (lease,) = fleet.scheduler.machines.machines["box"].leases
    before_s = lease.until_s
    fleet.scheduler.leases.expect(one, 1.15 * before_s, 0.0)
    assert lease.until_s == before_s
    fleet.scheduler.leases.expect(one, 1.3 * before_s, 0.0)
    assert lease.until_s == 1.3 * before_s


def test_no_progress_report_sets_the_end_into_the_past_or_beyond_all_bounds() -> None:
    fleet = Fleet([node("box")], cpu(hours=1))
    one = fleet.run(0, "box", devices=0)
    (lease,) = fleet.scheduler.machines.machines["box"].leases
    expected_s = lease.until_s
    fleet.scheduler.leases.expect(one, -1e300, 10.0)
    assert lease.until_s == 10.0
    for _ in range(3):
        fleet.scheduler.leases.expect(one, 1e300, 10.0)
        assert lease.until_s == expected_s * MOST_LONGER
    fleet.scheduler.leases.expect(one, 1e300, 2 * expected_s)
    assert lease.until_s == 2 * expected_s * MOST_LONGER
    fleet.scheduler.leases.expect(one, expected_s, 10.0)
    assert lease.until_s == expected_s


def with_an_end(ends_s: float) -> Fleet:
    """Return a busy fast machine that goes away at a time, and a slow one; jobs take an hour on the fast one."""
    fleet = Fleet([node("fast", "RTX 4090"), board("slow")], device(8, hours=1))
    fleet.scheduler.put_machine(MatchableMachine(offer_of(node("fast", "RTX 4090")), ends_s=ends_s))
    fleet.run(0, "fast")
    fleet.come(0)
    return fleet


def test_no_job_waits_for_a_faster_machine_that_goes_away_too_early() -> None:
    assert with_an_end(0.9 * HOUR_S).start("slow") is not None
    assert reasons(with_an_end(2.5 * HOUR_S), "slow") == {HoldReason.FASTER: 1}


def test_a_job_stops_waiting_when_the_faster_machine_has_no_longer_the_time_for_it() -> None:
    fleet = with_an_end(2.5 * HOUR_S)
    assert reasons(fleet, "slow") == {HoldReason.FASTER: 1}
    assert fleet.called() == []
    until_s = fleet.scheduler.next_call_s
    assert until_s is not None
    assert until_s == pytest.approx(1.5 * HOUR_S, rel=0.1)
    fleet.now_s = until_s
    assert "slow" in fleet.called()
    assert fleet.start("slow") is not None


def test_a_job_waits_for_the_machine_of_a_node_type_that_stays() -> None:
    fleet = with_an_end(0.9 * HOUR_S)
    fleet.scheduler.put_machine(MatchableMachine(offer_of(node("fast2", "RTX 4090"))))
    fleet.run(0, "fast2")
    assert reasons(fleet, "slow") == {HoldReason.FASTER: 1}
    fleet.scheduler.remove_machine("fast2")
    assert fleet.start("slow") is not None


def test_no_job_waits_for_a_preferred_machine_that_goes_away_too_early() -> None:
    fleet = preferring(hours=1)
    fleet.scheduler.put_machine(MatchableMachine(offer_of(node("wanted", "RTX 4090", priority=3)), ends_s=0.5 * HOUR_S))
    fleet.come(0)
    assert fleet.start("other") is not None


def preferring(*, hours: float) -> Fleet:
    """Return a machine that all jobs prefer and one that they do not; the jobs take so long."""
    return Fleet([node("wanted", "RTX 4090", priority=3), node("other", "RTX 4090")], device(8, hours=hours))


def test_no_job_waits_for_a_preferred_machine_for_longer_than_it_would_take_here() -> None:
    fleet = preferring(hours=1)
    fleet.run(0, "wanted")
    fleet.now_s = 1.1 * HOUR_S
    fleet.come(0)
    assert reasons(fleet, "other") == {HoldReason.PREFERRED: 1}
    fleet.called()
    # What runs there takes a hundred times as long as expected.
    until_s = fleet.scheduler.next_call_s
    assert until_s is not None
    assert until_s == pytest.approx(2.1 * HOUR_S, rel=0.1)
    fleet.now_s = until_s
    assert fleet.called() == ["other"]
    assert fleet.start("other") is not None


def test_no_job_waits_for_a_preferred_machine_that_does_not_ask() -> None:
    fleet = preferring(hours=1)
    fleet.come(0)
    assert reasons(fleet, "other") == {HoldReason.PREFERRED: 1}
    fleet.called()
    until_s = fleet.scheduler.next_call_s
    assert until_s is not None
    assert until_s == pytest.approx(HOUR_S, rel=0.1)
    fleet.now_s = until_s
    assert fleet.called() == ["other"]
    assert fleet.start("other") is not None


def test_a_large_machine_is_not_left_to_jobs_whose_user_is_at_a_limit() -> None:
    small, large = device(4), device(20)
    nodes = [node("large", "RTX 4090"), *(node(f"s{at}", "RTX 4090", vram_mb=8192) for at in range(4))]
    fleet = Fleet(nodes, small, cpu(hours=50))
    fleet.scheduler.put_class(5, SchedulableJob(name="job", requirements=large[0]), user="eve", expected_s=HOUR_S)
    fleet.run(1, "s0", devices=0)
    fleet.come(0, 10)
    fleet.come(5, 90)
    assert fleet.ask("large") == (5, StartReason.OLDEST)
    fleet.scheduler.set_policies({"eve": UserPolicy(most_jobs=0)})
    assert fleet.ask("large") == (0, StartReason.OLDEST)


def test_a_machine_asks_again_for_each_of_the_jobs_that_it_holds_back() -> None:
    fleet = Fleet([node("fast", "RTX 4090"), board("slow")], device(8, hours=1), device(8, hours=3), users=("ada",))
    fleet.run(0, "fast")
    fleet.come(0)
    fleet.come(1)
    assert reasons(fleet, "slow") == {HoldReason.FASTER: 2}
    fleet.called()
    first_s = fleet.scheduler.next_call_s
    assert first_s is not None
    fleet.now_s = first_s
    assert fleet.called() == ["slow"]
    # The first one is over its time, and its user is at a limit for now.
    fleet.scheduler.set_policies({"ada": UserPolicy(most_jobs=0)})
    assert reasons(fleet, "slow") == {HoldReason.LIMIT: 2}
    fleet.called()
    fleet.now_s += ANSWER_S
    fleet.called()
    second_s = fleet.scheduler.next_call_s
    assert second_s == pytest.approx(3 * first_s, rel=0.1)


def test_a_machine_is_called_when_what_others_wait_for_should_have_ended() -> None:
    fleet = Fleet(
        [node("large", "RTX 4090", "RTX 4090"), *(node(f"s{at}", "RTX 4090", vram_mb=8192) for at in range(4))],
        device(4, hours=1),
        device(20, device_count=2, hours=1),
        device(20, hours=0.5),
    )
    fleet.run(2, "large")
    fleet.now_s = 60.0
    fleet.come(0, 4)
    fleet.come(1, 90)
    machine = fleet.scheduler.machines.machines["large"]
    assert reasons(fleet, "large")[HoldReason.SCARCE] == 4
    fleet.called()
    fleet.now_s = machine.busy_until_s
    assert "large" in fleet.called()
    assert fleet.ask("large") is not None


def test_a_machine_that_does_not_answer_is_not_counted_on() -> None:
    fleet = Fleet([node("fast", "RTX 4090"), board("slow"), node("box")], device(8, hours=1), cpu(hours=50))
    fleet.run(1, "box", devices=0)
    assert fleet.ask("fast") is None
    fleet.come(0)
    assert fleet.called() == ["fast"]
    assert reasons(fleet, "slow") == {HoldReason.FASTER: 1}
    fleet.now_s = ANSWER_S
    assert fleet.called() == ["slow"]
    assert fleet.ask("slow") is not None
    assert fleet.start("fast") is not None, "it counts again when it asks"


def test_a_machine_of_which_others_are_not_sure_still_gets_what_only_it_can_run() -> None:
    fleet = Fleet([node("large", "A100", vram_mb=81920), node("box")], device(60, hours=1), cpu(hours=50))
    fleet.run(1, "box", devices=0)
    fleet.scheduler.doubt("large", is_doubted=True)
    fleet.come(0)
    assert fleet.ask("large") is not None


def test_machines_are_called_when_the_faster_one_closes() -> None:
    fleet = Fleet([node("fast", "RTX 4090"), board("slow"), node("box")], device(8, hours=1), cpu(hours=50))
    fleet.run(1, "box", devices=0)
    fleet.run(0, "fast")
    fleet.come(0)
    assert reasons(fleet, "slow") == {HoldReason.FASTER: 1}
    fleet.called()
    fleet.scheduler.measure("fast", WorkerMeasurements(closed={"": "paused"}))
    assert fleet.called() == ["slow"]
    assert fleet.ask("slow") is not None


def test_no_job_waits_longer_because_a_clock_was_set_back() -> None:
    fleet = Fleet([node("fast", "RTX 4090"), board("slow")], device(8, hours=1))
    fleet.now_s = 100 * HOUR_S
    fleet.run(0, "fast")
    fleet.come(0)
    assert reasons(fleet, "slow") == {HoldReason.FASTER: 1}
    fleet.called()
    first_s = fleet.scheduler.next_call_s
    assert first_s is not None
    fleet.now_s -= 90 * HOUR_S
    while fleet.called():
        assert reasons(fleet, "slow") == {HoldReason.FASTER: 1}
    until_s = fleet.scheduler.next_call_s
    assert until_s is not None
    assert until_s == pytest.approx(first_s - 90 * HOUR_S)
    fleet.now_s = until_s
    assert fleet.called() == ["slow"]
    assert fleet.start("slow") is not None


def test_a_machine_that_was_called_before_a_clock_was_set_back_is_not_waited_for() -> None:
    fleet = Fleet([board("slow"), node("fast", "RTX 4090")], device(8, hours=None))
    fleet.now_s = 100 * HOUR_S
    assert fleet.ask("slow") is None
    assert fleet.ask("fast") is None
    fleet.come(0)
    assert fleet.called() == ["fast"]
    fleet.now_s = HOUR_S
    fleet.called()
    assert fleet.ask("slow") is None
    fleet.now_s = HOUR_S + ANSWER_S
    assert "slow" in fleet.called()
    assert fleet.ask("slow") == (0, StartReason.OLDEST)
