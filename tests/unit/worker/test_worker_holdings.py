"""What a worker tells of its trees and of its end: with hello, and with a heartbeat only where it is another."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stoker.core.clock import Clock, FakeClock, SystemClock
from stoker.core.errors import LocalFile
from stoker.protocol.lease_messages import (
    Claim,
    ClaimResponse,
    Hello,
    MachineInventory,
    Renewal,
    RenewalResponse,
    Welcome,
    WorkerMeasurements,
)
from stoker.worker.coordinator_calls import ClaimLoop, PendingClaim, WorkerConnections
from tests.unit.host.real_processes import wait_until

PATIENCE_S = 30.0
HELLO = Hello(worker="desk", incarnation="incarnation-1", capability={}, capability_digest="", contents_at="http://x")
WELCOME = Welcome(
    worker="desk", generation=1, heartbeat_s=30, lease_s=90, start_s=60, claim_wait_s=10, server_s=0, version=""
)


class Words:
    """A coordinator that listens."""

    def __init__(self) -> None:
        self.hellos: list[Hello] = []
        self.renewals: list[Renewal] = []
        self.claims: list[Claim] = []
        self.has_forgotten = False

    def hello(self, hello: Hello) -> Welcome:
        self.hellos.append(hello)
        return WELCOME

    def claim(self, claim: Claim) -> ClaimResponse:
        self.claims.append(claim)
        return ClaimResponse(generation=1)

    def cut(self) -> None:
        pass

    def renew(self, renewal: Renewal) -> RenewalResponse:
        self.renewals.append(renewal)
        wants = self.has_forgotten and renewal.holdings is None
        return RenewalResponse(lease_s=90, heartbeat_s=30, generation=1, server_s=0, wants_holdings=wants)


class Asking:
    def __init__(self, clock: Clock | None = None, ends_s: float | None = None) -> None:
        self.words = Words()
        self.held: Any = MachineInventory()
        self._answered = threading.Semaphore(0)
        lines = WorkerConnections(url="http://x", words=self.words, bytes=None, ask=lambda: self.words)  # type: ignore[arg-type]
        self.questions = ClaimLoop(
            lines,
            hello=lambda: HELLO,
            clock=clock or SystemClock(),
            report=lambda _: self._answered.release(),
            new_word=lambda: "a-word-of-its-own",
            holds=self._holds,
            stops_s=lambda: ends_s,
        )

    def _holds(self) -> MachineInventory:
        if isinstance(self.held, Exception):
            raise self.held
        assert isinstance(self.held, MachineInventory)
        return self.held

    def greet(self) -> MachineInventory | None:
        wait_until(lambda: not self.questions._is_greeting)
        self.questions.greet()
        assert self._answered.acquire(timeout=PATIENCE_S)
        return self.words.hellos[-1].holdings

    def ask(self) -> None:
        self.questions.claim(
            PendingClaim(most=1, wait_s=0.0, measured=WorkerMeasurements, stopping=lambda: (), looks_around=False)
        )
        assert self._answered.acquire(timeout=PATIENCE_S)

    def beat(self) -> MachineInventory | None:
        self.questions.renew(lambda _: (), WorkerMeasurements)
        assert self._answered.acquire(timeout=PATIENCE_S)
        return self.words.renewals[-1].holdings


@pytest.fixture
def asking():
    made = Asking()
    yield made
    made.questions.close()


def test_what_is_held_is_told_with_hello_and_then_only_when_it_changed(asking: Asking) -> None:
    asking.held = one = MachineInventory(trees=("a" * 64,))
    assert asking.greet() == one
    assert asking.words.hellos[0].contents_at == "http://x"
    assert asking.beat() is None
    asking.held = two = MachineInventory(trees=("a" * 64, "b" * 64))
    assert asking.beat() == two
    assert asking.beat() is None
    # A coordinator that was started anew knows nothing.
    assert asking.greet() == two


def test_a_disk_that_can_t_be_read_silences_no_heartbeat(asking: Asking) -> None:
    asking.held = MachineInventory(trees=("a" * 64,))
    asking.greet()
    asking.held = LocalFile("no such disk")
    assert asking.beat() is None


def test_a_coordinator_that_has_forgotten_what_is_held_is_told_with_the_next_heartbeat(asking: Asking) -> None:
    asking.held = one = MachineInventory(trees=("a" * 64,))
    asking.greet()
    asking.words.has_forgotten = True
    assert asking.beat() is None
    assert asking.beat() == one
    assert asking.beat() is None


def test_everything_that_a_worker_says_says_how_much_time_is_left_when_it_is_sent(asking: Asking) -> None:
    asking.greet()
    asking.ask()
    asking.beat()
    words = asking.words
    assert (words.hellos[-1].ends_in_s, words.claims[-1].ends_in_s, words.renewals[-1].ends_in_s) == (None, None, None)
    clock = FakeClock()
    ends = Asking(clock, ends_s=clock.boottime_s() + 60.0)
    try:
        for _ in range(3):
            ends.greet()
            ends.ask()
            ends.beat()
            clock.advance(45.0)
    finally:
        ends.questions.close()
    for said in (ends.words.hellos, ends.words.claims, ends.words.renewals):
        assert [one.ends_in_s for one in said] == [60.0, 15.0, 0.0]
