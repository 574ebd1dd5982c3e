"""What the coordinator wants of who holds a lease. Told with every heartbeat, and at once to who listens for it.

A wish is read from what is durable, never kept: lost on its way, it is told again.
"""

from __future__ import annotations

from collections.abc import Collection

from stoker.coordinator.queue.book import Live, Machine
from stoker.coordinator.queue.commands import Closing
from stoker.wire.leasing import Do, LeaseOrder


def order_for(live: Live, machine: Machine) -> LeaseOrder | None:
    """Say what a machine is to do with one of its leases, if it is to do anything."""
    if live.is_cancelling:
        return LeaseOrder(job=live.id, epoch=live.epoch, do=Do.CANCEL, why=live.cancel_why)
    if machine.row["closed"] == Closing.PAUSE.value:
        return LeaseOrder(job=live.id, epoch=live.epoch, do=Do.RELEASE, why=machine.closed)
    return None


def orders_for(machine: Machine, stopping: Collection[str]) -> tuple[LeaseOrder, ...]:
    """Say the same of all its leases but those that it is ending already."""
    known = frozenset(stopping)
    leases = (live for live in machine.leases.values() if live.id not in known)
    return tuple(order for live in leases if (order := order_for(live, machine)) is not None)
