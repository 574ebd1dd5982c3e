"""Events as they happen: taken apart byte by byte, resumed behind the last one, each given once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import BadAnswer, DatabaseTrouble, Forbidden, NoCoordinator
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.protocol.client import FleetClient
from stoker.protocol.transport import EventReader, FleetEvent, RequestTimeouts
from tests.servers.little import Got, LittleServer, Said, said


def _event(number: int, kind: str = "job_started") -> bytes:
    return f'id: {number}\nevent: {kind}\ndata: {{"job":"gbt","n":{number}}}\n\n'.encode()


@pytest.fixture
def transport() -> Iterator[Urllib3Transport]:
    with closing(Urllib3Transport(HttpSettings(connect_s=5, head_s=5, read_s=5))) as transport:
        yield transport


def _client(transport: Urllib3Transport, server: LittleServer, retry_s: float = 5.0) -> FleetClient:
    return FleetClient(transport, server.url, clock=FakeClock(), patience=RequestTimeouts(retry_s=retry_s))


def _heard(events: Iterator[FleetEvent | None], count: int) -> list[FleetEvent]:
    return list(islice((event for event in events if event is not None), count))


def test_a_stream_is_the_same_however_it_is_cut():
    text = b": warm\n\n" + _event(1) + b'retry: 5\r\n\r\nid:2\r\ndata: {\r\ndata: "kind": "x"}\r\n\r\n: end\r\n'
    whole = EventReader().feed(text)
    assert [(event.id, event.kind) for event in whole] == [(1, "job_started"), (2, "x")]
    for size in (1, 2, 3, 7):
        reader, events = EventReader(), []
        for at in range(0, len(text), size):
            events += reader.feed(text[at : at + size])
        assert events == whole


@pytest.mark.parametrize(
    "text",
    [b"data: {}\n\n", b"id: 1\ndata: []\n\n", b"id: 1\ndata: {\n\n", b"id: x\ndata: {}\n\n", b"x" * (2 << 20)],
    ids=["no id", "no object", "no json", "no number", "no end"],
)
def test_what_is_no_event_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        EventReader().feed(text)


def test_fields_that_nobody_asked_for_are_not_kept():
    reader = EventReader()
    for number in range(100):
        assert reader.feed(b"field-%d: x\n" % number) == []
    assert reader._fields == {}


def test_events_go_on_behind_the_last_one_when_the_line_is_cut(transport):
    def answer(asked: Got) -> Said:
        after = int(asked.headers["Last-Event-Id"])
        return Said(pieces=[_event(after + 1), _event(after + 2)])

    with LittleServer(answer) as server:
        events = _heard(_client(transport, server).events(10), 6)
    assert [event.id for event in events] == [11, 12, 13, 14, 15, 16]
    assert [asked.query.get("after") for asked in server.asked] == ["10", "12", "14"]


def test_an_event_that_comes_twice_is_given_once(transport):
    with LittleServer(
        lambda asked: Said(pieces=[_event(1), _event(2), _event(2), _event(1), _event(len(server.asked) + 2)])
    ) as server:
        events = _heard(_client(transport, server).events(0), 4)
    assert [event.id for event in events] == [1, 2, 3, 4]


def test_a_coordinator_that_comes_back_is_listened_to_again(transport):
    answers = iter(
        [Said(pieces=[_event(1)]), said(DatabaseTrouble("x").to_dict(), 503), Said(cuts=True), Said(pieces=[_event(2)])]
    )
    with LittleServer(lambda _asked: next(answers)) as server:
        events = _heard(_client(transport, server).events(0), 2)
    assert [event.id for event in events] == [1, 2]


def test_a_coordinator_that_stays_away_is_told(transport):
    with LittleServer(lambda _asked: Said(pieces=[_event(1)])) as server:
        events = _client(transport, server).events(0)
        assert _heard(events, 1)[0].id == 1
    with pytest.raises(NoCoordinator):
        _heard(events, 1)


def test_a_refusal_ends_it(transport):
    with LittleServer(lambda _asked: said(Forbidden("no").to_dict(), 401)) as server, pytest.raises(Forbidden):
        next(_client(transport, server).events(0))


def test_what_is_no_stream_of_events_is_a_bad_answer(transport):
    with LittleServer(lambda _asked: Said(body=b"id: one\ndata: {}\n\n")) as server, pytest.raises(BadAnswer):
        next(_client(transport, server).events(0))


def test_silence_is_told_with_every_beat(transport):
    def quiet() -> Iterator[bytes]:
        yield b": warm\n\n"
        is_over.wait(20)

    is_over = threading.Event()
    with LittleServer(lambda _asked: Said(pieces=quiet())) as server:
        events = _client(transport, server).events(0, beat_s=0.05)
        assert list(islice(events, 3)) == [None, None, None]
        is_over.set()


def test_a_server_that_ends_every_stream_at_once_is_not_asked_without_a_pause(transport):
    clock = FakeClock()
    with LittleServer(lambda _asked: Said(pieces=[])) as server:
        events = FleetClient(transport, server.url, clock=clock).events(0)
        assert list(islice(events, 20)) == [None] * 20
    assert clock.monotonic_s() > 10.0


def test_a_line_that_is_cut_before_its_first_event_goes_on_where_it_began(transport):
    answers = iter([Said(pieces=[b"id: 7\n\n"]), Said(pieces=[_event(8)])])
    with LittleServer(lambda _asked: next(answers)) as server:
        assert _heard(_client(transport, server).events(), 1)[0].id == 8
    assert [asked.query.get("after") for asked in server.asked] == [None, "7"]
