"""Who may show a certificate to another machine: asked of the coordinator, remembered for a moment, never guessed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import Unavailable
from stoker.transfer.peer_server import AGAIN_S, FRESH_S, STALE_S, PeerAdmission


class Coordinator:
    """Says whose certificates count, and how often it was asked."""

    def __init__(self, *serials: str) -> None:
        self.serials = serials
        self.asked = 0
        self.is_away = False

    def ask(self) -> tuple[str, ...]:
        self.asked += 1
        if self.is_away:
            raise Unavailable("away")
        return self.serials


def test_what_was_taken_back_counts_for_half_a_minute_at_most():
    clock, coordinator = FakeClock(), Coordinator("one", "two")
    admitting = PeerAdmission(coordinator.ask, clock=clock)
    assert admitting.admits("one")
    coordinator.serials = ("two",)
    clock.advance(FRESH_S - 1)
    assert admitting.admits("one")
    assert coordinator.asked == 1
    clock.advance(1)
    assert not admitting.admits("one")
    assert admitting.admits("two")
    assert coordinator.asked == 2


def test_who_joined_just_now_is_known_and_a_stranger_does_not_have_it_asked_all_the_time():
    clock, coordinator = FakeClock(), Coordinator("one")
    admitting = PeerAdmission(coordinator.ask, clock=clock)
    assert [admitting.admits("stranger") for _ in range(100)] == [False] * 100
    assert coordinator.asked == 1
    coordinator.serials = ("one", "new")
    clock.advance(AGAIN_S)
    assert admitting.admits("new")


def test_who_is_known_does_not_wait_while_the_coordinator_is_asked_about_a_stranger():
    clock, coordinator = FakeClock(), Coordinator("one")
    is_asked, may_answer = threading.Event(), threading.Event()

    def ask() -> tuple[str, ...]:
        if coordinator.asked:
            is_asked.set()
            assert may_answer.wait(30)
        return coordinator.ask()

    admitting = PeerAdmission(ask, clock=clock)
    assert admitting.admits("one")
    clock.advance(AGAIN_S)
    with ThreadPoolExecutor(2) as threads:
        stranger = threads.submit(admitting.admits, "stranger")
        assert is_asked.wait(30)
        assert threads.submit(admitting.admits, "one").result(timeout=30)
        may_answer.set()
        assert not stranger.result(timeout=30)


def test_a_coordinator_that_is_away_is_believed_for_some_minutes_and_then_nobody_gets_anything():
    clock, coordinator = FakeClock(), Coordinator("one")
    admitting = PeerAdmission(coordinator.ask, clock=clock)
    assert admitting.admits("one")
    coordinator.is_away = True
    clock.advance(STALE_S)
    assert admitting.admits("one")
    clock.advance(1)
    with pytest.raises(Unavailable):
        admitting.admits("one")
    with pytest.raises(Unavailable):
        PeerAdmission(coordinator.ask, clock=clock).admits("one")
