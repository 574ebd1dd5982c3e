"""Allocations from their plan to their end, and demand.

A planned row is durable before a backend gets the allocation. Every write of a launcher names the epoch of its pool:
one of an older launcher is refused. An allocation serves from the hello of its worker on. When it has ended, its ticket
is gone, its certificates are revoked, its machine is forgotten, and leases there have ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stoker.coordinator.auth import Invite, not_invited
from stoker.coordinator.database.database import WriterConnection
from stoker.coordinator.database.tables import ALLOCATIONS
from stoker.coordinator.queue.commands import (
    CloseMachine,
    CloseRequest,
    InspectLaunch,
    MachineCloseMode,
    MoveAllocations,
    PausePool,
    PlanAllocations,
    QueueCommandResult,
    RequestMachines,
    ResumePool,
    StopAllocations,
    UseInvite,
    WatchPools,
)
from stoker.coordinator.queue.machines import close_machine
from stoker.coordinator.queue.members import put_invitation, remove_machine, revoke, use_invite
from stoker.coordinator.queue.pools import (
    UNDECLARED,
    carry_out,
    close_request,
    drop_if_over,
    fenced,
    forget_requests,
    live_of,
    note_shape,
    pause_pool,
    pool_named,
    request_machines,
    resume_pool,
    shown_requests,
    undeclared,
    watch_pools,
)
from stoker.coordinator.queue.queue_state import LaunchState, QueueState, RegisteredMachine
from stoker.coordinator.queue.sql import Queries, records
from stoker.coordinator.queue.transaction import WriterTransaction, plain, telling
from stoker.core.errors import BadInput, Conflict, NotFound, Refused, StaleLease
from stoker.core.events import FleetKinds
from stoker.core.frozen import changed, fields_of
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import Role
from stoker.core.machine import Demand
from stoker.core.pool import FREE_CAUSES, Allocation, AllocationCause, AllocationState, PoolState, may_move, staying
from stoker.core.text import point_name
from stoker.protocol.launch_messages import MOST_WANTED, AllocationMove, LaunchView

TICKET_S = 366 * 86400.0
"""Lifetime of a ticket while its allocation waits: the backend's queue may take weeks."""
JOIN_S = 600.0
"""Time to join after an allocation has started; and how long a certificate outlives the allocation's time limit."""
SHOWN_S = 86400.0
"""How long an ended allocation is shown."""
MOST_SHOWN = 500
"""Ended allocations that are shown."""
MOST_FAILED = 20
"""Those of them that are of one request that never reached its backend: of a large one, all would hide the others."""
_FAILED_REQUESTS = (AllocationCause.REFUSED, AllocationCause.NOT_SUBMITTED)
_LOOK_EVERY_S = 3600.0
_MOST_DROPPED = 500
_CERTIFICATES_KEPT_S = 86400.0
"""How long rows of expired certificates are stored."""


# Rows.


def load_allocations(connection: WriterConnection, queries: Queries, book: QueueState) -> None:
    """Read allocations that have not ended, and those that ended lately."""
    after_s = book.time.now_s() - SHOWN_S
    ended = connection.read(queries.ended_allocations, after_s=after_s, most=MOST_SHOWN)
    for row in records(ALLOCATIONS, [*connection.read(queries.live_allocations), *reversed(ended)]):
        allocation = _allocation(row)
        book.launch.allocations[allocation.id] = allocation


def _allocation(row: dict[str, Any]) -> Allocation:
    return Allocation(
        **row
        | {
            "state": AllocationState(row["state"]),
            "wanted": tuple(loads(row["wanted"])) if row["wanted"] else (),
            "cause": AllocationCause(row["cause"]) if row["cause"] else None,
        }
    )


def _put(transaction: WriterTransaction, allocation: Allocation) -> None:
    transaction.book.launch.allocations[allocation.id] = allocation
    row = fields_of(allocation) | {
        "state": allocation.state.value,
        "wanted": dumps(list(allocation.wanted)) if allocation.wanted else "",
        "cause": allocation.cause.value if allocation.cause is not None else "",
    }
    transaction.write(transaction.statements.put_allocation, **row)


def _move(transaction: WriterTransaction, old: Allocation, new: Allocation, *, by: str = "") -> None:
    """Store a move: its row, and one event."""
    _put(transaction, new)
    _tell(transaction, new, old.state.value, by)


