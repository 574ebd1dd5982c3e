"""`stoker store prune`: free disk space, least recently used first. Acts only if confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.api.cleanup import (
    Area,
    CleanupOptions,
    Findings,
    clear,
    environments_of,
    look_around,
    model_cache,
)
from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, duration, size, whole
from stoker.cli.screens import busy, show_progress
from stoker.core.errors import Usage
from stoker.core.text import counted, format_size
from stoker.devices.this_machine import submitter_name
from stoker.jobs.upkeep import CleanupResult, Rubbish, clear_rubbish, find_rubbish, sweep_uploads, why_kept, why_let_go
from stoker.store.environment_cache import EnvironmentPrunePlan, drop, offer
from stoker.store.prune import PruneDecision, Removal, candidates, carry_out, decide_prune, young_bytes
from stoker.store.records import Record
from stoker.views.text_tables import ago, table

if TYPE_CHECKING:
    from stoker.protocol.view_messages import PruneView


_LISTED = 20

_LIMITS = (
    Option("--max-size", value="SIZE", read=size, help="maximum size of the results: 500MB, 10G"),
    Option("--older-than", value="TIME", read=duration, help="delete results unused for longer: 12h, 30d"),
    Option("--max-envs", value="SIZE", read=size, help="maximum size of the Python environments: 20G, 0"),
)
_CONFIRMATION = (
    Option("--dry-run", help="only show what would be deleted"),
    Option("--yes", help="delete without confirmation"),
)


def _regardless_of_age(condition: str) -> tuple[Option, ...]:
    return (
        Option("--quarantine", help=f"{condition}also delete the quarantine, regardless of age"),
        Option("--downloads", help=f"{condition}also delete unfinished downloads, regardless of age"),
    )


GRAMMAR = Grammar(
    "store prune",
    about=(
        "Free disk space. Delete results unused for --older-than, then the least recently used ones down to "
        "--max-size; without a limit none. Pinned results, stored trees and results of running jobs are kept. A "
        "deleted result is made again when a run needs it. Also deleted: leftovers of dead processes, uploads idle "
        "for 7 days, and checkpoints of unsuccessful work after 30 days. Unused Python environments are deleted by "
        "--older-than and --max-envs, and built again when needed. With --everywhere (also `stoker clean-cache`), "
        "list and clean all folders that Stoker fills. With --fleet, delete results of the coordinator instead: too "
        "old ones, except the newest of each job, then the oldest down to --max-size; pinned ones are kept. The list "
        "is shown first; nothing is deleted without --yes or a confirmation on a terminal."
    ),
    options=(
        *_LIMITS,
        Option("--everywhere", help="clean all folders, not only the store"),
        Option("--fleet", help="clean the coordinator's results and logs instead of this machine's store"),
        Option(
            "--keep-last", value="N", read=whole(0), help="with --fleet: newest results to keep per job (default: 1)"
        ),
        Option(
            "--logs-older-than",
            value="TIME",
            read=duration,
            help="with --fleet: delete logs of attempts that ended earlier: 30d",
        ),
        AT,
        *_regardless_of_age("with --everywhere: "),
        *_CONFIRMATION,
    ),
    examples=(
        "stoker store prune --max-size 10G",
        "stoker store prune --older-than 30d --yes",
        "stoker store prune --everywhere",
        "stoker store prune --fleet --older-than 90d --keep-last 2 --logs-older-than 30d",
    ),
)
CLEAN_CACHE_GRAMMAR = Grammar(
    "clean-cache",
    about=(
        "List all folders that Stoker fills on this machine, in the store and outside of it, with their sizes and "
        "what can be deleted. The same as `stoker store prune --everywhere`. The list is shown first; nothing is "
        "deleted without --yes or a confirmation on a terminal."
    ),
    options=(*_LIMITS, *_regardless_of_age(""), *_CONFIRMATION),
    examples=("stoker clean-cache", "stoker clean-cache --older-than 30d --max-envs 20G", "stoker clean-cache --yes"),
)


def perform_clean_cache(call: CommandContext, given: dict[str, Any]) -> int:
    """Clean all folders."""
    return perform(call, {**GRAMMAR.parse(["--everywhere"]), **given})


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Decide, show, and act if confirmed."""
    _refuse_misfits(given)
    if given["fleet"]:
        return prune_fleet(call, given)
    parts, out = call.parts, call.out
    leases = parts.tools.engine.leases
    with busy(call, "looking for what can be removed"):
        found = tuple(
            candidates(
                parts.store,
                kept=why_kept(parts.store, leases, parts.settings.runs),
                label=_label,
                let_go=why_let_go(parts.store),
            )
        )
        decision = decide_prune(
            found, now_s=parts.clock.wall_s(), max_bytes=given["max_size"], older_than_s=given["older_than"]
        )
        rubbish = find_rubbish(parts.store, parts.objects, leases, parts.clock, scratch=parts.tools.scratch)
        spared_bytes = young_bytes(parts.store, decision, clock=parts.clock, leftovers=rubbish.staging)
        environments = offer(
            environments_of(parts),
            now_s=parts.clock.wall_s(),
            max_bytes=given["max_envs"],
            older_than_s=given["older_than"],
        )
    if given["everywhere"]:
        findings = Findings(
            candidates=found, decision=decision, rubbish=rubbish, environments=environments, young_bytes=spared_bytes
        )
        more = CleanupOptions(quarantine=given["quarantine"], downloads=given["downloads"])
        return clean(call, findings, more=more, is_confirmed=given["yes"], may_ask=not given["dry_run"])
    _show(call, decision, rubbish, spared_bytes, given)
    show_offer(call, environments)
    has_something = bool(decision.removals) or not rubbish.is_none or not environments.is_none
    is_wanted = given["yes"] or (has_something and not given["dry_run"] and out.asks("Remove that?"))
    cleared = CleanupResult(freed_bytes=0)
    if is_wanted:
        cleared = _carry_out(call, decision, rubbish, promised_bytes=decision.freed_bytes - spared_bytes)
        with busy(call, "removing environments"):
            dropped = drop(environments_of(parts), environments, clock=parts.clock)
        cleared = CleanupResult(
            freed_bytes=cleared.freed_bytes + dropped.freed_bytes, stuck=(*cleared.stuck, *dropped.stuck)
        )
        out.line(f"freed {format_size(cleared.freed_bytes)}")
        for stuck in cleared.stuck:
            out.note(f"note: could not be removed: {stuck}")
    elif has_something:
        out.line("nothing was removed; remove it with --yes")
    _print_json(call, decision, rubbish, environments, cleared, is_done=is_wanted, spared_bytes=spared_bytes)
    return 0


