"""How attempts end, what that costs a job, and how long leases last."""

from __future__ import annotations

import pytest

from stoker.coordinator.database.database import open_database
from stoker.coordinator.queue.commands import Sweep
from stoker.coordinator.queue.writer import Queue
from stoker.core.errors import InvalidTransition
from stoker.core.leases import Budgets, FleetTimes
from stoker.protocol.lease_messages import (
    CheckpointBody,
    Claim,
    ClaimResponse,
    Decline,
    Fail,
    LeaseReport,
    PointCheckpoint,
    Release,
    Renewal,
    WriteResponse,
)
from stoker.scheduler.scheduler import Scheduler
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import (
    LATE_S,
    SHA,
    TREE,
    finish,
    hello_anew,
    kinds,
    lose,
    renewed,
    say,
    started,
    state,
    sweep,
    token,
)


def test_a_decline_costs_nothing_and_that_machine_is_not_asked_again_for_a_while(fleet: Driven) -> None:
    fleet.submit(order("one"), order("two"))
    fleet.join("m1", "m2")
    (grant,) = fleet.claim("m1")
    assert say(fleet, grant, Decline, reason="disk", message="2 GB free").state == "pending"
    assert [one.spec.name for one in fleet.claim("m1", most=2)] == ["two"]
    (elsewhere,) = fleet.claim("m2")
    assert elsewhere.spec.name == "one"
    say(fleet, elsewhere, Release)
    fleet.clock.advance(61.0)
    assert [one.spec.name for one in fleet.claim("m1")] == ["one"]
    story = fleet.reader.story("one")
    assert story.counts.get("user", 0) == 0
    assert story.attempts[0].ending == "declined"


def test_a_job_that_is_another_one_now_is_offered_to_who_declined_it(fleet: Driven) -> None:
    fleet.submit(order("one"))
    fleet.join("m1")
    (grant,) = fleet.claim("m1")
    say(fleet, grant, Decline, reason="environment", message="no Python that is 3.15", lasts=True)
    assert fleet.submit(order("one", priority=5)).jobs[0].outcome == "changed"
    assert fleet.claim("m1") == (), "another priority cures nothing"
    assert fleet.submit(order("one", priority=5, timeout_s=60.0)).jobs[0].outcome == "changed"
    assert [one.spec.name for one in fleet.claim("m1")] == ["one"]


def test_a_running_job_can_not_be_declined(fleet: Driven) -> None:
    grant = started(fleet)
    with pytest.raises(InvalidTransition):
        say(fleet, grant, Decline, reason="disk")


def test_a_release_costs_nothing_and_hands_the_checkpoint_on(fleet: Driven) -> None:
    grant = started(fleet)
    body = CheckpointBody(scratch="c" * 64, tree=TREE, archive_sha256=SHA, size_bytes=10, step=7)
    say(fleet, grant, PointCheckpoint, checkpoint=body)
    say(fleet, grant, Release, why="drained")
    fleet.join("m2")
    (again,) = fleet.claim("m2")
    assert again.checkpoint == body
    assert (again.attempt, again.epoch) == (2, 2)


def test_a_job_is_tried_again_after_a_pause_until_its_attempts_are_used_up(fleet: Driven) -> None:
    grant = started(fleet, attempts=2)
    assert say(fleet, grant, Fail, cause="user", message="boom").state == "pending"
    assert fleet.claim() == ()
    fleet.clock.advance(10.0)
    assert sweep(fleet).readied == 1
    (again,) = fleet.claim()
    fleet.start(again)
    assert say(fleet, again, Fail, cause="user", message="boom").state == "failed"
    assert kinds(fleet)[-1] == "job_failed"


@pytest.mark.parametrize(
    ("cause", "after"), [("user", "failed"), ("input", "failed"), ("preempted", "pending"), ("lost", "pending")]
)
def test_what_follows_a_failure_depends_on_its_cause(fleet: Driven, cause: str, after: str) -> None:
    assert say(fleet, started(fleet), Fail, cause=cause).state == after


def test_a_job_is_given_up_when_its_worker_was_lost_three_times(fleet: Driven) -> None:
    grant = started(fleet)
    for _ in range(2):
        lose(fleet, grant)
        fleet.clock.advance(60.0)
        sweep(fleet)
        (grant,) = fleet.claim()
        fleet.start(grant)
    lose(fleet, grant)
    job = fleet.reader.story("one").job
    assert job.state == "failed"
    assert job.why.startswith("lost")


def test_a_job_under_which_two_workers_went_away_is_poison(fleet: Driven) -> None:
    lose(fleet, started(fleet))
    fleet.join("m2")
    (again,) = fleet.claim("m2")
    fleet.start(again)
    lose(fleet, again)
    assert fleet.reader.story("one").job.why.startswith("poison")


def test_workers_that_never_started_a_job_do_not_make_it_poison(fleet: Driven) -> None:
    fleet.submit(order("one"))
    for machine in ("m1", "m2"):
        fleet.join(machine)
        (grant,) = fleet.claim(machine)
        lose(fleet, grant)
        fleet.clock.advance(60.0)
        sweep(fleet)
    assert state(fleet) == "pending"


