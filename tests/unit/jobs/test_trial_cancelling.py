"""One trial of a running sweep is cancelled, and the others go on."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stoker.core.clock import SystemClock
from stoker.core.errors import InvalidTransition, TrialsCancelled
from stoker.core.events import Event, Kinds
from stoker.core.job import JobState
from stoker.engine.journal import read_status
from stoker.engine.types import RunOptions
from stoker.jobs.comparison import JobFacts
from stoker.jobs.execution import JobResult
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.stop import StoppedTrial, stop_trial
from stoker.jobs.trials import nodes_to_cancel, read_trials
from tests.unit.host.real_processes import wait_until
from tests.unit.jobs.conftest import Office
from tests.unit.jobs.sweeping import Sweeps, states

# Waits for a file of its own name, or for SIGTERM.
WAITS = ("sh", "-c", 'touch began-{n}; while [ ! -e go-{n} ]; do sleep 0.02; done; echo {n} > "$STOKER_OUT/made"')


class Running:
    """A sweep that runs in a thread."""

    def __init__(self, sweeps: Sweeps, *overrides: str) -> None:
        self.sweeps = sweeps
        order = sweeps.order(*overrides, program=WAITS)
        options = RunOptions(max_in_flight=1, keep_going=True, grace_s=0.5)
        execution = sweeps.execution(order, options=options)
        self.folder = JobFolder(f"{execution.tools.runs}/{execution.attempt.id}")
        self.done: list[JobResult] = []
        self.thread = threading.Thread(target=lambda: self.done.append(execution.run()), daemon=True)
        self.thread.start()

    def begins(self, *numbers: int) -> None:
        wait_until(lambda: all((self.sweeps.folder / f"began-{n}").exists() for n in numbers))

    def go(self, *numbers: int) -> None:
        for n in numbers:
            (self.sweeps.folder / f"go-{n}").touch()

    def cancel(self, number: int) -> StoppedTrial:
        trials = read_trials(self.folder)
        return stop_trial(self.folder, trials[number - 1], clock=SystemClock(), patience_s=20)

    def end(self) -> JobResult:
        self.thread.join(20)
        (job,) = self.done
        return job


@pytest.fixture
def sweeps(office: Office) -> Sweeps:
    return Sweeps(office)


def shown(job: JobResult, sweeps: Sweeps) -> dict[str, str]:
    """Return the states that `jobs show` and `compare` read."""
    gathered = JobFacts(job.folder, sweeps.office.lab.cache.store).trials()
    return {one.end.trial.spec.label: one.end.state for one in gathered}


def test_a_trial_that_runs_is_cancelled_and_the_others_go_on(sweeps: Sweeps) -> None:
    running = Running(sweeps, "n=1,2,3")
    running.go(1)
    running.begins(2)
    assert running.cancel(2).state == "cancelled"
    assert not running.done
    running.go(3)
    job = running.end()
    expected = {"n=1": "completed", "n=2": "cancelled", "n=3": "completed"}
    assert states(job) == expected
    assert shown(job, sweeps) == expected
    assert not sweeps.out(job, "n=2").exists()
    assert sweeps.out(job, "n=3/made").exists()


def test_a_trial_that_waits_is_cancelled_at_once_and_never_begins(sweeps: Sweeps) -> None:
    running = Running(sweeps, "n=1,2,3")
    running.begins(1)
    assert running.cancel(3).state == "cancelled"
    running.go(1, 2, 3)
    job = running.end()
    expected = {"n=1": "completed", "n=2": "completed", "n=3": "cancelled"}
    assert states(job) == expected
    assert shown(job, sweeps) == expected
    assert not (sweeps.folder / "began-3").exists()


def test_a_sweep_with_a_cancelled_trial_ends_as_cancelled_with_exit_code_1(sweeps: Sweeps) -> None:
    running = Running(sweeps, "n=1,2,3")
    running.begins(1)
    running.cancel(2)
    running.go(1, 3)
    job = running.end()
    assert isinstance(job.error, TrialsCancelled)
    assert str(job.error) == "1 of 3 trials was cancelled: n=2"
    end = job.folder.ended()
    assert end is not None
    assert (end.state, end.exit_code) == (JobState.CANCELLED, 1)
    _, going_on, left = sweeps.again(job.folder)
    assert left == 1, "run --failed runs the cancelled one"
    assert set(going_on.kept) == {"1.run", "3.run"}


def test_a_trial_that_has_ended_is_not_cancelled(sweeps: Sweeps) -> None:
    running = Running(sweeps, "n=1,2")
    running.go(1)
    running.begins(2)
    wait_until(lambda: any(event["kind"] == "trial_end" for event in read_status(running.folder.status_path)))
    with pytest.raises(InvalidTransition, match=r"trial .*/1 is not running: completed"):
        running.cancel(1)
    running.go(2)
    assert running.end().error is None


def test_what_others_need_goes_on_when_a_trial_is_cancelled(sweeps: Sweeps) -> None:
    order = sweeps.order("factor=2,3,4", f"ledger={sweeps.folder / 'stages'}", target="test/branches")
    execution = sweeps.execution(order)
    folder = JobFolder(f"{execution.tools.runs}/{execution.attempt.id}")

    def listen(event: Event, _at_s: float, _seq: int) -> None:
        if event.kind == Kinds.RUN_BEGIN:
            folder.cancel_trial(2)
            # As if the request had come before the first look.
            execution._cancel_nodes(nodes_to_cancel(order.trials, {2}))

    execution.listeners = (listen,)
    job = execution.run()
    assert states(job) == {"factor=2": "completed", "factor=3": "cancelled", "factor=4": "completed"}


def test_only_what_no_other_trial_needs_is_cancelled(sweeps: Sweeps) -> None:
    trials = sweeps.order("factor=2,3,4", target="test/branches").trials
    own = nodes_to_cancel(trials, {2})
    assert own == set(trials[1].nodes.nodes) - set(trials[0].nodes.nodes)
    assert own
    assert nodes_to_cancel(trials, {1, 2, 3}) == {name for trial in trials for name in trial.nodes.nodes}


def test_a_trial_in_back_off_is_cancelled(sweeps: Sweeps) -> None:
    """One that failed and waits for its next attempt is neither running nor ready."""
    from stoker.core.frozen import changed
    from stoker.core.retry import RetryOn, RetryPolicy

    order = sweeps.order(
        "n=1,2", program=("sh", "-c", 'touch began-{n}; [ {n} = 1 ] || exit 3; echo > "$STOKER_OUT/x"')
    )
    policy: Any = RetryPolicy(attempts=2, backoff_s=600.0, on=RetryOn.ALL)
    plan = changed(order.plan, nodes=tuple(changed(node, retry=policy) for node in order.plan.nodes))
    execution = sweeps.execution(changed(order, plan=plan))
    folder = JobFolder(f"{execution.tools.runs}/{execution.attempt.id}")
    done: list[JobResult] = []
    thread = threading.Thread(target=lambda: done.append(execution.run()), daemon=True)
    thread.start()
    wait_until(lambda: any(event["kind"] == "stage_retrying" for event in read_status(folder.status_path)))
    stopped = stop_trial(folder, order.trials[1], clock=SystemClock(), patience_s=20)
    thread.join(20)
    assert stopped.state == "cancelled"
    assert states(done[0]) == {"n=1": "completed", "n=2": "cancelled"}
