"""Kill -9 at every point of every commit of a queue: what was answered is there, and what was not may be said again."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.coordinator.database.database_check import check_database
from stoker.coordinator.queue.commands import CancelJobs, RequeueJobs, Submit, Write
from stoker.core.clock import FakeClock
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import Claim, Fail, Finish, Grant, Release, Start
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import SHA, TREE, hello_anew, token
from tests.fault.coordinator_child import Death
from tests.fault.test_store_kills import survives
from tests.servers.postgres import PostgresServer

POINTS = ("before_commit", "after_commit", "before_answer")
NAMES = ("one", "two", "three")
ORDERS = tuple(order(name, attempts=2) for name in NAMES)


class Life:
    """One worker and one person, who write down what they were answered, and say again what they were not."""

    def __init__(self, fleet: Driven, path: Path) -> None:
        self._fleet = fleet
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._answered: list[Any] = [json.loads(line) for line in lines]
        self._at = 0

    def live(self) -> None:
        self._ask(Submit(asked=Submission(jobs=ORDERS, key="a-key")))
        self._ask(hello_anew("m1").model_copy(update={"slots": 4}))
        first, second, third = self._claim("request-1", 3)
        self._say(first, Start)
        self._say(first, Finish, tree=TREE, archive_sha256=SHA, size_bytes=10)
        self._say(second, Start)
        self._say(second, Fail, cause="preempted")
        self._ask(CancelJobs(jobs=(third.job,)))
        self._say(third, Release)
        self._ask(RequeueJobs(jobs=(third.job,)))
        for grant in self._claim("request-2", 2):
            self._say(grant, Finish, tree=TREE, archive_sha256=SHA, size_bytes=10)

    def _claim(self, request_id: str, most: int) -> list[Grant]:
        answer = self._ask(Claim(request_id=request_id, worker="m1", incarnation="incarnation-new", most=most))
        grants = sorted(
            (Grant.model_validate(one) for one in answer["grants"]), key=lambda one: NAMES.index(one.spec.name)
        )
        assert len(grants) == most
        return grants

    def _say(self, grant: Grant, kind: type, **fields: Any) -> None:
        self._ask(Write(job=grant.job, said=kind(**token(grant), **fields)))

    def _ask(self, command: Any) -> Any:
        self._at += 1
        if self._at > len(self._answered):
            answer: Any = self._fleet.ask(command)
            text = answer.model_dump_json() if hasattr(answer, "model_dump_json") else "{}"
            with self._path.open("a") as file:
                file.write(f"{text}\n")
            self._answered.append(json.loads(text))
        return self._answered[self._at - 1]


def open_fleet(url: str, faults: Callable[[str], None] | None = None) -> Driven:
    # Each process sees the time go on.
    fleet = Driven(url, FakeClock(1_700_000_000.0), objects={SHA: 10}, faults=faults)
    fleet.clock.advance(1.0)
    return fleet


def live_and_die(url: str, path: Path, point: str, visits: int) -> bool:
    """Live in a child until it is killed; gives whether it was not."""

    def until() -> None:
        fleet = open_fleet(url, Death(point, visits))
        Life(fleet, path).live()
        fleet.close()

    return survives(until)


def live_to_the_end(url: str, path: Path) -> None:
    """Go on from what was answered, and find every job done once."""
    fleet = open_fleet(url)
    try:
        Life(fleet, path).live()
        stories = [fleet.reader.story(name) for name in NAMES]
        assert [story.job.state for story in stories] == ["completed"] * 3
        endings = [[attempt.ending for attempt in story.attempts] for story in stories]
        assert endings == [["completed"], ["failed", "completed"], ["cancelled", "completed"]]
        assert list(check_database(fleet.database, has_object=fleet.objects.get)) == []
    finally:
        fleet.close()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_visit_of_a_point_nothing_answered_is_lost_on_sqlite(
    sqlite_template: Path, memory: Path, point: str, every: int
) -> None:
    for visits in itertools.count(POINTS.index(point), every):
        folder = memory / str(visits)
        folder.mkdir()
        shutil.copyfile(sqlite_template, folder / "queue.db")
        url = f"sqlite:///{folder / 'queue.db'}"
        ended = live_and_die(url, folder / "answers", point, visits)
        live_to_the_end(url, folder / "answers")
        if ended:
            assert visits > 10
            return


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("visits", [5, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 2, 3, 4, 6, 7, 8, 9))])
def test_killed_at_a_point_nothing_answered_is_lost_on_postgresql(
    postgres: PostgresServer, postgres_template: str, tmp_path: Path, point: str, visits: int
) -> None:
    url = postgres.create(postgres_template)
    assert not live_and_die(url, tmp_path / "answers", point, visits)
    live_to_the_end(url, tmp_path / "answers")
    postgres.drop(url)
