"""Whoever keeps services going on this machine: what it reads, where that lies, and which commands it takes.

Pure: given a service, what would be written and run. `installing` does it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Protocol

from stoker.launch.launchd_plist import plist_words, render_plist
from stoker.launch.services import Service
from stoker.launch.systemd_unit import WRITTEN_BY, render_unit, unit_name, unit_words
from stoker.launch.windows_schedule import render_schedule, schedule_words
from stoker.model.errors import BadInput
from stoker.model.exits import MEANINGS
from stoker.model.frozen import frozen

Command = tuple[str, ...]


@frozen
class Rendered:
    """A service's file before it is written."""

    path: str
    text: str


@frozen
class Seen:
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
    encoding: str
    """Of its files."""

    def render(self, service: Service) -> Rendered: ...
    def is_ours(self, text: str) -> bool:
        """Whether a file that lies there was written by us."""

    def words_in(self, text: str) -> tuple[str, ...]:
        """Give the words after `stoker KIND` of a file that we wrote."""

    def path_of(self, label: str) -> str: ...
    def starting(self, label: str) -> tuple[Command, ...]:
        """Give the commands that make a written file count, now and after every boot."""

    def starting_again(self, label: str) -> tuple[Command, ...]:
        """Give the commands for a service that runs and whose file has changed."""

    def keeping(self, label: str) -> tuple[Command, ...]:
        """Give the commands for a service that runs as it should."""

    def stopping(self, label: str) -> tuple[Command, ...]:
        """Give the commands before the file is removed."""

    def forgetting(self, label: str) -> tuple[Command, ...]:
        """Give the commands after the file was removed."""

    def looking(self, label: str) -> Command: ...
    def read_look(self, out: str, exit_code: int) -> Seen: ...


class Systemd:
    """systemd, the user's own."""

    name = "systemd"
    encoding = "utf-8"

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.log_hint = "journalctl --user -u"

    def render(self, service: Service) -> Rendered:
        return Rendered(path=self.path_of(service.label), text=render_unit(service))

    def is_ours(self, text: str) -> bool:
        return text.startswith(WRITTEN_BY)

    def words_in(self, text: str) -> tuple[str, ...]:
        return unit_words(text)

    def path_of(self, label: str) -> str:
        return os.path.join(self._folder, unit_name(label))

    def starting(self, label: str) -> tuple[Command, ...]:
        # A service that had given up is taken up again.
        return (
            _systemctl("daemon-reload"),
            _systemctl("reset-failed", "--quiet", unit_name(label)),
            _systemctl("enable", "--quiet", "--now", unit_name(label)),
        )

    def starting_again(self, label: str) -> tuple[Command, ...]:
        return _systemctl("daemon-reload"), *self.keeping(label), _systemctl("restart", unit_name(label))

    def keeping(self, label: str) -> tuple[Command, ...]:
        return (_systemctl("enable", "--quiet", unit_name(label)),)

    def stopping(self, label: str) -> tuple[Command, ...]:
        return (_systemctl("disable", "--quiet", "--now", unit_name(label)),)

    def forgetting(self, label: str) -> tuple[Command, ...]:
        return _systemctl("daemon-reload"), _systemctl("reset-failed", "--quiet", unit_name(label))

    def looking(self, label: str) -> Command:
        shown = "ActiveState,SubState,Result,ExecMainStatus,MainPID,NRestarts"
        return _systemctl("show", "--property", shown, unit_name(label))

    def read_look(self, out: str, exit_code: int) -> Seen:
        said = dict(line.partition("=")[::2] for line in out.splitlines())
        active, sub = said.get("ActiveState", "unknown"), said.get("SubState", "")
        # Between two tries it is neither.
        is_failed = active == "failed" or sub == "auto-restart" or said.get("Result", "success") != "success"
        code = said.get("ExecMainStatus", "0")
        meaning = MEANINGS.get(int(code), "") if code.isdigit() else ""
        ended = f", ended with {code}{f': {meaning}' if meaning else ''}" if is_failed and code != "0" else ""
        return Seen(
            is_running=(active, sub) == ("active", "running"),
            is_failed=is_failed or bool(exit_code),
            says=f"{active} ({sub}{ended})" if sub else active,
            pid=int(said.get("MainPID", "0") or 0),
        )


