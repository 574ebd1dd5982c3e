"""Heartbeats, and what time changes: expired leases, missed starts, ended pauses, silent machines, old rows."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import Any

from stoker.coordinator.database.tables import EVENTS_DROPPED_TO, EVENTS_FROM_S
from stoker.coordinator.queue.allocations import belongs_to_minimum, forget_old, say_goodbye
from stoker.coordinator.queue.claims import order_for
from stoker.coordinator.queue.commands import LeaseSweepResult, OpenMachine
from stoker.coordinator.queue.endings import is_kept
from stoker.coordinator.queue.machines import hold, known_machine, leave, open_machine, see, set_closed_by_worker, stay
from stoker.coordinator.queue.queue_state import LATE_S, LiveLease, RegisteredMachine
from stoker.coordinator.queue.ready_jobs import ReadyJobEntry
from stoker.coordinator.queue.sql import JobRow
from stoker.coordinator.queue.transaction import WriterTransaction, enter_line, forgive, lose
from stoker.core.events import FleetKinds
from stoker.core.jsontext import dumps
from stoker.core.text import format_duration
from stoker.protocol.lease_messages import LeaseInstruction, LeaseInstructionKind, LeaseReport, Renewal, RenewalResponse
from stoker.scheduler.leases import progress_end_s

# Heartbeats: leases are renewed in memory and stored together, about once a second.

_LONGEST_TEXT = 500
_MOST_METRICS = 200


def renew(transaction: WriterTransaction, renewal: Renewal) -> RenewalResponse:
    """Renew a worker's leases, and return the instructions for them."""
    machine = known_machine(transaction, renewal.worker, renewal.incarnation)
    see(transaction, machine)
    stay(transaction, machine, renewal.ends_in_s)
    machine.disk_free_bytes = renewal.measured.disk_free_bytes
    if renewal.holdings is not None:
        hold(transaction, machine, renewal.holdings)
    set_closed_by_worker(transaction, machine, renewal.measured.closed)
    orders = [order for report in renewal.leases if (order := _renew_one(transaction, machine, report)) is not None]
    if renewal.is_leaving:
        leave(transaction, machine)
        say_goodbye(transaction, machine.name)
    return RenewalResponse(
        lease_s=transaction.pace.lease_s,
        heartbeat_s=transaction.pace.heartbeat_s,
        generation=transaction.book.generation,
        server_s=transaction.now_s,
        orders=tuple(orders),
        closed=machine.closed,
        stays=belongs_to_minimum(transaction.book, machine.name),
        wants_holdings=machine.holdings is None and not renewal.is_leaving,
    )


def write_down(transaction: WriterTransaction) -> None:
    """Store what heartbeats have changed since the last call."""
    book = transaction.book
    for live in book.live.values():
        if live.is_changed:
            live.is_changed = False
            transaction.write(
                transaction.statements.renew_lease,
                at_seq=live.job.seq,
                was_epoch=live.job.epoch,
                until_s=transaction.now_s + live.until_tick_s - transaction.tick_s,
                progress=live.progress,
            )
    for machine in book.machines.values():
        if machine.is_changed:
            machine.is_changed = False
            transaction.write(
                transaction.statements.see_machine, at_name=machine.name, last_seen_s=machine.row["last_seen_s"]
            )
    if transaction.is_dirty:
        transaction.write(transaction.statements.put_meta, key="clock_s", value=repr(transaction.now_s))


def _renew_one(
    transaction: WriterTransaction, machine: RegisteredMachine, report: LeaseReport
) -> LeaseInstruction | None:
    live = transaction.book.live.get(report.job)
    # A lease belongs to one machine: another machine with its token cannot renew it.
    if live is None or live.machine != machine.name or not live.is_token(report.token()):
        return _not_live(transaction, machine, report)
    if report.is_alive and live.state == "running":
        live.until_tick_s = transaction.tick_s + transaction.pace.lease_s + transaction.setting.times.grace_s
    elif report.prepared > live.prepared and live.started_s is None:
        # Its inputs are arriving: the start deadline is extended as long as there is progress.
        live.prepared = report.prepared
        live.until_tick_s = max(live.until_tick_s, transaction.tick_s + transaction.setting.times.start_s)
    live.progress = _progress(report)
    live.is_changed = True
    if live.started_s is not None:
        started_s = transaction.book.scheduler.leases.started_s(live.allocation)
        end_s = progress_end_s(started_s, report.step, report.of, transaction.now_s)
        if end_s is not None:
            transaction.book.scheduler.leases.expect(live.allocation, end_s, transaction.now_s)
    return order_for(live, machine)


def _not_live(
    transaction: WriterTransaction, machine: RegisteredMachine, report: LeaseReport
) -> LeaseInstruction | None:
    rows = transaction.read(transaction.queries.jobs_by_id, ids=transaction.many([report.job]))
    if rows and report.generation == transaction.book.generation and is_kept(JobRow(*rows[0]), report.token()):
        if JobRow(*rows[0]).machine == machine.name:
            machine.late_until_tick_s = transaction.tick_s + LATE_S
        return None
    why = "lease expired" if rows else "job not found"
    return LeaseInstruction(job=report.job, epoch=report.epoch, do=LeaseInstructionKind.DROP, why=why)


