from __future__ import annotations

import os
import sys

import pytest

from stoker.gang.mailbox import (
    MAILBOX_BYTES,
    PAGE_BYTES,
    TRACEBACK_BYTES,
    MailboxPages,
    Phase,
    Publisher,
    RankPage,
    RankState,
    RankWindowInfo,
    Slot,
    TornPage,
)


@pytest.fixture
def pages():
    with MailboxPages.make(2) as made:
        yield made


@pytest.fixture
def wake():
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    yield read_fd, write_fd
    for fd in (read_fd, write_fd):
        os.close(fd)


@pytest.fixture
def publisher(pages, wake):
    return Publisher(pages.fd(1), wake[1], rank=1, nranks=2, device_id=7)


def read(pages, rank=1) -> RankPage:
    page = pages.read(rank)
    assert isinstance(page, RankPage)
    return page


def test_a_rank_that_has_said_nothing_is_idle(pages):
    assert read(pages, 0).state is RankState.IDLE


def test_each_phase_is_told_with_its_time_and_wakes_the_owner(pages, publisher, wake):
    for phase in (Phase.FORKED, Phase.DEVICE, Phase.COMM):
        publisher.begin(phase)
        page = read(pages)
        assert (page.state, page.phase) == (RankState.STARTED, phase)
        assert os.read(wake[0], 100)
    page = read(pages)
    assert 0 < page.stamps_ns[Phase.FORKED] <= page.stamps_ns[Phase.DEVICE] <= page.stamps_ns[Phase.COMM]
    assert page.stamps_ns[Phase.STORE] == 0
    assert (page.rank, page.nranks, page.device_id, page.pid) == (1, 2, 7, os.getpid())
    assert read(pages, 0).state is RankState.IDLE


def test_a_rank_that_is_ready_shows_its_window(pages, publisher):
    slots = (Slot(offset=0, nbytes=8), Slot(offset=256, nbytes=1))
    publisher.ready(
        RankWindowInfo(device_ctx=5, base=4096, requested_bytes=257, actual_bytes=512, handle=b"h", slots=slots)
    )
    page = read(pages)
    assert (page.state, page.phase) == (RankState.SUCCESS, Phase.READY)
    assert (page.device_ctx, page.window_base, page.requested_bytes, page.actual_bytes) == (5, 4096, 257, 512)
    assert (page.handle, page.slots) == (b"h", slots)


def test_an_error_is_told_with_type_text_errno_and_traceback(pages, publisher):
    publisher.begin(Phase.COMM)
    try:
        raise FileNotFoundError(2, "no such file")
    except FileNotFoundError as error:
        publisher.fail(error)
    page = read(pages)
    assert (page.state, page.phase) == (RankState.ERROR, Phase.COMM)
    assert (page.error_type, page.error_text, page.errno) == ("FileNotFoundError", "[Errno 2] no such file", 2)
    assert page.failed_ns >= page.stamps_ns[Phase.COMM]
    text = pages.traceback(1, page)
    assert text.startswith("Traceback")
    assert 'raise FileNotFoundError(2, "no such file")' in text


def test_of_a_traceback_too_long_for_the_box_the_beginning_and_the_end_stay(pages, publisher):
    publisher.tell("E", "x", failed_ns=1, traceback_text="first\n" + "€" * TRACEBACK_BYTES + "\nlast")
    page = read(pages)
    text = pages.traceback(1, page)
    assert page.is_cut
    assert text.startswith("first\n€")
    assert text.endswith("€\nlast")
    assert "�" not in text
    assert len(text.encode()) <= TRACEBACK_BYTES


def test_an_error_whose_own_text_raises_is_told_all_the_same(pages, publisher):
    class Odd(Exception):
        def __str__(self):
            raise ValueError

    publisher.fail(Odd())
    assert read(pages).error_type == "Odd"
    assert "ValueError" in read(pages).error_text


def test_frames_of_ours_are_left_out_of_a_traceback(pages, publisher):
    def work():
        raise ValueError("deep")

    try:
        work()
    except ValueError as error:
        publisher.fail(error, hidden_frames=1)
    text = pages.traceback(1, read(pages))
    assert "in work" in text
    assert "test_frames_of_ours" not in text


def test_an_owner_that_is_gone_or_slow_stops_no_rank(pages, publisher, wake):
    for _ in range(20_000):
        try:
            os.write(wake[1], b"x" * 4096)
        except BlockingIOError:
            break
    publisher.begin(Phase.DEVICE)
    assert read(pages).phase is Phase.DEVICE


def test_a_half_written_page_is_torn_and_the_next_whole_one_is_read(pages, publisher):
    publisher.begin(Phase.DEVICE)
    os.pwrite(pages.fd(1), b"half", 100)
    assert isinstance(pages.read(1), TornPage)
    publisher.begin(Phase.STORE)
    assert read(pages).phase is Phase.STORE


@pytest.mark.skipif(sys.platform != "linux", reason="seals are Linux's")
def test_a_mailbox_can_neither_shrink_nor_grow_and_has_no_name(pages):
    for size in (0, PAGE_BYTES, MAILBOX_BYTES + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(pages.fd(0), size)
    assert os.readlink(f"/proc/self/fd/{pages.fd(0)}").startswith("/memfd:")


def test_closing_twice_is_fine_and_closes_every_descriptor():
    made = MailboxPages.make(3)
    fds = [made.fd(rank) for rank in range(3)]
    made.close()
    made.close()
    for fd in fds:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)
