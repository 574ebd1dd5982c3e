"""What people and machines state reaches the scheduler's decisions: durations, progress, ends, shares and limits."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.coordinator.queue.commands import Declare, Sweep
from stoker.core.machine import Cluster, UserPolicy
from stoker.protocol.job_messages import SubmissionOutcome
from stoker.protocol.lease_messages import (
    CheckpointBody,
    Claim,
    ClaimResponse,
    Decline,
    Hello,
    LeaseReport,
    PointCheckpoint,
    Release,
    Renewal,
)
from stoker.scheduler.job_types import LEAST_PROGRESS_S
from stoker.scheduler.machine_index import MachineLease
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import SHA, TREE, say, token
from tests.contract.test_queue_scheduling import FAST, ON_DEVICE, SLOW, Called, ask, join, scheduler_of
from tests.unit.coordinator.fleets import box, card

HOUR_S = 3600.0
YEAR_S = 365 * 24 * HOUR_S


def stated(fleet: Driven) -> list[float | None]:
    """Return the durations that classes state."""
    classes = fleet.queue._writer._known().classes
    return sorted((kind.stated_s for kind in classes), key=lambda stated_s: stated_s or 0.0)


def lease_on(fleet: Driven, machine: str) -> MachineLease:
    (lease,) = scheduler_of(fleet).machines.machines[machine].leases
    return lease


def greet(fleet: Driven, name: str = "m1", device: str = "", **more: Any) -> None:
    found = box(name, *([card(f"GPU-{name}", name=device)] if device else []), ram_gib=64)
    said = {"worker": name, "incarnation": f"incarnation-{name}", "capability_digest": name, "slots": 4, **more}
    fleet.ask(Hello.model_validate({**said, "capability": found.to_dict()}))


# -- machines that lie or decline


def test_a_machine_that_declines_all_that_it_is_granted_keeps_no_job_from_others(fleet: Driven) -> None:
    join(fleet, "fast", FAST)
    join(fleet, "slow", SLOW)
    fleet.submit(*(order("sweep", number, requirements=ON_DEVICE, expected_s=60.0) for number in range(1, 4)))
    done = set()
    for _ in range(6):
        for grant in ask(fleet, "fast").grants:
            say(fleet, grant, Decline, reason="disk", message="full")
        for grant in ask(fleet, "slow").grants:
            done.add(grant.spec.number)
            fleet.finish(grant)
    assert done == {1, 2, 3}


def test_a_machine_that_calls_its_device_a_faster_one_gets_its_jobs_and_keeps_none_waiting_for_ever(
    fleet: Driven,
) -> None:
    join(fleet, "liar", FAST)
    join(fleet, "slow", SLOW)
    fleet.submit(order("first", requirements=ON_DEVICE, expected_s=60.0))
    (first,) = ask(fleet, "liar").grants
    fleet.start(first)
    fleet.submit(order("second", requirements=ON_DEVICE, expected_s=HOUR_S))
    assert ask(fleet, "slow").waiting == {"faster_machine": 1}
    # It takes a hundred times as long as it should.
    called = Called(fleet)
    for _ in range(20):
        fleet.clock.advance(HOUR_S)
        report(fleet, "liar", first)
        fleet.ask(Sweep())
        if called.take():
            break
    assert lease_on(fleet, "liar").started_s, "it still runs"
    assert [grant.spec.name for grant in ask(fleet, "slow").grants] == ["second"]


# -- stated durations


def test_a_job_whose_stated_time_is_long_waits_for_the_faster_machine_and_one_that_states_none_does_not(
    fleet: Driven,
) -> None:
    join(fleet, "fast", FAST)
    join(fleet, "slow", SLOW)
    fleet.submit(order("first", requirements=ON_DEVICE, expected_s=60.0))
    assert ask(fleet, "fast").grants
    fleet.submit(order("long", requirements=ON_DEVICE, expected_s=HOUR_S))
    assert ask(fleet, "slow").waiting == {"faster_machine": 1}
    fleet.submit(order("unknown", requirements=ON_DEVICE))
    assert [grant.spec.name for grant in ask(fleet, "slow").grants] == ["unknown"]


def test_jobs_that_state_another_time_are_another_class_also_after_a_restart(fleet: Driven) -> None:
    def jobs(number: int) -> list[Any]:
        times = {"a": 100.0, "b": 101.0, "c": 1000.0, "d": None}
        return [order(name, number, expected_s=time_s) for name, time_s in times.items()]

    fleet.submit(*jobs(1))
    told = stated(fleet)
    assert len(told) == 3, "durations that differ by a percent are one class"
    assert told == [None, pytest.approx(100.0, rel=0.05), pytest.approx(1000.0, rel=0.05)]
    fleet.close()
    fleet.open()
    assert stated(fleet) == told
    fleet.submit(*jobs(2))
    assert stated(fleet) == told
    expected = {scheduler_of(fleet).durations.expected_s(class_id) for class_id in scheduler_of(fleet).wanted}
    assert expected == set(told)


@pytest.mark.parametrize("wish", ["require", "prefer"])
@pytest.mark.parametrize("first", ["machine", "job"])
def test_a_time_is_stated_for_the_machine_if_a_job_allows_only_one(fleet: Driven, first: str, wish: str) -> None:
    """On its device, or on its CPU if it has none and the job only prefers a device."""
    job = order("one", requirements={**ON_DEVICE, "wish": wish}, allowed_hosts=("slow",), expected_s=HOUR_S)
    if first == "job":
        fleet.submit(job)
    join(fleet, "slow", SLOW if wish == "require" else "")
    if first == "machine":
        fleet.submit(job)
    fleet.ask(Sweep())
    assert ask(fleet, "slow").grants
    lease = lease_on(fleet, "slow")
    assert lease.work_rate != 1.0
    assert lease.until_s - lease.started_s == pytest.approx(HOUR_S, rel=0.06)


def test_a_job_that_allows_several_machines_states_a_time_on_a_device_of_speed_1(fleet: Driven) -> None:
    join(fleet, "slow", SLOW)
    fleet.submit(order("one", requirements=ON_DEVICE, allowed_hosts=("slow", "other"), expected_s=HOUR_S))
    assert ask(fleet, "slow").grants
    lease = lease_on(fleet, "slow")
    assert (lease.until_s - lease.started_s) * lease.work_rate == pytest.approx(HOUR_S, rel=0.06)


def test_a_waiting_job_that_is_submitted_with_another_time_has_that_one(fleet: Driven) -> None:
    join(fleet, "m1")
    fleet.submit(order("one", expected_s=100.0))
    (job,) = fleet.submit(order("one", expected_s=1000.0)).jobs
    assert (job.outcome, job.changes) == (SubmissionOutcome.CHANGED, ("expected_s",))
    assert ask(fleet, "m1").grants
    lease = lease_on(fleet, "m1")
    assert lease.until_s - lease.started_s == pytest.approx(1000.0, rel=0.06)


def test_measured_times_count_before_a_stated_one(fleet: Driven) -> None:
    join(fleet, "m1")
    fleet.submit(*(order("sweep", number, expected_s=HOUR_S) for number in range(1, 5)))
    for _ in range(3):
        fleet.finish(*ask(fleet, "m1").grants)
    assert ask(fleet, "m1").grants
    lease = lease_on(fleet, "m1")
    assert lease.until_s - lease.started_s == pytest.approx(61.0, rel=0.06)


# -- progress


def report(fleet: Driven, machine: str, grant: Any, **progress: Any) -> None:
    said = LeaseReport(job=grant.job, **token(grant), **progress)
    fleet.ask(Renewal(worker=machine, incarnation=f"incarnation-{machine}", leases=(said,)))


def test_progress_of_a_running_job_decides_whether_others_wait_for_its_machine(fleet: Driven) -> None:
    join(fleet, "fast", FAST)
    join(fleet, "slow", SLOW)
    fleet.submit(order("first", requirements=ON_DEVICE, expected_s=100 * HOUR_S))
    (first,) = ask(fleet, "fast").grants
    fleet.start(first)
    fleet.submit(order("second", requirements=ON_DEVICE, expected_s=HOUR_S))
    fleet.clock.advance(60.0)
    report(fleet, "fast", first, step=90, of=100)
    lease = lease_on(fleet, "fast")
    assert lease.until_s - fleet.queue._writer._known().time.now_s() == pytest.approx(7.0, abs=1.0)
    assert ask(fleet, "slow").waiting == {"faster_machine": 1}
    report(fleet, "fast", first, step=1, of=30)
    assert lease.until_s - lease.started_s == pytest.approx(30 * 62, rel=0.1)
    fleet.clock.advance(100 * HOUR_S)
    report(fleet, "fast", first, step=3, of=100)
    assert [grant.spec.name for grant in ask(fleet, "slow").grants] == ["second"]


def test_progress_without_a_start_or_without_an_end_says_nothing(fleet: Driven) -> None:
    join(fleet, "m1")
    fleet.submit(order("one", expected_s=1000.0))
    (grant,) = ask(fleet, "m1").grants
    before_s = lease_on(fleet, "m1").until_s
    report(fleet, "m1", grant, step=9, of=10)
    assert lease_on(fleet, "m1").until_s == before_s, "it is being prepared"
    fleet.start(grant)
    before_s = lease_on(fleet, "m1").until_s
    for progress in ({"step": 5}, {"of": 5}, {"step": 0, "of": 5}, {"step": 1, "of": 1000}):
        report(fleet, "m1", grant, **progress)
    assert lease_on(fleet, "m1").until_s == before_s


@pytest.mark.parametrize(
    ("step", "of"), [(10**400, 1), (1, 10**400), (-5, 10), (5, -10), (10**400, 10**401), (2**70, 2**71)], ids=str
)
def test_wild_progress_is_harmless(fleet: Driven, step: int, of: int) -> None:
    join(fleet, "m1")
    fleet.submit(order("one", expected_s=1000.0), order("two"))
    (grant,) = ask(fleet, "m1").grants
    fleet.start(grant)
    fleet.clock.advance(100.0)
    for _ in range(3):
        report(fleet, "m1", grant, step=step, of=of)
        report(fleet, "m1", grant, step=1, of=1)
    lease, now_s = lease_on(fleet, "m1"), fleet.queue._writer._known().time.now_s()
    assert now_s - 10.0 <= lease.until_s <= now_s + 50 * 120.0
    fleet.finish(grant)
    assert [grant.spec.name for grant in ask(fleet, "m1").grants] == ["two"]


# -- machines that go away


def test_a_job_that_would_end_too_late_is_not_granted_to_a_machine_that_goes_away(fleet: Driven) -> None:
    greet(fleet, ends_in_s=600.0)
    fleet.submit(order("long", expected_s=HOUR_S))
    assert ask(fleet, "m1").waiting == {"machine_ends": 1}
    fleet.submit(order("short", expected_s=60.0), order("unknown"))
    assert {ask(fleet, "m1").grants[0].spec.name for _ in range(2)} == {"short", "unknown"}
    fleet.clock.advance(600.0)
    fleet.submit(order("late"))
    assert ask(fleet, "m1").waiting == {"machine_ends": 2}


def test_a_job_that_has_saved_a_checkpoint_starts_where_it_does_not_end(fleet: Driven) -> None:
    fleet.submit(order("long", expected_s=HOUR_S), order("other", expected_s=HOUR_S, priority=-1))
    greet(fleet, "stays", ends_in_s=2 * HOUR_S)
    (grant,) = ask(fleet, "stays").grants
    fleet.start(grant)
    body = CheckpointBody(scratch="c" * 64, tree=TREE, archive_sha256=SHA, size_bytes=10, step=7)
    for step in (7, 8):
        say(fleet, grant, PointCheckpoint, checkpoint=body.model_copy(update={"step": step}))
    say(fleet, grant, Release, why="drained")
    # What the class of the job is outlives the coordinator.
    fleet.close()
    fleet.open()
    greet(fleet, ends_in_s=LEAST_PROGRESS_S - 10.0)
    assert ask(fleet, "m1").waiting == {"machine_ends": 2}
    greet(fleet, ends_in_s=600.0)
    (again,) = ask(fleet, "m1").grants
    assert (again.spec.name, again.checkpoint is not None) == ("long", True)
    assert ask(fleet, "m1").waiting == {"machine_ends": 1}, "the other one has saved nothing"


def test_a_job_that_a_machine_has_no_time_for_is_granted_elsewhere(fleet: Driven) -> None:
    greet(fleet, "leaves", FAST, ends_in_s=600.0)
    greet(fleet, "stays", SLOW)
    for name in ("leaves", "stays"):
        assert not ask(fleet, name).grants
    called = Called(fleet)
    fleet.submit(order("long", requirements=ON_DEVICE, expected_s=HOUR_S))
    for _ in range(3):
        for name in sorted(called.take()):
            if (answer := ask(fleet, name)).grants:
                assert name == "stays"
                return
            assert answer.waiting == {"machine_ends": 1}
    pytest.fail("nobody got the job")


def test_the_end_of_a_machine_outlives_the_coordinator_and_ends_with_another_hello(fleet: Driven) -> None:
    greet(fleet, ends_in_s=600.0)
    fleet.submit(order("long", expected_s=HOUR_S))
    fleet.close()
    fleet.open()
    # Not a word of its end: its row has it.
    claim = Claim(request_id="request-again", worker="m1", incarnation="incarnation-m1")
    answer = fleet.ask(claim)
    assert isinstance(answer, ClaimResponse)
    assert answer.waiting == {"machine_ends": 1}
    greet(fleet)
    assert ask(fleet, "m1").grants


def test_the_end_of_a_machine_is_listed_and_counts_from_when_it_says_hello(fleet: Driven) -> None:
    greet(fleet, ends_in_s=600.0, declared={"cores": 2, "ends_s": "never", "accepts": 7})
    (row,) = fleet.reader.machines()
    assert row.ends_s == fleet.clock.wall_s() + 600.0
    assert row.declared == {"cores": 2, "ends_s": row.ends_s}
    greet(fleet, declared={"ends_s": "never"})
    (row,) = fleet.reader.machines()
    assert row.ends_s is None


def claim_with(fleet: Driven, left_s: float, request_id: str) -> ClaimResponse:
    """Let m1 ask, and say how long it stays."""
    asked = Claim(request_id=request_id, worker="m1", incarnation="incarnation-m1", ends_in_s=left_s)
    answer = fleet.ask(asked)
    assert isinstance(answer, ClaimResponse)
    return answer


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S, 3 * HOUR_S])
def test_a_jump_of_the_clock_ends_no_machine_for_longer_than_until_it_says_how_long_it_stays(
    fleet: Driven, jump_s: float
) -> None:
    greet(fleet, ends_in_s=2 * HOUR_S)
    fleet.submit(order("one", expected_s=HOUR_S), order("two", expected_s=HOUR_S), order("long", expected_s=9 * HOUR_S))
    fleet.clock.jump(jump_s)
    assert [grant.spec.name for grant in claim_with(fleet, 2 * HOUR_S, "request-1").grants] == ["one"]
    fleet.clock.jump(jump_s)
    fleet.ask(Renewal(worker="m1", incarnation="incarnation-m1", ends_in_s=2 * HOUR_S))
    (row,) = fleet.reader.machines()
    now_s = fleet.queue._writer._known().time.now_s()
    assert row.ends_s == pytest.approx(now_s + 2 * HOUR_S, abs=10.0)
    claim = Claim(request_id="request-2", worker="m1", incarnation="incarnation-m1")
    answer = fleet.ask(claim)
    assert isinstance(answer, ClaimResponse)
    assert [grant.spec.name for grant in answer.grants] == ["two"], "its heartbeat said how long it stays"
    assert claim_with(fleet, 2 * HOUR_S, "request-3").waiting == {"machine_ends": 1}


def test_a_jump_of_the_clock_is_no_time_that_jobs_take_and_ends_nothing_that_is_expected(fleet: Driven) -> None:
    join(fleet, "m1", FAST)
    fleet.submit(*(order("one", number, requirements=ON_DEVICE, expected_s=HOUR_S) for number in range(5)))
    lasts_s = HOUR_S / 2.0
    for _ in range(3):
        (grant,) = ask(fleet, "m1").grants
        fleet.start(grant)
        fleet.clock.jump(YEAR_S)
        report(fleet, "m1", grant, step=1, of=100)
        lease, now_s = lease_on(fleet, "m1"), fleet.queue._writer._known().time.now_s()
        assert lease.until_s - now_s == pytest.approx(lasts_s, rel=0.05)
        fleet.clock.advance(lasts_s)
        fleet.finish(grant)
    assert ask(fleet, "m1").grants
    assert lease_on(fleet, "m1").type.expected_s == pytest.approx(HOUR_S, rel=0.2)


def test_a_machine_that_says_it_stays_for_less_than_it_said_gets_no_job_that_takes_longer(fleet: Driven) -> None:
    greet(fleet, ends_in_s=2 * HOUR_S)
    fleet.submit(order("one", expected_s=HOUR_S))
    assert claim_with(fleet, 600.0, "request-1").waiting == {"machine_ends": 1}
    (row,) = fleet.reader.machines()
    assert row.ends_s == pytest.approx(fleet.clock.wall_s() + 600.0, abs=10.0)


# -- users


def limit(fleet: Driven, **users: UserPolicy) -> None:
    policies = {"*" if name == "others" else name: policy for name, policy in users.items()}
    fleet.ask(Declare(cluster=Cluster(nodes=(), users=policies)))


def test_a_user_gets_no_more_jobs_than_the_cluster_file_allows_until_it_allows_more(fleet: Driven) -> None:
    limit(fleet, ada=UserPolicy(most_jobs=1))
    greet(fleet)
    fleet.submit(*(order("hers", number) for number in range(1, 4)), submitter="ada (ada@laptop)")
    assert ask(fleet, "m1").grants
    assert ask(fleet, "m1").waiting == {"user_limit": 2}
    fleet.submit(order("his"), submitter="bob")
    assert [grant.spec.name for grant in ask(fleet, "m1").grants] == ["his"]
    called = Called(fleet)
    limit(fleet, ada=UserPolicy(most_jobs=2))
    assert called.take() == {"m1"}
    assert ask(fleet, "m1").grants
    assert ask(fleet, "m1").waiting == {"user_limit": 1}
    fleet.ask(Declare(cluster=None))
    assert ask(fleet, "m1").grants, "no file, no limits"


def test_users_without_an_entry_have_the_limits_of_the_star(fleet: Driven) -> None:
    limit(fleet, others=UserPolicy(most_devices=1), ada=UserPolicy(weight=2.0))
    found = box("m1", card("GPU-1"), card("GPU-2"), card("GPU-3"), ram_gib=64)
    fleet.ask(
        Hello(worker="m1", incarnation="incarnation-m1", capability=found.to_dict(), capability_digest="m1", slots=4)
    )
    for name, submitter in (("his", "bob"), ("hers", "ada")):
        fleet.submit(*(order(name, number, requirements=ON_DEVICE) for number in (1, 2)), submitter=submitter)
    names = sorted(ask(fleet, "m1").grants[0].spec.name for _ in range(3))
    assert names == ["hers", "hers", "his"]


def test_a_user_of_twice_the_weight_gets_twice_as_much(fleet: Driven) -> None:
    limit(fleet, ada=UserPolicy(weight=2.0))
    join(fleet, "m1")
    for name, submitter in (("his", "bob"), ("hers", "ada")):
        fleet.submit(*(order(name, number) for number in range(1, 13)), submitter=submitter)
    names = []
    for _ in range(12):
        (grant,) = ask(fleet, "m1").grants
        names.append(grant.spec.name)
        fleet.finish(grant)
    assert (names.count("hers"), names.count("his")) == (8, 4)


def test_what_the_cluster_file_allows_users_holds_after_the_rows_were_read_again(fleet: Driven) -> None:
    limit(fleet, ada=UserPolicy(most_jobs=1))
    writer = fleet.queue._writer
    writer._old, writer._book = writer._book, None
    greet(fleet)
    fleet.submit(*(order("hers", number) for number in range(1, 4)), submitter="ada")
    assert ask(fleet, "m1").grants
    assert ask(fleet, "m1").waiting == {"user_limit": 2}


def test_a_user_has_one_share_whatever_its_programs_call_themselves(fleet: Driven) -> None:
    join(fleet, "m1")
    for at, submitter in enumerate(("ada (ada@laptop)", "ada (ada@desk)", "ada"), 1):
        fleet.submit(order("hers", at), submitter=submitter)
    fleet.submit(order("his"), submitter="bob@desk")
    fleet.submit(order("others"), submitter="local user (ada)")
    users = {kind.user for kind in fleet.queue._writer._known().classes}
    assert users == {"ada", "bob@desk", "local user (ada)"}


def test_lists_of_jobs_say_which_limit_of_their_user_jobs_wait_for(fleet: Driven) -> None:
    join(fleet, "m1", FAST)
    join(fleet, "m2", FAST)
    policies = {"ada": UserPolicy(most_jobs=1), "eve": UserPolicy(most_devices=0)}
    fleet.ask(Declare(cluster=Cluster(nodes=(), users=policies)))
    fleet.submit(order("one"), order("two"), submitter="ada")
    fleet.submit(order("device", requirements=ON_DEVICE), order("cpu"), submitter="eve")
    fleet.submit(order("late"), submitter="bob")
    (grant,) = ask(fleet, "m1").grants
    assert grant.spec.name == "one"
    told = {job.name: job.why for job in fleet.reader.page(state="pending").jobs}
    free = "waits for a machine"
    ada, eve = "waits: limit of user ada (1 job at once)", "waits: limit of user eve (0 devices at once)"
    assert told == {"two": ada, "device": eve, "cpu": free, "late": free}
    assert fleet.reader.story("two").job.why == ada
    fleet.finish(grant)
    assert fleet.reader.story("two").job.why == free


@pytest.mark.parametrize("name", ["NVIDIA A100 MIG 0g.10gb", "NVIDIA A100 MIG 9g.10gb", "", "\u0660g.10gb", "x" * 200])
def test_a_machine_whose_device_names_itself_as_it_likes_gets_jobs_and_harms_no_other(fleet: Driven, name: str) -> None:
    join(fleet, "m1", FAST)
    hello = box("odd", card("GPU-odd", name=name), ram_gib=64)
    said = Hello(
        worker="odd", incarnation="incarnation-odd", capability=hello.to_dict(), capability_digest="odd", slots=1
    )
    fleet.ask(said)
    fleet.submit(*(order("one", number, requirements=ON_DEVICE, expected_s=HOUR_S) for number in range(4)))
    assert ask(fleet, "m1").grants
    for _ in range(3):
        assert ask(fleet, "odd").generation == 1
    (device,) = fleet.queue._writer._known().scheduler.machines.machines["odd"].offer.devices
    assert 0.0 < device.speed <= 5.0
