from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from stoker.host.command_runner import ProbeFailure, ProbeOutput, SubprocessRunner
from stoker.host.identity import read_row, rows
from tests.leaks import left_open, open_files


@pytest.fixture
def ask() -> SubprocessRunner:
    return SubprocessRunner({"PATH": os.environ["PATH"], "LANG": "de_DE.UTF-8"})


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def children() -> set[int]:
    return {row.pid for row in rows() if row.parent_pid == os.getpid()}


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, or does so in a moment: it has got its signal before the answer was given."""
    deadline = time.monotonic() + 20
    while (row := read_row(pid)) is not None and not row.is_gone and time.monotonic() < deadline:
        os.sched_yield()
    return row is None or row.is_gone


@pytest.mark.timing
def test_a_program_says_what_it_printed_and_how_it_ended(ask: SubprocessRunner) -> None:
    said = ask.ask(shell("echo out; echo err >&2; exit 3"))
    assert isinstance(said, ProbeOutput)
    assert (said.out, said.err, said.exit_code) == ("out\n", "err\n", 3)
    assert 0 <= said.seconds < 5


def test_a_signal_is_a_negative_exit_code(ask: SubprocessRunner) -> None:
    said = ask.ask(shell("kill -9 $$"))
    assert isinstance(said, ProbeOutput)
    assert said.exit_code == -9


def test_programs_speak_the_plain_language_and_read_nothing(ask: SubprocessRunner) -> None:
    said = ask.ask(shell('read -r line; echo "$LC_ALL $LANG [$line]"'))
    assert said.out == "C C []\n"


def test_a_program_reads_the_text_it_is_given_however_long(ask: SubprocessRunner) -> None:
    text = "line\n" * 100_000
    assert ask.ask(["/usr/bin/env", "wc", "-c"], stdin=text).out.strip() == str(len(text))
    unread = ask.ask(["/usr/bin/env", "true"], stdin=text)
    assert isinstance(unread, ProbeOutput)
    assert unread.exit_code == 0
    with_language = SubprocessRunner({"PATH": os.environ["PATH"], "LANG": "de_DE.UTF-8"}, language=None)
    assert with_language.ask(shell('echo "$LC_ALL $LANG"')).out == " de_DE.UTF-8\n"


def test_a_program_that_is_missing_or_can_not_be_started_is_silent(ask: SubprocessRunner, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nothing that can be run")
    broken.chmod(0o755)
    plain = tmp_path / "plain"
    plain.write_text("not for running")
    orphan = tmp_path / "orphan"
    orphan.write_text("#!/nowhere/python3\n")
    orphan.chmod(0o755)
    replies = ask.ask_all([["no-such-tool"], [str(broken)], [str(plain)], [str(orphan)], ["nul\0byte"]])
    assert [reply.code for reply in replies if isinstance(reply, ProbeFailure)] == [
        "probe_missing",
        "probe_not_started",
        "probe_not_started",
        "probe_missing",
        "probe_not_started",
    ]
    assert "no-such-tool" in replies[0].why  # type: ignore[union-attr]


@pytest.mark.timing
def test_a_program_that_hangs_is_killed_at_its_limit_with_all_it_started(ask: SubprocessRunner, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    script = f"trap '' TERM; sleep 100 & echo $! $$ > {note}; echo so far; wait"
    begun = time.monotonic()
    reply = ask.ask(shell(script), limit_s=1.0)
    assert time.monotonic() - begun < 10
    assert isinstance(reply, ProbeFailure)
    assert (reply.code, reply.out) == ("probe_timeout", "so far\n")
    assert reply.why == "sh timed out after 1 s"
    assert all(is_gone(int(pid)) for pid in note.read_text().split())


@pytest.mark.timing
def test_several_that_hang_cost_the_time_of_one(ask: SubprocessRunner) -> None:
    begun = time.monotonic()
    replies = ask.ask_all([shell("sleep 100"), shell("echo quick"), shell("sleep 100")] * 2, limit_s=1.0)
    assert time.monotonic() - begun < 3.5
    assert [type(reply) for reply in replies] == [ProbeFailure, ProbeOutput, ProbeFailure] * 2
    assert replies[1].out == "quick\n"


def test_a_program_that_closes_its_output_and_goes_on_is_waited_for(ask: SubprocessRunner) -> None:
    said = ask.ask(shell("echo done; exec >&- 2>&-; sleep 0.05; exit 4"))
    assert isinstance(said, ProbeOutput)
    assert (said.out, said.exit_code) == ("done\n", 4)


@pytest.mark.timing
def test_somebody_left_behind_with_the_pipes_does_not_hold_us_up(ask: SubprocessRunner, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    begun = time.monotonic()
    said = ask.ask(shell(f"sleep 100 & echo $! > {note}; echo done"))
    assert time.monotonic() - begun < 2
    assert said.out == "done\n"
    assert is_gone(int(note.read_text()))


@pytest.mark.timing
def test_a_flood_is_stopped_early(ask: SubprocessRunner) -> None:
    flood = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    begun = time.monotonic()
    reply = ask.ask([sys.executable, "-I", "-S", "-c", flood])
    assert time.monotonic() - begun < 2
    assert isinstance(reply, ProbeFailure)
    assert reply.code == "probe_flood"
    assert len(reply.out) <= 1 << 14


def test_an_answer_below_the_limit_is_whole() -> None:
    ask = SubprocessRunner({"PATH": os.environ["PATH"]}, most_bytes=200_000)
    said = ask.ask([sys.executable, "-I", "-S", "-c", "print('x' * 199_000)"])
    assert isinstance(said, ProbeOutput)
    assert len(said.out) == 199_001


def test_bytes_that_are_no_text_are_survived(ask: SubprocessRunner) -> None:
    said = ask.ask(shell(r"printf 'a\0b\377c\n'"))
    assert said.out == "ab\ufffdc\n"


def test_nothing_is_left_open_or_running(ask: SubprocessRunner) -> None:
    ask.ask(shell("true"))
    before, before_children = open_files(), children()
    ask.ask_all([shell("echo"), ["no-such-tool"], shell("sleep 100")], limit_s=0.05)
    assert children() <= before_children
    assert left_open(before) == set()


def test_an_interrupt_leaves_no_program_behind(ask: SubprocessRunner, tmp_path: Path, monkeypatch) -> None:
    note = tmp_path / "pid"

    def interrupt(*_args):
        if note.exists() and note.read_text().strip():
            raise KeyboardInterrupt

    monkeypatch.setattr("stoker.host.command_runner._RunningCommand.look", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask.ask(shell(f"echo $$ > {note}; sleep 100"), limit_s=20)
    assert is_gone(int(note.read_text()))


def test_nobody_asked_is_answered_at_once(ask: SubprocessRunner) -> None:
    assert ask.ask_all([]) == ()
