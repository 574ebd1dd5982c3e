"""Commands that come together, and a database that goes away."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread

import pytest

from stoker.coordinator.queue.commands import InspectMachines, Sweep, Write
from stoker.coordinator.queue.writer import no_fault
from stoker.core.errors import DatabaseTrouble, InternalError, StaleLease, StokerError
from stoker.protocol.lease_messages import Start, WriteResponse
from stoker.scheduler.scheduler import Scheduler
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import (
    behind_its_back,
    finish,
    granted,
    kinds,
    started,
    state,
    together,
    token,
)
from tests.servers.postgres import PostgresServer


def test_the_others_of_a_group_are_not_harmed_by_one_whose_row_was_changed(fleet: Driven) -> None:
    grants = {grant.spec.name: grant for grant in granted(fleet, "a", "b", "c")}
    behind_its_back(fleet, "UPDATE leases SET epoch = 99 WHERE seq = 2")
    answers = together(fleet, *(finish(grant) for grant in grants.values()))
    assert [type(answer) for answer in answers] == [WriteResponse, StaleLease, WriteResponse]
    behind_its_back(fleet, "UPDATE leases SET epoch = 1 WHERE seq = 2")


def test_commands_that_come_together_are_answered_each_for_itself(fleet: Driven) -> None:
    first, second = granted(fleet, "a", "b")
    begin = Write(job=first.job, said=Start(**token(first)))
    stale = finish(second, epoch=9)
    answers = together(fleet, begin, stale, finish(first), finish(second), finish(first))
    told = [answer.state if isinstance(answer, WriteResponse) else answer.code for answer in answers]
    assert told == ["running", "stale_lease", "completed", "completed", "completed"]


def test_a_database_that_went_away_is_told_and_found_again(fleet: Driven, request: pytest.FixtureRequest) -> None:
    if fleet.database.kind != "postgresql":
        pytest.skip("SQLite has no connection to lose")
    server: PostgresServer = request.getfixturevalue("postgres")
    grant = started(fleet)
    assert server.cut(fleet.url) > 0
    # The writer may notice by itself before anybody asks.
    with suppress(DatabaseTrouble):
        fleet.ask(finish(grant))
    answer = fleet.ask(finish(grant))
    assert isinstance(answer, WriteResponse)
    assert answer.state == "completed"
    assert fleet.queue.trouble() is None
    assert kinds(fleet).count("job_finished") == 1


def test_a_closed_queue_answers_that_it_is_stopping(fleet: Driven) -> None:
    fleet.close()
    with pytest.raises(StokerError, match="stopping"):
        fleet.queue.ask(Sweep())
    fleet.open()


def test_whoever_waits_hears_of_a_commit_that_arrived_without_a_word(fleet: Driven) -> None:
    told: list[tuple[int, bool]] = []
    fleet.queue.on_change(lambda newest, is_reread: told.append((newest, is_reread)))

    def cut(point: str) -> None:
        if point == "after_commit":
            fleet.faults = no_fault
            raise DatabaseTrouble("cut off")

    fleet.faults = cut
    with pytest.raises(DatabaseTrouble):
        fleet.submit(order("one"), key="k")
    assert fleet.submit(order("one"), key="k").counts == {"new": 1}
    assert [is_reread for _, is_reread in told] == [True]
    assert kinds(fleet) == ["job_submitted"]


def test_a_bug_half_way_through_leaves_nothing_behind(fleet: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = granted(fleet, "one", "two")
    release = Scheduler.release

    def stumble(*_: object, **__: object) -> None:
        monkeypatch.setattr(Scheduler, "release", release)
        raise InternalError("stumbled")

    monkeypatch.setattr(Scheduler, "release", stumble)
    answers = together(fleet, finish(first), finish(second))
    assert [type(answer) for answer in answers] == [WriteResponse, WriteResponse]
    assert [state(fleet, name) for name in ("one", "two")] == ["completed", "completed"]
    assert kinds(fleet).count("job_finished") == 1


def test_everybody_who_asks_while_the_queue_closes_is_answered(fleet: Driven) -> None:
    answered: list[object] = []
    askers = [
        Thread(target=lambda: [fleet.queue.post(InspectMachines(), answered.append) for _ in range(200)])
        for _ in range(4)
    ]
    for asker in askers:
        asker.start()
    fleet.close()
    for asker in askers:
        asker.join()
    assert len(answered) == 800
    fleet.open()
