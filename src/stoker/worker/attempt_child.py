"""Build the job of an assignment here: arguments checked at submission, today's code. Then run it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from stoker.core.errors import BadInput, HashMismatch, InternalError, StokerError, Terminated, VersionSkew, exit_code_of
from stoker.core.frozen import changed
from stoker.core.job import JobSpec, JobState, contents_of
from stoker.engine.recipe import Recipe
from stoker.engine.types import MAX_IN_FLIGHT, RunOptions
from stoker.host.identity import ProcessIdentity, mine
from stoker.jobs.builder import JobBuild, JobBuilder
from stoker.jobs.execution import Execution, ExecutionTools, abandon
from stoker.jobs.job_folder import PYTHON, Attempt, JobEnd, JobFolder, python_paper
from stoker.jobs.job_receipt import write_end_receipt
from stoker.jobs.pack.attempt_inputs import with_inputs, with_runtime
from stoker.jobs.program import RECIPE, ProgramWords
from stoker.jobs.trial_settings import CONFIG, config_paper
from stoker.protocol.job_checks import found_args, unproven_args
from stoker.worker.assignment import SAME_REQUEST_S, Assignment, LeaseFile, LeaseWatch

CHECKPOINTS = "checkpoints"
"""The argument that gives a recipe a folder to write to, beside its result."""


def build_assignment(builder: JobBuilder, assignment: Assignment) -> JobBuild:
    """Build the job of an assignment. Raises `StokerError` if this machine can't run it as submitted."""
    spec = assignment.spec
    recipe = builder.catalogue.load(spec.recipe)
    if recipe.version != spec.schema_version:
        raise VersionSkew(
            f"{spec.recipe} has version {recipe.version} here; the job was submitted for {spec.schema_version}",
            hint="install the same version of its cookbook everywhere",
        )
    check_found(recipe, spec)
    args = with_inputs(recipe, _args_here(recipe, assignment), assignment.paths, spec.identity)
    _check_contents(builder, spec, args)
    if assignment.run_as and recipe.name != RECIPE and args.get(CHECKPOINTS):
        # A stage runs as the worker's user, and a job's owner may not choose where that writes.
        args[CHECKPOINTS] = None
    program: ProgramWords | None = None
    if recipe.name == RECIPE:
        program = builder.program_words(tuple(map(str, args.get("argv", ()))), assignment.folder, at_once=1)
        # The path of its code is part neither of its result's key nor of where it resumes from.
        args["folder"] = args.get("folder") or assignment.folder
        args["workspace"] = assignment.folder
        if assignment.python:
            args["python"] = assignment.python["interpreter"]
    # Without its label it is no sweep: its result is at the top of its tree.
    built = changed(spec, number=spec.number or 1, label="", args=args)
    build = builder.build_checked(recipe, [built], program)
    papers = dict(build.papers)
    if program is not None:
        papers[CONFIG] = config_paper(None, program, build.code)
        if assignment.python:
            papers[PYTHON] = python_paper(assignment.python)
    return changed(build, papers=papers)


def attempt_of(builder: JobBuilder, assignment: Assignment, spec: JobSpec) -> Attempt:
    """Return the attempt of an assignment, with `spec` as it was built here and its lease in the options."""
    token = assignment.token
    fleet = {
        "job": assignment.spec.id,
        "number": assignment.spec.number,
        "label": assignment.spec.label,
        "attempt": token.attempt,
        "epoch": token.epoch,
        "generation": token.generation,
        "coordinator": assignment.coordinator,
        "worker": assignment.worker,
        **assignment.facts,
    }
    return Attempt(
        id=assignment.run,
        spec=changed(spec, id=assignment.spec.id, folder=assignment.folder or builder.folder),
        started_s=builder.clock.wall_s(),
        stoker=builder.version,
        options={"fleet": fleet},
    )


def check_found(recipe: Recipe, spec: JobSpec) -> None:
    """Raise `BadInput` if an argument has a path in place of its text in the id, and the recipe declares no path.

    So for one that decides the result and is no part of the id, beyond its default.
    """
    for name, declared in recipe.args.specs.items():
        is_unnamed = declared.is_later and name in spec.args and name not in spec.identity
        if is_unnamed and declared.check(spec.args[name]) != declared.default:
            message = f"argument {name} is no part of the job's id, so it must have its default"
            raise BadInput(message, hint="submit the job again")
    for name, text in found_args(spec).items():
        if name not in recipe.args.specs or not recipe.args.specs[name].type.paths(spec.args[name]):
            message = f"argument {name} is not {text!r}, the value in its id, and no path of {recipe.name}"
            raise BadInput(message, hint="submit the job again")


