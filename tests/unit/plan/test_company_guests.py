"""Who is connected to a company: one that goes away is gone at once, whoever notices it first."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.model.clock import SystemClock
from stoker.plan.company_guests import Guests
from stoker.plan.company_words import framed

CLOCK = SystemClock()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(tmp_path / "door"))
        made.listen()
        yield made


def test_one_who_waits_and_goes_while_it_is_told_something_stands_in_line_no_longer(listener: socket.socket) -> None:
    words_fd = os.memfd_create("words")
    guests = Guests(listener, {"hello": {}}, words_fd, clock=CLOCK)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(listener.getsockname())
    link.sendall(framed({"join": {"entry": "a"}}))
    with guests.changed:
        assert guests.changed.wait_for(lambda: not guests.take_joined(lambda _one: False) and is_waiting(guests), 10.0)
        # That it is gone is found here, by writing, before the thread that reads may say so.
        link.close()
        guests.tell_all({"log": "anybody?"})
        assert guests.changed.wait_for(lambda: not is_waiting(guests), 10.0)
        assert guests.take_joined() == []
    guests.close(1.0)
    os.close(words_fd)


def is_waiting(guests: Guests) -> bool:
    return guests.empty_for_s() is None and any(guest.work for guest in guests._guests)
