"""While jobs keep coming: when a job starts on a slower machine, and how jobs that need much room get it."""

from __future__ import annotations

import pytest

from stoker.core.device import GIB
from stoker.core.machine import DevicePreference, SchedulableJob, UserPolicy
from stoker.protocol.lease_messages import WorkerMeasurements
from stoker.scheduler.calls import ANSWER_S
from stoker.scheduler.leases import StartReason
from stoker.scheduler.machine_index import LeaseAllocation
from stoker.scheduler.scheduler import Scheduler
from stoker.scheduler.simulation.forecast import SnapshotForecast
from stoker.scheduler.snapshot import restore, restore_waiting, take
from tests.unit.scheduler.policy_fleet import HOUR_S, Fleet, board, cpu, device, node

MINUTE_S = 60.0


def test_the_slow_machine_waits_until_the_fast_one_asks_after_the_last_job_of_all() -> None:
    fleet = Fleet([node("fast", "RTX 4090", slots=1), board("slow")], device(8, hours=0.1))
    last = fleet.run(0, "fast")
    fleet.come(0, 4)
    assert fleet.ask("slow") is None
    fleet.now_s = 360.0
    fleet.scheduler.release(last, fleet.now_s)
    assert fleet.called() == []
    # One more comes, so that no refusal of before counts.
    fleet.come(0)
    assert fleet.ask("slow") is None
    assert fleet.start("fast") is not None
    assert fleet.ask("slow") is None


def test_the_slow_machine_is_called_if_the_fast_one_does_not_ask_after_the_last_job_of_all() -> None:
    fleet = Fleet([node("fast", "RTX 4090", slots=1), board("slow")], device(8, hours=0.1))
    last = fleet.run(0, "fast")
    fleet.come(0, 4)
    assert fleet.ask("slow") is None
    fleet.now_s = 360.0
    fleet.scheduler.release(last, fleet.now_s)
    assert fleet.ask("slow") is None
    assert fleet.scheduler.next_call_s == fleet.now_s + ANSWER_S
    fleet.now_s += ANSWER_S
    assert fleet.called() == ["slow"]
    assert fleet.ask("slow") is not None


@pytest.mark.parametrize("way", ["removed", "has nothing"])
def test_the_slow_machine_is_called_at_once_if_the_fast_one_will_not_ask(way: str) -> None:
    fleet = Fleet([node("fast", "RTX 4090", slots=1), board("slow")], device(8, hours=0.1), cpu())
    last = fleet.run(0, "fast")
    fleet.come(0)
    assert fleet.ask("slow") is None
    fleet.now_s = 360.0
    fleet.scheduler.release(last, fleet.now_s)
    if way == "removed":
        fleet.scheduler.remove_machine("fast")
    else:
        fleet.scheduler.withdraw("fast")
    assert fleet.called() == ["slow"]


def beside_a_busy_fast_machine(slow: str) -> Fleet:
    """Return a fast machine that has a job for half an hour more, a slow one that is idle, and nothing that waits."""
    nodes = [node("fast", "RTX 4090", slots=1), board("slow") if slow == "board" else node("slow", slow, slots=1)]
    fleet = Fleet(nodes, device(8, hours=1.0))
    fleet.run(0, "fast")
    fleet.now_s = HOUR_S / 2
    return fleet


def come_every_minute(fleet: Fleet) -> None:
    """Let jobs come and go, one each minute."""
    assert fleet.ask("slow") is None
    for _ in range(10):
        fleet.now_s += MINUTE_S
        fleet.come(0)
        fleet.called()
        fleet.go(0)


def test_a_job_waits_for_a_machine_twice_as_fast_if_no_others_come() -> None:
    fleet = beside_a_busy_fast_machine("RTX 3080")
    fleet.come(0)
    assert fleet.ask("slow") is None
    assert fleet.ask("fast") is None


def test_a_job_does_not_wait_for_a_machine_twice_as_fast_while_others_keep_coming() -> None:
    fleet = beside_a_busy_fast_machine("RTX 3080")
    come_every_minute(fleet)
    fleet.come(0)
    assert fleet.ask("slow") == (0, StartReason.OLDEST)


def test_a_job_waits_for_a_machine_fifty_times_as_fast_while_others_keep_coming() -> None:
    fleet = beside_a_busy_fast_machine("board")
    come_every_minute(fleet)
    fleet.come(0)
    assert fleet.ask("slow") is None