def _refuse_misfits(given: dict[str, Any]) -> None:
    for word in ("quarantine", "downloads"):
        if given[word] and not given["everywhere"]:
            raise Usage(f"--{word} needs --everywhere", hint=f"stoker store prune --everywhere --{word}")
    if given["max_envs"] is not None and given["fleet"]:
        raise Usage("--max-envs and --fleet exclude each other", hint="stoker help store prune")
    for word in ("keep_last", "logs_older_than", "at"):
        if given[word] is not None and not given["fleet"]:
            option = word.replace("_", "-")
            raise Usage(f"--{option} needs --fleet", hint="stoker store prune --fleet")
    if given["fleet"] and given["everywhere"]:
        raise Usage("--everywhere and --fleet exclude each other", hint="stoker help store prune")
    if given["yes"] and given["dry_run"]:
        raise Usage("--dry-run and --yes exclude each other", hint="stoker help store prune")


_REST = "the same command removes the rest"


def _carry_out(
    call: CommandContext, decision: PruneDecision, rubbish: Rubbish, *, promised_bytes: int
) -> CleanupResult:
    parts = call.parts
    with busy(call, "removing what dead processes left"):
        cleared = clear_rubbish(rubbish, parts.tools.engine.leases)
        uploads_bytes = sweep_uploads(parts.store, parts.objects)
    with show_progress(call, "removing results", len(decision.removals), hint=_REST) as count:
        swept = carry_out(parts.store, decision, clock=parts.clock, on_removed=count.reach)
    if swept.freed_bytes < promised_bytes and not swept.stuck:
        left = format_size(promised_bytes - swept.freed_bytes)
        call.out.note(f"note: {left} of that was kept: used or written meanwhile; prune again later")
    return CleanupResult(
        freed_bytes=cleared.freed_bytes + uploads_bytes + swept.freed_bytes, stuck=(*cleared.stuck, *swept.stuck)
    )


def _print_json(  # noqa: PLR0913 - all fields of one object
    call: CommandContext,
    decision: PruneDecision,
    rubbish: Rubbish,
    environments: EnvironmentPrunePlan,
    cleared: CleanupResult,
    *,
    is_done: bool,
    spared_bytes: int,
) -> None:
    call.out.object(
        {
            "done": is_done,
            "freed_bytes": cleared.freed_bytes,
            "stuck": list(cleared.stuck),
            "results": len(decision.removals),
            "before_bytes": decision.before_bytes,
            "after_bytes": decision.after_bytes + spared_bytes,
            "young_bytes": spared_bytes,
            "kept": decision.kept_by_reason,
            "staging_folders": len(rubbish.staging),
            "leases": len(rubbish.leases),
            "scratch_folders": len(rubbish.scratch),
            "uploads": len(rubbish.uploads),
            "unnamed_blobs": rubbish.blobs,
            "unnamed_blob_bytes": rubbish.blob_bytes,
            "environments": len(environments.decision.removals),
            "environments_before_bytes": environments.decision.before_bytes,
            "environments_after_bytes": environments.decision.after_bytes,
            "environments_kept": environments.decision.kept_by_reason,
            "unfinished_environments": len(environments.leftovers),
        }
    )


