"""Stopping a job: by Ctrl-C, by a second one, by `cancel`, by kill -9. Nothing is left running, nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.system.shell import Shell, alive, descendants, finish, wait_until


def start_waiting(shell: Shell, recipe: str = "toy/slow", *words: str) -> tuple[subprocess.Popen[str], Path, set[int]]:
    """Start a job that waits for its gate, and give it once its stage runs, with the gate and all its processes."""
    gate, ledger = shell.folder / "gate", shell.folder / "ledger"
    process = shell.start("run", recipe, "value=1", f"gate={gate}", f"ledger={ledger}", *words)
    wait_until(lambda: ledger.exists() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process, gate, descendants(process.pid)


def test_ctrl_c_stops_the_stage_cleans_up_and_the_same_command_continues(shell: Shell) -> None:
    process, gate, family = start_waiting(shell)
    assert family
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 130
    assert "stopping…" in done.err
    assert "stoker: interrupted" in done.err
    assert "hint: the same command continues" in done.err
    assert alive(family) == set()
    assert shell.staged() == []
    assert list((shell.home / "store/leases").glob("?" * 64)) == []
    (job,) = shell.stoker("jobs", "--json").objects()
    assert (job["state"], job["exit_code"]) == ("cancelled", 130)
    gate.touch()
    assert shell.stoker("run", "toy/slow", "value=1", f"gate={gate}").code == 0


def test_ctrl_c_twice_ends_at_once_even_what_does_not_listen(shell: Shell) -> None:
    process, _, family = start_waiting(shell, "toy/slow", "stubborn=true")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "stopping" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 130
    assert alive(family) == set()
    assert shell.staged() == []
    assert shell.stoker("jobs", "--json").objects()[0]["state"] == "cancelled"


def test_ctrl_c_twice_ends_work_in_the_engine_itself(shell: Shell) -> None:
    process, _, _ = start_waiting(shell, "toy/slow-inline")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "stopping" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 130
    assert shell.staged() == []
    assert shell.stoker("jobs", "--json").objects()[0]["state"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_is_obeyed_with_143(shell: Shell, number: signal.Signals) -> None:
    process, _, family = start_waiting(shell, "toy/slow", "--json")
    process.send_signal(number)
    done = finish(process)
    assert done.code == 143
    assert alive(family) == set()
    assert done.objects()[-1]["error"]["error"] == "terminated"


def test_cancel_stops_a_job_of_another_process_and_says_when_it_has(shell: Shell) -> None:
    process, _, family = start_waiting(shell)
    running = shell.stoker("status")
    assert "slow running, started" in running.out
    assert "wait" in running.out
    assert shell.stoker("jobs", "rm", "slow").code == 30
    done = shell.stoker("cancel", "slow")
    assert done.code == 0, done.err
    assert "cancelled slow: stopped in its grace period" in done.out
    assert process.poll() is not None
    assert alive(family) == set()
    assert finish(process).code == 143
    again = shell.stoker("cancel", "slow")
    assert again.code == 30
    assert "job slow is not running: cancelled" in again.err


def test_cancel_stops_an_older_job_that_still_runs_when_a_newer_one_of_its_name_has_ended(shell: Shell) -> None:
    process, _, family = start_waiting(shell)
    (shell.folder / "open").touch()
    newer = shell.stoker("run", "toy/slow", "value=2", f"gate={shell.folder / 'open'}", f"ledger={shell.folder / 'l'}")
    assert newer.code == 0, newer.err
    by_id = shell.stoker("cancel", "last")
    assert (by_id.code, "job slow is not running: completed" in by_id.err) == (30, True), by_id.err
    done = shell.stoker("cancel", "slow")
    assert done.code == 0, done.err
    assert "cancelled slow: stopped in its grace period" in done.out
    assert finish(process).code == 143
    assert alive(family) == set()
    again = shell.stoker("cancel", "slow")
    assert (again.code, "job slow is not running: completed" in again.err) == (30, True), again.err


def test_after_kill_9_the_job_has_failed_nothing_runs_on_and_a_rerun_continues(shell: Shell) -> None:
    process, gate, family = start_waiting(shell)
    process.kill()
    finish(process)
    wait_until(lambda: not alive(family))
    listed = shell.stoker("jobs")
    assert "failed" in listed.out
    assert "its process is gone" in listed.out
    gate.touch()
    done = shell.stoker("run", "toy/slow", "value=1", f"gate={gate}")
    assert done.code == 0, done.err


def test_a_log_can_be_followed_until_its_job_ends(shell: Shell) -> None:
    process, gate, _ = start_waiting(shell)
    following = shell.start("logs", "last", "-f")
    assert following.stdout is not None
    assert following.stdout.readline() == "==> wait <==\n"
    assert following.stdout.readline() == "waiting\n"
    gate.touch()
    assert finish(process).code == 0
    done = finish(following)
    assert done.code == 0
    assert done.out.splitlines() == ["", "==> double <==", "doubling"]


def test_a_job_that_was_started_to_ignore_ctrl_c_ignores_it(shell: Shell) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process, gate, _ = start_waiting(shell)
    finally:
        signal.signal(signal.SIGINT, before)
    os.kill(process.pid, signal.SIGINT)
    gate.touch()
    assert finish(process).code == 0
