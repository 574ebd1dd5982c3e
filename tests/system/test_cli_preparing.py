"""Code, environment, data and secrets of jobs on a worker with a home of its own: real processes, real uv."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.host.identity import rows
from stoker.host.locks import FileLock
from stoker.jobs.pack.environment_files import gather
from stoker.store.environment_cache import EnvironmentCache, key_of
from stoker.worker.environments.environment_builder import Maker
from tests.system.fleet_desk import FleetDesk
from tests.system.shell import PATIENCE_S, Shell, wait_until
from tests.unit.worker.tiny_wheels import locked_project, wheel

SECRET = "hunter2/for+real=42"
TRAIN = """
import base64, json, os, sys, urllib.parse
import alpha
token, data = os.environ["MY_TOKEN"], os.environ["DATA"]
print("token", token, urllib.parse.quote(token, safe=""))
sys.stdout.write(token[:7]); sys.stdout.flush(); print(token[7:])
print(base64.b64encode(("user:" + token).encode()).decode(), file=sys.stderr)
files = {name: open(os.path.join(data, name)).read() for name in sorted(os.listdir(data))}
told = {"files": files, "version": alpha.VERSION, "data": data, "cwd": os.getcwd(), "length": len(token)}
json.dump(told, open(os.environ["STOKER_OUT"] + "/told.json", "w"))
import stoker_trainer
stoker_trainer.step(1, of=2, loss=0.25)
if len(sys.argv) > 1:
    stoker_trainer.failed(f"failed with {token}")
    raise SystemExit(f"failed with {token}")
"""
MANIFEST = """
[[jobs]]
name = "good"
command = ["python", "train.py"]
env = "uv.lock"
data = { DATA = "set" }
secrets = ["MY_TOKEN"]
min_ram_gib = 0.1

