"""Two `stoker run` that meet in one process, through real commands."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.shell import PATIENCE_S, Shell, finish

CHOIR = Path(__file__).parents[1] / "cookbooks" / "choir"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every stage has a process of its own")


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.01)


def process_of(gate: Path, voice: int) -> int:
    """Return the process that a voice sings in; 0 before it does."""
    singing = gate / f"{voice}.singing"
    words = singing.read_text().split() if singing.exists() else []
    return int(words[0]) if words else 0


def test_two_runs_share_one_process_which_outlives_the_one_that_started_it(tmp_path: Path, index: Path) -> None:
    shell = Shell(tmp_path, cookbook=CHOIR, index=index)
    shell.env |= {"STOKER_RUNTIME": str(tmp_path / "doors"), "STOKER_COMPANY_LINGER": "0.2"}
    gate, song = tmp_path / "gate", shell.folder / "song.txt"
    gate.mkdir()
    song.write_text("la")

    def sing(voice: int) -> list[str]:
        return ["run", "choir/voice", f"song={song}", f"voice={voice}", f"gate={gate}", "--name", f"voice{voice}"]

    first = shell.start(*sing(1))
    wait_until(lambda: process_of(gate, 1) > 0, "the first does not sing")
    second = shell.start(*sing(2))
    wait_until(lambda: process_of(gate, 2) > 0, "the second does not sing")
    shared = process_of(gate, 1)
    assert process_of(gate, 2) == shared
    first.send_signal(signal.SIGKILL)
    first.communicate()
    (gate / "2").touch()
    done = finish(second)

    assert (done.code, process_of(gate, 2)) == (0, shared)
    assert (shell.folder / "stoker-out" / "voice2").exists()
    together = "in one process with 1 other, 2 at once: voice1/"
    assert together in shell.stoker("explain", "voice2").out
    assert together in shell.stoker("jobs", "show", "voice2").out
    wait_until(lambda: not os.path.exists(f"/proc/{shared}"), "the shared process does not end")
    wait_until(lambda: os.listdir(tmp_path / "doors") == ["lock"], "a door is left")


def test_cancelling_one_member_of_a_shared_process_leaves_the_others(tmp_path: Path, index: Path) -> None:
    shell = Shell(tmp_path, cookbook=CHOIR, index=index)
    shell.env |= {"STOKER_RUNTIME": str(tmp_path / "doors"), "STOKER_COMPANY_LINGER": "0.2"}
    gate, song = tmp_path / "gate", shell.folder / "song.txt"
    gate.mkdir()
    song.write_text("la")
    process = shell.start("run", "choir/voice", f"song={song}", "voice=1,2,3", f"gate={gate}", "--name", "choir")
    wait_until(lambda: all(process_of(gate, voice) > 0 for voice in (1, 2, 3)), "not all of them sing")
    cancelled = shell.stoker("cancel", "choir/2")
    assert cancelled.code == 0, cancelled.err
    for voice in (1, 3):
        (gate / str(voice)).touch()
    done = finish(process)
    assert done.code == 1
    assert "1 of 3 trials was cancelled: voice=2" in done.err
    assert process_of(gate, 1) == process_of(gate, 3)
    assert sorted(os.listdir(shell.folder / "stoker-out" / "choir")) == ["best", "voice=1", "voice=3"]


def test_solo_runs_a_stage_in_a_process_of_its_own(tmp_path: Path, index: Path) -> None:
    shell = Shell(tmp_path, cookbook=CHOIR, index=index)
    shell.env["STOKER_RUNTIME"] = str(tmp_path / "doors")
    gate, song = tmp_path / "gate", shell.folder / "song.txt"
    gate.mkdir()
    (gate / "1").touch()
    song.write_text("la")
    done = shell.stoker("run", "choir/voice", f"song={song}", "voice=1", f"gate={gate}", "--solo")

    assert done.code == 0, done.err
    assert not (tmp_path / "doors").exists()
