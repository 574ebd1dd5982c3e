"""`stoker top` and bare `stoker`: when the cockpit opens, and what is printed where it can't."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from stoker.__main__ import run_command_line
from stoker.api.app_parts import AppSettings
from stoker.app import App
from stoker.cli import commands, status, top
from stoker.cli.commands import bare_command, take_flags
from stoker.cli.context import CliOutput, CommandContext
from stoker.tui import frame
from tests.fakes.monitor import MemoryMonitor, job, machine


class _Stream(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("term", "is_terminal", "is_installed", "argv", "words"),
    [
        ("xterm", True, True, [], ["top"]),
        ("xterm", True, False, [], ["status"]),
        ("dumb", True, True, [], ["status"]),
        ("", True, True, [], ["status"]),
        ("xterm", False, True, [], ["status"]),
        ("xterm", True, True, ["--json"], ["status"]),
    ],
)
def test_bare_stoker_opens_the_cockpit_on_a_terminal_only(
    monkeypatch, term, is_terminal, is_installed, argv, words
) -> None:
    monkeypatch.setenv("TERM", term)
    if not term:
        monkeypatch.delenv("TERM")
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", _Stream(is_terminal=is_terminal))
    monkeypatch.setattr(commands, "has_cockpit", lambda: is_installed)
    assert bare_command(take_flags(argv)[1]) == words


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monitor = MemoryMonitor([job(1), job(2, "failed", why="nan"), job(3, "pending")], [machine("desk")])
    monkeypatch.setattr(top, "_monitor", lambda call, at: monitor)
    settings = AppSettings(home=str(tmp_path / "home"), folder=str(tmp_path), environment={})

    def run(*words: str) -> tuple[int, str, str]:
        code = run_command_line(["top", *words], build=lambda: App(settings))
        return code, *capfd.readouterr()

    return run


def test_in_a_pipe_one_picture_is_printed_without_keys(run) -> None:
    code, out, _ = run()
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[2:5]] == ["resnet/1", "resnet/3", "resnet/2"]
    assert "enter open" not in out


def test_a_filter_and_ascii_are_taken_from_the_command_line(run) -> None:
    code, out, _ = run("--filter", "state:failed", "--ascii", "--once")
    assert code == 0
    assert "jobs > state:failed" in out
    assert " x resnet/2" in out
    assert out.isascii()


def test_a_wrong_filter_is_a_usage_error(run) -> None:
    code, _, err = run("--filter", "stat:failed")
    assert code == 2
    assert "unknown filter 'stat'" in err


def test_json_is_the_overview(run) -> None:
    code, out, _ = run("--json")
    assert code == 0
    assert json.loads(out)["jobs"] == {"running": 1, "failed": 1, "pending": 1}


def test_what_helps_is_in_the_help() -> None:
    text = "\n".join(frame.HELP)
    for word in ("cancel", "requeue", "priority", "drain", "cordon", "pause", "open", "filter", "logs", "explain"):
        assert word in text


def test_the_extra_is_named_once_in_each_home(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = AppSettings(home=str(tmp_path / "home"), folder=str(tmp_path), environment={})
    call = CommandContext(take_flags([])[1], CliOutput(is_json=False, is_quiet=False), lambda: App(settings))
    status._name_cockpit(call)
    status._name_cockpit(call)
    call.close()
    assert capfd.readouterr().err.count("stoker[tui]") == 1
