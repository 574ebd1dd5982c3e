"""Placements as text: a line for each job, what would change it, and every machine and device with its why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stoker.faces.view.signs import Signs
from stoker.faces.view.tables import table
from stoker.scheduler.explain import DeviceVerdict, Explanation, NodeVerdict, Planned
from stoker.scheduler.node_index import PlacedJob
from stoker.scheduler.reasons import Term

_MOST_REASONS = 4
_MOST_CHANGES = 4


def job_line(planned: Planned, signs: Signs, types: Mapping[str, str]) -> str:
    """Say in one line what becomes of a job; `types` are the devices' by UUID."""
    wanted, waiting = planned.wanted, planned.waiting
    sign = signs.failed if waiting else signs.ran
    name = wanted.job.name
    if wanted.count == 1:
        return f"{sign} {name}  {_place(planned.placed[0], types) if planned.placed else _left(planned)}"
    parts = [f"{count} on {node}" for node, count in _by_node(planned.placed).items()]
    if waiting:
        parts.append(f"{waiting} {_left(planned)}")
    return f"{sign} {name}  {wanted.count} jobs: {', '.join(parts)}"


def why_lines(told: Explanation, *, is_waiting: bool) -> Iterator[str]:
    """Say why a job waits and what would change it, the nearest first; and what the cost rule says, if anything."""
    if told.advice.is_worth is not None:
        yield f"cost rule: {told.advice}{'; so it would rather have the CPU' if told.is_advised_against else ''}"
    if not is_waiting:
        return
    if told.never:
        yield f"never on this fleet: {told.never}"
        # What would start it now would make it possible, too.
        now = {(change.what, change.relative) for change in told.changes}
        ever = [change for change in told.ever if (change.what, change.relative) not in now]
        yield from (f"possible if {change.text}" for change in ever[:_MOST_CHANGES])
    else:
        for verdict in told.nodes[:_MOST_REASONS]:
            yield f"{verdict.node}: {_reasons(verdict)}"
        if len(told.nodes) > _MOST_REASONS:
            yield f"and {len(told.nodes) - _MOST_REASONS} more machines; --explain lists them"
        yield f"fits, once jobs or programs there end: {_some(told.waits_for)}"
    first = [told.nearest] if told.nearest is not None else []
    for change in [*first, *(one for one in told.changes if one not in first)][:_MOST_CHANGES]:
        yield f"starts now if {change.text}"


def explain_lines(told: Explanation, *, columns: int) -> list[str]:
    """Lay out every machine and each of its devices: the score with its terms, or what stands in the way."""
    rows: list[list[str]] = []
    for verdict in told.nodes:
        rows.append([verdict.node, "", *_node_cells(verdict, is_best=verdict.node == told.best)])
        rows += [["", f"{device.uuid} {device.type}", *_device_cells(device)] for device in verdict.devices]
    return table(rows, header=("machine", "device", "score", "why"), columns=columns, indent="    ")


def _node_cells(verdict: NodeVerdict, *, is_best: bool) -> list[str]:
    if verdict.score is None:
        return ["-", _reasons(verdict)]
    where = f"on {', '.join(verdict.on)}" if verdict.on else f"on the CPU: {_terms(verdict.terms)}"
    rank = verdict.rank
    before = [
        *(["not what the job would rather have"] if rank and not rank.wished else []),
        *(["preferred"] if rank and rank.preferred else []),
        *([f"priority {rank.priority}"] if rank and rank.priority else []),
    ]
    text = "; ".join([*(["the best"] if is_best else []), where, *before])
    return [f"{verdict.score:.4g}", text]


def _device_cells(device: DeviceVerdict) -> list[str]:
    if device.obstacle is not None:
        return ["-", device.obstacle.why]
    score = "-" if device.score is None else f"{device.score:.4g}"
    return [score, _terms(device.terms)]


def _terms(terms: Sequence[Term]) -> str:
    return " × ".join(f"{term.name} {term.value:.4g}{f' ({term.text})' if term.text else ''}" for term in terms)


def _reasons(verdict: NodeVerdict) -> str:
    return "; ".join(f"{one.device}: {one.why}" if one.device else one.why for one in verdict.obstacles)


def _place(placed: PlacedJob, types: Mapping[str, str]) -> str:
    if not placed.devices:
        return f"{placed.node}  CPU  score {placed.score:.4g}"
    named = ", ".join(f"{uuid} {types.get(uuid, '')}".strip() for uuid in placed.devices)
    return f"{placed.node}  {named}{', shared' if placed.is_shared else ''}  score {placed.score:.4g}"


def _left(planned: Planned) -> str:
    """Say what becomes of jobs that have no place now."""
    is_one = planned.waiting == 1
    if planned.explanation is not None and planned.explanation.never:
        return "fits nowhere" if is_one else "fit nowhere"
    return "waits" if is_one else "wait"


def _by_node(placed: Sequence[PlacedJob]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in placed:
        counts[one.node] = counts.get(one.node, 0) + 1
    return counts


def _some(names: Sequence[str]) -> str:
    more = len(names) - 8
    return ", ".join(names[:8]) + (f" and {more} more" if more > 0 else "")
