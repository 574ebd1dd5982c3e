"""`stoker work` in a home whose coordinator is not up yet, and until when it works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from stoker.__main__ import run_command_line
from stoker.api.app_parts import AppSettings
from stoker.app import App
from stoker.cli.work import seconds_until
from stoker.core.clock import FakeClock
from stoker.host.identity import mine
from stoker.protocol.discovery import STARTING_NAME, ServeFile, announce_start, is_starting, withdraw_start
from stoker.worker.worker_options import WorkOptions

URL = "http://127.0.0.1:7999"
WAITS = "waiting for a coordinator: `stoker serve` starts one in this home"
JOINS = f"{WAITS}; --join URL names another one"


class Sleeps(FakeClock):
    """A clock that acts once it has slept this long."""

    def __init__(self, after_s: float, act: Callable[[], None]) -> None:
        super().__init__()
        self.after_s, self.act = after_s, act
        self.slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept_s += seconds
        if self.slept_s >= self.after_s:
            self.act()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[str], float]]:
    """Run `stoker work` where a coordinator writes its file so many seconds later."""
    home = tmp_path / "home"
    state = home / "state"
    state.mkdir(parents=True)
    urls: list[str] = []

    def run(serves_after_s: float, *words: str) -> tuple[int, list[str], float]:
        clock = Sleeps(serves_after_s, lambda: ServeFile(url=URL, owner=mine()).write(str(state)))
        parts = App(AppSettings(home=str(home), folder=str(tmp_path), environment={"PATH": "/usr/bin:/bin"}))

        def keep(options: WorkOptions, tell: Any) -> int:
            urls.append(options.url)
            return 0

        monkeypatch.setattr(parts, "clock", clock)
        monkeypatch.setattr(parts, "work", keep)
        code = run_command_line(["work", *words], build=lambda: parts)
        return code, urls, clock.slept_s

    return run


def test_a_worker_waits_for_a_coordinator_that_was_started_at_the_same_time(work, capfd) -> None:
    code, urls, slept_s = work(3.0)
    assert (code, urls) == (0, [URL])
    assert 3.0 <= slept_s < 4.0
    assert capfd.readouterr().err.splitlines() == [JOINS]


def test_a_worker_waits_for_the_first_coordinator_of_its_home_without_a_limit(work, capfd) -> None:
    code, urls, slept_s = work(3600.0)
    assert (code, urls) == (0, [URL])
    assert slept_s >= 3600.0
    assert capfd.readouterr().err.splitlines() == [JOINS]


def test_a_worker_that_works_for_a_time_waits_no_longer(work, capfd) -> None:
    code, urls, slept_s = work(3600.0, "--for", "1m")
    assert (code, urls) == (34, [])
    assert 60.0 <= slept_s < 61.0
    assert "start one here: `stoker serve`" in capfd.readouterr().err


@pytest.mark.parametrize(("has_begun", "limit_s"), [(False, 5.0), (True, 30.0)], ids=["nothing", "starting"])
def test_submit_waits_a_while_and_longer_for_a_coordinator_that_is_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd, has_begun: bool, limit_s: float
) -> None:
    home = tmp_path / "home"
    clock = Sleeps(1e9, lambda: None)
    parts = App(AppSettings(home=str(home), folder=str(tmp_path), environment={"PATH": "/usr/bin:/bin"}))
    monkeypatch.setattr(parts, "clock", clock)
    if has_begun:
        announce_start(str(home / "state"))
    assert run_command_line(["submit", "--in-place", "--", "true"], build=lambda: parts) == 34
    assert limit_s <= clock.slept_s < limit_s + 1
    err = capfd.readouterr().err
    assert err.count(WAITS) == 1
    assert "start one here: `stoker serve`" in err


def test_a_coordinator_that_is_starting_is_known_until_it_listens_or_ends(tmp_path: Path) -> None:
    announce_start(str(tmp_path))
    assert is_starting(str(tmp_path))
    withdraw_start(str(tmp_path))
    withdraw_start(str(tmp_path))
    assert not is_starting(str(tmp_path))
    (tmp_path / STARTING_NAME).write_text("[1]")
    assert not is_starting(str(tmp_path))


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], float]]:
    """Let this process be in a zone with summer time; what this returns reads a local time there."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield lambda text: datetime.fromisoformat(text).timestamp()
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("18:00", 2.0),
        ("16:30:30", 0.5 + 30 / 3600),
        ("8:00", 16.0),
        ("16:00", 24.0),
        ("2026-11-17T16:00", 24.0),
        ("2026-11-17 16:00", 24.0),
        ("2026-11-17", 8.0),
        ("2026-11-16T16:00Z", 1.0),
        ("2026-11-16T16:00-05:00", 6.0),
    ],
    ids=str,
)
def test_an_end_is_a_time_of_the_local_clock_or_in_iso_format(
    berlin: Callable[[str], float], text: str, hours: float
) -> None:
    assert seconds_until(text, berlin("2026-11-16T16:00")) == pytest.approx(hours * 3600)


