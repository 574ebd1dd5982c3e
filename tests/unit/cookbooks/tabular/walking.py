"""Run a compiled plan's real stages one after another in this process: no cache, no children, every kind validated."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.authoring import Plan, StageContext
from stoker.cookbooks.tabular import recipes
from stoker.engine.stage import perform


@dataclass
class Walked:
    """What came out of every node, and what was said on the way."""

    artifacts: dict[str, Any] = field(default_factory=dict)
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    final: Any = None

    def logs(self, node: str) -> list[str]:
        return [event["log"] for event in self.events[node] if "log" in event]

    def steps(self, node: str) -> list[dict[str, Any]]:
        return [event for event in self.events[node] if "step" in event]


def walk(plan: Plan, folder: Path, *, until: str) -> Walked:
    walked = Walked()
    for node in plan.nodes:
        out = folder / node.id
        out.mkdir(parents=True)
        said = walked.events.setdefault(node.id, [])
        job = StageContext(
            node=node.id,
            out=str(out),
            emit=said.append,
            is_cancelled=lambda: False,
            diverges_on=node.stage.diverges_on,
        )
        inputs = {}
        for port in node.stage.ports:
            handles = [walked.artifacts[producer] for producer in node.inputs[port.name]]
            inputs[port.name] = handles if port.takes_many else handles[0]
        walked.artifacts[node.id] = perform(node.stage, job, inputs, node.stage.args.make(node.args))
        node.stage.output.check_folder(str(out))
        walked.final = walked.artifacts[node.id]
        if node.id == until:
            break
    return walked


def run_recipe(name: str, folder: Path, *, until: str = "report", **given: Any) -> Walked:
    """Compile a recipe of the cookbook from what a user gives, and walk it."""
    recipe = getattr(recipes, name)
    args = recipe.args.build(given, owner=recipe.name)
    return walk(recipe.compile(args), folder, until=until)
