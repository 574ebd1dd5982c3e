"""What a shared process prints, on its way to its members; and which members it starts with."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.core.clock import FakeClock
from stoker.core.jsontext import dumps
from stoker.core.retry import FailureCause
from stoker.engine.runners.shared.shared_process import LiveSharedContext, MemberLogStream
from stoker.engine.runners.stage_runner import StageFailure, answer_of


def test_lines_are_told_whole() -> None:
    told: list[str] = []
    stream = MemberLogStream(io.StringIO(), told.append)
    for text in ("one", " line\ntwo\nthr", "ee\n"):
        stream.write(text)
    assert told == ["one line\ntwo", "three"]


def test_what_never_ends_its_line_is_told_in_pieces_and_not_kept() -> None:
    told: list[str] = []
    own = io.StringIO()
    stream = MemberLogStream(own, told.append)
    for step in range(20_000):
        stream.write(f"\r{step}")
    stream.write("\n")
    assert "".join(told) == own.getvalue().removesuffix("\n")
    assert max(map(len, told)) < 20_000


def test_an_answer_is_short_whatever_its_stage_met() -> None:
    long = "x" * 10_000_000
    answer = answer_of(StageFailure(cause=FailureCause.INPUT, message=long, hint=long, detail=long))
    assert len(dumps(answer)) < 150_000


class Arrivals:
    """Stands in for the server of connections: members come at certain times of a clock, which waits move."""

    def __init__(self, clock: FakeClock, times: list[float]) -> None:
        self.changed = self
        self._clock = clock
        self._times = times

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, left_s: float) -> None:
        now_s = self._clock.monotonic_s()
        self._clock.advance(min([left_s, *(one - now_s for one in self._times if one > now_s)]))

    def empty_for_s(self) -> float | None:
        return None

    def take_joined(self, fits: Callable[[list[Any]], bool]) -> list[Any]:
        taken: list[Any] = []
        while self._times and self._times[0] <= self._clock.monotonic_s():
            one = SimpleNamespace(joined_s=self._times[0], work={"most": 5})
            if not fits([*taken, one]):
                break
            taken.append(one)
            self._times.pop(0)
        return taken


@pytest.mark.parametrize(
    ("times", "groups"),
    [
        ([0.0], [[0.0]]),
        # Each within 0.2 s of the one before.
        ([0.0, 0.1, 0.25, 0.4], [[0.0, 0.1, 0.25, 0.4]]),
        ([0.0, 0.1, 0.5], [[0.0, 0.1], [0.5]]),
        # Five at most at once: the sixth waits until one has left.
        ([0.0, 0.1, 0.1, 0.1, 0.1, 0.1], [[0.0, 0.1, 0.1, 0.1, 0.1], []]),
    ],
)
def test_members_of_one_run_begin_together_though_they_join_one_after_another(
    times: list[float], groups: list[list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    times = [clock.monotonic_s() + one for one in times]
    start_s = times[0]
    nothing: Any = None
    context = LiveSharedContext(
        cast(Any, Arrivals(clock, times)), nothing, nothing, devices=(), linger_s=60.0, clock=clock
    )
    monkeypatch.setattr(LiveSharedContext, "_admit", _admitted)
    found = [[round(one.joined_s - start_s, 3) for one in cast(Any, context.new_members(1.0))] for _ in groups]
    assert found == groups


def test_members_that_joined_while_the_process_started_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    nothing: Any = None
    arrivals = Arrivals(clock, [clock.monotonic_s()] * 2)
    clock.advance(3.0)
    context = LiveSharedContext(cast(Any, arrivals), nothing, nothing, devices=(), linger_s=60.0, clock=clock)
    monkeypatch.setattr(LiveSharedContext, "_admit", _admitted)
    before_s = clock.monotonic_s()
    assert len(context.new_members(1.0)) == 2
    assert clock.monotonic_s() == before_s


@pytest.mark.parametrize(
    ("in_pass", "together"),
    [
        ([0, 0, 0], 0),
        ([2, 2, 2, 2], 2),
        # Three have reserved all that they need, four a pass of two of them, once.
        ([0, 0, 0, 2, 2, 2, 2], 5),
        # The ledger holds the larger pass of two runs.
        ([1, 3, 1], 3),
    ],
)
def test_a_pass_has_as_many_members_as_those_present_have_reserved_memory_for(
    in_pass: list[int], together: int
) -> None:
    nothing: Any = None
    context = LiveSharedContext(nothing, nothing, nothing, devices=(), linger_s=1.0, clock=FakeClock())
    context._connections = {slot: cast(Any, SimpleNamespace(work={"in_pass": one})) for slot, one in enumerate(in_pass)}
    context._update_limits()
    assert context.in_pass == together


def _admitted(context: LiveSharedContext, connection: Any) -> Any:
    context._connections[len(context._connections)] = connection
    return connection
