from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from stoker.core.errors import ContainmentUnavailable
from stoker.host.containment.mechanisms import UserBus, _addresses, _split, _Writer


def test_a_signature_comes_apart_into_single_values():
    assert _split("ssa(sv)a(sa(sv))") == ["s", "s", "a(sv)", "a(sa(sv))"]
    assert _split("aaub{sv}") == ["aau", "b", "{sv}"]
    assert _split("") == []


def test_the_bytes_are_those_that_the_specification_prescribes():
    writer = _Writer()
    writer.put("a(sv)", [("A", ("t", 5))])
    assert bytes(writer.bytes) == (
        struct.pack("<II", 24, 0) + struct.pack("<I", 1) + b"A\0" + b"\x01t\0" + bytes(7) + struct.pack("<Q", 5)
    )


def test_the_sockets_to_try_are_those_of_the_user():
    address = "tcp:host=x;unix:abstract=/tmp/a%20b,guid=1;unix:path=/run/b"
    found = list(_addresses({"XDG_RUNTIME_DIR": "/r", "DBUS_SESSION_BUS_ADDRESS": address}))
    assert found == [("/r/systemd/private", True), ("\0/tmp/a b", False), ("/run/b", False), ("/r/bus", False)]


def test_a_user_without_a_systemd_is_told_so(tmp_path):
    with pytest.raises(ContainmentUnavailable, match=r"does not respond .*No such file"):
        UserBus.connect({"XDG_RUNTIME_DIR": str(tmp_path)})


@contextmanager
def answering(tmp_path, behave: Callable[[socket.socket], object]) -> Iterator[dict[str, str]]:
    """Somebody who listens where systemd would."""
    (tmp_path / "systemd").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "systemd" / "private"))
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as peer:
                behave(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield {"XDG_RUNTIME_DIR": str(tmp_path)}
        thread.join()


def exactly(peer: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (chunk := peer.recv(size - len(found))):
        found += chunk
    return found


def ask(environment: dict[str, str], timeout_s: float = 5.0) -> str:
    bus = UserBus.connect(environment, timeout_s=timeout_s)
    try:
        return bus.control_group()
    finally:
        bus.close()


def hear_call(peer: socket.socket) -> None:
    body_size, _, fields_size = struct.unpack_from("<III", exactly(peer, 16), 4)
    exactly(peer, fields_size + -fields_size % 8 + body_size)


def welcome(peer: socket.socket) -> None:
    greeting = peer.recv(100)
    assert greeting.startswith(b"\0AUTH EXTERNAL ")
    assert greeting.endswith(b"\r\nBEGIN\r\n")
    peer.sendall(b"OK 1234\r\n")
    hear_call(peer)


def reply(fields: bytes, body: bytes = b"", kind: int = 2) -> bytes:
    head = struct.pack("<BBBBIII", ord("l"), kind, 0, 1, len(body), 9, len(fields))
    return head + fields + bytes(-len(fields) % 8) + body


ANSWER = b"\x05\x01u\0\x01\0\0\0"
WITH_TEXT = ANSWER + b"\x08\x01g\0\x01s\0"


@pytest.mark.parametrize(
    ("behave", "why"),
    [
        (lambda peer: None, "accept|reset|Broken pipe"),
        (lambda peer: (peer.recv(100), peer.sendall(b"REJECTED\r\n")), "does not accept this user"),
        (lambda peer: (welcome(peer), peer.sendall(b"l")), "connection closed"),
        (lambda peer: (welcome(peer), peer.sendall(reply(b"\xff" * 16))), "malformed"),
        (lambda peer: (welcome(peer), peer.sendall(reply(ANSWER + b"\x08\x01g\0\x01?\0"))), "malformed"),
        (lambda peer: (welcome(peer), peer.sendall(struct.pack("<BBBBIII", 108, 2, 0, 1, 2**31, 9, 8))), "too long"),
        (
            lambda peer: (welcome(peer), peer.sendall(reply(WITH_TEXT, b"\x03\0\0\0bad\0", kind=3))),
            "refused Get: bad",
        ),
    ],
    ids=["silent", "rejecting", "torn", "garbled", "unknown type", "too long", "refusing"],
)
def test_somebody_who_is_not_systemd_is_not_taken_for_it(tmp_path, behave, why):
    with answering(tmp_path, behave) as environment, pytest.raises(ContainmentUnavailable, match=why):
        ask(environment)


def test_somebody_who_never_answers_is_given_up(tmp_path):
    def hang(peer: socket.socket) -> None:
        welcome(peer)
        peer.recv(1)

    with answering(tmp_path, hang) as environment, pytest.raises(ContainmentUnavailable, match="timed out"):
        ask(environment, timeout_s=0.05)


def test_news_that_nobody_asked_for_is_passed_over(tmp_path):
    variant = ANSWER + b"\x08\x01g\0\x01v\0"
    body = b"\x01s\0\0" + b"\x04\0\0\0/abc\0"

    def chat(peer: socket.socket) -> None:
        welcome(peer)
        peer.sendall(reply(b"\x03\x01s\0\x04\0\0\0News\0", kind=4) + reply(variant, body))

    with answering(tmp_path, chat) as environment:
        assert ask(environment) == "/abc"
