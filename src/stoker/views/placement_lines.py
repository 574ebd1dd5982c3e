"""Placements and explanations of jobs as lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.core.job import JobState
from stoker.core.text import counted, format_duration, one_line
from stoker.scheduler.explain import DeviceVerdict, Explanation, NodeVerdict, PlannedPlacements
from stoker.scheduler.node_index import PlacedJob
from stoker.scheduler.reasons import ScoreTerm
from stoker.views.stage_lines import number
from stoker.views.text_tables import Signs, moment, table

if TYPE_CHECKING:
    from stoker.protocol.view_messages import JobExplanation


_MOST_REASONS = 4
_MOST_CHANGES = 4


def job_line(planned: PlannedPlacements, signs: Signs, types: Mapping[str, str]) -> str:
    """Return the placement of a job as a line; `types` are device types by UUID."""
    wanted, waiting = planned.wanted, planned.waiting
    sign = signs.failed if waiting else signs.ran
    name = wanted.job.name
    if wanted.count == 1:
        return f"{sign} {name}  {_place(planned.placed[0], types) if planned.placed else _left(planned)}"
    parts = [f"{count} on {node}" for node, count in _by_node(planned.placed).items()]
    if waiting:
        parts.append(f"{waiting} {_left(planned)}")
    return f"{sign} {name}  {wanted.count} jobs: {', '.join(parts)}"


def why_lines(explanation: Explanation, *, is_waiting: bool) -> Iterator[str]:
    """Yield why a job waits, what would change it, nearest first, and the advice of the cost rule."""
    if explanation.advice.is_worth is not None:
        rather = "; the CPU is preferred" if explanation.is_advised_against else ""
        yield f"cost rule: {explanation.advice}{rather}"
    if not is_waiting:
        return
    if explanation.never:
        yield f"never on this fleet: {explanation.never}"
        # Changes that would start it now are listed below.
        now = {(change.what, change.relative) for change in explanation.changes}
        ever = [change for change in explanation.ever if (change.what, change.relative) not in now]
        yield from (f"possible if {change.text}" for change in ever[:_MOST_CHANGES])
    else:
        for verdict in explanation.nodes[:_MOST_REASONS]:
            yield f"{verdict.node}: {_reasons(verdict)}"
        if len(explanation.nodes) > _MOST_REASONS:
            yield f"and {len(explanation.nodes) - _MOST_REASONS} more machines; --explain lists them"
        yield f"fits after jobs or programs there end: {_some(explanation.waits_for)}"
    first = [explanation.nearest] if explanation.nearest is not None else []
    for change in [*first, *(one for one in explanation.changes if one not in first)][:_MOST_CHANGES]:
        yield f"starts now if {change.text}"


def explain_lines(explanation: Explanation, *, columns: int) -> list[str]:
    """Return each machine and device with its score and terms, or the reason against it."""
    rows: list[list[str]] = []
    for verdict in explanation.nodes:
        rows.append([verdict.node, "", *_node_cells(verdict, is_best=verdict.node == explanation.best)])
        rows += [["", f"{device.uuid} {device.type}", *_device_cells(device)] for device in verdict.devices]
    return table(rows, header=("machine", "device", "score", "why"), columns=columns, indent="    ")


def _node_cells(verdict: NodeVerdict, *, is_best: bool) -> list[str]:
    if verdict.score is None:
        return ["-", _reasons(verdict)]
    where = f"on {', '.join(verdict.on)}" if verdict.on else f"on the CPU: {_terms(verdict.terms)}"
    rank = verdict.rank
    before = [
        *(["not the preferred kind of device"] if rank and not rank.wished else []),
        *(["preferred"] if rank and rank.preferred else []),
        *([f"priority {rank.priority}"] if rank and rank.priority else []),
    ]
    text = "; ".join([*(["best"] if is_best else []), where, *before])
    return [f"{verdict.score:.4g}", text]


def _device_cells(device: DeviceVerdict) -> list[str]:
    if device.obstacle is not None:
        return ["-", device.obstacle.why]
    score = "-" if device.score is None else f"{device.score:.4g}"
    return [score, _terms(device.terms)]


def _terms(terms: Sequence[ScoreTerm]) -> str:
    return " × ".join(f"{term.name} {term.value:.4g}{f' ({term.text})' if term.text else ''}" for term in terms)


def _reasons(verdict: NodeVerdict) -> str:
    return "; ".join(f"{one.device}: {one.why}" if one.device else one.why for one in verdict.obstacles)


def _place(placed: PlacedJob, types: Mapping[str, str]) -> str:
    if not placed.devices:
        return f"{placed.node}  CPU  score {placed.score:.4g}"
    named = ", ".join(f"{uuid} {types.get(uuid, '')}".strip() for uuid in placed.devices)
    return f"{placed.node}  {named}{', shared' if placed.is_shared else ''}  score {placed.score:.4g}"


def _left(planned: PlannedPlacements) -> str:
    """Return the state of jobs without a place."""
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


_MOST_HELD = 3
_HEADER = ("machine", "device", "score", "why")


def explanation_lines(explanation: JobExplanation, *, now_s: float, columns: int) -> Iterator[str]:
    """Yield an explanation as lines."""
    place = _expected_place(explanation)
    yield f"{explanation.job.name}: {one_line(explanation.verdict)}{f' ({place})' if place else ''}"
    yield from start_lines(explanation, now_s)
    if rows := machine_rows(explanation, now_s):
        yield ""
        yield from table(rows, header=_HEADER, columns=columns)
    yield from other_lines(explanation)


def start_lines(explanation: JobExplanation, now_s: float) -> Iterator[str]:
    """Yield when and where a job starts, why not now, and its submitter's share."""
    if explanation.starts_s is not None:
        based = f" ({explanation.based_on})" if explanation.based_on else ""
        left_s = explanation.starts_s - now_s
        when = f"in about {format_duration(left_s)}" if left_s >= 1 else "now"
        yield f"may start {when}{based}"
    elif explanation.expected is not None and explanation.expected.machine and not explanation.declines:
        yield "no start estimate: a job before it has no estimate of its duration"
    yield from _forecast_lines(explanation, now_s)


