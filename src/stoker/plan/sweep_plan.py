"""Many trials as one plan: what they have in common stands in it once.

Two nodes of two trials are the same if they run the same stage with the same arguments on the same inputs. What only
one trial has is named after it (`3.train`), what several share keeps its plain name, and a single trial's plan stays
as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from stoker.model.encoding import encode
from stoker.model.frozen import changed, frozen
from stoker.plan.graph import Node, Plan


@frozen
class TrialNodes:
    """What of the joint plan one trial is."""

    final: str
    keep: tuple[str, ...]
    nodes: tuple[str, ...]


@frozen
class SweepPlan:
    """The joint plan and, for each trial in order, its part in it."""

    plan: Plan
    trials: tuple[TrialNodes, ...]


def join_plans(name: str, plans: Sequence[Plan], numbers: Sequence[int] = ()) -> SweepPlan:
    """Join the plans of all trials of a sweep. `numbers` are the trials', from 1 on unless told."""
    if len(plans) == 1:
        (only,) = plans
        nodes = tuple(node.id for node in only.nodes)
        return SweepPlan(plan=only, trials=(TrialNodes(final=only.final, keep=only.keep, nodes=nodes),))
    numbering: dict[tuple[Any, ...], int] = {}
    identities = [_identities(plan, numbering) for plan in plans]
    uses = Counter(identity for ids in identities for identity in set(ids.values()))
    joint: dict[int, Node] = {}
    taken: set[str] = set()
    trials = []
    for number, plan, ids in zip(numbers or range(1, len(plans) + 1), plans, identities, strict=True):
        names: dict[str, str] = {}
        for node in plan.nodes:
            identity = ids[node.id]
            if identity not in joint:
                wanted = node.id if uses[identity] > 1 else f"{number}.{node.id}"
                given = _free(wanted, taken)
                taken.add(given)
                inputs = {port: tuple(names[one] for one in feeding) for port, feeding in node.inputs.items()}
                joint[identity] = changed(node, id=given, inputs=inputs)
            names[node.id] = joint[identity].id
        keep = tuple(names[kept] for kept in plan.keep)
        nodes = tuple(dict.fromkeys(names.values()))
        trials.append(TrialNodes(final=names[plan.final], keep=keep, nodes=nodes))
    ends = dict.fromkeys(one for trial in trials for one in (trial.final, *trial.keep))
    final = trials[-1].final
    plan = Plan(
        name=name,
        nodes=tuple(joint.values()),
        final=final,
        keep=tuple(one for one in ends if one != final),
    )
    return SweepPlan(plan=plan, trials=tuple(trials))


def _identities(plan: Plan, numbering: dict[tuple[Any, ...], int]) -> dict[str, int]:
    """Give for each node a number for what it is, whatever it is called: the same in every plan of a sweep."""
    found: dict[str, int] = {}
    for node in plan.nodes:
        what = (
            node.stage.name,
            node.stage.version,
            encode(dict(node.args)),
            tuple((port, *(found[one] for one in feeding)) for port, feeding in sorted(node.inputs.items())),
            node.fans_out,
            node.retry,
            node.timeout_s,
            node.asks,
        )
        found[node.id] = numbering.setdefault(what, len(numbering))
    return found


def _free(wanted: str, taken: set[str]) -> str:
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}-{count}"
    return name
