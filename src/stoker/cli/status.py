"""`stoker status`: running and recent jobs, the state of the fleet, and the size of the store."""

from __future__ import annotations

import os
from itertools import islice
from typing import Any

from stoker.api.job import LocalJobView, job_story
from stoker.api.job_lists import look_at_fleet
from stoker.cli.commands import has_cockpit
from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar
from stoker.core.display_width import text_width
from stoker.core.text import counted, format_size
from stoker.host.folders import make_state
from stoker.host.install import pip_install
from stoker.jobs.job_folder import JobFolder, job_folders
from stoker.jobs.job_history import NodeHistory
from stoker.protocol.discovery import Membership, coordinator_gone, machine_here
from stoker.views.fleet_lines import LOCAL_JOB_HEADER, local_job_row
from stoker.views.stage_lines import running_text, waiting_text
from stoker.views.text_tables import ago
from stoker.worker.worker_options import read_pause

_LOOKED_AT = 50
_LISTED = 5
_LONGEST_LOOK_S = 0.1

GRAMMAR = Grammar(
    "status",
    about=(
        "Show running jobs with their progress, recent jobs and the size of the store; with a coordinator, also the "
        "state of its fleet. `stoker` without arguments does the same in a pipe; on a terminal it opens `stoker top`."
    ),
    options=(AT,),
    examples=("stoker status", "stoker status --at desk", "stoker status --json"),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Show the status."""
    out, parts = call.out, call.parts
    client = call.client_if_any(given["at"])
    fleet = look_at_fleet(client) if client is not None else None
    worker = _worker_alone(call, given["at"]) if client is None else None
    now_s = parts.clock.wall_s()
    # Jobs of the fleet that ran here are listed with the fleet.
    newest = map(LocalJobView.of_any, islice(job_folders(parts.settings.runs), _LOOKED_AT))
    jobs = [view.to_json() for view in newest if fleet is None or not view.fleet]
    running = [job for job in jobs if job["state"] == "running"]
    recent = [job for job in jobs if job["state"] != "running"][:_LISTED]
    for job in running:
        nodes = list(job_story(JobFolder(os.path.join(parts.settings.runs, job["attempt"]))).nodes.values())
        at_work = [
            node
            for node in nodes
            if (node.ending == "running" and node.instances is None) or (node.ending == "waiting" and node.waits_for)
        ]
        job["stages"] = [node.to_json() for node in at_work]
        _show_running(call, job, nodes, at_work, now_s)
    size_bytes, is_all = _kept_bytes(call)
    pause = read_pause(parts.settings.state, now_s=now_s)
    shown = {"running": running, "recent": recent, "store_bytes": size_bytes, "store_bytes_complete": is_all}
    shown |= {"paused": None if pause is None else pause.why()}
    shown |= {"joined": None if worker is None else {"url": worker.url, "name": worker.name}}
    out.object({**shown, "fleet": fleet.to_dict() if fleet is not None else None})
    if fleet is not None:
        out.lines(fleet.lines(now_s, columns=out.columns))
    if not running and fleet is None:
        out.line("no running jobs")
    if worker is not None:
        out.line(_joined_text(worker))
    if pause is not None:
        line = f"this machine takes no fleet jobs: {pause.why()}; resume: stoker pause --off"
        out.line(line if fleet is None else f"\n{line}")
    if recent:
        out.line()
        out.table([local_job_row(job, now_s) for job in recent], header=LOCAL_JOB_HEADER)
    out.line(f"\nstore: {'' if is_all else 'more than '}{format_size(size_bytes)} in {parts.settings.store}")
    if not jobs and fleet is None:
        out.line("no jobs on this machine; list recipes: stoker recipes")
    if out.can_ask and not has_cockpit():
        _name_cockpit(call)
    return 0


def _name_cockpit(call: CommandContext) -> None:
    """Print how to install the cockpit, once in each home."""
    mark = os.path.join(call.parts.settings.state, "cockpit-named")
    try:
        make_state(call.parts.settings.state)
        with open(mark, "x", encoding="ascii"):
            call.out.note(f"note: a live screen: {pip_install('stoker[tui]')}, then: stoker top")
    except OSError:
        # It was printed before, or can't be remembered.
        return


def _worker_alone(call: CommandContext, at: str | None) -> Membership | None:
    """Return the fleet of this machine's worker, if this home has no operator's token for it."""
    state = call.parts.settings.state
    if call.lookup.coordinator(at) is not None or coordinator_gone(state) is not None:
        return None
    return machine_here(state)


def _joined_text(worker: Membership) -> str:
    return (
        f"joined {worker.url} as {worker.name}; the status of the fleet needs an operator's token: "
        "run `stoker machines invite --operator` there, then here: stoker join --operator CODE@HOST"
    )


def _show_running(
    call: CommandContext, job: dict[str, Any], nodes: list[NodeHistory], at_work: list[NodeHistory], now_s: float
) -> None:
    done = sum(1 for node in nodes if node.ending in ("hit", "ran"))
    does = "waiting" if at_work and all(node.waits_for for node in at_work) else "running"
    name, started = call.out.paint(job["name"], "bold"), ago(job["started_s"], now_s)
    call.out.line(f"{name} {does}, started {started}, {counted(done, 'stage')} done")
    width = max((text_width(node.node) for node in at_work), default=0)
    for node in at_work:
        text = waiting_text if node.waits_for else running_text
        call.out.line(f"  {text(node, width, now_s)}")


def _kept_bytes(call: CommandContext) -> tuple[int, bool]:
    """Return the size of blobs and records, and whether all were counted within 0.1 s."""
    clock = call.parts.clock
    until_s = clock.monotonic_s() + _LONGEST_LOOK_S
    total = 0
    for place in ("blobs", "records"):
        try:
            for shard in os.scandir(os.path.join(call.parts.settings.store, place)):
                for file in os.scandir(shard.path):
                    total += file.stat(follow_symlinks=False).st_size
                if clock.monotonic_s() > until_s:
                    return total, False
        except FileNotFoundError:
            continue
    return total, True
