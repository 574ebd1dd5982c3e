"""Many workers, one queue, and messages that are lost, late, doubled and out of order: each wish is done once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from stoker.coordinator.database.database_check import check_database
from stoker.core.machine import Requirements
from tests.contract.queue_driving import GIB, Driven, order
from tests.fault.message_world import MessageWorld, Weather
from tests.lengths import examples
from tests.servers.fresh_databases import FreshDatabases

STORM_S = 900.0
LONGEST_S = 40_000.0
TERMINAL = {"completed", "failed", "cancelled"}
IMPOSSIBLE = order("impossible", requirements=Requirements(ram_bytes=4096 * GIB))
"""Nobody has that much: it waits, and everybody can see why."""


@pytest.fixture(params=["sqlite", "postgresql"])
def fleet(request: pytest.FixtureRequest, fresh_databases: FreshDatabases) -> Iterator[Driven]:
    url = fresh_databases.sqlite() if request.param == "sqlite" else fresh_databases.postgres()
    with closing(Driven(url)) as fleet:
        yield fleet


def live_through(
    fleet: Driven, *, seed: int, workers: int, jobs: int, weather: Weather, storm_s: float = STORM_S
) -> MessageWorld:
    """Let it storm, then let everything work, and see what became of every job."""
    keeps = ("stop", "stop", "keep")
    wanted = (order("job", number, attempts=3, on_partition=keeps[number % 3]) for number in range(1, jobs + 1))
    world = MessageWorld(fleet, seed=seed, workers=workers, jobs=(IMPOSSIBLE, *wanted), weather=weather)
    world.run(storm_s)
    world.calm_down()

    def counts() -> dict[str, int]:
        return {state: number for state, number in fleet.reader.counts().items() if number}

    while world.now_s < LONGEST_S:
        world.run(world.now_s + 60.0)
        if sum(number for state, number in counts().items() if state not in TERMINAL) <= 1:
            break
    states = counts()
    story = fleet.reader.story("impossible")
    if story.job.state == "pending":
        assert sum(world.waiting.values()) >= 1, "it waits, and nobody is told why"
    assert sum(states.get(state, 0) for state in TERMINAL) >= jobs, states
    assert list(check_database(fleet.database, has_object=fleet.objects.get)) == []
    return world


def test_twenty_workers_in_a_storm_do_everything_once(fleet: Driven) -> None:
    world = live_through(
        fleet, seed=1, workers=20, jobs=examples(30, 50), weather=Weather(), storm_s=examples(400, 600)
    )
    assert world.seen.stale > 0
    assert world.seen.repeats > 0
    assert {"pause", "crash", "restart", "jump", "cancel"} <= set(world.seen.done)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 40))
def test_storms_of_all_sorts_do_everything_once(fleet: Driven, seed: int) -> None:
    harsh = Weather(loss=0.3, doubling=0.3, delay_s=3.0, long_delay=0.1, pause_every_s=30.0, crash_every_s=60.0)
    live_through(fleet, seed=seed, workers=20, jobs=80, weather=harsh if seed % 2 else Weather())


@pytest.mark.slow
def test_a_thousand_workers_in_a_storm_do_everything_once(fleet: Driven) -> None:
    busy = Weather(pause_every_s=3.0, crash_every_s=4.0, restart_every_s=200.0, jump_every_s=60.0, cancel_every_s=1.0)
    live_through(fleet, seed=5, workers=1000, jobs=3000, weather=busy)
