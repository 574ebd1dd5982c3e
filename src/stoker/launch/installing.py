"""Services installed, looked at and removed: what was rendered and shown is written, and its supervisor told.

Twice is once: a file that says the same stays, a service that runs stays running. A file that somebody else wrote is
never touched. Raises `Unavailable` with what the supervisor said.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from stoker.hardware.probes.asking import Asker, Said, Silent
from stoker.host.durable import read_regular, sync_dir, translated, write_file
from stoker.launch.services import Service
from stoker.launch.supervisors import Command, Rendered, Seen, Supervisor
from stoker.model.clock import Clock
from stoker.model.errors import Unavailable
from stoker.model.fleet_errors import Conflict
from stoker.model.frozen import frozen
from stoker.model.printable import one_line

# A coordinator that migrates a large database takes its time before it says that it is ready.
_COMMAND_S = 120.0
_STEADY_S = 0.5
_RUNS_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.1
_LARGEST_BYTES = 1 << 20


@frozen
class Installed:
    """A service that runs."""

    label: str
    path: str
    was_there: bool
    """Its file said the same before."""
    seen: Seen


class Installer:
    """Installs services with one supervisor."""

    def __init__(self, supervisor: Supervisor, ask: Asker, clock: Clock) -> None:
        self._supervisor = supervisor
        self._ask = ask
        self._clock = clock

    def check(self, service: Service) -> Rendered:
        """Give what would be written; refuses what could not be done, before anything is."""
        rendered = self._supervisor.render(service)
        before = self._text_at(rendered.path)
        if before is not None and not self._supervisor.is_ours(before):
            raise Conflict(
                f"{rendered.path} is there and not of our making",
                hint="move it away if it is not needed, then say it again",
            )
        self._require()
        return rendered

    def install(self, service: Service) -> Installed:
        """Write it, have it started now and at every boot, and see that it runs."""
        supervisor = self._supervisor
        rendered = self.check(service)
        before = self._text_at(rendered.path)
        is_same = before == rendered.text
        if not is_same:
            for folder in (service.folder, os.path.dirname(rendered.path)):
                with translated(folder):
                    os.makedirs(folder, exist_ok=True)
            write_file(rendered.path, rendered.text.encode(supervisor.encoding))
        runs = self.look(service.label).is_running
        commands = (supervisor.keeping if is_same else supervisor.starting_again) if runs else supervisor.starting
        self._run(commands(service.label), service.label)
        return Installed(
            label=service.label, path=rendered.path, was_there=is_same, seen=self._see_running(service.label)
        )

    def uninstall(self, label: str) -> bool:
        """Stop it, and remove what was written. False if there was nothing."""
        supervisor = self._supervisor
        path = supervisor.path_of(label)
        before = self._text_at(path)
        if before is None:
            return False
        if not supervisor.is_ours(before):
            raise Conflict(f"{path} is not of our making", hint="remove it yourself if it is not needed")
        self._require()
        for command in supervisor.stopping(label):
            self._ask.ask(command, limit_s=_COMMAND_S)
        seen = self.look(label)
        if seen.is_running:
            raise Unavailable(f"the service {label} does not stop: {seen.says}", hint=f"{path} is still there")
        with translated(path):
            os.unlink(path)
        sync_dir(os.path.dirname(path))
        for command in supervisor.forgetting(label):
            self._ask.ask(command, limit_s=_COMMAND_S)
        return True

    def stands(self, label: str) -> bool:
        """Say whether a service of ours lies there."""
        return self._supervisor.is_ours(self.text_of(label))

    def text_of(self, label: str) -> str:
        """Give what lies there for a service; empty where nothing does."""
        return self._text_at(self._supervisor.path_of(label)) or ""

    def words_of(self, label: str) -> tuple[str, ...]:
        """Give the words with which a service of ours stands there; nothing where none does."""
        text = self.text_of(label)
        return self._supervisor.words_in(text) if self._supervisor.is_ours(text) else ()

    def look(self, label: str) -> Seen:
        """Ask the supervisor how a service stands."""
        reply = self._ask.ask(self._supervisor.looking(label))
        if isinstance(reply, Silent):
            return Seen(is_running=False, is_failed=True, says=reply.why)
        return self._supervisor.read_look(reply.out, reply.exit_code)

    def _require(self) -> None:
        """See that the supervisor is there and answers at all."""
        reply = self._ask.ask(self._supervisor.looking("stoker-nothing"))
        supervisor = self._supervisor
        if isinstance(reply, Silent):
            raise Unavailable(
                f"{supervisor.name} does not answer here: {reply.why}",
                hint="without it nothing starts by itself; leave --install out and keep the command running",
            )
        if "bus" in reply.err.lower():
            raise Unavailable(
                f"{supervisor.name} has no session for this user: {one_line(reply.err)}",
                hint="log in as this user (not by su or sudo), or loginctl enable-linger and set XDG_RUNTIME_DIR",
            )

    def _run(self, commands: Iterable[Command], label: str) -> None:
        for command in commands:
            reply = self._ask.ask(command, limit_s=_COMMAND_S)
            if isinstance(reply, Said) and (not reply.exit_code or "reset-failed" in command):
                continue
            why = reply.why if isinstance(reply, Silent) else one_line(reply.err or reply.out)
            raise self._trouble(label, why or self.look(label).says)

    def _see_running(self, label: str) -> Seen:
        """See that it runs, and that it does so a moment later."""
        until_s = self._clock.monotonic_s() + _RUNS_WITHIN_S
        since_s: float | None = None
        while True:
            seen = self.look(label)
            now_s = self._clock.monotonic_s()
            if seen.is_running:
                since_s = now_s if since_s is None else since_s
                if now_s - since_s >= _STEADY_S:
                    return seen
            elif seen.is_failed or now_s >= until_s:
                raise self._trouble(label, seen.says)
            else:
                since_s = None
            self._clock.sleep(_LOOK_EVERY_S)

    def _trouble(self, label: str, why: str) -> Unavailable:
        return Unavailable(
            f"the service {label} does not run: {why}",
            hint=f"{self._supervisor.log_hint} {label} says why; --uninstall removes it",
            label=label,
        )

    def _text_at(self, path: str) -> str | None:
        try:
            return read_regular(path, _LARGEST_BYTES).decode(self._supervisor.encoding, errors="replace")
        except FileNotFoundError:
            return None
        except OSError:
            # A link, a pipe, something that we may not read: it is somebody's, and not ours.
            return ""
