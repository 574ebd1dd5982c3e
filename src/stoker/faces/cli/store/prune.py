"""`stoker store prune`: free space, least recently used first. Shows what would go; acts only when told to."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, duration, size
from stoker.faces.view.tables import table
from stoker.model.units import format_size
from stoker.store.prune import candidates, carry_out
from stoker.store.records import Record
from stoker.store.retention import PruneDecision, decide_prune
from stoker.worker.upkeep import Rubbish, clear_rubbish, find_rubbish, why_kept

_LISTED = 20

GRAMMAR = Grammar(
    "store prune",
    about=(
        "Free space: results unused for too long go, then the least recently used until the rest fits. What is pinned, "
        "or used by a running job, stays. What was pruned is still known: it counts as a result until somebody needs "
        "the bytes. Leftovers of processes that died go too, and checkpoints of work that did not succeed after 30 "
        "days. Nothing is removed unless you say --yes."
    ),
    options=(
        Option("--max-size", value="SIZE", read=size, help="keep at most this much: 500MB, 10G"),
        Option("--older-than", value="TIME", read=duration, help="let go of what was unused for longer: 12h, 30d"),
        Option("--yes", help="do it, instead of showing what would be done"),
    ),
    examples=("stoker store prune --max-size 10G", "stoker store prune --older-than 30d --yes"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Decide, show, and act if told to."""
    parts, out = call.parts, call.out
    leases = parts.tools.engine.leases
    decision = decide_prune(
        candidates(parts.store, kept=why_kept(parts.store, leases, parts.settings.runs), label=_label),
        now_s=parts.clock.wall_s(),
        max_bytes=given["max_size"],
        older_than_s=given["older_than"],
    )
    rubbish = find_rubbish(parts.store, leases, parts.clock, scratch=parts.tools.scratch)
    _show(call, decision, rubbish, is_done=given["yes"])
    if given["yes"]:
        clear_rubbish(rubbish, leases)
        swept = carry_out(parts.store, decision, clock=parts.clock)
        out.line(f"freed {format_size(swept.blob_bytes)} in {swept.blobs} blobs")
        for stuck in swept.stuck:
            out.note(f"note: it stays: {stuck}")
    elif decision.removals or rubbish != _NOTHING:
        out.line("nothing was removed; --yes does it")
    return 0


_NOTHING = Rubbish(staging=(), leases=(), blobs=0, blob_bytes=0)


def _show(call: Call, decision: PruneDecision, rubbish: Rubbish, *, is_done: bool) -> None:
    out = call.out
    for removal in decision.removals:
        out.object({"key": removal.key, "stage": removal.label, "freed_bytes": removal.freed_bytes, "why": removal.why})
    out.object(
        {
            "done": is_done,
            "results": len(decision.removals),
            "before_bytes": decision.before_bytes,
            "after_bytes": decision.after_bytes,
            "kept": decision.kept_by_reason,
            "staging_folders": len(rubbish.staging),
            "leases": len(rubbish.leases),
            "scratch_folders": len(rubbish.scratch),
            "unnamed_blobs": rubbish.blobs,
            "unnamed_blob_bytes": rubbish.blob_bytes,
        }
    )
    rows = [[one.key[:12], one.label, format_size(one.freed_bytes), one.why] for one in decision.removals]
    for line in table(rows[:_LISTED], header=("key", "stage", "frees", "why")) if rows else []:
        out.line(line)
    if len(rows) > _LISTED:
        out.line(f"… and {len(rows) - _LISTED} more")
    sizes = f"{format_size(decision.before_bytes)} → {format_size(decision.after_bytes)}"
    out.line(
        f"{len(rows)} result{'' if len(rows) == 1 else 's'} to go: {sizes}"
        if rows
        else f"no result has to go ({sizes})"
    )
    for reason, count in decision.kept_by_reason.items():
        out.line(f"kept although it is its turn: {count}, {reason}")
    leftovers = {
        "staging folders": len(rubbish.staging),
        "leases": len(rubbish.leases),
        "scratch folders that nobody came back to": len(rubbish.scratch),
        f"unnamed blobs ({format_size(rubbish.blob_bytes)})": rubbish.blobs,
    }
    told = ", ".join(f"{count} {what}" for what, count in leftovers.items() if count)
    if told:
        out.line(f"left behind by processes that died: {told}")


def _label(record: Record) -> str:
    return str(record.body.get("stage", "?"))
