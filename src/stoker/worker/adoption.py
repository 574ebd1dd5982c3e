"""Let a job's old result stand for what the same job would make now, stage by stage.

Only a person can know that a change has no effect; `plan.adopt` writes down who said so and why. What comes before the
stage has to be known already, because the stage's key is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.model.digests import Digest
from stoker.model.errors import NotFound, Refused
from stoker.model.frozen import frozen
from stoker.model.suggest import did_you_mean
from stoker.plan.action import Action
from stoker.plan.adopt import adopt
from stoker.plan.cache import Cache, Hit
from stoker.plan.execution.progress import Progress
from stoker.plan.graph import Node, Plan
from stoker.plan.outcome import Ending, NodeResult


@frozen
class Blessing:
    """Who lets a result stand, and why."""

    author: str
    reason: str
    at_s: float


@frozen
class Adopted:
    """A result that now stands under another key too."""

    node: str
    old: Digest
    new: Digest


def adopt_stage(
    cache: Cache, plan: Plan, stage: str, *, old: Mapping[str, Digest], blessing: Blessing
) -> list[Adopted]:
    """Adopt for one node, or for every instance of a fan-out; `old` gives the key to take by node or instance."""
    node = next((node for node in plan.nodes if node.id == stage), None)
    if node is None:
        known = [node.id for node in plan.nodes]
        raise NotFound(
            f"the plan has no stage {stage!r}", hint=did_you_mean(stage, known) or f"its stages: {', '.join(known)}"
        )
    progress = _known_before(cache, plan, node)
    adopted = []
    for name in _names(progress, node):
        key = old.get(name)
        if key is None:
            raise NotFound(f"the job has no result of {name} to adopt", hint="name one with --from KEY")
        action = _action(cache, progress, name)
        record = adopt(
            cache, old=key, action=action, author=blessing.author, reason=blessing.reason, at_s=blessing.at_s
        )
        adopted.append(Adopted(node=name, old=key, new=record.key))
    return adopted


def _known_before(cache: Cache, plan: Plan, target: Node) -> Progress:
    """Give what every node before the target makes now, all of it known."""
    needed = _ancestors(plan, target)
    progress = Progress(plan)
    for node in plan.nodes:
        if node.id not in needed:
            continue
        for name in _names(progress, node):
            key = _action(cache, progress, name).key()
            look = cache.look(node.stage, key)
            if not isinstance(look, Hit):
                raise Refused(
                    f"{name} comes before {target.id} and is not known either",
                    hint=f"adopt {node.id} first, or run the job",
                )
            products = cache.products(node.stage, look.record)
            progress.results[name] = NodeResult(ending=Ending.HIT, key=key, products=products)
        if node.fans_out:
            progress.collect(node.id)
    return progress


def _ancestors(plan: Plan, target: Node) -> set[str]:
    by_id = {node.id: node for node in plan.nodes}
    found: set[str] = set()
    waiting = list(target.producers())
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += by_id[name].producers()
    return found


def _names(progress: Progress, node: Node) -> list[str]:
    """Give the node, or the instances of a fan-out."""
    if not node.fans_out:
        return [node.id]
    try:
        return progress.expand(node.id, progress.items_for(node.id))
    except ValueError as error:
        raise Refused(f"{node.id}: {error}") from None


def _action(cache: Cache, progress: Progress, name: str) -> Action:
    inputs = progress.inputs_of(name)
    refs = {port: tuple(product.ref for product in given) for port, given in inputs.items()}
    return cache.action(progress.nodes[name], refs)
