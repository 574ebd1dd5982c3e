"""Runs that end early: limits, deadlines, cancelling, and an engine in trouble itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import PlanBuilder
from stoker.core.errors import Cancelled, PlanDeadline, StageTimeout
from stoker.core.events import Kinds
from stoker.core.retry import FailureCause, RetryOn, RetryPolicy
from tests.unit.engine.lab import Lab, lines_of, plan_of
from tests.unit.engine.misbehaving import (
    TRANSIENT,
    HowArgs,
    misbehave_aside,
)
from tests.unit.engine.stages import (
    NumberArgs,
    double,
    flaky,
    number,
)
from tests.unit.host.real_processes import wait_until

# --- time ----------------------------------------------------------------------------------------


def test_a_stage_past_its_limit_is_asked_and_fails(lab: Lab, ledger: str) -> None:
    ran = lab.run(plan_of(misbehave_aside, HowArgs(how="polite", ledger=ledger), timeout_s=0.05))
    assert ran["misbehave-aside"].cause is FailureCause.TIMEOUT
    assert isinstance(ran.result.error, StageTimeout)
    assert "ran past its limit of 0.1s" in str(ran.result.error)


def test_a_limit_is_retried_like_any_passing_trouble(lab: Lab, ledger: str) -> None:
    plan = plan_of(misbehave_aside, HowArgs(how="polite", ledger=ledger), timeout_s=0.05, retry=TRANSIENT)
    ran = lab.run(plan)
    assert len(lines_of(ledger)) == 3
    assert ran["misbehave-aside"].cause is FailureCause.TIMEOUT


def test_an_answer_after_the_limit_still_counts_as_too_late(lab: Lab, ledger: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    plan = plan_of(misbehave_aside, HowArgs(how="finish_late", ledger=ledger, gate=str(gate)), timeout_s=0.05)
    flight = lab.start(plan, grace_s=20.0)
    wait_until(lambda: len(lines_of(ledger)) == 1)
    wait_until(lambda: flight.was_asked_to_stop("misbehave-aside"))
    gate.touch()
    ran = flight.land()
    assert ran["misbehave-aside"].cause is FailureCause.TIMEOUT
    assert not lab.record_path(ran["misbehave-aside"].key).exists()


def test_work_in_our_own_process_that_will_not_stop_is_left_behind_and_said_so(
    lab: Lab, ledger: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    plan = plan_of(misbehave_aside, HowArgs(how="finish_late", ledger=ledger, gate=str(gate)), timeout_s=0.02)
    ran = lab.run(plan, grace_s=0.02)
    assert ran["misbehave-aside"].cause is FailureCause.TIMEOUT
    assert ran.result.warnings == ("misbehave-aside did not stop and was left running",)
    gate.touch()
    wait_until(lambda: lab.staged() == [])
    assert not lab.record_path(ran["misbehave-aside"].key).exists()


def test_a_plan_has_a_deadline_of_its_own(lab: Lab, ledger: str) -> None:
    plan = PlanBuilder("late").start(misbehave_aside, HowArgs(how="polite", ledger=ledger)).then(double).finish()
    ran = lab.run(plan, deadline_s=0.05)
    assert isinstance(ran.result.error, PlanDeadline)
    assert str(ran.result.error) == "the plan ran past its limit of 0.1s"
    assert ran.endings == {"misbehave-aside": "cancelled", "double": "cancelled"}


# --- cancelling ----------------------------------------------------------------------------------


def test_a_run_is_cancelled_in_the_middle_of_a_stage(lab: Lab, ledger: str) -> None:
    plan = PlanBuilder("c").start(misbehave_aside, HowArgs(how="polite", ledger=ledger)).then(double).finish()
    flight = lab.start(plan)
    wait_until(lambda: len(lines_of(ledger)) == 1)
    flight.executor.cancel(Cancelled("Ctrl-C"))
    ran = flight.land()
    assert ran.endings == {"misbehave-aside": "cancelled", "double": "cancelled"}
    assert str(ran.result.error) == "Ctrl-C"
    assert lab.staged() == []
    assert [name for name in os.listdir(lab.store.places.leases) if not name.startswith(".")] == []


def test_what_is_finished_after_a_cancel_is_thrown_away(lab: Lab, ledger: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    plan = plan_of(misbehave_aside, HowArgs(how="finish_late", ledger=ledger, gate=str(gate)))
    key = lab.cache.action(plan.nodes[0], {}).key()
    flight = lab.start(plan, grace_s=20.0)
    wait_until(lambda: len(lines_of(ledger)) == 1)
    flight.executor.cancel(Cancelled("Ctrl-C"))
    wait_until(lambda: flight.was_asked_to_stop("misbehave-aside"))
    gate.touch()
    assert flight.land().endings == {"misbehave-aside": "cancelled"}
    assert not lab.record_path(key).exists()


def test_a_run_that_is_cancelled_before_it_begins_does_nothing(lab: Lab, ledger: str) -> None:
    executor, status = lab.prepare(plan_of(number, NumberArgs(ledger=ledger)))
    executor.cancel(Cancelled("never mind"))
    result = executor.run()
    status.close()
    assert str(result.nodes["number"].ending) == "cancelled"
    assert lines_of(ledger) == []
    assert str(result.error) == "never mind"


def test_a_run_of_nothing_but_hits_can_be_cancelled_too(lab: Lab) -> None:
    builder = PlanBuilder("hits")
    tip = builder.start(number)
    for value in range(50):
        tip = tip.then(double, NumberArgs(value=value))
    plan = tip.finish()
    lab.run(plan)
    executor, status = lab.prepare(plan)
    hold = status.hold

    def hold_and_cancel(kind: str, **fields: Any) -> None:
        hold(kind, **fields)
        if (kind, fields["node"]) == (Kinds.STAGE_SKIPPED, "double-10"):
            executor.cancel(Cancelled("enough"))

    status.hold = hold_and_cancel  # type: ignore[method-assign]
    result = executor.run()
    status.close()
    assert (result.hits, str(result.error)) == (11, "enough")


def test_a_node_that_backs_off_is_cancelled_at_once(lab: Lab, ledger: str) -> None:
    policy = RetryPolicy(attempts=9, backoff_s=100.0, on=RetryOn.ALL)
    flight = lab.start(plan_of(flaky, NumberArgs(value=5, ledger=ledger), retry=policy))
    wait_until(lambda: bool(flight.events("stage_retrying")))
    flight.executor.cancel(Cancelled("Ctrl-C"))
    assert flight.land().endings == {"flaky": "cancelled"}


def test_the_first_reason_to_stop_is_the_one_that_is_told(lab: Lab, ledger: str) -> None:
    builder = PlanBuilder("two")
    builder.start(misbehave_aside, HowArgs(how="polite", ledger=ledger))
    flight = lab.start(builder.finish())
    wait_until(lambda: len(lines_of(ledger)) == 1)
    flight.executor.cancel(Cancelled("first"))
    flight.executor.cancel(Cancelled("second"))
    assert str(flight.land().result.error) == "first"


# --- when the engine itself is in trouble --------------------------------------------------------


def test_a_journal_that_cant_be_written_stops_everything_first(lab: Lab, ledger: str) -> None:
    builder = PlanBuilder("trouble")
    builder.start(misbehave_aside, HowArgs(how="polite", ledger=ledger))
    builder.start(number, NumberArgs(value=1))
    executor, status = lab.prepare(builder.finish())

    hold = status.hold

    def refuse(kind: str, **fields: Any) -> None:
        if kind == Kinds.STAGE_END:
            wait_until(lambda: len(lines_of(ledger)) == 1)
            raise RuntimeError("no journal")
        hold(kind, **fields)

    status.hold = refuse  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no journal"):
        executor.run()
    status.close()
    assert len(executor._in_flight) == 0
    assert lab.staged() == []
