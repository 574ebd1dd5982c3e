"""What a worker tells of its trees: with hello, and with a heartbeat only where it is another."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stoker.model.clock import SystemClock
from stoker.model.errors import LocalFile
from stoker.wire.leasing import Hello, Holdings, Measured, Renewal, Renewed, Welcome
from stoker.worker.keeper.lines import Lines
from stoker.worker.keeper.questions import Questions

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
        self.has_forgotten = False

    def hello(self, hello: Hello) -> Welcome:
        self.hellos.append(hello)
        return WELCOME

    def renew(self, renewal: Renewal) -> Renewed:
        self.renewals.append(renewal)
        wants = self.has_forgotten and renewal.holdings is None
        return Renewed(lease_s=90, heartbeat_s=30, generation=1, server_s=0, wants_holdings=wants)


class Asking:
    def __init__(self) -> None:
        self.words = Words()
        self.held: Any = Holdings()
        self._answered = threading.Semaphore(0)
        lines = Lines(url="http://x", words=self.words, bytes=None, ask=None)  # type: ignore[arg-type]
        self.questions = Questions(
            lines,
            hello=lambda: HELLO,
            clock=SystemClock(),
            report=lambda _: self._answered.release(),
            new_word=lambda: "a-word-of-its-own",
            holds=self._holds,
        )

    def _holds(self) -> Holdings:
        if isinstance(self.held, Exception):
            raise self.held
        assert isinstance(self.held, Holdings)
        return self.held

    def greet(self) -> Holdings | None:
        self.questions.greet()
        assert self._answered.acquire(timeout=PATIENCE_S)
        return self.words.hellos[-1].holdings

    def beat(self) -> Holdings | None:
        self.questions.renew(lambda _: (), Measured)
        assert self._answered.acquire(timeout=PATIENCE_S)
        return self.words.renewals[-1].holdings


@pytest.fixture
def asking():
    made = Asking()
    yield made
    made.questions.close()


def test_what_is_held_is_told_with_hello_and_then_only_when_it_changed(asking: Asking) -> None:
    asking.held = one = Holdings(trees=("a" * 64,))
    assert asking.greet() == one
    assert asking.words.hellos[0].contents_at == "http://x"
    assert asking.beat() is None
    asking.held = two = Holdings(trees=("a" * 64, "b" * 64))
    assert asking.beat() == two
    assert asking.beat() is None
    # A coordinator that was started anew knows nothing.
    assert asking.greet() == two


def test_a_disk_that_can_t_be_read_silences_no_heartbeat(asking: Asking) -> None:
    asking.held = Holdings(trees=("a" * 64,))
    asking.greet()
    asking.held = LocalFile("no such disk")
    assert asking.beat() is None


def test_a_coordinator_that_has_forgotten_what_is_held_is_told_with_the_next_heartbeat(asking: Asking) -> None:
    asking.held = one = Holdings(trees=("a" * 64,))
    asking.greet()
    asking.words.has_forgotten = True
    assert asking.beat() is None
    assert asking.beat() == one
    assert asking.beat() is None
