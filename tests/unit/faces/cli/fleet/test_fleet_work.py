"""`stoker work` in a home whose coordinator is not up yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.assembly import Assembly
from stoker.assembly.settings import Settings
from stoker.faces.cli.main import run_command_line
from stoker.host.identity import mine
from stoker.model.clock import FakeClock
from stoker.wire.serve_file import ServeFile
from stoker.worker.keeper.options import WorkOptions

URL = "http://127.0.0.1:7999"
WAITS = "no coordinator serves this home yet: waiting up to 10 s for `stoker serve`"


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
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], tuple[int, list[str], float]]:
    """Run `stoker work` where a coordinator writes its file so many seconds later."""
    home = tmp_path / "home"
    state = home / "state"
    state.mkdir(parents=True)
    urls: list[str] = []

    def run(serves_after_s: float) -> tuple[int, list[str], float]:
        clock = Sleeps(serves_after_s, lambda: ServeFile(url=URL, owner=mine()).write(str(state)))
        parts = Assembly(Settings(home=str(home), folder=str(tmp_path), environment={"PATH": "/usr/bin:/bin"}))

        def keep(options: WorkOptions, tell: Any) -> int:
            urls.append(options.url)
            return 0

        monkeypatch.setattr(parts, "clock", clock)
        monkeypatch.setattr(parts, "work", keep)
        code = run_command_line(["work"], build=lambda: parts)
        return code, urls, clock.slept_s

    return run


def test_a_worker_waits_for_a_coordinator_that_was_started_at_the_same_time(work, capfd) -> None:
    code, urls, slept_s = work(3.0)
    assert (code, urls) == (0, [URL])
    assert 3.0 <= slept_s < 4.0
    assert capfd.readouterr().err.splitlines() == [WAITS]


def test_a_worker_that_finds_no_coordinator_says_after_ten_seconds_how_to_get_one(work, capfd) -> None:
    code, urls, slept_s = work(60.0)
    assert (code, urls) == (34, [])
    assert 10.0 <= slept_s < 11.0
    err = capfd.readouterr().err
    assert err.count(WAITS) == 1
    assert "`stoker serve` starts one here" in err