def _tell(transaction: WriterTransaction, allocation: Allocation, from_state: str, by: str) -> None:
    fields = {
        "allocation": allocation.id,
        "pool": allocation.pool,
        "backend_id": allocation.backend_id,
        "reason": allocation.reason,
        "cause": allocation.cause.value if allocation.cause is not None else "",
        "message": allocation.message,
        "by": plain(by),
    }
    transaction.tell(
        FleetKinds.ALLOCATION_CHANGED,
        machine=allocation.machine,
        from_state=from_state,
        to_state=allocation.state.value,
        fields=telling(fields),
    )


# Plans: intent before the backend gets anything, and tickets.


def plan_allocations(transaction: WriterTransaction, asked: PlanAllocations) -> QueueCommandResult:
    """Plan allocations, all or none. Idempotent: the same ids under the same epoch get the same tickets."""
    state = fenced(transaction, asked.pool, asked.epoch)
    ids = transaction.many([plan.id for plan in asked.plans])
    rows = records(ALLOCATIONS, transaction.read(transaction.queries.allocations_by_id, ids=ids))
    known = {row["id"]: _allocation(row) for row in rows}
    keys = {plan.id: _repeated_key(transaction, asked, known[plan.id]) for plan in asked.plans if plan.id in known}
    new = {plan.id: plan for plan in asked.plans if plan.id not in known}
    if new:
        _see_room(transaction, state, len(new))
    planned = [
        Allocation(
            id=plan.id,
            pool=asked.pool,
            epoch=asked.epoch,
            wanted=tuple(plain(name) for name in plan.wanted),
            planned_s=transaction.now_s,
        )
        for plan in new.values()
    ]
    for allocation in planned:
        if allocation.machine in transaction.book.machines:
            what = f"there is a machine {allocation.machine!r} already"
            raise Conflict(what, hint="use another id", id=allocation.id)
    if asked.request and new:
        carry_out(transaction, asked.request, asked.pool, new)
    for allocation in planned:
        _plan(transaction, allocation, new[allocation.id].key, asked.by)
    return QueueCommandResult(changed=tuple(new), data=keys | {plan.id: plan.key for plan in new.values()})


def _plan(transaction: WriterTransaction, allocation: Allocation, key: str, by: str) -> None:
    ticket = Invite(
        id=allocation.id.upper(),
        role=Role.WORKER.value,
        name=allocation.machine,
        key=key,
        made_s=transaction.now_s,
        expires_s=transaction.now_s + TICKET_S,
        by=plain(by)[:200],
    )
    put_invitation(transaction, ticket)
    _put(transaction, allocation)
    _tell(transaction, allocation, "", by)


def _repeated_key(transaction: WriterTransaction, asked: PlanAllocations, known: Allocation) -> str:
    ticket = transaction.book.standing.invites.get(known.id.upper())
    is_same = known.pool == asked.pool and known.epoch == asked.epoch
    if not is_same or ticket is None or not ticket.is_live(transaction.now_s):
        raise Conflict(
            f"allocation {known.id} exists already ({known.state})", hint="use another id", id=known.id, pool=known.pool
        )
    return ticket.key


def _see_room(transaction: WriterTransaction, state: PoolState, more: int) -> None:
    """Refuse new allocations of a pool that is paused, no longer declared, or full."""
    name = state.pool.name
    if not state.is_declared:
        raise undeclared(name)
    if state.paused:
        raise Refused(f"pool {name} is paused: {state.paused}", hint=f"stoker pools resume {name}", reason="paused")
    live = len(live_of(transaction.book, name))
    if live + more > state.pool.max:
        raise Refused(
            f"pool {name} has {live} of at most {state.pool.max} allocations",
            hint="raise max in the cluster file, or wait until one has ended",
            reason="full",
            live=live,
            most=state.pool.max,
        )


def _keep_ticket(transaction: WriterTransaction, allocation: Allocation, life_s: float) -> None:
    """Let an unused ticket live for so long from now; for 0 s: close it."""
    ticket = transaction.book.standing.invites.get(allocation.id.upper())
    if ticket is not None and ticket.used_s is None:
        key = ticket.key if life_s else ""
        put_invitation(transaction, changed(ticket, key=key, expires_s=transaction.now_s + life_s))


