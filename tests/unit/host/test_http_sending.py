"""Requests with bodies, over real sockets: what arrives, what is sent again and what never is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from stoker.core.errors import LocalFile, NetworkFailed
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import BodySource, HttpSettings, Request
from tests.servers.little import Got, LittleServer, Said


class Blocks:
    """A body of so many pieces, made as it is sent."""

    def __init__(self, count: int, *, size: int = 64 * 1024, announced: int | None = None) -> None:
        self.length_bytes = count * size if announced is None else announced
        self._count, self._size = count, size
        self.times_read = 0

    def pieces(self) -> Iterator[bytes]:
        self.times_read += 1
        for number in range(self._count):
            yield bytes([number % 256]) * self._size


@pytest.fixture
def transport() -> Iterator[Urllib3Transport]:
    with closing(Urllib3Transport(HttpSettings(connect_s=5, head_s=5, read_s=5))) as transport:
        yield transport


@pytest.fixture
def server() -> Iterator[LittleServer]:
    with LittleServer(lambda asked: Said(body=asked.body[:4])) as server:
        yield server


def _send(
    transport: Urllib3Transport, url: str, body: bytes | BodySource | None, method: str = "POST", **more: object
) -> bytes:
    request = Request(url=url, method=method, headers={}, body=body, **more)  # type: ignore[arg-type]
    with closing(transport.send(request)) as reply:
        return b"".join(iter(lambda: reply.read(1 << 20), b""))


@pytest.mark.parametrize("size", [0, 1, 3000, 256 * 1024, 1_000_001], ids=str)
def test_a_body_arrives_as_it_was_given(server, transport, size):
    body = bytes(range(256)) * (size // 256 + 1)
    assert _send(transport, server.url, body[:size]) == body[: min(4, size)]
    assert server.asked[0].body == body[:size]
    assert server.asked[0].headers["Content-Length"] == str(size)


def test_a_body_is_streamed_and_the_connection_serves_the_next_request(server, transport):
    _send(transport, server.url, Blocks(40), "PUT")
    _send(transport, server.url, b"more", "PATCH")
    first, second = server.asked
    assert first.body == b"".join(Blocks(40).pieces())
    assert (second.method, second.body) == ("PATCH", b"more")
    assert first.port == second.port


def test_a_small_body_goes_out_in_one_packet_with_its_head(transport):
    packets: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def answer() -> None:
            link, _ = listener.accept()
            with closing(link):
                packets.append(link.recv(1 << 16))
                link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        _send(transport, f"http://127.0.0.1:{listener.getsockname()[1]}/", b'{"a":1}')
        thread.join()
    assert packets[0].endswith(b'\r\n\r\n{"a":1}')


def _ends_on_second_request() -> tuple[LittleServer, list[Got]]:
    """Serve one request, then close the kept connection as soon as the next one has arrived on it."""
    seen: list[Got] = []

    def answer(asked: Got) -> Said:
        seen.append(asked)
        return Said(cuts=len(seen) == 2)

    return LittleServer(answer), seen


def test_a_post_on_a_connection_that_ended_is_not_sent_again(transport):
    server, seen = _ends_on_second_request()
    with server:
        _send(transport, server.url, b"one")
        with pytest.raises(NetworkFailed) as caught:
            _send(transport, server.url, b"two")
    assert caught.value.data["reason"] in ("closed_early", "reset")
    assert [asked.body for asked in seen] == [b"one", b"two"]


def test_a_post_that_may_be_repeated_is_sent_again_from_its_beginning(transport):
    server, seen = _ends_on_second_request()
    body = Blocks(5)
    with server:
        _send(transport, server.url, b"one")
        _send(transport, server.url, body, is_repeatable=True)
    assert [len(asked.body) for asked in seen] == [3, body.length_bytes, body.length_bytes]
    assert body.times_read == 2
    assert seen[1].port != seen[2].port


def test_a_server_that_refuses_early_is_heard_before_all_is_sent(transport):
    body = Blocks(4000)
    with LittleServer(lambda _asked: Said(status=413, body=b"too large"), reads_bodies=False) as server:
        request = Request(url=server.url, method="POST", headers={}, body=body)
        with closing(transport.send(request)) as reply:
            assert reply.status == 413
            assert reply.read(100) == b"too large"
        assert len(server.asked) == 1


def test_a_connection_whose_body_was_not_sent_whole_serves_nobody_else(transport):
    with LittleServer(lambda _asked: Said(status=413), reads_bodies=False) as server:
        _send(transport, server.url, Blocks(4000))
        _send(transport, server.url, b"")
        first, second = server.asked
    assert first.port != second.port


@pytest.mark.parametrize(("count", "announced"), [(2, 3 * 65536), (3, 2 * 65536 + 1)], ids=["shorter", "longer"])
def test_a_body_of_another_length_than_announced_is_a_failure_here(server, transport, count, announced):
    with pytest.raises(LocalFile, match="the file changed while it was sent"):
        _send(transport, server.url, Blocks(count, announced=announced))
    assert _send(transport, server.url, b"next") == b"next"


def test_an_abort_wakes_whoever_sends(transport):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        failures: list[NetworkFailed] = []
        is_sending = threading.Event()

        class Watched(Blocks):
            def pieces(self) -> Iterator[bytes]:
                for number, piece in enumerate(super().pieces()):
                    if number == 2:
                        is_sending.set()
                    yield piece

        def send() -> None:
            with pytest.raises(NetworkFailed) as caught:
                _send(transport, f"http://127.0.0.1:{listener.getsockname()[1]}/", Watched(4000))
            failures.append(caught.value)

        thread = threading.Thread(target=send)
        thread.start()
        link, _ = listener.accept()
        with closing(link):
            assert is_sending.wait(10)
            transport.abort()
            thread.join(10)
        assert not thread.is_alive()
    assert failures[0].data["reason"] == "aborted"


def test_a_request_may_have_its_own_limit_for_the_answer(transport):
    is_over = threading.Event()

    def slowly(_asked: Got) -> Said:
        is_over.wait(20)
        return Said()

    with LittleServer(slowly) as server:
        with pytest.raises(NetworkFailed) as caught:
            _send(transport, server.url, b"", head_s=0.05)
        is_over.set()
    assert caught.value.data["reason"] == "read_timeout"
