"""Claim: a machine asks for work and gets leases, or how many wait for which reason."""

from __future__ import annotations

from functools import partial
from typing import Any

from stoker.coordinator.matching.heads import NoMatch, Seat
from stoker.coordinator.matching.line import Line
from stoker.coordinator.queue.book import Claimed, Live, Machine
from stoker.coordinator.queue.moves import leave_line
from stoker.coordinator.queue.roster import known_machine, see
from stoker.coordinator.queue.rows import JobRow
from stoker.coordinator.queue.turn import Turn
from stoker.coordinator.queue.waiting import Ready
from stoker.coordinator.queue.wishes import orders_for
from stoker.model.fleet_errors import Conflict
from stoker.model.fleet_events import FleetKinds
from stoker.model.json_text import dumps, loads
from stoker.model.leases import Partition
from stoker.model.lifecycle import JobState
from stoker.wire.leasing import CheckpointBody, Claim, Grant, Granted


def claim(turn: Turn, asked: Claim) -> Granted:
    """Grant what this machine gets now. The same request again gets the same leases, as far as they are still live."""
    machine = known_machine(turn, asked.worker, asked.incarnation)
    see(turn, machine)
    before = turn.book.claims.get(asked.request_id)
    if before is not None:
        return _again(turn, asked, before)
    orders = orders_for(machine, asked.stopping)
    if orders or not asked.most:
        return Granted(orders=orders, closed=machine.closed, generation=turn.book.generation)
    grants: list[Grant] = []
    while len(grants) < asked.most:
        found = turn.setting.matcher.choose(
            machine.name, _line_for(turn, machine), turn.now_s, asked.measured, tells=not grants
        )
        if isinstance(found, NoMatch):
            if not grants:
                return Granted(
                    generation=turn.book.generation,
                    waiting=dict(found.waiting),
                    next_s=_next_s(turn),
                    closed=machine.closed or found.closed,
                )
            break
        job = turn.book.waiting.job_at(found.head)
        grants.append(_grant(turn, machine, job, found.seat))
    granted = tuple((turn.book.live[grant.job].seq, grant.epoch) for grant in grants)
    turn.book.claims[asked.request_id] = Claimed(asked.incarnation, turn.now_s, granted)
    turn.write(
        turn.statements.add_claim,
        request_id=asked.request_id,
        incarnation=asked.incarnation,
        at_s=turn.now_s,
        granted=dumps(granted),
    )
    return Granted(grants=tuple(grants), waiting={}, closed=machine.closed, generation=turn.book.generation)


def _next_s(turn: Turn) -> float | None:
    at_s = turn.book.next_delay_s
    return None if at_s == float("inf") else max(0.0, at_s - turn.now_s)


def _fetch_page(turn: Turn, class_id: int, priority: int, after_seq: int, most: int) -> list[Ready]:
    """Read the next ready jobs of a level."""
    rows = turn.read(turn.queries.page, of_class=class_id, of_priority=priority, after_seq=after_seq, most=most)
    return [Ready(*row) for row in rows]


def _line_for(turn: Turn, machine: Machine) -> Line:
    """Give the line without the jobs that this machine declined a moment ago."""
    barred = turn.book.barred.get(machine.name, {})
    for seq in [seq for seq, until_tick_s in barred.items() if until_tick_s <= turn.tick_s]:
        del barred[seq]
    turn.book.matcher.doubt(machine.name, is_doubted=bool(barred))
    return turn.book.waiting.freshen(partial(_fetch_page, turn), barred)


def _again(turn: Turn, asked: Claim, before: Claimed) -> Granted:
    if before.incarnation != asked.incarnation:
        raise Conflict(
            f"request {asked.request_id} was another worker's", hint="use a new id for every claim", id=asked.request_id
        )
    live = {
        seq: lease
        for seq, epoch in before.granted
        if (lease := turn.book.live_by_seq.get(seq)) is not None and lease.epoch == epoch
    }
    rows = turn.read(turn.queries.jobs_by_seq, seqs=turn.many(live)) if live else []
    found = [JobRow(*row) for row in rows]
    grants = tuple(_grant_of(turn, live[row.seq], loads(row.spec), row.checkpoint) for row in found)
    return Granted(grants=grants, generation=turn.book.generation)


