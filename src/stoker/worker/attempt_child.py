"""From an assignment to an order that can run here: arguments that were checked at submission, today's code."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from stoker.core.digests import Digest
from stoker.core.errors import BadInput, HashMismatch, InternalError, StokerError, Terminated, VersionSkew, exit_code_of
from stoker.core.frozen import changed
from stoker.core.job import JobSpec, JobState, contents_of
from stoker.engine.plan import TrialNodes
from stoker.engine.recipe import Recipe
from stoker.engine.types import MAX_IN_FLIGHT, RunOptions
from stoker.host.identity import mine
from stoker.jobs.build_context import CompiledJob, JobCompiler
from stoker.jobs.execution import Execution, ExecutionTools, abandon
from stoker.jobs.job_folder import PYTHON, JobEnd, JobFolder, JobRecord, python_paper
from stoker.jobs.pack.attempt_inputs import with_inputs, with_runtime
from stoker.jobs.program import RECIPE, ProgramWords
from stoker.jobs.secret_mask import CONFIG, config_paper
from stoker.jobs.trials import Trial
from stoker.protocol.client_identity import found_args, unproven_args
from stoker.worker.assignment import Assignment, LeaseFile, LeaseWatch

CHECKPOINTS = "checkpoints"
"""The argument by which a recipe is told a folder to write to, beside its result."""


def order_assignment(desk: JobCompiler, assignment: Assignment) -> CompiledJob:
    """Take the order that an assignment is. Raises `StokerError` if this machine can't do it as it was meant."""
    spec = assignment.spec
    recipe = desk.catalogue.load(spec.recipe)
    if recipe.version != spec.schema_version:
        raise VersionSkew(
            f"{spec.recipe} is of version {recipe.version} here, and the job was made for {spec.schema_version}",
            hint="install the same version of its cookbook everywhere",
        )
    _check_found(recipe, spec)
    args = with_inputs(recipe, _args_here(recipe, assignment), assignment.paths)
    _check_contents(desk, spec, args)
    if assignment.run_as and recipe.name != RECIPE and args.get(CHECKPOINTS):
        # A stage runs as we do, and whoever wants the job may not say where we write.
        args[CHECKPOINTS] = None
    program: ProgramWords | None = None
    if recipe.name == RECIPE:
        program = desk.program_words(tuple(map(str, args.get("argv", ()))), assignment.folder, at_once=1)
        # Where its copy of the code is, is no part of what it makes, nor of where it resumes from.
        args["folder"] = args.get("folder") or assignment.folder
        args["workspace"] = assignment.folder
        if assignment.python:
            args["python"] = assignment.python["interpreter"]
    # On its own it is no sweep: its result lies at the top of its bundle, wherever its label puts that later.
    trial = Trial(
        number=spec.number or 1,
        label="",
        point=spec.point,
        args=args,
        job_id=Digest(spec.id),
        nodes=TrialNodes(final="", keep=(), nodes=()),
    )
    order = desk.order_again(recipe, [trial], name=spec.name, program=program)
    papers = dict(order.papers)
    if program is not None:
        papers[CONFIG] = config_paper(None, program, order.code)
        if assignment.python:
            papers[PYTHON] = python_paper(assignment.python)
    return changed(order, spec=spec_of(order.spec, assignment), papers=papers)


def spec_of(record: JobRecord, assignment: Assignment) -> JobRecord:
    """Return the record of an assignment's attempt: under the job's own id, with its place in the fleet."""
    spec, token = assignment.spec, assignment.token
    fleet = {
        "job": spec.id,
        "number": spec.number,
        "label": spec.label,
        "attempt": token.attempt,
        "epoch": token.epoch,
        "generation": token.generation,
        "coordinator": assignment.coordinator,
        "worker": assignment.worker,
    }
    return changed(
        record,
        attempt=assignment.run,
        job_id=Digest(spec.id),
        folder=assignment.folder or record.folder,
        options={**record.options, "fleet": {**fleet, **assignment.facts}},
    )


def _check_found(recipe: Recipe, spec: JobSpec) -> None:
    """Refuse a job that runs with a path in the place of a text of its id, where the recipe declares no path."""
    for name, wanted in found_args(spec).items():
        if name not in recipe.args.specs or not recipe.args.specs[name].type.paths(spec.args[name]):
            message = f"its argument {name} is not {wanted!r}, which its id is made from, and no path of {recipe.name}"
            raise BadInput(message, hint="submit the job again")


def _check_contents(desk: JobCompiler, spec: JobSpec, args: dict[str, Any]) -> None:
    """Refuse a job whose files here are not those that its id is made from, where they did not come as its inputs."""
    for name, wanted in unproven_args(spec).items():
        for path, digest in contents_of(wanted, args.get(name)):
            if desk.digest(path) != digest:
                raise HashMismatch(
                    f"{name}: {path} is not what the job was submitted with ({digest[:19]})",
                    hint="submit the job again, or put the same file there",
                    path=path,
                )


def _args_here(recipe: Recipe, assignment: Assignment) -> dict[str, Any]:
    """Return a job's arguments with what placement decided: of what is made, at most a width that is not given."""
    spec, devices = assignment.spec, assignment.devices
    args = with_runtime(recipe, spec.args)
    if assignment.interpreter:
        args["python"] = assignment.interpreter
    if spec.seed is not None and "seed" in recipe.args.specs:
        args.setdefault("seed", spec.seed)
    if recipe.name == RECIPE:
        args["gpus"] = len(devices)
        if not devices:
            args |= {"vram": "", "shares": False}
        elif assignment.is_shared and assignment.vram_bytes:
            args |= {"vram": f"{assignment.vram_bytes}B", "shares": True}
        else:
            # Granted alone, whatever it allows: its machine's owner shares no devices, or it has several of them.
            args["shares"] = False
    elif recipe.shares is not None and "gpus" in recipe.args.specs:
        args["gpus"] = len(devices)
    return args


# Run one attempt to its end, in this process: journey one inside a lease, told in the attempt's folder.
#
# Nothing is said on pipes that would die with the worker: `status.jsonl` and `end.json` are the report. TERM asks the
# work to end and waits for it; a second TERM ends it now.


def run_attempt(assignment: Assignment, *, desk: JobCompiler, tools: Callable[[], ExecutionTools], runs: str) -> int:
    """Run it; give the exit code. How it ended stands in its folder below `runs`, whatever went wrong."""
    stops = _Stops()
    stops.listen()
    try:
        order = order_assignment(desk, assignment)
        built = tools()
    except StokerError as error:
        return _end_unbegun(desk, assignment, runs, error)
    except Exception as problem:
        _end_unbegun(desk, assignment, runs, InternalError(f"{type(problem).__name__}: {problem}"))
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


def _options(order: CompiledJob, assignment: Assignment) -> RunOptions:
    return RunOptions(
        max_in_flight=1 if order.program is not None else MAX_IN_FLIGHT,
        deadline_s=assignment.spec.timeout_s,
        grace_s=assignment.grace_s,
    )


def _end_unbegun(desk: JobCompiler, assignment: Assignment, runs: str, error: StokerError) -> int:
    """Write down that it could not even begin."""
    spec = assignment.spec
    now_s = desk.clock.wall_s()
    record = JobRecord(
        attempt=assignment.run,
        job_id=Digest(spec.id),
        name=spec.name,
        recipe=spec.recipe,
        args=spec.args,
        folder=assignment.folder,
        started_s=now_s,
        stoker=desk.version,
    )
    folder = JobFolder.begin(runs, spec_of(record, assignment), mine())
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
        # Whoever presses Ctrl-C means the worker, which sees to us.
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
