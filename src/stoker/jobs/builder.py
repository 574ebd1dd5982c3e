"""From a command line to orders: the same words that `stoker run` takes, every trial a job of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.config.fields import ANY, is_version
from stoker.core.errors import Diagnostic, InvalidArgs
from stoker.core.frozen import fields_of, fresh, frozen
from stoker.core.job import JobSpec, job_id
from stoker.core.machine import Requirements
from stoker.core.text import parse_duration
from stoker.engine.code_identity import CodeIdentity
from stoker.engine.recipe import Recipe
from stoker.engine.stage import SharedBase
from stoker.jobs.build_context import ComposedJob, JobCompiler, TrialBatch, UncompiledTrial, check_name
from stoker.jobs.manifest_checks import RecipeForm
from stoker.jobs.pack.code_tree import PreparedSubmission, SubmittedCode, SubmittedCodeOptions, code_shipments
from stoker.jobs.pack.data_inputs import DataInputs, typed_inputs
from stoker.jobs.pack.environment_choices import EnvironmentChoices, JobEnvironmentChoices
from stoker.jobs.program import FOUND
from stoker.jobs.program_specs import FOUND_ANYWHERE, program_identity
from stoker.jobs.recipe_specs import RecipeJobTemplate, RecipeSpecBuilder
from stoker.jobs.requirements import PlanShape, PlanShapes, required_of_needs, required_of_program
from stoker.protocol.job_messages import checked_spec


@frozen
class JobQueueOptions:
    """What is wanted of the queue."""

    priority: int = 0
    after: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    attempts: int = 1
    timeout_s: float | None = None
    expected_s: float | None = None
    allowed_hosts: tuple[str, ...] = ()
    env: Mapping[str, str] = fresh(factory=dict)
    """Platform → file that a program's environment is made from; "" is any other platform."""

    def fields(self) -> dict[str, Any]:
        """Return them as fields of a `JobSpec`."""
        return {name: value for name, value in fields_of(self).items() if name != "env"}


def orders_of_draft(
    draft: ComposedJob,
    *,
    desk: JobCompiler,
    code: CodeIdentity,
    wishes: JobQueueOptions | None = None,
    source: str = "",
    code_wishes: SubmittedCodeOptions | None = None,
) -> PreparedSubmission:
    """Make the orders of a composed configuration, a program's with its code packed (`PreparedSubmission.packed`).

    Raises `InvalidArgs`, what making its trials raises and what packing raises.
    """
    check_name(draft.name)
    batch = desk.make_trials(draft)
    shapes = PlanShapes(desk, code)
    wishes = wishes or JobQueueOptions()
    shared = {"name": draft.name, "folder": desk.folder, **wishes.fields()}
    is_sweep = len(batch.made) > 1
    places = [_place(one, is_sweep=is_sweep) for one in batch.made]
    packing, inputs = SubmittedCode(desk, code_wishes), DataInputs(desk)
    if draft.program is not None:
        ways = _Ways(desk.folder, wishes.env, draft.recipe)
        jobs = _program_jobs(
            draft.recipe, batch, places, shared, desk=desk, shapes=shapes, ways=ways, packing=packing, inputs=inputs
        )
    else:
        if wishes.env:
            fault = Diagnostic("env", "only a program has an environment of its own", "leave --env out")
            raise _refused(draft.recipe, [fault])
        jobs = _recipe_jobs(draft.recipe, batch, places, shared, making=RecipeSpecBuilder(desk, shapes, inputs))
    notes = (*batch.notes, *(note for one in packing.packed for note in one.notes))
    return PreparedSubmission(
        jobs=tuple(jobs),
        notes=notes,
        source=source,
        packed=packing.packed,
        shipments=(*code_shipments(packing.packed), *inputs.shipments),
    )


def _recipe_jobs(
    recipe: Recipe,
    batch: TrialBatch,
    places: list[dict[str, Any]],
    shared: Mapping[str, Any],
    *,
    making: RecipeSpecBuilder,
) -> list[JobSpec]:
    form = RecipeForm(recipe)
    jobs = []
    for one, place in zip(batch.made, places, strict=True):
        said = tuple(name for name, value in one.args.items() if value != form.base.get(name, form))
        wanted = RecipeJobTemplate(form=form, said=said, required=_required_of)
        faults: list[Diagnostic] = []
        order = making.order(wanted, one.args, {**shared, **place}, faults.append)
        if order is None:
            raise _refused(recipe, faults)
        jobs.append(order)
    return jobs


def _required_of(shape: PlanShape, shared: SharedBase | None, gpus: int | None) -> Requirements:
    return required_of_needs(shape.needs, shared, gpus)


def _program_jobs(  # noqa: PLR0913 - what they are made of, and by whom
    recipe: Recipe,
    batch: TrialBatch,
    places: list[dict[str, Any]],
    shared: Mapping[str, Any],
    *,
    desk: JobCompiler,
    shapes: PlanShapes,
    ways: _Ways,
    packing: SubmittedCode,
    inputs: DataInputs,
) -> list[JobSpec]:
    settings = tuple(name for name in recipe.args.specs if name not in FOUND)
    jobs = []
    for one, place in zip(batch.made, places, strict=True):
        values = {**one.args, **FOUND_ANYWHERE}
        chosen = ways.of(values)
        environment = chosen.choices
        code = packing.of(needed=chosen.files)
        values["folder"] = code["project"]
        data, read = typed_inputs(inputs, values, desk.folder)
        shape = shapes.of(recipe, values, settings)
        if shape.faults:
            raise _refused(recipe, list(shape.faults))
        identity = program_identity(recipe, values, data, desk.digest)
        timeout_s = shared["timeout_s"] or (parse_duration(values["timeout"]) if values["timeout"] else None)
        jobs.append(
            checked_spec(
                id=job_id(recipe=recipe.name, schema_version=recipe.version, args=identity),
                recipe=recipe.name,
                schema_version=recipe.version,
                args=values,
                identity=identity,
                code={**batch.code, **{way.path: way.digest for way in environment if way.kind != "python"}},
                environment=environment,
                inputs=tuple(read),
                requirements=required_of_program(values),
                **{**shared, **place, **code, "timeout_s": timeout_s},
            )
        )
    return jobs


_FILES = "uv.lock, pyproject.toml, or requirements as .txt or .in"


class _Ways:
    """The ways to a program's interpreter, by what is said of it."""

    def __init__(self, project: str, env: Mapping[str, str], recipe: Recipe) -> None:
        self._project = project
        self._env = env
        self._recipe = recipe
        self._choices = EnvironmentChoices(project)

    def of(self, values: dict[str, Any]) -> JobEnvironmentChoices:
        """Return them; a version that `python` asks for is then one of them, and no path."""
        python = str(values.get("python") or "")
        if not self._env and not is_version(python):
            return JobEnvironmentChoices()
        chosen = self._choices.of(self._env, {ANY: python} if python else {})
        if chosen.faults:
            # A recipe's own `env` are variables, and no files.
            hint = f"--env names a file in {self._project} or below it: {_FILES}" if self._env else ""
            raise _refused(self._recipe, list(chosen.faults), hint=hint)
        values["python"] = ""
        return chosen


def _place(made: UncompiledTrial, *, is_sweep: bool) -> dict[str, Any]:
    return {"number": made.number, "label": made.label, "point": dict(made.point)} if is_sweep else {}


def _refused(recipe: Recipe, faults: list[Diagnostic], *, hint: str = "") -> InvalidArgs:
    message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} faults in the arguments of {recipe.name}"
    return InvalidArgs(message, faults=tuple(faults), hint=hint or f"stoker recipes show {recipe.name}")
