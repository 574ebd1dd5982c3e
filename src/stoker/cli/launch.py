"""`stoker launch`: start workers of pools now; `stoker launch watch`: whenever jobs wait."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional, whole
from stoker.cli.pools import pools_of
from stoker.core.errors import LaunchDoubtful, LaunchRefused, NoBackend, NotFound
from stoker.core.events import Event, event_line
from stoker.core.text import counted
from stoker.views.pool_lines import allocation_json, dry_run_lines, launch_event_line, request_lines

if TYPE_CHECKING:
    from stoker.api.pools import LaunchLog
    from stoker.launch.launchers import Rendered

NAMES = Positional("NAME", help="pools, from `stoker pools`", is_many=True)

LAUNCH_GRAMMAR = Grammar(
    "launch",
    about=(
        "Start workers of pools now: as many as waiting jobs need, or --count of them. The request is stored at the "
        "coordinator, and the pool's watcher carries it out; if no process watches the pool, this command does. It "
        "waits until the backend has answered; Ctrl-C before that withdraws the request. --dry-run prints what would "
        "be submitted and submits nothing. To start workers whenever jobs wait, run `stoker launch watch`."
    ),
    positionals=(NAMES,),
    options=(
        Option("--count", value="N", read=whole(1), help="allocations to request, whatever waits"),
        Option("--dry-run", help="print the request, and submit nothing"),
        AT,
    ),
    examples=("stoker launch a100 --dry-run", "stoker launch a100", "stoker launch a100 --count 4 --json"),
    errors=(LaunchRefused, LaunchDoubtful, NoBackend, NotFound),
)


def perform_launch(call: CommandContext, given: dict[str, Any]) -> int:
    """Start workers of pools."""
    pools = pools_of(call, given)
    if given["dry_run"]:
        plan = pools.plan(given["name"], given["count"])
        for request, pool, rendered, expected in pools.render(plan):
            call.out.lines(dry_run_lines(plan.decision, request))
            if rendered is None:
                call.out.object({"pool": pool.name, "allocations": []})
                continue
            _show(call, pool.name, rendered)
            if expected:
                call.out.line(f"--- {pool.backend} says: {expected}")
        return 0
    for name in given["name"]:
        made = pools.launch(name, given["count"], on_wait=partial(_show_wait, call, name))
        listed = [allocation_json(one) for one in made.allocations]
        message = made.request.message
        call.out.object({"pool": name, "request": made.request.id, "message": message, "allocations": listed})
        if made.allocations or not made.request.count:
            call.out.lines(request_lines(made.request, made.allocations))
        made.require_submitted()
    return 0


def _show_wait(call: CommandContext, pool: str, watcher: str) -> None:
    call.out.note(f"{pool}: requested of its watcher, {watcher}; Ctrl-C withdraws the request")


def _show(call: CommandContext, pool: str, rendered: Rendered) -> None:
    """Print a request as it would be submitted."""
    call.out.object(
        {
            "pool": pool,
            "where": rendered.where,
            "argv": list(rendered.argv),
            "stdin": rendered.stdin,
            "files": dict(rendered.files),
        }
    )
    for path in rendered.files:
        call.out.line(f"--- file {path} (0600): a ticket")
    there = f" on {rendered.where}" if rendered.where else ""
    stdin = ", this on standard input" if rendered.stdin else ""
    call.out.line(f"--- {' '.join(rendered.argv)}{there}{stdin}")
    call.out.lines(rendered.stdin.splitlines())


WATCH_GRAMMAR = Grammar(
    "launch watch",
    about=(
        "Start workers of pools when jobs wait that would fit, and cancel requests that no job needs any more. It "
        "needs the backends' commands and keys; the coordinator needs none of them. One process watches a pool at a "
        "time. Ctrl-C ends the watch; workers that run stay, and leave when they are idle."
    ),
    positionals=(Positional("NAME", help="pools to watch (default: all)", is_required=False, is_many=True),),
    options=(
        Option("--url", value="URL", help="where workers reach the coordinator (default: its first advertised name)"),
        AT,
    ),
    examples=("stoker launch watch", "stoker launch watch a100", "stoker launch watch --url https://10.0.0.5:7717"),
)


def perform_watch(call: CommandContext, given: dict[str, Any]) -> int:
    """Watch pools until stopped."""
    from stoker.api.pools import FleetPools, pools_named

    client = call.lookup.client_of(call.lookup.wait_for_coordinator(given["at"]))
    view = client.launch_view()
    pools_named(view, given["name"])
    call.out.goes_on_unread = call.out.is_watched = True
    watcher = FleetPools(client, call.parts).watcher(view, given["name"], _log(call), url=given["url"] or "")

    def close(number: int, _frame: object) -> None:
        watcher.close()
        # A coordinator or a backend that hangs may hold it up: the second signal ends it at once.
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, close)
    count = len(given["name"] or view.pools)
    call.out.note(f"watching {counted(count, 'pool')} of {client.url}; Ctrl-C ends the watch")
    watcher.run()
    return 0


def _log(call: CommandContext) -> LaunchLog:
    """Return what prints the events of a watcher."""
    seq = 0

    def log(kind: str, fields: dict[str, Any]) -> None:
        nonlocal seq
        seq += 1
        if call.out.is_json:
            event = Event(kind, fields)
            call.out.json_line(event_line(event, ts=call.parts.clock.wall_s(), seq=seq, source="launch"))
        else:
            now = call.parts.clock.now().astimezone()
            call.out.line(f"{now:%H:%M:%S} {launch_event_line(kind, fields)}")

    return log
