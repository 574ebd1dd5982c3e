"""`stoker top`: the cockpit on a terminal, or one picture of it as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option
from stoker.core.errors import Usage

if TYPE_CHECKING:
    from stoker.api.monitor import Monitor
    from stoker.tui.controls import CockpitControls

_COLUMNS, _ROWS = 80, 24

GRAMMAR = Grammar(
    "top",
    about=(
        "Show jobs, machines and one job with its curves, logs, stages and reasons, live. With a coordinator those of "
        "its fleet, else those of this machine. Keys are shown at the bottom, `?` lists all of them. Nothing is "
        "changed without a question. `stoker` without arguments does the same on a terminal."
    ),
    options=(
        Option("--filter", value="TEXT", help="show matching jobs: state:failed user:anna machine:desk, or a name"),
        Option("--once", help="print one picture as text; the default in a pipe"),
        Option("--read-only", help="change nothing: no cancel, requeue, priority, drain, cordon, pause, open"),
        Option("--mouse", help="select rows by the mouse; selecting text then needs Shift"),
        Option("--ascii", help="draw with ASCII only; the default if the terminal's encoding is not UTF-8"),
        AT,
    ),
    examples=(
        "stoker top",
        "stoker top --filter state:running,pending",
        "stoker top --at desk --read-only",
        "stoker top --once",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Open the cockpit, or print one picture of it."""
    out = call.out
    is_ascii = given["ascii"] or not out.is_unicode
    controls = _controls(call, given)
    if out.is_json:
        out.object(controls.monitor.overview().model_dump(mode="json"))
        return 0
    # Textual writes to standard error.
    if given["once"] or not (out.can_ask and sys.stderr is not None and sys.stderr.isatty()):
        from stoker.tui.frame import one_frame
        from stoker.tui.styled_text import ScreenLook

        look = ScreenLook(
            columns=out.columns or _COLUMNS,
            rows=out.rows or _ROWS,
            now_s=call.parts.clock.wall_s(),
            is_ascii=is_ascii,
        )
        out.lines(one_frame(controls, look))
        return 0
    from stoker.tui.cockpit import run_cockpit

    with notified(call, controls.monitor):
        return run_cockpit(controls, has_colour=out.has_colour, is_ascii=is_ascii, has_mouse=given["mouse"])


@contextmanager
def notified(call: CommandContext, monitor: Monitor) -> Iterator[None]:
    """Show desktop notifications during the block, if this user wants them and this machine can show them."""
    from stoker.api.desktop_notices import DesktopNotifier, read_choice
    from stoker.host.desktop import Desktop

    settings = call.parts.settings
    choice = read_choice(settings.state)
    desktop = Desktop(settings.environment)
    if choice is None or not desktop.is_present:
        yield
        return
    notifier = DesktopNotifier(monitor, desktop, choice, call.parts.clock)
    notifier.start()
    try:
        yield
    finally:
        notifier.close()


def _controls(call: CommandContext, given: dict[str, Any]) -> CockpitControls:
    from stoker.tui.cockpit_state import CockpitState
    from stoker.tui.controls import CockpitControls
    from stoker.tui.job_filter import filter_text, parse_filter
    from stoker.tui.requests import RequestThreads

    query = parse_filter(given["filter"] or "")
    monitor = _monitor(call, given["at"])
    state = CockpitState(is_read_only=given["read_only"])
    state.filter = filter_text(query)
    return CockpitControls(monitor, call.parts.clock, state, RequestThreads(), query)


def _monitor(call: CommandContext, at: str | None) -> Monitor:
    """Return the fleet's jobs if a coordinator answers, else this machine's."""
    client = call.client_if_any(at)
    if client is not None:
        from stoker.api.fleet_monitor import FleetMonitor

        return FleetMonitor(client)
    if at:
        raise Usage(f"no coordinator {at!r}")
    from stoker.api.local_monitor import LocalMonitor

    return LocalMonitor(call.parts)
