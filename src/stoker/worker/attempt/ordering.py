"""From an assignment to an order that can run here: arguments that were checked at submission, today's code."""

from __future__ import annotations

from typing import Any

from stoker.model.digests import Digest
from stoker.model.errors import BadInput, HashMismatch
from stoker.model.fleet_errors import VersionSkew
from stoker.model.frozen import changed
from stoker.model.ids import contents_of
from stoker.plan.recipe import Recipe
from stoker.plan.sweep_plan import TrialNodes
from stoker.worker.attempt.assignment import Assignment, JobBrief
from stoker.worker.attempt.inputs import with_inputs, with_runtime
from stoker.worker.config_paper import CONFIG, config_paper
from stoker.worker.job_folder import JobSpec
from stoker.worker.ordering import Desk, Order
from stoker.worker.program_order import RECIPE, ProgramWords
from stoker.worker.python_paper import PYTHON, python_paper
from stoker.worker.trials import Trial

CHECKPOINTS = "checkpoints"
"""The argument by which a recipe is told a folder to write to, beside its result."""


def order_assignment(desk: Desk, assignment: Assignment) -> Order:
    """Take the order that an assignment is. Raises `StokerError` if this machine can't do it as it was meant."""
    brief = assignment.job
    recipe = desk.catalogue.load(brief.recipe)
    if recipe.version != brief.schema_version:
        raise VersionSkew(
            f"{brief.recipe} is of version {recipe.version} here, and the job was made for {brief.schema_version}",
            hint="install the same version of its cookbook everywhere",
        )
    _check_found(recipe, brief)
    args = with_inputs(recipe, _args_here(recipe, brief), assignment.paths)
    _check_contents(desk, brief, args)
    if assignment.run_as and recipe.name != RECIPE and args.get(CHECKPOINTS):
        # A stage runs as we do, and whoever wants the job may not say where we write.
        args[CHECKPOINTS] = None
    program: ProgramWords | None = None
    if recipe.name == RECIPE:
        program = desk.program_words(tuple(map(str, args.get("argv", ()))), brief.folder, at_once=1)
        # Whose copy it is, it was told; where it lies is no part of what it makes, nor of where it goes on from.
        args["folder"] = args.get("folder") or brief.folder
        args["workspace"] = brief.folder
        if assignment.python:
            args["python"] = assignment.python["interpreter"]
    # On its own it is no sweep: its result lies at the top of its bundle, wherever its label puts that later.
    trial = Trial(
        number=brief.number or 1,
        label="",
        point=brief.point,
        args=args,
        job_id=Digest(brief.job),
        nodes=TrialNodes(final="", keep=(), nodes=()),
    )
    order = desk.order_again(recipe, [trial], name=brief.name, program=program)
    papers = dict(order.papers)
    if program is not None:
        papers[CONFIG] = config_paper(None, program, order.code)
        if assignment.python:
            papers[PYTHON] = python_paper(assignment.python)
    return changed(order, spec=spec_of(order.spec, assignment), papers=papers)


def spec_of(spec: JobSpec, assignment: Assignment) -> JobSpec:
    """Give the spec of an assignment's attempt: under the job's own id, with where it belongs."""
    brief = assignment.job
    told = {
        "job": brief.job,
        "number": brief.number,
        "label": brief.label,
        "attempt": brief.attempt,
        "epoch": brief.epoch,
        "generation": brief.generation,
        "coordinator": assignment.coordinator,
        "worker": assignment.worker,
    }
    return changed(
        spec,
        attempt=assignment.run,
        job_id=Digest(brief.job),
        folder=brief.folder or spec.folder,
        options={**spec.options, "fleet": {**told, **assignment.facts}},
    )


def _check_found(recipe: Recipe, brief: JobBrief) -> None:
    """Refuse a job that runs with a path in the place of a text of its id, where the recipe declares no path."""
    for name, wanted in brief.found.items():
        if name not in recipe.args.specs or not recipe.args.specs[name].type.paths(brief.args[name]):
            message = f"its argument {name} is not {wanted!r}, which its id is made from, and no path of {recipe.name}"
            raise BadInput(message, hint="submit the job again")


def _check_contents(desk: Desk, brief: JobBrief, args: dict[str, Any]) -> None:
    """Refuse a job whose files here are not those that its id is made from, where they did not come as its inputs."""
    for name, wanted in brief.unproven.items():
        for path, digest in contents_of(wanted, args.get(name)):
            if desk.digest(path) != digest:
                raise HashMismatch(
                    f"{name}: {path} is not what the job was submitted with ({digest[:19]})",
                    hint="submit the job again, or put the same file there",
                    path=path,
                )


def _args_here(recipe: Recipe, brief: JobBrief) -> dict[str, Any]:
    """Give a job's arguments with what placement decided: of what is made, at most a width that nobody named."""
    args = with_runtime(recipe, brief.args)
    if brief.seed is not None and "seed" in recipe.args.specs:
        args.setdefault("seed", brief.seed)
    if recipe.name == RECIPE:
        args["gpus"] = len(brief.devices)
        if not brief.devices:
            args |= {"vram": "", "shares": False}
        elif brief.is_shared and brief.vram_bytes:
            args |= {"vram": f"{brief.vram_bytes}B", "shares": True}
        else:
            # Granted alone, whatever it allows: its machine's owner shares no devices, or it has several of them.
            args["shares"] = False
    elif recipe.shares is not None and "gpus" in recipe.args.specs:
        args["gpus"] = len(brief.devices)
    return args
