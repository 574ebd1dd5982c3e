"""`stoker work` and `stoker pause` as people use them."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.little import LittleServer, Said
from tests.system.fleet_desk import FleetDesk
from tests.system.shell import PATIENCE_S, Shell, finish, wait_until

PUSHED_S = 15.0
"""Well below a heartbeat, and far above what it takes."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Shell:
    """A shell with a coordinator, for all tests here."""
    return Shell(tmp_path_factory.mktemp("fleet"), index=index)


@pytest.fixture(scope="module")
def url(home: Shell) -> Iterator[str]:
    """The coordinator of that shell's home, with the usual times."""
    serving = home.start("serve", "--listen", "127.0.0.1:0", "--json")
    assert serving.stdout is not None
    try:
        yield str(json.loads(serving.stdout.readline())["url"])
    finally:
        serving.send_signal(signal.SIGTERM)
        serving.communicate(timeout=PATIENCE_S)


@pytest.mark.timing
def test_a_worker_that_was_started_before_the_coordinator_waits_for_it(shell: Shell):
    working = shell.start("work", "--name", "early", "--until-idle", "--json")
    assert working.stderr is not None
    assert "waiting for a coordinator" in working.stderr.readline()
    serving = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    done = finish(working)
    serving.send_signal(signal.SIGTERM)
    serving.communicate(timeout=PATIENCE_S)
    assert done.code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--declare", "wheels=4"], "'wheels'"),
        (["--grace", "soon"], "--grace"),
        (["--name", "a/b", "--join", "http://127.0.0.1:9"], "can't be a worker's name"),
    ],
    ids=["wheels", "grace", "name"],
)
def test_what_it_can_not_take_is_refused_before_anything_happens(shell: Shell, words: list[str], said: str):
    done = shell.stoker("work", *words)
    assert done.code == 2
    assert said in done.err
    assert not (shell.home / "state" / "worker").exists()


def test_a_worker_waits_and_says_nothing_where_only_a_tcp_port_answers(shell: Shell):
    with LittleServer(lambda _asked: Said(body=b"{}")) as impostor:
        working = shell.start("work", "--join", impostor.url)
        assert working.stdout is not None
        line = working.stdout.readline()
        working.send_signal(signal.SIGTERM)
        done = finish(working)
        assert impostor.asked == []
        assert not impostor.links
    assert "no process of this user listens at the socket of" in line
    assert done.code in (0, 143)


@pytest.mark.timing
def test_a_running_job_is_cancelled_at_once_and_not_with_the_next_heartbeat(home: Shell, url: str):
    pid = home.folder / "unwanted.pid"
    script = f"echo $$ > {pid.name}; while :; do sleep 0.05; done"
    working = home.start("work", "--name", "obedient", "--join", url)
    with FleetDesk(url, home.home) as desk:
        desk.submit("unwanted", "/bin/sh", "-c", script, folder=home.folder, allowed_hosts=("obedient",))
        wait_until(lambda: pid.exists() and pid.read_text().strip())
        # A heartbeat comes every 30 s, and the first ones came with the start.
        began_s = time.monotonic()
        done = home.stoker("cancel", "unwanted")
        assert time.monotonic() - began_s < PUSHED_S
        assert done.code == 0, done.err
        assert desk.states()["unwanted"] == ("cancelled", "obedient")
    assert subprocess.run(["/bin/kill", "-0", pid.read_text()], check=False).returncode
    working.send_signal(signal.SIGTERM)
    assert finish(working).code == 143


def test_a_killed_workers_job_is_found_again_and_finished_as_the_same_attempt(home: Shell, url: str):
    pid, go = home.folder / "waiter.pid", home.folder / "go"
    script = f"echo $$ > {pid.name}; while ! test -e {go.name}; do sleep 0.02; done"
    first = home.start("work", "--name", "desk", "--join", url)
    with FleetDesk(url, home.home) as desk:
        desk.submit("kept", "/bin/sh", "-c", script, folder=home.folder, allowed_hosts=("desk",))
        wait_until(lambda: desk.states()["kept"][0] == "running" and pid.exists() and pid.read_text().strip())
        double = home.stoker("work", "--name", "desk", "--join", url)
        assert (double.code, "is already running here" in double.err) == (16, True)
        first.kill()
        first.communicate(timeout=PATIENCE_S)
        second = home.start("work", "--name", "desk", "--join", url, "--until-idle", "--json")
        assert second.stdout is not None
        assert json.loads(second.stdout.readline())["kind"] == "adopted"
        go.touch()
        assert finish(second).code == 0
        story = desk.client.job("kept")
        assert [(attempt.ending, attempt.machine) for attempt in story.attempts] == [("completed", "desk")]


