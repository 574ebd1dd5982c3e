"""A coordinator and workers as real processes, to be killed, stopped, cut off and started again.

What they say goes into files, so that nobody waits for a reader. How jobs stand is read from the database itself: it
answers when the coordinator does not. When it ends, whatever happened, no promise of the queue may be broken.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.coordinator.database.database import Database, look_into
from stoker.coordinator.database.database_check import check_database
from stoker.coordinator.queue.reader import QueueReader
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.coordinator.storage.tree_storage import stored_sizes
from stoker.core.clock import SystemClock
from stoker.core.errors import DatabaseTrouble, StokerError
from stoker.host.network import listen_at
from stoker.protocol.discovery import whole_address
from stoker.protocol.view_messages import JobDetails
from tests.system.fleet_desk import FleetDesk
from tests.system.shell import PATIENCE_S, Shell, alive, descendants, wait_until
from tests.system.warm import WarmCommand, make_warm_python, starts_warm

CLOCK = SystemClock()
KILLED = Path(__file__).parent / "coordinator_child.py"
WAITER = "echo $$ >> pids; while ! test -e go; do sleep 0.05; done; echo done > $STOKER_OUT/done"
"""A program that says who it is, and ends when `go` is there."""
TERMINAL = ("completed", "failed", "cancelled")


class Started:
    """One process of ours."""

    def __init__(self, argv: list[str], folder: Path, env: dict[str, str], said: Path, *, is_warm: bool) -> None:
        """Start it: a program, or a command of ours that starts warm."""
        self.said = said
        with said.open("ab") as out:
            self.process = (
                WarmCommand(argv, folder=folder, env=env, out=out)
                if is_warm
                else subprocess.Popen(argv, cwd=folder, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def told(self) -> list[dict[str, Any]]:
        """Return what it said as JSON, as far as it is whole."""
        lines = self.said.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def kinds(self) -> list[str]:
        return [told.get("kind", "") for told in self.told()]

    def wait_for(self, kind: str) -> None:
        wait_until(lambda: kind in self.kinds() or self.process.poll() is not None)
        assert kind in self.kinds(), self.said.read_text()[-2000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to it and to everything below it."""
        for pid in (self.pid, *descendants(self.pid)):
            os.kill(pid, number)


