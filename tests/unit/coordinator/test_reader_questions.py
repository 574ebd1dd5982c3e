"""What else is asked of the reader, of a queue that has lived: which job, its story, results, who is before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from stoker.coordinator.queue.reader import QueueReader
from stoker.core.errors import Ambiguous, NotFound
from stoker.core.events import FleetKinds
from tests.contract.queue_driving import Driven, busy, order
from tests.unit.host.real_processes import wait_until


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    """A queue with some of everything, which these tests only read."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('reader')}/queue.db"
    else:
        url = request.getfixturevalue("postgres").create(request.getfixturevalue("postgres_template"))
    driven = busy(url)
    yield driven
    driven.close()


@pytest.fixture
def reader(fleet: Driven) -> QueueReader:
    return fleet.reader


def test_a_name_means_the_newest_of_it(reader: QueueReader):
    assert reader.find("sweep") == reader.find("sweep/6")
    assert reader.find("last") == reader.find("plain")
    assert reader.find("sweep/2").seq < reader.find("sweep/3").seq


def test_the_beginning_of_an_id_will_do(reader: QueueReader):
    found = reader.find("prep")
    assert reader.find(found.id[:8]) == found
    assert reader.find(found.id[:8].upper()) == found
    assert reader.find(found.id) == found


@pytest.mark.parametrize(
    ("ref", "hint"),
    [("swep", "did you mean 'sweep'?"), ("zzz", "`stoker jobs` lists them"), ("sweep/99", "did you mean 'sweep'?")],
)
def test_a_job_that_is_not_there_is_refused_with_the_nearest(reader: QueueReader, ref: str, hint: str):
    with pytest.raises(NotFound) as caught:
        reader.find(ref)
    assert caught.value.hint == hint


@pytest.mark.parametrize("ref", ["", "%", "abc", "0000000", "sweep/", "/3", "sweep/-1", "sweep/3/3", "'", "é" * 300])
def test_odd_words_are_no_jobs(reader: QueueReader, ref: str):
    with pytest.raises(NotFound):
        reader.find(ref)


def test_names_are_known_as_the_queue_reads_them_in_after(reader: QueueReader):
    prefix = reader.find("prep").id[:8]
    asked = [
        "prep",
        "sweep",
        "sweep/2",
        "sweep/99",
        "sweep/",
        "/2",
        "swee",
        "last",
        prefix,
        "prep/0",
        "sweep/²",
        "é" * 300,
    ]
    assert reader.known(asked) == {"prep", "sweep", "sweep/2"}
    assert reader.known([]) == frozenset()


def test_several_jobs_of_one_prefix_are_named(database_url: str):
    fleet = Driven(database_url)
    # Their ids begin alike.
    first, second = order("many", 48), order("many", 172)
    fleet.submit(first, second)
    with pytest.raises(Ambiguous) as caught:
        fleet.reader.find("6363")
    assert caught.value.data["candidates"] == [
        {"id": one.id, "name": f"many/{one.number}", "state": "pending"}
        for one in sorted((first, second), key=lambda one: one.id)
    ]
    assert fleet.reader.find(first.id[:12]).id == first.id
    with pytest.raises(NotFound):
        fleet.reader.find("636")
    fleet.close()


def test_a_story_has_attempts_events_result_and_order(reader: QueueReader):
    story = reader.story("sweep/2")
    assert (story.job.name, story.job.state, story.job.label) == ("sweep/2", "completed", "lr=2")
    assert [(one.number, one.ending, one.machine) for one in story.attempts] == [
        (1, "failed", "m1"),
        (2, "completed", "m2"),
    ]
    kinds = [event["kind"] for event in story.events]
    assert kinds[0] == FleetKinds.JOB_SUBMITTED
    assert kinds[-1] == FleetKinds.JOB_FINISHED
    assert FleetKinds.JOB_REQUEUED in kinds
    assert story.bundle["tree"] == story.job.result
    assert story.spec.args == {"name": "sweep", "number": 2}
    assert story.spec.requirements.ram_bytes == 1 << 30
    assert reader.attempts_of("sweep/2") == story.attempts


