"""A server that speaks TLS, with a toy of an app behind it: slow clients, new certificates, large bodies."""

from __future__ import annotations

import gc
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, RootModel

from stoker.coordinator.http.access import LOCAL_WORKER, PEER, Peer
from stoker.coordinator.http.http_connection import ClientLimits
from stoker.coordinator.http.http_messages import Receive, Scope, Send, say
from stoker.coordinator.http.server import CoordinatorServer, ServerSetup, Tls
from stoker.coordinator.http.submission_body import BodyMemoryBudget
from stoker.coordinator.http.worker_routes import WorkerExchange, WorkerRoute, WorkerTable
from stoker.core.clock import SystemClock
from stoker.core.leases import Principal
from stoker.host.certificates import KeyPair, Signer, make_ca, make_csr, make_key
from stoker.host.network import listen_at
from stoker.host.tls_contexts import client_context, load_server, server_context

DEADLINE_S = 30.0
NOW_S = SystemClock().wall_s()
HURRIED = ClientLimits(head_s=0.4, silence_s=0.4, idle_s=60.0, linger_s=0.1, look_s=0.05)


class Seen(BaseModel):
    """Who asks, and how much was sent."""

    machine: str
    address: str
    size: int

    @classmethod
    def of(cls, peer: Peer, size: int) -> Seen:
        return cls(machine=peer.certificate.machine if peer.certificate else "", address=peer.address, size=size)


class Toy:
    """Says who asks, at its connection (`/quick`) and as an app."""

    def __init__(self) -> None:
        self.app = self
        self.workers = WorkerTable(find=self._find, judge=self._judge, bodies=BodyMemoryBudget())

    def _find(self, path: str) -> WorkerRoute | None:
        return WorkerRoute(RootModel[Any], self._quick) if path == "/quick" else None

    def _judge(self, _method: str, _path: str, _headers: Mapping[bytes, bytes], peer: Peer) -> Principal:
        self.peer = peer
        return LOCAL_WORKER

    def _quick(self, message: RootModel[Any], _who: Principal, exchange: WorkerExchange) -> None:
        exchange.say(Seen.of(self.peer, len(message.root)))  # type: ignore[arg-type]  # a toy's message

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        await say(send, Seen.of(scope[PEER], size).model_dump_json().encode())

    def close(self) -> None: ...

    def end(self) -> None: ...

    async def reload(self) -> None: ...


class Served:
    """What a test has of the server."""

    def __init__(self, folder: Path, port: int, ca: KeyPair) -> None:
        self.folder, self.port, self.ca = folder, port, ca
        self.names = ["127.0.0.1"]
        self.said: list[str] = []
        self.refresh: Callable[[], bool] = lambda: False

    def line(self, machine: str = "") -> ssl.SSLSocket:
        path = ""
        if machine:
            key = make_key()
            path = str(self.folder / f"{machine}.pem")
            signed = Signer(self.ca).machine(make_csr(key, machine), machine, now_s=NOW_S)
            Path(path).write_text(key + signed.certificate_pem)
        context = client_context(self.ca.certificate_pem, certificate_file=path, key_file=path)
        return context.wrap_socket(self.dial(), server_hostname=self.names[-1])

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)

    def certificate(self) -> str:
        key = make_key()
        path = self.folder / "server.pem"
        path.write_text(key + Signer(self.ca).server(key, self.names, now_s=NOW_S).certificate_pem)
        return str(path)


