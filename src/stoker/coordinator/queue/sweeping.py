"""What time alone changes: leases that ended, starts that did not come, pauses that are over, machines gone silent."""

from __future__ import annotations

from stoker.coordinator.queue.book import Live
from stoker.coordinator.queue.commands import OpenMachine, SweepDone
from stoker.coordinator.queue.dropping import drop_old
from stoker.coordinator.queue.losing import forgive, lose
from stoker.coordinator.queue.moves import enter_line
from stoker.coordinator.queue.roster import open_machine
from stoker.coordinator.queue.turn import Turn
from stoker.coordinator.queue.waiting import Ready
from stoker.model.fleet_events import FleetKinds
from stoker.model.units import format_duration

MOST_AT_ONCE = 500
"""Of each sort in one commit; the rest comes with the next."""
CLAIMS_KEPT_S = 600.0
CLAIMS_KEPT = 50_000
SUBMISSIONS_KEPT_S = 7 * 24 * 3600.0
_LOOK_FOR_OLD_EVERY_S = 3600.0


def sweep(turn: Turn) -> SweepDone:
    """Look once."""
    turn.book.waiting.look_again()
    done = SweepDone(expired=_expire(turn), readied=_ready(turn), opened=_open(turn))
    _unbar(turn)
    _forget_claims(turn)
    _forget_submissions(turn)
    drop_old(turn)
    return done


def settles_at_tick_s(turn: Turn) -> float:
    """Give when leases may end again after a start: every worker had a whole lease and the grace to speak."""
    return turn.book.time.started_tick_s + turn.pace.lease_s + turn.setting.times.grace_s


def end_leases_of_the_past(turn: Turn) -> None:
    """End leases that were granted before the database was restored: their epochs may have been given out since."""
    for live in list(turn.book.live.values()):
        if live.generation != turn.book.generation:
            forgive(turn, live, "the coordinator was restored from a backup")


def _expire(turn: Turn) -> tuple[str, ...]:
    if turn.tick_s < settles_at_tick_s(turn):
        return ()
    _miss_machines(turn)
    over = [live for live in turn.book.live.values() if live.until_tick_s <= turn.tick_s][:MOST_AT_ONCE]
    for live in over:
        lose(turn, live, _why(turn, live))
    return tuple(live.id for live in over)


def _why(turn: Turn, live: Live) -> str:
    if live.started_s is None:
        start = format_duration(turn.setting.times.start_s)
        if live.prepared:
            return f"granted to {live.machine}, which brought no more of what it needs for {start}"
        return f"granted to {live.machine} and not started within {start}"
    return f"nothing was heard of it from {live.machine} for {format_duration(turn.pace.lease_s)} and the grace"


def _miss_machines(turn: Turn) -> None:
    """Count no longer on machines that nobody hears from."""
    silent_since_s = turn.tick_s - turn.pace.lease_s - turn.setting.times.grace_s
    for machine in turn.book.machines.values():
        if machine.is_offered and machine.seen_tick_s <= silent_since_s:
            machine.is_offered = False
            turn.book.scheduler.remove_machine(machine.name)
            turn.tell(FleetKinds.MACHINE_LOST, machine=machine.name, fields={"last_seen_s": machine.row["last_seen_s"]})


def _ready(turn: Turn) -> int:
    book = turn.book
    if book.next_delay_s > turn.now_s:
        return 0
    rows = turn.read(turn.queries.delayed, now_s=turn.now_s, most=MOST_AT_ONCE)
    for job in (Ready(*row) for row in rows):
        turn.move(job.seq)
        turn.write(
            turn.statements.ready_job,
            at_seq=job.seq,
            was_epoch=job.epoch,
            was_state="pending",
            since_s=turn.now_s,
            changed_s=turn.now_s,
        )
        job.since_s = turn.now_s
        enter_line(turn, job)
    (next_s,) = turn.read(turn.queries.next_delay)[0]
    book.next_delay_s = float("inf") if next_s is None else next_s
    return len(rows)


def _open(turn: Turn) -> tuple[str, ...]:
    over = [
        machine.name
        for machine in turn.book.machines.values()
        if machine.row["closed"] and machine.row["until_s"] is not None and machine.row["until_s"] <= turn.now_s
    ]
    for name in over:
        open_machine(turn, OpenMachine(machine=name, by="the clock"))
    return tuple(over)


def _unbar(turn: Turn) -> None:
    """Offer machines again what they declined a while ago."""
    for name, barred in turn.book.barred.items():
        over = [seq for seq, until_tick_s in barred.items() if until_tick_s <= turn.tick_s]
        for seq in over:
            del barred[seq]
        if over:
            turn.book.scheduler.doubt(name, is_doubted=bool(barred))
            turn.call(name)


def _forget_claims(turn: Turn) -> None:
    """Forget requests that nobody will repeat: old ones, and those beyond the bound whose jobs have started."""
    claims, live = turn.book.claims, turn.book.live_by_seq
    forgotten: list[str] = []
    for request_id, claimed in claims.items():
        is_old = claimed.at_s <= turn.now_s - CLAIMS_KEPT_S
        if not is_old and len(claims) - len(forgotten) <= CLAIMS_KEPT:
            break
        # Once started it is known to have arrived.
        is_awaited = any(
            (lease := live.get(seq)) is not None and lease.epoch == epoch and lease.started_s is None
            for seq, epoch in claimed.granted
        )
        if not is_awaited:
            forgotten.append(request_id)
    for request_id in forgotten:
        del claims[request_id]
        turn.write(turn.statements.drop_claim, at_id=request_id)


def _forget_submissions(turn: Turn) -> None:
    """Forget answers under keys that nobody will repeat: an hour's walk through the table, some at a time."""
    book = turn.book
    if turn.tick_s < book.next_old_tick_s:
        return
    before_s = turn.now_s - SUBMISSIONS_KEPT_S
    rows = turn.read(turn.queries.old_submissions, before_s=before_s, most=MOST_AT_ONCE)
    for (key,) in rows:
        turn.write(turn.statements.drop_submission, at_key=key)
    if len(rows) < MOST_AT_ONCE:
        book.next_old_tick_s = turn.tick_s + _LOOK_FOR_OLD_EVERY_S