def test_a_story_says_what_it_comes_after(reader: QueueReader):
    story = reader.story("after")
    assert story.after == ("prep",)
    assert story.job.why == "waits for 1 job to complete first"


def test_a_lost_attempt_counts_against_its_own_budget(reader: QueueReader):
    lost = [one for one in reader.page().jobs if reader.story(one.id).counts["lost"]]
    assert lost
    story = reader.story(lost[0].id)
    assert [one.cause for one in story.attempts if one.ending == "expired"] == ["lost"]


def test_events_resume_by_their_number(reader: QueueReader):
    every = reader.events()
    numbers = [event["seq"] for event in every]
    assert numbers == sorted(set(numbers))
    assert reader.events(numbers[4], 3) == every[5:8]
    assert reader.events(numbers[-1]) == ()
    of_one = reader.events(ref="sweep/2")
    assert of_one == tuple(event for event in every if event.get("name") == "sweep/2")
    assert all(event["v"] == 1 and event["source"] == "coordinator" for event in every)
    assert of_one[1]["from"] == "pending"


def test_counters_agree_with_lists(reader: QueueReader):
    counts = reader.counts()
    for state, count in counts.items():
        assert len(reader.page(state=state).jobs) == count
    assert sum(reader.ready_by_class().values()) == 3


def test_the_first_ready_jobs_of_a_class_have_numbers_and_names(reader: QueueReader):
    ((class_id, count),) = reader.ready_by_class().items()
    (numbers,) = reader.ready_numbers({(class_id, 0): count + 5}).values()
    assert numbers == sorted(numbers)
    assert len(numbers) == count
    assert reader.ready_numbers({(class_id, 0): 1}) == {(class_id, 0): numbers[:1]}
    assert reader.names(numbers)[numbers[0]] == reader.story(reader.names(numbers)[numbers[0]]).job.name
    assert reader.names([10**9]) == {}


def test_a_case_says_what_a_job_still_waits_for(reader: QueueReader):
    case = reader.case("after")
    assert [(one.name, one.state) for one in case.after] == [("prep", "pending")]
    assert (case.attempts, case.not_before_s) == (1, 0.0)
    assert reader.case("prep").after == ()


def test_a_leaderboard_knows_which_way_is_better(reader: QueueReader):
    board = reader.leaderboard("loss")
    assert board.is_lower_better
    assert [(row.place, row.name, row.value) for row in board.rows] == [
        (1, "sweep/2", 0.125),
        (2, "sweep/1", 0.25),
        (3, "plain", 0.5),
    ]
    assert [row.name for row in reader.leaderboard("accuracy", limit=1).rows] == ["plain"]
    assert reader.leaderboard().metric == "accuracy", "the one that most likely matters"
    assert [row.name for row in reader.leaderboard("loss", name="sweep").rows] == ["sweep/2", "sweep/1"]
    assert reader.leaderboard(recipe="never/run").rows == ()


def test_a_leaderboard_is_not_by_a_metric_that_is_the_same_in_all_jobs(database_url: str):
    fleet = Driven(database_url)
    fleet.submit(order("a"), order("b"))
    fleet.join("m1")
    for grant, loss in zip(fleet.claim(most=2), (0.5, 0.25), strict=True):
        fleet.finish(grant, loss=loss, accuracy=0.9)
    assert fleet.reader.leaderboard().metric == "loss"
    assert fleet.reader.leaderboard("accuracy").metric == "accuracy"


