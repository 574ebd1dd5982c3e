"""Compare the allocations of a pool with what its backend shows: which rows change, and what to cancel there.

Pure. An allocation whose answer was lost is adopted if the backend shows it, and was never submitted if two looks do
not find it. What the backend runs of ours without a live row is a stray, and is cancelled after a grace period. An
allocation that two looks do not find is over, but not while its worker sends heartbeats.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from stoker.core.frozen import fresh, frozen
from stoker.core.pool import FREE_CAUSES, Allocation, AllocationCause, AllocationState, may_move
from stoker.core.text import format_duration, one_line
from stoker.launch.launchers import AllocationStatus
from stoker.protocol.launch_messages import AllocationMove

PLANNED_S = 60.0
"""A planned allocation is submitted within this time, or its launcher died before."""
JOIN_S = 300.0
"""A started allocation whose worker has not joined by then ends as `never_joined`.

Half of the time that its ticket lives (`coordinator.queue.allocations.JOIN_S`): the watcher ends it first.
"""
STRAY_S = 60.0
HUNG_S = 900.0
"""A worker that serves and was not heard of for so long is ended: it may hang for ever, and holds its machine."""
_OVERDUE_S = 120.0
START_NEWS_S = 60.0
MISSED_LOOKS = 2
"""Looks that do not find an allocation, before it counts as unknown to the backend."""
_EXITS = frozenset({AllocationCause.FINISHED, AllocationCause.FAILED, AllocationCause.OUT_OF_MEMORY})
"""Ends of a worker's process: one that has not joined before did not serve."""
_LONGEST_TEXT = 500
_LATEST_S = 1e11
_LIVE = (AllocationState.WAITING, AllocationState.STARTED)
_BEFORE_SERVING = (AllocationState.SUBMITTED, *_LIVE)


@frozen
class LookMemory:
    """What earlier looks at a pool's backend found, between two looks."""

    missed: Mapping[str, int] = fresh(factory=dict)
    """Allocation → how many looks in a row did not find it."""
    strays: Mapping[str, float] = fresh(factory=dict)
    """Backend id → when it was first seen without a live row."""
    live: frozenset[str] = frozenset()
    """Allocations that were waiting or started when a look last found them."""
    ending: frozenset[str] = frozenset()
    """Allocations that the backend is ending, before anybody drained them."""


@frozen
class Reconciliation:
    """What follows from one look."""

    moves: tuple[AllocationMove, ...] = ()
    cancels: tuple[str, ...] = ()
    """Backend ids to cancel: strays, and allocations whose worker never joined."""
    unjoined: tuple[str, ...] = ()
    """Allocations whose log says why their worker did not join."""
    memory: LookMemory = LookMemory()


def reconcile(
    allocations: Iterable[Allocation],
    statuses: Sequence[AllocationStatus],
    memory: LookMemory,
    *,
    now_s: float,
    cancelled: Collection[str] = (),
    silent: Collection[str] = (),
) -> Reconciliation:
    """Compare. `cancelled` are the allocations that this launcher cancelled itself.

    `silent` are those whose workers have joined and send no heartbeat.
    """
    rows = {one.id: one for one in allocations}
    seen = {one.id: one for one in statuses}
    moves: list[AllocationMove] = []
    cancels: list[str] = []
    unjoined: list[str] = []
    missed: dict[str, int] = {}
    ending = set(memory.ending & rows.keys())
    for row in rows.values():
        status = seen.get(row.id)
        if row.is_over:
            if status is not None and row.cause is AllocationCause.FINISHED and status.cause in FREE_CAUSES:
                # It said goodbye, because the backend had asked it to.
                corrected = _end_cause(row, status, is_ours=row.id in cancelled)
                moves.append(
                    AllocationMove(
                        id=row.id,
                        state=AllocationState.ENDED,
                        cause=corrected,
                        message=""
                        if corrected is AllocationCause.CANCELLED
                        else one_line(status.reason, _LONGEST_TEXT),
                    )
                )
            continue
        is_drained = row.state is AllocationState.DRAINING and row.id not in ending
        is_ours = row.id in cancelled or is_drained
        if status is None or status.is_lost:
            missed[row.id] = memory.missed.get(row.id, 0) + 1
            move = None
            if row.state is not AllocationState.SERVING or row.id in silent:
                was_seen = row.id in memory.live
                move = _not_found(row, status, missed[row.id], now_s, is_ours=is_ours, was_seen=was_seen)
        else:
            if status.state is AllocationState.DRAINING and may_move(row.state, AllocationState.DRAINING):
                ending.add(row.id)
            move = _found(row, status, is_ours=is_ours)
            if move is not None and move.cause is AllocationCause.NEVER_JOINED:
                unjoined.append(row.id)
            if move is None and _never_joined(row, now_s):
                unjoined.append(row.id)
                cancels.append(status.backend_id)
                move = AllocationMove(
                    id=row.id, state=AllocationState.ENDED, cause=AllocationCause.NEVER_JOINED, reason=status.reason
                )
        if move is not None:
            moves.append(move)
    strays = {
        one.backend_id: memory.strays.get(one.backend_id, now_s)
        for one in statuses
        if one.state in _LIVE and (one.id not in rows or rows[one.id].is_over)
    }
    cancels += [backend_id for backend_id, since_s in strays.items() if now_s - since_s >= STRAY_S]
    return Reconciliation(
        moves=tuple(moves),
        cancels=tuple(cancels),
        unjoined=tuple(unjoined),
        memory=LookMemory(
            missed=missed,
            strays=strays,
            live=frozenset(one.id for one in statuses if one.state in _LIVE) | (memory.live & missed.keys()),
            ending=frozenset(ending),
        ),
    )


