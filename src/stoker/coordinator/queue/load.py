"""Read the writer's state from the rows: at a start, and whenever the copy in memory may be wrong."""

from __future__ import annotations

from typing import Any

from stoker.coordinator.database.database import WriterConnection
from stoker.coordinator.database.tables import EVENTS_DROPPED_TO, FLEET, MACHINES
from stoker.coordinator.queue.allocations import load_allocations
from stoker.coordinator.queue.classes import listed_words, user_of, wanted_from_dict
from stoker.coordinator.queue.machines import away
from stoker.coordinator.queue.members import load_standing
from stoker.coordinator.queue.pools import load_pools
from stoker.coordinator.queue.queue_state import (
    CoordinatorTime,
    JobKind,
    LiveLease,
    QueueClaimRecord,
    QueueContext,
    QueueState,
    RegisteredMachine,
    choices_in,
    learn,
)
from stoker.coordinator.queue.ready_jobs import ReadyJobEntry
from stoker.coordinator.queue.sql import EndedRow, LeaseRow, Queries, records
from stoker.coordinator.queue.transaction import COMPLETED
from stoker.core.frozen import changed
from stoker.core.job import JobState
from stoker.core.jsontext import loads
from stoker.core.leases import FleetTimes
from stoker.protocol.environment_messages import environment_digest
from stoker.protocol.job_messages import HostPolicy
from stoker.scheduler.leases import HALF_LIFE_S, dominant_part, progress_end_s
from stoker.scheduler.machine_index import LeaseAllocation, totals_of
from stoker.scheduler.offers import NodeOffer

_LATELY_S = 3600.0
_TRIED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.RUNNING, JobState.CLAIMED)
"""Jobs in these states may have ended attempts."""
_HISTORY = 2000
"""Number of jobs read in each of these states."""
_HALF_LIVES = 5
"""Older usage does not count."""


def load(
    connection: WriterConnection, queries: Queries, setting: QueueContext, old: QueueState | None, lease_s: float
) -> QueueState:
    """Return the state as in the rows. Leases get a full duration: a renewal may have been lost with the process.

    What is in no row is taken from an `old` copy: the time, the coordinator's cluster file, declined jobs, when
    machines were last seen, and their inventories. The scheduler is cleared and filled from the rows.
    """
    connection.begin()
    try:
        meta = dict(connection.read(queries.meta))
        (newest,) = connection.read(queries.newest)
        time = old.time if old is not None else CoordinatorTime(setting.clock, _stored_s(meta, newest))
        setting.scheduler.clear()
        book = QueueState(time, setting.scheduler, int(meta.get("generation", "1")))
        if old is not None:
            book.barred = old.barred
        book.seq, book.event_id, book.bundle_id = (number or 0 for number in newest[:3])
        book.dropping.dropped_to = int(meta.get(EVENTS_DROPPED_TO, "0"))
        book.next_delay_s = float("inf") if newest[4] is None else newest[4]
        book.has_after = newest[5] is not None
        _load_classes(connection, queries, book)
        _load_policies(connection, queries, book, old)
        book.standing = load_standing(connection, queries, time.now_s())
        setting.revocations.apply(book.standing, time.now_s())
        book.launch.fleet = meta.get(FLEET, "")
        load_pools(connection, queries, book)
        load_allocations(connection, queries, book)
        _load_machines(connection, queries, book, old)
        # Computing the machines' offers takes a while.
        leases = [LeaseRow(*row) for row in connection.read(queries.leases)]
        ended = [
            EndedRow(*row)
            for state in _TRIED
            for row in connection.read(queries.ended, of_state=state.value, most=_HISTORY)
        ]
        offers = {offer.node: offer for offer in away(book)} if leases or ended else {}
        _load_history(book, ended, offers)
        for row in leases:
            live = _live(row, setting.times, time.tick_s(), lease_s)
            book.add_live(live)
            _restore(book, live, row.granted_s, offers.get(live.machine))
        if idle := book.launch.idle_after_load(book.machines):
            rows = connection.read(queries.last_ends, machines=connection.many([one.machine for one in idle]))
            book.launch.begin_idling(idle, {name: (count, end_s) for name, count, end_s in rows}, time.now_s())
        _load_claims(connection, queries, book)
    finally:
        connection.roll_back()
    return book


def _stored_s(meta: dict[str, str], newest: tuple[Any, ...]) -> float:
    return max(float(meta.get("clock_s", "0")), newest[3] or 0.0)


def _load_classes(connection: WriterConnection, queries: Queries, book: QueueState) -> None:
    for class_id, _, text in connection.read(queries.classes):
        body = loads(text)
        stored = wanted = wanted_from_dict(body)
        if wanted.environment:
            choices = choices_in({"environment": body["choices"]})
            learn(book, choices)
            # The digest of an older row does not cover what its choices refuse, so jobs that refuse other platforms, or
            # none, may share the row. Open ones keep it until they are submitted again; new ones do not use it.
            wanted = changed(stored, environment=environment_digest(choices))
        if wanted.code:
            book.code_words.add(wanted.code)
        # An older row may equal a newer one, if an older coordinator ran in between. New jobs get the newer one.
        kind = JobKind(wanted, body.get("like", ""), body.get("user", ""), body.get("stated_s"))
        if wanted == stored or kind not in book.classes:
            book.classes[kind] = class_id
        book.class_id = max(book.class_id, class_id)
        book.put_class(class_id, kind)
        for priority, count in connection.read(queries.levels, of_class=class_id):
            book.waiting.put_count(class_id, priority, count)


