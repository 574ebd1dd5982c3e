"""`stoker crossval --candidate-on MACHINE`: a real coordinator, two real workers, llama.cpp on both."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.shell import Shell, finish, wait_until

pytest.importorskip("xllamacpp")

MACHINES = ("desk", "lab1")


@pytest.fixture
def fleet(shell: Shell, tmp_path: Path, index: Path) -> Iterator[Shell]:
    """A shell whose home serves, with two workers in homes of their own."""
    serving = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    running: list[subprocess.Popen[str]] = [serving]
    try:
        assert serving.stdout is not None
        url = json.loads(serving.stdout.readline())["url"]
        for name in MACHINES:
            worker = Shell(tmp_path / name, index=index)
            running.append(worker.start("work", "--name", name, "--join", url))
        wait_until(lambda: len(shell.stoker("machines", "--json").out.splitlines()) > len(MACHINES))
        yield shell
    finally:
        for process in reversed(running):
            process.send_signal(signal.SIGTERM)
            finish(process)


def test_two_machines_are_compared_and_one_that_can_not_run_it_is_named(fleet: Shell):
    made = fleet.stoker("fixtures", "--size", "tiny", "--output", "models/tiny", "--formats", "f32")
    assert made.code == 0, made.err
    words = ("crossval", "--candidate", "llama.cpp", "--candidate-on", "desk", "--positions", "8", "--no-decode")
    shown = fleet.stoker(*words, "--reference-on", "lab1", "--dry-run")
    assert shown.code == 0, shown.err
    assert "starts with the next claim of desk" in shown.out
    assert "starts with the next claim of lab1" in shown.out
    assert fleet.stoker("jobs", "--json").out == ""
    done = fleet.stoker(*words, "--reference-on", "lab1")
    assert done.code == 0, done.out + done.err
    verdict = json.loads((fleet.folder / "stoker-out/crossval/parity.json").read_text())
    assert verdict["outcome"] == "passed"
    assert {side: verdict[side]["machine"]["name"] for side in ("candidate", "reference")} == {
        "candidate": "desk",
        "reference": "lab1",
    }
    again = fleet.stoker(*words, "--reference-on", "lab1")
    assert "2 jobs: 2 known" in again.out
    assert "all 3 stages were cached" in again.out
    # A completed side is started again if that is asked for; its machine finds that nothing has changed there.
    rerun = fleet.stoker(*words, "--reference-on", "lab1", "--rerun", "candidate")
    assert rerun.code == 0, rerun.out + rerun.err
    jobs = map(json.loads, fleet.stoker("jobs", "--json").out.splitlines())
    attempts = {one["name"]: one["attempt"] for one in jobs if one["name"].startswith("crossval-")}
    assert attempts == {"crossval-candidate": 2, "crossval-reference": 1}
    # The same work twice is one job.
    same = fleet.stoker(*words, "--reference-on", "desk", "--dry-run")
    assert same.code == 0, same.out + same.err
    assert "1 job: 1 known" in same.out
    # One side on a machine that has no such interpreter, the other one here.
    broken = ("crossval", "--candidate", "llama.cpp,python=/no/python", "--reference", "llama.cpp")
    failed = fleet.stoker(*broken, "--candidate-on", "lab1", "--positions", "8")
    assert failed.code == 1, failed.out + failed.err
    assert "candidate on lab1: " in failed.err
    report = json.loads((fleet.folder / "stoker-out/crossval/report.json").read_text())
    assert report["outcome"] == "error"
    assert not (fleet.folder / "stoker-out/crossval/parity.json").exists()
    unknown = fleet.stoker(*words, "--reference-on", "lab7")
    assert "no machine 'lab7'" in unknown.err
