"""Why a job is where it is: the verdict, who has what until when, when it may start, what would change that."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.coordinator.explained_case import (
    Fleet,
    JobExplainContext,
    LeaseHolder,
    MachineDecline,
    Prerequisite,
    case_of_order,
)
from stoker.coordinator.explained_verdict import Explainer
from stoker.core.device import GIB
from stoker.core.frozen import changed
from stoker.core.job import JobSpec
from stoker.core.machine import DevicePreference, Requirements, SchedulableJob
from stoker.protocol.view_messages import JobExplanation, JobView
from stoker.scheduler.simulation.forecast import ExpectedStart, JobForecast, MachineHold
from tests.unit.coordinator.fleets import Driven, box, card, cpu_job, gpu_job

NOW_S = 1_000_000.0


def view(**said: Any) -> JobView:
    plain: dict[str, Any] = {"priority": 0, "epoch": 0, "attempt": 0, "submitted_s": NOW_S, "changed_s": NOW_S}
    return JobView(id="0" * 64, **(plain | {"name": "resnet/3", "recipe": "vision/resnet", "state": "pending"} | said))


def told(wanted: SchedulableJob, fleet: Fleet, **said: Any) -> JobExplanation:
    plain: dict[str, Any] = {"job": view(), "ahead": 0}
    return Explainer(fleet, now_s=NOW_S).explain(JobExplainContext(wanted=wanted, **(plain | said)))


def expected(machine: str, start_s: float = 0.0, *held_back: MachineHold, **more: Any) -> JobForecast:
    """What a forecast says: the job starts there and then, and takes a minute."""
    start = ExpectedStart(machine=machine, start_s=start_s, end_s=start_s + 60.0, why="oldest")
    return JobForecast(start=changed(start, **more), held_back=held_back)


def busy(*, ends_s: float | None = NOW_S + 600) -> Fleet:
    """A desk whose one card somebody has to himself."""
    driven = Driven(box("desk", card("GPU-1")))
    driven.wait(1, gpu_job(10))
    allocation = driven.grant("desk").allocation
    holder = LeaseHolder(
        job="resnet/1", wanted=gpu_job(10), devices=allocation.devices, ends_s=ends_s, based_on="12 runs"
    )
    return Fleet(offers=driven.offers, holders={"desk": [holder]})


def test_who_waits_for_a_busy_machine_is_told_who_has_it_and_until_when():
    found = told(gpu_job(6), busy(), based_on="median of 12 runs", forecast=expected("desk", 600.0))
    assert found.verdict == (
        "pending, queue position 1: expected on desk in about 10m00s. desk: taken by resnet/1 for about 10m00s"
    )
    assert (found.place_in_line, found.ahead, found.starts_s) == (1, 0, NOW_S + 600)
    assert found.based_on == "median of 12 runs"
    (row,) = found.machines
    assert row["held"][0] == row["devices"][0]["held"][0]
    assert (row["held"][0]["job"], row["held"][0]["until_s"]) == ("resnet/1", NOW_S + 600)
    assert row["devices"][0]["obstacle"]["code"] == "held_alone"


def test_sharing_is_proposed_with_its_numbers():
    assert (
        "starts now if jobs may share desk (needs 6.0 GiB, 10.4 GiB left of 20.4 GiB usable)"
        in told(gpu_job(6), busy()).changes
    )


def test_nobody_knows_when_it_starts_if_nobody_knows_when_others_end():
    found = told(gpu_job(6), busy(ends_s=None))
    assert (found.starts_s, found.verdict) == (None, "pending, queue position 1. desk: taken by resnet/1")


def test_a_busy_machine_that_leaves_too_early_is_not_waited_for():
    leaving = changed(busy(ends_s=None), ends_s={"desk": NOW_S + 540.0})
    found = told(gpu_job(6), leaving, takes_s=7200.0)
    assert found.verdict == "pending, queue position 1. desk: 9m00s left, needs 2h00m"
    short = told(gpu_job(6), leaving, takes_s=500.0)
    assert short.verdict == "pending, queue position 1. desk: taken by resnet/1"
    saved = told(changed(gpu_job(6), has_checkpoint=True), leaving, takes_s=7200.0)
    assert saved.verdict == "pending, queue position 1. desk: taken by resnet/1"


def test_the_time_that_a_job_declares_is_shown_and_not_a_rounded_one():
    hold = MachineHold(machine="desk", reason="machine_ends", end_s=7020.0, left_s=540.0)
    found = told(
        cpu_job(), Fleet(offers=Driven(box("desk")).offers), takes_s=7200.0, forecast=JobForecast(held_back=(hold,))
    )
    assert [row.text for row in found.held_back] == ["9m00s left, needs 2h00m"]


def test_a_start_that_rests_on_a_guess_has_no_time():
    found = told(gpu_job(6), busy(ends_s=None), forecast=expected("desk", 600.0, is_start_known=False))
    assert found.verdict == "pending, queue position 1: expected on desk. desk: taken by resnet/1"
    assert found.expected is not None
    assert (found.starts_s, found.expected.machine, found.expected.starts_s) == (None, "desk", None)


def test_a_start_that_is_further_away_than_the_forecast_goes_has_a_bound():
    found = told(gpu_job(6), busy(), forecast=JobForecast(not_before_s=7200.0))
    assert found.verdict == "pending, queue position 1: starts in more than 2h00m"
    assert found.expected is not None
    assert (found.starts_s, found.expected.not_before_s) == (None, NOW_S + 7200.0)


def test_a_job_that_waits_for_a_faster_machine_is_told_when_it_would_end_on_both():
    held = MachineHold(machine="board1", reason="faster_machine", end_s=7800.0)
    found = told(gpu_job(6), busy(), forecast=expected("desk", 600.0, held, end_s=2400.0))
    assert found.verdict == (
        "pending, queue position 1, for desk: done there in about 40m00s, on board1, which is free, in 2h10m"
    )
    (row,) = found.held_back
    assert (row.machine, row.reason, row.ends_s) == ("board1", "faster_machine", NOW_S + 7800.0)


def test_a_machine_with_room_that_is_left_to_others_is_named_with_the_reason():
    held = MachineHold(machine="big", reason="left_to_others")
    found = told(gpu_job(6), busy(), forecast=expected("desk", 600.0, held))
    assert found.verdict == (
        "pending, queue position 1: expected on desk in about 10m00s; big is free, but it is left to jobs that need it"
    )


def test_a_job_that_starts_nowhere_though_there_is_room_says_why():
    fleet = Fleet(offers=Driven(box("desk")).offers)
    held = MachineHold(machine="desk", reason="machine_ends", end_s=7800.0)
    found = told(cpu_job(), fleet, ahead=4, forecast=JobForecast(held_back=(held,)))
    assert found.verdict == "pending, queue position 5: desk is free, but it leaves before the job would end"
    assert found.changes == ()
    held = changed(held, left_s=2280.0)
    found = told(cpu_job(), fleet, ahead=4, forecast=JobForecast(held_back=(held,)))
    assert found.verdict == "pending, queue position 5: desk: 38m00s left, needs 2h10m"
    assert [row.text for row in found.held_back] == ["38m00s left, needs 2h10m"]
    saved = changed(cpu_job(), has_checkpoint=True)
    found = told(saved, fleet, ahead=4, forecast=JobForecast(held_back=(changed(held, left_s=60.0),)))
    assert [row.text for row in found.held_back] == ["1m00s left, needs 2m00s to continue from its checkpoint"]


def test_a_higher_priority_is_proposed_only_where_the_order_alone_is_in_the_way():
    fleet = Fleet(offers=Driven(box("desk")).offers)
    faster = MachineHold(machine="desk", reason="faster_machine", end_s=7800.0)
    behind = MachineHold(machine="desk", reason="order", first=7)
    text = "starts now if its priority is above that of the job ahead (stoker jobs priority resnet/3)"
    for held, changes in ((faster, ()), (behind, (text,))):
        assert told(cpu_job(), fleet, ahead=1, forecast=expected("lab", 600.0, held)).changes == changes


def test_the_job_that_goes_first_is_named():
    held = MachineHold(machine="lab", reason="order", first=7)
    found = told(gpu_job(6), busy(), ahead=1, forecast=expected("desk", 600.0, held), names={7: "resnet/1"})
    assert [row.text for row in found.held_back] == ["resnet/1 starts first there"]


def test_a_job_that_fits_now_starts_with_the_next_question():
    fleet = Fleet(offers=Driven(box("desk"), box("lab", ram_gib=64, cpu_cores=16)).offers)
    found = told(cpu_job(), fleet, forecast=expected("lab"))
    assert found.verdict == "pending, queue position 1: starts with the next claim of lab"
    assert (found.starts_s, found.changes) == (NOW_S, ())


def test_a_job_that_fits_now_and_has_others_before_it_is_told_of_priority():
    fleet = Fleet(offers=Driven(box("desk")).offers)
    found = told(cpu_job(), fleet, ahead=2)
    assert found.verdict == "pending, queue position 3"
    assert found.changes == (
        "starts now if its priority is above that of the 2 jobs ahead (stoker jobs priority resnet/3)",
    )


@pytest.mark.parametrize(("number", "text"), [(1, "1"), (22, "22"), (1001, "1,001")])
def test_queue_positions_are_counted_from_one(number: int, text: str):
    fleet = Fleet(offers=Driven(box("desk")).offers)
    assert told(cpu_job(), fleet, ahead=number - 1).verdict.startswith(f"pending, queue position {text}")


def test_what_no_machine_could_ever_take_is_said_to_be_so():
    found = told(gpu_job(30), busy())
    assert found.verdict == "never on this fleet: needs 30.0 GiB, the largest device has 24.0 GiB"
    assert (found.place_in_line, found.starts_s) == (None, None)
    assert found.never == "needs 30.0 GiB, the largest device has 24.0 GiB"
    assert "possible if min_vram ≤ 24.0 GiB" in found.changes


def test_a_job_waits_for_what_it_comes_after():
    after = (Prerequisite(name="prep", state="running", ends_s=NOW_S + 60), Prerequisite(name="data", state="failed"))
    found = told(gpu_job(6), busy(), after=after, ahead=None)
    assert found.verdict == "waits for prep (running), data (failed)"
    assert found.after == {"prep": "running", "data": "failed"}
    assert found.changes == (
        "starts once prep has completed (running for about 1m00s)",
        "starts once data, which failed, is requeued and completes",
    )
    assert (found.starts_s, found.place_in_line) == (None, None)


def test_the_start_is_after_what_it_comes_after_and_after_its_delay():
    fleet = Fleet(offers=Driven(box("desk")).offers)
    after = (Prerequisite(name="prep", state="running", ends_s=NOW_S + 60),)
    assert told(cpu_job(), fleet, after=after, forecast=expected("desk", 60.0)).starts_s == NOW_S + 60
    assert told(cpu_job(), fleet, not_before_s=NOW_S + 90, forecast=expected("desk", 90.0)).starts_s == NOW_S + 90


def test_a_job_that_tries_again_says_when_what_it_spent_and_on_what():
    found = told(
        cpu_job(), busy(), not_before_s=NOW_S + 90, message="worker lost", spent={"user": (0, 1), "lost": (1, 3)}
    )
    assert found.verdict == "retry in 1m30s (lost 1 of 3): worker lost"


def test_closed_machines_and_devices_that_would_take_it_are_named():
    driven = Driven()
    driven.put(box("lab1", card("GPU-1")), closed="drained: new disk")
    driven.put(box("lab2", card("GPU-2")), closed_devices={"GPU-2": "cordoned"})
    fleet = Fleet(offers=driven.offers, closed_until_s={"lab1": NOW_S + 3600})
    found = told(gpu_job(6), fleet)
    assert "starts now if machine lab1, which is drained: new disk for about 1h00m is opened" in found.changes
    assert "starts now if GPU-2 of lab2 (cordoned) is opened" in found.changes
    assert found.machines[0]["closed_until_s"] == NOW_S + 3600


def test_absent_machines_are_told_of():
    found = told(gpu_job(6), Fleet(absent={"lab1": "silent for 12m00s"}))
    assert found.verdict == "pending, queue position 1: no machine is available (lab1 is silent for 12m00s)"
    assert "may start if lab1 comes back (silent for 12m00s)" in found.changes
    assert not found.never, "nobody knows what lab1 has"


def test_a_machine_that_is_away_and_could_not_run_it_promises_nothing():
    able, unable = (Driven(machine).offers for machine in (box("lab1", card("GPU-1")), box("desk")))
    here = Driven(box("board")).offers
    absent = {"lab1": "silent for 12m00s", "desk": "its worker left 5.0s ago"}
    found = told(gpu_job(6), Fleet(offers=here, away=(*able, *unable), absent=absent))
    assert (found.never, found.verdict[:35]) == ("", "waits for a machine that is away: o")
    assert [one for one in found.changes if "may start" in one] == ["may start if lab1 comes back (silent for 12m00s)"]
    lacking = "needs a cuda device, no machine has one"
    for offers in (here, ()):
        found = told(gpu_job(6), Fleet(offers=offers, away=unable, absent={"desk": "silent for 12m00s"}))
        assert (found.never, found.verdict) == (lacking, f"never on this fleet: {lacking}")
        assert not any("desk" in one for one in found.changes if "may start" in one)


def test_who_was_not_heard_of_since_a_start_of_the_coordinator_may_come_back():
    found = told(gpu_job(6), Fleet(away=Driven(box("lab1", card("GPU-1"))).offers))
    assert not found.never
    assert "may start if lab1 comes back (not seen since the coordinator started)" in found.changes


def test_without_any_machine_somebody_has_to_join():
    found = told(gpu_job(6), Fleet())
    assert found.verdict == "pending, queue position 1: no machine is available"
    assert found.changes == ("starts once a machine joins (stoker work --join URL)",)
    assert found.never == "there are no machines"


def test_declines_are_listed():
    found = told(cpu_job(), busy(), declines=(MachineDecline(machine="lab1", reason="folder missing", at_s=5.0),))
    assert found.declines == ({"machine": "lab1", "reason": "folder missing", "message": "", "at_s": 5.0},)


def test_nobody_counts_on_a_machine_that_declined_it_a_while_ago():
    decline = MachineDecline(machine="lab1", reason="secrets", message="lab1: not set: API_KEY", at_s=NOW_S - 7)
    alone = Fleet(offers=Driven(box("lab1")).offers)
    found = told(cpu_job(), alone, declines=(decline,), ahead=0, forecast=expected("lab1", 53.0))
    assert found.verdict == "pending, queue position 1. lab1 declined it 7.0s ago: not set: API_KEY"
    assert found.starts_s is None
    both = Fleet(offers=Driven(box("lab1", ram_gib=64, cpu_cores=16), box("desk")).offers)
    found = told(cpu_job(), both, declines=(decline,), ahead=0, forecast=expected("desk"))
    assert found.verdict == "pending, queue position 1: starts with the next claim of desk"
    assert found.starts_s == NOW_S
    old = changed(decline, at_s=NOW_S - 1000)
    long_ago = told(cpu_job(), alone, declines=(old,), ahead=0, forecast=expected("lab1"))
    assert long_ago.verdict == "pending, queue position 1: starts with the next claim of lab1"


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ({"state": "running", "machine": "desk"}, "runs on desk for about 1m00s"),
        ({"state": "claimed", "machine": "desk"}, "granted to desk, which has not started it yet"),
        (
            {"state": "claimed", "machine": "desk", "says": "copies DATA 4 %"},
            "granted to desk, which copies DATA 4 %",
        ),
        ({"state": "completed", "machine": "desk"}, "completed on desk"),
        ({"state": "failed", "machine": "desk", "why": "user: exit 1"}, "failed on desk: user: exit 1"),
        ({"state": "cancelled"}, "cancelled"),
        (
            {"state": "running", "machine": "desk", "is_cancelling": True},
            "is being cancelled; desk has not confirmed the stop yet",
        ),
    ],
    ids=["running", "claimed", "prepared", "completed", "failed", "cancelled", "cancelling"],
)
def test_a_job_that_does_not_wait_says_what_it_does(said: dict[str, Any], verdict: str):
    found = told(gpu_job(6), busy(), job=view(**said), ends_s=NOW_S + 60)
    assert found.verdict == verdict
    assert (found.place_in_line, found.starts_s, found.changes) == (None, None, ())


def test_a_job_that_is_not_in_the_queue_yet_is_explained_alike():
    order = JobSpec(
        id="1" * 64,
        name="resnet",
        number=2,
        recipe="vision/resnet",
        requirements=Requirements(wish=DevicePreference.REQUIRE, vram_bytes=6 * GIB),
    )
    found = Explainer(busy(), now_s=NOW_S).explain(case_of_order(order, now_s=NOW_S, ahead=4))
    assert (found.job.name, found.place_in_line) == ("resnet/2", 5)
    assert found.verdict == "pending, queue position 5. desk: taken by resnet/1 for about 10m00s"


def test_many_machines_are_named_briefly():
    offers = Driven(*[box(f"m{number}", card(f"GPU-{number}")) for number in range(6)])
    for number in range(6):
        offers.wait(1, gpu_job(10))
        offers.grant(f"m{number}")
    holders = {
        f"m{number}": [LeaseHolder(job=f"job{number}", wanted=gpu_job(10), devices=(f"GPU-{number}",))]
        for number in range(6)
    }
    found = told(gpu_job(6), Fleet(offers=offers.offers, holders=holders))
    assert found.verdict.endswith("m2: taken by job2 and 3 more")
    assert [row["node"] for row in found.machines] == [f"m{number}" for number in range(6)]
