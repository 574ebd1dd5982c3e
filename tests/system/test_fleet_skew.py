"""A worker of the release before works for today's coordinator; that release's coordinator refuses today's worker.

Over TLS: on loopback that release had no identities, and today's has no other way in than its socket.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.fleet_desk import FleetDesk
from tests.system.shell import Shell
from tests.system.warm import stoker_argv

ROOT = Path(__file__).parents[2]
TODAY = ROOT / "src"
BEFORE = "d73038e"
"""The last commit of the release before."""
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def release_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program as it was, unpacked from this checkout's history."""
    git = ["git", "-C", str(ROOT), "archive", "--format=tar", BEFORE, "src"]
    try:
        found = subprocess.run(git, capture_output=True, check=False, timeout=60)
    except FileNotFoundError:
        pytest.skip("git is not installed, so the release before can't be unpacked")
    if found.returncode:
        pytest.skip(f"this checkout has no history that reaches {BEFORE}: a shallow clone, or no clone at all")
    folder = tmp_path_factory.mktemp("before")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=found.stdout, check=True, timeout=60)
    return folder / "src"


class Side:
    """One program of a fleet, of a version of its own."""

    def __init__(self, shell: Shell, source: Path, *words: str) -> None:
        before = shell.env.get("PYTHONPATH", "")
        env = {**shell.env, "PYTHONPATH": os.pathsep.join(filter(None, [str(source), before]))}
        self.log = shell.folder / f"{words[0]}.log"
        self._out = self.log.open("wb")
        argv = stoker_argv(env) if source == TODAY else [sys.executable, "-P", "-m", "stoker"]
        self.process = subprocess.Popen(
            [*argv, *words], cwd=shell.folder, env=env, stdout=self._out, stderr=subprocess.STDOUT
        )

    def first_object(self) -> dict[str, Any]:
        """Return the first line that it printed."""
        deadline_s = time.monotonic() + PATIENCE_S
        while b"\n" not in self.log.read_bytes():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline_s, self.said()
            time.sleep(0.02)
        found: dict[str, Any] = json.loads(self.log.read_bytes().splitlines()[0])
        return found

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self._out.close()


def ran(shell: Shell, source: Path, *words: str) -> str:
    """Run a command of a version to its end; return what it printed."""
    side = Side(shell, source, *words)
    assert side.wait() == 0, side.said()
    return side.said()


@pytest.fixture
def sides() -> Iterator[list[Side]]:
    """Programs that end with the test, the last one first."""
    found: list[Side] = []
    yield found
    for side in reversed(found):
        if side.process.poll() is None:
            side.end()


def test_a_worker_of_the_release_before_runs_jobs_of_todays_coordinator(
    tmp_path: Path, release_before: Path, index: Path, sides: list[Side]
):
    shell, url, serving, working = fleet_of(tmp_path, index, sides, serves=TODAY, works=release_before)
    with FleetDesk(url, shell.home) as desk:
        desk.submit("well", "/bin/sh", "-c", "echo it runs", folder=shell.folder)
        desk.submit("badly", "/bin/sh", "-c", "exit 3", folder=shell.folder)
        desk.submit("unwanted", "/bin/sh", "-c", "sleep 60", folder=shell.folder, priority=-1)
        deadline_s = time.monotonic() + PATIENCE_S
        wanted = {"well": "completed", "badly": "failed", "unwanted": "cancelled"}
        while (states := {name: state for name, (state, _) in desk.states().items()}) != wanted:
            assert time.monotonic() < deadline_s, (states, working.said(), serving.said())
            if states["unwanted"] == "running":
                desk.client.cancel_jobs([desk.client.job("unwanted").job.id])
            time.sleep(0.05)
        assert desk.client.job("well").attempts[0].machine == "desk"
        # That release sends archives; they are unpacked when somebody fetches the result.
        assert shell.stoker("get", "well", "got", "--at", url).code == 0
    assert working.end() in (0, 75, 143), working.said()
    assert serving.end() in (0, 143), serving.said()


@pytest.mark.slow
def test_an_older_coordinator_refuses_todays_worker_and_says_what_to_update(
    tmp_path: Path, release_before: Path, index: Path, sides: list[Side]
):
    _, url, code = serving_of(tmp_path, index, sides, release_before)
    joining = Side(Shell(tmp_path / "lab", index=index), TODAY, "join", f"{code}@{url.removeprefix('https://')}")
    assert joining.wait() == 35, joining.said()
    assert "this coordinator speaks protocol 1, not 2 yet" in joining.said()
    assert "update the coordinator's machine" in joining.said()


def serving_of(tmp_path: Path, index: Path, sides: list[Side], serves: Path) -> tuple[Shell, str, str]:
    """Start a coordinator of a version; return a shell, the coordinator's address, and an invitation."""
    shell = Shell(tmp_path, index=index)
    serving = Side(shell, serves, "serve", "--listen", "0.0.0.0:0", "--advertise", "127.0.0.1", "--json")
    sides.append(serving)
    url = serving.first_object()["url"]
    code = json.loads(ran(shell, serves, "machines", "invite", "--name", "desk", "--json").splitlines()[0])["code"]
    return shell, url, code


def fleet_of(
    tmp_path: Path, index: Path, sides: list[Side], *, serves: Path, works: Path
) -> tuple[Shell, str, Side, Side]:
    """Start a coordinator and a worker of these versions; return a shell, the coordinator's address, and both."""
    shell, url, code = serving_of(tmp_path, index, sides, serves)
    lab = Shell(tmp_path / "lab", index=index)
    # The release before asked the coordinator for the name before it had shown the code; no coordinator says it now.
    ran(lab, works, "join", f"{code}@{url.removeprefix('https://')}", "--name", "desk")
    working = Side(lab, works, "work")
    sides.append(working)
    return shell, url, sides[0], working