def test_two_workers_share_the_jobs_by_what_they_declare_and_give_back_what_runs(home: Shell, url: str):
    shell, pid = home, home.folder / "pid"
    script = "echo $$ > pid; while :; do sleep 0.05; done"
    with FleetDesk(url, shell.home) as desk:
        desk.submit("large", "echo", "large", folder=shell.folder, needs={"cores": 2}, allowed_hosts=("big", "little"))
        desk.submit("long", "/bin/sh", "-c", script, folder=shell.folder, allowed_hosts=("little",))
        little = shell.start("work", "--name", "little", "--join", url, "--declare", "cores=1,gpus=0")
        wait_until(lambda: pid.exists() and pid.read_text().strip())
        big = shell.stoker("work", "--name", "big", "--once", "--json")
        assert big.code == 0, big.err
        assert [one["kind"] for one in big.objects()] == ["joined", "granted", "started", "ended", "settled"]
        assert all({"v", "ts", "seq", "source", "kind"} <= one.keys() for one in big.objects())
        assert "little releases its jobs" in shell.stoker("pause", "2h").out
        wait_until(lambda: desk.states()["long"][0] == "pending")
        assert desk.client.machine("little").state == "paused"
        assert desk.states()["large"] == ("completed", "big")
    little.send_signal(signal.SIGTERM)
    lines = finish(little)
    assert lines.code == 143, lines.err
    assert "joined as little: 1 job at once" in lines.out
    assert "long released" in lines.out
    assert subprocess.run(["/bin/kill", "-0", pid.read_text()], check=False).returncode
    assert shell.stoker("pause", "--off").out == "resumed: takes jobs\n"


def test_a_pause_without_sense_is_refused(shell: Shell):
    assert shell.stoker("pause", "soon").code == 2
    assert shell.stoker("pause", "2h", "--off").code == 2
    (told,) = shell.stoker("pause", "--json").objects()
    assert told == {"is_paused": True, "until_s": None, "workers": []}
    (status,) = shell.stoker("status", "--json").objects()
    assert status["paused"].startswith("paused")


def test_a_worker_that_works_for_a_time_gives_its_job_back_then_and_takes_none_that_is_too_long(home: Shell, url: str):
    with FleetDesk(url, home.home) as desk:
        only: dict[str, Any] = {"folder": home.folder, "allowed_hosts": ("brief",)}
        desk.submit("too-long", "/bin/true", **only, expected_s=3600.0)
        desk.submit("endless", "/bin/sh", "-c", "while :; do sleep 0.05; done", **only)
        words = ("work", "--name", "brief", "--join", url, "--slots", "2", "--json", "--for")
        done = home.stoker(*words, "3s")
        if not any(one["kind"] == "granted" for one in done.objects()):
            # On a busy machine a worker may need longer than that to join.
            done = home.stoker(*words, "25s")
        told = done.objects()
        assert done.code == 0, done.err
        assert [one["job"] for one in told if one["kind"] == "granted"] == ["endless"]
        assert [one["why"] for one in told if one["kind"] == "leaving"] == ["time limit reached"]
        assert sum(one["kind"] == "joined" for one in told) == 1
        states = desk.states()
        assert states["too-long"] == ("pending", "")
        assert states["endless"][0] == "pending"
    machines = [json.loads(line) for line in home.stoker("machines", "--json").out.splitlines()]
    assert [(one["state"], one["ends_s"]) for one in machines if one.get("name") == "brief"] == [("left", None)]
    for name in ("too-long", "endless"):
        assert home.stoker("cancel", name).code == 0
