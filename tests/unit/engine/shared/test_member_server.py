"""Who is connected to a shared process: one that goes away is gone at once, whoever notices it first."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.engine.runners.shared.members import LONGEST_BYTES, Frames, MemberConnection, MemberServer, framed

CLOCK = SystemClock()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(tmp_path / "door"))
        made.listen()
        yield made


def test_one_who_waits_and_goes_while_it_is_told_something_stands_in_line_no_longer(listener: socket.socket) -> None:
    words_fd = os.memfd_create("words")
    members = MemberServer(listener, {"hello": {}}, words_fd, clock=CLOCK)
    link = connected(listener)
    link.sendall(framed({"join": {"entry": "a"}}))
    with members.changed:
        assert members.changed.wait_for(
            lambda: not members.take_joined(lambda _one: False) and is_waiting(members), 10.0
        )
        # That it is gone is found here, by writing, before the thread that reads may say so.
        link.close()
        members.send_all({"log": "anybody?"})
        assert members.changed.wait_for(lambda: not is_waiting(members), 10.0)
        assert members.take_joined() == []
    members.close(1.0)
    os.close(words_fd)


def test_half_messages_hold_no_more_than_so_much_and_who_says_little_is_heard(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.engine.runners.shared.members._MOST_UNFINISHED_BYTES", 300_000)
    words_fd = os.memfd_create("words")
    members = MemberServer(listener, {"hello": {}}, words_fd, clock=CLOCK)
    halves = [connected(listener) for _ in range(8)]
    small = connected(listener)
    small.sendall(framed({"join": {"entry": "a"}})[:-1])
    for half in halves:
        with suppress(ConnectionError, BlockingIOError):
            half.setblocking(False)
            half.send(struct.pack("!I", LONGEST_BYTES) + b"x" * 100_000)
    small.sendall(b"}")
    with members.changed:
        assert members.changed.wait_for(lambda: is_waiting(members), 10.0)
        assert members.changed.wait_for(lambda: len(members._members) <= 4, 10.0)
        assert sum(member.frames.unfinished_bytes for member in members._members) <= 300_000
        (joined,) = members.take_joined()
    assert joined.work == {"entry": "a"}
    members.close(1.0)
    os.close(words_fd)
    for link in (*halves, small):
        link.close()


def test_half_a_message_is_waited_for_and_then_no_longer(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.engine.runners.shared.members._JOIN_WITHIN_S", 0.2)
    monkeypatch.setattr("stoker.engine.runners.shared.members._LOOK_S", 0.02)
    words_fd = os.memfd_create("words")
    members = MemberServer(listener, {"hello": {}}, words_fd, clock=CLOCK)
    with connected(listener) as link:
        link.sendall(framed({"join": {}})[:-1])
        link.settimeout(10)
        while link.recv(65536):
            pass
    members.close(1.0)
    os.close(words_fd)


def test_one_who_has_joined_may_say_no_more_than_that_it_stops(listener: socket.socket) -> None:
    words_fd = os.memfd_create("words")
    members = MemberServer(listener, {"hello": {}}, words_fd, clock=CLOCK)
    with connected(listener) as link:
        link.sendall(framed({"join": {}}))
        with members.changed:
            assert members.changed.wait_for(lambda: is_waiting(members), 10.0)
        link.sendall(struct.pack("!I", LONGEST_BYTES))
        with members.changed:
            assert members.changed.wait_for(lambda: not members._members, 10.0)
    members.close(1.0)
    os.close(words_fd)


def test_progress_that_nobody_would_take_is_dropped_and_raises_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        member = MemberConnection(ours, lambda: None, join_by_s=0.0)
        member.send({"step": 1, "metrics": {"x" * LONGEST_BYTES: 1.0}})
        member.send({"step": 2, "metrics": {}})
        assert Frames().feed(theirs.recv(65536)) == [{"step": 2, "metrics": {}}]


def connected(listener: socket.socket) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(listener.getsockname())
    return link


def is_waiting(members: MemberServer) -> bool:
    return members.empty_for_s() is None and any(member.work is not None for member in members._members)
