"""Real coordinators, workers and databases that are killed, stopped and restarted while a job runs: it is done once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.protocol.view_messages import JobDetails
from tests.fault.real_fleet import WAITER, RealFleet, is_in, is_terminal
from tests.servers.postgres import PostgresServer
from tests.system.shell import descendants, wait_until

POINTS = ("before_commit", "after_commit", "before_answer")


@pytest.fixture
def db(request: pytest.FixtureRequest) -> str:
    """Where the queue lies; nothing: in a file of the coordinator's own."""
    return "" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def fleet(tmp_path: Path, recipes: Path, db: str) -> Iterator[RealFleet]:
    fleet = RealFleet(tmp_path, recipes, db=db)
    try:
        yield fleet
    finally:
        fleet.end()
    fleet.check()


on_sqlite = pytest.mark.parametrize("db", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("db", ["postgresql"], indirect=True)
on_both = pytest.mark.parametrize("db", ["sqlite", "postgresql"], indirect=True)
on_sqlite_first = pytest.mark.parametrize(
    "db", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)


def endings(story: JobDetails) -> list[str]:
    return [attempt.ending for attempt in story.attempts]


def live_through_a_death(fleet: RealFleet, point: str, visits: int) -> bool:
    """Start a coordinator that will die, let a worker talk to it, and start another in its place; gives if it died."""
    manifest = fleet.manifest("job", "echo done > $STOKER_OUT/done")
    dying = fleet.serve("--manifest", manifest, dies_at=(point, visits))
    worker = fleet.work("desk")
    wait_until(lambda: dying.process.poll() is not None or fleet.is_so("job", is_terminal))
    died = dying.process.poll() == -signal.SIGKILL
    if died:
        fleet.serve("--manifest", manifest)
    story = fleet.wait_for("job", is_terminal)
    assert (story.job.state, endings(story).count("completed")) == ("completed", 1), story
    assert worker.process.poll() is None
    return died


@pytest.mark.timing
@on_sqlite
def test_a_coordinator_that_is_killed_before_it_answers_loses_nothing(fleet: RealFleet):
    # Its own start, the manifest, the worker's hello, the grant.
    assert live_through_a_death(fleet, "before_answer", 3)


@pytest.mark.slow
@on_both
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("visits", range(8))
def test_a_coordinator_that_is_killed_at_any_point_loses_nothing(fleet: RealFleet, point: str, visits: int):
    assert live_through_a_death(fleet, point, visits) or visits > 4


@pytest.mark.timing
@on_postgresql
def test_a_database_that_is_killed_or_restarted_delays_a_job_and_loses_nothing(
    fleet: RealFleet, postgres: PostgresServer
):
    fleet.serve()
    worker = fleet.work("desk")
    fleet.submit("job")
    fleet.wait_for("job", is_in("running"))
    postgres.kill()
    postgres.start()
    fleet.go()
    story = fleet.wait_for("job", is_terminal)
    assert (story.job.state, endings(story)) == ("completed", ["completed"])
    postgres.restart()
    fleet.submit("again")
    assert fleet.wait_for("again", is_terminal).job.state == "completed"
    assert worker.process.poll() is None


@pytest.mark.slow
@on_postgresql
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_database_that_goes_again_and_again_loses_nothing(fleet: RealFleet, postgres: PostgresServer, how: str):
    fleet.serve()
    fleet.work("desk", "--slots", 4)
    fleet.work("other", "--slots", 4)
    names = [f"job{number}" for number in range(12)]
    for name in names:
        fleet.submit(name, "sleep 0.$((RANDOM % 10)); echo done > $STOKER_OUT/done", attempts=3)
    for _ in range(6):
        # Somewhere in the middle of what they all do.
        getattr(postgres, how)()
        postgres.start()
    for name in names:
        story = fleet.wait_for(name, is_terminal)
        assert (story.job.state, endings(story).count("completed")) == ("completed", 1)


@on_sqlite_first
@pytest.mark.timing
@pytest.mark.parametrize("on_partition", ["stop", pytest.param("keep", marks=pytest.mark.slow)])
def test_a_worker_that_stood_still_past_its_lease_drops_its_result_and_another_has_done_the_job(
    fleet: RealFleet, on_partition: str
):
    fleet.serve()
    sleeper = fleet.work("sleeper")
    fleet.submit("job", on_partition=on_partition)
    fleet.wait_for("job", is_in("running"))
    sleeper.signal_all(signal.SIGSTOP)
    # As on another machine: what stands still holds the scratch folder of its home.
    other = fleet.work("other", home=fleet.shell.folder.parent / "home-of-other")
    fleet.wait_for("job", lambda story: story.job.machine == "other" and story.job.state == "running")
    fleet.go()
    story = fleet.wait_for("job", is_terminal)
    assert (story.job.state, story.job.machine, endings(story)) == ("completed", "other", ["expired", "completed"])
    sleeper.signal_all(signal.SIGCONT)
    sleeper.wait_for("dropped")
    assert "settled" not in sleeper.kinds()
    after = fleet.story("job")
    assert (after.job.machine, after.job.result, endings(after)) == ("other", story.job.result, endings(story))
    assert other.process.poll() is None


@pytest.mark.slow
@on_both
@pytest.mark.parametrize("victim", ["attempt", "program"])
def test_a_job_whose_process_is_killed_ends_with_its_cause_and_is_tried_as_often_as_it_may(
    fleet: RealFleet, victim: str
):
    fleet.serve()
    worker = fleet.work("desk")
    fleet.submit("job", f"test -e second && exit 0; {WAITER}", attempts=2)
    fleet.wait_for("job", is_in("running"))
    wait_until(fleet.programs)
    (program,) = fleet.programs()
    # Whoever runs it is the worker's own child above it.
    children = [pid for pid in descendants(worker.pid) if program in descendants(pid)]
    (fleet.shell.folder / "second").touch()
    os.kill(program if victim == "program" else max(children, key=lambda pid: len(descendants(pid))), signal.SIGKILL)
    story = fleet.wait_for("job", is_terminal)
    assert (story.job.state, endings(story)) == ("completed", ["failed", "completed"])


@pytest.mark.timing
@on_sqlite
def test_a_worker_that_holds_a_lease_from_before_a_restore_is_told_to_drop_it(fleet: RealFleet):
    serving = fleet.serve()
    fleet.submit("job")
    assert fleet.shell.stoker("admin", "db", "backup", "backup", "--db", fleet.db).code == 0
    worker = fleet.work("desk")
    fleet.wait_for("job", is_in("running"))
    wait_until(lambda: len(fleet.programs()) == 1)
    before = fleet.story("job").attempts[-1]
    mirror = fleet.mirror("job", 1)
    serving.kill()
    (mirror / "marker").touch()
    restored = fleet.shell.stoker("admin", "db", "restore", "backup", "--replace", "--db", fleet.db)
    assert restored.code == 0, restored.err
    fleet.serve()
    # Its number is given again, to an attempt of another world: nothing of this one may stand before it.
    assert not (mirror / "marker").exists()
    wait_until(lambda: len(fleet.programs()) == 2)
    worker.wait_for("dropped")
    fleet.go()
    story = fleet.wait_for("job", is_terminal)
    assert (story.job.state, endings(story).count("completed")) == ("completed", 1)
    # The same attempt and epoch, given out in another world: only the generation tells them apart.
    again = story.attempts[0]
    assert (before.number, before.epoch) == (again.number, again.epoch)
    assert before.generation < again.generation
    assert worker.process.poll() is None
