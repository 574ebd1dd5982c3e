"""Claims: a machine gets leases, or the number of pending jobs by reason; and instructions for its leases."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stoker.coordinator.queue.allocations import count_grants
from stoker.coordinator.queue.commands import MachineCloseMode
from stoker.coordinator.queue.machines import known_machine, see, stay
from stoker.coordinator.queue.queue_state import LiveLease, QueueClaimRecord, RegisteredMachine
from stoker.coordinator.queue.sql import JobRow
from stoker.coordinator.queue.transaction import WriterTransaction, leave_line
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

# Instructions for leases. Sent with every heartbeat, and at once to a worker with an open claim.
#
# They are derived from durable state, never stored: a lost one is sent again.


def order_for(live: LiveLease, machine: RegisteredMachine) -> LeaseInstruction | None:
    """Return the instruction for one of a machine's leases, if there is one."""
    if live.is_cancelling:
        do, why = LeaseInstructionKind.CANCEL, live.cancel_why
    elif machine.row["closed"] == MachineCloseMode.PAUSE.value:
        do, why = LeaseInstructionKind.RELEASE, machine.closed
    else:
        return None
    return LeaseInstruction(job=live.job.id, epoch=live.job.epoch, do=do, why=why)


def orders_for(machine: RegisteredMachine, stopping: Collection[str]) -> tuple[LeaseInstruction, ...]:
    """Return the instructions for all leases of a machine, except those that it is stopping already."""
    known = frozenset(stopping)
    leases = (live for live in machine.leases.values() if live.job.id not in known)
    return tuple(order for live in leases if (order := order_for(live, machine)) is not None)


def claim(transaction: WriterTransaction, asked: Claim) -> ClaimResponse:
    """Grant jobs to a machine. Idempotent: the same request gets the same leases, as far as they are live."""
    machine = known_machine(transaction, asked.worker, asked.incarnation)
    see(transaction, machine)
    stay(transaction, machine, asked.ends_in_s)
    before = transaction.book.claims.get(asked.request_id)
    if before is not None:
        return _again(transaction, asked, before)
    orders = orders_for(machine, asked.stopping)
    scheduler = transaction.book.scheduler
    if orders or not asked.most:
        scheduler.withdraw(machine.name)
        return ClaimResponse(orders=orders, closed=machine.closed, generation=transaction.book.generation)
    instead = _instead(transaction, machine)
    scheduler.measure(machine.name, asked.measured)
    grants: list[Grant] = []
    while len(grants) < asked.most:
        transaction.book.waiting.freshen()
        decision = scheduler.choose(machine.name, transaction.now_s, tells=not grants, instead=instead)
        if isinstance(decision, HoldDecision):
            if not grants:
                return ClaimResponse(
                    generation=transaction.book.generation,
                    waiting=dict(decision.waiting),
                    next_s=_next_s(transaction, decision),
                    closed=machine.closed or decision.closed,
                )
            break
        grants.append(_grant(transaction, machine, decision))
    if transaction.book.launch.allocations:
        count_grants(transaction, machine.name, len(grants))
    granted = tuple((transaction.book.live[grant.job].job.seq, grant.epoch) for grant in grants)
    transaction.book.claims[asked.request_id] = QueueClaimRecord(asked.incarnation, transaction.now_s, granted)
    transaction.write(
        transaction.statements.add_claim,
        request_id=asked.request_id,
        incarnation=asked.incarnation,
        at_s=transaction.now_s,
        granted=dumps(granted),
    )
    return ClaimResponse(
        grants=tuple(grants), waiting={}, closed=machine.closed, generation=transaction.book.generation
    )


def _next_s(transaction: WriterTransaction, hold: HoldDecision) -> float | None:
    """Return the time until a delayed job may be ready; None: there is none."""
    at_s = transaction.book.next_delay_s
    if HoldReason.BETTER_FREE in hold.waiting:
        at_s = min(at_s, transaction.now_s + ANSWER_S)
    return None if at_s == float("inf") else max(0.0, at_s - transaction.now_s)


def _instead(transaction: WriterTransaction, machine: RegisteredMachine) -> Instead | None:
    """Return the function that replaces a job that this machine declined lately; None: it declined none."""
    book = transaction.book
    barred = book.barred.get(machine.name, {})
    for seq in [seq for seq, until_tick_s in barred.items() if until_tick_s <= transaction.tick_s]:
        del barred[seq]
    book.scheduler.doubt(machine.name, is_doubted=bool(barred))
    return (lambda head: book.waiting.instead(head, barred)) if barred else None


