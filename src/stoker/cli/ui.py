"""`stoker ui`: serve the web pages on this machine, for its own jobs or for a fleet, and open the browser."""

from __future__ import annotations

import getpass
import sys
import threading
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, whole
from stoker.cli.top import notified
from stoker.core.errors import Forbidden, NoCoordinator, Unavailable, Usage
from stoker.protocol.discovery import no_coordinator_known

if TYPE_CHECKING:
    from stoker.api.monitor import Monitor
    from stoker.web.assets import Pages
    from stoker.web.backend import UiBackend

_MOST_PORT = 65535

GRAMMAR = Grammar(
    "ui",
    about=(
        "Serve the web pages at a port of this machine and open the browser, logged in by a one-time link. With a "
        "coordinator (--at, or the one that other commands use) they show its fleet: requests are forwarded with your "
        "token over verified TLS, so the browser needs neither token nor CA. Without one they show the jobs of this "
        "machine. Press Enter for another link, Ctrl-C to end."
    ),
    options=(
        Option("--port", value="N", read=whole(0), help="port on loopback (default: any free one)"),
        Option("--no-browser", help="print the link, and open nothing"),
        Option(
            "--link", help="print a one-time link to the coordinator's own pages, valid for 60 s, and serve nothing"
        ),
        Option("--local", help="show the jobs of this machine, though there is a coordinator"),
        AT,
    ),
    examples=("stoker ui", "stoker ui --no-browser --port 8080", "stoker ui --link", "stoker ui --at desk"),
    errors=(Usage, NoCoordinator, Forbidden, Unavailable),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Serve the pages until Ctrl-C, or print a link."""
    from stoker.web.assets import Pages
    from stoker.web.ui_server import UiServer

    if (given["port"] or 0) > _MOST_PORT:
        raise Usage(f"--port {given['port']} is no port", hint="0 to 65535")
    if given["link"]:
        return _print_link(call, given["at"])
    pages = Pages()
    backend, monitor, what = _backend(call, pages, given)
    server = UiServer(backend, pages=pages, clock=call.parts.clock, port=given["port"] or 0, user=_user())
    out = call.out
    out.goes_on_unread = out.is_watched = True
    link = server.link()
    out.object({"url": server.url, "link": link, "shows": what})
    out.line(f"serving {server.url}: {what}")
    out.line(f"open {link}")
    out.note("the link works once, for 60 s; Enter makes another, Ctrl-C ends")
    server.start()
    try:
        if not given["no_browser"]:
            _open_browser(call, link)
        with notified(call, monitor):
            _wait(call, server.link)
    finally:
        server.stop()
        out.note("stopped")
    return 0


def _backend(call: CommandContext, pages: Pages, given: dict[str, Any]) -> tuple[UiBackend, Monitor, str]:
    found = None if given["local"] else call.lookup.coordinator(given["at"])
    if found is not None:
        from stoker.api.fleet_monitor import FleetMonitor
        from stoker.web.backend import ForwardingBackend

        client = call.lookup.client_of(found)
        # Ends here with the reason, if the coordinator refuses us.
        client.jobs(limit=1)
        return ForwardingBackend(client.transport), FleetMonitor(client), f"the fleet of {client.url}"
    from stoker.api.local_monitor import LocalMonitor
    from stoker.web.local_routes import LocalBackend

    monitor = LocalMonitor(call.parts)
    backend = LocalBackend(monitor, clock=call.parts.clock, user=_user(), build=pages.build)
    return backend, monitor, f"the jobs of {monitor.name}"


def _print_link(call: CommandContext, at: str | None) -> int:
    """Print a one-time link to the pages of a coordinator."""
    found = call.lookup.coordinator(at)
    if found is None:
        raise no_coordinator_known(call.parts.settings.state)
    client = call.lookup.client_of(found)
    made = client.make_login_code()
    link = f"{made.url or f'{client.url}/'}login#code={made.code}"
    call.out.object({"link": link, "life_s": made.life_s, "role": made.role})
    call.out.line(link)
    call.out.note(f"logs in one browser within {made.life_s:.0f} s, with the role {made.role}")
    return 0


def _open_browser(call: CommandContext, link: str) -> None:
    """Open the browser where there is a screen; a text browser would take over the terminal."""
    environment = call.parts.settings.environment
    has_screen = sys.platform != "linux" or environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")
    if not has_screen:
        return
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(link,), name="browser", daemon=True).start()


def _wait(call: CommandContext, make_link: Any) -> None:
    """Wait for Ctrl-C; print a new link for each Enter."""
    stdin = sys.stdin
    if stdin is not None and stdin.isatty():
        for _ in stdin:
            call.out.line(f"open {make_link()}")
    threading.Event().wait()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
