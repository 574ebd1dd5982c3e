from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from stoker.coordinator.http.access import need_of
from stoker.coordinator.http.exec_sessions import (
    GONE_S,
    IDLE_S,
    KEPT_S,
    TAKEN_WITHIN_S,
    ExecSessionInfo,
    ExecSessions,
    ExecSessionState,
    ExecStream,
)
from stoker.core.clock import FakeClock
from stoker.core.errors import BadInput, Conflict, NotFound, StaleLease
from stoker.core.leases import AttemptToken, Role
from stoker.protocol.lease_messages import ClaimResponse, ExecCall

TOKEN = AttemptToken(job="a" * 64, attempt=1, epoch=1, generation=0)
CALL = ExecCall(id="0" * 32, job=TOKEN.job, attempt=1, epoch=1, generation=0, argv=("true",))


class Hall:
    """A desk whose clock and leases a test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.current = {TOKEN: "lab"}
        self.desk = ExecSessions(self.clock, is_current=self._is_current)

    def open(self) -> ExecSessionState:
        opened = ExecSessionInfo(machine="lab", name="train", by="anna", person="anna")
        return self.desk.open(CALL, opened)

    def after(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.desk.expire()

    def _is_current(self, token: AttemptToken, machine: str) -> bool:
        return token in self.current and machine in ("", self.current[token])


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_a_stream_takes_each_byte_once_as_far_as_there_is_room_and_drops_what_was_heard():
    stream = ExecStream(5)
    assert stream.take(0, b"abc", 1) == 3
    assert stream.take(1, b"bcde", 2) == 5, "only what is new"
    assert stream.take(5, b"fgh", 2) == 5, "there is no room"
    assert stream.give(0, 4) == [(1, b"abc"), (2, b"d")]
    assert stream.give(4, 100) == [(2, b"e")]
    assert stream.take(5, b"fgh", 2) == 8
    assert stream.give(4, 100) == [(2, b"e"), (2, b"fgh")]
    with pytest.raises(BadInput):
        stream.give(3, 100)
    with pytest.raises(Conflict):
        stream.take(99, b"x")


def test_only_the_lease_holder_speaks_and_only_whoever_began_a_session_follows_it():
    async def story() -> None:
        hall = Hall()
        session = hall.open()
        assert hall.desk.with_calls("lab", ClaimResponse(generation=0)).execs == (CALL,)
        assert hall.desk.with_calls("other", ClaimResponse(generation=0)).execs == ()
        with pytest.raises(NotFound):
            hall.desk.of_worker(CALL.id, TOKEN, "other")
        with pytest.raises(NotFound):
            hall.desk.of_operator(CALL.id, "bert")
        assert hall.desk.of_operator(CALL.id, "anna") is session
        assert hall.desk.of_worker(CALL.id, TOKEN, "lab") is session
        assert hall.desk.with_calls("lab", ClaimResponse(generation=0)).execs == ()
        hall.current.clear()
        with pytest.raises(StaleLease):
            hall.desk.of_worker(CALL.id, TOKEN, "lab")
        hall.desk.close()

    run(story())


@pytest.mark.parametrize(
    ("is_taken", "seconds", "why"),
    [
        pytest.param(False, TAKEN_WITHIN_S, "did not start it", id="nobody-takes-it-up"),
        pytest.param(True, GONE_S, "silent", id="the-machine-is-gone"),
    ],
)
def test_a_session_ends_when_one_of_its_ends_has_been_silent_for_too_long(is_taken: bool, seconds: float, why: str):
    async def story() -> None:
        hall = Hall()
        session = hall.open()
        if is_taken:
            hall.desk.of_worker(CALL.id, TOKEN, "lab")
        hall.after(seconds)
        assert not session.is_over
        hall.after(1.0)
        assert session.is_over
        assert why in session.why
        hall.after(KEPT_S + 1)
        with pytest.raises(NotFound):
            hall.desk.of_operator(CALL.id, "anna")
        hall.desk.close()

    run(story())


def test_a_session_ends_with_its_lease_its_operator_and_after_hours_of_nothing():
    async def story() -> None:
        for cause in ("lease", "operator", "idle"):
            hall = Hall()
            session = hall.open()
            hall.desk.of_worker(CALL.id, TOKEN, "lab")
            if cause == "lease":
                hall.current.clear()
                hall.after(1.0)
            for _ in range(int(IDLE_S // GONE_S) + 1 if cause == "idle" else 2 if cause == "operator" else 0):
                assert not session.is_over
                hall.clock.advance(GONE_S)
                hall.desk.of_worker(CALL.id, TOKEN, "lab")
                if cause == "idle":
                    hall.desk.of_operator(CALL.id, "anna")
                hall.desk.expire()
            assert session.is_over, cause
            hall.desk.close()

    run(story())


def test_output_waits_for_room_and_its_reader_for_output():
    async def story() -> None:
        hall = Hall()
        session = hall.open()
        reading = asyncio.ensure_future(hall.desk.read(session, 0, 30))
        await asyncio.sleep(0)
        assert not reading.done()
        assert await hall.desk.put(session, 0, b"x" * (2 << 20), stream=1, wait_s=0) == 1 << 20
        first = await reading
        have = sum(len(piece.data) for piece in first.pieces)
        putting = asyncio.ensure_future(hall.desk.put(session, 1 << 20, b"y", stream=1, wait_s=30))
        await asyncio.sleep(0)
        assert not putting.done(), "nobody has heard any of it yet"
        await hall.desk.read(session, have, 0)
        assert await putting == (1 << 20) + 1
        hall.desk.end(session, "", 3)
        with pytest.raises(NotFound):
            await hall.desk.put(session, (1 << 20) + 1, b"z", stream=1, wait_s=30)
        hall.desk.close()

    run(story())


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_every_route_of_a_session_needs_an_operator(method: str):
    assert need_of(method, f"/v1/exec/{'0' * 32}/out").role is Role.OPERATE
    assert need_of("POST", "/v1/jobs/train/exec").role is Role.OPERATE
    assert need_of("PUT", f"/v1/attempts/{'a' * 64}/exec/{'0' * 32}/out").role is None