def _show(
    call: CommandContext, decision: PruneDecision, rubbish: Rubbish, spared_bytes: int, given: dict[str, Any]
) -> None:
    out = call.out
    for removal in decision.removals:
        out.object({"key": removal.key, "stage": removal.label, "freed_bytes": removal.freed_bytes, "why": removal.why})
    rows = _list_removals(call, decision.removals, ("key", "stage", "frees", "why"))
    after_bytes = decision.after_bytes + spared_bytes
    if rows:
        frees = format_size(decision.before_bytes - after_bytes)
        out.line(f"to remove: {counted(rows, 'result')}; frees {frees}, keeps {format_size(after_bytes)}")
    else:
        has_limit = given["max_size"] is not None or given["older_than"] is not None
        limits = "" if has_limit else "; set a limit with --max-size or --older-than"
        out.line(f"no results to remove; {format_size(after_bytes)} kept{limits}")
    if spared_bytes:
        out.line(f"not removed now: {format_size(spared_bytes)} newer than 1 h, because a process writes to the store")
    for reason, count in decision.kept_by_reason.items():
        out.line(f"not removed: {counted(count, 'result')}, {reason}")
    if given["max_size"] is not None and after_bytes > given["max_size"]:
        over = format_size(after_bytes - given["max_size"])
        out.line(f"still {over} above --max-size: the rest is kept for the reasons above")
    leftovers = (
        counted(len(rubbish.staging), "staging folder") + " of dead processes" if rubbish.staging else "",
        counted(len(rubbish.leases), "lease") + " of dead processes" if rubbish.leases else "",
        counted(len(rubbish.scratch), "scratch folder") + " unused for 30 days" if rubbish.scratch else "",
        counted(len(rubbish.uploads), "upload") + " idle for 7 days" if rubbish.uploads else "",
        counted(rubbish.blobs, "blob") + f" without a result ({format_size(rubbish.blob_bytes)})"
        if rubbish.blobs
        else "",
    )
    shown = ", ".join(filter(None, leftovers))
    if shown:
        out.line(f"also to remove: {shown}")


def _list_removals(call: CommandContext, removals: Sequence[Removal], header: Sequence[str]) -> int:
    """Print the first removals and the number of the others; return the total number."""
    rows = [[one.key[:12], one.label, format_size(one.freed_bytes), one.why] for one in removals]
    if rows:
        call.out.lines(table(rows[:_LISTED], header=header))
    if len(rows) > _LISTED:
        call.out.line(f"… and {len(rows) - _LISTED} more")
    return len(rows)


def _label(record: Record) -> str:
    return str(record.body.get("stage", "?"))


def prune_fleet(call: CommandContext, given: dict[str, Any]) -> int:
    """`stoker store prune --fleet`: print what the coordinator would remove, and remove it if confirmed."""
    from stoker.protocol.view_messages import PruneRequest

    client, out = call.lookup.client(given["at"]), call.out
    request = PruneRequest(
        keep_last=1 if given["keep_last"] is None else given["keep_last"],
        older_than_s=given["older_than"],
        max_bytes=given["max_size"],
        logs_older_than_s=given["logs_older_than"],
        by=submitter_name(call.parts.settings.environment),
    )
    view = client.prune(request)
    _show_prune_fleet(call, view)
    has_something = bool(view.result_count or view.logs or view.orphans or view.uploads or view.trees)
    if given["yes"] or (has_something and not given["dry_run"] and out.asks("Remove that?")):
        view = client.prune(request.model_copy(update={"is_wanted": True}))
        out.line(f"freed {format_size(view.freed_bytes)}")
        for stuck in view.stuck:
            out.note(f"note: could not be removed: {stuck}")
    elif has_something:
        out.line("nothing was removed; remove it with --yes")
    out.object({**view.model_dump(exclude={"results", "is_done"}), "done": view.is_done})
    return 0


