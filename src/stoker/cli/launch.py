"""`stoker launch`: start workers of pools now; `stoker launch watch`: whenever jobs wait."""

from __future__ import annotations

import os
import secrets
import signal
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional, whole
from stoker.cli.pools import pools_named
from stoker.core.errors import BadInput, Conflict, LaunchDoubtful, LaunchRefused, NoBackend, NotFound
from stoker.core.events import Event, event_line
from stoker.core.pool import Allocation, AllocationState
from stoker.core.text import counted
from stoker.host.network import reachable
from stoker.views.pool_lines import allocation_json, decision_lines, launch_event_line

if TYPE_CHECKING:
    from stoker.launch.launchers import Rendered
    from stoker.launch.watcher import Watcher
    from stoker.protocol.client import FleetClient
    from stoker.protocol.launch_messages import LaunchView

NAMES = Positional("NAME", help="pools, from `stoker pools`", is_many=True)

LAUNCH_GRAMMAR = Grammar(
    "launch",
    about=(
        "Start workers of pools now: as many as waiting jobs need, or --count of them. --dry-run prints what would be "
        "submitted and submits nothing. To start workers whenever jobs wait, run `stoker launch watch`."
    ),
    positionals=(NAMES,),
    options=(
        Option("--count", value="N", read=whole(1), help="allocations to request, whatever waits"),
        Option("--dry-run", help="print the request, and submit nothing"),
        AT,
    ),
    examples=("stoker launch a100 --dry-run", "stoker launch a100", "stoker launch a100 --count 4"),
    errors=(LaunchRefused, LaunchDoubtful, NoBackend, NotFound, Conflict),
)


def perform_launch(call: CommandContext, given: dict[str, Any]) -> int:
    """Start workers of pools."""
    from stoker.core.frozen import changed
    from stoker.launch.launchers import MOST_TOGETHER
    from stoker.scheduler.launching import decide

    client = call.lookup.client(given["at"])
    view = client.launch_view()
    states = pools_named(view, given["name"])
    names = [state.pool.name for state in states]
    # Somebody asked: jobs have waited long enough, and it is by hand.
    eager = [changed(state, pool=changed(state.pool, patience_s=0.0, is_automatic=True)) for state in states]
    decision = decide(eager, view.demand, view.allocations, now_s=view.now_s, machines=view.machines)
    counts = {start.pool: start.count for start in decision.starts}
    wanted = {start.pool: start.wanted for start in decision.starts}
    why = {start.pool: start.why for start in decision.starts}
    if given["count"] is not None:
        counts = dict.fromkeys(names, given["count"])
        wanted, why = {}, dict.fromkeys(names, "requested by hand")
    else:
        call.out.lines(decision_lines(decision, names, is_dry=given["dry_run"]))
    watcher = None if given["dry_run"] else _watcher(call, client, view, names)
    for state in states:
        count = counts.get(state.pool.name, 0)
        if not count:
            call.out.object({"pool": state.pool.name, "allocations": []})
        elif watcher is None:
            ids = [f"{number:06x}" for number in range(min(count, MOST_TOGETHER))]
            planned = [Allocation(id=one, pool=state.pool.name) for one in ids]
            rendered = call.parts.launcher(state.pool.backend).render(state.pool, planned, fleet=view.fleet)
            _show(call, state.pool.name, rendered)
            expected = call.parts.launcher(state.pool.backend).forecast(rendered)
            if expected:
                call.out.line(f"--- {state.pool.backend} says: {expected}")
        else:
            with watcher.holding(state.pool.name) as epoch:
                # What ended since somebody looked no longer counts.
                watcher.refresh(state.pool, epoch, view)
                started = watcher.start(
                    state.pool,
                    epoch,
                    count,
                    wanted.get(state.pool.name, ()),
                    fleet=view.fleet,
                    why=why[state.pool.name],
                )
            call.out.object({"pool": state.pool.name, "allocations": [allocation_json(one) for one in started]})
            if any(one.state is AllocationState.REFUSED for one in started):
                raise LaunchRefused(f"{state.pool.name}: {started[0].message}", hint="see `stoker pools check`")
            if any(one.state is AllocationState.DOUBTFUL for one in started):
                hint = "`stoker launch watch` finds out whether it was submitted"
                raise LaunchDoubtful(f"{state.pool.name}: {started[0].message}", hint=hint)
    return 0


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
    client = call.lookup.client_of(call.lookup.wait_for_coordinator(given["at"]))
    view = client.launch_view()
    pools_named(view, given["name"])
    call.out.goes_on_unread = call.out.is_watched = True
    watcher = _watcher(call, client, view, given["name"], url=given["url"] or "")

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


def _watcher(call: CommandContext, client: FleetClient, view: LaunchView, names: list[str], url: str = "") -> Watcher:
    from stoker.launch.watcher import Watcher, WatchSettings

    url = url or reachable(view.urls)
    if not url.startswith("https://"):
        raise BadInput(
            f"the coordinator at {client.url} serves only its own machine",
            hint="serve other machines with TLS: stoker serve --listen 0.0.0.0",
        )
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

    settings = WatchSettings(
        watcher=f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(4)}", url=url, local_url=client.url
    )
    return Watcher(client, call.parts.launcher, settings, clock=call.parts.clock, log=log, pools=names)
