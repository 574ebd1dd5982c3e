from __future__ import annotations

import os
import signal

import pytest

from stoker.host.identity import held, hold_on
from tests.unit.host.real_processes import code_of, fork, is_running, wait_until


@pytest.fixture
def line():
    read_fd, write_fd = os.pipe()
    yield read_fd, write_fd
    os.close(read_fd)


def hold(line, ready_fd) -> None:
    os.close(line[1])
    os.setsid()
    hold_on(line[0])
    grandchild = os.fork()
    if grandchild:
        os.write(ready_fd, f"{grandchild}".encode())
    while True:
        signal.pause()


def test_the_whole_group_ends_when_the_other_end_closes(line):
    told, tell = os.pipe()
    child = fork(lambda: hold(line, tell))
    try:
        grandchild = int(os.read(told, 20))
        assert is_running(child)
        os.close(line[1])
        assert code_of(child) == -signal.SIGKILL
        wait_until(lambda: not is_running(grandchild))
    finally:
        os.close(told)
        os.close(tell)


def test_a_line_that_was_cut_before_it_was_held_ends_the_process_too(line):
    os.close(line[1])
    told, tell = os.pipe()
    assert code_of(fork(lambda: hold(line, tell))) == -signal.SIGKILL
    os.close(told)
    os.close(tell)


def test_while_it_is_held_a_cut_ends_the_process_alone_and_afterwards_nobody(line):
    told, tell = os.pipe()

    def child() -> None:
        os.close(line[1])
        with held(line[0]):
            os.write(tell, b"held")
        os.write(tell, b"free")
        assert os.read(line[0], 1) == b""

    pid = fork(child)
    try:
        assert os.read(told, 4) == b"held"
        assert os.read(told, 4) == b"free"
        os.close(line[1])
        assert code_of(pid) == 0
    finally:
        os.close(told)
        os.close(tell)


def test_a_process_that_is_busy_while_it_holds_on_ends_when_the_line_is_cut(line):
    told, tell = os.pipe()

    def child() -> None:
        os.close(line[1])
        with held(line[0]):
            os.write(tell, b"held")
            while True:
                pass

    pid = fork(child)
    try:
        assert os.read(told, 4) == b"held"
        os.close(line[1])
        assert code_of(pid) == -signal.SIGKILL
    finally:
        os.close(told)
        os.close(tell)
