"""Compare the allocations of a pool with what its backend shows: which rows change, and what to cancel there.

Pure. An allocation whose answer was lost is adopted if the backend shows it, and was never submitted if two looks do
not find it. What the backend runs of ours without a live row is a stray, and is cancelled after a grace period. An
allocation that the backend no longer knows is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stoker.core.frozen import fresh, frozen
from stoker.core.pool import FREE_CAUSES, Allocation, AllocationCause, AllocationState, may_move
from stoker.core.text import one_line
from stoker.launch.launchers import AllocationStatus
from stoker.protocol.launch_messages import AllocationMove

PLANNED_S = 60.0
"""A planned allocation is submitted within this time, or its launcher died before."""
JOIN_S = 300.0
"""A started allocation whose worker has not joined by then ends as `never_joined`.

Half of the time that its ticket lives (`coordinator.queue.allocations.JOIN_S`): the watcher ends it first.
"""
STRAY_S = 60.0
MISSED_LOOKS = 2
"""Looks that do not find an allocation, before it counts as unknown to the backend."""
_EXITS = frozenset({AllocationCause.FINISHED, AllocationCause.FAILED, AllocationCause.OUT_OF_MEMORY})
"""Ends of a worker's process: one that has not joined before did not serve."""
_LONGEST_TEXT = 500
_LATEST_S = 1e11
_LIVE = (AllocationState.WAITING, AllocationState.STARTED)


@frozen
class LookMemory:
    """What earlier looks at a pool's backend found, between two looks."""

    missed: Mapping[str, int] = fresh(factory=dict)
    """Allocation → how many looks in a row did not find it."""
    strays: Mapping[str, float] = fresh(factory=dict)
    """Backend id → when it was first seen without a live row."""
    live: frozenset[str] = frozenset()
    """Allocations that the last look found waiting or started."""


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
    cancelled: frozenset[str] = frozenset(),
) -> Reconciliation:
    """Compare. `cancelled` are the allocations that this launcher cancelled itself."""
    rows = {one.id: one for one in allocations}
    seen = {one.id: one for one in statuses}
    moves: list[AllocationMove] = []
    cancels: list[str] = []
    unjoined: list[str] = []
    missed: dict[str, int] = {}
    for row in rows.values():
        status = seen.get(row.id)
        if row.is_over:
            if status is not None and row.cause is AllocationCause.FINISHED and status.cause in FREE_CAUSES:
                # It said goodbye, because the backend had asked it to.
                corrected = _end_cause(row, status, is_ours=row.id in cancelled, was_seen=False)
                moves.append(
                    AllocationMove(
                        id=row.id,
                        state=AllocationState.ENDED,
                        cause=corrected,
                        message=one_line(status.reason, _LONGEST_TEXT),
                    )
                )
            continue
        if status is None:
            missed[row.id] = memory.missed.get(row.id, 0) + 1
            move = _not_found(row, missed[row.id], now_s)
        else:
            is_ours = row.id in cancelled or row.state is AllocationState.DRAINING
            move = _found(row, status, is_ours=is_ours, was_seen=row.id in memory.live)
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
            missed=missed, strays=strays, live=frozenset(one.id for one in statuses if one.state in _LIVE)
        ),
    )


def _found(row: Allocation, status: AllocationStatus, *, is_ours: bool, was_seen: bool) -> AllocationMove | None:
    """Return the change by what the backend shows; None if nothing changes."""
    state = status.state if may_move(row.state, status.state) else row.state
    cause = None
    if state is AllocationState.ENDED:
        cause = _end_cause(row, status, is_ours=is_ours, was_seen=was_seen)
    elif (state, row.backend_id, row.reason) == (row.state, status.backend_id, status.reason) and (
        status.ends_s is None or row.ends_s is not None
    ):
        return None
    reason = one_line(status.reason, _LONGEST_TEXT)
    return AllocationMove(
        id=row.id,
        state=state,
        backend_id=one_line(status.backend_id, 200),
        reason=reason,
        cause=cause,
        message=reason if cause is not None else "",
        ends_s=status.ends_s if status.ends_s is not None and 0 <= status.ends_s < _LATEST_S else None,
    )


def _end_cause(row: Allocation, status: AllocationStatus, *, is_ours: bool, was_seen: bool) -> AllocationCause:
    if status.cause in (AllocationCause.CANCELLED_THERE, AllocationCause.PREEMPTED) and is_ours:
        # A worker that ended because of our signal looks like a preempted one.
        return AllocationCause.CANCELLED
    if status.cause is None:
        # It is gone without a trace. Slurm forgets at once what is cancelled while it waits, and later all that ended.
        if row.state in (AllocationState.SERVING, AllocationState.DRAINING):
            return AllocationCause.FINISHED
        return AllocationCause.CANCELLED_THERE if was_seen and not is_ours else AllocationCause.PREEMPTED
    if status.cause in _EXITS and row.serving_s is None and not is_ours:
        return AllocationCause.NEVER_JOINED
    return status.cause


def _not_found(row: Allocation, missed: int, now_s: float) -> AllocationMove | None:
    """Return the end of an allocation that the backend does not show; None if it may still appear."""
    if missed < MISSED_LOOKS or (row.state is AllocationState.PLANNED and now_s - row.planned_s < PLANNED_S):
        return None
    if row.state in (AllocationState.PLANNED, AllocationState.DOUBTFUL):
        cause, message = AllocationCause.NOT_SUBMITTED, "the backend never had it"
    elif row.state is AllocationState.DRAINING:
        cause, message = AllocationCause.FINISHED, ""
    else:
        cause, message = AllocationCause.PREEMPTED, "the backend no longer knows it"
    return AllocationMove(id=row.id, state=AllocationState.ENDED, cause=cause, message=message)


def _never_joined(row: Allocation, now_s: float) -> bool:
    # By the coordinator's clock: the backend's may differ.
    started_s = row.started_s
    return row.state is AllocationState.STARTED and started_s is not None and now_s - started_s > JOIN_S