def due_to_end(
    live: Iterable[Allocation], *, ending: frozenset[str], silent_s: Mapping[str, float], now_s: float
) -> dict[str, str]:
    """Return which live allocations have to end at their backend, whatever jobs need, and why.

    `ending` are those that the backend is ending. `silent_s` has how long workers that serve have sent no heartbeat.
    """
    found = {}
    for one in live:
        if one.state is AllocationState.DRAINING and one.id not in ending:
            found[one.id] = "draining"
        elif one.ends_s is not None and now_s > one.ends_s + _OVERDUE_S:
            found[one.id] = "its time limit is over"
        elif silent_s.get(one.id, 0.0) >= HUNG_S:
            found[one.id] = f"its worker was silent for {format_duration(HUNG_S)}"
    return found


def _found(row: Allocation, status: AllocationStatus, *, is_ours: bool) -> AllocationMove | None:
    """Return the change by what the backend shows; None if nothing changes."""
    state = status.state if may_move(row.state, status.state) else row.state
    cause = None
    if state is AllocationState.ENDED:
        cause = _end_cause(row, status, is_ours=is_ours)
    elif (
        (state, row.backend_id, row.reason) == (row.state, status.backend_id, status.reason)
        and (status.ends_s is None or row.ends_s is not None)
        and not _is_news(row.may_start_s, status.may_start_s)
    ):
        return None
    reason = one_line(status.reason, _LONGEST_TEXT)
    return AllocationMove(
        id=row.id,
        state=state,
        backend_id=one_line(status.backend_id, 200),
        reason=reason,
        cause=cause,
        # Of our own end the backend's words are an exit status, which looks like a failure.
        message=reason if cause not in (None, AllocationCause.CANCELLED) else "",
        is_signalled=state is AllocationState.DRAINING and row.state is not state,
        may_start_s=_moment(status.may_start_s),
        ends_s=_moment(status.ends_s),
    )


def _moment(at_s: float | None) -> float | None:
    """Return a time of a backend; None if it is an odd one."""
    return at_s if at_s is not None and 0 <= at_s < _LATEST_S else None


def _is_news(known_s: float | None, may_start_s: float | None) -> bool:
    """Return True if a backend expects to start an allocation at another time; it guesses again each half minute."""
    now_s = _moment(may_start_s)
    if known_s is None or now_s is None:
        return known_s is not now_s
    return abs(now_s - known_s) >= START_NEWS_S


def _end_cause(row: Allocation, status: AllocationStatus, *, is_ours: bool) -> AllocationCause:
    if status.cause in (AllocationCause.CANCELLED_THERE, AllocationCause.PREEMPTED) and is_ours:
        # A worker that ended because of our signal looks like a preempted one.
        return AllocationCause.CANCELLED
    if status.cause in _EXITS and row.serving_s is None and not is_ours:
        return AllocationCause.NEVER_JOINED
    return status.cause or AllocationCause.FAILED


def _not_found(
    row: Allocation, status: AllocationStatus | None, missed: int, now_s: float, *, is_ours: bool, was_seen: bool
) -> AllocationMove | None:
    """Return the end of an allocation that the backend does not show; None if it may still appear."""
    if missed < MISSED_LOOKS or (row.state is AllocationState.PLANNED and now_s - row.planned_s < PLANNED_S):
        return None
    if row.state in (AllocationState.PLANNED, AllocationState.DOUBTFUL):
        cause, message = AllocationCause.NOT_SUBMITTED, "the backend never had it"
    else:
        cause = AllocationCause.PREEMPTED
        if is_ours:
            cause = AllocationCause.CANCELLED
        elif status is not None and status.cause is not None:
            cause = status.cause
        elif was_seen and row.state in _BEFORE_SERVING:
            # Slurm forgets at once what is cancelled while it waits.
            cause = AllocationCause.CANCELLED_THERE
        message = status.reason if status is not None else "the backend no longer knows it"
        if is_ours:
            message = ""
    return AllocationMove(id=row.id, state=AllocationState.ENDED, cause=cause, message=message)


def _never_joined(row: Allocation, now_s: float) -> bool:
    # By the coordinator's clock: the backend's may differ.
    started_s = row.started_s
    return row.state is AllocationState.STARTED and started_s is not None and now_s - started_s > JOIN_S
