"""`stoker launch`: start workers of pools now; `stoker launch watch`: whenever jobs wait."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional, whole
from stoker.cli.pools import pools_of
from stoker.cli.services import INSTALL, UNINSTALL, YES, install_watch, refuse_both, uninstall_watch
from stoker.core.errors import BadInput, LaunchDoubtful, LaunchRefused, NoBackend, NotFound, Usage
from stoker.core.events import Event, event_line
from stoker.core.frozen import changed
from stoker.core.text import counted
from stoker.host.network import allow_many_files, read_listen
from stoker.host.sockets import NotifySocket
from stoker.scheduler.launching import CUT_OFF
from stoker.views.pool_lines import (
    allocation_json,
    dry_run_lines,
    is_cut_off,
    launch_event_line,
    request_lines,
)

if TYPE_CHECKING:
    from stoker.api.pools import LaunchLog
    from stoker.launch.launchers import Rendered
    from stoker.launch.relay import Relay
    from stoker.launch.watcher import Watcher

_END_S = 1.5
_LONGEST_TOKEN = 4096
NAMES = Positional("NAME", help="pools, from `stoker pools`", is_many=True)

LAUNCH_GRAMMAR = Grammar(
    "launch",
    about=(
        "Start workers of pools now: as many as waiting jobs need, or --count of them. The request is stored at the "
        "coordinator, and the pool's watcher carries it out; if no process watches the pool, this command does. It "
        "waits until the backend has answered; Ctrl-C before that withdraws the request. Machines without Stoker get "
        "it from here first. Exit code 60 if jobs wait and the pool can help none of them. --dry-run prints what would "
        "be submitted, or why nothing would be, submits nothing, and exits with 0 in both cases. To start workers "
        "whenever jobs wait, run `stoker launch watch`."
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
    if not given["name"] and not given["dry_run"]:
        raise Usage(
            "NAME is missing", hint="stoker pools lists pools; stoker launch watch starts workers of all of them"
        )
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
        for state in plan.states:
            if is_cut_off(state, plan.view):
                call.out.note(f"{state.pool.name}: without --dry-run this is refused: {CUT_OFF}")
        return 0
    for name in given["name"]:
        made = pools.launch(name, given["count"], on_wait=partial(_show_wait, call, name), log=partial(_show_kit, call))
        listed = [allocation_json(one) for one in made.allocations]
        message = made.request.message
        call.out.object({"pool": name, "request": made.request.id, "message": message, "allocations": listed})
        if not made.is_refused:
            call.out.lines(request_lines(made.request, made.allocations))
        made.require_submitted()
    return 0


def _show_wait(call: CommandContext, pool: str, watcher: str) -> None:
    call.out.note(f"{pool}: requested of its watcher, {watcher}; Ctrl-C withdraws the request")


def _show_kit(call: CommandContext, kind: str, fields: dict[str, Any]) -> None:
    """Print that Stoker is sent somewhere, which may take minutes."""
    if kind.startswith("kit_"):
        call.out.note(launch_event_line(kind, fields))


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
        Option(
            "--relay",
            value="HOST[:PORT]",
            help="for machines that can't reach the coordinator: they connect to this host, by this name, and it "
            "passes the TLS bytes on (default port: 7718)",
        ),
        INSTALL,
        UNINSTALL,
        YES,
        Option(
            "--token-stdin",
            help="read the token from the first line of standard input, and end when standard input closes",
        ),
        AT,
    ),
    examples=(
        "stoker launch watch",
        "stoker launch watch a100",
        "stoker launch watch --url https://10.0.0.5:7717",
        "stoker launch watch --relay login1.cluster",
        "stoker launch watch --install",
    ),
)


def perform_watch(call: CommandContext, given: dict[str, Any]) -> int:
    """Watch pools until stopped."""
    from stoker.api.pools import FleetPools, pools_named

    refuse_both(given)
    if given["install"] or given["uninstall"]:
        return install_watch(call, given) if given["install"] else uninstall_watch(call)
    ended = threading.Event()
    token = _token_of_parent(ended) if given["token_stdin"] else ""
    found = call.lookup.wait_for_coordinator(given["at"])
    if given["token_stdin"]:
        found = changed(found, token=token)
    client = call.lookup.client_of(found)
    view = client.launch_view()
    pools_named(view, given["name"])
    call.out.goes_on_unread = call.out.is_watched = True
    with ExitStack() as held:
        url, server_name = given["url"] or "", ""
        if given["relay"]:
            relay, url = _open_relay(given["relay"], client.url)
            held.callback(relay.close)
            server_name = urlsplit(client.url).hostname or ""
            call.out.note(f"relay at {url}, to {client.url}")
        pools = FleetPools(client, call.parts)
        watcher = pools.watcher(view, given["name"], _log(call), url=url, server_name=server_name)

        def close(number: int, _frame: object) -> None:
            ended.set()
            # The second signal ends it at once.
            signal.signal(number, signal.SIG_DFL)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, close)
        count = len(given["name"] or view.pools)
        call.out.note(f"watching {counted(count, 'pool')} of {client.url}; Ctrl-C ends the watch")
        supervisor = NotifySocket(call.parts.settings.environment, call.parts.clock)
        supervisor.ready()
        held.callback(supervisor.ending)
        _watch_until(call, watcher, ended, supervisor)
        call.out.note("watch ended; workers that run stay until they are idle")
        return 0


def _open_relay(text: str, coordinator: str) -> tuple[Relay, str]:
    """Open a relay to a coordinator; return it, and the URL that workers use."""
    from stoker.launch.relay import PORT, Relay

    target = urlsplit(coordinator)
    if target.scheme != "https" or not target.hostname or not target.port:
        raise BadInput(
            f"the coordinator at {coordinator} serves only its own machine",
            hint="serve other machines with TLS: stoker serve --listen 0.0.0.0",
        )
    host, port = read_listen(text)
    if not host:
        raise Usage(f"--relay {text}: no host name", hint="the name by which the machines reach this host: HOST[:PORT]")
    allow_many_files()
    relay = Relay(host, PORT if port < 0 else port, to=(target.hostname, target.port))
    return relay, f"https://{f'[{host}]' if ':' in host else host}:{relay.port}"


def _token_of_parent(ended: threading.Event) -> str:
    """Return the token from the first line of standard input. The end of input acts like SIGTERM, from now on.

    Unbuffered: Python aborts if it ends while a thread holds the lock of a buffer.
    """
    line = b""
    while b"\n" not in line and len(line) < _LONGEST_TOKEN and (piece := os.read(0, _LONGEST_TOKEN)):
        line += piece

    def wait_for_end() -> None:
        while os.read(0, _LONGEST_TOKEN):
            pass
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_for_end, name="stoker-life-line", daemon=True).start()
    return line.partition(b"\n")[0].decode(errors="replace").strip()


def _watch_until(call: CommandContext, watcher: Watcher, ended: threading.Event, supervisor: NotifySocket) -> None:
    """Watch until an event, and end within `_END_S` after it: a coordinator or a backend that hangs delays nothing."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            watcher.run()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=run, name="stoker-watch", daemon=True)
    thread.start()
    turns = 0
    # With a limit: without one no signal handler would run.
    while not ended.wait(1.0):
        if watcher.turns > turns:
            turns = watcher.turns
            supervisor.alive()
    watcher.close()
    thread.join(_END_S)
    if errors:
        raise errors[0]
    if thread.is_alive():
        call.out.note("ended without an answer; another launcher may watch the pools in 1 min")
        sys.stdout.flush()
        sys.stderr.flush()
        # Threads that wait for an answer would delay the end. Rows show what they were about to do.
        os._exit(0)


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
