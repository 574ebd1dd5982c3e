"""Words to a supervisor, heard at a real socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.host.sockets import NotifySocket, for_children


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(5)
        yield made


def heard(ear: socket.socket) -> list[str]:
    ear.setblocking(False)
    said = []
    while True:
        try:
            said.append(ear.recv(100).decode())
        except BlockingIOError:
            return said


def test_ready_alive_and_ending_are_said_in_systemds_words(ear: socket.socket):
    line = NotifySocket({"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "180000000"}, FakeClock())
    line.ready()
    line.alive()
    line.ending()
    assert heard(ear) == ["READY=1", "WATCHDOG=1", "STOPPING=1"]


def test_it_says_that_it_lives_often_enough_and_no_oftener(ear: socket.socket):
    clock = FakeClock()
    line = NotifySocket({"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "180000000"}, clock)
    for _ in range(1800):
        line.alive()
        clock.sleep(0.1)
    assert heard(ear) == ["WATCHDOG=1"] * 4


def test_a_long_start_is_extended_often_enough_and_no_oftener(ear: socket.socket):
    clock = FakeClock()
    line = NotifySocket({"NOTIFY_SOCKET": ear.getsockname()}, clock)
    for _ in range(600):
        line.starting()
        clock.sleep(1.0)
    assert heard(ear) == ["EXTEND_TIMEOUT_USEC=600000000"] * 4


@pytest.mark.parametrize(
    "environment",
    [{}, {"NOTIFY_SOCKET": "relative"}, {"NOTIFY_SOCKET": "/nobody/listens"}, {"NOTIFY_SOCKET": "@stoker-nobody"}],
    ids=["none", "odd", "gone", "abstract"],
)
def test_where_nobody_listens_nothing_happens(environment: dict[str, str]):
    line = NotifySocket({**environment, "WATCHDOG_USEC": "1000000"}, FakeClock())
    line.ready()
    line.alive()


def test_a_watchdog_of_another_process_is_not_ours(ear: socket.socket):
    environment = {"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    line = NotifySocket(environment, FakeClock())
    line.alive()
    assert heard(ear) == []
    assert line.beats_every_s is None


def test_children_are_not_told_where_the_supervisor_listens():
    assert for_children({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "PATH": "/bin"}) == {"PATH": "/bin"}
