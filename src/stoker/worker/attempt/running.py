"""Run one attempt to its end, in this process: journey one inside a lease, told in the attempt's folder.

Nothing is said on pipes that would die with the keeper: `status.jsonl` and `end.json` are the report. TERM asks the
work to end and waits for it; a second TERM ends it now.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

from stoker.host.identity import mine
from stoker.model.digests import Digest
from stoker.model.errors import Bug, StokerError, Terminated
from stoker.model.exits import exit_code_of
from stoker.model.lifecycle import JobState
from stoker.plan.run_options import MAX_IN_FLIGHT, RunOptions
from stoker.worker.attempt.assignment import Assignment, LeaseFile
from stoker.worker.attempt.lease_watch import LeaseWatch
from stoker.worker.attempt.ordering import order_assignment, spec_of
from stoker.worker.execution import Execution, Tools, abandon
from stoker.worker.job_folder import JobEnd, JobFolder, JobSpec
from stoker.worker.ordering import Desk, Order


def run_attempt(assignment: Assignment, *, desk: Desk, tools: Callable[[], Tools], runs: str) -> int:
    """Run it; give the exit code. How it ended stands in its folder below `runs`, whatever went wrong."""
    stops = _Stops()
    stops.listen()
    try:
        order = order_assignment(desk, assignment)
        built = tools()
    except StokerError as error:
        return _end_unbegun(desk, assignment, runs, error)
    except Exception as problem:
        _end_unbegun(desk, assignment, runs, Bug(f"{type(problem).__name__}: {problem}"))
        raise
    execution = Execution(
        plan=order.plan,
        spec=order.spec,
        tools=built,
        out=None,
        options=_options(order, assignment),
        papers=order.papers,
    )
    stops.stop_by(execution.cancel, lambda error: abandon(built, order.spec, error))
    lease = LeaseFile(assignment.lease_path)
    with LeaseWatch(lease, clock=built.clock, on_over=lambda why: execution.cancel(Terminated(why))):
        job = execution.run()
    return exit_code_of(job.error) if job.error is not None else 0


def _options(order: Order, assignment: Assignment) -> RunOptions:
    return RunOptions(
        max_in_flight=1 if order.program is not None else MAX_IN_FLIGHT,
        deadline_s=assignment.job.timeout_s,
        grace_s=assignment.grace_s,
    )


def _end_unbegun(desk: Desk, assignment: Assignment, runs: str, error: StokerError) -> int:
    """Write down that it could not even begin."""
    brief = assignment.job
    now_s = desk.clock.wall_s()
    spec = JobSpec(
        attempt=assignment.run,
        job_id=Digest(brief.job),
        name=brief.name,
        recipe=brief.recipe,
        args=brief.args,
        folder=brief.folder,
        started_s=now_s,
        stoker=desk.version,
    )
    folder = JobFolder.begin(runs, spec_of(spec, assignment), mine())
    folder.end(
        JobEnd(
            state=JobState.CANCELLED if isinstance(error, Terminated) else JobState.FAILED,
            ended_s=now_s,
            hits=0,
            ran=0,
            failed=0,
            elapsed_s=0.0,
            exit_code=exit_code_of(error),
            error=error.to_dict(),
            keys={},
            out=None,
        )
    )
    return exit_code_of(error)


class _Stops:
    """TERM, once and twice."""

    def __init__(self) -> None:
        self._asked: StokerError | None = None
        self._cancel: Callable[[StokerError], None] | None = None
        self._abandon: Callable[[StokerError], None] | None = None

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        # Whoever presses Ctrl-C means the keeper, which sees to us.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def stop_by(self, cancel: Callable[[StokerError], None], give_up: Callable[[StokerError], None]) -> None:
        self._cancel, self._abandon = cancel, give_up
        if self._asked is not None:
            cancel(self._asked)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked is None:
            self._asked = Terminated("its worker asked it to end")
            if self._cancel is not None:
                self._cancel(self._asked)
        elif self._abandon is not None:
            self._abandon(Terminated("its worker ended it"))
            os._exit(Terminated.exit_code)
