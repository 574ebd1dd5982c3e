"""Python environments that jobs run in, in the commands about the store: what there is, what may go."""

from __future__ import annotations

from stoker.faces.cli.call import Call
from stoker.faces.view.tables import table
from stoker.faces.view.times import ago
from stoker.host.disk import folder_bytes
from stoker.model.units import format_size
from stoker.worker.environments.pruning import Offer, label_of
from stoker.worker.environments.shelf import Shelf

_LISTED = 20


def shelf_of(call: Call) -> Shelf:
    """Give this home's environments."""
    return Shelf(call.parts.settings.envs, clock=call.parts.clock)


def show_environments(call: Call, *, is_first: bool) -> tuple[bool, int]:
    """Show those that are ready, the last used first; give whether there are any, and the bytes of all that lies there.

    What nobody finished is in the bytes.
    """
    shelf, out = shelf_of(call), call.out
    now_s = call.parts.clock.wall_s()
    rows = []
    for one in reversed(shelf.all_kept()):
        is_used = shelf.is_used(one.key)
        out.object(
            {
                "environment": one.key,
                "digest": one.digest,
                "python": one.version,
                "packages": one.packages,
                "bytes": one.size_bytes,
                "used_s": one.used_s,
                "is_in_use": is_used,
            }
        )
        used = "in use" if is_used else ago(one.used_s, now_s)
        rows.append([format_size(one.size_bytes), one.key[:12], label_of(one), used])
    if rows and not is_first:
        out.line()
    for line in table(rows, header=("size", "environment", "", "used"), columns=out.columns) if rows else ():
        out.line(line)
    return bool(rows), folder_bytes(shelf.folder)


def show_offer(call: Call, offered: Offer) -> None:
    """Show which environments would be removed, and why others are not."""
    out, decision = call.out, offered.decision
    for one in decision.removals:
        out.object({"environment": one.key, "label": one.label, "freed_bytes": one.freed_bytes, "why": one.why})
    rows = [[one.key[:12], one.label, format_size(one.freed_bytes), one.why] for one in decision.removals]
    for line in table(rows[:_LISTED], header=("environment", "", "frees", "why")) if rows else []:
        out.line(line)
    if len(rows) > _LISTED:
        out.line(f"… and {len(rows) - _LISTED} more")
    if rows:
        sizes = f"frees {format_size(decision.freed_bytes)}, keeps {format_size(decision.after_bytes)}"
        out.line(f"to remove: {len(rows)} environment{'' if len(rows) == 1 else 's'}; {sizes}")
    for reason, count in decision.kept_by_reason.items():
        out.line(f"not removed: {count} environment{'' if count == 1 else 's'}, {reason}")
    if offered.leftovers:
        count = len(offered.leftovers)
        size = format_size(offered.leftover_bytes)
        out.line(f"also to remove: {count} unfinished environment{'' if count == 1 else 's'} ({size})")