def redeem(transaction: WriterTransaction, asked: UseInvite) -> QueueCommandResult:
    """Redeem an invitation or a ticket once; idempotent.

    The sender has proven that it has the key. A ticket that was used with another key of a machine has been copied:
    neither side can be distinguished from the other, so both are refused from now on.
    """
    book = transaction.book
    found = book.standing.invites.get(asked.id)
    if found is not None and found.is_ticket and found.used_s is not None and found.request != asked.request:
        allocation = book.launch.allocation_of(found.name)
        if allocation is not None and not allocation.is_over:
            fields = {"allocation": allocation.id, "pool": allocation.pool, "address": plain(asked.address)}
            transaction.tell(FleetKinds.TICKET_STOLEN, machine=found.name, fields=telling(fields))
            message = "its ticket was used twice, by different workers"
            _end(transaction, [_Ending(allocation, AllocationCause.FAILED, message, is_free=True)])
        raise not_invited(found, transaction.now_s)
    return use_invite(transaction, asked)


def certificate_end_s(book: QueueState, machine: str, now_s: float) -> float | None:
    """Return until when a certificate of an allocation's worker is valid; None: the machine is no such worker."""
    allocation = book.launch.allocation_of(machine)
    if allocation is None:
        return None
    pool = book.launch.pools.get(allocation.pool)
    wall_s = pool.pool.wall_s if pool is not None else 0.0
    ends_s = now_s + wall_s if allocation.ends_s is None else allocation.ends_s
    return max(ends_s, now_s) + JOIN_S


# Moves.


class _Ending(NamedTuple):
    """The end of an allocation."""

    allocation: Allocation
    cause: AllocationCause
    message: str = ""
    state: AllocationState = AllocationState.ENDED
    is_free: bool = False
    """Its jobs are not charged, whatever the cause."""


def move_allocations(transaction: WriterTransaction, asked: MoveAllocations) -> QueueCommandResult:
    """Record what a launcher found out about allocations, each by itself."""
    fenced(transaction, asked.pool, asked.epoch)
    done, notes, refused = [], [], {}
    endings: list[_Ending] = []
    for move in asked.moves:
        allocation = transaction.book.launch.allocations.get(move.id)
        if allocation is not None and allocation.pool == asked.pool and is_correction(allocation, move):
            _put(transaction, changed(allocation, cause=move.cause, message=plain(move.message)))
            done.append(move.id)
            continue
        why = _refusal(asked.pool, allocation, move)
        if allocation is None or why:
            refused[move.id] = why
            continue
        if move.id in done:
            raise BadInput(f"two moves of allocation {move.id}", hint="send one move for each")
        allocation = _with_facts(allocation, move, transaction.now_s)
        if move.state in (AllocationState.ENDED, AllocationState.REFUSED):
            cause = move.cause or _DEFAULT_CAUSES[move.state]
            endings.append(_Ending(allocation, cause, plain(move.message), move.state))
        elif move.state is None or move.state is allocation.state:
            _put(transaction, allocation)
        elif may_move(allocation.state, move.state):
            _enter(transaction, allocation, move.state, asked.by)
        else:
            _put(transaction, allocation)
            notes.append(f"{move.id} is {allocation.state} already, not {move.state}")
        done.append(move.id)
    data: dict[str, Any] = {"refused": refused} if refused else {}
    forgotten = _end(transaction, endings, by=asked.by)
    return QueueCommandResult(changed=tuple(done), notes=tuple(notes), data=data | {"forgotten": sorted(forgotten)})


_DEFAULT_CAUSES = {
    AllocationState.ENDED: AllocationCause.FAILED,
    AllocationState.REFUSED: AllocationCause.REFUSED,
}


def is_correction(allocation: Allocation, move: AllocationMove) -> bool:
    """Return True if the backend tells why a worker left that said goodbye first: it was asked to."""
    is_goodbye = allocation.state is AllocationState.ENDED and allocation.cause is AllocationCause.FINISHED
    return is_goodbye and move.state is AllocationState.ENDED and move.cause in FREE_CAUSES