def _progress(report: LeaseReport) -> str:
    """Return a job's progress as stored; long reports are cut, since it is stored about once a second."""
    progress: dict[str, Any] = {
        "step": report.step,
        "of": report.of,
        "metrics": {name[:_LONGEST_TEXT]: value for name, value in islice(report.metrics.items(), _MOST_METRICS)},
        "stage": report.stage[:_LONGEST_TEXT],
        "says": report.says[:_LONGEST_TEXT],
    }
    progress = {name: value for name, value in progress.items() if value not in (None, "", {})}
    return dumps(progress) if progress else ""


MOST_DROPPED_AT_ONCE = 200
"""Events, or classes, examined in one commit; with an event, all events of its job may be deleted."""
_LOOK_EVERY_S = 3600.0


def drop_old(transaction: WriterTransaction) -> None:
    """Examine some more events, then classes, until all were examined; then again an hour later.

    All events of an ended job are deleted together, once the newest of them is older than the retention time; those of
    machines one by one. Live jobs keep all events, and the newest event of all remains: no id is used twice. The
    progress is stored, so that a client that resumes from a deleted event gets an error, and `db check` knows what is
    missing.
    """
    if transaction.tick_s < transaction.book.dropping.next_tick_s:
        return
    if _drop_events(transaction) and _drop_classes(transaction):
        transaction.book.dropping.next_tick_s = transaction.tick_s + _LOOK_EVERY_S


def _drop_events(transaction: WriterTransaction) -> bool:
    """Delete old ones among the next few events; return True if there are no more."""
    book, before_s = transaction.book, transaction.now_s - transaction.setting.times.events_kept_s
    rows = transaction.read(
        transaction.queries.events_behind, after_id=book.dropping.looked_to, most=MOST_DROPPED_AT_ONCE
    )
    # The time of events never goes back.
    old = list(takewhile(lambda row: row[2] < before_s and row[0] < book.event_id, rows))
    if not old:
        return True
    book.dropping.looked_to = old[-1][0]
    dropped = [number for number, seq, _ in old if seq is None]
    for number in dropped:
        transaction.write(transaction.statements.drop_event, at_id=number)
    seqs = sorted({seq for _, seq, _ in old if seq is not None})
    for seq, newest in transaction.read(transaction.queries.told_jobs, seqs=transaction.many(seqs), before_s=before_s):
        if newest < book.event_id:
            transaction.write(transaction.statements.drop_events_of, at_seq=seq)
            dropped.append(newest)
    if dropped:
        book.dropping.dropped_to = max(book.dropping.dropped_to, *dropped)
        transaction.write(transaction.statements.put_meta, key=EVENTS_FROM_S, value=repr(before_s))
        transaction.write(transaction.statements.put_meta, key=EVENTS_DROPPED_TO, value=str(book.dropping.dropped_to))
    return len(old) < MOST_DROPPED_AT_ONCE


def _drop_classes(transaction: WriterTransaction) -> bool:
    """Delete classes without jobs among the next few; return True if these were the last.

    The scheduler may keep them until the coordinator restarts: no job ever gets such a class again.
    """
    book = transaction.book
    after_id = book.dropping.class_looked_to
    to_id = after_id + MOST_DROPPED_AT_ONCE
    rows = transaction.read(transaction.queries.unused_classes, after_id=after_id, to_id=to_id)
    is_last = to_id >= book.class_id
    book.dropping.class_looked_to = 0 if is_last else to_id
    if rows:
        unused = {class_id for (class_id,) in rows}
        for class_id in unused:
            transaction.write(transaction.statements.drop_class, at_id=class_id)
            transaction.write(transaction.statements.drop_count, at_key=f"class:{class_id}")
        book.classes = {kind: class_id for kind, class_id in book.classes.items() if class_id not in unused}
        for stated in book.stated_on.values():
            for class_id in unused & stated.keys():
                del stated[class_id]
        book.class_sorts = {sort: class_id for sort, class_id in book.class_sorts.items() if class_id not in unused}
        # Before such a class is added again: its row would exist twice.
        transaction.settle()
    return is_last


MOST_EXPIRED_AT_ONCE = 500
"""Of each kind in one commit; the rest follows in the next."""
CLAIMS_KEPT_S = 600.0
CLAIMS_KEPT = 50_000
SUBMISSIONS_KEPT_S = 7 * 24 * 3600.0
_LOOK_FOR_OLD_EVERY_S = 3600.0


def sweep(transaction: WriterTransaction) -> LeaseSweepResult:
    """Apply what time has changed: expired leases, ready jobs, opened machines, old rows."""
    transaction.book.waiting.look_again()
    done = LeaseSweepResult(expired=_expire(transaction), readied=_ready(transaction), opened=_open(transaction))
    _unbar(transaction)
    _forget_claims(transaction)
    _forget_submissions(transaction)
    forget_old(transaction)
    drop_old(transaction)
    return done


