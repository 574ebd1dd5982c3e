"""Pools: declared by the cluster file, watched by one launcher at a time, paused, and requested by operators.

The launcher's lease of a pool has an epoch, which rises with each change of the launcher. A request for machines is a
row until a launcher plans allocations for it, in the same transaction, or answers why it does not: it is carried out
once, whoever dies in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stoker.coordinator.database.database import WriterConnection
from stoker.coordinator.database.tables import FLEET, LAUNCH_REQUESTS, POOLS
from stoker.coordinator.queue.commands import (
    CloseRequest,
    PausePool,
    QueueCommandResult,
    RequestMachines,
    ResumePool,
    WatchPools,
)
from stoker.coordinator.queue.queue_state import QueueState, RegisteredMachine
from stoker.coordinator.queue.sql import Queries, records
from stoker.coordinator.queue.transaction import WriterTransaction, plain, telling
from stoker.core.capability import capability_from_dict
from stoker.core.errors import Conflict, NotFound, Refused, StaleLease
from stoker.core.events import FleetKinds
from stoker.core.frozen import changed, fields_of
from stoker.core.jsontext import dumps, loads
from stoker.core.pool import Allocation, AllocationState, LaunchRequest, Pool, PoolState
from stoker.core.text import did_you_mean
from stoker.protocol.launch_messages import POOL_BODY
from stoker.scheduler.launching import detected_shape

UNDECLARED = "the cluster file no longer has this pool"
REQUEST_SHOWN_S = 600.0
"""How long a request is shown after its end."""
MOST_REQUESTS = 100
"""Open requests of one pool."""


# Rows.


def load_pools(connection: WriterConnection, queries: Queries, book: QueueState) -> None:
    """Read pools, and requests that are open or were closed lately."""
    for row in records(POOLS, connection.read(queries.pools)):
        pool = POOL_BODY.validate_json(row.pop("pool"))
        del row["name"]
        book.launch.pools[pool.name] = PoolState(pool=pool, **row | {"is_declared": bool(row["is_declared"])})
    for row in records(LAUNCH_REQUESTS, connection.read(queries.launch_requests)):
        allocations = tuple(loads(row["allocations"])) if row["allocations"] else ()
        book.launch.requests[row["id"]] = LaunchRequest(**row | {"allocations": allocations})


def _put_request(transaction: WriterTransaction, request: LaunchRequest) -> None:
    transaction.book.launch.requests[request.id] = request
    row = fields_of(request) | {"allocations": dumps(list(request.allocations)) if request.allocations else ""}
    transaction.write(transaction.statements.put_launch_request, **row)


def _put_pool(transaction: WriterTransaction, state: PoolState) -> None:
    transaction.book.launch.pools[state.pool.name] = state
    row = fields_of(state) | {"name": state.pool.name, "pool": POOL_BODY.dump_json(state.pool).decode()}
    del row["hours"], row["idle_hours"], row["problem"]
    transaction.write(transaction.statements.put_pool, **row)


# Pools: declared, watched, paused.


def declare_pools(transaction: WriterTransaction, pools: Iterable[Pool]) -> None:
    """Apply the pools of the cluster file. One that it no longer has stays until its last allocation has ended."""
    book = transaction.book
    declared = {pool.name: pool for pool in pools}
    if declared and not book.launch.fleet:
        book.launch.fleet = f"{int(transaction.setting.randomness() * 0xFFFF_FFFF):08x}"
        transaction.write(transaction.statements.put_meta, key=FLEET, value=book.launch.fleet)
    for name, pool in declared.items():
        known = book.launch.pools.get(name)
        declared_pool = pool
        if known is not None and known.pool.each == pool.each:
            declared_pool = changed(pool, found=known.pool.found, without_gpus=known.pool.without_gpus)
        state = PoolState(pool=pool) if known is None else changed(known, pool=declared_pool, is_declared=True)
        if state != known:
            _put_pool(transaction, state)
    for name, known in list(book.launch.pools.items()):
        if name not in declared and known.is_declared:
            _put_pool(transaction, changed(known, is_declared=False))
            for request in [one for one in book.launch.requests.values() if one.pool == name and one.is_open]:
                _close(transaction, changed(request, message=UNDECLARED, code=Refused.code), "")
            drop_if_over(transaction, name)


def drop_if_over(transaction: WriterTransaction, pool: str) -> None:
    """Delete a pool that is no longer declared once all of its allocations have ended."""
    book = transaction.book
    state = book.launch.pools.get(pool)
    if state is not None and not state.is_declared and not live_of(book, pool):
        del book.launch.pools[pool]
        transaction.write(transaction.statements.drop_pool, at_name=pool)
        # Before such a pool is declared again: its row would be deleted after that.
        transaction.settle()


def watch_pools(transaction: WriterTransaction, asked: WatchPools) -> QueueCommandResult:
    """Give a launcher the lease of pools, all or none. One that has it gets more time under the same epoch.

    A launcher that is replaced may still live: its writes have an older epoch, and are refused.
    """
    found = [pool_named(transaction, name) for name in dict.fromkeys(asked.pools)]
    for state in found:
        is_other = state.watcher not in ("", asked.watcher)
        is_replaced = bool(asked.replaces) and state.watcher.startswith(asked.replaces)
        is_held = is_other and not is_replaced and state.watched_until_s > transaction.now_s
        if is_held and asked.for_s:
            raise Conflict(
                f"pool {state.pool.name} is watched by {state.watcher}",
                hint="stop that launcher, or wait until its lease ends",
                pool=state.pool.name,
                watcher=state.watcher,
                until_s=state.watched_until_s,
            )
    epochs = {}
    for state in found:
        if asked.for_s:
            epochs[state.pool.name] = _watch(transaction, state, asked)
        elif state.watcher == asked.watcher:
            epochs[state.pool.name] = state.epoch
            _put_pool(transaction, changed(state, watcher="", problem="", watched_until_s=transaction.now_s))
            _tell_pool(transaction, state, "released", asked.by, watcher=asked.watcher)
    return QueueCommandResult(changed=tuple(epochs), data=epochs)


def _watch(transaction: WriterTransaction, state: PoolState, asked: WatchPools) -> int:
    """Give a launcher the lease of a pool, and return the epoch."""
    is_new = state.watcher != asked.watcher
    epoch = state.epoch + 1 if is_new else state.epoch
    until_s = transaction.now_s + asked.for_s
    problem = plain(asked.problem)
    _put_pool(transaction, changed(state, watcher=asked.watcher, epoch=epoch, watched_until_s=until_s, problem=problem))
    if is_new:
        _tell_pool(transaction, state, "watched", asked.by, watcher=asked.watcher, epoch=epoch)
    return epoch


def pause_pool(transaction: WriterTransaction, asked: PausePool) -> QueueCommandResult:
    """Plan no more allocations of a pool; the reason is shown."""
    state = pool_named(transaction, asked.pool)
    why = plain(asked.why) or f"paused by {plain(asked.by) or 'an operator'}"
    if state.paused == why:
        return QueueCommandResult(notes=(f"pool {asked.pool} is paused already: {why}",))
    _put_pool(transaction, changed(state, paused=why))
    _tell_pool(transaction, state, "paused", asked.by, why=why)
    return QueueCommandResult(changed=(asked.pool,))


def resume_pool(transaction: WriterTransaction, asked: ResumePool) -> QueueCommandResult:
    """Plan allocations of a pool again, of machines as declared: what was found before no longer counts."""
    state = pool_named(transaction, asked.pool)
    pool = changed(state.pool, found=None, without_gpus=0)
    # Machines that got no job no longer count against it, either.
    _put_pool(transaction, changed(state, pool=pool, paused="", resumed_s=transaction.now_s))
    if not state.paused:
        return QueueCommandResult(notes=(f"pool {asked.pool} is not paused",))
    _tell_pool(transaction, state, "resumed", asked.by)
    return QueueCommandResult(changed=(asked.pool,))


def note_shape(transaction: WriterTransaction, pool: str, machine: RegisteredMachine) -> None:
    """Store what the machines of a pool were found to have: the least of those that serve."""
    book = transaction.book
    state = book.launch.pools.get(pool)
    if state is None:
        return
    found = detected_shape(state.pool.each, capability_from_dict(loads(machine.row["capability"])))
    has_others = any(one.state is AllocationState.SERVING for one in live_of(book, pool))
    new = changed(state, pool=state.pool.with_machine(found, has_others=has_others))
    if new != state:
        _put_pool(transaction, new)
        if new.pool.lacks and new.pool.lacks != state.pool.lacks:
            _tell_pool(transaction, state, "found", "", why=new.pool.lacks)


def _tell_pool(transaction: WriterTransaction, state: PoolState, what: str, by: str, **fields: Any) -> None:
    about = {"pool": state.pool.name, "what": what, **fields, "by": plain(by)}
    transaction.tell(FleetKinds.POOL_CHANGED, fields=telling(about))


def pool_named(transaction: WriterTransaction, name: str) -> PoolState:
    """Return a pool by its name. Raises `NotFound`."""
    found = transaction.book.launch.pools.get(name)
    if found is None:
        hint = (
            did_you_mean(name, transaction.book.launch.pools)
            or "`stoker pools` lists them; the cluster file declares them"
        )
        raise NotFound(f"there is no pool {name!r}", hint=hint, pool=name)
    return found


def fenced(transaction: WriterTransaction, name: str, epoch: int) -> PoolState:
    """Return a pool if an epoch is its present one."""
    state = pool_named(transaction, name)
    if not state.epoch or epoch != state.epoch:
        raise StaleLease(
            f"pool {name} is at epoch {state.epoch}, not {epoch}: another launcher watches it",
            hint="watch the pool again, and read its allocations",
            pool=name,
            epoch=state.epoch,
        )
    return state


def live_of(book: QueueState, pool: str) -> list[Allocation]:
    """Return the allocations of a pool that have not ended."""
    return [one for one in book.launch.allocations.values() if one.pool == pool and not one.is_over]


def undeclared(pool: str) -> Refused:
    """Return the refusal of machines of a pool that the cluster file no longer has."""
    return Refused(f"{pool}: {UNDECLARED}", hint="add it to the file, then reload: `stoker admin reload`")


# Requests of operators.


def request_machines(transaction: WriterTransaction, asked: RequestMachines) -> QueueCommandResult:
    """Store a request for machines of a pool. Idempotent: the same id again changes nothing."""
    state, book = pool_named(transaction, asked.pool), transaction.book
    known = book.launch.requests.get(asked.id)
    if known is not None:
        if (known.pool, known.count) != (asked.pool, asked.count):
            raise Conflict(f"request {asked.id} exists already", hint="use another id", id=asked.id)
        return QueueCommandResult(notes=(f"request {asked.id} is stored already",))
    if not state.is_declared:
        raise undeclared(asked.pool)
    if sum(one.pool == asked.pool and one.is_open for one in book.launch.requests.values()) >= MOST_REQUESTS:
        what = f"pool {asked.pool} has {MOST_REQUESTS} open requests"
        raise Refused(what, hint=f"is it watched? stoker pools show {asked.pool}", reason="full")
    request = LaunchRequest(
        id=asked.id, pool=asked.pool, count=asked.count, requester=plain(asked.by), requested_s=transaction.now_s
    )
    _put_request(transaction, request)
    _tell_pool(transaction, state, "requested", asked.by, request=asked.id, count=asked.count)
    return QueueCommandResult(changed=(asked.id,))


def close_request(transaction: WriterTransaction, asked: CloseRequest) -> QueueCommandResult:
    """Close a request without machines: withdrawn, or answered by the pool's launcher under its epoch."""
    if asked.epoch is not None:
        fenced(transaction, asked.pool, asked.epoch)
    request = transaction.book.launch.requests.get(asked.id)
    if request is None or request.pool != asked.pool:
        raise NotFound(f"pool {asked.pool} has no request {asked.id}", id=asked.id, pool=asked.pool)
    if not request.is_open:
        return QueueCommandResult(notes=(f"request {asked.id} is closed already",))
    message = plain(asked.message) or "withdrawn"
    _close(transaction, changed(request, message=message, code=asked.code), asked.by)
    return QueueCommandResult(changed=(asked.id,))


