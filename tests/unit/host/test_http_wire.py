"""A connection as bytes: who waits how long, what is gathered, and what happens when the cord is pulled."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from stoker.host.http.http_errors import Aborted
from stoker.host.http.streams import LINGER_S, CancelHandle, IdleState, Wire


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


@pytest.fixture
def far(pair) -> socket.socket:
    return pair[1]


@pytest.fixture
def cord() -> CancelHandle:
    return CancelHandle()


@pytest.fixture
def wire(pair, cord) -> Iterator[Wire]:
    with closing(Wire(pair[0], pair[0].dup())) as wire:
        wire.begin(cord, deadline_s=time.monotonic() + 5)
        yield wire


@pytest.mark.timing
def test_a_deadline_holds_however_slowly_bytes_trickle_in(far, wire):
    is_over = threading.Event()

    def trickle() -> None:
        while not is_over.wait(0.01):
            far.send(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    wire.expect_by(time.monotonic() + 0.15)
    started_s = time.monotonic()
    with pytest.raises(TimeoutError):
        wire.read_line(1 << 20)
    assert time.monotonic() - started_s < 4
    is_over.set()
    thread.join()


def test_a_deadline_that_has_passed_waits_for_nothing(far, wire):
    far.send(b"line\n")
    wire.expect_by(time.monotonic() - 1)
    with pytest.raises(TimeoutError):
        wire.read_line(100)
    with pytest.raises(TimeoutError):
        wire.send(b"x")


def test_lines_and_bytes_come_off_the_same_stream_in_order(far, wire):
    far.send(b"one\r\ntwo\nrest of it")
    assert wire.read_line(100) == b"one\r\n"
    assert wire.read_line(2) == b"tw"
    assert wire.read_line(100) == b"o\n"
    assert wire.take(4) == b"rest"
    assert wire.received_bytes == 19


def test_a_read_gathers_pieces_that_follow_one_another(far, wire, monkeypatch):
    monkeypatch.setattr("stoker.host.http.streams.LINGER_S", 4.0)
    wire.expect_body(5)
    far.send(b"a" * 1000)
    sender = threading.Timer(LINGER_S / 5, far.send, (b"b" * 1000,))
    sender.start()
    assert wire.take(2000) == b"a" * 1000 + b"b" * 1000
    sender.join()


@pytest.mark.timing
def test_a_read_gives_what_it_has_after_a_moment_of_silence(far, wire):
    wire.expect_body(60)
    far.send(b"some")
    started_s = time.monotonic()
    assert wire.take(1 << 20) == b"some"
    assert time.monotonic() - started_s < 5


def test_silence_is_borne_only_so_long(wire):
    wire.expect_body(0.05)
    with pytest.raises(TimeoutError):
        wire.take(100)


def test_what_came_before_a_cut_is_given_before_it_is_told(far, wire):
    wire.expect_body(5)
    far.send(b"some")
    far.close()
    assert wire.take(100) == b"some"
    assert wire.take(100) == b""
    assert wire.take(100) == b""


def test_what_came_before_a_reset_is_given_before_it_is_told():
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        far = listener.accept()[0]
        wire = Wire(near, near.dup())
        wire.begin(CancelHandle(), deadline_s=time.monotonic() + 5)
        wire.expect_body(5)
        near.send(b"unread, so that closing resets")
        far.send(b"some")

        def reset_while_it_gathers() -> None:
            far.close()

        timer = threading.Timer(LINGER_S / 5, reset_while_it_gathers)
        timer.start()
        assert wire.take(100) == b"some"
        timer.join()
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                wire.take(100)
        wire.close()


def test_looking_waits_for_nothing_and_takes_nothing(far, wire):
    assert wire.look() is IdleState.QUIET
    far.send(b"x")
    assert wire.look() is IdleState.SPEAKS
    wire.expect_body(5)
    assert wire.take(1) == b"x"
    assert wire.look() is IdleState.QUIET
    far.close()
    assert wire.look() is IdleState.ENDED


def test_pulling_the_cord_wakes_whoever_waits(wire, cord):
    timer = threading.Timer(0.03, cord.pull)
    timer.start()
    wire.expect_body(60)
    with pytest.raises(Aborted):
        wire.take(100)
    timer.join()


def test_after_the_cord_was_pulled_nothing_is_given_even_if_it_is_there(far, wire, cord):
    far.send(b"there\n")
    cord.pull()
    with pytest.raises(Aborted):
        wire.read_line(100)


def test_a_cord_that_was_pulled_lets_no_exchange_begin(pair, cord):
    cord.pull()
    with closing(Wire(pair[0], pair[0].dup())) as wire, pytest.raises(Aborted):
        wire.begin(cord, deadline_s=time.monotonic() + 5)


def test_a_cord_does_not_reach_a_wire_whose_exchange_is_over(far, wire, cord):
    wire.finish()
    cord.pull()
    later = CancelHandle()
    wire.begin(later, deadline_s=time.monotonic() + 5)
    far.send(b"still here\n")
    assert wire.read_line(100) == b"still here\n"


def test_a_cord_may_be_pulled_within_a_pull():
    """As a second signal does while the first one's code runs."""
    cord = CancelHandle()
    with socket.socket() as sock:

        class Reentrant(socket.socket):
            def shutdown(self, how: int) -> None:
                if not seen:
                    seen.append(how)
                    cord.pull()

        seen: list[int] = []
        with Reentrant() as reentrant:
            cord.hold(reentrant)
            cord.hold(sock)
            cord.pull()
            assert cord.is_pulled
