"""The service managers systemd and launchd: unit files, folders and commands; and the installation of services."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from stoker.core.clock import Clock
from stoker.core.errors import MEANINGS, BadInput, Conflict, Unavailable
from stoker.core.frozen import frozen
from stoker.core.text import one_line
from stoker.host.command_runner import CommandRunner, ProbeFailure, ProbeOutput
from stoker.host.durable import read_regular, sync_dir, translated, write_file
from stoker.launch.service import (
    WRITTEN_BY,
    SupervisedService,
    plist_words,
    render_plist,
    render_unit,
    unit_name,
    unit_words,
)

ShellCommand = tuple[str, ...]


@frozen
class ServiceFile:
    """A service's file before it is written."""

    path: str
    text: str


@frozen
class SupervisedStatus:
    """How a service stands, as its supervisor says."""

    is_running: bool
    is_failed: bool
    says: str
    """A few words for people."""
    pid: int = 0


class Supervisor(Protocol):
    """One sort of service manager."""

    name: str
    log_hint: str
    """What to type, before a service's label, to read what it said."""

    def render(self, service: SupervisedService) -> ServiceFile: ...
    def is_ours(self, text: str) -> bool:
        """Return whether a file that lies there was written by us."""

    def words_in(self, text: str) -> tuple[str, ...]:
        """Return the words after `stoker KIND` of a file that we wrote."""

    def path_of(self, label: str) -> str: ...
    def starting(self, label: str) -> tuple[ShellCommand, ...]:
        """Return the commands that make a written file count, now and after every boot."""

    def starting_again(self, label: str) -> tuple[ShellCommand, ...]:
        """Return the commands for a service that runs and whose file has changed."""

    def keeping(self, label: str) -> tuple[ShellCommand, ...]:
        """Return the commands for a service that runs as it should."""

    def stopping(self, label: str) -> tuple[ShellCommand, ...]:
        """Return the commands before the file is removed."""

    def forgetting(self, label: str) -> tuple[ShellCommand, ...]:
        """Return the commands after the file was removed."""

    def looking(self, label: str) -> ShellCommand: ...
    def read_look(self, out: str, exit_code: int) -> SupervisedStatus: ...


class SystemdSupervisor:
    """systemd, the user's own."""

    name = "systemd"

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.log_hint = "journalctl --user -u"

    def render(self, service: SupervisedService) -> ServiceFile:
        return ServiceFile(path=self.path_of(service.label), text=render_unit(service))

    def is_ours(self, text: str) -> bool:
        return text.startswith(WRITTEN_BY)

    def words_in(self, text: str) -> tuple[str, ...]:
        return unit_words(text)

    def path_of(self, label: str) -> str:
        return os.path.join(self._folder, unit_name(label))

    def starting(self, label: str) -> tuple[ShellCommand, ...]:
        # A service that had given up is taken up again.
        return (
            _systemctl("daemon-reload"),
            _systemctl("reset-failed", "--quiet", unit_name(label)),
            _systemctl("enable", "--quiet", "--now", unit_name(label)),
        )

    def starting_again(self, label: str) -> tuple[ShellCommand, ...]:
        return _systemctl("daemon-reload"), *self.keeping(label), _systemctl("restart", unit_name(label))

    def keeping(self, label: str) -> tuple[ShellCommand, ...]:
        return (_systemctl("enable", "--quiet", unit_name(label)),)

    def stopping(self, label: str) -> tuple[ShellCommand, ...]:
        return (_systemctl("disable", "--quiet", "--now", unit_name(label)),)

    def forgetting(self, label: str) -> tuple[ShellCommand, ...]:
        return _systemctl("daemon-reload"), _systemctl("reset-failed", "--quiet", unit_name(label))

    def looking(self, label: str) -> ShellCommand:
        shown = "ActiveState,SubState,Result,ExecMainStatus,MainPID,NRestarts"
        return _systemctl("show", "--property", shown, unit_name(label))

    def read_look(self, out: str, exit_code: int) -> SupervisedStatus:
        said = dict(line.partition("=")[::2] for line in out.splitlines())
        active, sub = said.get("ActiveState", "unknown"), said.get("SubState", "")
        # Between two tries it is neither.
        is_failed = active == "failed" or sub == "auto-restart" or said.get("Result", "success") != "success"
        code = said.get("ExecMainStatus", "0")
        meaning = MEANINGS.get(int(code), "") if code.isdigit() else ""
        ended = f", ended with {code}{f': {meaning}' if meaning else ''}" if is_failed and code != "0" else ""
        return SupervisedStatus(
            is_running=(active, sub) == ("active", "running"),
            is_failed=is_failed or bool(exit_code),
            says=f"{active} ({sub}{ended})" if sub else active,
            pid=int(said.get("MainPID", "0") or 0),
        )


