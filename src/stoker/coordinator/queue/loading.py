"""Make the writer's copy of the rows: at a start, and whenever the copy may be wrong."""

from __future__ import annotations

from typing import Any

from stoker.coordinator.database.tables import EVENTS_DROPPED_TO
from stoker.coordinator.database.writer_connection import WriterConnection
from stoker.coordinator.matching.durations import progress_end_s
from stoker.coordinator.queue.book import Book, Claimed, JobKind, Live, Machine
from stoker.coordinator.queue.classes import listed_words, user_of, wanted_from_dict
from stoker.coordinator.queue.code_words import learn_code
from stoker.coordinator.queue.environments import choices_in, learn
from stoker.coordinator.queue.moves import COMPLETED
from stoker.coordinator.queue.queries import MACHINE_COLUMNS, Queries
from stoker.coordinator.queue.roster import away
from stoker.coordinator.queue.rows import EndedRow, LeaseRow
from stoker.coordinator.queue.setting import CoordinatorTime, Setting
from stoker.coordinator.queue.trusting import load_standing
from stoker.model.frozen import changed
from stoker.model.json_text import loads
from stoker.model.leases import FleetTimes
from stoker.model.lifecycle import JobState
from stoker.scheduler.machine import LeaseAllocation
from stoker.scheduler.machine_index import totals_of
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.shares import HALF_LIFE_S, dominant_part
from stoker.wire.environments import environment_digest
from stoker.wire.orders import HostPolicy

_LATELY_S = 3600.0
_TRIED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.RUNNING, JobState.CLAIMED)
"""Jobs in these states may have attempts that have ended."""
_HISTORY = 2000
"""So many jobs in each of these states are looked at."""
_HALF_LIVES = 5
"""Usage that is older counts no more."""
_READ_OTHERWISE = ("started_s", "is_cancelling", "message", "granted_s")


def load(connection: WriterConnection, queries: Queries, setting: Setting, old: Book | None, lease_s: float) -> Book:
    """Read everything. Leases start anew: nobody is judged by a renewal that may have been lost with the process.

    Of an `old` copy, what is in no row is kept: the time, the coordinator's own file, who declined what, who was
    silent, and what machines said they have. The scheduler forgets everything, and is told again what the rows say.
    """
    connection.begin()
    try:
        meta = dict(connection.read(queries.meta))
        (newest,) = connection.read(queries.newest)
        time = old.time if old is not None else CoordinatorTime(setting.clock, _stored_s(meta, newest))
        setting.scheduler.clear()
        book = Book(time, setting.scheduler, int(meta.get("generation", "1")))
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
        _load_machines(connection, queries, book, old)
        # What machines offer takes a while to work out.
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
        _load_claims(connection, queries, book)
    finally:
        connection.roll_back()
    return book


def _stored_s(meta: dict[str, str], newest: tuple[Any, ...]) -> float:
    return max(float(meta.get("clock_s", "0")), newest[3] or 0.0)


def _load_classes(connection: WriterConnection, queries: Queries, book: Book) -> None:
    for class_id, _, text in connection.read(queries.classes):
        body = loads(text)
        stored = wanted = wanted_from_dict(body)
        if wanted.environment:
            choices = choices_in({"environment": body["choices"]})
            learn(book, choices)
            # The digest of an older row does not cover what its choices refuse, so jobs that refuse other things, or
            # nothing, may share the row. Those still open keep to it until they are submitted again; new ones do not.
            wanted = changed(stored, environment=environment_digest(choices))
        if wanted.code:
            learn_code(book, wanted.code)
        # An older row may equal a newer one now, if an older coordinator ran in between. New jobs join the newer one.
        kind = JobKind(wanted, body.get("like", ""), body.get("user", ""), body.get("stated_s"))
        if wanted == stored or kind not in book.classes:
            book.classes[kind] = class_id
        book.class_id = max(book.class_id, class_id)
        book.put_class(class_id, kind)
        for priority, count in connection.read(queries.levels, of_class=class_id):
            book.waiting.put_count(class_id, priority, count)


