"""Pools, allocations and launch decisions as rows and lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stoker.core.frozen import fields_of, frozen
from stoker.core.jsontext import to_plain
from stoker.core.pool import (
    Allocation,
    AllocationCause,
    AllocationState,
    LaunchRequest,
    PoolBackend,
    PoolState,
    staying,
)
from stoker.core.text import counted, format_duration, one_line, outside
from stoker.devices.checkup import Check, CheckStatus
from stoker.scheduler.launching import CUT_OFF, LaunchDecision
from stoker.views.text_tables import ago, moment

if TYPE_CHECKING:
    from stoker.protocol.launch_messages import LaunchView

POOL_HEADER = ("pool", "backend", "machines", "last 24 h", "")
ALLOCATION_HEADER = ("allocation", "state", "backend id", "since", "jobs", "")
_DAY_S = 86400.0


@frozen
class PoolView:
    """A pool with its allocations: those that have not ended, then the newest of the last 24 hours."""

    state: PoolState
    allocations: tuple[Allocation, ...]
    now_s: float
    """When it was so, by the coordinator's clock."""
    requests: tuple[LaunchRequest, ...] = ()
    """Of operators: open ones, and those that were closed lately."""
    silent: frozenset[str] = frozenset()
    """Allocations that serve, and whose worker sends no heartbeat."""
    is_cut_off: bool = False
    """Its workers could not reach the coordinator, which has no TLS."""

    @classmethod
    def of(cls, state: PoolState, view: LaunchView) -> PoolView:
        """Return one pool of all."""
        mine = tuple(one for one in view.allocations if one.pool == state.pool.name)
        requests = tuple(one for one in view.requests if one.pool == state.pool.name)
        silent = frozenset(one.id for one in mine if one.id in view.silent)
        return cls(
            state=state,
            allocations=mine,
            now_s=view.now_s,
            requests=requests,
            silent=silent,
            is_cut_off=is_cut_off(state, view),
        )

    @property
    def name(self) -> str:
        return self.state.pool.name

    @property
    def serving(self) -> int:
        """How many workers have joined the fleet."""
        return sum(not one.is_over and one.serving_s is not None for one in self.allocations)

    @property
    def requested(self) -> int:
        """How many workers are on their way."""
        return sum(
            not one.is_over and one.serving_s is None and one.state is not AllocationState.DRAINING
            for one in self.allocations
        )

    @property
    def staying(self) -> frozenset[str]:
        """Allocations whose workers stay when they are idle: the pool's minimum."""
        return staying(self.state, self.allocations)

    @property
    def _hours(self) -> dict[str, float]:
        """The machine hours of the last day; and of them, those before the worker joined, and those without a job."""
        listed_h, before_h = _hours(self.allocations, self.now_s)
        started_h = listed_h if self.state.hours is None else self.state.hours
        return {"started": started_h, "before_serving": before_h, "idle": before_h + self.state.idle_hours}

    def row(self) -> list[str]:
        """Return its row in a table."""
        pool = self.state.pool
        used = self._hours
        hours = f"{used['started']:.1f} h, {used['idle']:.1f} h idle" if used["started"] >= 0.05 else ""
        most = f"{pool.min} to {pool.max}" if pool.min else str(pool.max)
        count = f"{self.serving} serving, {self.requested} requested, of {most}"
        return [pool.name, str(pool.backend), count, hours, _note(self)]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        pool = fields_of(self.state.pool)
        pool["each"], pool["found"] = to_plain(self.state.pool.each), to_plain(self.state.pool.found)
        return {
            **fields_of(self.state),
            "pool": {**pool, "options": dict(self.state.pool.options)},
            "hours": self._hours,
            "allocations": [allocation_json(one) for one in self.allocations],
            "staying": sorted(self.staying),
            "silent": sorted(self.silent),
            "requests": [fields_of(one) for one in self.requests],
        }


def is_cut_off(state: PoolState, view: LaunchView) -> bool:
    """Return True if workers of a pool could not reach the coordinator, because it has no TLS."""
    return not view.urls and state.pool.backend is not PoolBackend.LOCAL


def check_pool(view: PoolView) -> Check:
    """Return whether a pool starts workers when jobs wait, as a check of `stoker doctor`."""
    state, name = view.state, f"pool {view.name}"
    if state.paused:
        return Check(name, CheckStatus.WARN, f"paused: {state.paused}", f"stoker pools resume {view.name}")
    if not state.watcher and view.is_cut_off:
        return Check(
            name, CheckStatus.WARN, "starts nothing: the coordinator has no TLS", "stoker serve --listen 0.0.0.0"
        )
    if not state.watcher:
        return Check(name, CheckStatus.WARN, "no launcher watches it: it starts nothing", "stoker launch watch")
    if state.problem:
        return Check(name, CheckStatus.WARN, f"watched; problem: {state.problem}", f"stoker pools check {view.name}")
    lacks = state.pool.lacks
    text = f"watched; {view.serving} serving, {view.requested} requested, of {state.pool.max}"
    hint = "correct `each` in the cluster file" if lacks else ""
    return Check(name, CheckStatus.WARN if lacks else CheckStatus.OK, "; ".join(filter(None, (text, lacks))), hint)


