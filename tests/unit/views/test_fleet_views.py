"""Jobs, machines and explanations of a fleet as text."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.cli.work import worker_line
from stoker.protocol.view_messages import (
    AttemptView,
    ExpectedView,
    HeldBackView,
    JobExplanation,
    JobView,
    MachineView,
    ShareOfUser,
)
from stoker.scheduler.simulation.simulation_report import MakespanBound, SimulationReport
from stoker.views.fleet_lines import attempt_row, event_text, job_row, machine_lines, machine_row, story_texts, took_s
from stoker.views.placement_lines import explanation_lines
from stoker.views.simulation_lines import live_lines
from stoker.views.stage_lines import metrics_text, number
from stoker.views.text_tables import moment, table

NOW_S = 10_000.0


def _job(**more: Any) -> JobView:
    fields: dict[str, Any] = {
        "id": "ab" * 32,
        "name": "resnet/3",
        "recipe": "command",
        "state": "pending",
        "priority": 0,
        "epoch": 1,
        "attempt": 0,
        "submitted_s": NOW_S - 60,
        "changed_s": NOW_S - 60,
    }
    return JobView.model_validate(fields | more)


def _machine(**more: Any) -> MachineView:
    fields: dict[str, Any] = {"name": "desk", "state": "ready", "last_seen_s": NOW_S - 5, "slots": 2, "held": 1}
    return MachineView.model_validate(fields | more)


def test_a_job_of_a_list_says_where_how_far_and_why():
    row = job_row(
        _job(state="running", machine="desk", started_s=NOW_S - 30, step=63, of=100, metrics={"loss": 0.4}), NOW_S
    )
    assert row[:6] == ["resnet/3", "running", "desk", "30 s ago", "30s", "abababababab"]
    assert row[6] == "command  63 %  loss 0.4"


def test_somebodys_wish_to_end_it_is_seen_in_the_list():
    assert job_row(_job(state="running", is_cancelling=True), NOW_S)[1] == "cancelling"


def test_text_of_others_is_not_obeyed_by_a_terminal():
    assert "\x1b" not in job_row(_job(why="no\x1b[2Jway\nout"), NOW_S)[6]


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, None),
        ({"state": "running", "started_s": NOW_S - 30}, 30.0),
        ({"state": "completed", "started_s": 100.0, "ended_s": 140.0}, 40.0),
        ({"state": "running", "started_s": NOW_S - 5, "ended_s": NOW_S - 50}, 5.0),
        ({"state": "pending", "started_s": 100.0, "ended_s": 140.0}, None),
    ],
    ids=["waits", "runs", "ended", "runs again", "waits again"],
)
def test_how_long_a_job_took_is_that_of_its_last_attempt(fields, seconds):
    assert took_s(_job(**fields), NOW_S) == seconds


def test_a_try_says_how_it_ended():
    attempt = AttemptView(
        number=1,
        epoch=1,
        generation=0,
        machine="lab1",
        incarnation="i",
        granted_s=NOW_S - 200,
        started_s=NOW_S - 190,
        ended_s=NOW_S - 100,
        ending="expired",
        cause="lost",
        message="no word for 120 s",
    )
    assert attempt_row(attempt, NOW_S) == ["1", "lab1", "expired (lost)", "3 min ago", "1m30s", "no word for 120 s"]


def test_a_machine_says_what_it_holds_and_until_when_it_is_closed():
    device = {"name": "RTX 4090", "uuid": "GPU-1", "total_bytes": 24 << 30, "closed": "cordoned", "jobs": ["a"]}
    machine = _machine(
        state="drained",
        why="new fan",
        until_s=NOW_S + 7200,
        jobs=("a", "b"),
        devices=(device,),
        capability={"cpu_cores": 8, "ram_total_bytes": 64 << 30},
    )
    row = machine_row(machine, NOW_S)
    assert row[:6] == ["desk", "drained for 2h00m", "1 of 2", "8", "64.0 GiB", "5 s ago"]
    assert row[6] == "RTX 4090 24.0 GiB (cordoned); new fan; a, b"
    assert any("GPU-1" in line and "used by a" in line for line in machine_lines(machine, NOW_S))


def test_a_machine_shows_what_counts_and_beside_it_what_was_found():
    capability = {"cpu_cores": 2, "ram_total_bytes": 64 << 30}
    lines = machine_lines(_machine(cores=1, ram_bytes=64 << 30, capability=capability), NOW_S)
    said = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[1:] if len(line.split()) > 1}
    assert (said["cores"], said["RAM"]) == ("1 for jobs (detected 2)", "64.0 GiB")


def test_minus_zero_is_zero():
    assert number(-0.0) == "0"
    assert metrics_text({"loss": -0.0}) == "loss 0"


@pytest.mark.parametrize(
    ("kind", "fields", "line"),
    [
        ("away", {"why": "timed out", "held": 0}, "coordinator not reachable: timed out"),
        ("away", {"why": "", "held": 2}, "coordinator not reachable, jobs continue"),
        ("ended", {"job": "a", "state": "cancelled", "seconds": 0.01}, "a cancelled"),
        ("ended", {"job": "a", "state": "failed", "seconds": 2.0}, "a failed after 2.0s"),
    ],
    ids=["idle", "busy", "at-once", "later"],
)
def test_a_workers_line_says_no_more_than_there_is(kind: str, fields: dict[str, Any], line: str):
    assert worker_line(kind, fields) == line


def test_an_event_is_a_line():
    event = {"kind": "job_expired", "name": "resnet/2", "machine": "lab1", "cause": "lost"}
    assert event_text(event) == "resnet/2 interrupted on lab1: lost"
    back = {**event, "why": "its process or worker was lost, 1 of 3", "to": "pending"}
    told = (
        "resnet/2 interrupted on lab1, back in the queue: its process or worker was lost, 1 of 3; not a failed attempt"
    )
    assert event_text(back) == told
    assert event_text({"kind": "machine_joined", "machine": "lab1"}) == "lab1 joined"
    changed = {"kind": "job_changed", "name": "a", "by": "ann (ann@laptop)", "changes": ["priority"]}
    assert event_text(changed) == "a changed by ann (ann@laptop)"
    assert event_text({"kind": "something_new", "name": "x"}) == "x something new"


def test_a_start_tells_from_which_checkpoint_unless_the_job_was_queued_anew():
    def event(kind: str, **more: Any) -> dict[str, Any]:
        return {"kind": kind, "name": "a", "machine": "lab1", **more}

    started, saved = event("job_started"), event("job_checkpoint", step=4)
    assert story_texts([started, saved, started, event("job_requeued"), started]) == [
        "a started on lab1",
        "a saved a checkpoint of step 4 on lab1",
        "a started on lab1, with the checkpoint of step 4",
        "a requeued on lab1",
        "a started on lab1",
    ]


def test_an_explanation_has_a_row_for_every_machine_and_device():
    told = JobExplanation(
        job=_job(),
        verdict="waits",
        place_in_line=2,
        starts_s=NOW_S + 840,
        based_on="median of 12 runs of command",
        machines=(
            {
                "node": "desk",
                "fits": False,
                "score": None,
                "obstacles": [{"why": "its one device is taken", "device": None}],
                "devices": [
                    {"uuid": "GPU-1", "type": "rtx-4090", "score": None, "obstacle": {"why": "taken by a job"}}
                ],
                "held": [{"name": "resnet/1", "until_s": NOW_S + 840}],
            },
            {
                "node": "lab1",
                "fits": True,
                "score": 1.5,
                "on": ["GPU-2"],
                "obstacles": [],
                "devices": [
                    {"uuid": "GPU-2", "type": "gtx-1080", "score": 1.5, "terms": [{"name": "speed", "value": 1.5}]}
                ],
            },
        ),
        changes=("may start if board comes back (away: 3m)", "jobs may share desk"),
        declines=({"machine": "lab2", "reason": "disk", "message": "2 GiB left"},),
    )
    lines = list(explanation_lines(told, now_s=NOW_S, columns=0))
    assert lines[0] == "resnet/3: waits (queue position 2)"
    assert lines[1] == "may start in about 14m00s (median of 12 runs of command)"
    text = "\n".join(lines)
    assert "used by resnet/1 for about 14m00s" in text
    assert [line.split()[0] for line in lines[3:8]] == ["machine", "desk", "GPU-1", "lab1", "GPU-2"]
    assert "speed 1.5" in text
    assert "declined by lab2: disk: 2 GiB left" in text
    assert lines[-2:] == ["may start if board comes back (away: 3m)", "starts now if jobs may share desk"]


def test_a_forecast_says_where_and_when_why_not_now_elsewhere_and_how_the_submitter_stands():
    told = JobExplanation(
        job=_job(),
        verdict="pending, queue position 1",
        place_in_line=1,
        starts_s=NOW_S + 300,
        based_on="stated by its submitter",
        expected=ExpectedView(machine="desk", starts_s=NOW_S + 300, ends_s=NOW_S + 600),
        held_back=(HeldBackView(machine="board1", reason="faster_machine", text="slower", ends_s=NOW_S + 6000),),
        share=ShareOfUser(user="ada", share=0.625, fair_share=0.5, usage_s=60.0, jobs=1, devices=2),
    )
    starts, ends, later = (moment(NOW_S + after_s, NOW_S) for after_s in (300, 600, 6000))
    assert list(explanation_lines(told, now_s=NOW_S, columns=0))[1:] == [
        "may start in about 5m00s (stated by its submitter)",
        f"expected on desk from {starts} until {ends}",
        f"not now on board1 (until {later}): slower",
        "share of ada: 62% of recent usage, fair is 50%; 1 job and 2 devices now",
    ]


def test_a_forecast_without_a_time_says_why_only_where_a_machine_is_expected():
    waiting: dict[str, Any] = {"job": _job(), "verdict": "pending, queue position 1", "based_on": "median of 3 runs"}
    told = JobExplanation(**waiting, expected=ExpectedView(machine="desk"))
    assert list(explanation_lines(told, now_s=NOW_S, columns=0))[1:] == [
        "no start estimate: a job before it has no estimate of its duration"
    ]
    later = JobExplanation(**waiting, expected=ExpectedView(not_before_s=NOW_S + 7200))
    assert list(explanation_lines(later, now_s=NOW_S, columns=0))[1:] == []


def _report(**more: Any) -> SimulationReport:
    counts = dict.fromkeys(("shapes", "not_placeable", "decisions", "times_kept", "failures", "running"), 0)
    bound = MakespanBound(area_s=0.0, longest_s=0.0)
    many: dict[str, Any] = {"uses": (), "waits": (), "waiting": (), "digest": "0" * 64, "bound": bound}
    return SimulationReport(
        **{"machines": 1, "jobs": 3, "most_behind_s": 0.0, "step_s": 60.0, **counts, **many, **more}
    )


@pytest.mark.parametrize(
    ("makespan_s", "said"), [(3600.0, "no difference"), (3000.0, "10m00s earlier"), (3660.0, "1m00s later")]
)
def test_a_changed_fleet_is_compared_with_the_one_there_is(makespan_s: float, said: str):
    now = _report(makespan_s=3600.0, not_placeable=1), 0
    then = _report(makespan_s=makespan_s), 0
    lines = list(live_lines(now, then, [], at_s=NOW_S, blocked=1, is_guess=False, columns=0))
    assert lines[2].endswith(f", {said}")
    assert lines[3:5] == [
        "not counted 1 pending job waits for other jobs, or for its next try",
        "omitted     1 job fits no machine of this fleet, even an idle one",
    ]


@pytest.mark.parametrize(("place", "said"), [(1, "1"), (112, "112"), (1121, "1,121")])
def test_a_queue_position_is_shown_where_the_verdict_has_none(place, said):
    told = JobExplanation(job=_job(), verdict="waits", place_in_line=place)
    assert next(iter(explanation_lines(told, now_s=NOW_S, columns=0))) == f"resnet/3: waits (queue position {said})"


def test_no_cell_breaks_its_line_whoever_wrote_it():
    first, second = table([["a\nforged  completed", "b\x1b[2J"], ["c", "d"]])
    assert first.isprintable()
    assert second.startswith("c ")
