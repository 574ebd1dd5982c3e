"""The cockpit in tmux: it starts, takes keys, follows the size of the window, and leaves the terminal as it was."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from stoker.core.clock import SystemClock
from stoker.tui.cockpit import run_cockpit
from stoker.tui.cockpit_state import CockpitState
from stoker.tui.controls import CockpitControls
from stoker.tui.requests import RequestThreads
from tests.fakes.monitor import MemoryMonitor, job, machine
jobs = [job(1), job(2, "failed", why="\\x1b[31mred"), job(3, "pending", name="模型")]
monitor = MemoryMonitor(jobs, [machine("desk")])
monitor.longest_wait_s = 1.0
controls = CockpitControls(monitor, SystemClock(), CockpitState(), RequestThreads())
sys.exit(run_cockpit(controls, has_colour="colour" in sys.argv, is_ascii=False, has_mouse=False))
"""

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


OTHER_TERMINAL = ("-u", "NO_COLOR", "-u", "COLUMNS", "-u", "LINES")
"""What the environment of the tests says of a terminal; a size there would go before that of the window."""


class Tmux:
    """A tmux server of its own with one window."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux")
        self._folder = folder
        self.run("new-session", "-d", "-x", "80", "-y", "24", "env", *OTHER_TERMINAL, "PS1=% ", "sh")

    def run(self, *words: str) -> str:
        environment = {**os.environ, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TMUX": ""}
        command = ["tmux", "-u", "-f", os.devnull, "-S", self._socket, *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    def start(self, before: str, *words: str) -> None:
        program = self._folder / "program.py"
        program.write_text(PROGRAM)
        line = f"{before} {sys.executable} {program} {ROOT} {' '.join(words)}; echo left $?"
        self.run("send-keys", line, "Enter")

    def keys(self, *names: str) -> None:
        self.run("send-keys", *names)

    def screen(self, *words: str) -> str:
        return self.run("capture-pane", "-p", *words)

    def wait_for(self, *texts: str) -> str:
        until_s, shown = time.monotonic() + PATIENCE_S, ""
        while time.monotonic() < until_s:
            shown = self.screen()
            if all(text in shown for text in texts):
                return shown
            time.sleep(0.05)
        raise AssertionError(f"{texts} not shown:\n{shown}")


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    found = Tmux(tmp_path)
    yield found
    found.run("kill-server")


def test_the_cockpit_starts_takes_keys_follows_the_size_and_leaves_nothing_behind(tmux: Tmux) -> None:
    tmux.start("", "colour")
    shown = tmux.wait_for("● live", "▶ resnet/1", "enter open")
    assert len(shown.splitlines()) == 24
    assert "[31mred" in shown
    lines = {line.split()[1]: line for line in shown.splitlines() if line.startswith((" ▶", " ·"))}
    assert lines["模型"].index("pending") == lines["resnet/1"].index("running") - 2, "wide characters line up"
    assert "\x1b[32m" in tmux.screen("-e")
    tmux.keys("Enter")
    tmux.wait_for("job ▸ resnet/1", "loss 0.13 at step 999")
    tmux.run("resize-window", "-x", "200", "-y", "50")
    tmux.keys("q")
    tmux.wait_for("machines  : command", "1 curves", "│ resnet/1 running")
    tmux.run("resize-window", "-x", "60", "-y", "12")
    tmux.wait_for("enter open")
    tmux.keys("c")
    tmux.wait_for("cancel resnet/1? y yes")
    tmux.keys("n")
    tmux.wait_for("not done")
    tmux.keys("q")
    assert "live" not in tmux.wait_for("left 0")


def test_without_colour_no_colour_is_written_and_a_signal_restores_the_terminal(tmux: Tmux) -> None:
    tmux.start("NO_COLOR=1")
    tmux.wait_for("● live", "✗ resnet/2")
    codes = set(re.findall(r"\x1b\[([\d;]*)m", tmux.screen("-e")))
    assert not [code for code in codes if re.search(r"(^|;)[349][0-8]", code)], codes
    shell = int(tmux.run("display-message", "-p", "#{pane_pid}"))
    child = int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])
    os.kill(child, 15)
    assert "live" not in tmux.wait_for("left 143")
