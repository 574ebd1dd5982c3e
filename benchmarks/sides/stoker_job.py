"""One job of the benchmark's cookbook in this process, through the same doors that `stoker run` uses.

What a person gets, a benchmark pays for: job folder, journal, leases, history, durable results. Only reading the
command line and laying the result out as a plain folder belong to the command, not to this.
"""

from __future__ import annotations

from pathlib import Path

from stoker.assembly.house import Assembly
from stoker.assembly.settings import read_settings
from stoker.model.digests import digest_value
from stoker.plan.graph import Plan
from stoker.plan.outcome import RunResult
from stoker.worker.execution import Execution
from stoker.worker.job_folder import JobSpec


def assemble(home: Path) -> Assembly:
    """The parts of one process over a home of its own."""
    return Assembly(read_settings({"STOKER_HOME": str(home)}, str(home)))


def run(assembly: Assembly, plan: Plan) -> RunResult:
    """Runs a plan to its end; raises what went wrong."""
    started_s = assembly.clock.wall_s()
    spec = JobSpec(
        attempt=f"{started_s:.6f}-{assembly.entropy():08x}",
        job_id=digest_value("job", {"plan": plan.name}),
        name=plan.name,
        recipe=f"bench/{plan.name}",
        args={},
        folder=assembly.settings.folder,
        started_s=started_s,
        stoker=assembly.version,
    )
    job = Execution(plan=plan, spec=spec, tools=assembly.tools, out=None).run()
    if job.error is not None:
        raise job.error
    if job.result is None:
        raise RuntimeError("the job ended without a result")
    return job.result