def settles_at_tick_s(transaction: WriterTransaction) -> float:
    """Return when leases may expire after a start: every worker had a full lease and the grace period."""
    return transaction.book.time.started_tick_s + transaction.pace.lease_s + transaction.setting.times.grace_s


def end_leases_of_the_past(transaction: WriterTransaction) -> None:
    """End leases that were granted before the database was restored: their epochs may have been reused since."""
    for live in list(transaction.book.live.values()):
        if live.generation != transaction.book.generation:
            forgive(transaction, live, "the coordinator was restored from a backup")


def _expire(transaction: WriterTransaction) -> tuple[str, ...]:
    if transaction.tick_s < settles_at_tick_s(transaction):
        return ()
    _miss_machines(transaction)
    over = [live for live in transaction.book.live.values() if live.until_tick_s <= transaction.tick_s][
        :MOST_EXPIRED_AT_ONCE
    ]
    for live in over:
        lose(transaction, live, _why(transaction, live))
    return tuple(live.job.id for live in over)


def _why(transaction: WriterTransaction, live: LiveLease) -> str:
    if live.started_s is None:
        start = format_duration(transaction.setting.times.start_s)
        if live.prepared:
            return f"granted to {live.machine}: no progress of its preparation for {start}"
        return f"granted to {live.machine} and not started within {start}"
    return (
        f"{live.machine} did not renew its lease for {format_duration(transaction.pace.lease_s)} and the grace period"
    )


def _miss_machines(transaction: WriterTransaction) -> None:
    """Remove silent machines from the scheduler."""
    silent_since_s = transaction.tick_s - transaction.pace.lease_s - transaction.setting.times.grace_s
    for machine in transaction.book.machines.values():
        if machine.is_offered and machine.seen_tick_s <= silent_since_s:
            machine.is_offered = False
            transaction.book.scheduler.remove_machine(machine.name)
            transaction.tell(
                FleetKinds.MACHINE_LOST, machine=machine.name, fields={"last_seen_s": machine.row["last_seen_s"]}
            )


def _ready(transaction: WriterTransaction) -> int:
    book = transaction.book
    if book.next_delay_s > transaction.now_s:
        return 0
    rows = transaction.read(transaction.queries.delayed, now_s=transaction.now_s, most=MOST_EXPIRED_AT_ONCE)
    for job in (ReadyJobEntry(*row) for row in rows):
        transaction.move(job.seq)
        transaction.write(
            transaction.statements.ready_job,
            at_seq=job.seq,
            was_epoch=job.epoch,
            was_state="pending",
            since_s=transaction.now_s,
            changed_s=transaction.now_s,
        )
        job.since_s = transaction.now_s
        enter_line(transaction, job)
    (next_s,) = transaction.read(transaction.queries.next_delay)[0]
    book.next_delay_s = float("inf") if next_s is None else next_s
    return len(rows)


def _open(transaction: WriterTransaction) -> tuple[str, ...]:
    over = [
        machine.name
        for machine in transaction.book.machines.values()
        if machine.row["closed"] and machine.row["until_s"] is not None and machine.row["until_s"] <= transaction.now_s
    ]
    for name in over:
        open_machine(transaction, OpenMachine(machine=name, by="the clock"))
    return tuple(over)


def _unbar(transaction: WriterTransaction) -> None:
    """Offer jobs again to machines that declined them a while ago."""
    for name, barred in transaction.book.barred.items():
        over = [seq for seq, until_tick_s in barred.items() if until_tick_s <= transaction.tick_s]
        for seq in over:
            del barred[seq]
        if over:
            transaction.book.scheduler.doubt(name, is_doubted=bool(barred))
            transaction.call(name)


def _forget_claims(transaction: WriterTransaction) -> None:
    """Delete claims that will not be repeated: old ones, and those beyond the limit whose jobs have started."""
    claims, live = transaction.book.claims, transaction.book.live_by_seq
    forgotten: list[str] = []
    for request_id, claimed in claims.items():
        is_old = claimed.at_s <= transaction.now_s - CLAIMS_KEPT_S
        if not is_old and len(claims) - len(forgotten) <= CLAIMS_KEPT:
            break
        # A start shows that the response arrived.
        is_awaited = any(
            (lease := live.get(seq)) is not None and lease.job.epoch == epoch and lease.started_s is None
            for seq, epoch in claimed.granted
        )
        if not is_awaited:
            forgotten.append(request_id)
    for request_id in forgotten:
        del claims[request_id]
        transaction.write(transaction.statements.drop_claim, at_id=request_id)


def _forget_submissions(transaction: WriterTransaction) -> None:
    """Delete responses under old idempotency keys, some at a time, then again an hour later."""
    book = transaction.book
    if transaction.tick_s < book.next_old_tick_s:
        return
    before_s = transaction.now_s - SUBMISSIONS_KEPT_S
    rows = transaction.read(transaction.queries.old_submissions, before_s=before_s, most=MOST_EXPIRED_AT_ONCE)
    for (key,) in rows:
        transaction.write(transaction.statements.drop_submission, at_key=key)
    if len(rows) < MOST_EXPIRED_AT_ONCE:
        book.next_old_tick_s = transaction.tick_s + _LOOK_FOR_OLD_EVERY_S
