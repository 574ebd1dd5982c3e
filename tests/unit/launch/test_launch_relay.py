"""The relay: bytes in both directions, to one address, a limited number of connections."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from stoker.cli import launch
from stoker.core.clock import SystemClock
from stoker.core.errors import Unavailable
from stoker.launch import relay as relay_module
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


def ask(port: int, data: bytes, host: str = "127.0.0.1") -> bytes:
    with socket.create_connection((host, port), timeout=10) as line:
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


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = CLOCK.monotonic_s() + 10
    while not is_so():
        assert CLOCK.monotonic_s() < until_s
        CLOCK.sleep(0.01)


def test_bytes_go_both_ways_and_each_direction_ends_by_itself(echo: int) -> None:
    relay = Relay("127.0.0.1", 0, to=("127.0.0.1", echo))
    try:
        data = bytes(range(256)) * 4096
        assert ask(relay.port, data) == data[::-1]
    finally:
        relay.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", relay.port), timeout=1)


def test_the_last_bytes_reach_a_slow_reader(echo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def shrink(line: socket.socket) -> None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    # The relay then has to buffer the end itself.
    monkeypatch.setattr(relay_module, "_keep_alive", shrink)
    relay = Relay("127.0.0.1", 0, to=("127.0.0.1", echo))
    try:
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(10)
            line.connect(("127.0.0.1", relay.port))
            line.sendall(bytes(1 << 16))
            line.shutdown(socket.SHUT_WR)
            CLOCK.sleep(0.2)
            left = 1 << 16
            while piece := line.recv(1 << 16):
                left -= len(piece)
            assert left == 0
    finally:
        relay.close()


@pytest.mark.parametrize(("limits", "taken"), [({"most": 1}, 1), ({"most_of_address": 2}, 2)])
def test_more_connections_than_allowed_are_closed_at_once(echo: int, limits: dict[str, int], taken: int) -> None:
    relay = Relay("127.0.0.1", 0, to=("127.0.0.1", echo), **limits)
    try:
        with ExitStack() as held:
            # All at once: they are counted when they are accepted.
            lines = [
                held.enter_context(socket.create_connection(("127.0.0.1", relay.port), timeout=10)) for _ in range(4)
            ]
            assert [read_end(line) for line in lines[taken:]] == [b""] * (4 - taken)
            assert relay.count == taken
        wait_until(lambda: relay.count == 0)
        assert ask(relay.port, b"abc") == b"cba", "there is room again"
    finally:
        relay.close()


def test_a_peer_that_ended_one_direction_does_not_hold_the_other_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        relay = Relay("127.0.0.1", 0, to=("127.0.0.1", silent.getsockname()[1]), end_s=0.2)
        try:
            with socket.create_connection(("127.0.0.1", relay.port), timeout=10) as line:
                line.shutdown(socket.SHUT_WR)
                assert read_end(line) == b""
            wait_until(lambda: relay.count == 0)
        finally:
            relay.close()


def test_a_client_does_not_hold_a_connection_that_the_coordinator_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "FAR_END_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as far:
        relay = Relay("127.0.0.1", 0, to=("127.0.0.1", far.getsockname()[1]))
        try:
            with socket.create_connection(("127.0.0.1", relay.port), timeout=10):
                far.accept()[0].close()
                wait_until(lambda: relay.count == 0)
        finally:
            relay.close()


def test_the_addresses_of_one_network_do_not_take_all_connections(echo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # As a /64 of IPv6 is one source.
    monkeypatch.setattr(relay_module, "source_of", lambda address: address.rpartition(".")[0])
    monkeypatch.setattr(relay_module, "MOST_OF_NETWORK", 2)
    relay = Relay("127.0.0.1", 0, to=("127.0.0.1", echo))
    try:
        with ExitStack() as held:
            lines = [
                held.enter_context(
                    socket.create_connection(("127.0.0.1", relay.port), timeout=10, source_address=(address, 0))
                )
                for address in ("127.0.0.5", "127.0.0.6", "127.0.0.7", "127.0.1.5")
            ]
            assert read_end(lines[2]) == b""
            wait_until(lambda: relay.count == 3)
            assert relay._count_of_network == {"127.0.0": 2, "127.0.1": 1}
        wait_until(lambda: relay.count == 0)
        assert not relay._count_of_network
    finally:
        relay.close()


def test_both_ends_are_probed_for_a_peer_that_vanished(echo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[socket.socket] = []
    keep_alive = relay_module._keep_alive
    monkeypatch.setattr(relay_module, "_keep_alive", lambda line: (keep_alive(line), kept.append(line)))
    relay = Relay("127.0.0.1", 0, to=("127.0.0.1", echo))
    try:
        with socket.create_connection(("127.0.0.1", relay.port), timeout=10):
            wait_until(lambda: len(kept) == 2)
            assert all(line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for line in kept)
    finally:
        relay.close()


def test_a_name_with_several_addresses_listens_at_one_port_of_all(echo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "listen_addresses", lambda _host: ("127.0.0.3", "127.0.0.4"))
    relay = Relay("login1", 0, to=("127.0.0.1", echo))
    try:
        for host in ("127.0.0.3", "127.0.0.4"):
            assert ask(relay.port, b"abc", host) == b"cba"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", relay.port), timeout=10)
        with pytest.raises(Unavailable) as taken:
            Relay("login1", relay.port, to=("127.0.0.1", echo))
        assert taken.value.hint.startswith("--relay login1:PORT ")
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


def test_the_command_listens_at_the_named_address_and_raises_the_limit_of_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        relay, url = launch._open_relay("127.0.0.2:0", "https://192.0.2.1:7717")
        try:
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
            assert url == f"https://127.0.0.2:{relay.port}"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", relay.port), timeout=10)
        finally:
            relay.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
