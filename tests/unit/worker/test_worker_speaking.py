"""Whether a keeper may speak of a job is asked at that very moment, of its own clock, whatever it decided last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.core.clock import FakeClock
from stoker.core.frozen import changed
from stoker.host.identity import mine
from stoker.worker.actions import InstructionRunner
from stoker.worker.attempt_process import WorkerRuntime
from stoker.worker.coordinator_calls import ClaimLoop
from stoker.worker.worker_state import AttemptPhase, HeldLease, WorkerPolicy, WorkerState
from tests.fakes.grants import grant_of

GRANT = grant_of(job="a" * 64, attempt=1, epoch=1, generation=1, name="a", recipe="command", lease_s=90.0, start_s=60.0)
ENDS_S = 90.0


def acting(clock: FakeClock, **fields: Any) -> InstructionRunner:
    lease = HeldLease(grant=GRANT, phase=AttemptPhase.RUNNING, ends_s=ENDS_S, run="run-1", child=mine())
    keeping = WorkerState(wishes=WorkerPolicy(), leases={GRANT.token(): changed(lease, **fields)})
    runtime = SimpleNamespace(worker=SimpleNamespace(clock=clock))
    return InstructionRunner(cast(WorkerRuntime, runtime), keeping, cast(ClaimLoop, None))


@pytest.mark.parametrize("pass_by", [FakeClock.advance, FakeClock.suspend], ids=["time", "a_closed_lid"])
def test_nothing_is_said_under_a_lease_that_ended_a_moment_ago(pass_by: Any) -> None:
    clock = FakeClock()
    keeper = acting(clock)
    pass_by(clock, ENDS_S - 1.0)
    assert keeper.may_speak(GRANT.token())
    # Nobody has decided anything since.
    pass_by(clock, 1.0)
    assert not keeper.may_speak(GRANT.token())


def test_nothing_is_said_under_a_lease_that_was_found_to_be_over() -> None:
    assert not acting(FakeClock(), is_over=True).may_speak(GRANT.token())


def test_what_never_ran_is_given_back_at_any_time() -> None:
    clock = FakeClock()
    keeper = acting(clock, run="", phase=AttemptPhase.SENDING)
    clock.advance(2 * ENDS_S)
    assert keeper.may_speak(GRANT.token())


def test_nothing_is_said_of_a_job_that_is_not_held() -> None:
    assert not acting(FakeClock()).may_speak(changed(GRANT.token(), epoch=2))
