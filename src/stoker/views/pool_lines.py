"""Pools, allocations and launch decisions as rows and lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stoker.core.frozen import fields_of
from stoker.core.pool import Allocation, AllocationState, PoolState
from stoker.core.text import counted, format_duration, one_line
from stoker.scheduler.launching import LaunchDecision
from stoker.views.text_tables import ago, moment

POOL_HEADER = ("pool", "backend", "machines", "last 24 h", "")
ALLOCATION_HEADER = ("allocation", "state", "backend id", "since", "jobs", "")
_DAY_S = 86400.0
_DONE = frozenset({AllocationState.SERVING, AllocationState.DRAINING})


def pool_row(state: PoolState, allocations: Iterable[Allocation], now_s: float) -> list[str]:
    """Return the row of one pool."""
    pool, mine = state.pool, [one for one in allocations if one.pool == state.pool.name]
    return [pool.name, str(pool.backend), _count_text(state, mine), _hours_text(mine, now_s), _note(state, mine, now_s)]


def allocation_row(one: Allocation, now_s: float) -> list[str]:
    """Return the row of one allocation."""
    times = [one.ended_s, one.serving_s, one.started_s, one.submitted_s]
    since_s = next((time_s for time_s in times if time_s is not None), one.planned_s)
    state = f"{one.state}: {one.cause}" if one.cause is not None else str(one.state)
    left = ""
    if one.ends_s is not None and not one.is_over:
        left = f"{format_duration(max(0.0, one.ends_s - now_s))} left"
    about = "; ".join(filter(None, (one.message or one.reason, left)))
    return [one.id, state, one.backend_id, ago(since_s, now_s), str(one.grants or ""), one_line(about, 200)]


def pool_json(state: PoolState, allocations: Iterable[Allocation], now_s: float) -> dict[str, Any]:
    """Return a pool and its allocations as JSON."""
    mine = [one for one in allocations if one.pool == state.pool.name]
    pool = fields_of(state.pool)
    each = state.pool.each
    pool["each"] = {**fields_of(each), "gpus": [fields_of(gpu) for gpu in each.gpus]}
    served_h, idle_h = _hours(mine, now_s)
    return {
        **fields_of(state),
        "pool": {**pool, "options": dict(state.pool.options)},
        "hours": {"started": served_h, "before_serving": idle_h},
        "allocations": [allocation_json(one) for one in mine],
    }


def allocation_json(one: Allocation) -> dict[str, Any]:
    """Return an allocation as JSON, with its names."""
    return {**fields_of(one), "machine": one.machine, "name": one.name}


def decision_lines(decision: LaunchDecision, pools: Sequence[str], *, is_dry: bool) -> list[str]:
    """Return what a decision does for some pools, and why it does no more."""
    nothing = ". Nothing was submitted" if is_dry else ""
    lines = [
        f"{start.pool}: {counted(start.count, 'allocation')} {start.why}{nothing}"
        for start in decision.starts
        if start.pool in pools
    ]
    lines += [
        f"{hold.pool}: no {'further ' if any(one.pool == hold.pool for one in decision.starts) else ''}allocation"
        f"{f' for {hold.jobs[0]}' if hold.jobs else ''}: {hold.why}"
        for hold in decision.holds
        if hold.pool in pools
    ]
    named = {line.partition(":")[0] for line in lines}
    return [*lines, *(f"{pool}: no waiting job needs a machine" for pool in pools if pool not in named)]


def launch_event_line(kind: str, fields: dict[str, Any]) -> str:
    """Return an event of the watcher as a line."""
    pool = fields.get("pool", "")
    one = f"{pool}-{fields['allocation']}" if fields.get("allocation") else pool
    why = fields.get("why", "")
    what = {
        "pool_watched": "watched from now on",
        "pool_paused": "paused",
        "launch_problem": "problem",
        "allocation_cancelled": "cancelled",
        "allocation_ended": f"ended ({fields.get('cause', '')})",
    }.get(kind, kind.removeprefix("allocation_"))
    backend_id = f" as {fields['backend_id']}" if fields.get("backend_id") else ""
    head = f"{one} {what}{backend_id}" if one else what
    hint = f" (hint: {fields['hint']})" if fields.get("hint") else ""
    return f"{head}{f': {why}' if why else ''}{hint}"


def _count_text(state: PoolState, mine: Sequence[Allocation]) -> str:
    serve = sum(one.state in _DONE for one in mine)
    asked = sum(not one.is_over and one.state not in _DONE for one in mine)
    return f"{serve} serving, {asked} requested, of {state.pool.max}"


def _hours_text(mine: Sequence[Allocation], now_s: float) -> str:
    started_h, before_h = _hours(mine, now_s)
    return f"{started_h:.1f} h, {before_h:.1f} h before serving" if started_h >= 0.05 else ""


def _hours(mine: Iterable[Allocation], now_s: float) -> tuple[float, float]:
    """Return the machine hours of the last day, and those of them before the worker joined."""
    whole_s = before_s = 0.0
    for one in mine:
        if one.started_s is None:
            continue
        start_s, end_s = max(one.started_s, now_s - _DAY_S), one.ended_s if one.ended_s is not None else now_s
        whole_s += max(0.0, end_s - start_s)
        joined_s = one.serving_s if one.serving_s is not None else end_s
        before_s += max(0.0, joined_s - start_s)
    return whole_s / 3600, before_s / 3600


def _note(state: PoolState, mine: Sequence[Allocation], now_s: float) -> str:
    if state.paused:
        return f"paused: {state.paused}"
    if state.watcher and state.watched_until_s < now_s:
        return f"not watched since {moment(state.watched_until_s, now_s)}: stoker launch watch"
    if not state.watcher:
        return "not watched: stoker launch watch"
    reasons = {one.reason: None for one in mine if one.is_on_its_way and one.reason}
    return f"{state.pool.backend}: {', '.join(reasons)}" if reasons else ""
