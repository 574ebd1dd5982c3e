"""Notifications on the desktop of this machine, by the programs that systems bring: notify-send or osascript."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from stoker.core.errors import StokerError
from stoker.core.text import one_line
from stoker.host.box_entry import find_program
from stoker.host.command_runner import CommandRunner, ProbeFailure, SubprocessRunner

_LIMIT_S = 5.0
_LONGEST_TITLE = 120
_LONGEST_TEXT = 400
_APP = "Stoker"
# The texts are arguments of the script, never part of it.
_SCRIPT = "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"


class Desktop:
    """Shows notifications to the user of this machine; does nothing where there is no desktop."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        runner: CommandRunner | None = None,
        system: str = sys.platform,
    ) -> None:
        self._environment = environment
        self._runner = runner or SubprocessRunner(environment, language=None)
        self._system = system
        self._program = self._find()

    @property
    def is_present(self) -> bool:
        """True if notifications can be shown."""
        return bool(self._program)

    def notify(self, title: str, text: str, *, is_urgent: bool = False) -> str:
        """Show a notification; return why it can't be shown, or an empty text. Never raises."""
        if not self._program:
            return "no desktop notifications here: install notify-send (libnotify), or use a desktop session"
        reply = self._runner.ask(self._command(title, text, is_urgent=is_urgent), limit_s=_LIMIT_S)
        if isinstance(reply, ProbeFailure):
            return reply.why
        return one_line(reply.err, 200) or f"exit code {reply.exit_code}" if reply.exit_code else ""

    def _command(self, title: str, text: str, *, is_urgent: bool) -> Sequence[str]:
        heading, body = one_line(title, _LONGEST_TITLE), one_line(text, _LONGEST_TEXT)
        if self._system == "darwin":
            return [self._program, "-e", _SCRIPT, "--", heading, body]
        # Bodies are markup for most servers.
        plain = body.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        urgency = "critical" if is_urgent else "normal"
        return [self._program, f"--app-name={_APP}", f"--urgency={urgency}", "--", heading, plain]

    def _find(self) -> str:
        if self._system == "darwin":
            name = "osascript"
        elif self._system == "linux" and any(
            self._environment.get(one) for one in ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY")
        ):
            name = "notify-send"
        else:
            return ""
        try:
            return find_program(name, cwd="/", env=self._environment)
        except StokerError:
            return ""