def _show_prune_fleet(call: CommandContext, view: PruneView) -> None:
    out, now_s = call.out, call.parts.clock.wall_s()
    for one in view.results:
        out.object(one.model_dump())
    rows = [
        [f"{one.name} ({one.attempt})", format_size(one.freed_bytes), ago(one.at_s, now_s), one.why]
        for one in view.results[:_LISTED]
    ]
    if rows:
        out.lines(table(rows, header=("result (attempt)", "frees", "made", "why")))
    if view.result_count > len(rows):
        out.line(f"… and {view.result_count - len(rows):,} more")
    keeps = format_size(view.after_bytes)
    if view.result_count:
        count = f"{counted(view.result_count, 'result')} of the fleet"
        out.line(f"to remove: {count}; frees {format_size(view.before_bytes - view.after_bytes)}, keeps {keeps}")
    else:
        out.line(f"no results of the fleet to remove; {keeps} kept")
    for reason, kept in view.kept.items():
        out.line(f"not removed: {counted(kept, 'result')}, {reason}")
    more = (
        (view.logs, "attempt's files", "attempts' files", f" ({format_size(view.log_bytes)})"),
        (
            view.orphans,
            "unreferenced archive",
            "unreferenced archives",
            f" ({format_size(view.orphan_bytes)})",
        ),
        (
            view.trees,
            "unused tree of code or data",
            "unused trees of code and data",
            f" ({format_size(view.tree_bytes)})",
        ),
        (view.uploads, "idle upload", "idle uploads", ""),
    )
    shown = ", ".join(f"{counted(number, one, many)}{size}" for number, one, many, size in more if number)
    if shown:
        out.line(f"also to remove: {shown}")


# `stoker clean-cache`: all folders that Stoker fills, with sizes, and what would be removed.


def clean(call: CommandContext, found: Findings, *, more: CleanupOptions, is_confirmed: bool, may_ask: bool) -> int:
    """List all folders; clean up if `is_confirmed`, or if the user at a terminal confirms."""
    parts, out = call.parts, call.out
    now_s = parts.clock.wall_s()
    with busy(call, "measuring folders"):
        areas = look_around(parts.store, parts.settings, model_cache(parts, out.note), found, now_s=now_s, more=more)
    removable_bytes = sum(area.removable_bytes for area in areas)
    _show_prune_all(call, areas, removable_bytes)
    total = {"total_bytes": sum(area.size_bytes for area in areas), "removable_bytes": removable_bytes}
    has_something = any(area.goes for area in areas) or bool(found.rubbish.leases)
    is_wanted = is_confirmed or (may_ask and has_something and out.asks(f"Remove {format_size(removable_bytes)}?"))
    if not is_wanted:
        out.object({**total, "done": False, "freed_bytes": 0, "stuck": []})
        out.line("nothing was removed; remove it with --yes" if has_something else "nothing to remove")
        return 0
    leases = parts.tools.engine.leases
    with busy(call, f"removing {format_size(removable_bytes)}"):
        cleared = clear(
            parts.store,
            parts.objects,
            areas,
            found,
            leases=leases,
            environments=environments_of(parts),
            clock=parts.clock,
        )
    out.object({**total, "done": True, "freed_bytes": cleared.freed_bytes, "stuck": list(cleared.stuck)})
    out.line(f"freed {format_size(cleared.freed_bytes)}")
    for stuck in cleared.stuck:
        out.note(f"note: could not be removed: {stuck}")
    return 0


def _show_prune_all(call: CommandContext, areas: list[Area], removable_bytes: int) -> None:
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
        words = "; ".join(filter(None, (f"remove: {area.goes}" if area.goes else "", area.stays)))
        frees = format_size(area.removable_bytes) if area.goes else ""
        rows.append([area.name, format_size(area.size_bytes), frees, words if area.size_bytes or area.goes else ""])
    rows.append(["total", format_size(sum(area.size_bytes for area in areas)), format_size(removable_bytes), ""])
    out.table(rows, header=("place", "size", "frees", ""))


# Python environments of jobs.


def show_offer(call: CommandContext, offered: EnvironmentPrunePlan) -> None:
    """Print the environments that would be removed, and why others are not."""
    out, decision = call.out, offered.decision
    for one in decision.removals:
        out.object({"environment": one.key, "label": one.label, "freed_bytes": one.freed_bytes, "why": one.why})
    if rows := _list_removals(call, decision.removals, ("environment", "", "frees", "why")):
        sizes = f"frees {format_size(decision.freed_bytes)}, keeps {format_size(decision.after_bytes)}"
        out.line(f"to remove: {counted(rows, 'environment')}; {sizes}")
    for reason, count in decision.kept_by_reason.items():
        out.line(f"not removed: {counted(count, 'environment')}, {reason}")
    if offered.leftovers:
        unfinished = counted(len(offered.leftovers), "unfinished environment")
        out.line(f"also to remove: {unfinished} ({format_size(offered.leftover_bytes)})")