class Launchd:
    """launchd of macOS. Untested on a Mac."""

    name = "launchd"
    log_hint = "its log lies in STOKER_HOME/state:"

    def __init__(self, folder: str, user: int) -> None:
        self._folder = folder
        self._domain = f"gui/{user}"

    def render(self, service: SupervisedService) -> ServiceFile:
        return ServiceFile(path=self.path_of(service.label), text=render_plist(service))

    def is_ours(self, text: str) -> bool:
        return "<string>stoker</string>" in text

    def words_in(self, text: str) -> tuple[str, ...]:
        return plist_words(text)

    def path_of(self, label: str) -> str:
        return os.path.join(self._folder, f"{label}.plist")

    def starting(self, label: str) -> tuple[ShellCommand, ...]:
        return (("launchctl", "bootstrap", self._domain, self.path_of(label)),)

    def starting_again(self, label: str) -> tuple[ShellCommand, ...]:
        return *self.stopping(label), *self.starting(label)

    def keeping(self, label: str) -> tuple[ShellCommand, ...]:
        return ()

    def stopping(self, label: str) -> tuple[ShellCommand, ...]:
        return (("launchctl", "bootout", f"{self._domain}/{label}"),)

    def forgetting(self, label: str) -> tuple[ShellCommand, ...]:
        return ()

    def looking(self, label: str) -> ShellCommand:
        return "launchctl", "print", f"{self._domain}/{label}"

    def read_look(self, out: str, exit_code: int) -> SupervisedStatus:
        words = dict(line.strip().partition(" = ")[::2] for line in out.splitlines() if " = " in line)
        state = words.get("state", "unknown")
        code = words.get("last exit code", "0")
        is_failed = bool(exit_code) or (state != "running" and code not in ("0", "(never exited)"))
        pid = words.get("pid", "0")
        return SupervisedStatus(
            is_running=state == "running",
            is_failed=is_failed,
            says=state if not is_failed else f"{state}, ended with {code}",
            pid=int(pid) if pid.isdigit() else 0,
        )


def supervisor_of(platform: str, environment: Mapping[str, str], *, user: int) -> Supervisor:
    """Return the service manager of a platform. Raises `BadInput` where none is known."""
    makes = _SUPERVISORS.get(platform)
    if makes is None:
        raise BadInput(f"no service manager is known for {platform}", hint="start it by what this system has")
    return makes(environment, user)


def is_lingering(environment: Mapping[str, str], folder: str = "/var/lib/systemd/linger") -> bool:
    """Return True if the services of this user run without a login session."""
    user = environment.get("USER", "") or environment.get("LOGNAME", "")
    return bool(user) and "/" not in user and os.path.exists(os.path.join(folder, user))


def _systemctl(*words: str) -> ShellCommand:
    return "systemctl", "--user", *words


def _units(environment: Mapping[str, str]) -> str:
    config = environment.get("XDG_CONFIG_HOME", "") or os.path.join(_home(environment), ".config")
    return os.path.join(config, "systemd", "user")


def _home(environment: Mapping[str, str]) -> str:
    return environment.get("HOME", "") or os.path.expanduser("~")


_SUPERVISORS: dict[str, Callable[[Mapping[str, str], int], Supervisor]] = {
    "linux": lambda environment, _user: SystemdSupervisor(_units(environment)),
    "darwin": lambda environment, user: Launchd(os.path.join(_home(environment), "Library", "LaunchAgents"), user),
}