def test_a_granted_job_that_does_not_start_goes_back(fleet: Driven) -> None:
    fleet.submit(order("one"))
    fleet.join("m1")
    fleet.clock.advance(LATE_S)
    (grant,) = fleet.claim()
    fleet.clock.advance(60.0)
    renewed(fleet, grant)
    assert sweep(fleet).expired == ()
    fleet.clock.advance(60.0)
    renewed(fleet, grant)
    assert sweep(fleet).expired == (grant.job,)
    assert state(fleet) == "pending"


def test_a_start_is_waited_for_as_long_as_more_of_the_checkpoint_comes_and_no_longer(fleet: Driven) -> None:
    fleet.submit(order("one"))
    fleet.join("m1")
    fleet.clock.advance(LATE_S)
    (grant,) = fleet.claim()
    for prepared in (10, 20, 30, 40):
        fleet.clock.advance(60.0)
        fleet.renew(grant, prepared=prepared)
        assert sweep(fleet).expired == ()
    fleet.clock.advance(60.0)
    fleet.renew(grant, prepared=40)
    assert sweep(fleet).expired == ()
    fleet.clock.advance(30.0)
    fleet.renew(grant, prepared=40)
    assert sweep(fleet).expired == (grant.job,)
    assert "no progress of its preparation" in fleet.reader.story("one").attempts[-1].message


def test_a_lease_lasts_as_long_as_its_worker_renews_it(fleet: Driven) -> None:
    grant = started(fleet)
    for _ in range(20):
        fleet.clock.advance(80.0)
        assert renewed(fleet, grant).orders == ()
        assert sweep(fleet).expired == ()
    # A renewal lasts for the lease and the grace, 93 s; every question here takes a second.
    fleet.clock.advance(90.0)
    assert sweep(fleet).expired == ()
    assert sweep(fleet).expired == (grant.job,)


def test_a_worker_that_says_its_process_is_dead_does_not_keep_the_lease(fleet: Driven) -> None:
    grant = started(fleet)
    fleet.clock.advance(LATE_S)
    report = LeaseReport(job=grant.job, **token(grant), is_alive=False)
    fleet.ask(Renewal(worker="m1", incarnation="incarnation-m1", leases=(report,)))
    assert sweep(fleet).expired == (grant.job,)


def test_progress_that_a_heartbeat_brings_is_seen_once_it_is_written_down(fleet: Driven) -> None:
    grant = started(fleet)
    fleet.renew(grant, step=3, of=10, metrics={"loss": 0.5}, says="training")
    fleet.clock.advance(2.0)
    sweep(fleet)
    job = fleet.reader.story("one").job
    assert (job.step, job.of, job.metrics, job.says) == (3, 10, {"loss": 0.5}, "training")


def test_nothing_expires_until_every_worker_had_a_whole_lease_after_a_start(fleet: Driven) -> None:
    grant = started(fleet)
    fleet.close()
    fleet.clock.advance(10 * LATE_S)
    fleet.open()
    assert fleet.queue.pace().settling_s == pytest.approx(93.0)
    fleet.clock.advance(85.0)
    assert sweep(fleet).expired == ()
    assert renewed(fleet, grant).orders == ()
    fleet.clock.advance(85.0)
    assert sweep(fleet).expired == ()
    assert fleet.ask(finish(grant)) == WriteResponse(job=grant.job, state="completed")


def test_leases_end_after_a_start_if_nobody_speaks_for_them(fleet: Driven) -> None:
    grant = started(fleet)
    fleet.close()
    fleet.open()
    fleet.clock.advance(130.0)
    assert sweep(fleet).expired == (grant.job,)


@pytest.mark.parametrize("jump_s", [100_000.0, -100_000.0], ids=["forward", "back"])
def test_no_jump_of_the_wall_clock_ends_a_lease_or_turns_time_back(fleet: Driven, jump_s: float) -> None:
    grant = started(fleet)
    fleet.clock.advance(LATE_S)
    renewed(fleet, grant)
    fleet.clock.jump(jump_s)
    assert sweep(fleet).expired == ()
    fleet.ask(finish(grant))
    times = [event["ts"] for event in fleet.reader.events()]
    assert times == sorted(times)


def test_time_does_not_go_back_over_a_restart(fleet: Driven) -> None:
    started(fleet)
    fleet.close()
    fleet.clock.jump(-100_000.0)
    fleet.open()
    fleet.submit(order("two"))
    times = [event["ts"] for event in fleet.reader.events()]
    assert times == sorted(times)


def test_not_even_a_grant_expires_while_the_coordinator_settles(fleet: Driven) -> None:
    fleet.submit(order("one"))
    fleet.close()
    database = open_database(fleet.url, clock=fleet.clock)
    queue = Queue(
        database,
        clock=fleet.clock,
        times=FleetTimes(start_s=10.0),
        budgets=Budgets(),
        scheduler=Scheduler(),
        has_object=lambda _: None,
        sweep_every_s=None,
    )
    try:
        queue.ask(hello_anew())
        granted = queue.ask(Claim(request_id="request-x", worker="m1", incarnation="incarnation-new"))
        assert isinstance(granted, ClaimResponse)
        fleet.clock.advance(80.0)
        assert queue.ask(Sweep()).expired == ()  # type: ignore[union-attr]
        fleet.clock.advance(30.0)
        assert queue.ask(Sweep()).expired == (granted.grants[0].job,)  # type: ignore[union-attr]
    finally:
        # A queue left open would keep the database from every test after this one.
        queue.close()
        database.close()
    fleet.open()
