"""Reaching a host: names, several addresses, dead ones among them, and one deadline for all of it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from stoker.core.errors import NetworkFailed
from stoker.host.http import connections as http_dial
from stoker.host.http.connections import HEAD_START_S, SocketAddress, in_turn
from stoker.host.http.connections import dial as dial_dial
from stoker.host.http.http_errors import Aborted
from stoker.host.http.streams import CancelHandle

V4, V6 = socket.AF_INET, socket.AF_INET6


@contextlib.contextmanager
def _listening(host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    family = V6 if ":" in host else V4
    with socket.create_server((host, port), family=family) as listener:
        yield listener.getsockname()[1]


@contextlib.contextmanager
def _black_hole(host: str, port: int = 0) -> Iterator[int]:
    """An address that takes no connection and refuses none: its queue is full."""
    with contextlib.ExitStack() as stack:
        family = V6 if ":" in host else V4
        listener = stack.enter_context(socket.create_server((host, port), family=family, backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket(family))
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.fixture
def name(monkeypatch):
    """Make a name stand for some addresses."""

    def stands_for(*found: tuple[int, str], port: int) -> str:
        answers = [
            (family, socket.SOCK_STREAM, 6, "", (host, port, 0, 0) if family == V6 else (host, port))
            for family, host in found
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: answers)
        return "several.test"

    return stands_for


def _dial(host: str, port: int, wait_s: float = 5.0, cord: CancelHandle | None = None) -> tuple[str, float]:
    """Connect, and give to whom and how long it took."""
    started_s = time.monotonic()
    with dial_dial(host, port, deadline_s=started_s + wait_s, cord=cord or CancelHandle()) as sock:
        return sock.getpeername()[0], time.monotonic() - started_s


def _failure(host: str, port: int, wait_s: float = 5.0) -> NetworkFailed:
    with pytest.raises(NetworkFailed) as caught:
        _dial(host, port, wait_s)
    assert host in caught.value.message
    return caught.value


def test_an_address_is_dialled_as_it_is():
    with _listening() as port:
        assert _dial("127.0.0.1", port)[0] == "127.0.0.1"
    with _listening("::1") as port:
        assert _dial("::1", port)[0] == "::1"


def test_a_connection_sends_small_requests_at_once():
    with (
        _listening() as port,
        dial_dial("127.0.0.1", port, deadline_s=time.monotonic() + 5, cord=CancelHandle()) as sock,
    ):
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_families_take_turns_and_the_systems_favourite_begins():
    addresses = [SocketAddress(family, (number,)) for number, family in enumerate([V6, V6, V6, V4, V4])]
    assert [one.address[0] for one in in_turn(addresses)] == [0, 3, 1, 4, 2]
    assert [one.address[0] for one in in_turn(addresses[::-1])] == [4, 2, 3, 1, 0]


def test_a_refused_port_is_told_at_once():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        error = _failure("127.0.0.1", port, 60)
    assert error.data["reason"] == "refused"
    assert error.message == f"127.0.0.1:{port} refused the connection"
    assert not error.data["is_lasting"]


@pytest.mark.timing
def test_the_next_address_is_tried_at_once_where_one_refuses(name, monkeypatch):
    # Longer than the deadline: whoever waited for it would reach nobody.
    monkeypatch.setattr(http_dial, "HEAD_START_S", 30.0)
    with _listening() as port:
        host = name((V6, "::1"), (V4, "127.0.0.1"), port=port)
        address, took_s = _dial(host, port, 20)
    assert address == "127.0.0.1"
    assert took_s < 20


@pytest.mark.timing
def test_a_dead_address_costs_a_moment_and_no_more(name):
    with _listening() as port, _black_hole("::1", port):
        host = name((V6, "::1"), (V4, "127.0.0.1"), port=port)
        address, took_s = _dial(host, port, 30)
    assert address == "127.0.0.1"
    assert HEAD_START_S <= took_s < 2


@pytest.mark.timing
def test_addresses_are_tried_until_one_answers(name, monkeypatch):
    monkeypatch.setattr(http_dial, "HEAD_START_S", 1.0)
    with _listening() as port, _black_hole("127.0.0.2", port) as _:
        host = name((V4, "127.0.0.2"), (V4, "127.0.0.3"), (V4, "127.0.0.1"), port=port)
        address, took_s = _dial(host, port)
    assert address == "127.0.0.1"
    # The third starts when the second is refused, not a moment later.
    assert took_s < 1.9


@pytest.mark.timing
def test_where_all_addresses_are_dead_the_deadline_holds():
    with _black_hole("127.0.0.1") as port:
        started_s = time.monotonic()
        error = _failure("127.0.0.1", port, 0.3)
        assert time.monotonic() - started_s < 2
    assert error.data["reason"] == "connect_timeout"
    assert "proxy" in error.hint


def test_where_one_address_refuses_and_one_is_dead_the_refusal_is_told(name):
    with _black_hole("::1") as port:
        host = name((V4, "127.0.0.1"), (V6, "::1"), port=port)
        assert _failure(host, port, 0.4).data["reason"] == "refused"


def test_a_name_that_nobody_knows_is_told_as_such(monkeypatch):
    def unknown(*_args: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = _failure("nobody.test", 80)
    assert error.data["reason"] == "dns"
    assert error.data["is_unknown_name"]
    assert "spelling" in error.hint


def test_a_failure_of_a_name_server_does_not_say_that_there_is_no_such_name(monkeypatch):
    def busy(*_args: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", busy)
    error = _failure("somebody.test", 80)
    assert (error.data["reason"], error.data["is_unknown_name"]) == ("dns", False)


@pytest.mark.timing
def test_a_name_server_that_does_not_answer_is_given_up_by_the_deadline(monkeypatch):
    may_answer = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: may_answer.wait(10))
    started_s = time.monotonic()
    error = _failure("slow.test", 80, 0.1)
    assert time.monotonic() - started_s < 2
    assert error.data["reason"] == "dns"
    may_answer.set()


def test_a_cord_that_was_pulled_lets_nothing_begin():
    cord = CancelHandle()
    cord.pull()
    with _listening() as port, pytest.raises(Aborted):
        _dial("127.0.0.1", port, cord=cord)


@pytest.mark.timing
def test_a_cord_pulled_while_connecting_is_noticed_soon():
    cord = CancelHandle()
    with _black_hole("127.0.0.1") as port:
        timer = threading.Timer(0.05, cord.pull)
        timer.start()
        started_s = time.monotonic()
        with pytest.raises(Aborted):
            _dial("127.0.0.1", port, 30, cord)
        assert time.monotonic() - started_s < 2
        timer.join()
