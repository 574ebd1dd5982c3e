"""Claim: a machine asks for work and gets leases, or how many wait for which reason."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stoker.coordinator.queue.commands import MachineCloseMode
from stoker.coordinator.queue.machines import known_machine, see, stay
from stoker.coordinator.queue.moves import leave_line
from stoker.coordinator.queue.queue_state import LiveLease, QueueClaimRecord, RegisteredMachine
from stoker.coordinator.queue.sql import JobRow
from stoker.coordinator.queue.transaction import WriterTransaction
from stoker.core.errors import Conflict
from stoker.core.events import FleetKinds
from stoker.core.job import JobState
from stoker.core.jsontext import dumps, loads
from stoker.protocol.lease_messages import (
    Claim,
    ClaimResponse,
    Grant,
    LeaseInstruction,
    LeaseInstructionKind,
)
from stoker.scheduler.calls import ANSWER_S
from stoker.scheduler.leases import HoldDecision, HoldReason
from stoker.scheduler.leases import StartDecision as Decision
from stoker.scheduler.scheduler import Instead

# What the coordinator wants of who holds a lease. Told with every heartbeat, and at once to who listens for it.
#
# A wish is read from what is durable, never kept: lost on its way, it is told again.


def order_for(live: LiveLease, machine: RegisteredMachine) -> LeaseInstruction | None:
    """Return what a machine is to do with one of its leases, if it is to do anything."""
    if live.is_cancelling:
        return LeaseInstruction(job=live.id, epoch=live.epoch, do=LeaseInstructionKind.CANCEL, why=live.cancel_why)
    if machine.row["closed"] == MachineCloseMode.PAUSE.value:
        return LeaseInstruction(job=live.id, epoch=live.epoch, do=LeaseInstructionKind.RELEASE, why=machine.closed)
    return None


def orders_for(machine: RegisteredMachine, stopping: Collection[str]) -> tuple[LeaseInstruction, ...]:
    """Return the same of all its leases but those that it is ending already."""
    known = frozenset(stopping)
    leases = (live for live in machine.leases.values() if live.id not in known)
    return tuple(order for live in leases if (order := order_for(live, machine)) is not None)


def claim(turn: WriterTransaction, asked: Claim) -> ClaimResponse:
    """Grant what this machine gets now. The same request again gets the same leases, as far as they are still live."""
    machine = known_machine(turn, asked.worker, asked.incarnation)
    see(turn, machine)
    stay(turn, machine, asked.ends_in_s)
    before = turn.book.claims.get(asked.request_id)
    if before is not None:
        return _again(turn, asked, before)
    orders = orders_for(machine, asked.stopping)
    scheduler = turn.book.scheduler
    if orders or not asked.most:
        scheduler.withdraw(machine.name)
        return ClaimResponse(orders=orders, closed=machine.closed, generation=turn.book.generation)
    instead = _instead(turn, machine)
    scheduler.measure(machine.name, asked.measured)
    grants: list[Grant] = []
    while len(grants) < asked.most:
        turn.book.waiting.freshen()
        decision = scheduler.choose(machine.name, turn.now_s, tells=not grants, instead=instead)
        if isinstance(decision, HoldDecision):
            if not grants:
                return ClaimResponse(
                    generation=turn.book.generation,
                    waiting=dict(decision.waiting),
                    next_s=_next_s(turn, decision),
                    closed=machine.closed or decision.closed,
                )
            break
        grants.append(_grant(turn, machine, decision))
    granted = tuple((turn.book.live[grant.job].seq, grant.epoch) for grant in grants)
    turn.book.claims[asked.request_id] = QueueClaimRecord(asked.incarnation, turn.now_s, granted)
    turn.write(
        turn.statements.add_claim,
        request_id=asked.request_id,
        incarnation=asked.incarnation,
        at_s=turn.now_s,
        granted=dumps(granted),
    )
    return ClaimResponse(grants=tuple(grants), waiting={}, closed=machine.closed, generation=turn.book.generation)


def _next_s(turn: WriterTransaction, hold: HoldDecision) -> float | None:
    """Return in how long there may be something for a machine though nothing else happens; None: never."""
    at_s = turn.book.next_delay_s
    if HoldReason.BETTER_FREE in hold.waiting:
        at_s = min(at_s, turn.now_s + ANSWER_S)
    return None if at_s == float("inf") else max(0.0, at_s - turn.now_s)


def _instead(turn: WriterTransaction, machine: RegisteredMachine) -> Instead | None:
    """Return what names the next job in place of one that this machine declined a moment ago; None: it did not."""
    book = turn.book
    barred = book.barred.get(machine.name, {})
    for seq in [seq for seq, until_tick_s in barred.items() if until_tick_s <= turn.tick_s]:
        del barred[seq]
    book.scheduler.doubt(machine.name, is_doubted=bool(barred))
    return (lambda head: book.waiting.instead(head, barred)) if barred else None


def _again(turn: WriterTransaction, asked: Claim, before: QueueClaimRecord) -> ClaimResponse:
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
    return ClaimResponse(grants=grants, generation=turn.book.generation)


def _grant(turn: WriterTransaction, machine: RegisteredMachine, decision: Decision) -> Grant:
    book = turn.book
    job = book.waiting.job_at(decision.head)
    if not job.spec:
        row = JobRow(*turn.read(turn.queries.jobs_by_seq, seqs=turn.many([job.seq]))[0])
        job.spec, job.checkpoint = row.spec, row.checkpoint
    spec = loads(job.spec)
    leave_line(turn, job.class_id, job.priority, job.seq)
    live = LiveLease(
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
        allocation=decision.allocation,
        attempts=spec.get("attempts", 1),
        user_failures=job.user_failures,
        lost=job.lost,
        declined=job.declined,
        until_tick_s=turn.tick_s + turn.setting.times.start_s,
    )
    _write_grant(turn, machine, live, job.epoch, decision)
    book.scheduler.grant(decision, turn.now_s)
    book.add_live(live)
    return _grant_of(turn, live, spec, job.checkpoint)


def _write_grant(
    turn: WriterTransaction, machine: RegisteredMachine, live: LiveLease, was_epoch: int, decision: Decision
) -> None:
    devices = dumps(live.allocation.devices) if live.allocation.devices else "[]"
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
    turn.write(turn.statements.add_lease, **lease, until_s=until_s, is_shared=live.allocation.is_shared, progress="")
    turn.write(turn.statements.add_attempt, **lease, capability=machine.row["capability_digest"], granted_s=turn.now_s)
    turn.tell(
        FleetKinds.JOB_GRANTED,
        seq=live.seq,
        machine=live.machine,
        attempt=live.attempt,
        epoch=live.epoch,
        from_state="pending",
        to_state="claimed",
        fields={
            **({"devices": live.allocation.devices} if live.allocation.devices else {}),
            "chosen": {"why": decision.why, "score": decision.placement.key.score, "rank": decision.placement.key.rank},
        },
    )
    turn.count_move("pending", "claimed")


def _grant_of(turn: WriterTransaction, live: LiveLease, spec: dict[str, Any], checkpoint: str) -> Grant:
    needs = spec.get("requirements", {})
    allocation = live.allocation
    lease = {
        "job": live.id,
        "attempt": live.attempt,
        "epoch": live.epoch,
        "generation": live.generation,
        "devices": allocation.devices,
        "is_shared": allocation.is_shared,
        "vram_bytes": needs.get("vram_bytes", 0) if allocation.devices else 0,
        "base": needs.get("base", "") if allocation.is_shared else "",
        "base_bytes": needs.get("base_bytes", 0) if allocation.is_shared else 0,
        "ram_bytes": needs.get("ram_bytes", 0),
        "cores": needs.get("cores", 0),
        "checkpoint": loads(checkpoint) if checkpoint else None,
        "lease_s": turn.pace.lease_s,
        "start_s": turn.setting.times.start_s,
    }
    return Grant.model_validate({**spec, **lease})