def _refusal(pool: str, allocation: Allocation | None, move: AllocationMove) -> str:
    """Return why a move is not allowed; empty if it is.

    A state that an allocation has passed is allowed: the launcher looked before its worker said hello.
    """
    if allocation is None or allocation.pool != pool:
        return f"pool {pool} has no allocation {move.id}"
    if allocation.is_over:
        return f"allocation {move.id} has ended ({allocation.cause})"
    if move.state is AllocationState.SERVING and allocation.state is not AllocationState.SERVING:
        return f"allocation {move.id} is {allocation.state}: it serves from its worker's hello on"
    if move.state is AllocationState.REFUSED and not may_move(allocation.state, move.state):
        return f"allocation {move.id} is {allocation.state}: its backend has accepted it"
    return ""


def _with_facts(allocation: Allocation, move: AllocationMove, now_s: float) -> Allocation:
    return changed(
        allocation,
        backend_id=plain(move.backend_id) or allocation.backend_id,
        reason=allocation.reason if move.reason is None else plain(move.reason),
        may_start_s=allocation.may_start_s if move.reason is None else move.may_start_s,
        message=plain(move.message) or allocation.message,
        started_s=allocation.started_s if move.started_s is None else move.started_s,
        ends_s=allocation.ends_s if move.ends_s is None else move.ends_s,
        signalled_s=now_s if move.is_signalled and allocation.signalled_s is None else allocation.signalled_s,
    )


def _enter(transaction: WriterTransaction, allocation: Allocation, state: AllocationState, by: str) -> None:
    """Move an allocation to another state that is not its end."""
    now_s = transaction.now_s
    times: dict[str, float | None] = {}
    if allocation.submitted_s is None and state is not AllocationState.DOUBTFUL:
        times["submitted_s"] = now_s
    if state is AllocationState.WAITING and allocation.state is AllocationState.STARTED:
        # The backend put it back into its queue.
        times |= {"started_s": None, "ends_s": None}
        _keep_ticket(transaction, allocation, TICKET_S)
    if state in (AllocationState.STARTED, AllocationState.SERVING) and allocation.started_s is None:
        times["started_s"] = now_s
    if state is AllocationState.STARTED:
        _keep_ticket(transaction, allocation, JOIN_S)
    if state is AllocationState.SERVING:
        times["serving_s"] = now_s
        transaction.book.launch.idle_from_s[allocation.id] = now_s
    if state is AllocationState.DRAINING:
        _keep_ticket(transaction, allocation, 0.0)
        _close(transaction, allocation, by)
    _move(transaction, allocation, changed(allocation, state=state, **times), by=by)


def _close(transaction: WriterTransaction, allocation: Allocation, by: str) -> None:
    """Give an allocation's machine no more jobs."""
    machine = transaction.book.machines.get(allocation.machine)
    if machine is not None and not machine.row["closed"]:
        why = f"allocation {allocation.id} is draining"
        close_machine(transaction, CloseMachine(machine=machine.name, how=MachineCloseMode.DRAIN, why=why, by=by))


def _end(transaction: WriterTransaction, endings: Sequence[_Ending], *, by: str = "") -> set[str]:
    """End allocations, their tickets, certificates, machines and leases first; return the machines."""
    book = transaction.book
    why = {one.allocation.machine: f"its allocation ended ({one.cause})" for one in endings}
    joined = [one for one in book.standing.certificates.values() if one.name in why and one.is_live(transaction.now_s)]
    # Together: each write of the list of revocations is synced.
    revoke(transaction, joined, "its allocation ended", by, are_brief=True)
    names = {one.name for one in joined} | (why.keys() & book.machines.keys())
    for ending in endings:
        old = ending.allocation
        if book.standing.invites.pop(old.id.upper(), None) is not None:
            transaction.write(transaction.statements.drop_invite, at_id=old.id.upper())
        if old.machine in names:
            is_free = ending.is_free or ending.cause in FREE_CAUSES
            remove_machine(transaction, old.machine, f"{old.machine}: {why[old.machine]}", by, is_free=is_free)
        idle_s = old.idle_s + book.launch.stop_idling(old.id, transaction.now_s)
        ended_s = transaction.now_s
        new = changed(
            old, state=ending.state, cause=ending.cause, message=ending.message, ended_s=ended_s, idle_s=idle_s
        )
        _move(transaction, old, new, by=by)
    for pool in {one.allocation.pool for one in endings}:
        drop_if_over(transaction, pool)
    return names


