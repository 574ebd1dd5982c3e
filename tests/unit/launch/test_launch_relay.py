"""The relay: bytes in both directions, to one address, a limited number of connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from stoker.core.clock import SystemClock
from stoker.launch.relay import Relay

CLOCK = SystemClock()


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it reads, after its end."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listening.accept()
            except OSError:
                return
            with peer:
                pieces = []
                while piece := peer.recv(1 << 16):
                    pieces.append(piece)
                peer.sendall(b"".join(pieces)[::-1])

    threading.Thread(target=serve, daemon=True).start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def ask(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(data)
        line.shutdown(socket.SHUT_WR)
        pieces = []
        while piece := line.recv(1 << 16):
            pieces.append(piece)
        return b"".join(pieces)


def read_end(line: socket.socket) -> bytes:
    """Read from a connection that is closed or reset."""
    try:
        return line.recv(1)
    except ConnectionResetError:
        return b""


def test_bytes_go_both_ways_and_each_direction_ends_by_itself(echo: int) -> None:
    relay = Relay("127.0.0.1", 0, to=("127.0.0.1", echo))
    try:
        data = bytes(range(256)) * 4096
        assert ask(relay.port, data) == data[::-1]
    finally:
        relay.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", relay.port), timeout=1)


def test_more_connections_than_allowed_are_closed_at_once(echo: int) -> None:
    relay = Relay("127.0.0.1", 0, to=("127.0.0.1", echo), most=1)
    try:
        with socket.create_connection(("127.0.0.1", relay.port), timeout=10):
            until_s = CLOCK.monotonic_s() + 10
            while relay.count < 1 and CLOCK.monotonic_s() < until_s:
                CLOCK.sleep(0.01)
            with socket.create_connection(("127.0.0.1", relay.port), timeout=10) as second:
                assert read_end(second) == b""
    finally:
        relay.close()


def test_a_target_that_does_not_answer_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    relay = Relay("127.0.0.1", 0, to=("127.0.0.1", port))
    try:
        with socket.create_connection(("127.0.0.1", relay.port), timeout=10) as line:
            assert read_end(line) == b""
    finally:
        relay.close()
