"""`stoker store prune --fleet`: results and logs that lie with the coordinator. It decides, and acts if told to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import reach
from stoker.faces.view.tables import table
from stoker.faces.view.times import ago
from stoker.model.units import format_size
from stoker.worker.submitting.person import who_asks

if TYPE_CHECKING:
    from stoker.wire.retaining import PruneView

_LISTED = 20


def prune_fleet(call: Call, given: dict[str, Any]) -> int:
    """Ask what would go, show it, and let it go if somebody says so."""
    from stoker.wire.retaining import PruneAsk

    client, out = reach(call, given["at"]), call.out
    asked = PruneAsk(
        keep_last=1 if given["keep_last"] is None else given["keep_last"],
        older_than_s=given["older_than"],
        max_bytes=given["max_size"],
        logs_older_than_s=given["logs_older_than"],
        by=who_asks(call.parts.settings.environment),
    )
    view = client.prune(asked)
    _show(call, view)
    has_something = bool(view.result_count or view.logs or view.orphans or view.uploads or view.trees)
    if given["yes"] or (has_something and not given["dry_run"] and out.asks("Remove that?")):
        view = client.prune(asked.model_copy(update={"is_wanted": True}))
        out.line(f"freed {format_size(view.freed_bytes)}")
        for stuck in view.stuck:
            out.note(f"note: could not be removed: {stuck}")
    elif has_something:
        out.line("nothing was removed: add --yes to remove it")
    out.object({**view.model_dump(exclude={"results", "is_done"}), "done": view.is_done})
    return 0


def _show(call: Call, view: PruneView) -> None:
    out, now_s = call.out, call.parts.clock.wall_s()
    for one in view.results:
        out.object(one.model_dump())
    rows = [
        [f"{one.name} ({one.attempt})", format_size(one.freed_bytes), ago(one.at_s, now_s), one.why]
        for one in view.results[:_LISTED]
    ]
    for line in table(rows, header=("result (attempt)", "frees", "made", "why")) if rows else []:
        out.line(line)
    if view.result_count > len(rows):
        out.line(f"… and {view.result_count - len(rows):,} more")
    keeps = format_size(view.after_bytes)
    if view.result_count:
        count = f"{view.result_count:,} result{'' if view.result_count == 1 else 's'} of the fleet"
        out.line(f"to remove: {count}; frees {format_size(view.before_bytes - view.after_bytes)}, keeps {keeps}")
    else:
        out.line(f"no results of the fleet to remove; {keeps} kept")
    for reason, kept in view.kept.items():
        out.line(f"not removed: {kept:,} result{'' if kept == 1 else 's'}, {reason}")
    more = (
        (view.logs, "attempt's files", "attempts' files", f" ({format_size(view.log_bytes)})"),
        (
            view.orphans,
            "archive that nothing names",
            "archives that nothing names",
            f" ({format_size(view.orphan_bytes)})",
        ),
        (
            view.trees,
            "tree of code or data that no job needs",
            "trees of code and data that no job needs",
            f" ({format_size(view.tree_bytes)})",
        ),
        (view.uploads, "idle upload", "idle uploads", ""),
    )
    told = ", ".join(f"{number:,} {one if number == 1 else many}{size}" for number, one, many, size in more if number)
    if told:
        out.line(f"also to remove: {told}")
