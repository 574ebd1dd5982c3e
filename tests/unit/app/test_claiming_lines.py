"""Long questions on lines of their own: cut while they are asked, used again once they were answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from stoker.app.worker_app import ClaimConnectionPool, CoordinatorConnection
from stoker.core.clock import SystemClock
from stoker.core.errors import StokerError
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.protocol.client import FleetClient
from stoker.protocol.lease_messages import Claim
from stoker.protocol.transport import RequestTimeouts
from tests.servers.little import Got, LittleServer, Said, said

CLAIM = Claim(request_id="request-1", worker="lab1", incarnation="incarnation", most=1)
NOTHING = {"generation": 1}


@pytest.fixture
def server() -> Iterator[LittleServer]:
    with LittleServer(lambda _got: said(NOTHING)) as server:
        yield server


@pytest.fixture
def opened() -> list[Urllib3Transport]:
    return []


@pytest.fixture
def lines(server: LittleServer, opened: list[Urllib3Transport]) -> Iterator[ClaimConnectionPool]:
    def open_line() -> CoordinatorConnection:
        transport = Urllib3Transport(HttpSettings())
        opened.append(transport)
        client = FleetClient(transport, server.url, clock=SystemClock(), patience=RequestTimeouts(retry_s=0.0))
        return client, transport

    with closing(ClaimConnectionPool(open_line)) as lines:
        yield lines


def test_a_line_that_was_answered_serves_the_next_question_on_the_same_connection(lines, server, opened):
    for _ in range(3):
        line = lines.ask()
        line.claim(CLAIM)
        line.cut()
    assert len(opened) == 1
    assert len({got.port for got in server.asked}) == 1


def test_a_question_that_is_cut_ends_and_its_line_is_not_used_again(lines, server, opened):
    is_asked, goes_on = threading.Event(), threading.Event()

    def hold(_got: Got) -> Said:
        is_asked.set()
        goes_on.wait(30.0)
        return said(NOTHING)

    server.answers = hold
    line, ended = lines.ask(), []

    def ask() -> None:
        try:
            line.claim(CLAIM)
        except StokerError as error:
            ended.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert is_asked.wait(30.0)
    line.cut()
    asking.join(30.0)
    goes_on.set()
    assert len(ended) == 1
    line.cut()
    server.answers = lambda _got: said(NOTHING)
    after = lines.ask()
    after.claim(CLAIM)
    after.cut()
    assert len(opened) == 2


def test_one_that_is_cut_before_it_is_asked_answers_nothing(lines):
    line = lines.ask()
    line.cut()
    with pytest.raises(StokerError):
        line.claim(CLAIM)


def test_cutting_twice_gives_a_line_back_once(lines, opened):
    line = lines.ask()
    line.claim(CLAIM)
    line.cut()
    line.cut()
    first, second = lines.ask(), lines.ask()
    first.claim(CLAIM)
    second.claim(CLAIM)
    assert len(opened) == 2
    first.cut()
    second.cut()
