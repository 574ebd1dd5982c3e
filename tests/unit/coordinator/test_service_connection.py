"""Clients that dribble, flood, pipeline or leave, at a server with a toy of an app behind it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel, RootModel

from stoker.coordinator.http.access import LOCAL_WORKER, Peer
from stoker.coordinator.http.http_connection import BULK_BYTES, READ_BYTES, ClientLimits, ServerConnection
from stoker.coordinator.http.http_messages import SPEECH_BYTES, WORD_BYTES, Receive, Scope, Send, say
from stoker.coordinator.http.server import CoordinatorServer, ServerSetup
from stoker.coordinator.http.submission_body import BodyMemoryBudget
from stoker.coordinator.http.worker_routes import WorkerExchange, WorkerRoute, WorkerTable
from stoker.core.errors import Forbidden
from stoker.core.leases import Principal
from stoker.host.network import listen_at

HURRIED = ClientLimits(
    head_s=0.3,
    silence_s=0.3,
    body_s=5.0,
    rate_window_s=0.4,
    rate_bytes=100,
    idle_s=0.6,
    head_bytes=4096,
    pipelined=3,
    dropped_bytes=1 << 20,
    linger_s=0.1,
    look_s=0.05,
)
DEADLINE_S = 30.0


class Anything(RootModel[Any]):
    """Any JSON."""


class Quick(BaseModel):
    """How long what was sent is, as text."""

    quick: int


class Toy:
    """Answers `/quick` as workers' requests are answered and everything else as an app, each with what it was sent."""

    def __init__(self) -> None:
        self.left = threading.Event()
        self.has_asked = threading.Event()
        self.may_read = asyncio.Event()
        self.app = self._answer
        self.workers = WorkerTable(find=self._find, judge=self._judge, bodies=BodyMemoryBudget())

    def _judge(self, _method: str, _path: str, headers: Mapping[bytes, bytes], _peer: Peer) -> Principal:
        if headers.get(b"x-who") == b"stranger":
            raise Forbidden("not you")
        return LOCAL_WORKER

    def _find(self, path: str) -> WorkerRoute | None:
        answers = {"/quick": self._echo, "/hold": self._hold, "/broken": self._break}
        return WorkerRoute(Anything, answers[path]) if path in answers else None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, more = 0, True
        if scope["path"] == "/later":
            await self.may_read.wait()
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        if scope["path"] == "/endless":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            leaving = asyncio.ensure_future(receive())
            while not leaving.done():
                await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
                await asyncio.sleep(0)
            self.left.set()
            return
        if scope["path"] == "/named":
            await say(send, json.dumps(sorted(name.decode() for name, _ in scope["headers"])).encode())
            return
        await say(send, json.dumps({"app": scope["path"], "size": size}).encode())

    def close(self) -> None: ...

    def end(self) -> None: ...

    async def reload(self) -> None: ...

    def _echo(self, message: Anything, _who: Principal, exchange: WorkerExchange) -> None:
        exchange.say(Quick(quick=len(str(message.root))))  # type: ignore[arg-type]  # a toy's message
        exchange.fail(Forbidden("a second answer counts for nothing"))

    def _break(self, _message: Anything, _who: Principal, _exchange: WorkerExchange) -> None:
        raise ZeroDivisionError("secret detail")

    def _hold(self, _message: Anything, _who: Principal, exchange: WorkerExchange) -> None:
        async def hold() -> None:
            await exchange.gone()
            self.left.set()

        self.has_asked.set()
        exchange.say_later(hold())


@pytest.fixture
def toy() -> Iterator[tuple[Toy, int]]:
    toy, ready = Toy(), threading.Event()
    listening = listen_at("127.0.0.1", 0)
    running = CoordinatorServer(
        ServerSetup(listening=listening, make=lambda: toy, on_ready=ready.set, say=print, patience=HURRIED)
    )
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    assert ready.wait(DEADLINE_S)
    yield toy, listening.getsockname()[1]
    running.stop()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def dial(toy: tuple[Toy, int]) -> socket.socket:
    return socket.create_connection(("127.0.0.1", toy[1]), timeout=DEADLINE_S)


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        assert piece, f"closed after {data!r}"
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
    size = int(headers["content-length"])
    assert len(body) == size
    return int(lines[0].split()[1]), headers, body