def _again(transaction: WriterTransaction, asked: Claim, before: QueueClaimRecord) -> ClaimResponse:
    if before.incarnation != asked.incarnation:
        raise Conflict(
            f"request {asked.request_id} belongs to another worker",
            hint="use a new id for every claim",
            id=asked.request_id,
        )
    live = {
        seq: lease
        for seq, epoch in before.granted
        if (lease := transaction.book.live_by_seq.get(seq)) is not None and lease.job.epoch == epoch
    }
    rows = transaction.read(transaction.queries.jobs_by_seq, seqs=transaction.many(live)) if live else []
    found = [JobRow(*row) for row in rows]
    grants = tuple(_grant_of(transaction, live[row.seq], loads(row.spec), row.checkpoint) for row in found)
    return ClaimResponse(grants=grants, generation=transaction.book.generation)


def _grant(transaction: WriterTransaction, machine: RegisteredMachine, decision: Decision) -> Grant:
    book = transaction.book
    job = book.waiting.job_at(decision.head)
    if not job.spec:
        row = JobRow(*transaction.read(transaction.queries.jobs_by_seq, seqs=transaction.many([job.seq]))[0])
        job.spec, job.checkpoint = row.spec, row.checkpoint
    spec = loads(job.spec)
    leave_line(transaction, job.class_id, job.priority, job.seq)
    checkpoint = job.checkpoint
    # Not kept in memory for a live job; read again when it is granted again.
    job.spec = job.checkpoint = ""
    job.epoch += 1
    job.attempt += 1
    live = LiveLease(
        job=job,
        generation=book.generation,
        machine=machine.name,
        incarnation=machine.incarnation,
        state=JobState.PENDING.value,
        allocation=decision.allocation,
        attempts=spec.get("attempts", 1),
        until_tick_s=transaction.tick_s + transaction.setting.times.start_s,
    )
    _write_grant(transaction, machine, live, decision)
    book.scheduler.grant(decision, transaction.now_s)
    book.add_live(live)
    return _grant_of(transaction, live, spec, checkpoint)


def _write_grant(
    transaction: WriterTransaction, machine: RegisteredMachine, live: LiveLease, decision: Decision
) -> None:
    devices = dumps(live.allocation.devices) if live.allocation.devices else "[]"
    lease: dict[str, Any] = {
        "seq": live.job.seq,
        "attempt": live.job.attempt,
        "epoch": live.job.epoch,
        "generation": live.generation,
        "machine": live.machine,
        "incarnation": live.incarnation,
        "devices": devices,
    }
    transaction.move(live.job.seq)
    transaction.write(
        transaction.statements.grant_job,
        at_seq=live.job.seq,
        was_epoch=live.job.epoch - 1,
        was_state="pending",
        epoch=live.job.epoch,
        attempt=live.job.attempt,
        machine=live.machine,
        changed_s=transaction.now_s,
    )
    until_s = transaction.now_s + transaction.setting.times.start_s
    transaction.write(
        transaction.statements.add_lease, **lease, until_s=until_s, is_shared=live.allocation.is_shared, progress=""
    )
    transaction.write(
        transaction.statements.add_attempt,
        **lease,
        capability=machine.row["capability_digest"],
        granted_s=transaction.now_s,
    )
    key = decision.placement.key
    fields: dict[str, Any] = {"chosen": {"why": decision.why, "score": key.score, "rank": key.rank}}
    if live.allocation.devices:
        fields = {"devices": live.allocation.devices, **fields}
    transaction.tell_live(FleetKinds.JOB_GRANTED, live, fields, to_state=JobState.CLAIMED.value)


def _granted_checkpoint(checkpoint: str) -> dict[str, Any]:
    """Return a checkpoint as it is granted.

    A worker of protocol 1 needs the digest of an archive. It finds none under the tree's digest, and starts at step 0.
    """
    body: dict[str, Any] = loads(checkpoint)
    return {**body, "archive_sha256": body["archive_sha256"] or body["tree"]}


def _grant_of(transaction: WriterTransaction, live: LiveLease, spec: dict[str, Any], checkpoint: str) -> Grant:
    needs = spec.get("requirements", {})
    allocation = live.allocation
    lease = {
        "job": live.job.id,
        "attempt": live.job.attempt,
        "epoch": live.job.epoch,
        "generation": live.generation,
        "devices": allocation.devices,
        "is_shared": allocation.is_shared,
        "vram_bytes": needs.get("vram_bytes", 0) if allocation.devices else 0,
        "base": needs.get("base", "") if allocation.is_shared else "",
        "base_bytes": needs.get("base_bytes", 0) if allocation.is_shared else 0,
        "ram_bytes": needs.get("ram_bytes", 0),
        "cores": needs.get("cores", 0),
        "checkpoint": _granted_checkpoint(checkpoint) if checkpoint else None,
        "lease_s": transaction.pace.lease_s,
        "start_s": transaction.setting.times.start_s,
    }
    return Grant.model_validate({**spec, **lease})