class Launchd:
    """launchd of macOS. Untested on a Mac."""

    name = "launchd"
    encoding = "utf-8"
    log_hint = "its log lies in STOKER_HOME/state:"

    def __init__(self, folder: str, user: int) -> None:
        self._folder = folder
        self._domain = f"gui/{user}"

    def render(self, service: Service) -> Rendered:
        return Rendered(path=self.path_of(service.label), text=render_plist(service))

    def is_ours(self, text: str) -> bool:
        return "<string>stoker</string>" in text

    def words_in(self, text: str) -> tuple[str, ...]:
        return plist_words(text)

    def path_of(self, label: str) -> str:
        return os.path.join(self._folder, f"{label}.plist")

    def starting(self, label: str) -> tuple[Command, ...]:
        return (("launchctl", "bootstrap", self._domain, self.path_of(label)),)

    def starting_again(self, label: str) -> tuple[Command, ...]:
        return *self.stopping(label), *self.starting(label)

    def keeping(self, label: str) -> tuple[Command, ...]:
        return ()

    def stopping(self, label: str) -> tuple[Command, ...]:
        return (("launchctl", "bootout", f"{self._domain}/{label}"),)

    def forgetting(self, label: str) -> tuple[Command, ...]:
        return ()

    def looking(self, label: str) -> Command:
        return "launchctl", "print", f"{self._domain}/{label}"

    def read_look(self, out: str, exit_code: int) -> Seen:
        words = dict(line.strip().partition(" = ")[::2] for line in out.splitlines() if " = " in line)
        state = words.get("state", "unknown")
        code = words.get("last exit code", "0")
        is_failed = bool(exit_code) or (state != "running" and code not in ("0", "(never exited)"))
        pid = words.get("pid", "0")
        return Seen(
            is_running=state == "running",
            is_failed=is_failed,
            says=state if not is_failed else f"{state}, ended with {code}",
            pid=int(pid) if pid.isdigit() else 0,
        )


class WindowsScheduler:
    """The scheduler of Windows. Untested on Windows."""

    name = "the Windows scheduler"
    encoding = "utf-16"
    log_hint = "schtasks /Query /V /TN"

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def render(self, service: Service) -> Rendered:
        return Rendered(path=self.path_of(service.label), text=render_schedule(service))

    def is_ours(self, text: str) -> bool:
        return "<URI>\\Stoker\\" in text

    def words_in(self, text: str) -> tuple[str, ...]:
        return schedule_words(text)

    def path_of(self, label: str) -> str:
        return os.path.join(self._folder, f"{label}.xml")

    def starting(self, label: str) -> tuple[Command, ...]:
        name = _listed(label)
        return (
            ("schtasks", "/Create", "/F", "/TN", name, "/XML", self.path_of(label)),
            ("schtasks", "/Run", "/TN", name),
        )

    def starting_again(self, label: str) -> tuple[Command, ...]:
        return ("schtasks", "/End", "/TN", _listed(label)), *self.starting(label)

    def keeping(self, label: str) -> tuple[Command, ...]:
        return ()

    def stopping(self, label: str) -> tuple[Command, ...]:
        name = _listed(label)
        return ("schtasks", "/End", "/TN", name), ("schtasks", "/Delete", "/F", "/TN", name)

    def forgetting(self, label: str) -> tuple[Command, ...]:
        return ()

    def looking(self, label: str) -> Command:
        return "schtasks", "/Query", "/FO", "LIST", "/V", "/TN", _listed(label)

    def read_look(self, out: str, exit_code: int) -> Seen:
        words = {name.strip(): rest.strip() for name, _, rest in (line.partition(":") for line in out.splitlines())}
        status = words.get("Status", "unknown")
        return Seen(is_running=status == "Running", is_failed=bool(exit_code), says=status.lower())


def supervisor_of(platform: str, environment: Mapping[str, str], home: str, *, user: int) -> Supervisor:
    """Give the service manager of a platform: `home` is Stoker's own. Raises `BadInput` where none is known."""
    makes = _SUPERVISORS.get(platform)
    if makes is None:
        raise BadInput(f"no service manager is known for {platform}", hint="start it by what this system has")
    return makes(environment, home, user)


def is_lingering(environment: Mapping[str, str], folder: str = "/var/lib/systemd/linger") -> bool:
    """Whether the services of this user run while nobody is logged in."""
    user = environment.get("USER", "") or environment.get("LOGNAME", "")
    return bool(user) and "/" not in user and os.path.exists(os.path.join(folder, user))


def _listed(label: str) -> str:
    return f"\\Stoker\\{label}"


def _systemctl(*words: str) -> Command:
    return "systemctl", "--user", *words


def _units(environment: Mapping[str, str]) -> str:
    config = environment.get("XDG_CONFIG_HOME", "") or os.path.join(_home(environment), ".config")
    return os.path.join(config, "systemd", "user")


def _home(environment: Mapping[str, str]) -> str:
    return environment.get("HOME", "") or os.path.expanduser("~")


_SUPERVISORS: dict[str, Callable[[Mapping[str, str], str, int], Supervisor]] = {
    "linux": lambda environment, _own, _user: Systemd(_units(environment)),
    "darwin": lambda environment, _own, user: Launchd(
        os.path.join(_home(environment), "Library", "LaunchAgents"), user
    ),
    "win32": lambda _environment, own, _user: WindowsScheduler(os.path.join(own, "state")),
}
