"""Events for everybody who listens, figures, followers of files, and answers on their way into the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from stoker.coordinator.http import change_feed
from stoker.coordinator.http.app_state import Histogram, MetricsPage, QueueBridge
from stoker.coordinator.http.change_feed import ChangeFeed
from stoker.coordinator.http.long_poll import KEPT, MOST_FOLLOWERS, MOST_LISTENERS, EventFeed, Followers
from stoker.coordinator.queue.commands import QueueCommandResult, Sweep
from stoker.core.clock import SystemClock
from stoker.core.errors import NotFound, RateLimited
from stoker.protocol.codec import from_json
from stoker.protocol.screen_messages import ChangedRows
from stoker.protocol.view_messages import JobView


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 20))


class Journal:
    """Events in a table; counts how often it is read."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.reads = 0

    async def read(self, after: int, limit: int) -> tuple[dict[str, Any], ...]:
        self.reads += 1
        await asyncio.sleep(0)
        last = min(self.count, max(after, 0) + limit)
        return tuple({"seq": seq, "kind": "job_submitted"} for seq in range(max(after, 0) + 1, last + 1))


def ids(text: bytes) -> list[int]:
    return [int(line[4:]) for line in text.split(b"\n") if line.startswith(b"id: ")]


async def heard(feed: EventFeed, place: int, count: int) -> list[int]:
    """Listen behind a place until so many events have come."""
    found: list[int] = []
    while len(found) < count:
        place, text = await feed.after(place, 5.0) or (0, b"")
        found += ids(text)
    return found


