"""Large sweeps: the time and memory that a trial costs stays what it is, however many there are."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.system.shell import Shell

MIB = 1024


def measured(shell: Shell, *words: str) -> tuple[list[str], float, int]:
    """Run a command; give what it printed, how long it took and the most memory it had, in KiB."""
    started_s = time.monotonic()
    printed = shell.folder / "printed"
    with open(printed, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stoker", *words], cwd=shell.folder, env=shell.env, stdout=file
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    lines = printed.read_text().splitlines()
    print(f"{' '.join(words)}: {time.monotonic() - started_s:.1f} s, {usage.ru_maxrss // MIB} MiB")
    return lines, time.monotonic() - started_s, usage.ru_maxrss


@pytest.mark.slow
def test_ten_thousand_trials_are_ordered_and_foreseen_in_seconds(shell: Shell) -> None:
    few = measured(shell, "run", "toy/slow-inline", "value=range:0:1000:1", "--dry-run")
    many = measured(shell, "run", "toy/slow-inline", "value=range:0:10000:1", "--dry-run")
    assert len(many[0]) == 10_000 + 3
    assert many[1] < 15 * max(few[1], 1.0)
    # A few kilobytes for each.
    assert many[2] - few[2] < 60 * MIB


@pytest.mark.slow
def test_a_thousand_trials_run_and_the_same_line_runs_none_of_them(shell: Shell) -> None:
    lines, _, peak = measured(shell, "run", "toy/slow-inline", "value=range:0:1000:1")
    assert lines[-2] == "1000 ok."
    assert peak < 120 * MIB
    assert len(list((shell.folder / "stoker-out/slow-inline").iterdir())) == 1000
    lines, _, _ = measured(shell, "run", "toy/slow-inline", "value=range:0:1000:1")
    assert lines[0] == "= 1,000 trials were known"
    assert lines[1] == "1000 ok (1000 kept)."
