"""Room for the bodies of requests: a budget for all, a share for each, large ones on disk; and for those of answers."""

from __future__ import annotations

import asyncio
import io
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from stoker.coordinator.http.access import LOCAL_ADMIN
from stoker.coordinator.http.app_state import BULK_ANSWERS, BULK_PIECE_BYTES, PIECE_BYTES, ServiceContext
from stoker.coordinator.http.http_messages import WORD_BYTES
from stoker.coordinator.http.job_routes import JobRoutes
from stoker.coordinator.http.submission_body import RETRY_S, SPOOL_BYTES, BodyMemoryBudget, ServiceRequestBody, spooled
from stoker.core.clock import SystemClock
from stoker.core.errors import NoSpace, TooLarge, Unavailable
from stoker.protocol.job_messages import Submission, SubmissionResponse

MIB = 1 << 20


def run(act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(act())


def messages(*parts: bytes) -> Callable[[], Coroutine[Any, Any, dict[str, Any]]]:
    waiting = [{"type": "http.request", "body": part, "more_body": True} for part in parts[:-1]]
    waiting.append({"type": "http.request", "body": parts[-1], "more_body": False})

    async def receive() -> dict[str, Any]:
        return waiting.pop(0)

    return receive


def test_the_share_of_one_principal_is_taken_by_its_own_bodies_alone():
    bodies = BodyMemoryBudget(4 * MIB, 2 * MIB)
    assert bodies.take_now("machine a", 2 * MIB)
    assert not bodies.take_now("machine a", 1)
    assert bodies.take_now("machine b", 2 * MIB)
    assert not bodies.take_now("machine c", 1)
    bodies.release("machine a", 2 * MIB)
    assert bodies.take_now("machine c", 2 * MIB)


def test_whoever_waits_is_served_in_order_past_those_whose_own_share_is_taken():
    async def act() -> None:
        bodies, served = BodyMemoryBudget(2 * MIB, MIB), []

        async def take(owner: str) -> None:
            await bodies.take(owner, MIB)
            served.append(owner)

        assert bodies.take_now("a", MIB)
        assert bodies.take_now("b", MIB)
        waiting = [asyncio.ensure_future(take(owner)) for owner in ("a", "c", "d")]
        await asyncio.sleep(0)
        bodies.release("b", MIB)
        await asyncio.wait([waiting[1]])
        assert served == ["c"]
        bodies.release("a", MIB)
        await asyncio.wait([waiting[0]])
        bodies.release("c", MIB)
        await asyncio.wait(waiting)
        assert served == ["c", "a", "d"]
        bodies.release("a", MIB)
        bodies.release("d", MIB)
        assert bodies.held_bytes == 0

    run(act)


def test_room_that_does_not_come_is_refused_with_when_to_try_again():
    async def act() -> None:
        bodies = BodyMemoryBudget(MIB, MIB, wait_s=0.01)
        assert bodies.take_now("a", MIB)
        with pytest.raises(Unavailable) as refused:
            await bodies.take("b", MIB)
        assert refused.value.data["retry_after_s"] == RETRY_S
        bodies.release("a", MIB)
        assert bodies.held_bytes == 0

    run(act)


def test_who_leaves_while_waiting_holds_nothing():
    async def act() -> None:
        bodies = BodyMemoryBudget(MIB, MIB)
        assert bodies.take_now("a", MIB)
        gone = asyncio.ensure_future(bodies.take("b", MIB))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        # Cancelled in the very moment in which it was served.
        late = asyncio.ensure_future(bodies.take("b", MIB))
        await asyncio.sleep(0)
        bodies.release("a", MIB)
        late.cancel()
        await asyncio.wait([late])
        assert bodies.held_bytes == 0

    run(act)


def test_room_is_not_passed_on_to_a_request_that_was_cancelled_a_moment_before():
    async def act() -> None:
        bodies = BodyMemoryBudget(MIB, MIB)
        assert bodies.take_now("a", MIB)
        gone, next_one = (asyncio.ensure_future(bodies.take(owner, MIB)) for owner in ("b", "c"))
        await asyncio.sleep(0)
        # Its task has not run since.
        gone.cancel()
        bodies.release("a", MIB)
        await asyncio.wait([gone, next_one])
        assert gone.cancelled()
        assert next_one.exception() is None
        bodies.release("c", MIB)
        assert bodies.held_bytes == 0

    run(act)


def test_room_is_held_from_the_first_read_until_it_is_released():
    async def act() -> None:
        bodies = BodyMemoryBudget(MIB, MIB)
        body = ServiceRequestBody(messages(b"x"), bodies, "a", limit_bytes=MIB, room_bytes=MIB)
        assert bodies.held_bytes == 0
        await body.receive()
        assert bodies.held_bytes == MIB
        body.release()
        body.release()
        assert bodies.held_bytes == 0
        small = ServiceRequestBody(messages(b"x"), bodies, "a", limit_bytes=MIB, room_bytes=WORD_BYTES)
        await small.receive()
        assert bodies.held_bytes == 0

    run(act)


def test_a_body_without_a_length_is_counted_as_it_comes():
    async def act() -> None:
        body = ServiceRequestBody(messages(b"x" * 5, b"x" * 6), BodyMemoryBudget(), "a", limit_bytes=10, room_bytes=10)
        await body.receive()
        with pytest.raises(HTTPException) as refused:
            await body.receive()
        assert refused.value.status_code == 413

    run(act)


class Disk:
    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.asked: list[int] = []
        self.is_full = False

    def check_room(self, coming_bytes: int) -> None:
        self.asked.append(coming_bytes)
        if self.is_full:
            raise NoSpace("full")

    async def keep(self, act: Callable[..., Any], *args: Any) -> Any:
        return act(*args)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_large_body_waits_on_disk_and_comes_back_whole(tmp_path: Path, count: int):
    disk, parts = Disk(tmp_path), [bytes([number]) * 100_000 for number in range(count)]

    async def act() -> None:
        async with spooled(messages(*parts), {}, 1 << 30, disk=disk, keep=disk.keep) as file:
            assert file.read() == b"".join(parts)

    run(act)
    is_large = count * 100_000 > SPOOL_BYTES
    assert bool(disk.asked) == is_large
    assert not is_large or sum(disk.asked) == count * 100_000
    assert list(tmp_path.iterdir()) == []


def test_a_large_body_without_room_on_disk_or_beyond_its_limit_is_refused(tmp_path: Path):
    disk, parts = Disk(tmp_path), [b"x" * 100_000] * 40

    async def act() -> None:
        with pytest.raises(TooLarge):
            async with spooled(messages(*parts), {}, 2 * MIB, disk=disk, keep=disk.keep):
                pass
        disk.is_full = True
        with pytest.raises(NoSpace):
            async with spooled(messages(*parts), {}, 1 << 30, disk=disk, keep=disk.keep):
                pass

    run(act)


class Desk:
    """An office that counts the submissions which it has in memory, with one thread for them as the real one has."""

    def __init__(self, folder: Path) -> None:
        self.keeping = Disk(folder)
        self.keep = self.keeping.keep
        self.views = self
        self.most_in_memory, self.posted = 0, 0
        self._made: list[weakref.ref[Submission]] = []
        self.is_refusing = False
        self.refused: list[weakref.ref[Submission]] = []
        self._thread = asyncio.Lock()
        self.may_forecast = asyncio.Event()
        self.may_forecast.set()

    async def order(self, act: Callable[..., Any], *args: Any) -> Any:
        async with self._thread:
            await asyncio.sleep(0)
            made = act(*args)
            if isinstance(made, Submission):
                self._made.append(weakref.ref(made))
                self.most_in_memory = max(self.most_in_memory, sum(one() is not None for one in self._made))
            return made

    async def submit(self, submission: Submission, *, only_of: str | None) -> SubmissionResponse:
        async with self._thread:
            await asyncio.sleep(0)
            if self.is_refusing:
                self.refused.append(weakref.ref(submission))
                raise NoSpace("full")
            return SubmissionResponse(jobs=(), counts={})

    async def run_forecast(self, act: Callable[..., Any], *args: Any) -> Any:
        await self.may_forecast.wait()
        return act(*args)

    def forecast(self, _submission: Submission, submitted: SubmissionResponse) -> SubmissionResponse:
        self.posted += 1
        return submitted


def test_of_submissions_that_have_come_whole_one_is_in_memory_and_one_dry_run(tmp_path: Path):
    async def act() -> None:
        desk = Desk(tmp_path)
        routes = JobRoutes(desk)  # type: ignore[arg-type]

        async def submit() -> None:
            body = Submission(jobs=(), dry_run=True).model_dump_json().encode()
            scope = {"type": "http", "headers": []}
            await routes.submit(Request(scope, messages(b" " * SPOOL_BYTES, body)), LOCAL_ADMIN)

        await asyncio.gather(*(submit() for _ in range(24)))
        assert desk.most_in_memory <= 2
        assert desk.posted == 24
        # One that is refused keeps none waiting.
        desk.is_refusing = True
        refused = await asyncio.gather(*(submit() for _ in range(3)), return_exceptions=True)
        assert [type(one) for one in refused] == [NoSpace] * 3
        assert desk.most_in_memory <= 2
        # However slowly the client reads why, the submission is gone.
        assert all(one() is None for one in desk.refused)

    run(act)


def test_a_submission_does_not_wait_for_the_forecast_of_a_dry_run(tmp_path: Path):
    async def act() -> None:
        desk = Desk(tmp_path)
        desk.may_forecast.clear()
        routes = JobRoutes(desk)  # type: ignore[arg-type]

        async def submit(*, dry_run: bool) -> None:
            body = Submission(jobs=(), dry_run=dry_run).model_dump_json().encode()
            await routes.submit(Request({"type": "http", "headers": []}, messages(body)), LOCAL_ADMIN)

        dry_runs = [asyncio.create_task(submit(dry_run=True)) for _ in range(3)]
        async with asyncio.timeout(5.0):
            await submit(dry_run=False)
        assert desk.posted == 0
        desk.may_forecast.set()
        await asyncio.gather(*dry_runs)
        assert desk.posted == 3

    run(act)


def idle_office() -> ServiceContext:
    """Make an office that is asked for bytes alone."""
    queue: Any = SimpleNamespace(
        reader=None, post=None, is_current=None, on_change=lambda _: None, on_wish=lambda _: None
    )
    keeping: Any = SimpleNamespace(attempt_files=SimpleNamespace(on_growth=lambda _: None))
    rest: Any = {"views": None, "about": None, "clock": SystemClock(), "reload": None}
    return ServiceContext(queue=queue, keeping=keeping, **rest)


def test_answers_come_in_large_pieces_but_only_a_few_at_a_time():
    data = bytes(range(256)) * (3 * MIB // 256)

    async def act() -> None:
        office = idle_office()
        streams = [io.BytesIO(data) for _ in range(BULK_ANSWERS + 3)]
        # None of these reads on: each has its first piece in memory.
        slow = [office.pieces(stream) for stream in streams]
        sizes = [len(await anext(pieces)) for pieces in slow]
        assert sizes == [BULK_PIECE_BYTES] * BULK_ANSWERS + [PIECE_BYTES] * 3
        # The room of one that left, or has come to its end, is there for the next.
        await slow[0].aclose()  # type: ignore[attr-defined]
        assert b"".join([piece async for piece in slow[1]]) == data[BULK_PIECE_BYTES:]
        assert streams[0].closed
        assert streams[1].closed
        later = [office.pieces(io.BytesIO(data)) for _ in range(3)]
        assert [len(await anext(pieces)) for pieces in later] == [BULK_PIECE_BYTES] * 2 + [PIECE_BYTES]
        assert b"".join([piece async for piece in later[2]]) == data[PIECE_BYTES:]
        office.close()
        office.end()

    run(act)