def _load_policies(connection: WriterConnection, queries: Queries, book: Book, old: Book | None) -> None:
    book.cluster = old.cluster if old is not None else None
    for (text,) in connection.read(queries.policies):
        policy = HostPolicy.model_validate_json(text)
        book.policies[policy.name] = policy
    book.listed = listed_words(book.cluster, book.policies.values())


def _load_machines(connection: WriterConnection, queries: Queries, book: Book, old: Book | None) -> None:
    """Machines are offered work when they next speak; those that did lately are expected to."""
    rows = [dict(zip(MACHINE_COLUMNS, row, strict=True)) for row in connection.read(queries.machines)]
    lately_s = max((fields["last_seen_s"] for fields in rows), default=0.0) - _LATELY_S
    for fields in rows:
        closed = loads(fields["closed_devices"]) if fields["closed_devices"] else {}
        is_expected = fields["last_seen_s"] >= lately_s
        machine = Machine(fields, closed, book.time.tick_s() if is_expected else float("-inf"))
        # Which leases it lost before this start is not known.
        machine.late_until_tick_s = float("inf")
        book.machines[machine.name] = machine
        book.tells_code_apart = book.tells_code_apart or bool(machine.accepts)
        before = old.machines.get(machine.name) if old is not None else None
        if before is not None:
            machine.seen_tick_s, machine.holdings = before.seen_tick_s, before.holdings
            machine.late_until_tick_s = before.late_until_tick_s


def _load_history(book: Book, ended: list[EndedRow], offers: dict[str, NodeOffer]) -> None:
    """Learn from attempts that ended lately how long their like takes, and how much of the fleet each user has had."""
    scheduler, now_s = book.scheduler, book.time.now_s()
    # Those that are expected to speak: the fleet of before the restart, as far as it is known.
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


def _restore(book: Book, live: Live, granted_s: float, offer: NodeOffer | None) -> None:
    """Let the scheduler count a lease as it did before: from its grant on, as fast as its devices, by its progress."""
    scheduler, now_s, devices = book.scheduler, book.time.now_s(), list(live.allocation.devices)
    speed = _speed(offer, devices) if devices else None
    scheduler.leases.restore(live.allocation, now_s, live.started_s, granted_s=min(granted_s, now_s), speed=speed)
    machine = book.machines.get(live.machine)
    if machine is None or live.started_s is None or not live.progress:
        return
    told = loads(live.progress)
    # Progress is written down together with when its machine was heard.
    end_s = progress_end_s(live.started_s, told.get("step"), told.get("of"), min(now_s, machine.row["last_seen_s"]))
    if end_s is not None:
        scheduler.leases.expect(live.allocation, end_s, now_s)


def _speed(offer: NodeOffer | None, uuids: list[str]) -> float | None:
    """Return how fast jobs run on some devices of a machine; None: they are not known now."""
    speeds = {device.uuid: device.speed for device in offer.devices} if offer is not None else {}
    return min((speeds[uuid] for uuid in uuids), default=None) if all(uuid in speeds for uuid in uuids) else None


def _live(row: LeaseRow, times: FleetTimes, tick_s: float, lease_s: float) -> Live:
    spec = loads(row.spec)
    started_s = row.started_s if row.state == "running" else None
    lasts_s = lease_s + times.grace_s
    return Live(
        **{name: getattr(row, name) for name in LeaseRow._fields if name not in _READ_OTHERWISE},
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


def _load_claims(connection: WriterConnection, queries: Queries, book: Book) -> None:
    for request_id, incarnation, at_s, granted in connection.read(queries.claims):
        book.claims[request_id] = Claimed(incarnation, at_s, tuple((seq, epoch) for seq, epoch in loads(granted)))
