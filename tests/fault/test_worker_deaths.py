"""Real workers, killed, frozen and doubled, beside a real coordinator: what runs, what is said, what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.host.identity import Liveness, is_alive, of_pid
from tests.system.fleet_desk import FleetDesk
from tests.system.shell import PATIENCE_S, Shell, wait_until

WAITER = "echo $$ > pid; while ! test -e go; do sleep 0.02; done; echo done > $STOKER_OUT/done"


class Fleet:
    """A coordinator on this machine, and what is started beside it. Everything ends with the test."""

    def __init__(self, folder: Path, index: Path) -> None:
        self.shell = Shell(folder, index=index)
        self._started: list[subprocess.Popen[str]] = []
        serving = self.start("serve", "--listen", "127.0.0.1:0", "--lease", "3s", "--heartbeat", "0.3s", "--json")
        assert serving.stdout is not None
        self.url = str(json.loads(serving.stdout.readline())["url"])
        self.desk = FleetDesk(self.url, self.shell.home)

    def start(self, *words: object) -> subprocess.Popen[str]:
        process = self.shell.start(*words)
        self._started.append(process)
        return process

    def work(self, *words: object) -> subprocess.Popen[str]:
        return self.start("work", "--name", "desk", "--json", *words)

    def submit(self, script: str) -> None:
        self.desk.submit("job", "/bin/sh", "-c", script, folder=self.shell.folder)

    def program(self) -> int:
        path = self.shell.folder / "pid"
        wait_until(lambda: path.exists() and path.read_text().strip())
        return int(path.read_text())

    def end(self) -> None:
        self.desk.__exit__(None, None, None)
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in self._started:
            process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def fleet(tmp_path: Path, recipes: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, recipes)
    try:
        yield fleet
    finally:
        fleet.end()


def is_gone(pid: int) -> bool:
    found = of_pid(pid)
    return found is None or is_alive(found) is Liveness.GONE


def heard(process: subprocess.Popen[str], until: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Read what a worker tells until something was told."""
    assert process.stdout is not None
    seen: list[dict[str, Any]] = []
    for line in process.stdout:
        seen.append(json.loads(line))
        if until(seen[-1]):
            return seen
    raise AssertionError(f"it ended and never said so: {seen}")


def kind(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda told: told["kind"] == name


@pytest.mark.slow
def test_a_job_whose_keeper_was_killed_for_good_ends_with_its_lease(fleet: Fleet):
    fleet.submit(WAITER)
    keeper = fleet.work()
    pid = fleet.program()
    heard(keeper, kind("started"))
    keeper.kill()
    wait_until(lambda: is_gone(pid))


@pytest.mark.slow
def test_a_keeper_that_stood_still_past_its_lease_says_nothing_of_a_result_that_came_meanwhile(fleet: Fleet):
    fleet.submit(f"trap 'echo done > $STOKER_OUT/done; exit 0' TERM; {WAITER}")
    keeper = fleet.work()
    pid = fleet.program()
    heard(keeper, kind("started"))
    keeper.send_signal(signal.SIGSTOP)
    # Its child notices by itself.
    wait_until(lambda: is_gone(pid))
    keeper.send_signal(signal.SIGCONT)
    told = heard(keeper, kind("dropped"))
    assert not [one for one in told if one["kind"] in ("settled", "ended")]
    keeper.send_signal(signal.SIGTERM)
    keeper.communicate(timeout=PATIENCE_S)
    assert keeper.returncode == 143
    assert not os.listdir(fleet.shell.home / "state" / "worker" / "desk" / "leases")