[[jobs]]
name = "bad"
command = ["python", "train.py", "fails"]
env = "uv.lock"
data = { DATA = "set" }
secrets = ["MY_TOKEN"]
min_ram_gib = 0.1
"""


class Town:
    """A coordinator with its home, and one worker with another."""

    def __init__(self, folder: Path, index: Path) -> None:
        self.desk = Shell(folder / "desk", index=index)
        self.lab = Shell(folder / "lab", index=index)
        self.poor = Shell(folder / "poor", index=index)
        """A machine on which nobody has put secrets."""
        for shell in (self.desk, self.lab, self.poor):
            shell.env |= {
                "UV_OFFLINE": "1",
                "UV_CACHE_DIR": str(folder / "uv"),
                "STOKER_LEDGER": str(folder / "ledger"),
            }
            shell.env.pop("MY_TOKEN", None)
        self.processes: list[subprocess.Popen[str]] = []
        serving = self._started(self.desk.start("serve", "--listen", "127.0.0.1:0", "--json"))
        assert serving.stdout is not None
        self.url = str(json.loads(serving.stdout.readline())["url"])

    def work(self, shell: Shell, *words: str) -> subprocess.Popen[str]:
        name = () if "--name" in words else ("--name", "lab")
        return self._started(shell.start("work", "--join", self.url, *name, *words))

    def close(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired, ValueError):
                process.communicate(timeout=PATIENCE_S)
            process.kill()

    def _started(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        self.processes.append(process)
        return process


@pytest.fixture
def town(tmp_path: Path, index: Path) -> Iterator[Town]:
    town = Town(tmp_path, index)
    yield town
    town.close()


def project_in(folder: Path) -> None:
    locked_project(str(folder), [wheel(str(folder / "wheels"), "alpha")])
    (folder / "train.py").write_text(TRAIN)
    (folder / "set").mkdir()
    (folder / "set" / "a.txt").write_text("one")
    (folder / "m.toml").write_text(MANIFEST)
    (folder / ".stokerignore").write_text("set/\n")


def holding(home: Path, secret: str) -> list[Path]:
    found = []
    for path in home.rglob("*"):
        with suppress(OSError):
            if path.is_file() and secret.encode() in path.read_bytes():
                found.append(path.relative_to(home))
    return found


def command_lines() -> list[str]:
    found = []
    for row in rows():
        with suppress(OSError):
            found.append(Path(f"/proc/{row.pid}/cmdline").read_text(errors="replace"))
    return found


def test_a_project_with_environment_data_and_secrets_runs_on_another_home_and_the_secrets_stand_nowhere(town: Town):
    project_in(town.desk.folder)
    state = town.lab.home / "state"
    (state / "secrets.env").write_text(f"MY_TOKEN='{SECRET}'\n")
    (state / "secrets.env").chmod(0o600)
    submitted = town.desk.stoker("submit", "m.toml", "-y")
    assert submitted.code == 0, submitted.err
    seen: list[str] = []
    with FleetDesk(town.url, town.desk.home) as desk:
        town.work(town.poor, "--name", "poor")
        wait_until(lambda: any(one.cause == "secrets" for one in desk.client.job("good").attempts))
        assert "poor: not set in this worker's environment: MY_TOKEN" in town.desk.stoker("explain", "good").out
        town.work(town.lab, "--slots", "2")

        def is_over() -> bool:
            seen.extend(line for line in command_lines() if SECRET in line)
            return all(state in ("completed", "failed") for state, _ in desk.states().values())

        wait_until(is_over)
        states = {name: state for name, (state, _) in desk.states().items()}
        story = desk.client.job("good")
    assert states == {"good": "completed", "bad": "failed"}, town.desk.stoker("logs", "good").out
    assert not seen, "a process's title holds it"
    logs = town.desk.stoker("logs", "good").out
    assert "token *** ***\n***\n" in logs
    # The job that was prepared first built the environment of both.
    assert "builds uv.lock" in logs + town.desk.stoker("logs", "bad").out
    assert "failed with ***" in town.desk.stoker("jobs", "show", "bad").out
    assert town.desk.stoker("get", "good", "got").code == 0
    told = json.loads(next((town.desk.folder / "got").rglob("told.json")).read_text())
    assert (told["files"], told["version"], told["length"]) == ({"a.txt": "one"}, "1.0", len(SECRET))
    assert told["cwd"].startswith(str(town.lab.home / "workspaces"))
    facts = story.attempts[-1].facts
    assert len(facts["code_tree"]) == 64
    assert facts["data"]["DATA"].startswith("tree:")
    assert facts["python"]["packages"] == {"alpha": "1.0"}
    assert "DATA tree" in town.desk.stoker("jobs", "show", "good").out
    half = SECRET[:7]
    assert [str(one) for one in holding(town.lab.home, half)] == ["state/secrets.env"]
    assert not holding(town.desk.home, half)
    wait_until(lambda: [one for one in os.listdir(town.lab.home / "workspaces") if not one.startswith(".")] == [])


def preparing(home: Path) -> list[int]:
    """Return the preparing processes of a home."""
    found = []
    for row in rows():
        with suppress(OSError):
            if b"stoker.app.prepare_main" in Path(f"/proc/{row.pid}/cmdline").read_bytes() and (
                str(home).encode() in Path(f"/proc/{row.pid}/environ").read_bytes()
            ):
                found.append(row.pid)
    return found


@pytest.mark.slow
def test_what_is_being_prepared_can_be_killed_cancelled_and_given_back(town: Town):
    project_in(town.desk.folder)
    (town.desk.folder / "m.toml").write_text(MANIFEST.replace('secrets = ["MY_TOKEN"]', ""))
    lab, clock = town.lab, SystemClock()
    shelf = EnvironmentCache(str(lab.home / "envs"), clock=clock)
    maker = Maker(shelf=shelf, environment=lab.env, own_prefix=sys.prefix, clock=clock)
    key = key_of(gather(str(town.desk.folder), "uv.lock").digest, maker.platform)
    shelf.make_locks()
    lock = FileLock(shelf.lock_path(key), "builds it", wait_s=0.0, clock=clock)
    lock.acquire()
    with FleetDesk(town.url, town.desk.home) as desk:
        assert town.desk.stoker("submit", "m.toml", "-y").code == 0
        working = town.work(lab, "--slots", "2")
        wait_until(lambda: len(preparing(lab.home)) == 2)
        assert town.desk.stoker("cancel", "bad").code == 0
        wait_until(lambda: desk.states()["bad"][0] == "cancelled")
        wait_until(lambda: len(preparing(lab.home)) == 1)
        logs = town.desk.stoker("logs", "good")
        wait_until(lambda: "builds uv.lock" in town.desk.stoker("logs", "good").out)
        assert desk.states()["good"][0] == "claimed", logs
        before = preparing(lab.home)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: preparing(lab.home) not in ([], before))
        assert town.desk.stoker("machines", "drain", "lab").code == 0
        assert preparing(lab.home), "what was given to it before goes on"
        assert town.desk.stoker("machines", "open", "lab").code == 0
        working.send_signal(signal.SIGTERM)
        wait_until(lambda: desk.states()["good"][0] == "pending")
        wait_until(lambda: not preparing(lab.home))
        working.communicate(timeout=PATIENCE_S)
        town.work(lab)
        wait_until(lambda: desk.states()["good"][0] == "claimed")
        lock.release()
        wait_until(lambda: desk.states()["good"][0] in ("failed", "completed"))
        story = desk.client.job("good")
    assert next(one.ending for one in story.attempts) == "released"
    assert story.counts.get("lost", 0) == 0