class RealFleet:
    """All of it, in one folder, on one address."""

    def __init__(self, folder: Path, index: Path | None, *, db: str = "", host: str = "127.0.0.1") -> None:
        self.shell = Shell(folder, index=index)
        self._folder = folder
        # Held to the end, and never listened on: nobody else is given it before, or while a coordinator is away.
        self._port = listen_at("127.0.0.1", 0)
        self.address = f"{host}:{self._port.getsockname()[1]}"
        self.url = whole_address(self.address)
        self.db = db or f"sqlite:///{self.shell.home / 'fleet' / 'queue.db'}"
        self._started: list[Started] = []
        self._desk: FleetDesk | None = None
        self._database: Database | None = None
        """Open from one look at a job to the next: a new one compiles its statements again."""

    def start(
        self,
        name: str,
        *words: object,
        before: tuple[str, ...] = (),
        runs: tuple[str, ...] = (),
        home: Path | None = None,
    ) -> Started:
        argv, env = list(map(str, words)), dict(self.shell.env)
        if home is not None:
            env["STOKER_HOME"] = str(home)
        is_warm = not before and not runs and starts_warm(env)
        if not is_warm:
            argv = [*before, *self._python(env), *(runs or ("-m", "stoker")), *argv]
        started = Started(argv, self.shell.folder, env, self._folder / f"{name}.said", is_warm=is_warm)
        self._started.append(started)
        return started

    def _python(self, env: dict[str, str]) -> tuple[str, ...]:
        """Return the interpreter, a warm one where that makes no difference. It is in the namespaces of its caller."""
        if not starts_warm(env):
            return (sys.executable, "-P")
        file = self._folder / "python"
        if not file.exists():
            make_warm_python(file, cold=Path(sys.executable), path=[])
        return (str(file),)

    def serve(self, *words: object, before: tuple[str, ...] = (), dies_at: tuple[str, int] | None = None) -> Started:
        """Start the coordinator, and wait until it listens, or until it was killed on the way."""
        name = f"serve{len(self._started)}"
        options = ("--listen", self.address, "--db", self.db, "--lease", "3s", "--heartbeat", "0.5s", "--json")
        runs = (str(KILLED), *map(str, dies_at)) if dies_at else ()
        serving = self.start(name, "serve", *options, *words, before=before, runs=runs)
        wait_until(lambda: serving.told() or serving.process.poll() is not None)
        assert serving.told() or dies_at, serving.said.read_text()
        return serving

    def work(self, name: str, *words: object, before: tuple[str, ...] = (), home: Path | None = None) -> Started:
        """Start a worker, in the coordinator's home or in one of its own."""
        asked = ("work", "--join", self.url, "--name", name, "--json")
        return self.start(name, *asked, *words, before=before, home=home)

    @property
    def desk(self) -> FleetDesk:
        if self._desk is None:
            self._desk = FleetDesk(self.url, self.shell.home)
        return self._desk

    def submit(self, name: str, script: str = WAITER, **more: Any) -> None:
        """Want a program to run; a database that is just away is asked again."""

        def is_taken() -> bool:
            try:
                self.desk.submit(name, "/bin/sh", "-c", script, folder=self.shell.folder, **more)
            except DatabaseTrouble:
                return False
            return True

        wait_until(is_taken)

    def manifest(self, name: str, script: str = WAITER) -> Path:
        """Write a manifest of one program."""
        # Its code is packed and runs in a place of its own: what it says and waits for stays here.
        (self.shell.folder / "script.sh").write_text(f"cd '{self.shell.folder}'\n{script}")
        path = self.shell.folder / "manifest.toml"
        path.write_text(f"[[jobs]]\nname = '{name}'\ncommand = '/bin/sh script.sh'\nattempts = 2\n")
        return path

    def go(self) -> None:
        (self.shell.folder / "go").touch()

    def programs(self) -> list[int]:
        """Return the programs that were started, by their pids, in their order."""
        path = self.shell.folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def mirror(self, name: str, attempt: int) -> Path:
        """Wait until something of an attempt is mirrored, and give where."""
        job = self.story(name).job.id
        folder = self.shell.home / "fleet" / "attempts" / job[:2] / job / str(attempt)
        wait_until(folder.is_dir)
        return folder

    def story(self, name: str) -> JobDetails:
        if self._database is None:
            self._database = look_into(self.db, clock=CLOCK)
        try:
            return QueueReader(self._database, clock=CLOCK).story(name)
        except DatabaseTrouble:
            self._forget_database()
            raise

    def _forget_database(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = None

    def is_so(self, name: str, claim: Callable[[JobDetails], object]) -> bool:
        """Return whether something is so of a job; of one that can't be looked at just now, nothing is."""
        try:
            return bool(claim(self.story(name)))
        except StokerError:
            return False

    def wait_for(
        self, name: str, claim: Callable[[JobDetails], object], patience_s: float = 2 * PATIENCE_S
    ) -> JobDetails:
        """Wait until something is so of a job; a database that is away is asked again."""
        found: list[JobDetails] = []

        def is_so() -> bool:
            try:
                found[:] = [self.story(name)]
            except StokerError:
                return False
            return bool(claim(found[0]))

        deadline_s = CLOCK.monotonic_s() + patience_s
        while not is_so():
            assert CLOCK.monotonic_s() < deadline_s, f"it did not come true: {found}\n{self.everything_said()}"
            CLOCK.sleep(0.05)
        return found[0]

    def everything_said(self) -> str:
        return "\n".join(f"{one.said.name}:\n{one.said.read_text()[-1500:]}" for one in self._started)

    def end(self) -> None:
        """End everything, leave nothing running, and look for broken promises."""
        below = {pid for one in self._started for pid in descendants(one.pid)}
        for one in reversed(self._started):
            if one.process.poll() is None:
                one.signal_all(signal.SIGCONT)
                one.process.terminate()
        for one in self._started:
            try:
                one.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                one.kill()
        for pid in alive(below):
            os.kill(pid, signal.SIGKILL)
        if self._desk is not None:
            self._desk.__exit__(None, None, None)
        self._forget_database()
        self._port.close()

    def check(self) -> None:
        keeping = CoordinatorStorage(str(self.shell.home / "fleet"), CLOCK)
        database = look_into(self.db, clock=CLOCK)
        try:
            assert list(check_database(database, has_object=stored_sizes(keeping, database))) == [], (
                self.everything_said()
            )
        finally:
            database.close()
            keeping.close()


def is_terminal(story: JobDetails) -> bool:
    return story.job.state in TERMINAL


def is_in(*states: str) -> Callable[[JobDetails], bool]:
    return lambda story: story.job.state in states
