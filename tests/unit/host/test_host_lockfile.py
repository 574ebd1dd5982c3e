from __future__ import annotations

import os
import re
import signal
import threading
from datetime import timedelta

import pytest

from stoker.core.clock import FakeClock, SystemClock
from stoker.core.errors import LocalFile, LockHeld
from stoker.host.identity import mine
from stoker.host.locks import FileLock, is_locked, read_owner
from tests.unit.host.real_mounts import small_disk
from tests.unit.host.real_processes import code_of, fork, kill_and_reap, signal_pipe


def _held_by_a_child(path, say, purpose="prune the store"):
    def hold() -> None:
        FileLock(path, purpose).acquire()
        say()
        signal.pause()

    return fork(hold)


def test_a_lock_is_held_within_its_block_and_free_after_it(tmp_path):
    path = tmp_path / "lock"
    with FileLock(path, "one") as lock:
        assert lock.is_held
        owner = read_owner(path)
        assert owner is not None
        assert (owner.identity, owner.purpose) == (mine(), "one")
    assert not lock.is_held
    assert read_owner(path) is None
    assert path.exists()
    with FileLock(path, "two"):
        pass


def test_a_held_lock_names_its_owner_purpose_and_time(tmp_path):
    path = tmp_path / "lock"
    with signal_pipe() as (say, await_it):
        pid = _held_by_a_child(path, say)
        await_it()
        try:
            with pytest.raises(LockHeld) as caught:
                FileLock(path, "mine").acquire(wait_s=0)
        finally:
            kill_and_reap(pid)
    error = caught.value
    assert re.search(rf"process {pid} \(prune the store\) for \d+\.\ds$", str(error))
    assert str(path) in str(error)
    assert error.exit_code == 16
    assert error.hint
    assert error.data["purpose"] == "prune the store"
    assert error.data["since"]


def test_the_wait_is_bounded_by_the_clock_it_is_given(tmp_path):
    path = tmp_path / "lock"
    clock = FakeClock(start_s=SystemClock().wall_s() + 120)
    with signal_pipe() as (say, await_it):
        pid = _held_by_a_child(path, say)
        await_it()
        try:
            before_s = clock.monotonic_s()
            with pytest.raises(LockHeld, match="for 2m1"):
                FileLock(path, "mine", clock=clock).acquire()
        finally:
            kill_and_reap(pid)
    assert clock.monotonic_s() - before_s == pytest.approx(10.0)


def test_a_lock_whose_owner_is_killed_is_free_at_once(tmp_path):
    path = tmp_path / "lock"
    with signal_pipe() as (say, await_it):
        pid = _held_by_a_child(path, say)
        await_it()
        kill_and_reap(pid)
    with FileLock(path, "mine", wait_s=0):
        owner = read_owner(path)
        assert owner is not None
        assert owner.identity == mine()


def test_a_waiter_gets_the_lock_when_it_is_released(tmp_path):
    path = tmp_path / "lock"
    with signal_pipe() as (say, await_it):
        first = FileLock(path, "first")
        first.acquire()

        def wait_for_it() -> None:
            with pytest.raises(LockHeld):
                FileLock(path, "second").acquire(wait_s=0)
            say()
            FileLock(path, "second").acquire()

        pid = fork(wait_for_it)
        await_it()
        first.release()
        assert code_of(pid) == 0


def test_taking_a_lock_twice_is_refused_at_once(tmp_path):
    path = tmp_path / "lock"
    clock = FakeClock()
    with FileLock(path, "one") as lock:
        with pytest.raises(LockHeld, match="this process holds it already"):
            lock.acquire(clock=clock)
        with pytest.raises(LockHeld, match="this thread holds it already"):
            FileLock(path, "two", clock=clock).acquire()
        assert lock.is_held
    assert clock.monotonic_s() == 0.0


