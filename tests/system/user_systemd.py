"""A real `systemd --user` beside which commands run: in namespaces and groups of its own, gone with the test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from stoker.host.identity import rows
from tests.unit.host.real_systemd import BESIDE, groups_of_ours, remove_groups

# A wire that leads nowhere makes names resolve as on a machine with a network. Not for ever: tests that fail must end.
_NETWORK = """
ip link set lo up && ip link add e0 type veth peer name e1 && ip addr add 10.99.0.1/24 dev e0 && ip link set e0 up
echo ready
exec sleep 300
"""


class UserSystemd:
    """The manager of a user whose home is `home`, in a network of its own. Use as a context."""

    def __init__(self, home: Path, runtime: Path) -> None:
        self._home = home
        self._runtime = runtime
        self._groups = groups_of_ours()
        self._process: subprocess.Popen[str] | None = None
        self.before: tuple[str, ...] = ()
        """Stands before a command that runs inside."""

    @property
    def env(self) -> dict[str, str]:
        return {"HOME": str(self._home), "XDG_RUNTIME_DIR": str(self._runtime), "USER": "root"}

    def __enter__(self) -> Self:
        for folder in (self._home, self._runtime):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DBUS_", "XDG_"))}
        self._process = subprocess.Popen(
            ["unshare", "--net", "bash", str(BESIDE), "sh", "-c", _NETWORK],
            env={**kept, **self.env, "GROUPS_OF_OURS": " ".join(self._groups)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self.__exit__(None, None, None)
            pytest.skip(f"a systemd of our own can't be had here: {self.said()[-300:]}")
        inner = next(row.pid for row in rows() if row.parent_pid == self._process.pid)
        self.before = ("nsenter", "--target", str(inner), "--mount", "--net", "--pid", "--")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        remove_groups(self._groups)

    def systemctl(self, *words: str) -> str:
        """Ask the manager."""
        env = {**os.environ, **self.env}
        command = [*self.before, "systemctl", "--user", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False).stdout.strip()

    def value(self, unit: str, name: str) -> str:
        """Return what the manager says of a unit."""
        return self.systemctl("show", "--value", "--property", name, unit)

    def signal(self, unit: str, name: str) -> None:
        """Signal a unit's main process, as somebody who is not the manager."""
        subprocess.run([*self.before, "kill", f"-{name}", self.value(unit, "MainPID")], timeout=30, check=True)

    def said(self) -> str:
        """Return the manager's log."""
        log = self._runtime / "log"
        return log.read_text(errors="replace") if log.exists() else ""
