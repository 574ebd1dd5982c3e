"""Sweeps of real programs and recipes in an office: ordered, continued and run by the same calls as `stoker run`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from stoker.core.frozen import changed
from stoker.engine.journal import read_status
from stoker.engine.types import RunOptions
from stoker.jobs.builder import JobBuild
from stoker.jobs.execution import Continuation, Execution, JobResult
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import tell
from stoker.jobs.request import JobRequest
from stoker.jobs.rerun import go_on, go_on_after
from stoker.jobs.trials import trials_of_job
from tests.unit.jobs.conftest import Office

# Says in the ledger that it ran, fails for the numbers in `bad`, and writes what it was given to its result.
WORK = """#!/bin/sh
echo "$1" >> ledger
if grep -qx "$1" bad 2>/dev/null; then echo "no way with $1" >&2; exit 3; fi
echo "loss=$1"
echo "$1 $(cat version)" > "$STOKER_OUT/made"
"""


class Sweeps:
    """Runs sweeps in an office's folder."""

    def __init__(self, office: Office) -> None:
        self.office = office
        self.folder = office.folder
        self.indexes = str(office.folder / "state" / "sweeps")
        program = self.folder / "work.sh"
        program.write_text(WORK)
        program.chmod(0o755)
        (self.folder / "version").write_text("1")
        (self.folder / "bad").write_text("")

    def order(self, *overrides: str, program: tuple[str, ...] = ("./work.sh", "{n}"), target: str = "") -> JobBuild:
        words = () if target else program
        return self.office.builder.build(JobRequest(target=target, overrides=overrides, program=words))

    def look(self, order: JobBuild, *, afresh: bool = False) -> Continuation:
        return go_on(order, self.office.lab.cache, self.indexes, afresh=afresh)

    def execution(self, order: JobBuild, continuation: Continuation | None = None, **more: Any) -> Execution:
        going_on = continuation if continuation is not None else self.look(order)
        options = RunOptions(max_in_flight=1, keep_going=True, kept=going_on.kept, grace_s=0.5)
        given = {"ran_code": going_on.ran_code, "options": options}
        execution = self.office.execution(order, **{**given, **more})
        if going_on.index is not None:
            execution.index = changed(going_on.index, attempt=execution.attempt.id)
            execution.index.begin()
        return execution

    def run(self, order: JobBuild, continuation: Continuation | None = None, **more: Any) -> JobResult:
        return self.execution(order, continuation, **more).run()

    def run_line(self, *overrides: str, **more: Any) -> JobResult:
        return self.run(self.order(*overrides, **more))

    def again(self, folder: JobFolder) -> tuple[JobBuild, Continuation, int]:
        """Order an earlier job again, for what failed in it."""
        order = self.office.builder.build(JobRequest(earlier=folder))
        story = tell(read_status(folder.status_path))
        going_on, left = go_on_after(
            order, self.office.lab.cache, self.indexes, trials=trials_of_job(folder), story=story
        )
        return order, going_on, left

    def ran(self) -> list[str]:
        """Return which programs ran since the last time this was asked."""
        ledger = self.folder / "ledger"
        lines = ledger.read_text().split() if ledger.exists() else []
        ledger.write_text("")
        return lines

    def out(self, order_or_job: JobBuild | JobResult, label: str) -> Path:
        spec = order_or_job.spec if isinstance(order_or_job, JobBuild) else order_or_job.folder.spec()
        return self.folder / "stoker-out" / spec.name / label


def states(job: JobResult) -> dict[str, str]:
    """Return how each trial ended, kept ones as that."""
    return {end.trial.spec.label: "kept" if end.is_kept else end.state for end in job.trials}


def counts(job: JobResult) -> Counter[str]:
    return Counter(states(job).values())


def renamed(order: JobBuild, name: str) -> JobBuild:
    return changed(order, spec=changed(order.spec, name=name))
