"""What everybody who sends requests relies on, of the real transport and of the fake that stands in for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Protocol

import pytest

from stoker.core.errors import BadAnswer, BadInput, NetworkFailed
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpClientResponse, HttpSettings, Request, Transport
from stoker.host.http.http_errors import Ended
from tests.fakes.transport import FakeTransport, Scripted
from tests.servers.faulty import Act, Answer, Asked, FaultyServer, Line, Version

Answers = dict[str, Scripted | Exception]


class World(Protocol):
    """A transport, and a server that it reaches."""

    answers: Answers
    origin: str
    transport: Transport


class FakeWorld:
    origin = "http://server.test"

    def __init__(self) -> None:
        self.answers: Answers = {}
        self.transport: Transport = FakeTransport(
            lambda request: self.answers[request.url.removeprefix(self.origin).partition("?")[0]]
        )


class RealWorld:
    """Plays the same scripts over a socket."""

    def __init__(self, server: FaultyServer) -> None:
        self.answers: Answers = {}
        self.origin = server.origin
        self.transport: Transport = Urllib3Transport(HttpSettings(connect_s=5, head_s=5, read_s=5))
        server.versions = _Everywhere()
        server.become(self._play)

    def _play(self, asked: Asked, _version: Version) -> Answer:
        scripted = self.answers[asked.path]
        if isinstance(scripted, Exception):
            assert isinstance(scripted, Ended)
            return Answer(raw_head=b"", body=(Line.close,))
        fields = list(scripted.all_fields())
        body: list[bytes | Act] = [scripted.body]
        if scripted.stalls_after is not None:
            body = [scripted.body[: scripted.stalls_after], Line.stall]
        elif _ends_with_connection(scripted):
            body.append(Line.close)
        return Answer(status=scripted.status, fields=fields, body=body)


class _Everywhere(dict):
    def get(self, key, default=None):
        return Version(data=b"")


def _ends_with_connection(scripted: Scripted) -> bool:
    lengths = [value for name, value in scripted.all_fields() if name.lower() == "content-length"]
    return lengths != [str(len(scripted.body))]


@pytest.fixture(params=["real", "fake"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "fake":
        yield FakeWorld()
        return
    with FaultyServer() as server:
        real = RealWorld(server)
        with closing(real.transport):
            yield real


def _send(world: World, answer: Scripted | Exception, method: str = "GET") -> HttpClientResponse:
    world.answers["/it"] = answer
    return world.transport.send(Request(url=f"{world.origin}/it?key=1", method=method, headers={}))


def _all(reply: HttpClientResponse, piece_bytes: int = 1 << 20) -> bytes:
    return b"".join(iter(lambda: reply.read(piece_bytes), b""))


def test_a_reply_has_a_status_fields_in_any_case_and_the_address_that_was_asked(world):
    with closing(_send(world, Scripted(status=404, fields=(("X-Say", "a"), ("x-say", "b"))))) as reply:
        assert reply.status == 404
        assert reply.headers.get("X-SAY") == "a"
        assert reply.headers.all("x-sAy") == ("a", "b")
        assert reply.headers.get("x-other") is None
        assert "X-Say" in reply.headers
        assert reply.url == f"{world.origin}/it?key=1"


@pytest.mark.parametrize("size", [0, 1, 70_000])
@pytest.mark.parametrize("piece_bytes", [1000, 1 << 20])
def test_a_body_is_given_in_pieces_and_then_nothing_more(world, size, piece_bytes):
    body = bytes(number % 251 for number in range(size))
    with closing(_send(world, Scripted(body=body))) as reply:
        got = b""
        while piece := reply.read(piece_bytes):
            assert len(piece) <= piece_bytes
            got += piece
        assert got == body
        assert reply.read(piece_bytes) == b""


def test_a_body_without_a_length_ends_with_its_connection(world):
    with closing(_send(world, Scripted(body=b"hello", is_without_length=True))) as reply:
        assert _all(reply) == b"hello"


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_an_answer_that_can_have_no_body_has_none_whatever_length_it_tells(world, method, status):
    with closing(_send(world, Scripted(status=status, fields=(("Content-Length", "77"),)), method)) as reply:
        assert reply.headers.get("Content-Length") == "77"
        assert reply.read(100) == b""


def test_a_redirect_is_an_answer_like_any_other(world):
    with closing(_send(world, Scripted(status=302, fields=(("Location", "/elsewhere"),)))) as reply:
        assert (reply.status, reply.headers.get("location")) == (302, "/elsewhere")


def test_an_encoded_body_is_given_as_it_came(world):
    with closing(_send(world, Scripted(fields=(("Content-Encoding", "gzip"),), body=b"\x1f\x8bno"))) as reply:
        assert _all(reply) == b"\x1f\x8bno"


def test_a_body_shorter_than_announced_is_never_taken_for_a_whole_one(world):
    with closing(_send(world, Scripted(fields=(("Content-Length", "100"),), body=b"x" * 60))) as reply:
        assert reply.read(60) == b"x" * 60
        for _ in range(2):
            with pytest.raises(NetworkFailed) as caught:
                reply.read(100)
            assert caught.value.data["reason"] == "short_body"
            assert caught.value.data["missing_bytes"] == 40
            assert not caught.value.data["is_lasting"]


def test_bytes_after_the_end_are_told_once_the_announced_ones_are_given(world):
    with closing(_send(world, Scripted(fields=(("Content-Length", "4"),), body=b"wholemore"))) as reply:
        assert reply.read(100) == b"whol"
        with pytest.raises(BadAnswer) as caught:
            reply.read(100)
        assert caught.value.data["reason"] == "long_body"


@pytest.mark.parametrize("lengths", [("5", "6"), ("-5",), ("five",), ("5, 6",), ("",), ("+5",), ("9" * 30,), ("0x5",)])
def test_a_length_that_can_not_be_is_refused_with_the_head(world, lengths):
    fields = tuple(("Content-Length", length) for length in lengths)
    with pytest.raises(BadAnswer) as caught:
        _send(world, Scripted(fields=fields, body=b"hello"))
    assert caught.value.data["reason"] == "protocol"


def test_a_length_said_twice_alike_is_a_length(world):
    with closing(
        _send(world, Scripted(fields=(("Content-Length", "5"), ("Content-Length", "5")), body=b"hello"))
    ) as reply:
        assert _all(reply) == b"hello"


def test_a_server_that_says_nothing_at_all_is_a_failure_that_names_it(world):
    with pytest.raises(NetworkFailed) as caught:
        _send(world, Ended())
    host = world.origin.removeprefix("http://")
    assert caught.value.data == {"reason": "closed_early", "host": host, "is_lasting": False}
    assert host in caught.value.message
    assert "key" not in caught.value.message


def test_an_abort_wakes_a_read_that_waits(world):
    with closing(_send(world, Scripted(body=b"x" * 100, stalls_after=10))) as reply:
        assert reply.read(10) == b"x" * 10
        timer = threading.Timer(0.05, reply.abort)
        timer.start()
        with pytest.raises(NetworkFailed) as caught:
            reply.read(100)
        assert caught.value.data["reason"] == "aborted"
        timer.join()


def test_after_an_abort_nothing_is_read_even_if_it_is_there(world):
    with closing(_send(world, Scripted(body=b"x" * 100))) as reply:
        reply.abort()
        reply.abort()
        with pytest.raises(NetworkFailed, match="stopped"):
            reply.read(10)


def test_an_abort_of_the_transport_cuts_what_is_open_and_refuses_what_comes(world):
    with closing(_send(world, Scripted(body=b"x" * 100, stalls_after=0))) as reply:
        timer = threading.Timer(0.05, world.transport.abort)
        timer.start()
        with pytest.raises(NetworkFailed, match="stopped"):
            reply.read(10)
        timer.join()
    with pytest.raises(NetworkFailed) as caught:
        _send(world, Scripted(body=b"more"))
    assert caught.value.data["reason"] == "aborted"


def test_closing_twice_is_harmless_and_reading_after_it_a_mistake(world):
    reply = _send(world, Scripted(body=b"hello"))
    reply.close()
    reply.close()
    with pytest.raises(ValueError, match="before it is closed"):
        reply.read(1)


def test_an_abort_after_closing_harms_nobody_else(world):
    first = _send(world, Scripted(body=b"one"))
    assert _all(first) == b"one"
    first.close()
    with closing(_send(world, Scripted(body=b"two"))) as second:
        first.abort()
        assert _all(second) == b"two"


@pytest.mark.parametrize("url", ["ftp://server.test/", "http:///x", "server.test", "http://a b/", "http://h:0/"])
def test_what_is_no_web_address_is_not_asked(world, url):
    with pytest.raises(BadInput):
        world.transport.send(Request(url=url, headers={}))


def test_several_threads_may_ask_at_once(world):
    for number in range(40):
        world.answers[f"/{number}"] = Scripted(body=b"%d" % number * 3000)

    def ask(number: int) -> bool:
        with closing(world.transport.send(Request(url=f"{world.origin}/{number}", headers={}))) as reply:
            return _all(reply, 1000) == b"%d" % number * 3000

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(40)))