async def let_them_wait() -> None:
    """Turn the loop until everybody in it has read what there is and waits, however slow the machine is."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_listener_gets_everything_behind_its_place_and_then_what_happens():
    async def scene():
        journal = Journal(3)
        feed = EventFeed(journal.read)
        with feed.listening():
            place, text = await feed.after(1, 1.0) or (0, b"")
            assert (place, ids(text)) == (3, [2, 3])
            waiting = asyncio.ensure_future(heard(feed, 3, 2))
            await let_them_wait()
            journal.count = 5
            feed.note(5)
            assert await waiting == [4, 5]

    run(scene())


def test_many_listeners_cost_one_read():
    async def scene():
        journal = Journal(1)
        feed = EventFeed(journal.read)
        with feed.listening():
            listening = [asyncio.ensure_future(heard(feed, 1, 9)) for _ in range(50)]
            await let_them_wait()
            journal.reads = 0
            journal.count = 10
            feed.note(10)
            assert await asyncio.gather(*listening) == [list(range(2, 11))] * 50
            assert journal.reads == 1

    run(scene())


def test_what_was_told_of_while_nobody_listened_is_not_missed():
    async def scene():
        journal = Journal(2)
        feed = EventFeed(journal.read)
        with feed.listening():
            listening = asyncio.ensure_future(heard(feed, 2, 1))
            await let_them_wait()
            journal.count = 3
            feed.note(3)
            assert await listening == [3]
        journal.count = 4
        feed.note(4)
        with feed.listening():
            assert await heard(feed, 3, 1) == [4]

    run(scene())


def test_whoever_is_far_behind_reads_the_database_and_misses_nothing():
    async def scene():
        journal = Journal(3 * KEPT)
        feed = EventFeed(journal.read)
        with feed.listening():
            feed.note(journal.count)
            assert await heard(feed, 0, journal.count) == list(range(1, journal.count + 1))

    run(scene())


def test_silence_is_an_empty_piece_and_the_end_is_none():
    async def scene():
        feed = EventFeed(Journal().read)
        with feed.listening():
            assert await feed.after(0, 0.01) == (0, b"")
            waiting = asyncio.ensure_future(feed.after(0, 15.0))
            await let_them_wait()
            feed.close()
            assert await waiting is None

    run(scene())


def test_listeners_are_counted_and_bounded():
    async def scene():
        feed = EventFeed(Journal().read)
        held = [feed.listening() for _ in range(MOST_LISTENERS)]
        for one in held:
            one.__enter__()
        with pytest.raises(RateLimited):
            feed.check_room()
        held[0].__exit__(None, None, None)
        feed.check_room()
        assert feed.listeners == MOST_LISTENERS - 1

    run(scene())


def test_a_follower_is_woken_from_another_thread_and_only_for_its_file():
    async def scene():
        followers = Followers(asyncio.get_running_loop())
        with followers.following(("j", 1, "a.log")) as grown, followers.following(("j", 1, "b.log")) as other:
            waiting = asyncio.ensure_future(followers.wait(grown, 15.0))
            await asyncio.sleep(0)
            assert len(followers) == 1
            threading.Thread(target=followers.grew, args=("j", 1, "a.log")).start()
            await waiting
            assert grown.is_set()
            assert not other.is_set()
            followers.ended("j")
            assert other.is_set()
        with followers.following(("j", 2, "a.log")) as grown:
            await followers.wait(grown, 0.01)
        assert len(followers) == 0

    run(scene())


def test_nothing_is_remembered_of_a_file_that_nobody_follows_any_more():
    async def scene():
        followers = Followers(asyncio.get_running_loop())
        with followers.following(("j", 1, "a.log")) as first, followers.following(("j", 1, "a.log")) as second:
            followers.ended("j")
            assert first.is_set()
            assert second.is_set()
            with followers.following(("j", 1, "a.log")) as third:
                assert not third.is_set()
        with followers.following(("j", 1, "never.log")):
            pass
        assert followers._waiting == {}

    run(scene())


def test_followers_are_bounded_and_let_go_at_the_end():
    async def scene():
        followers = Followers(asyncio.get_running_loop())
        with followers.following(("j", 1, "a.log")) as grown:
            waiting = [asyncio.ensure_future(followers.wait(grown, 15.0)) for _ in range(MOST_FOLLOWERS)]
            await asyncio.sleep(0)
            with pytest.raises(RateLimited):
                await followers.wait(grown, 1.0)
            followers.close()
            await asyncio.gather(*waiting)
        with followers.following(("j", 1, "c.log")) as grown:
            await followers.wait(grown, 15.0)

    run(scene())


class Posted:
    """A queue whose answers are brought by another thread, all at once."""

    def __init__(self) -> None:
        self.letters: list[Any] = []

    def post(self, _command: object, then: Any) -> None:
        self.letters.append(then)

    def answer(self, *answers: Any) -> None:
        def bring() -> None:
            for then, answer in zip(self.letters, answers, strict=True):
                then(answer)
            self.letters.clear()

        thread = threading.Thread(target=bring)
        thread.start()
        thread.join()


def test_answers_of_a_group_come_together_and_each_to_whoever_asked():
    async def scene():
        queue, changes = Posted(), []
        loop = asyncio.get_running_loop()
        counter = QueueBridge(queue.post, loop, on_change=lambda newest, is_reread: changes.append((newest, is_reread)))
        asking = [asyncio.ensure_future(counter.ask(Sweep())) for _ in range(3)]
        await asyncio.sleep(0)
        counter.bring_change(6, True)
        counter.bring_change(7, False)
        asking[2].cancel()
        await asyncio.sleep(0)
        queue.answer(QueueCommandResult(changed=("a",)), NotFound("no"), QueueCommandResult())
        assert (await asking[0]).changed == ("a",)
        with pytest.raises(NotFound):
            await asking[1]
        assert changes == [(7, True)]
        assert counter.commands == {"sweep": 3}
        assert counter.refused == {"not_found": 1}

    run(scene())


def test_an_answer_after_the_end_of_the_loop_is_nobodys():
    queue = Posted()
    held: list[QueueBridge] = []

    async def scene():
        counter = QueueBridge(queue.post, asyncio.get_running_loop(), on_change=lambda newest, is_reread: None)
        held.append(counter)
        counter.post(Sweep(), lambda answer: None)

    asyncio.run(scene())
    queue.answer(QueueCommandResult())
    held[0].bring_change(1, True)


def test_figures_are_written_as_prometheus_reads_them():
    page, spread = MetricsPage(), Histogram((1, 2))
    for value in (0.5, 1.0, 1.5, 9.0):
        spread.add(value)
    page.one("a_total", "counter", "So many.", 3)
    page.by("b", "gauge", "By name.", "name", {'odd "one"\n': 1, "b": 0.5})
    page.histogram("c_seconds", "How long.", spread)
    assert page.to_bytes().decode().splitlines() == [
        "# HELP a_total So many.",
        "# TYPE a_total counter",
        "a_total 3",
        "# HELP b By name.",
        "# TYPE b gauge",
        'b{name="b"} 0.5',
        'b{name="odd \\"one\\"\\n"} 1',
        "# HELP c_seconds How long.",
        "# TYPE c_seconds histogram",
        'c_seconds_bucket{le="1"} 2',
        'c_seconds_bucket{le="2"} 3',
        'c_seconds_bucket{le="+Inf"} 4',
        "c_seconds_sum 12.000000",
        "c_seconds_count 4",
    ]


# Rows that change, for screens.


class Rows:
    """What changes: an event, the progress of a job, or an error."""

    def __init__(self) -> None:
        self.seq = 5
        self.step = 0
        self.error: Exception | None = None

    def newest(self) -> int:
        return self.seq

    def since(self, after: int) -> ChangedRows:
        return ChangedRows(seq=self.seq, server_s=1.0, jobs=() if after == self.seq else (self.job(),))

    def frame(self, after: int, *, looks: bool) -> ChangedRows:
        if self.error is not None:
            raise self.error
        step, self.step = self.step, 0
        jobs = (self.job(step),) if step or after < self.seq else ()
        return ChangedRows(seq=self.seq, server_s=1.0, jobs=jobs)

    def job(self, step: int = 0) -> JobView:
        return JobView(
            id=f"{step}", name="train", recipe="command", state="running", priority=0, epoch=1, attempt=1,
            submitted_s=1.0, changed_s=1.0, step=step,
        )  # fmt: skip


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_feed, "EVERY_S", 0.0)
    monkeypatch.setattr(change_feed, "LOOK_S", 0.001)


def feed_of(rows: Rows) -> ChangeFeed:
    async def run_here(ask: Any) -> Any:
        await asyncio.sleep(0)
        return ask()

    reader: Any = rows
    return ChangeFeed(reader, run_here, SystemClock())


@pytest.mark.usefixtures("quick")
def test_progress_between_two_polls_is_in_the_second_if_it_names_the_frame_of_the_first():
    async def scene():
        rows = Rows()
        feed = feed_of(rows)
        first = from_json(ChangedRows, await feed.poll(5, 0.0))
        for step in (7, 8):
            made, rows.step = feed._made, step
            await made.wait()
        missed = from_json(ChangedRows, await feed.poll(5, 0.0))
        assert missed.jobs == ()
        found = from_json(ChangedRows, await feed.poll(5, 0.0, first.frame))
        assert [job.step for job in found.jobs] == [7, 8]
        again = from_json(ChangedRows, await feed.poll(5, 0.0, found.frame))
        assert again.jobs == ()
        # A frame of the coordinator before this one says nothing.
        assert from_json(ChangedRows, await feed.poll(5, 0.0, 10_000)).jobs == ()
        feed.close()

    run(scene())


@pytest.mark.usefixtures("quick")
def test_a_row_that_cannot_be_read_is_logged_once_and_others_follow(caplog: pytest.LogCaptureFixture):
    async def scene():
        rows = Rows()
        feed = feed_of(rows)
        frames = feed.stream(5, lambda: True)
        assert (await anext(frames)).kind == "hello"
        rows.error = ValueError("an odd row")
        while "reading changes" not in caplog.text:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        rows.error, rows.seq = None, 6
        assert (await anext(frames)).seq == 6
        feed.close()

    run(scene())
    assert caplog.text.count("reading changes: internal error") == 1


@pytest.mark.usefixtures("quick")
def test_a_listener_whose_frames_ended_reads_everything_again():
    async def scene():
        rows = Rows()
        feed = feed_of(rows)
        frames = feed.stream(5, lambda: True)
        assert (await anext(frames)).kind == "hello"
        making = feed._making
        assert making is not None
        making.cancel()
        await asyncio.wait((making,))
        # What happens here is in no frame.
        rows.seq = 6
        other = feed.stream(6, lambda: True)
        assert (await anext(other)).kind == "hello"
        rows.seq = 7
        assert (await anext(other)).kind == "rows"
        assert (await anext(frames)).kind == "resync"
        feed.close()

    run(scene())
