"""Heartbeats: leases live in memory and are written down together, about once a second."""

from __future__ import annotations

from itertools import islice
from typing import Any

from stoker.coordinator.matching.durations import progress_end_s
from stoker.coordinator.queue.book import LATE_S, Machine
from stoker.coordinator.queue.late import is_kept
from stoker.coordinator.queue.roster import hear_closed, hold, known_machine, leave, see, stay
from stoker.coordinator.queue.rows import JobRow
from stoker.coordinator.queue.turn import Turn
from stoker.coordinator.queue.wishes import order_for
from stoker.model.json_text import dumps
from stoker.wire.leasing import Do, LeaseOrder, LeaseReport, Renewal, Renewed

_LONGEST_TEXT = 500
_MOST_METRICS = 200


def renew(turn: Turn, said: Renewal) -> Renewed:
    """Let a worker's leases last longer, and say what it is to do with them."""
    machine = known_machine(turn, said.worker, said.incarnation)
    see(turn, machine)
    stay(turn, machine, said.ends_in_s)
    machine.disk_free_bytes = said.measured.disk_free_bytes
    if said.holdings is not None:
        hold(turn, machine, said.holdings)
    hear_closed(turn, machine, said.measured.closed)
    orders = [order for report in said.leases if (order := _renew_one(turn, machine, report)) is not None]
    if said.is_leaving:
        leave(turn, machine)
    return Renewed(
        lease_s=turn.pace.lease_s,
        heartbeat_s=turn.pace.heartbeat_s,
        generation=turn.book.generation,
        server_s=turn.now_s,
        orders=tuple(orders),
        closed=machine.closed,
        wants_holdings=machine.holdings is None and not said.is_leaving,
    )


def write_down(turn: Turn) -> None:
    """Write what heartbeats have changed since the last time."""
    book = turn.book
    for live in book.live.values():
        if live.is_changed:
            live.is_changed = False
            turn.write(
                turn.statements.renew_lease,
                at_seq=live.seq,
                was_epoch=live.epoch,
                until_s=turn.now_s + live.until_tick_s - turn.tick_s,
                progress=live.progress,
            )
    for machine in book.machines.values():
        if machine.is_changed:
            machine.is_changed = False
            turn.write(turn.statements.see_machine, at_name=machine.name, last_seen_s=machine.row["last_seen_s"])
    if turn.is_dirty:
        turn.write(turn.statements.put_meta, key="clock_s", value=repr(turn.now_s))


def _renew_one(turn: Turn, machine: Machine, report: LeaseReport) -> LeaseOrder | None:
    live = turn.book.live.get(report.job)
    # A lease belongs to one machine: another one that knows its token does not keep it alive.
    if live is None or live.machine != machine.name or not live.is_token(report.token()):
        return _not_live(turn, machine, report)
    if report.is_alive and live.state == "running":
        live.until_tick_s = turn.tick_s + turn.pace.lease_s + turn.setting.times.grace_s
    elif report.prepared > live.prepared and live.started_s is None:
        # What it needs is on its way: as long as more of it comes, and no longer.
        live.prepared = report.prepared
        live.until_tick_s = max(live.until_tick_s, turn.tick_s + turn.setting.times.start_s)
    live.progress = _progress(report)
    live.is_changed = True
    if live.started_s is not None:
        started_s = turn.book.scheduler.leases.started_s(live.allocation)
        end_s = progress_end_s(started_s, report.step, report.of, turn.now_s)
        if end_s is not None:
            turn.book.scheduler.leases.expect(live.allocation, end_s, turn.now_s)
    return order_for(live, machine)


def _not_live(turn: Turn, machine: Machine, report: LeaseReport) -> LeaseOrder | None:
    rows = turn.read(turn.queries.jobs_by_id, ids=turn.many([report.job]))
    if rows and report.generation == turn.book.generation and is_kept(JobRow(*rows[0]), report.token()):
        if JobRow(*rows[0]).machine == machine.name:
            machine.late_until_tick_s = turn.tick_s + LATE_S
        return None
    why = "its lease has ended" if rows else "there is no such job"
    return LeaseOrder(job=report.job, epoch=report.epoch, do=Do.DROP, why=why)


def _progress(report: LeaseReport) -> str:
    """Give what is shown of how a job stands: written down about once a second, so a worker that tells much is cut."""
    told: dict[str, Any] = {
        "step": report.step,
        "of": report.of,
        "metrics": {name[:_LONGEST_TEXT]: value for name, value in islice(report.metrics.items(), _MOST_METRICS)},
        "stage": report.stage[:_LONGEST_TEXT],
        "says": report.says[:_LONGEST_TEXT],
    }
    told = {name: value for name, value in told.items() if value not in (None, "", {})}
    return dumps(told) if told else ""
