"""`stoker clean-cache`: every place that Stoker fills, with its size, what would go and why the rest stays."""

from __future__ import annotations

from stoker.cli.cleanup import Area, CleanupFolders, CleanupOptions, Findings, clear, look_around, shelf_of
from stoker.cli.context import CommandContext
from stoker.core.errors import BadInput
from stoker.core.text import format_size
from stoker.views.text_tables import table


def clean(call: CommandContext, found: Findings, *, more: CleanupOptions, is_told: bool, may_ask: bool) -> int:
    """List every place; clear up if told to, or if somebody at a terminal says yes."""
    parts, out = call.parts, call.out
    now_s = parts.clock.wall_s()
    areas = look_around(parts.store, _folders(call), found, now_s=now_s, more=more)
    removable_bytes = sum(area.removable_bytes for area in areas)
    _show(call, areas, removable_bytes)
    total = {"total_bytes": sum(area.size_bytes for area in areas), "removable_bytes": removable_bytes}
    has_something = any(area.goes for area in areas) or bool(found.rubbish.leases)
    is_wanted = is_told or (may_ask and has_something and out.asks(f"Remove {format_size(removable_bytes)}?"))
    if not is_wanted:
        out.object({**total, "done": False, "freed_bytes": 0, "stuck": []})
        out.line("nothing was removed: add --yes to remove it" if has_something else "nothing to remove")
        return 0
    leases = parts.tools.engine.leases
    cleared = clear(
        parts.store, parts.objects, areas, found, leases=leases, environments=shelf_of(call), clock=parts.clock
    )
    out.object({**total, "done": True, "freed_bytes": cleared.freed_bytes, "stuck": list(cleared.stuck)})
    out.line(f"freed {format_size(cleared.freed_bytes)}")
    for stuck in cleared.stuck:
        out.note(f"note: could not be removed: {stuck}")
    return 0


def models_cache(call: CommandContext) -> str:
    """Return where models are cached; nothing, and a note, if the environment says what can't be."""
    try:
        return call.parts.hub_settings("").cache
    except BadInput as error:
        call.out.note(f"note: the cache of models is left out: {error}")
        return ""


def _folders(call: CommandContext) -> CleanupFolders:
    settings = call.parts.settings
    return CleanupFolders(
        runs=settings.runs,
        state=settings.state,
        scratch=call.parts.tools.scratch,
        out=settings.out,
        envs=settings.envs,
        kernels=settings.kernels,
        models=models_cache(call),
    )


def _show(call: CommandContext, areas: list[Area], removable_bytes: int) -> None:
    out = call.out
    rows = []
    for area in areas:
        out.object(
            {
                "place": area.name,
                "path": area.path,
                "bytes": area.size_bytes,
                "removable_bytes": area.removable_bytes,
                "goes": area.goes,
                "stays": area.stays,
            }
        )
        words = "; ".join(filter(None, (f"goes: {area.goes}" if area.goes else "", area.stays)))
        frees = format_size(area.removable_bytes) if area.goes else ""
        rows.append([area.name, format_size(area.size_bytes), frees, words if area.size_bytes or area.goes else ""])
    rows.append(["total", format_size(sum(area.size_bytes for area in areas)), format_size(removable_bytes), ""])
    for line in table(rows, header=("place", "size", "frees", ""), columns=out.columns):
        out.line(line)
