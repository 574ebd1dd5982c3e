"""Why a job is where it is: the verdict, who has what until when, when it may start, what would change that."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.coordinator.matching.cases import Case, Decline, Fleet, Holder, Prerequisite, case_of_order
from stoker.coordinator.matching.explaining import explain_job
from stoker.coordinator.matching.matcher import Matcher
from stoker.model.frozen import changed
from stoker.model.requirements import WantedJob, Wish
from stoker.model.resources import GIB
from stoker.wire.orders import JobOrder, RequirementsBody
from stoker.wire.views import JobExplanation, JobView
from tests.unit.coordinator.fleets import Driven, box, card, cpu_job, gpu_job

NOW_S = 1_000_000.0


def view(**said: Any) -> JobView:
    plain: dict[str, Any] = {"priority": 0, "epoch": 0, "attempt": 0, "submitted_s": NOW_S, "changed_s": NOW_S}
    return JobView(id="0" * 64, **(plain | {"name": "resnet/3", "recipe": "vision/resnet", "state": "pending"} | said))


def told(wanted: WantedJob, fleet: Fleet, **said: Any) -> JobExplanation:
    plain: dict[str, Any] = {"job": view(), "ahead": 0}
    return explain_job(Case(wanted=wanted, **(plain | said)), fleet, now_s=NOW_S)


def busy(*, ends_s: float | None = NOW_S + 600) -> Fleet:
    """A desk whose one card somebody has to himself."""
    driven = Driven(box("desk", card("GPU-1")))
    driven.wait(1, gpu_job(10))
    seat = driven.grant("desk").seat
    holder = Holder(job="resnet/1", wanted=gpu_job(10), devices=seat.devices, ends_s=ends_s, based_on="12 runs")
    return Fleet(offers=driven.matcher.offers(), holders={"desk": [holder]})


def test_who_waits_for_a_busy_machine_is_told_who_has_it_and_until_when():
    found = told(gpu_job(6), busy(), based_on="median of 12 runs")
    assert found.verdict == "waits, 1st in line. desk: taken by resnet/1 for about 10m00s"
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
    assert (found.starts_s, found.verdict) == (None, "waits, 1st in line. desk: taken by resnet/1")


@pytest.mark.parametrize(
    ("ahead", "lasts_s", "starts_s"),
    [(0, 100.0, 600.0), (1, 100.0, 700.0), (3, 100.0, 900.0), (1, None, None), (20_000, 100.0, None)],
    ids=["first", "second", "fourth", "others last nobody knows how long", "too far back"],
)
def test_jobs_ahead_take_the_first_rooms(ahead: int, lasts_s: float | None, starts_s: float | None):
    found = told(gpu_job(6), busy(), ahead=ahead, lasts_s=lasts_s)
    assert found.starts_s == (None if starts_s is None else NOW_S + starts_s)
    assert found.place_in_line == ahead + 1


def test_a_job_that_fits_now_starts_with_the_next_question():
    fleet = Fleet(offers=Driven(box("desk"), box("lab", ram_gib=64, cpu_cores=16)).matcher.offers())
    found = told(cpu_job(), fleet)
    assert found.verdict == "waits, 1st in line: starts when lab next asks for work"
    assert (found.starts_s, found.changes) == (NOW_S, ())


def test_a_job_that_fits_now_and_has_others_before_it_is_told_of_priority():
    fleet = Fleet(offers=Driven(box("desk")).matcher.offers())
    found = told(cpu_job(), fleet, ahead=2)
    assert found.verdict == "waits, 3rd in line"
    assert found.changes == (
        "starts now if its priority is above that of the 2 jobs ahead (stoker jobs priority resnet/3)",
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (13, "13th"), (22, "22nd"), (101, "101st")],
)
def test_places_are_counted_as_people_count(number: int, text: str):
    fleet = Fleet(offers=Driven(box("desk")).matcher.offers())
    assert told(cpu_job(), fleet, ahead=number - 1).verdict.startswith(f"waits, {text} in line")


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
    fleet = Fleet(offers=Driven(box("desk")).matcher.offers())
    after = (Prerequisite(name="prep", state="running", ends_s=NOW_S + 60),)
    assert told(cpu_job(), fleet, after=after).starts_s == NOW_S + 60
    assert told(cpu_job(), fleet, not_before_s=NOW_S + 90).starts_s == NOW_S + 90


def test_a_job_that_tries_again_says_when_what_it_spent_and_on_what():
    found = told(
        cpu_job(), busy(), not_before_s=NOW_S + 90, message="worker lost", spent={"user": (0, 1), "lost": (1, 3)}
    )
    assert found.verdict == "tries again in 1m30s (lost 1 of 3): worker lost"


def test_closed_machines_and_devices_that_would_take_it_are_named():
    matcher = Matcher()
    matcher.put_machine("lab1", box("lab1", card("GPU-1")), closed="drained: new disk")
    matcher.put_machine("lab2", box("lab2", card("GPU-2")), closed_devices={"GPU-2": "cordoned"})
    fleet = Fleet(offers=matcher.offers(), closed_until_s={"lab1": NOW_S + 3600})
    found = told(gpu_job(6), fleet)
    assert "starts now if machine lab1, which is drained: new disk for about 1h00m is opened" in found.changes
    assert "starts now if GPU-2 of lab2 (cordoned) is opened" in found.changes
    assert found.machines[0]["closed_until_s"] == NOW_S + 3600


def test_absent_machines_are_told_of():
    found = told(gpu_job(6), Fleet(absent={"lab1": "silent for 12m00s"}))
    assert found.verdict == "waits, 1st in line: no machine takes work (lab1 is silent for 12m00s)"
    assert "starts perhaps if lab1 comes back (silent for 12m00s)" in found.changes
    assert not found.never, "nobody knows what lab1 has"


def test_a_machine_that_is_away_and_could_not_run_it_promises_nothing():
    able, unable = (Driven(machine).matcher.offers() for machine in (box("lab1", card("GPU-1")), box("desk")))
    here = Driven(box("board")).matcher.offers()
    absent = {"lab1": "silent for 12m00s", "desk": "its worker left 5.0s ago"}
    found = told(gpu_job(6), Fleet(offers=here, away=(*able, *unable), absent=absent))
    assert (found.never, found.verdict[:35]) == ("", "waits for a machine that is away: o")
    assert [one for one in found.changes if "perhaps" in one] == [
        "starts perhaps if lab1 comes back (silent for 12m00s)"
    ]
    lacking = "needs a cuda device, no machine has one"
    for offers in (here, ()):
        found = told(gpu_job(6), Fleet(offers=offers, away=unable, absent={"desk": "silent for 12m00s"}))
        assert (found.never, found.verdict) == (lacking, f"never on this fleet: {lacking}")
        assert not any("desk" in one for one in found.changes if "perhaps" in one)


def test_who_was_not_heard_of_since_a_start_of_the_coordinator_may_come_back():
    found = told(gpu_job(6), Fleet(away=Driven(box("lab1", card("GPU-1"))).matcher.offers()))
    assert not found.never
    assert "starts perhaps if lab1 comes back (not heard of since the coordinator started)" in found.changes


def test_without_any_machine_somebody_has_to_join():
    found = told(gpu_job(6), Fleet())
    assert found.verdict == "waits, 1st in line: no machine takes work"
    assert found.changes == ("starts once a machine joins (stoker work --join URL)",)
    assert found.never == "there are no machines"


def test_declines_are_listed():
    found = told(cpu_job(), busy(), declines=(Decline(machine="lab1", reason="folder missing", at_s=5.0),))
    assert found.declines == ({"machine": "lab1", "reason": "folder missing", "message": "", "at_s": 5.0},)


def test_nobody_counts_on_a_machine_that_declined_it_a_while_ago():
    decline = Decline(machine="lab1", reason="secrets", message="lab1: not set: API_KEY", at_s=NOW_S - 7)
    alone = Fleet(offers=Driven(box("lab1")).matcher.offers())
    found = told(cpu_job(), alone, declines=(decline,), ahead=0)
    assert found.verdict == "waits, 1st in line. lab1 declined it 7.0s ago: not set: API_KEY"
    assert found.starts_s is None
    both = Fleet(offers=Driven(box("lab1", ram_gib=64, cpu_cores=16), box("desk")).matcher.offers())
    found = told(cpu_job(), both, declines=(decline,), ahead=0)
    assert found.verdict == "waits, 1st in line: starts when desk next asks for work"
    assert found.starts_s == NOW_S
    long_ago = told(cpu_job(), alone, declines=(changed(decline, at_s=NOW_S - 1000),), ahead=0)
    assert long_ago.verdict == "waits, 1st in line: starts when lab1 next asks for work"


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ({"state": "running", "machine": "desk"}, "runs on desk for about 1m00s"),
        ({"state": "claimed", "machine": "desk"}, "was given to desk, which has not started it yet"),
        (
            {"state": "claimed", "machine": "desk", "says": "copies DATA 4 %"},
            "was given to desk, which copies DATA 4 %",
        ),
        ({"state": "completed", "machine": "desk"}, "completed on desk"),
        ({"state": "failed", "machine": "desk", "why": "user: exit 1"}, "failed on desk: user: exit 1"),
        ({"state": "cancelled"}, "cancelled"),
        (
            {"state": "running", "machine": "desk", "is_cancelling": True},
            "is being cancelled; desk has not confirmed that it stopped",
        ),
    ],
    ids=["running", "claimed", "prepared", "completed", "failed", "cancelled", "cancelling"],
)
def test_a_job_that_does_not_wait_says_what_it_does(said: dict[str, Any], verdict: str):
    found = told(gpu_job(6), busy(), job=view(**said), ends_s=NOW_S + 60)
    assert found.verdict == verdict
    assert (found.place_in_line, found.starts_s, found.changes) == (None, None, ())


def test_a_lease_that_the_machine_was_not_seen_with_frees_nothing_twice():
    fleet = busy()
    ghost = Holder(job="ghost", wanted=gpu_job(10), devices=("GPU-1",), ends_s=NOW_S + 5)
    doubled = Fleet(offers=fleet.offers, holders={"desk": [*fleet.holders["desk"], ghost]})
    found = told(gpu_job(6), doubled, ahead=0, lasts_s=100.0)
    assert found.starts_s == NOW_S + 5


def test_a_job_that_is_not_in_the_queue_yet_is_explained_alike():
    order = JobOrder(
        id="1" * 64,
        name="resnet",
        number=2,
        recipe="vision/resnet",
        requirements=RequirementsBody(wish=Wish.REQUIRE, vram_bytes=6 * GIB),
    )
    found = explain_job(case_of_order(order, now_s=NOW_S, ahead=4), busy(), now_s=NOW_S)
    assert (found.job.name, found.place_in_line) == ("resnet/2", 5)
    assert found.verdict == "waits, 5th in line. desk: taken by resnet/1 for about 10m00s"


def test_many_machines_are_named_briefly():
    offers = Driven(*[box(f"m{number}", card(f"GPU-{number}")) for number in range(6)])
    for number in range(6):
        offers.wait(1, gpu_job(10))
        offers.grant(f"m{number}")
    holders = {
        f"m{number}": [Holder(job=f"job{number}", wanted=gpu_job(10), devices=(f"GPU-{number}",))]
        for number in range(6)
    }
    found = told(gpu_job(6), Fleet(offers=offers.matcher.offers(), holders=holders))
    assert found.verdict.endswith("m2: taken by job2 and 3 more")
    assert [row["node"] for row in found.machines] == [f"m{number}" for number in range(6)]