def test_a_job_waits_again_when_others_stopped_coming_long_ago() -> None:
    fleet = beside_a_busy_fast_machine("RTX 3080")
    come_every_minute(fleet)
    fleet.now_s += 20 * HOUR_S
    fleet.run(0, "fast")
    fleet.now_s += HOUR_S / 2
    fleet.come(0)
    assert fleet.ask("slow") is None


def test_a_clock_that_is_set_back_does_not_let_arrivals_seem_to_come_later() -> None:
    fleet = beside_a_busy_fast_machine("RTX 3080")
    come_every_minute(fleet)
    before = [table.arrived_s - fleet.now_s for table in fleet.scheduler.tables.tables]
    fleet.now_s -= HOUR_S
    fleet.called()
    assert [table.arrived_s - fleet.now_s for table in fleet.scheduler.tables.tables] == before


def test_a_snapshot_remembers_how_often_jobs_come() -> None:
    fleet = beside_a_busy_fast_machine("RTX 3080")
    come_every_minute(fleet)
    snapshot = take(fleet.scheduler, fleet.now_s)
    other = Scheduler()
    restore(other, snapshot)
    restore_waiting(other, snapshot)
    for name in ("fast", "slow"):
        mine, theirs = (one.machines.machines[name].table for one in (fleet.scheduler, other))
        assert theirs.arrived_s == pytest.approx(mine.arrived_s - fleet.now_s)
        assert theirs.gap_s == mine.gap_s


@pytest.mark.parametrize("jobs", [4, 6, 12, 16, 20])
def test_a_slower_machine_is_not_idle_beside_a_queue_of_many_times_its_own_length(jobs: int) -> None:
    fleet = Fleet([node("fast", "RTX 4090", slots=1), node("slow", "RTX 3080", slots=1)], device(8))
    for name in ("fast", "slow"):
        assert fleet.ask(name) is None
    fleet.come(0, jobs)
    fleet.called()
    assert fleet.start("fast") is not None
    assert fleet.start("slow") is not None


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_a_host_of_high_priority_without_devices_gets_no_job_that_prefers_a_device(jobs: int) -> None:
    nodes = [node("board", slots=1, priority=5), node("desk", "RTX 4090", slots=1), node("lab", "RTX 3080", slots=1)]
    fleet = Fleet(nodes, device(6, hours=0.1, wish=DevicePreference.PREFER))
    for one in nodes:
        assert fleet.ask(one.name) is None
    fleet.come(0, jobs)
    started: list[str] = []
    while called := fleet.called():
        started += [name for name in called if fleet.start(name) is not None]
    assert "board" not in started
    assert started[0] == "desk"


def held_for_the_fast_one() -> tuple[Fleet, LeaseAllocation]:
    """Return a fleet whose slow machine is held back for the fast one, where class 1 must run, and what runs there."""
    nodes = [node("fast", "RTX 4090", slots=1), node("slow", "RTX 3080", slots=1, vram_mb=10240)]
    fleet = Fleet(nodes, device(8, hours=1.0), device(20, hours=1.0))
    running = fleet.run(0, "fast")
    fleet.now_s = HOUR_S / 2
    fleet.come(0)
    assert fleet.ask("slow") is None
    assert fleet.called() == []
    return fleet, running


def test_a_machine_is_called_for_a_held_job_when_others_came_that_go_where_it_waits() -> None:
    fleet, _ = held_for_the_fast_one()
    fleet.come(1, 6)
    assert fleet.called() == ["slow"]
    assert fleet.ask("slow") == (0, StartReason.OLDEST)


def test_a_machine_is_called_for_a_held_job_when_what_it_waits_for_ends_much_later() -> None:
    fleet, running = held_for_the_fast_one()
    fleet.scheduler.leases.expect(running, 20 * HOUR_S, fleet.now_s)
    assert fleet.called() == ["slow"]
    assert fleet.ask("slow") == (0, StartReason.OLDEST)


def pair_and_singles(users: tuple[str, ...]) -> Fleet:
    """Return a machine with two devices and two with one; class 0 takes one device, class 1 takes two."""
    nodes = [node("pair", "RTX 4090", "RTX 4090"), node("a", "RTX 4090", slots=1), node("b", "RTX 4090", slots=1)]
    return Fleet(nodes, device(8), device(8, device_count=2), users=users)


