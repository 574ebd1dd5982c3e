from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.core.digests import Digest
from stoker.core.errors import InvalidTransition
from stoker.core.job import JobState
from stoker.host.identity import of_pid
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.stop import JobStopMethod, stop_job
from tests.fakes.jobs import made_attempt
from tests.unit.host.real_processes import is_running


def begin(runs: Path, process: subprocess.Popen[str]) -> JobFolder:
    spec = made_attempt(
        attempt="20261115-031502-7f3a",
        job_id=Digest("0" * 64),
        name="it",
        recipe="x/y",
        args={},
        folder=str(runs),
        started_s=1.0,
        stoker="0",
    )
    owner = of_pid(process.pid)
    assert owner is not None
    return JobFolder.begin(str(runs), spec, owner)


def start(script: str) -> subprocess.Popen[str]:
    """Start a shell as a process of its own and wait until it says a line."""
    return subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    with process.stdout:
        return process.stdout.readline()


def test_an_owner_that_ends_when_asked_is_stopped_politely(tmp_path: Path) -> None:
    process = start("echo ready; exec sleep 1000")
    said(process)
    folder = begin(tmp_path / "runs", process)
    assert stop_job(folder, clock=SystemClock()).how is JobStopMethod.POLITE
    assert process.wait(5) == -15
    assert folder.state() == (JobState.CANCELLED, "")


def test_an_owner_that_does_not_listen_is_killed_with_all_it_started(tmp_path: Path) -> None:
    process = start("trap '' TERM; setsid sleep 1000 & echo $!; while :; do sleep 0.05; done")
    child = int(said(process))
    folder = begin(tmp_path / "runs", process)
    stopped = stop_job(folder, clock=SystemClock(), patience_s=0.3)
    assert stopped.how is JobStopMethod.FIRM
    assert process.wait(5) == -9
    assert not is_running(child)
    end = folder.ended()
    assert end is not None
    assert (end.state, end.exit_code) == (JobState.CANCELLED, 143)


def test_a_job_that_is_over_is_not_stopped_again(tmp_path: Path) -> None:
    process = start("echo over; read -r line")
    said(process)
    folder = begin(tmp_path / "runs", process)
    process.kill()
    process.wait()
    with pytest.raises(InvalidTransition, match="job it is not running: failed, its process is gone"):
        stop_job(folder, clock=SystemClock())