def is_cut(connection: socket.socket) -> bool:
    """Return whether the other side ends the connection before the deadline."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    return True


def post(path: str, body: bytes = b"{}", **headers: Any) -> bytes:
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{named}content-length: {len(body)}\r\n\r\n".encode() + body


def test_workers_requests_are_answered_at_the_connection_and_the_rest_by_the_app(toy):
    with dial(toy) as connection:
        for _ in range(3):
            connection.sendall(post("/quick", b"123"))
            assert json.loads(read_answer(connection)[2]) == {"quick": 3}
            connection.sendall(post("/other", b"abcd"))
            assert json.loads(read_answer(connection)[2]) == {"app": "/other", "size": 4}


def test_a_body_may_come_in_pieces_in_chunks_and_after_a_question(toy):
    with dial(toy) as connection:
        whole = post("/quick", b"1" * 1000)
        for at in range(0, len(whole), 100):
            connection.sendall(whole[at : at + 100])
        assert json.loads(read_answer(connection)[2]) == {"quick": 1000}
        connection.sendall(
            b"POST /quick HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\n123\r\n0\r\n\r\n"
        )
        assert json.loads(read_answer(connection)[2]) == {"quick": 3}
        connection.sendall(b"POST /quick HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(b"12")
        assert json.loads(read_answer(connection)[2]) == {"quick": 2}


def test_requests_that_do_not_wait_for_answers_are_answered_in_their_order(toy):
    with dial(toy) as connection:
        connection.sendall(post("/other") + post("/quick", b"123") + post("/quick", b"12345") + post("/other", b"abcd"))
        data = b""
        while data.count(b"HTTP/1.1 200") < 4 or not data.endswith(b"}"):
            data += connection.recv(65536)
        answers = [b'{"app": "/other", "size": 2}', b'{"quick":3}', b'{"quick":5}', b'"size": 4}']
        places = [data.index(one) for one in answers]
        assert places == sorted(places)


def test_a_connection_that_is_to_close_is_closed_after_the_answer(toy):
    with dial(toy) as connection:
        connection.sendall(post("/quick", connection="close"))
        assert read_answer(connection)[1]["connection"] == "close"
        assert is_cut(connection)
    with dial(toy) as connection:
        connection.sendall(b"POST /quick HTTP/1.0\r\ncontent-length: 0\r\n\r\n")
        assert read_answer(connection)[0] == 200
        assert is_cut(connection)


def test_a_refusal_does_not_wait_for_the_body(toy):
    with dial(toy) as connection:
        connection.sendall(b"POST /quick HTTP/1.1\r\nhost: x\r\nx-who: stranger\r\ncontent-length: 100\r\n\r\n")
        status, _, body = read_answer(connection)
        assert (status, json.loads(body)["error"]) == (403, "not_allowed")
        # What still comes is dropped, and the connection goes on.
        connection.sendall(b"x" * 100 + post("/quick", b"123"))
        assert json.loads(read_answer(connection)[2]) == {"quick": 3}


def test_a_stranger_is_not_asked_for_a_body_before_it_is_refused(toy):
    with dial(toy) as connection:
        head = b"POST /quick HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n"
        connection.sendall(head + b"x-who: stranger\r\n\r\n")
        assert read_answer(connection)[0] == 403


def test_a_body_is_refused_by_its_announced_and_by_its_real_length(toy):
    with dial(toy) as connection:
        connection.sendall(b"POST /quick HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (SPEECH_BYTES + 1))
        assert read_answer(connection)[0] == 413
    with dial(toy) as connection:
        connection.sendall(b"POST /quick HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        piece = b"10000\r\n" + bytes(65536) + b"\r\n"
        for _ in range(SPEECH_BYTES // 65536 + 1):
            connection.sendall(piece)
        assert read_answer(connection)[0] == 413


def test_who_floods_on_after_a_refusal_is_cut(toy):
    with dial(toy) as connection:
        connection.sendall(b"POST /quick HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (1 << 40))
        with pytest.raises(ConnectionError):
            connection.sendall(bytes(64 << 20))


def test_a_bug_is_answered_without_its_trace(toy):
    with dial(toy) as connection:
        connection.sendall(post("/broken"))
        status, _, body = read_answer(connection)
        assert (status, json.loads(body)["error"]) == (500, "bug")
        assert b"secret" not in body


def test_who_leaves_is_noticed(toy):
    with dial(toy) as connection:
        connection.sendall(post("/hold"))
        assert toy[0].has_asked.wait(DEADLINE_S)
    assert toy[0].left.wait(DEADLINE_S)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /quick HTTP/1.1\r\nhost: x\r\nx-slow: ",
        b"POST /quick HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc",
        b"POST /other HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc",
        post("/quick"),
    ],
    ids=["silent", "head", "body", "body_of_the_app", "idle"],
)
def test_who_says_no_more_is_cut(toy, sent: bytes):
    with dial(toy) as connection:
        connection.sendall(sent)
        assert is_cut(connection)


@pytest.mark.parametrize("path", ["/quick", "/other"])
def test_who_sends_too_slowly_is_told_so(toy, path: str):
    with dial(toy) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc".encode())
        status, _, body = read_answer(connection)
        assert (status, json.loads(body)["error"]) == (408, "bad_input")
        assert is_cut(connection)


def test_who_does_not_read_is_cut(toy):
    with dial(toy) as connection:
        connection.sendall(post("/endless"))
        assert toy[0].left.wait(DEADLINE_S)


def test_what_is_not_http_and_heads_without_end_are_refused(toy):
    with dial(toy) as connection:
        connection.sendall(b"GARBAGE\r\n\r\n")
        status, _, body = read_answer(connection)
        assert (status, json.loads(body)["error"]) == (400, "bad_input")
        assert is_cut(connection)
    with dial(toy) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x-long: " + b"y" * 8000)
        assert read_answer(connection)[0] == 431
        assert is_cut(connection)


@pytest.mark.parametrize("line", [b"GET http://[::1 HTTP/1.1", b"CONNECT a HTTP/1.1", b"CONNECT a:1 HTTP/1.1"])
@pytest.mark.parametrize("before", [b"", post("/quick")], ids=["new", "used"])
def test_a_request_line_without_a_path_is_refused_and_logged_nowhere(toy, caplog, line: bytes, before: bytes):
    with dial(toy) as connection:
        if before:
            connection.sendall(before)
            assert read_answer(connection)[0] == 200
        connection.sendall(line + b"\r\nhost: x\r\n\r\n")
        status, _, body = read_answer(connection)
        assert (status, json.loads(body)["error"]) == (400, "bad_input")
        assert is_cut(connection)
    assert caplog.records == []


CHUNKED = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("path", [b"/quick", b"/other"])
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"1;" + b"e" * 8000, 431),
        (b"1;e=1" + b"e" * 1000 + b"\r\nz\r\n" + b"1;" + b"e" * 8000, 431),
        (b"0\r\nt: " + b"e" * 8000, 431),
        (b"0\r\n" + b"t: e\r\n" * 200, 431),
        (b"1\r\nz\r\n" * 600, 400),
    ],
    ids=["extension", "extensions", "trailer", "trailers", "pieces"],
)
def test_what_a_body_has_around_it_is_bounded_too(toy, path: bytes, sent: bytes, status: int):
    with dial(toy) as connection:
        connection.sendall(CHUNKED % path + sent)
        assert read_answer(connection)[0] == status
        assert is_cut(connection)


def test_trailers_add_nothing_to_the_head_that_was_judged(toy):
    with dial(toy) as connection:
        connection.sendall(CHUNKED % b"/named" + b"1\r\nz\r\n0\r\nx-operator-token: stolen\r\nhost: other\r\n\r\n")
        assert json.loads(read_answer(connection)[2]) == ["host", "transfer-encoding"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (b"x: y\r\n" * 101, 431),
        (b"host: a\r\nhost: b\r\n", 400),
        (b"X-Operator-Token: a\r\nx-operator-token: b\r\n", 400),
        (b"content-length: 1\r\ncontent-length: 2\r\n", 400),
        (b"content-length: 1\r\ntransfer-encoding: chunked\r\n", 400),
        (b"x: y\r\n z\r\n", 400),
    ],
    ids=["many", "hosts", "tokens", "lengths", "ends", "folded"],
)
def test_a_head_that_can_be_read_in_two_ways_is_refused(toy, fields: bytes, status: int):
    with dial(toy) as connection:
        connection.sendall(b"POST /other HTTP/1.1\r\n" + fields + b"\r\n")
        assert read_answer(connection)[0] == status
        assert is_cut(connection)


def test_requests_that_do_not_wait_are_answered_up_to_a_limit_and_the_rest_is_not_read(toy):
    with dial(toy) as connection:
        connection.sendall(b"".join(post("/other", b"z" * number) for number in range(100)))
        data = b""
        while piece := connection.recv(65536):
            data += piece
        assert data.count(b"HTTP/1.1 200") == 4
        assert data.endswith(b'"size": 3}')


def test_a_request_that_is_not_http_does_not_spoil_the_answer_before_it(toy):
    with dial(toy) as connection:
        connection.sendall(post("/other", b"abc") + b"GARBAGE\r\n\r\n")
        assert json.loads(read_answer(connection)[2]) == {"app": "/other", "size": 3}
        assert is_cut(connection)


def test_what_follows_an_upgrade_is_not_read(toy):
    with dial(toy) as connection:
        connection.sendall(
            b"GET /other HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nPRI * HTTP/2.0"
        )
        assert read_answer(connection)[0] == 200
        assert is_cut(connection)


@pytest.mark.parametrize("path", ["/quick", "/other"])
def test_a_body_that_comes_below_the_least_rate_is_refused(toy, path: str):
    with dial(toy) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n".encode())
        pause = threading.Event()
        connection.settimeout(0.05)
        answer, sent = b"", 0
        while not answer and sent < 200:
            # Never silent for long, and yet too slow.
            connection.sendall(b"z")
            sent += 1
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                pause.wait(0.01)
        assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "sent",
    [
        post("/quick") + b"\r\n",
        b"POST /quick HTTP/1.1\r\nhost: x\r\nx-who: stranger\r\ncontent-length: 100\r\n\r\nz",
    ],
    ids=["an empty line after an answer", "a refused body"],
)
def test_no_byte_after_an_answer_keeps_a_connection_open_for_good(toy, sent: bytes):
    with dial(toy) as connection:
        connection.sendall(sent)
        read_answer(connection)
        connection.sendall(b"\r\n")
        assert is_cut(connection)


def test_a_look_at_one_connection_that_fails_keeps_the_others_watched(toy, caplog, monkeypatch):
    look = ServerConnection.look
    failed: list[ServerConnection] = []

    def fail_once(self: ServerConnection, now_s: float) -> None:
        if not failed:
            failed.append(self)
            raise ZeroDivisionError
        look(self, now_s)

    monkeypatch.setattr(ServerConnection, "look", fail_once)
    with dial(toy) as first, dial(toy) as second:
        for connection in (first, second):
            connection.sendall(b"POST /quick HTTP/1.1\r\n")
            assert read_answer(connection)[0] == 408
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


def test_a_large_body_is_read_in_bulk_once_it_is_waited_for_and_nothing_beyond_it(toy, monkeypatch):
    reads: list[int] = []
    is_full = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def note(connection: ServerConnection, data: bytes, receive: Any = ServerConnection.data_received) -> None:
        loops.append(connection.loop)
        reads.append(len(data))
        receive(connection, data)
        if connection.flow.read_paused:
            is_full.set()

    monkeypatch.setattr(ServerConnection, "data_received", note)
    first, second = post("/later", bytes(2 << 20)), post("/app", bytes(5), connection="close")
    with dial(toy) as connection:
        sender = threading.Thread(target=connection.sendall, args=(first + second,))
        sender.start()
        assert is_full.wait(DEADLINE_S)
        held = list(reads)
        loops[0].call_soon_threadsafe(toy[0].may_read.set)
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
        sender.join(DEADLINE_S)
    assert [f'"size": {size}}}'.encode() in answers for size in (2 << 20, 5)] == [True, True]
    # As long as the body is not waited for, it has no room.
    assert max(held) <= READ_BYTES
    assert sum(held) <= WORD_BYTES + 2 * READ_BYTES
    assert READ_BYTES < max(reads) <= BULK_BYTES
    ends = [sum(reads[: index + 1]) for index, size in enumerate(reads) if size > READ_BYTES]
    assert ends[-1] <= len(first)
    assert sum(reads) == len(first + second)


def send_until_blocked(connection: socket.socket, data: bytes) -> None:
    with suppress(TimeoutError, ConnectionError):
        while True:
            connection.send(data)


def test_of_a_body_that_waits_for_its_turn_little_is_read(toy, monkeypatch):
    taken: list[int] = []
    loops: list[asyncio.AbstractEventLoop] = []

    def count(connection: ServerConnection, body: bytes, take: Any = ServerConnection.on_body) -> None:
        loops.append(connection.loop)
        taken.append(len(body))
        take(connection, body)

    monkeypatch.setattr(ServerConnection, "on_body", count)
    with dial(toy) as connection:
        head = f"POST /quick HTTP/1.1\r\nHost: x\r\nContent-Length: {SPEECH_BYTES}\r\n\r\n".encode()
        # The answer to the first makes the server read on, while the second is not answered yet.
        connection.sendall(post("/quick") + post("/later") + head)
        assert read_answer(connection)[0] == 200
        connection.settimeout(0.3)
        send_until_blocked(connection, bytes(1 << 16))
        assert sum(taken) <= WORD_BYTES + 2 * READ_BYTES
        loops[0].call_soon_threadsafe(toy[0].may_read.set)
        connection.settimeout(DEADLINE_S)
        assert read_answer(connection)[0] == 200


def test_a_client_that_leaves_is_noticed_although_a_request_waits_behind_a_held_one(toy):
    for behind in (post("/quick"), b"GET /app HTTP/1.1\r\nHost: x\r\n\r\n"):
        toy[0].left.clear()
        with dial(toy) as connection:
            connection.sendall(post("/hold") + behind)
            assert toy[0].has_asked.wait(DEADLINE_S)
        assert toy[0].left.wait(DEADLINE_S)


def test_a_head_request_on_a_workers_route_gets_no_body(toy):
    with dial(toy) as connection:
        connection.sendall(b"HEAD /quick HTTP/1.1\r\nHost: x\r\n\r\n" + post("/quick"))
        answers = b""
        while answers.count(b"HTTP/1.1") < 2 or not answers.endswith(b"}"):
            answers += connection.recv(65536)
    head, _, rest = answers.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405")
    assert rest.startswith(b"HTTP/1.1 200")


def test_who_does_not_read_answers_is_not_asked_for_more_requests(toy):
    with dial(toy) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.2)
        send_until_blocked(connection, post("/quick") * 100)
        connection.settimeout(DEADLINE_S)
        assert is_cut(connection)