def ask(line: socket.socket, path: str, body: bytes = b"") -> dict[str, Any]:
    line.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body)) + body)
    data = b""
    while b"\r\n\r\n" not in data or not data.endswith(b"}"):
        piece = line.recv(65536)
        assert piece, data
        data += piece
    return dict(json.loads(data.partition(b"\r\n\r\n")[2]))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    ca = make_ca("toys", now_s=NOW_S)
    with listen_at("127.0.0.1", 0) as listening:
        served, ready = Served(tmp_path, listening.getsockname()[1], ca), threading.Event()
        path = served.certificate()
        context = server_context(certificate_file=path, key_file=path, ca_pem=ca.certificate_pem)

        def refresh() -> bool:
            is_new = served.refresh()
            if is_new:
                load_server(context, certificate_file=path, key_file=path)
            return is_new

        stage = ServerSetup(
            listening=listening,
            make=Toy,
            on_ready=ready.set,
            say=served.said.append,
            patience=HURRIED,
            tls=Tls(context=context, refresh=refresh, every_s=0.02),
        )
        running = CoordinatorServer(stage)
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()
        assert ready.wait(DEADLINE_S)
        yield served
        running.stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("path", ["/quick", "/app"])
def test_every_request_of_a_connection_knows_whose_it_is(served: Served, path: str):
    with served.line("lab1") as lab, served.line() as nobody:
        for _ in range(3):
            assert ask(lab, path) == {"machine": "lab1", "address": "127.0.0.1", "size": 0}
            assert ask(nobody, path)["machine"] == ""


@pytest.mark.parametrize("path", ["/quick", "/app"])
def test_bodies_of_any_size_come_whole_through_the_shared_buffer(served: Served, path: str):
    with served.line("lab1") as one, served.line("lab2") as two:
        for size in (1, 16 * 1024, 300 * 1024, 3 * 1024 * 1024):
            for line, letter, sent in ((one, b"a", size), (two, b"b", size // 2)):
                # A route of workers reads JSON: there the quotes do not count.
                quotes = 0 if path == "/quick" else 2
                assert ask(line, path, b'"%b"' % (letter * sent))["size"] == sent + quotes


def test_who_never_finishes_the_handshake_is_cut_off(served: Served):
    silent, half = served.dial(), served.dial()
    half.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
    for one in (silent, half):
        with one:
            assert one.recv(100) == b""
    with served.line() as line:
        assert ask(line, "/quick")["size"] == 0


def test_who_dribbles_a_head_inside_tls_is_cut_off_too(served: Served):
    with served.line() as line:
        line.sendall(b"POST /quick HTTP/1.1\r\nx: ")
        answer = b""
        # It may be cut off without TLS's goodbye.
        with suppress(ssl.SSLError):
            while piece := line.recv(1000):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.timing
def test_a_connection_that_ended_is_freed_without_a_collection(served: Served):
    def kept() -> int:
        return sum(type(one).__name__ in ("SSLProtocol", "Buffered") for one in gc.get_objects())

    with served.line() as last:
        assert ask(last, "/app")["size"] == 0
        gc.collect()
        gc.disable()
        try:
            before = kept()
            for _ in range(5):
                with served.line() as line:
                    assert ask(line, "/app")["size"] == 0
            deadline_s = SystemClock().monotonic_s() + DEADLINE_S
            while kept() > before and SystemClock().monotonic_s() < deadline_s:
                assert ask(last, "/app")["size"] == 0
            assert kept() <= before
        finally:
            gc.enable()


def test_plain_words_get_no_answer(served: Served):
    with served.dial() as line:
        line.sendall(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n")
        heard = b""
        try:
            while piece := line.recv(1000):
                heard += piece
        except ConnectionError:
            pass
        assert b"HTTP" not in heard


def test_a_new_certificate_is_shown_without_a_restart_and_old_connections_go_on(served: Served):
    with served.line() as old:
        assert ask(old, "/quick")["size"] == 0
        served.names.append("localhost")
        made = iter([True])

        def refresh() -> bool:
            if next(made, False):
                served.certificate()
                return True
            return False

        served.refresh = refresh
        deadline_s = SystemClock().monotonic_s() + DEADLINE_S
        while not served.said and SystemClock().monotonic_s() < deadline_s:
            assert ask(old, "/quick")["size"] == 0
        assert served.said == ["renewed the server's certificate"]
        with served.line() as new:
            assert ask(new, "/quick")["size"] == 0
        assert ask(old, "/quick")["size"] == 0
