from __future__ import annotations

import errno
import os
import random
import threading

import pytest

from stoker.host import writers
from stoker.host.writers import ALIGNED_BYTES, DirectWriter, open_direct

DATA = random.Random(3).randbytes(10 * ALIGNED_BYTES + 123)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(writers, "BLOCK_BYTES", 2 * ALIGNED_BYTES)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@pytest.fixture
def writer(path):
    made = DirectWriter(os.open(path, os.O_WRONLY | os.O_CREAT), 0)
    yield made
    made.abandon()


def _in_pieces(writer, size):
    for at in range(0, len(DATA), size):
        writer.write(DATA[at : at + size])


@pytest.mark.parametrize("size", [1, 1000, ALIGNED_BYTES, 3 * ALIGNED_BYTES + 7, len(DATA)])
def test_full_blocks_are_written_and_the_rest_is_given_back(writer, path, size):
    _in_pieces(writer, size)
    rest = b"".join(writer.settle())
    assert writer.failure is None
    assert writer.written_bytes == 10 * ALIGNED_BYTES
    assert path.read_bytes() == DATA[: writer.written_bytes]
    assert rest == DATA[writer.written_bytes :]


def test_bytes_go_where_they_belong(path):
    path.write_bytes(b"x" * ALIGNED_BYTES)
    writer = DirectWriter(os.open(path, os.O_WRONLY), ALIGNED_BYTES)
    _in_pieces(writer, 5000)
    writer.settle()
    assert path.read_bytes() == b"x" * ALIGNED_BYTES + DATA[: 10 * ALIGNED_BYTES]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSPC])
def test_after_a_failure_everything_that_is_not_written_is_given_back(writer, path, monkeypatch, number):
    real = os.pwrite

    def fail_third(descriptor, data, offset):
        if offset >= 4 * ALIGNED_BYTES:
            raise OSError(number, os.strerror(number))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", fail_third)
    _in_pieces(writer, 1000)
    rest = b"".join(writer.settle())
    assert writer.failure is not None
    assert writer.failure.errno == number
    assert writer.written_bytes == 4 * ALIGNED_BYTES
    assert path.read_bytes() + rest == DATA


def test_a_write_that_takes_less_than_a_block_is_gone_on_with(writer, path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:ALIGNED_BYTES], offset))
    _in_pieces(writer, 7000)
    assert b"".join(writer.settle()) == DATA[10 * ALIGNED_BYTES :]
    assert path.read_bytes() == DATA[: 10 * ALIGNED_BYTES]


def test_whoever_is_faster_than_the_disk_waits(writer, monkeypatch):
    real, gate = os.pwrite, threading.Event()

    def wait(descriptor, data, offset):
        gate.wait()
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", wait)
    feeding = threading.Thread(target=_in_pieces, args=(writer, 1000))
    feeding.start()
    feeding.join(0.05)
    assert feeding.is_alive()
    gate.set()
    feeding.join()
    writer.settle()
    assert writer.written_bytes == 10 * ALIGNED_BYTES


def test_what_is_abandoned_leaves_a_file_without_holes(writer, path):
    _in_pieces(writer, len(DATA))
    writer.abandon()
    size = path.stat().st_size
    assert size == writer.written_bytes
    assert path.read_bytes() == DATA[:size]
    assert not writer._thread.is_alive()


def test_a_file_is_opened_for_it_on_file_systems_that_are_known_to_be_good(path, monkeypatch):
    with path.open("w+b") as file:
        monkeypatch.setattr(writers, "_file_system", lambda _: "nfs")
        assert open_direct(file.fileno()) is None
        monkeypatch.setattr(writers, "_file_system", lambda _: "ext4")
        descriptor = open_direct(file.fileno())
        if descriptor is not None:
            assert os.path.samestat(os.fstat(descriptor), os.fstat(file.fileno()))
            os.close(descriptor)


def test_the_file_system_of_a_file_is_found():
    assert writers._file_system(os.stat("/proc").st_dev) == "proc"
    assert writers._file_system(os.makedev(4000, 4000)) == ""
