"""Look: show the machines as the scheduler sees them, and its whole state, for explanations and forecasts."""

from __future__ import annotations

from stoker.coordinator.queue.commands import InspectMachines, MachineInspection
from stoker.coordinator.queue.machines import away
from stoker.coordinator.queue.transaction import WriterTransaction
from stoker.scheduler.snapshot import Snapshot, take


def look(turn: WriterTransaction, asked: InspectMachines) -> MachineInspection:
    """Return what is known now. Changes nothing."""
    book = turn.book
    scheduler = book.scheduler
    return MachineInspection(
        offers=scheduler.offers(),
        away=away(book),
        wanted=dict(scheduler.wanted),
        stated_s={class_id: kind.stated_s for kind, class_id in book.classes.items() if kind.stated_s is not None},
        drift=scheduler.drift(),
        holdings={name: one.holdings for name, one in book.machines.items() if one.holdings is not None},
        disk_free_bytes={
            name: free for name, one in book.machines.items() if (free := one.disk_free_bytes) is not None
        },
        accepts={name: pins for name, one in book.machines.items() if (pins := one.accepts)},
        schedule=_schedule(turn) if asked.schedule else None,
    )


def _schedule(turn: WriterTransaction) -> Snapshot:
    book = turn.book
    book.waiting.freshen()
    return take(
        book.scheduler,
        turn.now_s,
        running=[(live.seq, live.allocation) for live in book.live.values()],
        declined={
            name: {seq: turn.now_s + until_tick_s - turn.tick_s for seq, until_tick_s in barred.items()}
            for name, barred in book.barred.items()
        },
    )