def machine_rows(explanation: JobExplanation, now_s: float) -> list[list[str]]:
    """Return machine, device, score and reason of each machine and device: only while the job waits."""
    if explanation.job.state != JobState.PENDING:
        return []
    return [row for machine in explanation.machines for row in _machine_rows(machine, now_s)]


def other_lines(explanation: JobExplanation) -> Iterator[str]:
    """Yield what pools do, which machines declined, and what would let the job start."""
    for pool, text in explanation.pools.items():
        yield f"pool {pool}: {one_line(text)}"
    for decline in explanation.declines:
        yield f"declined by {decline.get('machine', '?')}: {_reason_text(decline)}"
    yield from map(change_text, explanation.changes)


def change_text(change: str) -> str:
    """Return a change that would let a job start as a sentence."""
    text = one_line(change)
    return text if text.startswith(("starts", "may start", "possible", "never")) else f"starts now if {text}"


def _forecast_lines(explanation: JobExplanation, now_s: float) -> Iterator[str]:
    """Yield the expected machine and time, why it is held back, and the submitter's share."""
    expected = explanation.expected
    if expected is not None and expected.machine:
        starts = f" from {moment(expected.starts_s, now_s)}" if expected.starts_s is not None else ""
        ends = f" until {moment(expected.ends_s, now_s)}" if expected.ends_s is not None else ""
        if starts or ends:
            yield one_line(f"expected on {expected.machine}{starts}{ends}")
    for held in explanation.held_back[:_MOST_HELD]:
        ends = f" (until {moment(held.ends_s, now_s)})" if held.ends_s is not None else ""
        yield one_line(f"not now on {held.machine}{ends}: {held.text}")
    if len(explanation.held_back) > _MOST_HELD:
        yield f"not now on {len(explanation.held_back) - _MOST_HELD:,} more machines: --json lists them"
    if explanation.job.state == JobState.PENDING and expected is not None and not explanation.based_on:
        yield "no estimate of its duration: order and score decide"
    if explanation.chosen:
        yield one_line(f"granted: {explanation.chosen}")
    share = explanation.share
    if share is not None and share.share is not None and share.fair_share is not None and share.fair_share < 1:
        part = f"{share.share:.0%} of recent usage, fair is {share.fair_share:.0%}"
        yield one_line(
            f"share of {share.user or 'unnamed submitters'}: {part}; "
            f"{counted(share.jobs, 'job')} and {counted(share.devices, 'device')} now"
        )


def _expected_place(explanation: JobExplanation) -> str:
    if explanation.place_in_line is None or "queue position" in explanation.verdict:
        return ""
    return f"queue position {explanation.place_in_line:,}"


def _machine_rows(machine: Mapping[str, Any], now_s: float) -> Iterator[list[str]]:
    devices = [one for one in machine.get("devices") or () if isinstance(one, Mapping)]
    why = "; ".join(filter(None, (_node_why(machine), _held(machine, now_s))))
    yield [str(machine.get("node", "?")), "", _score(machine), one_line(why)]
    for device in devices:
        name = " ".join(filter(None, (str(device.get("uuid", "")), str(device.get("type", "")))))
        obstacle = device.get("obstacle")
        why = str(obstacle.get("why", "")) if isinstance(obstacle, Mapping) else _terms_text(device)
        yield ["", name, _score(device), one_line("; ".join(filter(None, (why, _held(device, now_s)))))]


def _node_why(machine: Mapping[str, Any]) -> str:
    obstacles = [one for one in machine.get("obstacles") or () if isinstance(one, Mapping)]
    if obstacles:
        return "; ".join(
            f"{one['device']}: {one['why']}" if one.get("device") else str(one["why"]) for one in obstacles
        )
    on = ", ".join(map(str, machine.get("on") or ()))
    return f"on {on}" if on else f"on the CPU: {_terms_text(machine)}" if machine.get("fits") else ""


def _score(row: Mapping[str, Any]) -> str:
    score = row.get("score")
    return number(score) if isinstance(score, int | float) else "-"


def _terms_text(row: Mapping[str, Any]) -> str:
    terms = [one for one in row.get("terms") or () if isinstance(one, Mapping)]
    return " × ".join(_term(one) for one in terms)


def _term(one: Mapping[str, Any]) -> str:
    text = f" ({one['text']})" if one.get("text") else ""
    return f"{one.get('name')} {number(one.get('value'))}{text}"


def _held(row: Mapping[str, Any], now_s: float) -> str:
    """Return the jobs that use a device or machine, and for how long."""
    held = row.get("held") or row.get("jobs") or ()
    shown = []
    for one in held if isinstance(held, list | tuple) else ():
        if isinstance(one, Mapping):
            shown.append(f"{one.get('name') or one.get('job')}{_until(one.get('until_s'), now_s)}")
        else:
            shown.append(str(one))
    return f"used by {', '.join(shown)}{_until(row.get('until_s'), now_s)}" if shown else ""


def _until(until_s: object, now_s: float) -> str:
    if not isinstance(until_s, int | float) or until_s <= now_s:
        return ""
    return f" for about {format_duration(until_s - now_s)}"


def _reason_text(decline: Mapping[str, Any]) -> str:
    return one_line(": ".join(filter(None, (str(decline.get("reason") or ""), str(decline.get("message") or "")))))