def stop_allocations(transaction: WriterTransaction, asked: StopAllocations) -> QueueCommandResult:
    """Drain allocations of a pool, by id or all of them; its launcher cancels them at the backend."""
    pool_named(transaction, asked.pool)
    book = transaction.book
    found = [one for id in asked.ids if (one := book.launch.allocations.get(id)) is not None and one.pool == asked.pool]
    missing = set(asked.ids) - {one.id for one in found}
    if missing:
        what = f"pool {asked.pool} has no allocation {min(missing)}"
        raise NotFound(what, hint=f"`stoker pools show {asked.pool}` lists them", ids=sorted(missing))
    done, notes = [], []
    for allocation in found if asked.ids else live_of(book, asked.pool):
        if may_move(allocation.state, AllocationState.DRAINING):
            _enter(transaction, allocation, AllocationState.DRAINING, asked.by)
            done.append(allocation.id)
        else:
            notes.append(f"allocation {allocation.id} is {allocation.state} already")
    return QueueCommandResult(changed=tuple(done), notes=tuple(notes))


# Workers of allocations.


def refuse_ended(transaction: WriterTransaction, worker: str) -> None:
    """Raise `StaleLease` for the worker of an allocation that has ended."""
    allocation = transaction.book.launch.allocation_of(worker)
    if allocation is not None and allocation.is_over:
        what = f"allocation {allocation.id} of {worker} has ended ({allocation.cause})"
        raise StaleLease(what, hint="stop the jobs of this worker and exit", machine=worker)


def serve(transaction: WriterTransaction, machine: RegisteredMachine) -> None:
    """Record that an allocation's worker said hello."""
    allocation = transaction.book.launch.allocation_of(machine.name)
    if allocation is None:
        return
    if allocation.ends_s is None and machine.ends_s is not None:
        allocation = changed(allocation, ends_s=machine.ends_s)
    if may_move(allocation.state, AllocationState.SERVING):
        note_shape(transaction, allocation.pool, machine)
        _enter(transaction, allocation, AllocationState.SERVING, "")
    elif allocation.state is AllocationState.DRAINING:
        _close(transaction, allocation, "")


def count_grants(transaction: WriterTransaction, machine: str, more: int) -> None:
    """Count jobs that were granted to an allocation's worker."""
    allocation = transaction.book.launch.allocation_of(machine)
    if allocation is not None:
        idle_s = allocation.idle_s + transaction.book.launch.stop_idling(allocation.id, transaction.now_s)
        _put(transaction, changed(allocation, grants=allocation.grants + more, idle_s=idle_s))


def belongs_to_minimum(book: QueueState, machine: str) -> bool:
    """Return True if an allocation's worker stays when it is idle."""
    allocation = book.launch.allocation_of(machine)
    state = book.launch.pools.get(allocation.pool) if allocation is not None else None
    if allocation is None or state is None:
        return False
    return allocation.id in staying(state, book.launch.allocations.values())


def say_goodbye(transaction: WriterTransaction, machine: str) -> None:
    """End the allocation of a worker that has left in order."""
    allocation = transaction.book.launch.allocation_of(machine)
    if allocation is not None and not allocation.is_over:
        _end(transaction, [_Ending(allocation, AllocationCause.FINISHED)])


# What is shown, and what is dropped.


def inspect_launch(transaction: WriterTransaction, _asked: InspectLaunch) -> LaunchView:
    """Return pools, allocations and demand."""
    book, now_s = transaction.book, transaction.now_s
    live = [one for one in book.launch.allocations.values() if not one.is_over]
    ended = [
        one for one in book.launch.allocations.values() if one.ended_s is not None and one.ended_s > now_s - SHOWN_S
    ]
    ended.sort(key=lambda one: one.ended_s or 0.0, reverse=True)
    ended = _few_of_each(ended)
    # By the rows: of allocations that have ended, only some are listed.
    query, after_s = transaction.queries.seconds_by_pool, now_s - SHOWN_S
    rows = transaction.read(query, now_s=now_s, after_s=after_s) if book.launch.pools else ()
    used_s = {pool: (whole_s, idle_s) for pool, whole_s, idle_s in rows}
    live = [changed(one, idle_s=one.idle_s + book.launch.idling_s(one.id, now_s)) for one in live]
    return LaunchView(
        fleet=book.launch.fleet,
        now_s=now_s,
        machines=sum(machine.is_offered and not machine.closed for machine in book.machines.values()),
        pools=tuple(
            _shown(state, now_s, *used_s.get(name, (0.0, 0.0)), book.launch)
            for name, state in book.launch.pools.items()
        ),
        allocations=(*live, *ended[:MOST_SHOWN]),
        silent=tuple(one.id for one in live if one.state is AllocationState.SERVING and _is_silent(book, one.machine)),
        demand=_demand(transaction) if book.launch.pools else (),
        requests=shown_requests(book, now_s),
    )