# A coordinator that migrates a large database takes its time before it says that it is ready.
_COMMAND_S = 120.0
_STEADY_S = 0.5
_RUNS_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.1
_LARGEST_BYTES = 1 << 20


@frozen
class InstalledService:
    """A service that runs."""

    label: str
    path: str
    was_there: bool
    """Its file said the same before."""
    seen: SupervisedStatus


class Installer:
    """Installs and removes services with one supervisor, and returns their state.

    Idempotent: an equal file stays, a running service keeps running. Files that Stoker did not write are never changed.
    Raises `Unavailable` with the output of the service manager.
    """

    def __init__(self, supervisor: Supervisor, ask: CommandRunner, clock: Clock) -> None:
        self._supervisor = supervisor
        self._ask = ask
        self._clock = clock

    def check(self, service: SupervisedService) -> ServiceFile:
        """Return what would be written; refuses what could not be done, before anything is."""
        rendered = self._supervisor.render(service)
        before = self._text_at(rendered.path)
        if before is not None and not self._supervisor.is_ours(before):
            raise Conflict(
                f"{rendered.path} exists and was not written by Stoker",
                hint="move it away, then run the command again",
            )
        self._require()
        return rendered

    def install(self, service: SupervisedService) -> InstalledService:
        """Write it, have it started now and at every boot, and see that it runs."""
        supervisor = self._supervisor
        rendered = self.check(service)
        before = self._text_at(rendered.path)
        is_same = before == rendered.text
        if not is_same:
            for folder in (service.folder, os.path.dirname(rendered.path)):
                with translated(folder):
                    os.makedirs(folder, exist_ok=True)
            write_file(rendered.path, rendered.text.encode())
        runs = self.look(service.label).is_running
        commands = (supervisor.keeping if is_same else supervisor.starting_again) if runs else supervisor.starting
        self._run(commands(service.label), service.label)
        return InstalledService(
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
            raise Conflict(f"{path} was not written by Stoker", hint="remove it yourself if it is not needed")
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
        """Return whether a service of ours lies there."""
        return self._supervisor.is_ours(self.text_of(label))

    def text_of(self, label: str) -> str:
        """Return what lies there for a service; empty where nothing does."""
        return self._text_at(self._supervisor.path_of(label)) or ""

    def words_of(self, label: str) -> tuple[str, ...]:
        """Return the words with which a service of ours stands there; nothing where none does."""
        text = self.text_of(label)
        return self._supervisor.words_in(text) if self._supervisor.is_ours(text) else ()

    def look(self, label: str) -> SupervisedStatus:
        """Ask the supervisor how a service stands."""
        reply = self._ask.ask(self._supervisor.looking(label))
        if isinstance(reply, ProbeFailure):
            return SupervisedStatus(is_running=False, is_failed=True, says=reply.why)
        return self._supervisor.read_look(reply.out, reply.exit_code)

    def _require(self) -> None:
        """See that the supervisor is there and answers at all."""
        reply = self._ask.ask(self._supervisor.looking("stoker-nothing"))
        supervisor = self._supervisor
        if isinstance(reply, ProbeFailure):
            raise Unavailable(
                f"{supervisor.name} does not answer here: {reply.why}",
                hint="without it nothing starts by itself; leave --install out and keep the command running",
            )
        if "bus" in reply.err.lower():
            raise Unavailable(
                f"{supervisor.name} has no session for this user: {one_line(reply.err)}",
                hint="log in as this user (not by su or sudo), or loginctl enable-linger and set XDG_RUNTIME_DIR",
            )

    def _run(self, commands: Iterable[ShellCommand], label: str) -> None:
        for command in commands:
            reply = self._ask.ask(command, limit_s=_COMMAND_S)
            if isinstance(reply, ProbeOutput) and (not reply.exit_code or "reset-failed" in command):
                continue
            why = reply.why if isinstance(reply, ProbeFailure) else one_line(reply.err or reply.out)
            raise self._trouble(label, why or self.look(label).says)

    def _see_running(self, label: str) -> SupervisedStatus:
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
            return read_regular(path, _LARGEST_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError:
            # A link, a pipe or an unreadable file is not ours.
            return ""
