"""What a recipe's plan tells about a job: what it needs, which files it reads, which code it is made of.

A plan is compiled once for each shape of arguments, not for each job: jobs that differ in numbers alone have the same
stages, files and needs, but for numbers that are needs by their name (`COUNTED`). So a number that a recipe refuses
only when it compiles may be found by the worker alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.model.digests import digest_value
from stoker.model.errors import Faults
from stoker.model.faults import Fault
from stoker.model.frozen import changed, frozen
from stoker.model.resources import Needs
from stoker.plan.code_identity import CodeIdentity
from stoker.plan.graph import Plan
from stoker.plan.recipe import Recipe
from stoker.worker.ordering import Desk

COUNTED = frozenset({"cpus", "gpus", "ranks"})
"""Arguments whose number says what a job takes, in every recipe that has them."""


@frozen
class Shape:
    """What jobs of one shape have in common."""

    needs: Needs = Needs(cpu=0)
    """The most that any of its stages takes."""
    files: frozenset[str] = frozenset()
    """The user's files that its stages read."""
    code: str = ""
    """A digest of the code of all its stages."""
    faults: tuple[Fault, ...] = ()
    """Why it can't be compiled."""


class Shapes:
    """Compiles plans, one for each shape."""

    def __init__(self, desk: Desk, code: CodeIdentity) -> None:
        # It runs elsewhere: what this machine has of devices and memory is nothing to it.
        elsewhere = changed(desk.surroundings, rooms=dict, memory=lambda: None)
        self._desk = changed(desk, count_gpus=lambda: 0, surroundings=elsewhere)
        self._code = code
        self._known: dict[Any, Shape] = {}
        self._digests: dict[frozenset[str], str] = {}

    def of(
        self,
        recipe: Recipe,
        values: Mapping[str, Any],
        said: tuple[str, ...],
        stand_ins: frozenset[str] = frozenset(),
    ) -> Shape:
        """Give the shape of a job whose values are defaults but for those said; nothing is judged by `stand_ins`."""
        outlines = [(name, values[name] if name in COUNTED else _outline(values[name])) for name in said]
        key = (recipe.name, stand_ins, *outlines)
        shape = self._known.get(key)
        if shape is None:
            shape = self._compiled(recipe, values, stand_ins)
            if not shape.faults:
                # What is wrong may be a number of this job's alone.
                self._known[key] = shape
        return shape

    def _compiled(self, recipe: Recipe, values: Mapping[str, Any], stand_ins: frozenset[str]) -> Shape:
        desk = changed(self._desk, surroundings=changed(self._desk.surroundings, stand_ins=stand_ins))
        try:
            plan = desk.compile(recipe, values)
        except Faults as error:
            prefix = f"{recipe.name}."
            return Shape(
                faults=tuple(
                    Fault(fault.where.removeprefix(prefix), fault.message, fault.hint) for fault in error.faults
                )
            )
        needs = [node.needs for node in plan.nodes]
        on_device = [one for one in needs if one.gpu]
        return Shape(
            needs=Needs(
                cpu=max(one.cpu for one in needs),
                gpu=max(one.gpu for one in needs),
                memory_gib=max(one.memory_gib for one in needs),
                vram_gib=max(one.vram_gib for one in needs),
                shares=bool(on_device) and all(one.shares for one in on_device),
            ),
            files=frozenset(path for node in plan.nodes for path in node.stage.args.paths_in(node.args)),
            code=self._code_of(plan),
        )

    def _code_of(self, plan: Plan) -> str:
        modules = frozenset(node.stage.module for node in plan.nodes)
        if modules not in self._digests:
            made_of = {module: self._code.modules_of(module) for module in modules}
            self._digests[modules] = digest_value("job-code", made_of)
        return self._digests[modules]


def _outline(value: Any) -> Any:
    """Give what of a value may change a plan: text, words and structure, but no numbers."""
    kind = type(value)
    if kind is float or kind is int:
        return kind
    if kind is dict:
        return tuple((key, _outline(item)) for key, item in value.items())
    if kind is list or kind is tuple:
        return tuple(map(_outline, value))
    return value
