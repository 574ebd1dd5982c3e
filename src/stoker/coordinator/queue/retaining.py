"""Which results are kept: pins that people set, and marks that a prune leaves before bytes go."""

from __future__ import annotations

from stoker.coordinator.queue.commands import Done, PinJobs, PruneBundles
from stoker.coordinator.queue.moves import plain
from stoker.coordinator.queue.operating import rows_of
from stoker.coordinator.queue.turn import Turn
from stoker.model.fleet_events import FleetKinds


def pin(turn: Turn, asked: PinJobs) -> Done:
    """Keep the results of jobs whatever is pruned, or let go of them again; a job without one is told."""
    rows = rows_of(turn, asked.jobs)
    seqs = turn.many(row.seq for row in rows)
    found = {seq for _, seq, _, pruned_s in turn.read(turn.queries.results_of, seqs=seqs) if pruned_s is None}
    changed, notes = [], []
    for row in rows:
        if row.seq not in found:
            notes.append(f"{row.shown} has no result to keep")
            continue
        turn.write(turn.statements.pin_results, at_seq=row.seq, is_pinned=asked.is_pinned)
        fields = {"pinned": asked.is_pinned, **({"by": plain(asked.by)} if asked.by else {})}
        turn.tell(FleetKinds.JOB_CHANGED, seq=row.seq, epoch=row.epoch, fields=fields)
        changed.append(row.id)
    return Done(changed=tuple(changed), notes=tuple(notes))


def prune(turn: Turn, asked: PruneBundles) -> Done:
    """Mark results as pruned; what is pinned, or marked already, stays as it is."""
    changed = []
    for id_, seq, is_pinned, pruned_s in turn.read(turn.queries.results, ids=turn.many(asked.bundles)):
        if is_pinned or pruned_s is not None:
            continue
        turn.write(turn.statements.prune_result, at_id=id_, pruned_s=turn.now_s)
        fields = {"pruned": True, **({"by": plain(asked.by)} if asked.by else {})}
        turn.tell(FleetKinds.JOB_CHANGED, seq=seq, fields=fields)
        changed.append(str(id_))
    return Done(changed=tuple(changed))
