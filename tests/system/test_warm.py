"""A warm command is what `python -m stoker` is, and differs in nothing but how it begins."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.system.shell import Shell
from tests.system.warm import WarmCommand, may_start_warm


@pytest.mark.parametrize("words", [["--version"], ["recipes", "--json"], ["fetch"], ["jobs", "show", "nóne\udcff"]])
def test_it_says_and_answers_the_same(shell: Shell, words: list[str]) -> None:
    anew = [sys.executable, "-P", "-m", "stoker", *words]
    asked = subprocess.run(anew, cwd=shell.folder, env=shell.env, capture_output=True, text=True, check=False)
    warm = WarmCommand(words, folder=shell.folder, env=shell.env)
    assert (*warm.communicate(), warm.returncode) == (asked.stdout, asked.stderr, asked.returncode)


def test_it_runs_until_it_is_killed(shell: Shell) -> None:
    with WarmCommand(["serve", "--listen", "127.0.0.1:0", "--json"], folder=shell.folder, env=shell.env) as warm:
        assert warm.stdout is not None
        assert "url" in warm.stdout.readline()
        assert warm.poll() is None
        warm.kill()
        assert warm.wait(30) == -signal.SIGKILL


def test_what_an_interpreter_reads_as_it_starts_makes_it_start_anew(shell: Shell) -> None:
    assert may_start_warm(shell.env)
    assert not may_start_warm({**shell.env, "PYTHONUTF8": "0"})
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert not may_start_warm(shell.env)
    finally:
        signal.signal(signal.SIGINT, before)
