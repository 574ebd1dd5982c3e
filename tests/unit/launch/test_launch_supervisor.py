"""A child process beside ours: its secret stands nowhere, it is started again, and it ends with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.launch import service
from stoker.launch.service import SupervisedChild

SECRET = "s3cret-of-the-child"
CLOCK = SystemClock()
CHILD = """\
import os, sys
secret = sys.stdin.readline().strip()
shown = open("/proc/self/cmdline").read() + open("/proc/self/environ").read()
print("started", os.getpid(), len(secret), secret in shown, flush=True)
sys.stdin.read()
print("line closed", flush=True)
"""


class Heard:
    """Lines of a child."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()

    def until(self, is_so: Callable[[list[str]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: is_so(self.lines), timeout=30), self.lines


def child(heard: Heard, text: str = CHILD) -> SupervisedChild:
    return SupervisedChild(
        (sys.executable, "-c", text), folder="/", environment={}, secret=SECRET, on_line=heard, clock=CLOCK
    )


def test_the_secret_comes_by_the_life_line_and_the_child_ends_when_that_closes() -> None:
    heard = Heard()
    made = child(heard)
    made.start()
    heard.until(lambda lines: len(lines) == 1)
    assert heard.lines[0].split()[2:] == [str(len(SECRET)), "False"]
    made.close()
    assert heard.lines[1:] == ["line closed"]


def test_a_child_that_ends_is_started_again_after_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_FIRST_PAUSE_S", 0.01)
    heard = Heard()
    made = child(heard, "import sys; print('tried'); sys.exit(3)")
    made.start()
    heard.until(lambda lines: lines.count("tried") == 3)
    made.close()
    assert "ended with exit code 3; starts again in 0 s" in heard.lines
    assert not any(SECRET in line for line in heard.lines)


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = f"""\
import time
from stoker.core.clock import SystemClock
from stoker.launch.service import SupervisedChild
argv = ({sys.executable!r}, "-c", {CHILD!r})
show = lambda line: print(line, flush=True)
SupervisedChild(argv, folder="/", environment={{}}, secret="x", on_line=show, clock=SystemClock()).start()
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        number = int(process.stdout.readline().split()[1])
        process.send_signal(signal.SIGKILL)
    until_s = CLOCK.monotonic_s() + 20
    while os.path.exists(f"/proc/{number}") and _state(number) != "Z":
        assert CLOCK.monotonic_s() < until_s, "the child lives on"
        CLOCK.sleep(0.05)


def _state(number: int) -> str:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@contextmanager
def watch(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start `stoker launch watch` as `stoker serve --launch` does, with its input open."""
    argv = [sys.executable, "-m", "stoker", "launch", "watch", "--token-stdin", *words]
    environment = {"PATH": os.environ["PATH"], "STOKER_HOME": str(folder)}
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=environment, stdin=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(f"{SECRET}\n")
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def test_a_watcher_that_fails_while_its_input_is_open_ends_with_the_code_of_its_error(tmp_path: Path) -> None:
    with watch(tmp_path, "--at", "http://127.0.0.1:1") as process:
        assert process.wait(30) == 34
        assert process.stderr is not None
        assert "Fatal Python error" not in process.stderr.read()


def test_a_watcher_that_waits_for_its_coordinator_ends_with_its_input(tmp_path: Path) -> None:
    with watch(tmp_path) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        assert process.stderr.readline().startswith("waiting for a coordinator")
        process.stdin.close()
        assert process.wait(30) == 143