def _load_policies(connection: WriterConnection, queries: Queries, book: QueueState, old: QueueState | None) -> None:
    book.cluster = old.cluster if old is not None else None
    for (text,) in connection.read(queries.policies):
        policy = HostPolicy.model_validate_json(text)
        book.policies[policy.name] = policy
    book.listed = listed_words(book.cluster, book.policies.values())


def _load_machines(connection: WriterConnection, queries: Queries, book: QueueState, old: QueueState | None) -> None:
    """Load machines. They are offered with their next request; those seen lately are expected to send one."""
    rows = records(MACHINES, connection.read(queries.machines))
    lately_s = max((fields["last_seen_s"] for fields in rows), default=0.0) - _LATELY_S
    for fields in rows:
        closed = loads(fields["closed_devices"]) if fields["closed_devices"] else {}
        is_expected = fields["last_seen_s"] >= lately_s
        machine = RegisteredMachine(
            row=fields,
            closed_devices=closed,
            seen_tick_s=book.time.tick_s() if is_expected else float("-inf"),
            # The leases that it lost before this start are unknown.
            late_until_tick_s=float("inf"),
        )
        book.machines[machine.name] = machine
        book.is_code_in_classes = book.is_code_in_classes or bool(machine.accepts)
        before = old.machines.get(machine.name) if old is not None else None
        if before is not None:
            machine.seen_tick_s, machine.holdings = before.seen_tick_s, before.holdings
            machine.late_until_tick_s = before.late_until_tick_s


def _load_history(book: QueueState, ended: list[EndedRow], offers: dict[str, NodeOffer]) -> None:
    """Learn durations, and the usage of each user, from attempts that ended lately."""
    scheduler, now_s = book.scheduler, book.time.now_s()
    # Expected machines: the fleet before the restart, as far as it is known.
    totals = totals_of(offer for name, offer in offers.items() if book.machines[name].is_expected)
    if any(totals):
        scheduler.shares.set_totals(totals, (), now_s)
    for row in sorted(ended, key=lambda row: row.ended_s):
        devices = loads(row.devices)
        one = scheduler.ready.classes[row.class_id].type
        speed = _speed(offers.get(row.machine), devices) if devices else one.cpu_speed
        if row.ending == COMPLETED and row.started_s is not None and speed is not None:
            scheduler.learn(row.class_id, (row.ended_s - row.started_s) * speed)
        if row.ended_s > now_s - _HALF_LIVES * HALF_LIFE_S:
            part = dominant_part(one.placed_shape(on_devices=bool(devices)), len(devices), totals)
            scheduler.shares.start(user_of(row.submitter), part, len(devices), row.granted_s)
            scheduler.shares.end(user_of(row.submitter), part, len(devices), row.ended_s)


def _restore(book: QueueState, live: LiveLease, granted_s: float, offer: NodeOffer | None) -> None:
    """Register a lease with the scheduler again: its grant, the speed of its devices, its progress."""
    scheduler, now_s, devices = book.scheduler, book.time.now_s(), list(live.allocation.devices)
    speed = _speed(offer, devices) if devices else None
    scheduler.leases.restore(live.allocation, now_s, live.started_s, granted_s=min(granted_s, now_s), speed=speed)
    machine = book.machines.get(live.machine)
    if machine is None or live.started_s is None or not live.progress:
        return
    progress = loads(live.progress)
    # Progress is stored together with `last_seen_s` of its machine.
    seen_s = min(now_s, machine.row["last_seen_s"])
    end_s = progress_end_s(live.started_s, progress.get("step"), progress.get("of"), seen_s)
    if end_s is not None:
        scheduler.leases.expect(live.allocation, end_s, now_s)


def _speed(offer: NodeOffer | None, uuids: list[str]) -> float | None:
    """Return the speed of jobs on some devices of a machine; None: the devices are unknown."""
    speeds = {device.uuid: device.speed for device in offer.devices} if offer is not None else {}
    return min((speeds[uuid] for uuid in uuids), default=None) if all(uuid in speeds for uuid in uuids) else None


def _live(row: LeaseRow, times: FleetTimes, tick_s: float, lease_s: float) -> LiveLease:
    spec = loads(row.spec)
    started_s = row.started_s if row.state == "running" else None
    lasts_s = lease_s + times.grace_s
    job = ReadyJobEntry(
        row.seq, row.id, row.class_id, row.priority, 0.0, row.epoch, row.attempt, row.user_failures, row.lost,
        row.declined, "", "",
    )  # fmt: skip
    return LiveLease(
        job=job,
        generation=row.generation,
        machine=row.machine,
        incarnation=row.incarnation,
        state=row.state,
        blockers=row.blockers,
        progress=row.progress,
        allocation=LeaseAllocation(
            machine=row.machine,
            class_id=row.class_id,
            devices=tuple(loads(row.devices)),
            is_shared=bool(row.is_shared),
        ),
        attempts=spec.get("attempts", 1),
        is_cancelling=bool(row.is_cancelling),
        cancel_why=row.message if row.is_cancelling else "",
        started_s=started_s,
        until_tick_s=tick_s + (lasts_s if started_s is not None else max(times.start_s, lasts_s)),
    )


def _load_claims(connection: WriterConnection, queries: Queries, book: QueueState) -> None:
    for request_id, incarnation, at_s, granted in connection.read(queries.claims):
        book.claims[request_id] = QueueClaimRecord(
            incarnation, at_s, tuple((seq, epoch) for seq, epoch in loads(granted))
        )