@pytest.mark.parametrize(("now", "hours"), [("2026-03-28T12:00", 23.0), ("2026-10-24T12:00", 25.0)], ids=str)
def test_the_same_time_tomorrow_is_not_always_24_hours_away(
    berlin: Callable[[str], float], now: str, hours: float
) -> None:
    assert seconds_until("12:00", berlin(now)) == pytest.approx(hours * 3600)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("soon", "'soon' is not a time; write for example 18:00 or 2026-11-17T08:00"),
        ("25:00", "'25:00' is not a time"),
        ("18", "'18' is not a time"),
        ("nan", "'nan' is not a time"),
        ("", "'' is not a time"),
        ("2026-11-16T15:59", "'2026-11-16T15:59' is in the past"),
        ("9000-01-01", "'9000-01-01' is too far away"),
        ("9999-12-31T23:59", "'9999-12-31T23:59' is not a time"),
    ],
    ids=str,
)
def test_what_is_no_time_to_end_at_is_refused(berlin: Callable[[str], float], text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        seconds_until(text, berlin("2026-11-16T16:00"))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--until", "18:00", "--for", "2h"], "--until and --for exclude each other"),
        (["--until", "soon"], "--until: 'soon' is not a time"),
        (["--for", "0s"], "--for: '0s' is not a duration above 0"),
        (["--for", "soon"], "--for: 'soon' is not a duration"),
        (["--for", f"{'9' * 400}h"], "is not a duration above 0"),
        (["--drain", "2m"], "--drain needs --for or --until"),
        (["--for", "2m", "--drain", "2m"], "--drain is not shorter"),
        (["--until", "18:00", "--install", "--yes"], "--until and --install exclude each other"),
    ],
    ids=str,
)
def test_a_wrong_end_is_a_fault_of_the_command_line(tmp_path: Path, capfd, words: list[str], fault: str) -> None:
    parts = App(AppSettings(home=str(tmp_path / "home"), folder=str(tmp_path), environment={"PATH": "/usr/bin:/bin"}))
    assert run_command_line(["work", *words], build=lambda: parts) == 2
    assert fault in capfd.readouterr().err


def test_how_long_a_worker_works_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / "state").mkdir(parents=True)
    ServeFile(url=URL, owner=mine()).write(str(home / "state"))
    parts = App(AppSettings(home=str(home), folder=str(tmp_path), environment={"PATH": "/usr/bin:/bin"}))
    found: list[float | None] = []

    def keep(options: WorkOptions, tell: Any) -> int:
        found.append(None if options.ends_s is None else options.ends_s - parts.clock.boottime_s())
        return 0

    monkeypatch.setattr(parts, "work", keep)
    for words in ([], ["--for", "90m"]):
        assert run_command_line(["work", *words], build=lambda: parts) == 0
    assert found == [None, pytest.approx(5400.0, abs=60.0)]
