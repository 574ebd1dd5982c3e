"""The stages of a job, laid out in layers: the same drawing in the cockpit and on the page.

A stage is one layer behind the last of those that it needs; within a layer, stages stand near their neighbours. What
repeats is one node with counts: instances of a fan-out, and the same stage of many trials.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from stoker.core.frozen import frozen
from stoker.jobs.job_history import NodeHistory
from stoker.jobs.stage_plan import PlannedStage
from stoker.protocol.screen_messages import StageGraph, StageNode

MOST_NODES = 2000
SEPARATE = 8
"""Of the stages that many trials have, how many are shown one by one."""
_SWEEPS = 4
_TRIAL = re.compile(r"\d+\.(?=.)")
_LEADING = ("failed", "diverged", "running", "waiting", "cancelled", "pruned", "ran", "hit")
"""What several stages together are: the first of these that one of them is."""
_LONGEST_TEXT = 2000


def stage_graph(
    job: str, planned: Sequence[PlannedStage], nodes: Mapping[str, NodeHistory], titles: Mapping[str, str] | None = None
) -> StageGraph:
    """Return the graph of a job's stages, from its plan and the history of its nodes; `titles` by node."""
    stages = _with_unplanned(planned, nodes)
    instances = _instances(nodes)
    folds = _folds(stages)
    names = list(dict.fromkeys(folds.values()))
    shown = set(names[:MOST_NODES])
    needs = _folded_needs(stages, folds, shown)
    placed = lay_out(needs)
    members: dict[str, list[PlannedStage]] = {}
    for stage in stages:
        members.setdefault(folds[stage.node], []).append(stage)
    made = []
    for name in needs:
        histories = [one for stage in members[name] for one in instances.get(stage.node) or _history(stage, nodes)]
        place = placed[name]
        made.append(_node(name, members[name], histories, place, titles or {}))
    numbers = {name: number for number, name in enumerate(needs)}
    edges = [(numbers[before], numbers[name]) for name, befores in needs.items() for before in befores]
    return StageGraph(job=job, nodes=tuple(made), edges=tuple(edges), left_out=len(names) - len(shown))


@frozen
class NodePlace:
    """Where a node stands."""

    layer: int
    place: int


def lay_out(needs: Mapping[str, Collection[str]]) -> dict[str, NodePlace]:
    """Return the layer of each node and its place there. A cycle, which no plan has, stands in the first layer."""
    layers = _layers(needs)
    columns: dict[int, list[str]] = {}
    for name, layer in layers.items():
        columns.setdefault(layer, []).append(name)
    users: dict[str, list[str]] = {name: [] for name in needs}
    for name, befores in needs.items():
        for before in befores:
            users[before].append(name)
    ordered = [columns[layer] for layer in sorted(columns)]
    places = {name: float(at) for column in ordered for at, name in enumerate(column)}
    for sweep in range(_SWEEPS):
        neighbours: Mapping[str, Collection[str]] = users if sweep % 2 else needs
        for column in ordered[::-1] if sweep % 2 else ordered:
            if len(column) > 1:
                # Stable: nodes without neighbours, and equal ones, stay in their order.
                column.sort(key=lambda name: _middle(name, neighbours[name], places))
                places.update((name, float(at)) for at, name in enumerate(column))
    return {
        name: NodePlace(layer=number, place=at)
        for number, column in enumerate(ordered)
        for at, name in enumerate(column)
    }


def _middle(name: str, neighbours: Collection[str], places: Mapping[str, float]) -> float:
    if not neighbours:
        return places[name]
    return sum(places[one] for one in neighbours) / len(neighbours)


def _layers(needs: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return the length of the longest path to each node."""
    layers = dict.fromkeys(needs, 0)
    missing = {name: len(befores) for name, befores in needs.items()}
    users: dict[str, list[str]] = {name: [] for name in needs}
    for name, befores in needs.items():
        for before in befores:
            users[before].append(name)
    ready = [name for name, count in missing.items() if not count]
    for name in ready:
        for user in users[name]:
            layers[user] = max(layers[user], layers[name] + 1)
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    reached = set(ready)
    return {name: layer if name in reached else 0 for name, layer in layers.items()}


def _with_unplanned(planned: Sequence[PlannedStage], nodes: Mapping[str, NodeHistory]) -> list[PlannedStage]:
    """Return the plan's stages, then those that only the journal names: all, of a run without a record of its plan."""
    known = {stage.node: stage for stage in planned}
    for name, history in nodes.items():
        fan = name.partition("[")[0]
        if fan not in known:
            known[fan] = PlannedStage(node=fan, stage=history.stage)
    return list(known.values())


def _instances(nodes: Mapping[str, NodeHistory]) -> dict[str, list[NodeHistory]]:
    found: dict[str, list[NodeHistory]] = {}
    for name, history in nodes.items():
        fan, bracket, _ = name.partition("[")
        if bracket:
            found.setdefault(fan, []).append(history)
    return found


def _history(stage: PlannedStage, nodes: Mapping[str, NodeHistory]) -> list[NodeHistory]:
    found = nodes.get(stage.node)
    return [found if found is not None else NodeHistory(node=stage.node, stage=stage.stage)]


def _folds(stages: Sequence[PlannedStage]) -> dict[str, str]:
    """Return the node of the drawing that stands for each stage."""
    bare = {stage.node: _TRIAL.sub("", stage.node, count=1) for stage in stages}
    counts = Counter(bare.values())
    folds = {node: name if counts[name] > SEPARATE else node for node, name in bare.items()}
    if all(node == name for node, name in folds.items()):
        return folds
    # Trials may be wired differently: folding must not make a cycle.
    needs = _folded_needs(stages, folds, set(folds.values()))
    layers = _layers(needs)
    is_ordered = all(layers[before] < layers[name] for name, befores in needs.items() for before in befores)
    return folds if is_ordered else {node: node for node in bare}


def _folded_needs(
    stages: Iterable[PlannedStage], folds: Mapping[str, str], shown: Collection[str]
) -> dict[str, dict[str, None]]:
    needs: dict[str, dict[str, None]] = {}
    for stage in stages:
        name = folds[stage.node]
        if name in shown:
            found = needs.setdefault(name, {})
            found.update((folds[one], None) for one in stage.needs if folds.get(one, name) != name)
    return {name: {one: None for one in befores if one in needs} for name, befores in needs.items()}


def _node(
    name: str,
    members: Sequence[PlannedStage],
    histories: Sequence[NodeHistory],
    place: NodePlace,
    titles: Mapping[str, str],
) -> StageNode:
    counts = Counter(one.ending for one in histories)
    leading = next((ending for ending in _LEADING if ending in counts), histories[0].ending)
    speaker = next(one for one in histories if one.ending == leading)
    seconds = [one.seconds for one in histories if one.seconds is not None]
    is_several = len(histories) > 1 or len(members) > 1
    steps = [one for one in histories if type(one.step) is int]
    return StageNode(
        name=name,
        title=titles.get(name, speaker.title),
        stage=members[0].stage or speaker.stage,
        ending=leading,
        why=str(speaker.why)[:_LONGEST_TEXT],
        message=str(speaker.message)[:_LONGEST_TEXT],
        seconds=sum(seconds) if seconds else None,
        step=steps[0].step if len(steps) == 1 else None,
        of=steps[0].of if len(steps) == 1 and type(steps[0].of) is int else None,
        instances=len(histories) if is_several else None,
        endings=dict(counts) if is_several else {},
        layer=place.layer,
        place=place.place,
    )
