"""From what a person typed to a job that can run: recipe or plan file, arguments, plan, spec. Every fault at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stoker.model.clock import Clock
from stoker.model.errors import ArgsFaults, BadCookbook, BadInput, Fault, PlanFaults
from stoker.model.frozen import frozen
from stoker.model.ids import attempt_id, job_id
from stoker.plan.catalogue import Catalogue
from stoker.plan.distributions import missing_of
from stoker.plan.graph import Plan
from stoker.plan.plan_file import plan_to_json, read_plan
from stoker.plan.recipe import Recipe
from stoker.plan.stage import Stage
from stoker.store.local_files import digest_path
from stoker.store.memo import Memo
from stoker.worker.job_folder import JobSpec


@frozen
class Order:
    """A job ready to run, preview or explain."""

    plan: Plan
    spec: JobSpec


@frozen
class Desk:
    """What taking an order needs."""

    catalogue: Catalogue
    memo: Memo
    clock: Clock
    folder: str
    version: str
    entropy: int

    def order(self, target: str, texts: Mapping[str, str], *, name: str = "") -> Order:
        """Take `RECIPE key=value …` or a plan file."""
        if target.endswith(".json"):
            return self._order_plan_file(target, texts, name)
        recipe = self.catalogue.load(target)
        values, faults = recipe.args.read(texts, owner=recipe.name)
        checked, more = recipe.args.check(values, owner=recipe.name)
        unread = {fault.where for fault in faults}
        faults += [fault for fault in more if fault.where not in unread]
        if faults:
            headline = str(faults[0]) if len(faults) == 1 else f"{len(faults)} faults in the arguments of {recipe.name}"
            raise ArgsFaults(headline, faults=tuple(faults), hint=f"stoker recipes show {recipe.name}")
        return self.order_again(recipe, self._absolute(recipe, checked), name=name or recipe.leaf)

    def order_again(self, recipe: Recipe, values: Mapping[str, Any], *, name: str) -> Order:
        """Take an order whose arguments were checked before."""
        plan = recipe.compile(recipe.args.make(values)) if recipe.args.type else recipe.compile()
        given = plan.node(plan.final).stage.output.ref()
        if given != recipe.output.ref():
            fault = Fault(plan.final, f"gives {given}, but recipe {recipe.name} promises {recipe.output.ref()}")
            raise PlanFaults(str(fault), faults=(fault,), plan=plan.name)
        _refuse_without_libraries(plan)
        identity = recipe.args.identity(values, self._digest)
        return Order(
            plan=plan,
            spec=self._spec(
                name=name,
                recipe=recipe.name,
                args=dict(values),
                identity=job_id(recipe=recipe.name, schema_version=recipe.version, args=_plain(identity)),
            ),
        )

    def stages(self) -> dict[str, Stage]:
        """Give every stage of every cookbook by name."""
        owners: dict[str, str] = {}
        found: dict[str, Stage] = {}
        for cookbook in self.catalogue.cookbooks():
            for stage in cookbook.stages:
                if found.setdefault(stage.name, stage) is not stage:
                    both = f"{owners[stage.name]} and {cookbook.name}"
                    raise BadCookbook(f"stage {stage.name} is in two cookbooks, {both}", hint="uninstall one of them")
                owners.setdefault(stage.name, cookbook.name)
        return found

    def _order_plan_file(self, path: str, texts: Mapping[str, str], name: str) -> Order:
        if texts:
            raise BadInput(
                f"a plan file takes no arguments, got {', '.join(texts)}", hint="edit the file, or run a recipe"
            )
        plan = read_plan(path, self.stages())
        _refuse_without_libraries(plan)
        absolute = self._from_here(path)
        body = plan_to_json(plan)
        for node in plan.nodes:
            # A job is known by what its files hold, not by where they lie.
            body["nodes"][node.id]["args"] = node.stage.args.identity(node.args, self._digest)
        identity = job_id(recipe="plan", schema_version=1, args={"plan": _plain(body)})
        spec = self._spec(name=name or plan.name, recipe=absolute, args={}, identity=identity)
        return Order(plan=plan, spec=spec)

    def _spec(self, *, name: str, recipe: str, args: dict[str, Any], identity: Any) -> JobSpec:
        check_name(name)
        return JobSpec(
            attempt=attempt_id(self.clock.now(), self.entropy),
            job_id=identity,
            name=name,
            recipe=recipe,
            args=args,
            folder=self.folder,
            started_s=self.clock.wall_s(),
            stoker=self.version,
        )

    def _absolute(self, recipe: Recipe, values: dict[str, Any]) -> dict[str, Any]:
        """Make path arguments absolute, so that the job can be run again from anywhere."""
        specs = recipe.args.specs
        return {name: specs[name].type.with_paths(value, self._from_here) for name, value in values.items()}

    def _from_here(self, path: str) -> str:
        return os.path.normpath(os.path.join(self.folder, path))

    def _digest(self, path: str) -> str:
        return digest_path(path, memo=self.memo, clock=self.clock)


_LONGEST_NAME = 100


def check_name(name: str) -> None:
    """Refuse a job name that could not be a folder's."""
    if (
        not name
        or name in (".", "..", "last")
        or not all(char.isalnum() or char in "-_.=," for char in name)
        or name[0] == "-"
        or len(name) > _LONGEST_NAME
    ):
        hint = f"letters, digits, and - _ . = , inside; at most {_LONGEST_NAME} of them"
        raise BadInput(f"{name[: _LONGEST_NAME + 1]!r} can't be a job's name", hint=hint)


def _plain(value: Any) -> Any:
    """Give data with tuples as lists, as the encoding wants it."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def reorder(desk: Desk, spec: JobSpec) -> Order:
    """Take an earlier job's order again, as things are now: same recipe, same arguments, today's code and files."""
    if spec.recipe.endswith(".json"):
        return desk.order(spec.recipe, {}, name=spec.name)
    recipe = desk.catalogue.load(spec.recipe)
    checked, faults = recipe.args.check(spec.args, owner=recipe.name)
    if faults:
        raise ArgsFaults(f"{recipe.name} no longer takes these arguments: {faults[0]}", faults=tuple(faults))
    return desk.order_again(recipe, checked, name=spec.name)


def _refuse_without_libraries(plan: Plan) -> None:
    missing = missing_of([node.stage for node in plan.nodes])
    if missing is not None:
        raise missing