def carry_out(transaction: WriterTransaction, id: str, pool: str, allocations: Iterable[str]) -> None:
    """Close a request by the allocations that are planned for it, in the same transaction. Raises `Conflict`."""
    request = transaction.book.launch.requests.get(id)
    if request is None or request.pool != pool or not request.is_open:
        raise Conflict(f"request {id} of pool {pool} is not open", hint="read the requests again", id=id, pool=pool)
    _put_request(transaction, changed(request, done_s=transaction.now_s, allocations=tuple(allocations)))


def _close(transaction: WriterTransaction, request: LaunchRequest, by: str) -> None:
    _put_request(transaction, changed(request, done_s=transaction.now_s))
    about = {"pool": request.pool, "what": "request_closed", "request": request.id}
    fields = about | {"why": request.message, "by": plain(by)}
    transaction.tell(FleetKinds.POOL_CHANGED, fields=telling(fields))


def shown_requests(book: QueueState, now_s: float) -> tuple[LaunchRequest, ...]:
    """Return open requests, and those that were closed lately."""
    return tuple(
        one for one in book.launch.requests.values() if one.done_s is None or one.done_s > now_s - REQUEST_SHOWN_S
    )


def forget_requests(transaction: WriterTransaction, before_s: float) -> None:
    """Drop requests that were closed before a time."""
    requests = transaction.book.launch.requests
    for one in [one for one in requests.values() if one.done_s is not None and one.done_s < before_s]:
        del requests[one.id]
        transaction.write(transaction.statements.drop_launch_request, at_id=one.id)