def allocation_row(one: Allocation, now_s: float, *, stays: bool = False, is_silent: bool = False) -> list[str]:
    """Return the row of one allocation; `stays`: it belongs to the pool's minimum."""
    times = [one.ended_s, one.serving_s, one.started_s, one.submitted_s]
    since_s = next((time_s for time_s in times if time_s is not None), one.planned_s)
    state = f"{one.state}: {_cause_text(one.cause)}" if one.cause is not None else str(one.state)
    words = one.message or ("" if one.cause is AllocationCause.CANCELLED else one.reason)
    left = ""
    if one.ends_s is not None and not one.is_over:
        left = f"{format_duration(max(0.0, one.ends_s - now_s))} left"
    starts = ""
    if one.is_on_its_way and one.may_start_s is not None and one.may_start_s > now_s:
        starts = f"may start {moment(one.may_start_s, now_s)}"
    about = "; ".join(filter(None, (words, starts, left, "stays when idle (min)" if stays else "")))
    if is_silent:
        about = f"no heartbeat from its worker{f'; {about}' if about else ''}"
    return [one.id, state, one.backend_id, ago(since_s, now_s), str(one.grants or ""), one_line(about, 200)]


def allocation_json(one: Allocation) -> dict[str, Any]:
    """Return an allocation as JSON, with its names."""
    return {**fields_of(one), "machine": one.machine, "name": one.name}


def dry_run_lines(decision: LaunchDecision, request: LaunchRequest) -> list[str]:
    """Return what an operator's request would start, or why it would start nothing."""
    lines = [
        f"{start.pool}: {counted(start.count, 'allocation')} {start.why}. Nothing was submitted"
        for start in decision.starts
        if start.request == request.id
    ]
    return lines + [f"{answer.pool}: {answer.why}" for answer in decision.answers if answer.id == request.id]


def request_lines(request: LaunchRequest, allocations: Sequence[Allocation]) -> list[str]:
    """Return what became of an operator's request: its answer, or each of its allocations."""
    if not allocations:
        return [f"{request.pool}: {request.message}"]
    names = allocations[0].wanted
    why = f" for {', '.join(names)}" if names else ""
    lines = [f"{request.pool}: {counted(len(allocations), 'allocation')} requested{why}"]
    bad = (AllocationState.REFUSED, AllocationState.DOUBTFUL)
    raised = next((one.message for one in allocations if one.state in bad), None)
    for one in allocations:
        # The command's error has the first reason.
        message = "" if one.message == raised else one.message
        fields = {"pool": one.pool, "allocation": one.id, "backend_id": one.backend_id, "why": message}
        lines.append(f"  {launch_event_line(f'allocation_{one.state}', fields)}")
    return lines


def open_request_lines(view: PoolView) -> list[str]:
    """Return the requests of operators that are not carried out yet: id, count, requester, age."""
    return [
        f"request {one.id}: {counted(one.count, 'allocation') if one.count else 'as many as waiting jobs need'}, "
        f"by {one.requester or 'an operator'}, {ago(one.requested_s, view.now_s)}"
        for one in view.requests
        if one.is_open
    ]


def launch_event_line(kind: str, fields: dict[str, Any]) -> str:
    """Return an event of the watcher as a line."""
    pool = fields.get("pool", "")
    one = f"{pool}-{fields['allocation']}" if fields.get("allocation") else pool
    why = fields.get("why", "")
    if kind == "launch_stands_by":
        return f"stands by: {fields['watcher']} watches {', '.join(fields['pools'])}"
    what = {
        "pool_watched": "watched from now on",
        "pool_paused": "paused",
        "launch_problem": "problem",
        "kit_sent": "sends Stoker",
        "kit_installed": "has Stoker",
        "allocation_cancelled": "cancelled",
        "request_answered": "request closed",
        "request_withdrawn": "request withdrawn",
        "allocation_serving": "serves",
        "allocation_ended": f"ended ({_cause_text(fields.get('cause', ''))})",
    }.get(kind, kind.removeprefix("allocation_"))
    backend_id = f" as {fields['backend_id']}" if fields.get("backend_id") else ""
    head = f"{one} {what}{backend_id}" if one else what
    hint = f" (hint: {fields['hint']})" if fields.get("hint") else ""
    # The reason may be a backend's own words.
    return outside(f"{head}{f': {why}' if why else ''}{hint}")


def _cause_text(cause: str) -> str:
    """Return the cause of an end in words."""
    if cause == AllocationCause.CANCELLED_THERE:
        return "cancelled at the backend"
    return cause.replace("_", " ")


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


def _note(view: PoolView) -> str:
    silent = f"no heartbeat from {counted(len(view.silent), 'worker')}" if view.silent else ""
    return "; ".join(filter(None, (_state_text(view), silent, view.state.pool.lacks)))


def _state_text(view: PoolView) -> str:
    state, now_s = view.state, view.now_s
    if state.paused:
        return f"paused: {state.paused}"
    if not state.watcher and view.is_cut_off:
        return CUT_OFF
    if state.watcher and state.watched_until_s < now_s:
        return f"not watched since {moment(state.watched_until_s, now_s)}: stoker launch watch"
    if not state.watcher:
        return "not watched: stoker launch watch"
    if state.problem:
        return f"problem: {state.problem}"
    waiting = [one for one in view.allocations if one.is_on_its_way]
    starts_s = [one.may_start_s for one in waiting if one.may_start_s is not None and one.may_start_s > now_s]
    reasons = dict.fromkeys(one.reason for one in waiting if one.reason)
    said = [*reasons, *([f"may start {moment(min(starts_s), now_s)}"] if starts_s else [])]
    return f"{state.pool.backend}: {', '.join(said)}" if said else ""
