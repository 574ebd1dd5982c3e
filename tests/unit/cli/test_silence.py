"""A command that prints nothing for a while says that it is at work, until it prints, asks or shows progress itself."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from stoker.cli import screens, silence
from stoker.cli.commands import COMMANDS
from stoker.cli.context import CliOutput
from stoker.cli.screens import busy_between, waiting_screen
from stoker.cli.silence import SESSIONS, watched_silence
from stoker.core.clock import FakeClock
from tests.unit.cli.test_under_way import a_call

PATIENCE_S = 30.0


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    monkeypatch.setattr(silence, "PIPE_AFTER_S", 0.001)
    monkeypatch.setattr(screens, "HEARTBEAT_S", 0.001)
    found = Lines()
    monkeypatch.setattr(CliOutput, "write_aside", lambda _out, line: found.take(line))
    return found


class Lines:
    """What was written beside the output."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.news = threading.Event()

    def take(self, line: str) -> None:
        self.texts.append(line)
        self.news.set()


def test_a_silent_command_shows_its_words_and_the_time(lines: Lines) -> None:
    clock = FakeClock()
    with watched_silence(CliOutput(is_json=False, is_quiet=False), "pools check", clock):
        clock.advance(3.0)
        assert lines.news.wait(PATIENCE_S)
    assert lines.texts[-1] == "stoker pools check  3.0s"


def test_with_json_it_is_an_event_and_quiet_or_in_a_session_nothing(lines: Lines) -> None:
    with watched_silence(CliOutput(is_json=True, is_quiet=False), "pools check", FakeClock()):
        assert lines.news.wait(PATIENCE_S)
    event = json.loads(lines.texts[-1])
    assert (event["kind"], event["what"], event["unit"]) == ("progress", "stoker pools check", "seconds")
    lines.news.clear()
    before = set(threading.enumerate())
    for words, is_quiet in (("pools check", True), ("run", False)):
        with watched_silence(CliOutput(is_json=False, is_quiet=is_quiet), words, FakeClock()):
            assert before >= set(threading.enumerate())
    assert not lines.news.is_set()


def test_the_first_output_ends_it(lines: Lines, capsys: pytest.CaptureFixture[str]) -> None:
    out = CliOutput(is_json=False, is_quiet=False)
    with watched_silence(out, "pools check", FakeClock()):
        assert lines.news.wait(PATIENCE_S)
        out.line("a result")
        count = len(lines.texts)
        assert "stoker-progress" not in {thread.name for thread in threading.enumerate()}
    assert len(lines.texts) == count
    assert capsys.readouterr().out == "a result\n"


def test_the_sessions_are_commands() -> None:
    assert {command.words for command in COMMANDS} >= SESSIONS


def test_between_items_that_take_long_to_find_the_number_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "HEARTBEAT_S", 0.001)
    call, written = a_call(), threading.Event()
    call.out.write_aside = lambda line: written.set() if line.startswith("verifying file 2  ") else None

    def found() -> Any:
        yield "one"
        assert written.wait(PATIENCE_S)
        yield "two"

    assert list(busy_between(call, "verifying file {number}", found())) == ["one", "two"]


def test_a_wait_in_a_pipe_tells_how_many_have_ended_when_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "HEARTBEAT_S", 0.001)
    call, written, ended = a_call(), threading.Event(), 2
    texts: list[str] = []

    def take(line: str) -> None:
        texts.append(line)
        written.set()

    call.out.write_aside = take
    screen = waiting_screen(call, "resnet", 9, lambda: ended)
    screen.begin(lambda _now_s, _least_s: [])
    assert written.wait(PATIENCE_S)
    screen.close()
    assert texts == ["waiting for resnet: 2 of 9 ended"]
