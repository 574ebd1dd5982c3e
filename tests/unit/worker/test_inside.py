"""Operators' commands beside running jobs, on their machine: real processes, a coordinator on paper."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from stoker.core.clock import SystemClock
from stoker.core.errors import InvalidTransition, NoCoordinator, ProgramNotFound, StaleLease
from stoker.core.leases import AttemptToken
from stoker.host.containment.box import MARK
from stoker.host.identity import living_rows, mine
from stoker.host.processes import Child, start
from stoker.protocol.client import FleetClient
from stoker.protocol.lease_messages import ExecCall
from stoker.protocol.operator_messages import ExecEnd, ExecInput, ExecListen, ExecPiece
from stoker.protocol.view_messages import DoneView
from stoker.worker.exec_command import (
    MOST_PER_JOB,
    AttemptEnv,
    CommandSessions,
    ExecSession,
    ExecTarget,
    command_for,
    find_running,
    place_beside,
)
from tests.unit.host.real_processes import PATIENCE_S, is_running, wait_until

TOKEN = AttemptToken(job="a" * 64, attempt=1, epoch=1, generation=0)
SECRET = "hunter2/for+real"
ENV = {"PATH": os.environ["PATH"]}


class Paper:
    """A coordinator: what it gives to read, and what it was sent."""

    def __init__(self, typed: bytes = b"", *, is_eof: bool = True) -> None:
        self.typed = typed
        self.is_eof = is_eof
        self.sent: dict[int, bytes] = {1: b"", 2: b""}
        self.ended: list[ExecEnd] = []
        self.failures: list[Exception] = []
        self.over = ""
        self.said = threading.Event()

    def hear_exec(self, job: str, session: str, said: ExecListen) -> ExecInput:
        rest = self.typed[said.offset :]
        if not rest and said.is_eof == self.is_eof:
            self.said.wait(0.05)
        data = ExecPiece.of(0, rest).data_base64
        return ExecInput(data_base64=data, is_eof=self.is_eof, rows=said.rows, columns=said.columns, over=self.over)

    def put_exec(
        self, token: AttemptToken, session: str, data: bytes, *, stream: int, offset: int, wait_s: float
    ) -> int:
        if self.failures:
            raise self.failures.pop()
        assert offset == sum(map(len, self.sent.values()))
        # There is never room for all.
        self.sent[stream] += data[:1000]
        return offset + len(data[:1000])

    def finish_exec(self, job: str, session: str, said: ExecEnd) -> DoneView:
        self.ended.append(said)
        self.said.set()
        return DoneView()


def call(*argv: str, number: int = 0, is_tty: bool = False) -> ExecCall:
    return ExecCall(id=f"{number:032x}", job=TOKEN.job, attempt=1, epoch=1, generation=0, argv=argv, is_tty=is_tty)


def run(paper: Paper, *argv: str, is_tty: bool = False, hidden: tuple[str, ...] = ()) -> ExecEnd:
    place = ExecTarget(folder="/", environment=ENV, hidden=hidden)
    ExecSession(call(*argv, is_tty=is_tty), cast(FleetClient, paper), SystemClock()).run(lambda: place)
    (ended,) = paper.ended
    return ended


def test_a_command_reads_what_was_typed_and_all_it_wrote_arrives_in_order():
    paper = Paper(b"abc" * 5000)
    assert run(paper, "sh", "-c", "cat; echo aside >&2; exit 3").exit_code == 3
    assert paper.sent == {1: b"abc" * 5000, 2: b"aside\n"}


def test_a_command_at_a_terminal_has_one_and_a_shell_is_the_default():
    paper = Paper(b"stty size\necho it is $((40 + 2))\nexit 5\n", is_eof=False)
    assert run(paper, is_tty=True).exit_code == 5
    assert b"24 80" in paper.sent[1]
    assert b"it is 42" in paper.sent[1]


@pytest.mark.parametrize("is_tty", [False, True], ids=["pipes", "terminal"])
def test_secrets_of_the_job_are_kept_out_of_what_a_command_prints(is_tty: bool):
    paper = Paper()
    run(paper, "sh", "-c", f"echo it is {SECRET}; echo hunter9", is_tty=is_tty, hidden=(SECRET,))
    assert b"it is ***" in paper.sent[1]
    assert b"hunter9" in paper.sent[1]


def test_a_signal_is_told_as_shells_do_and_what_is_no_program_is_told_apart():
    assert run(Paper(), "sh", "-c", "kill -9 $$").exit_code == 137
    ended = run(Paper(), "no-such-program")
    assert (ended.exit_code, "no-such-program" in ended.message) == (127, True)


def test_a_coordinator_that_is_away_for_a_moment_costs_no_byte():
    paper = Paper()
    paper.failures = [NoCoordinator("away"), NoCoordinator("away")]
    assert run(paper, "echo", "whole").exit_code == 0
    assert paper.sent[1] == b"whole\n"


def test_a_command_whose_lease_is_another_s_is_killed():
    paper = Paper(is_eof=False)
    paper.failures = [StaleLease("over")]
    ended = run(paper, "sh", "-c", "echo x; sleep 1000")
    assert ended.exit_code > 128
    assert "over" in ended.message


def test_whoever_goes_takes_the_command_and_its_background_along(tmp_path: Path):
    paper = Paper(is_eof=False)
    told = tmp_path / "pid"
    thread = threading.Thread(target=run, args=(paper, "sh", "-c", f"sleep 1000 & echo $! > {told}; wait"))
    thread.start()
    wait_until(lambda: told.exists() and bool(told.read_text().strip()))
    paper.over = "whoever began it is gone"
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    wait_until(lambda: not is_running(int(told.read_text())))


def test_a_session_is_begun_once_and_a_job_has_few_of_them():
    paper = Paper(is_eof=False)
    sessions = CommandSessions(cast(FleetClient, paper), SystemClock())
    place = ExecTarget(folder="/", environment=ENV)
    for number in (*range(MOST_PER_JOB), 0, 1):
        sessions.open(call("sleep", "1000", number=number), lambda: place)
    assert not paper.ended
    sessions.open(call("true", number=99), lambda: place)
    wait_until(lambda: len(paper.ended) == 1)
    assert "4 commands" in paper.ended[0].message
    sessions.end(TOKEN, "the job has ended")
    wait_until(lambda: len(paper.ended) == 1 + MOST_PER_JOB)
    assert {one.message for one in paper.ended[1:]} == {"the job has ended"}
    sessions.open(call("true", number=100), _raises)
    wait_until(lambda: len(paper.ended) == 2 + MOST_PER_JOB)
    assert "is not running" in paper.ended[-1].message


def _raises() -> ExecTarget:
    raise InvalidTransition("job is not running")


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Child]:
    """A program as an attempt runs it: marked, below us, with a child that is marked, too."""
    env = {**ENV, MARK: "m-1", "STOKER_OUT": "/out", "STOKER_CONTROL": "/c", "TOKEN": SECRET, "VIRTUAL_ENV": "/v"}
    script = "import subprocess,sys;subprocess.run([sys.executable, '-c', 'import time;time.sleep(1000)'])"
    child = start([sys.executable, "-c", script], cwd=tmp_path, env=env)
    yield child
    child.stop(grace_s=0.0)


def test_a_command_lives_as_the_job_s_own_program_does(program: Child, tmp_path: Path):
    clock = SystemClock()
    given = AttemptEnv(
        folder=str(tmp_path), environment={"PATH": "/nowhere"}, secrets={"TOKEN": "an-old-value"}, user=None
    )
    place = place_beside(mine(), given, clock=clock, patience_s=PATIENCE_S)
    assert find_running(mine(), living_rows())[0] == program.identity.pid  # type: ignore[index]
    assert (place.folder, place.environment["VIRTUAL_ENV"], place.environment["STOKER_JOB_OUT"]) == (
        str(tmp_path),
        "/v",
        "/out",
    )
    for name in ("STOKER_CONTROL", "STOKER_OUT"):
        assert name not in place.environment, "what a command beside the program writes is not the program's"
    assert set(place.hidden) == {"an-old-value", SECRET}
    argv, environment = command_for(("sh", "-c", "x"), place, "xterm")
    assert (os.path.isabs(argv[0]), environment["TERM"]) == (True, "xterm")
    with pytest.raises(ProgramNotFound):
        command_for(("no-such-program",), place, "")


def test_python_beside_a_job_is_the_interpreter_that_the_job_gets(tmp_path: Path) -> None:
    only = tmp_path / "bin"
    only.mkdir()
    (only / "python3").symlink_to(sys.executable)
    place = ExecTarget(folder=str(tmp_path), environment={"PATH": str(only)})
    argv, _ = command_for(("python", "-c", "x"), place, "")
    assert argv == (str(only / "python3"), "-c", "x"), "a plain Debian has no program called python"
    own = tmp_path / ".venv" / "bin"
    own.mkdir(parents=True)
    (own / "python").symlink_to(sys.executable)
    argv, _ = command_for(("python",), place, "")
    assert argv == (str(own / "python"),)


def test_beside_a_job_without_a_program_a_command_gets_what_its_attempt_was_given():
    given = AttemptEnv(folder="/", environment=ENV, secrets={"TOKEN": SECRET}, user=None)
    attempt = start(["/bin/sleep", "1000"], cwd="/", env={})
    try:
        place = place_beside(attempt.identity, given, clock=SystemClock(), patience_s=0.0)
    finally:
        attempt.stop(grace_s=0.0)
    assert place.environment == {**ENV, "TOKEN": SECRET}
    assert place.hidden == (SECRET,)
