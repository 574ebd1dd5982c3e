"""`stoker store du` and `stoker store prune` know the environments that jobs run in."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.__main__ import run_command_line
from stoker.api.app_parts import AppSettings
from stoker.app import App
from stoker.core.clock import FakeClock
from stoker.host.identity import mine
from stoker.store.environment_cache import EnvironmentCache, EnvironmentReady

IDLE, BUSY = "a" * 64, "b" * 64


class Home:
    """A home with one environment that nobody uses, and one that a job runs in."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.settings = AppSettings(home=str(folder / "home"), folder=str(folder), environment={"HF_HOME": str(folder)})
        self.shelf = EnvironmentCache(self.settings.envs, clock=FakeClock(start_s=time.time() - 10 * 86_400))
        self._capfd = capfd
        for key in (IDLE, BUSY):
            os.makedirs(self.shelf.venv(key))
            Path(self.shelf.venv(key), "package").write_bytes(b"p" * 5000)
            self.shelf.keep(EnvironmentReady(digest=key, key=key, interpreter="", version="3.11.2", size_bytes=5000))
            self.shelf.use(key)
        self.shelf.mark(BUSY, mine(), "attempt")

    def said(self, *words: str) -> str:
        self._capfd.readouterr()
        assert run_command_line(["store", *words], build=lambda: App(self.settings)) == 0
        return self._capfd.readouterr().out

    def told(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.said(*words, "--json").splitlines()]


@pytest.fixture
def home(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Home:
    return Home(tmp_path, capfd)


def test_du_lists_environments_with_their_size_and_last_use(home: Home) -> None:
    *listed, total = home.told("du")
    assert {one["environment"]: (one["bytes"], one["is_in_use"]) for one in listed} == {
        IDLE: (5000, False),
        BUSY: (5000, True),
    }
    assert total["environments_bytes"] >= 10_000
    text = home.said("du")
    assert f"{IDLE[:12]}  Python 3.11.2, 0 packages  10 d ago" in text
    assert "in environments" in text


def test_a_prune_shows_environments_and_takes_those_that_nobody_uses(home: Home) -> None:
    shown = home.said("prune", "--older-than", "7d")
    assert "to remove: 1 environment; frees 4.9 KiB, keeps 4.9 KiB" in shown
    assert "not removed: 1 environment, in use by a job" in shown
    assert len(home.shelf.all_kept()) == 2
    assert home.told("prune", "--max-envs", "0", "--dry-run")[-1]["environments"] == 1
    *_, done = home.told("prune", "--older-than", "7d", "--yes")
    assert (done["environments"], done["freed_bytes"], done["environments_kept"]) == (1, 5000, {"in use by a job": 1})
    assert [one.key for one in home.shelf.all_kept()] == [BUSY]
