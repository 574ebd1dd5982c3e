"""One job of the benchmark's cookbook in this process, through the same doors that `stoker run` uses.

What a person gets, a benchmark pays for: job folder, journal, leases, history, durable results. Only reading the
command line and laying the result out as a plain folder belong to the command, not to this.
"""

from __future__ import annotations

from pathlib import Path

from stoker.api.app_parts import read_settings
from stoker.app.app import App
from stoker.core.digests import digest_value
from stoker.core.job import JobSpec
from stoker.engine.plan import Plan
from stoker.engine.types import RunResult
from stoker.jobs.builder import JobBuild
from stoker.jobs.execution import Execution
from stoker.jobs.job_folder import Attempt


def assemble(home: Path) -> App:
    """The parts of one process over a home of its own."""
    return App(read_settings({"STOKER_HOME": str(home)}, str(home)))


def run(assembly: App, plan: Plan) -> RunResult:
    """Runs a plan to its end; raises what went wrong."""
    started_s = assembly.clock.wall_s()
    spec = JobSpec(
        id=digest_value("job", {"plan": plan.name}),
        name=plan.name,
        recipe=f"bench/{plan.name}",
        folder=assembly.settings.folder,
    )
    attempt = Attempt(
        id=f"{started_s:.6f}-{assembly.entropy():08x}", spec=spec, started_s=started_s, stoker=assembly.version
    )
    job = Execution(build=JobBuild(plan=plan, spec=spec), attempt=attempt, tools=assembly.tools, out=None).run()
    if job.error is not None:
        raise job.error
    if job.result is None:
        raise RuntimeError("the job ended without a result")
    return job.result