def _grant(turn: Turn, machine: Machine, job: Ready, seat: Seat) -> Grant:
    book = turn.book
    if not job.spec:
        row = JobRow(*turn.read(turn.queries.jobs_by_seq, seqs=turn.many([job.seq]))[0])
        job.spec, job.checkpoint = row.spec, row.checkpoint
    spec = loads(job.spec)
    leave_line(turn, job.class_id, job.priority, job.seq)
    live = Live(
        seq=job.seq,
        id=job.id,
        attempt=job.attempt + 1,
        epoch=job.epoch + 1,
        generation=book.generation,
        machine=machine.name,
        incarnation=machine.incarnation,
        class_id=job.class_id,
        priority=job.priority,
        state=JobState.CLAIMED.value,
        seat=seat,
        attempts=spec.get("attempts", 1),
        user_failures=job.user_failures,
        lost=job.lost,
        declined=job.declined,
        blockers=0,
        is_cancelling=False,
        started_s=None,
        until_tick_s=turn.tick_s + turn.setting.times.start_s,
        progress="",
    )
    _write_grant(turn, machine, live, job.epoch)
    book.add_live(live)
    return _grant_of(turn, live, spec, job.checkpoint)


def _write_grant(turn: Turn, machine: Machine, live: Live, was_epoch: int) -> None:
    devices = dumps(live.seat.devices) if live.seat.devices else "[]"
    lease: dict[str, Any] = {
        "seq": live.seq,
        "attempt": live.attempt,
        "epoch": live.epoch,
        "generation": live.generation,
        "machine": live.machine,
        "incarnation": live.incarnation,
        "devices": devices,
    }
    turn.move(live.seq)
    turn.write(
        turn.statements.grant_job,
        at_seq=live.seq,
        was_epoch=was_epoch,
        was_state="pending",
        epoch=live.epoch,
        attempt=live.attempt,
        machine=live.machine,
        changed_s=turn.now_s,
    )
    until_s = turn.now_s + turn.setting.times.start_s
    turn.write(turn.statements.add_lease, **lease, until_s=until_s, is_shared=live.seat.is_shared, progress="")
    turn.write(turn.statements.add_attempt, **lease, capability=machine.row["capability_digest"], granted_s=turn.now_s)
    turn.tell(
        FleetKinds.JOB_GRANTED,
        seq=live.seq,
        machine=live.machine,
        attempt=live.attempt,
        epoch=live.epoch,
        from_state="pending",
        to_state="claimed",
        fields={"devices": live.seat.devices} if live.seat.devices else None,
    )
    turn.count_move("pending", "claimed")


def _grant_of(turn: Turn, live: Live, spec: dict[str, Any], checkpoint: str) -> Grant:
    needs = spec.get("requirements", {})
    return Grant(
        job=live.id,
        attempt=live.attempt,
        epoch=live.epoch,
        generation=live.generation,
        name=spec["name"],
        number=spec.get("number", 0),
        label=spec.get("label", ""),
        point=spec.get("point", {}),
        recipe=spec["recipe"],
        schema_version=spec.get("schema_version", 1),
        mode=spec.get("mode", ""),
        args=spec.get("args", {}),
        identity=spec.get("identity", {}),
        seed=spec.get("seed"),
        split_recipe=spec.get("split_recipe"),
        train_hosts=tuple(spec.get("train_hosts", ())),
        folder=spec.get("folder", ""),
        code_tree=spec.get("code_tree", ""),
        code_folder=spec.get("code_folder", ""),
        commit=spec.get("commit", ""),
        inputs=tuple(spec.get("inputs", ())),
        environment=tuple(spec.get("environment", ())),
        code=spec.get("code", {}),
        secrets=tuple(spec.get("secrets", ())),
        timeout_s=spec.get("timeout_s"),
        on_partition=Partition(spec.get("on_partition", Partition.STOP.value)),
        devices=live.seat.devices,
        is_shared=live.seat.is_shared,
        vram_bytes=needs.get("vram_bytes", 0) if live.seat.devices else 0,
        base=needs.get("base", "") if live.seat.is_shared else "",
        base_bytes=needs.get("base_bytes", 0) if live.seat.is_shared else 0,
        ram_bytes=needs.get("ram_bytes", 0),
        cores=needs.get("cores", 0),
        checkpoint=CheckpointBody(**loads(checkpoint)) if checkpoint else None,
        lease_s=turn.pace.lease_s,
        start_s=turn.setting.times.start_s,
    )
