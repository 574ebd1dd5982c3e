"""Machines that wait to be called: they are called when what they were refused for ends, and only then."""

from __future__ import annotations

from stoker.core.machine import DevicePreference, SchedulableJob, UserPolicy
from stoker.scheduler.calls import ANSWER_S
from stoker.scheduler.leases import HoldDecision, HoldReason, StartReason
from stoker.scheduler.machine_index import MatchableMachine
from stoker.scheduler.offers import offer_of
from tests.unit.scheduler.policy_fleet import Fleet, board, cpu, device, node


def test_a_machine_that_waits_stays_known_when_a_job_names_its_host() -> None:
    fleet = Fleet([node("a", "RTX 4090"), node("b", "RTX 4090")], device(8))
    assert fleet.ask("a") is None
    needs, _ = device(8)
    wanted = SchedulableJob(name="job", requirements=needs, preferred_hosts=("a",), allowed_hosts=("a", "b"))
    fleet.scheduler.put_class(7, wanted)
    fleet.come(7)
    assert fleet.called() == ["a"]
    assert fleet.ask("a") == (7, StartReason.OLDEST)


def test_a_machine_that_declined_something_lately_is_called_for_another_job() -> None:
    fleet = Fleet([node("only", "RTX 4090")], device(8))
    assert fleet.ask("only") is None
    fleet.scheduler.doubt("only", is_doubted=True)
    assert fleet.called() == []
    fleet.come(0)
    assert fleet.called() == ["only"]
    assert fleet.ask("only") == (0, StartReason.OLDEST)


def test_machines_that_declined_something_lately_are_called_last() -> None:
    fleet = Fleet([board("slow"), node("fast", "RTX 4090")], device(8, hours=None))
    assert fleet.ask("slow") is None
    assert fleet.ask("fast") is None
    fleet.scheduler.doubt("fast", is_doubted=True)
    fleet.come(0)
    assert fleet.called() == ["slow"]


def limited() -> Fleet:
    """Return two machines, of which the first runs a job of a user who may have one job at once; a third job runs."""
    fleet = Fleet([node("a", "RTX 4090"), node("b", "A100", "A100"), node("c")], device(8), cpu())
    fleet.scheduler.put_class(2, SchedulableJob(name="job", requirements=device(8, device_count=2)[0]), user="eve")
    fleet.scheduler.put_class(3, SchedulableJob(name="job", requirements=device(8)[0]), user="eve")
    fleet.scheduler.set_policies({"eve": UserPolicy(most_jobs=1)})
    fleet.run(1, "c", devices=0)
    return fleet


def test_a_machine_is_called_when_the_user_of_a_job_has_room_again() -> None:
    fleet = limited()
    running = fleet.run(3, "a")
    fleet.come(2)
    assert fleet.ask("b") is None
    assert fleet.called() == []
    fleet.scheduler.release(running, fleet.now_s)
    assert fleet.called() == ["b"]
    assert fleet.ask("b") == (2, StartReason.OLDEST)


def test_a_machine_is_called_when_the_limit_of_a_user_is_raised() -> None:
    fleet = limited()
    fleet.run(3, "a")
    fleet.come(2)
    assert fleet.ask("b") is None
    assert fleet.called() == []
    fleet.scheduler.set_policies({"eve": UserPolicy(most_jobs=2)})
    assert fleet.called() == ["b"]
    assert fleet.ask("b") == (2, StartReason.OLDEST)


def test_a_machine_that_ends_too_early_for_a_job_does_not_keep_a_slower_one_from_it() -> None:
    fleet = Fleet([board("slow")], device(8, hours=1))
    fleet.scheduler.put_machine(MatchableMachine(offer_of(node("fast", "RTX 4090")), ends_s=60.0))
    assert fleet.ask("slow") is None
    assert fleet.ask("fast") is None
    fleet.come(0)
    asked = []
    while called := fleet.called():
        asked += called
        assert len(asked) < 9, asked
        if any(fleet.start(name) for name in called):
            return
    message = f"the job did not start; asked: {asked}"
    raise AssertionError(message)


def better_one_is_kept() -> Fleet:
    """Return a pair, kept for a job of high priority, and a slow machine; a job fits a device of either."""
    nodes = [node("pair", "A100", "A100"), board("slow"), node("box")]
    fleet = Fleet(nodes, device(8, hours=None), device(8, device_count=2))
    fleet.run(0, "pair")
    fleet.now_s = 60.0
    for name in ("slow", "pair", "box"):
        assert fleet.ask(name) is None
    fleet.come(1, priority=5)
    fleet.come(0)
    return fleet


def test_a_machine_is_called_again_when_the_better_one_did_not_take_the_job() -> None:
    fleet = better_one_is_kept()
    hold = fleet.scheduler.choose("slow", fleet.now_s, tells=True)
    assert isinstance(hold, HoldDecision)
    assert hold.waiting[HoldReason.BETTER_FREE] == 1
    assert "pair" in fleet.called()
    assert fleet.ask("pair") is None
    assert "slow" in fleet.called()
    assert fleet.ask("slow") == (0, StartReason.OLDEST)


def test_a_machine_that_answered_a_call_is_not_called_again_for_nothing() -> None:
    fleet = Fleet([node("fast", "RTX 4090"), node("slow", "Jetson Nano", "Jetson Nano")], device(8, hours=1))
    fleet.run(0, "fast")
    running = fleet.run(0, "slow")
    fleet.come(0)
    assert fleet.ask("slow") is None
    assert fleet.called() == []
    fleet.scheduler.release(running, fleet.now_s)
    assert fleet.called() == ["slow"]
    assert fleet.ask("slow") is None
    fleet.now_s = ANSWER_S
    assert fleet.called() == []


def test_a_machine_is_called_for_the_device_that_it_refused_before() -> None:
    wanted = device(8, wish=DevicePreference.PREFER)
    fleet = Fleet([node("one", "RTX 4090", slots=1)], wanted)
    scheduler = fleet.scheduler
    assert fleet.ask("one") is None
    fleet.come(0)
    one = scheduler.ready.classes[0].type
    assert one.device_number is not None
    assert one.cpu_number is not None
    # It refused the job on its device, and its CPU is closed to jobs.
    table = scheduler.machines.machines["one"].table.number
    scheduler.waiting._refused[table] = 1 << one.device_number
    scheduler.machines.machines["one"].fits &= ~(1 << one.cpu_number)
    scheduler.waiting._call_some(table, one.bits, 1, {}, 0.0)
    assert scheduler.waiting._room[table] >> one.device_number & 1


def test_a_machine_that_waits_is_called_for_a_kind_of_job_that_is_new() -> None:
    fleet = Fleet([node("a", "RTX 4090")], device(8))
    assert fleet.ask("a") is None
    fleet.scheduler.put_class(7, SchedulableJob(name="job", requirements=device(9)[0]))
    fleet.come(7)
    assert fleet.called() == ["a"]


def test_a_job_is_left_to_a_preferred_machine_that_is_free_however_many_jobs_wait() -> None:
    fleet = Fleet([node("a", "RTX 4090"), node("b", "RTX 4090")], device(8, hours=None))
    needs, _ = device(8, hours=None)
    fleet.scheduler.put_class(7, SchedulableJob(name="job", requirements=needs, preferred_hosts=("b",)))
    assert fleet.ask("a") is None
    assert fleet.ask("b") is None
    fleet.come(7)
    fleet.come(0, 50)
    assert fleet.ask("a") == (0, StartReason.OLDEST)
    assert "b" in fleet.called()
    assert fleet.ask("b") == (7, StartReason.OLDEST)