def test_a_live_leaderboard_ranks_running_jobs_by_what_they_reported_last(database_url: str):
    fleet = Driven(database_url)
    fleet.submit(order("done"), order("live"), order("silent"))
    fleet.join("m1")
    first, second, _ = fleet.claim(most=3)
    fleet.finish(first, loss=0.5)
    fleet.renew(second, step=3, metrics={"loss": 0.25, "lr": 0.1})
    # Progress is stored about once a second, after what was asked is answered.
    fleet.clock.advance(5.0)
    fleet.renew(second, step=3, metrics={"loss": 0.25, "lr": 0.1})
    wait_until(lambda: len(fleet.reader.leaderboard("loss", is_live=True).rows) == 2)
    assert [row.name for row in fleet.reader.leaderboard("loss").rows] == ["done"]
    board = fleet.reader.leaderboard("loss", is_live=True)
    assert [(row.place, row.name, row.value) for row in board.rows] == [(1, "live", 0.25), (2, "done", 0.5)]
    assert [row.state == "completed" for row in board.rows] == [False, True]
    assert fleet.reader.leaderboard("loss", name="done", is_live=True).rows[0].name == "done"
    assert fleet.reader.leaderboard("lr", is_live=True).rows[0].name == "live"


def test_a_metric_that_nobody_has_is_refused_with_the_nearest(reader: QueueReader):
    with pytest.raises(NotFound) as caught:
        reader.leaderboard("los")
    assert caught.value.hint == "did you mean 'loss'?"


def test_bundles_are_told_in_their_order(reader: QueueReader):
    every = reader.bundles()
    assert [one["name"] for one in every] == ["plain", "sweep/1", "sweep/2"]
    assert reader.bundles(after_id=every[0]["id"], limit=1) == every[1:2]
    assert [one["attempt"] for one in reader.bundles(ref="sweep/2")] == [2]


def test_machines_are_told_with_what_they_hold(reader: QueueReader):
    first, second = reader.machines()
    assert (first.name, second.name) == ("m1", "m2")
    assert [(one.name, one.state, one.progress["step"]) for one in first.held] == [("sweep/4", "running", 3)]
    assert second.held == ()
    assert first.capability["hostname"] == "m1"
    assert reader.machines("nobody") == ()


def test_who_is_before_whom_follows_priority_then_age(database_url: str):
    fleet = Driven(database_url)
    fleet.submit(order("a"), order("b"), order("c", priority=3), order("d", requirements={"ram_bytes": 2 << 30}))
    reader = fleet.reader

    def before(name: str) -> tuple[int, int]:
        found = reader.waiting_before(reader.find(name).seq)
        return found.alike, found.all

    assert [before(name) for name in "abcd"] == [(1, 1), (2, 2), (0, 0), (0, 3)]
    fleet.close()


def test_many_threads_may_ask_at_once(fleet: Driven, reader: QueueReader):
    wanted = reader.page()
    found: list[bool] = []

    def ask() -> None:
        found.extend(reader.page() == wanted and reader.story("plain").job.state == "completed" for _ in range(5))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 40


def test_a_sweep_has_its_trials_with_their_last_metrics(reader: QueueReader):
    trials = reader.sweep("sweep")
    assert [one.number for one in trials] == [1, 2, 3, 4, 5, 6]
    assert [(one.state, one.attempt, one.metrics) for one in trials[:2]] == [
        ("completed", 1, {"loss": 0.25, "accuracy": 0.8}),
        ("completed", 2, {"loss": 0.125, "accuracy": 0.7}),
    ]
    (live,) = [one for one in trials if one.state == "running"]
    assert (live.step, live.of, live.metrics) == (3, 10, {"loss": 0.75})
    (listed,) = reader.sweeps().sweeps
    assert (listed.name, listed.total, listed.submitter) == ("sweep", 6, "me@desk")
    assert listed.jobs == {"completed": 2, "running": 1, "cancelled": 1, "pending": 2}
    specs = reader.specs([trials[0].seq, 10**9])
    assert specs[trials[0].seq]["args"] == {"name": "sweep", "number": 1}


@pytest.mark.parametrize(("name", "said"), [("plain", "'plain' is no sweep"), ("swep", "there is no job 'swep'")])
def test_what_is_no_sweep_is_refused(reader: QueueReader, name: str, said: str):
    with pytest.raises(NotFound, match=said):
        reader.sweep(name)
