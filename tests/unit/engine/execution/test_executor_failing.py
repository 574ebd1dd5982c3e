"""Stages that fail: what is reported, what goes on, what is tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.authoring import InputPath, PlanBuilder, Stage
from stoker.core.device import Capacity
from stoker.core.errors import LocalFile, StageDiverged, StageFailed, StageInputError
from stoker.core.retry import FailureCause, RetryOn, RetryPolicy
from stoker.engine.plan import Plan
from tests.unit.engine.lab import Lab, lines_of, plan_of
from tests.unit.engine.misbehaving import (
    ALWAYS,
    MEMORY,
    TRANSIENT,
    EditArgs,
    HowArgs,
    a_folder,
    editor,
    empty_item,
    misbehave_aside,
    misbehave_here,
    no_list,
    pass_through,
    short_list,
    swapped,
    trying,
)
from tests.unit.engine.stages import (
    FileArgs,
    NumberArgs,
    double,
    flaky,
    number,
    pair,
    read,
)


def here(how: str, **more: object) -> Plan:
    return plan_of(misbehave_here, HowArgs(how=how, **more))  # type: ignore[arg-type]


# --- failures ------------------------------------------------------------------------------------


def failing(value: int, **args: object) -> tuple[Stage, HowArgs]:
    return misbehave_here, HowArgs(how="raise", value=value, **args)  # type: ignore[arg-type]


def test_the_first_failure_is_reported_and_stops_the_rest(lab: Lab, ledger: str) -> None:
    builder = PlanBuilder("fail")
    polite = builder.start(misbehave_aside, HowArgs(how="polite", ledger=ledger), id="polite")
    bad = builder.start(misbehave_here, HowArgs(how="raise"), id="bad")
    bad.then(double, id="below").then(double, id="far-below")
    polite.then(double, id="after")
    ran = lab.run(builder.finish())
    assert ran.endings == {
        "bad": "failed",
        "below": "pruned",
        "far-below": "pruned",
        "polite": "cancelled",
        "after": "cancelled",
    }
    error = ran.result.error
    assert isinstance(error, StageFailed)
    assert str(error).startswith("bad: ValueError: it is broken (misbehaving.py:")
    assert (error.data["node"], error.data["cause"]) == ("bad", "user")
    assert [name for name, _ in ran.result.failures()] == ["bad"]
    assert ran.of_kind("stage_pruned", "below")[0]["because"] == "bad"
    assert {event["node"] for event in ran.of_kind("stage_cancelled")} == {"polite", "after"}
    assert lab.staged() == []


def test_nothing_new_starts_after_a_failure(tmp_path: Path, ledger: str) -> None:
    builder = PlanBuilder("fail")
    builder.start(misbehave_here, HowArgs(how="raise"), id="bad")
    for value in range(5):
        builder.start(number, NumberArgs(value=value, ledger=ledger))
    with Lab(tmp_path / "lab", capacity=Capacity(cpu=1)) as lab:
        ran = lab.run(builder.finish())
    assert lines_of(ledger) == []
    assert list(ran.endings.values()).count("cancelled") == 5


def test_keep_going_runs_whatever_does_not_need_the_failure(lab: Lab) -> None:
    builder = PlanBuilder("fail")
    bad = builder.start(misbehave_here, HowArgs(how="raise"), id="bad")
    good = builder.start(number, NumberArgs(value=1), id="good")
    bad.then(double, id="below")
    good.then(double, id="after")
    bad.then(pair, right=good, id="both")
    ran = lab.run(builder.finish(), keep_going=True)
    assert ran.endings == {"bad": "failed", "below": "pruned", "both": "pruned", "good": "ran", "after": "ran"}
    assert isinstance(ran.result.error, StageFailed)
    assert lab.run(builder.finish(), keep_going=True).endings["after"] == "hit"


def test_keep_going_has_a_budget(tmp_path: Path) -> None:
    builder = PlanBuilder("fail")
    for value in range(10):
        builder.start(*failing(value))
    with Lab(tmp_path / "lab", capacity=Capacity(cpu=1)) as lab:
        ran = lab.run(builder.finish(), keep_going=True, max_failures=3)
    assert sorted(ran.endings.values()) == ["cancelled"] * 7 + ["failed"] * 3


@pytest.mark.parametrize(
    ("how", "cause", "error", "says"),
    [
        ("raise", FailureCause.USER, StageFailed, "ValueError: it is broken"),
        ("refuse", FailureCause.INPUT, StageInputError, "the table has no rows"),
        ("exit", FailureCause.USER, StageFailed, "SystemExit: 3"),
        ("interrupt", FailureCause.USER, StageFailed, "KeyboardInterrupt"),
        ("memory", FailureCause.OOM_HOST, None, "MemoryError: no more"),
        ("device_memory", FailureCause.OOM_DEVICE, None, "OutOfMemoryError: CUDA out of memory"),
        ("full_disk", FailureCause.IO, None, "No space left"),
        ("gone_file", FailureCause.IO, StageFailed, "FileNotFoundError"),
        (
            "wrong_file",
            FailureCause.VALIDATION,
            StageFailed,
            "not a test-number@1: expected the single file value.json",
        ),
        ("nothing_written", FailureCause.VALIDATION, StageFailed, "found nothing"),
        ("wrong_thing", FailureCause.VALIDATION, StageFailed, "it returned 42, not a handle"),
        ("wrong_kind", FailureCause.VALIDATION, StageFailed, "not a handle from job.save"),
        ("nothing", FailureCause.VALIDATION, StageFailed, "it returned None"),
        ("not_json", FailureCause.VALIDATION, StageFailed, "what it made is not a test-number@1"),
        ("socket", FailureCause.VALIDATION, StageFailed, "found pipe, value.json"),
        ("diverge", FailureCause.DIVERGED, StageDiverged, "loss is nan at step 2"),
    ],
)
def test_a_failure_has_its_cause_and_its_error(
    lab: Lab, how: str, cause: FailureCause, error: type | None, says: str
) -> None:
    ran = lab.run(here(how))
    result = ran["misbehave-here"]
    assert result.cause is cause
    assert says in result.message
    assert "\n" not in result.message
    assert str(ran.result.error) == f"misbehave-here: {result.message}"
    if error is not None:
        assert type(ran.result.error) is error
    told = ran.of_kind("stage_failed")[0]
    assert (told["cause"], told["message"]) == (str(cause), result.message)
    assert lab.staged() == []


@pytest.mark.parametrize(("how", "exit_code"), [("full_disk", 10), ("memory", 46), ("refuse", 41), ("diverge", 44)])
def test_a_failure_has_its_exit_code(lab: Lab, how: str, exit_code: int) -> None:
    error = lab.run(here(how)).result.error
    assert error is not None
    assert error.exit_code == exit_code


def test_what_a_stage_refuses_is_shown_with_its_hint(lab: Lab) -> None:
    error = lab.run(here("refuse")).result.error
    assert error is not None
    assert error.hint == "give it some"


def test_a_failure_is_not_kept(lab: Lab, ledger: str) -> None:
    for _ in range(2):
        assert lab.run(here("raise")).endings == {"misbehave-here": "failed"}


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (empty_item, "item 000000 is empty"),
        (swapped, "in another order"),
        (short_list, "it returned 2 items but wrote 3"),
        (no_list, "not a list of handles"),
    ],
)
def test_a_list_must_be_what_was_saved(lab: Lab, of: Stage, says: str) -> None:
    result = lab.run(plan_of(of))[of.name.removeprefix("test/")]
    assert result.cause is FailureCause.VALIDATION
    assert says in result.message


def test_a_stage_that_hands_its_input_on_has_made_nothing(lab: Lab) -> None:
    ran = lab.run(PlanBuilder("p").start(a_folder).then(pass_through).finish())
    assert "something else than what it wrote" in ran["pass-through"].message


def test_a_file_that_changes_while_it_is_read_makes_nothing_that_is_kept(lab: Lab, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_text("old")
    plan = plan_of(editor, EditArgs(path=InputPath(str(rows))))
    key = lab.cache.action(plan.nodes[0], {}).key()
    ran = lab.run(plan)
    assert ran["editor"].message == f"input changed while the stage ran: {rows}"
    assert not lab.record_path(key).exists()


def test_a_file_that_is_gone_when_its_turn_comes_fails_that_node_only(lab: Lab, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_text("x")
    builder = PlanBuilder("gone")
    builder.start(read, FileArgs(path=InputPath(str(rows))))
    builder.start(number)
    plan = builder.finish()
    rows.unlink()
    ran = lab.run(plan, keep_going=True)
    assert ran.endings == {"read": "failed", "number": "ran"}
    assert ran["read"].cause is FailureCause.INPUT
    assert isinstance(ran.result.error, LocalFile)
    assert str(ran.result.error) == f"read: no such file or folder: {rows}"


# --- retries -------------------------------------------------------------------------------------


def test_a_stage_is_tried_again_until_it_succeeds(lab: Lab, ledger: str) -> None:
    ran = lab.run(plan_of(flaky, NumberArgs(value=3, ledger=ledger)))
    assert ran.endings == {"flaky": "ran"}
    assert lines_of(ledger) == ["flaky 1", "flaky 2", "flaky 3"]
    retries = ran.of_kind("stage_retrying")
    assert [(event["attempt"], event["delay_s"]) for event in retries] == [(1, 0.01), (2, 0.02)]
    assert [event["attempt"] for event in ran.of_kind("stage_begin")] == [1, 2, 3]
    assert not ran.of_kind("stage_failed")


def test_attempts_include_the_first_and_then_it_fails(lab: Lab, ledger: str) -> None:
    ran = lab.run(plan_of(flaky, NumberArgs(value=9, ledger=ledger)))
    assert ran.endings == {"flaky": "failed"}
    assert len(lines_of(ledger)) == 3
    assert ran.of_kind("stage_failed")[0]["attempt"] == 3


@pytest.mark.parametrize(
    ("how", "policy", "attempts"),
    [
        ("raise", TRANSIENT, 1),
        ("raise", ALWAYS, 3),
        ("raise", MEMORY, 1),
        ("memory", TRANSIENT, 3),
        ("memory", MEMORY, 3),
        ("device_memory", MEMORY, 3),
        ("gone_file", TRANSIENT, 3),
        ("gone_file", MEMORY, 1),
        ("refuse", ALWAYS, 1),
    ],
)
def test_the_cause_decides_whether_it_is_tried_again(
    lab: Lab, ledger: str, how: str, policy: object, attempts: int
) -> None:
    of = trying(how, policy)  # type: ignore[arg-type]
    ran = lab.run(plan_of(of, HowArgs(value=1, ledger=ledger)))
    assert len(lines_of(ledger)) == attempts
    assert (ran.result.error is None) == (attempts == 3)


def test_divergence_may_be_tried_again(lab: Lab) -> None:
    ran = lab.run(plan_of(misbehave_here, HowArgs(how="diverge"), retry=TRANSIENT))
    assert [event["cause"] for event in ran.of_kind("stage_retrying")] == ["diverged", "diverged"]
    assert ran.endings == {"misbehave-here": "diverged"}


def test_what_is_not_of_its_kind_is_never_tried_again(lab: Lab) -> None:
    ran = lab.run(plan_of(misbehave_here, HowArgs(how="not_json"), retry=ALWAYS))
    assert not ran.of_kind("stage_retrying")


def test_permits_are_free_while_a_node_backs_off(tmp_path: Path, ledger: str) -> None:
    patient = RetryPolicy(attempts=2, backoff_s=0.4, on=RetryOn.ALL)
    builder = PlanBuilder("backoff")
    builder.start(flaky, NumberArgs(value=2, ledger=ledger), retry=patient)
    builder.start(number, NumberArgs(value=1, ledger=ledger))
    with Lab(tmp_path / "lab", capacity=Capacity(cpu=1)) as lab:
        ran = lab.run(builder.finish())
    assert ran.result.error is None
    assert lines_of(ledger) == ["flaky 1", "number 1", "flaky 2"]


# --- divergence ----------------------------------------------------------------------------------


def test_a_branch_that_diverges_is_pruned_while_the_others_go_on(lab: Lab, ledger: str) -> None:
    builder = PlanBuilder("diverge")
    bad = builder.start(misbehave_here, HowArgs(how="diverge"), id="bad")
    good = builder.start(misbehave_here, HowArgs(how="good", ledger=ledger), id="good")
    bad.then(double, id="below")
    good.then(double, id="after").then(double, NumberArgs(value=9), id="long-after")
    ran = lab.run(builder.finish())
    assert ran.endings == {"bad": "diverged", "below": "pruned", "good": "ran", "after": "ran", "long-after": "ran"}
    assert isinstance(ran.result.error, StageDiverged)
    assert ran.of_kind("stage_step", "bad")[1]["metrics"] == {"loss": pytest.approx(float("nan"), nan_ok=True)}


def test_steps_take_numbers_of_any_library(lab: Lab) -> None:
    ran = lab.run(here("tell_odd_numbers"))
    assert [(event["step"], event["of"], event["metrics"]) for event in ran.of_kind("stage_step")] == [
        (3, 3, {"loss": 0.25})
    ]