def _check_contents(builder: JobBuilder, spec: JobSpec, args: dict[str, Any]) -> None:
    """Raise `HashMismatch` if a file here differs from the digest in the job's id and did not come as an input."""
    for name, digests in unproven_args(spec).items():
        for path, digest in contents_of(digests, args.get(name)):
            if builder.digest(path) != digest:
                raise HashMismatch(
                    f"{name}: {path} is not what the job was submitted with ({digest[:19]})",
                    hint="submit the job again, or put the same file there",
                    path=path,
                )


def _args_here(recipe: Recipe, assignment: Assignment) -> dict[str, Any]:
    """Return a job's arguments with the devices that placement assigned."""
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
            # Granted alone: the machine's owner shares no devices, or the job has several.
            args["shares"] = False
    elif recipe.shares is not None and "gpus" in recipe.args.specs:
        args["gpus"] = len(devices)
    return args


def run_attempt(assignment: Assignment, *, builder: JobBuilder, tools: Callable[[], ExecutionTools], runs: str) -> int:
    """Run one attempt to its end in this process, under its lease; return the exit code.

    Its folder below `runs` always has its end, whatever went wrong. Nothing is written to pipes that would close
    with the worker: `status.jsonl` and `end.json` are the report. TERM stops the work gracefully; a second TERM, more
    than 2 s later, ends it at once, and so does the end of a worker that nothing continues.
    """
    stops = _Stops()
    stops.listen()
    try:
        build = build_assignment(builder, assignment)
        built = tools()
    except StokerError as error:
        return _end_unbegun(builder, assignment, runs, error)
    except Exception as problem:
        _end_unbegun(builder, assignment, runs, InternalError(f"{type(problem).__name__}: {problem}"))
        raise
    attempt = attempt_of(builder, assignment, build.spec)
    options = RunOptions(
        max_in_flight=1 if build.program is not None else MAX_IN_FLIGHT,
        deadline_s=assignment.spec.timeout_s,
        grace_s=assignment.grace_s,
    )
    execution = Execution(build=build, attempt=attempt, tools=built, out=None, options=options)

    def give_up(error: StokerError) -> None:
        abandon(built, attempt, error)
        # What runs programs in a box kills them now.
        os._exit(error.exit_code)

    stops.stop_by(execution.cancel, give_up)
    watch = LeaseWatch(
        LeaseFile(assignment.lease_path),
        clock=built.clock,
        on_over=lambda why: execution.cancel(Terminated(why)),
        worker=ProcessIdentity.from_dict(assignment.ends_with) if assignment.ends_with else None,
        on_gone=lambda: give_up(Terminated("its worker was killed, and none continues its attempts")),
    )
    with watch:
        job = execution.run()
    return exit_code_of(job.error) if job.error is not None else 0


def _end_unbegun(builder: JobBuilder, assignment: Assignment, runs: str, error: StokerError) -> int:
    """Write the end of an attempt that could not start."""
    attempt = attempt_of(builder, assignment, assignment.spec)
    folder = JobFolder.begin(runs, attempt, mine())
    end = JobEnd(
        state=JobState.CANCELLED if isinstance(error, Terminated) else JobState.FAILED,
        ended_s=attempt.started_s,
        hits=0,
        ran=0,
        failed=0,
        elapsed_s=0.0,
        exit_code=exit_code_of(error),
        error=error.to_dict(),
        keys={},
        out=None,
    )
    write_end_receipt(folder, attempt, end)
    folder.end(end)
    return exit_code_of(error)


class _Stops:
    """Handles SIGTERM, the first and the second.

    One soon after the first is the same request: a batch system sends one to every process, and the worker another.
    """

    def __init__(self) -> None:
        self._request: StokerError | None = None
        self._requested_s = 0.0
        self._cancel: Callable[[StokerError], None] | None = None
        self._give_up: Callable[[StokerError], None] | None = None

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        # Ctrl-C in the worker's terminal is for the worker, which stops its children.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def stop_by(self, cancel: Callable[[StokerError], None], give_up: Callable[[StokerError], None]) -> None:
        self._cancel, self._give_up = cancel, give_up
        if self._request is not None:
            cancel(self._request)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self._request is None:
            self._requested_s = now_s
            self._request = Terminated("stopped by its worker")
            if self._cancel is not None:
                self._cancel(self._request)
        elif self._give_up is not None and now_s - self._requested_s >= SAME_REQUEST_S:
            self._give_up(Terminated("killed by its worker"))
