"""Standard output that can't be written: one line on standard error, never a traceback, and a run still runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.system.shell import PATIENCE_S, Shell


def into_a_full_device(shell: Shell, *words: str) -> tuple[int, str]:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "stoker", *words],
            cwd=shell.folder,
            env=shell.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("words", [["recipes"], ["recipes", "--json"]])
def test_a_full_device_is_told_and_is_no_bug(shell: Shell, words: list[str]) -> None:
    code, told = into_a_full_device(shell, *words)
    assert code != 70
    assert "Traceback" not in told
    assert "can't write to standard output: No space left on device" in told


def test_an_error_keeps_its_exit_code_when_it_can_not_be_written(shell: Shell) -> None:
    code, told = into_a_full_device(shell, "recipes", "show", "no/such", "--json")
    assert code == shell.stoker("recipes", "show", "no/such").code
    assert "Traceback" not in told
    assert "can't write to standard output: No space left on device" in told


def test_a_run_goes_on_when_its_events_can_not_be_written(shell: Shell) -> None:
    _, told = into_a_full_device(shell, "run", "toy/sum", "value=1", "--json")
    assert "Traceback" not in told
    assert shell.stoker("jobs", "--json").objects()[0]["state"] == "completed"
