"""Large sweeps: the time and memory that a trial costs stays what it is, however many there are."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.system.shell import Shell

MIB = 1024
# By a process between: what Linux tells of a child begins with what its parent held when it was forked, and that may
# be a gigabyte after other tests.
MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def measured(shell: Shell, *words: str) -> tuple[list[str], float, int]:
    """Run a command; give what it printed, how long it took and the most memory it had, in KiB."""
    started_s = time.monotonic()
    printed = shell.folder / "printed"
    command = [sys.executable, "-c", MEASURE, sys.executable, "-P", "-m", "stoker", *words]
    with open(printed, "wb") as file:
        done = subprocess.run(
            command, cwd=shell.folder, env=shell.env, stdout=file, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    peak = int(done.stderr.splitlines()[-1])
    lines = printed.read_text().splitlines()
    print(f"{' '.join(words)}: {time.monotonic() - started_s:.1f} s, {peak // MIB} MiB")
    return lines, time.monotonic() - started_s, peak


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
    assert lines[0] == "= 1,000 trials cached"
    assert lines[1] == "1000 ok (1000 kept)."