def test_an_old_wide_job_goes_before_a_younger_one_of_a_user_with_a_smaller_share() -> None:
    fleet = pair_and_singles(("ada", "bob"))
    fleet.run(0, "a")
    fleet.now_s = HOUR_S / 2
    # The wide job of ada, who has used more than bob.
    fleet.come(1)
    fleet.come(2)
    assert fleet.ask("pair") == (1, StartReason.WIDE)


def test_a_younger_wide_job_does_not_go_before_an_older_one_of_a_user_with_a_smaller_share() -> None:
    fleet = pair_and_singles(("ada", "bob"))
    fleet.run(0, "a")
    fleet.now_s = HOUR_S / 2
    fleet.come(2)
    fleet.come(1)
    asked = fleet.ask("pair")
    assert asked is not None
    assert asked[0] == 2


def test_a_machine_is_kept_for_the_oldest_wide_job_whoever_has_the_smaller_share() -> None:
    fleet = pair_and_singles(("ada", "bob"))
    fleet.run(0, "pair")
    fleet.run(0, "a")
    fleet.run(0, "b")
    fleet.now_s = HOUR_S / 2
    fleet.come(1)
    fleet.come(2)
    assert fleet.ask("pair") is None
    kept = fleet.scheduler.machines.machines["pair"].kept
    assert kept is not None
    assert kept.queue.user == "ada"


def test_the_machine_with_the_most_jobs_is_called_first() -> None:
    nodes = [node(name, "A100", "A100", "A100", "A100") for name in ("empty", "half", "few")]
    fleet = Fleet(nodes, device(8))
    fleet.run(0, "half", devices=2)
    fleet.run(0, "few")
    for name in ("empty", "half", "few"):
        assert fleet.ask(name) is None
    fleet.come(0)
    assert fleet.called() == ["half"]


def test_the_smaller_of_two_equally_fast_machines_is_called_first() -> None:
    fleet = pair_and_singles(("",))
    for name in ("pair", "a", "b"):
        assert fleet.ask(name) is None
    fleet.come(0)
    assert fleet.called() == ["a"]


def test_limits_of_the_user_who_goes_first_do_not_hide_an_old_wide_job_of_another() -> None:
    fleet = pair_and_singles(("ada", "bob"))
    fleet.scheduler.set_policies({"bob": UserPolicy(most_devices=1)})
    fleet.run(0, "a")
    fleet.now_s = HOUR_S / 2
    fleet.come(1)
    fleet.come(2)
    assert fleet.ask("pair") == (1, StartReason.WIDE)


def test_a_forecast_does_not_count_jobs_that_wait_as_jobs_that_come() -> None:
    fleet = Fleet([node("fast", "RTX 4090", slots=1), node("slow", "RTX 3080", slots=1)], device(8))
    lease = fleet.run(0, "fast")
    assert fleet.ask("slow") is None
    fleet.now_s = 10 * MINUTE_S
    fleet.come(0)
    assert fleet.ask("slow") is None
    fleet.now_s = 30 * MINUTE_S
    assert fleet.ask("slow") is None
    expected = SnapshotForecast(take(fleet.scheduler, fleet.now_s, running=[(99, lease)])).of(1)
    assert expected is not None
    assert expected.start is not None
    assert expected.start.machine == "fast"


def test_a_user_at_a_limit_keeps_no_lower_priority_of_another_from_a_machine() -> None:
    fleet = Fleet(
        [node("fast", "RTX 4090", slots=1), node("slow", "RTX 3080", slots=1)], device(8), users=("ada", "bob")
    )
    fleet.scheduler.set_policies({"ada": UserPolicy(most_jobs=1)})
    fleet.run(0, "fast")
    fleet.come(0, priority=1)
    fleet.come(1)
    fleet.now_s = 3 * HOUR_S
    assert fleet.ask("slow") == (1, StartReason.OLDEST)


def test_a_job_waits_for_no_preferred_machine_whose_memory_another_program_has() -> None:
    fleet = Fleet([node("wanted", "RTX 4090", slots=1), node("other", "RTX 4090", slots=1)], device(8))
    fleet.scheduler.put_class(
        0, SchedulableJob(name="job", requirements=device(8)[0], preferred_hosts=("wanted",)), expected_s=HOUR_S
    )
    fleet.scheduler.measure("wanted", WorkerMeasurements(free_bytes={"wanted-0": GIB}))
    fleet.come(0)
    assert fleet.ask("wanted") is None
    assert fleet.ask("other") is not None
