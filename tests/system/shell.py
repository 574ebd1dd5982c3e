"""A shell for the tests of the command line: real processes, a home of their own, the toy cookbook on the path."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.core.clock import SystemClock
from stoker.host.identity import rows
from stoker.worker.environments.uv import Interpreters
from tests.system.warm import WarmCommand, starts_warm

TOY = Path(__file__).parents[1] / "cookbooks" / "toy"
# Only what hangs takes so long, on a busy machine as well.
PATIENCE_S = 60.0
INDEX = "state/cookbooks.json"
INTERPRETERS = "envs/interpreters.json"
"""Below a home: what its commands remember of this machine's cookbooks and interpreters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def objects(self) -> list[dict[str, Any]]:
        """Every line of standard output as JSON: anything else there is a failure."""
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """One user's shell: a working folder and a STOKER_HOME."""

    def __init__(
        self, folder: Path, *, cookbook: Path = TOY, index: Path | None = None, before: tuple[str, ...] = ()
    ) -> None:
        """Make it; `before` stands before every command, such as one that moves into another network."""
        self.before = before
        self.folder = folder / "work"
        self.home = folder / "home"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.env = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("STOKER", "PYTEST", "PYTHON"))
            },
            "STOKER_HOME": str(self.home),
            # The machine's own is for its real devices.
            "STOKER_LEDGER": str(folder / "ledger"),
            "TERM": "dumb",
        }
        self.use(cookbook)
        if index is not None:
            for path in (INDEX, INTERPRETERS):
                place = self.home / path
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(index / path, place)

    def use(self, cookbook: Path) -> None:
        """Put a cookbook on the path, in place of the one before."""
        inherited = os.environ.get("PYTHONPATH")
        self.env["PYTHONPATH"] = os.pathsep.join([str(cookbook), *([inherited] if inherited else [])])

    def stoker(self, *words: object, **env: str) -> Done:
        """Run a command to its end."""
        with self._begin(words, env) as process:
            try:
                return finish(process)
            finally:
                process.kill()

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        return self._begin(words, {})

    def _begin(self, words: tuple[object, ...], env: dict[str, str]) -> subprocess.Popen[str]:
        """Start a command, warm where that makes no difference."""
        given, whole = list(map(str, words)), {**self.env, **env}
        # What one command alone finds on its path may stand before what a warm one has imported.
        if not self.before and "PYTHONPATH" not in env and starts_warm(whole):
            return WarmCommand(given, folder=self.folder, env=whole)
        return subprocess.Popen(
            [*self.before, sys.executable, "-P", "-m", "stoker", *given],
            cwd=self.folder,
            env=whole,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def at_a_terminal(self, *words: object, when: Callable[[bytes], bytes | None]) -> Done:
        """Run a command at a terminal. `when` gets all that was seen so far and may give an answer to type, once."""
        main, child = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stoker", *map(str, words)],
            cwd=self.folder,
            env={**self.env, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"},
            stdin=child,
            stdout=child,
            stderr=child,
        )
        os.close(child)
        seen, typed = b"", b""
        while select.select([main], [], [], PATIENCE_S)[0]:
            try:
                piece = os.read(main, 65536)
            except OSError:
                # Linux says so when nobody holds the other end any more.
                break
            if not piece:
                break
            seen += piece
            answer = when(seen)
            if answer and not typed:
                typed = answer
                os.write(main, answer)
        os.close(main)
        return Done(code=process.wait(PATIENCE_S), out=seen.decode(), err="")

    def staged(self) -> list[Path]:
        """Return what lies in staging."""
        staging = self.home / "store" / "staging"
        return list(staging.iterdir()) if staging.is_dir() else []


def make_index(folder: Path) -> Path:
    """Return a home that remembers what this machine has: to find it imports every cookbook and starts every Python."""
    shell = Shell(folder)
    assert shell.stoker("recipes").code == 0
    own_base = getattr(sys, "_base_executable", "") or sys.executable
    place = str(shell.home / INTERPRETERS)
    assert Interpreters(place, environment=shell.env, own_base=own_base, clock=SystemClock()).all()
    return shell.home


def finish(process: subprocess.Popen[str]) -> Done:
    """Wait for a started command."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return Done(code=process.returncode, out=out, err=err)


def wait_until(claim: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    began_s = time.monotonic()
    while not claim():
        waited_s = time.monotonic() - began_s
        assert waited_s < patience_s, "it did not come true in time"
        # Whoever looks all the time takes from what it waits for.
        time.sleep(min(max(0.01, waited_s / 20), 0.1))


def descendants(pid: int) -> set[int]:
    """Return the processes below one."""
    found: set[int] = set()
    waiting = [pid]
    table = [(row.pid, row.parent_pid) for row in rows() if not row.is_gone]
    while waiting:
        parent = waiting.pop()
        children = {child for child, its_parent in table if its_parent == parent} - found
        found |= children
        waiting += children
    return found


def alive(pids: set[int]) -> set[int]:
    return {row.pid for row in rows() if row.pid in pids and not row.is_gone}