def _few_of_each(ended: Sequence[Allocation]) -> list[Allocation]:
    """Return allocations without most of those that failed together: brakes count requests."""
    counts: Counter[tuple[str, float]] = Counter()
    found = []
    for one in ended:
        is_failed = one.cause in _FAILED_REQUESTS
        counts[one.pool, one.planned_s] += is_failed
        if not is_failed or counts[one.pool, one.planned_s] <= MOST_FAILED:
            found.append(one)
    return found


def _is_silent(book: QueueState, machine: str) -> bool:
    found = book.machines.get(machine)
    return found is None or not found.is_offered


def _shown(state: PoolState, now_s: float, used_s: float, idle_s: float, launch: LaunchState) -> PoolState:
    paused = state.paused or ("" if state.is_declared else UNDECLARED)
    is_watched = state.watched_until_s > now_s
    watcher, problem = (state.watcher, state.problem) if is_watched else ("", "")
    idle_s += sum(launch.idling_s(one.id, now_s) for one in launch.allocations.values() if one.pool == state.pool.name)
    hours, idle_hours = used_s / 3600, idle_s / 3600
    return changed(state, paused=paused, watcher=watcher, problem=problem, hours=hours, idle_hours=idle_hours)


def _demand(transaction: WriterTransaction) -> tuple[Demand, ...]:
    book = transaction.book
    book.waiting.freshen()
    unmet = book.scheduler.unmet(transaction.now_s)
    jobs = [book.waiting.known(one.head, one.placed, MOST_WANTED) for one in unmet]
    seqs = transaction.many([job.seq for some in jobs for job in some])
    rows = transaction.read(transaction.queries.names_by_seq, seqs=seqs) if unmet else []
    names = {seq: point_name(name, number) for seq, name, number in rows}
    return tuple(
        book.scheduler.demand_of(one, since_s=some[0].since_s, names=tuple(names[job.seq] for job in some[: one.count]))
        for one, some in zip(unmet, jobs, strict=True)
    )


def forget_old(transaction: WriterTransaction) -> None:
    """Drop ended allocations and expired certificates that are no longer needed, once an hour."""
    book, now_s = transaction.book, transaction.now_s
    if transaction.tick_s < book.launch.next_tick_s:
        return
    ended = sorted((one for one in book.launch.allocations.values() if one.is_over), key=lambda one: one.ended_s or 0.0)
    for at, one in enumerate(ended):
        if (one.ended_s or 0.0) <= now_s - SHOWN_S or at < len(ended) - MOST_SHOWN:
            del book.launch.allocations[one.id]
    forget_requests(transaction, now_s - SHOWN_S)
    before_s = now_s - transaction.setting.times.events_kept_s
    rows = transaction.read(transaction.queries.old_allocations, before_s=before_s, most=_MOST_DROPPED)
    for (id,) in rows:
        transaction.write(transaction.statements.drop_allocation, at_id=id)
    before_s = now_s - _CERTIFICATES_KEPT_S
    expired = transaction.read(transaction.queries.old_certificates, before_s=before_s, most=_MOST_DROPPED)
    for (serial,) in expired:
        transaction.write(transaction.statements.drop_certificate, at_serial=serial)
        book.standing.certificates.pop(serial, None)
    if max(len(rows), len(expired)) < _MOST_DROPPED:
        book.launch.next_tick_s = transaction.tick_s + _LOOK_EVERY_S


LAUNCH_VERBS: dict[type, Callable[[WriterTransaction, Any], QueueCommandResult | LaunchView]] = {
    WatchPools: watch_pools,
    PlanAllocations: plan_allocations,
    MoveAllocations: move_allocations,
    RequestMachines: request_machines,
    CloseRequest: close_request,
    PausePool: pause_pool,
    ResumePool: resume_pool,
    StopAllocations: stop_allocations,
    InspectLaunch: inspect_launch,
    UseInvite: redeem,
}