def test_threads_of_one_process_exclude_each_other(tmp_path):
    path = tmp_path / "lock"
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with FileLock(path, "count"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


@pytest.mark.parametrize("removes_file", [False, True])
def test_processes_exclude_each_other(tmp_path, removes_file):
    path, counter = tmp_path / "lock", tmp_path / "counter"
    counter.write_text("0")

    def count() -> None:
        for _ in range(25):
            with FileLock(path, "count", removes_file=removes_file):
                counter.write_text(str(int(counter.read_text()) + 1))

    assert [code_of(pid) for pid in [fork(count) for _ in range(6)]] == [0] * 6
    assert counter.read_text() == "150"
    assert path.exists() is not removes_file


def test_a_forked_child_does_not_release_the_lock_of_its_parent(tmp_path):
    path = tmp_path / "lock"
    with FileLock(path, "parent") as lock:

        def leave() -> None:
            assert not lock.is_held
            lock.release()

        assert code_of(fork(leave)) == 0
        assert code_of(fork(lambda: os._exit(_outcome_of_trying(path)))) == 16


def test_a_forked_child_does_not_keep_the_lock_of_a_killed_parent(tmp_path):
    path = tmp_path / "lock"
    with signal_pipe() as (say, await_it), signal_pipe() as (end, await_end):

        def hold_and_fork() -> None:
            FileLock(path, "parent").acquire()
            if os.fork() == 0:
                say()
                await_end()
                os._exit(0)
            signal.pause()

        pid = fork(hold_and_fork)
        await_it()
        assert _outcome_of_trying(path) == 16
        kill_and_reap(pid)
        try:
            assert _outcome_of_trying(path) == 0
        finally:
            end()


def _outcome_of_trying(path) -> int:
    try:
        with FileLock(path, "try", wait_s=0):
            return 0
    except LockHeld as error:
        return error.exit_code


def test_a_lock_file_that_somebody_deletes_does_not_let_two_in(tmp_path):
    path = tmp_path / "lock"
    waiting_on_the_old_file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        path.unlink()
        with FileLock(path, "mine"):
            assert not os.path.samestat(os.fstat(waiting_on_the_old_file), path.stat())
            assert _outcome_of_trying(path) == 16
    finally:
        os.close(waiting_on_the_old_file)


def test_a_full_disk_does_not_keep_anybody_from_locking(tmp_path):
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        (disk / "lock").touch()
        with pytest.raises(OSError, match="No space"):
            (disk / "filler").write_bytes(bytes(1_000_000))
        with FileLock(disk / "lock", "make room"):
            assert _outcome_of_trying(disk / "lock") == 16


def test_scribble_in_a_lock_file_is_no_owner(tmp_path):
    owner = '{"identity":{"pid":5,"start_ticks":5},"thread":%s,"purpose":"x","since":"%s"}'
    endless, never = owner % ("1e999", "2020-01-01T00:00:00+00:00"), owner % (1, "0001-01-01T00:00:00+23:00")
    for text in ("", "scribble", "[1]", '{"identity": 3}', '{"identity": {}}', endless, never):
        (tmp_path / "lock").write_text(text)
        assert read_owner(tmp_path / "lock") is None
    assert read_owner(tmp_path / "missing") is None
    with FileLock(tmp_path / "lock", "mine"):
        pass


def test_an_owner_without_a_time_zone_and_with_a_loud_purpose_is_told_in_one_plain_line(tmp_path):
    path = tmp_path / "lock"
    with FileLock(path, "mine"):
        path.write_text(
            '{"identity":{"pid":5,"start_ticks":5},"thread":1,"purpose":"a\\u001b[2J\\nb","since":"2020-01-01T00:00:00"}'
        )
        with pytest.raises(LockHeld, match=r"process 5 on  \(a \[2J b\) for"):
            FileLock(path, "one more").acquire(wait_s=0)


def test_a_lock_that_is_ours_for_certain_is_taken_whatever_stands_in_it(tmp_path):
    path = tmp_path / "lock"
    path.write_text("scribble " * 10_000)
    with FileLock(path, "mine", is_ours=True):
        owner = read_owner(path)
        assert owner is not None
        assert owner.purpose == "mine"


def test_a_folder_that_is_missing_is_said(tmp_path):
    with pytest.raises(LocalFile, match="no such file or folder"):
        FileLock(tmp_path / "no" / "lock", "mine").acquire()


def test_the_owner_says_since_when(tmp_path):
    clock = FakeClock()
    with FileLock(tmp_path / "lock", "mine", clock=clock):
        owner = read_owner(tmp_path / "lock")
    assert owner is not None
    assert abs(owner.since - clock.now()) < timedelta(seconds=1)


def test_whether_a_lock_is_held_is_seen_without_taking_it(tmp_path):
    path = tmp_path / "lock"
    assert not is_locked(path)
    with FileLock(path, "work"):
        assert is_locked(path)
        assert is_locked(path)
    assert not is_locked(path)
    with FileLock(path, "more work", wait_s=0.0):
        assert is_locked(path)
    (tmp_path / "link").symlink_to(path)
    assert not is_locked(tmp_path / "link")


@pytest.mark.parametrize("content", [b"[[package]]\n", b"x", b'{"a": 1}', b'{"identity":' + b" " * 100_000, b"\0\0x"])
def test_a_file_that_is_no_lock_is_refused_and_never_emptied(tmp_path, content):
    path = tmp_path / "Cargo.lock"
    path.write_bytes(content)
    with pytest.raises(LocalFile, match="in the way") as caught:
        FileLock(path, "one", wait_s=0.0).acquire()
    assert caught.value.exit_code == 16
    assert path.read_bytes() == content
    assert not is_locked(path)


@pytest.mark.parametrize("cut", [0, 1, 5, 40, None])
def test_the_lock_file_of_a_killed_owner_is_taken_over_however_much_of_it_was_written(tmp_path, cut):
    path = tmp_path / "lock"
    with FileLock(path, "one"):
        signed = path.read_bytes()
    for content in (signed[:cut], b"\0" * len(signed[:cut]), signed + signed[-40:]):
        path.write_bytes(content)
        with FileLock(path, "two"):
            owner = read_owner(path)
            assert owner is not None
            assert owner.purpose == "two"


def test_a_waiter_on_a_lock_file_that_its_holder_deletes_takes_the_next_file(tmp_path):
    path = tmp_path / "lock"
    with signal_pipe() as (say, await_it):

        def wait() -> None:
            say()
            with FileLock(path, "second", removes_file=True):
                assert _outcome_of_trying(path) == 16

        with FileLock(path, "first", removes_file=True):
            pid = fork(wait)
            await_it()
        assert code_of(pid) == 0
    assert not path.exists()


def test_a_lock_file_that_was_replaced_while_it_was_held_is_not_deleted(tmp_path):
    path = tmp_path / "lock"
    with FileLock(path, "mine", removes_file=True):
        path.unlink()
        path.write_bytes(b"")
    assert path.exists()
