"""A coordinator over HTTP, on a real database, decides what the simulation decides: the same scheduler, asked alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.coordinator import coordinator
from tests.servers.scripted_fleet import Script, ScriptClock, digest_of, make_script, play, simulated


def check(script: Script, url: str, folder: Path) -> None:
    clock = ScriptClock()
    with coordinator(url, folder, clock=clock) as fleet:
        played = play(fleet, clock, script)
    expected = simulated(played.offers, script)
    differ = [pair for pair in zip(played.decisions, expected, strict=False) if pair[0] != pair[1]]
    assert differ[:1] == []
    assert len(played.decisions) == len(expected) == len(script.batch)
    assert digest_of(played.decisions) == digest_of(expected)


@pytest.mark.parametrize(("mix", "users"), [("everything", 3), pytest.param("adapters", 1, marks=pytest.mark.slow)])
def test_a_coordinator_and_the_simulation_grant_the_same_jobs_at_the_same_times(
    mix: str, users: int, database_url: str, tmp_path: Path
) -> None:
    check(make_script(mix, machines=12, jobs=60, shapes=16, users=users), database_url, tmp_path)


@pytest.mark.parametrize("mix", ["edge", "everything"])
def test_a_coordinator_and_the_simulation_grant_few_jobs_alike(mix: str, database_url: str, tmp_path: Path) -> None:
    check(make_script(mix, machines=6, jobs=14, shapes=8, users=1, seed=1), database_url, tmp_path)


@pytest.mark.slow
def test_a_coordinator_and_the_simulation_grant_five_thousand_jobs_alike(database_url: str, tmp_path: Path) -> None:
    check(make_script("everything", machines=60, jobs=5_000, shapes=40, users=5), database_url, tmp_path)
