from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.digests import Digest
from stoker.core.errors import StokerError
from stoker.core.frozen import changed
from stoker.core.jsontext import loads
from stoker.engine.key_leases import LEASE_S, RENEW_EVERY_S, KeyFree, KeyHeld, KeyLease, KeyLeases, decide_lease
from stoker.host.identity import Liveness, ProcessIdentity, mine
from tests.unit.host.real_processes import code_of, fork, kill_and_reap, signal_pipe

ME = ProcessIdentity(pid=100, start_ticks=1, boot_id="boot", host="here")
OTHER = changed(ME, pid=200)
NOW_S = 1_700_000_000.0
KEY = Digest("ab" * 32)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW_S)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    path = tmp_path / "leases"
    path.mkdir()
    return str(path)


def owner_in(folder: str) -> int:
    with open(f"{folder}/{KEY}", "rb") as file:
        owner: int = loads(file.read())["owner"]["pid"]
    return owner


@contextmanager
def another_owner(folder: str) -> Iterator[int]:
    """A process of its own that holds the lease, until it is killed or the block ends."""
    with signal_pipe() as (has_it, await_it), signal_pipe() as (let_go, await_end):

        def hold() -> None:
            assert isinstance(KeyLeases(folder, clock=FakeClock(NOW_S)).take(KEY, "run/train"), KeyFree)
            has_it()
            await_end()

        pid = fork(hold)
        await_it()
        try:
            yield pid
        finally:
            let_go()
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


# --- the decision --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "liveness", "expected", "why"),
    [
        (None, Liveness.GONE, KeyFree, ""),
        (KeyLease(owner=ME, expires_s=NOW_S + 60), Liveness.ALIVE, KeyFree, "already mine"),
        (KeyLease(owner=ME, expires_s=NOW_S - 60), Liveness.ALIVE, KeyFree, "already mine"),
        (KeyLease(owner=OTHER, expires_s=NOW_S + 60), Liveness.ALIVE, KeyHeld, "process 200 works on it"),
        (KeyLease(owner=OTHER, expires_s=NOW_S + 60), Liveness.UNKNOWN, KeyHeld, "process 200 works on it"),
        (KeyLease(owner=OTHER, expires_s=NOW_S + 60), Liveness.GONE, KeyFree, "process 200 is gone"),
        (KeyLease(owner=OTHER, expires_s=NOW_S), Liveness.ALIVE, KeyFree, "process 200 has not renewed it"),
        (KeyLease(owner=OTHER, expires_s=NOW_S - 1), Liveness.UNKNOWN, KeyFree, "process 200 has not renewed it"),
        (KeyLease(owner=OTHER, expires_s=NOW_S + 2 * LEASE_S), Liveness.UNKNOWN, KeyHeld, "process 200 works on it"),
        (KeyLease(owner=OTHER, expires_s=NOW_S + 2 * LEASE_S + 1), Liveness.UNKNOWN, KeyFree, "a clock was wrong"),
        (KeyLease(owner=OTHER, expires_s=NOW_S + 1e9), Liveness.UNKNOWN, KeyFree, "a clock was wrong"),
        (KeyLease(owner=OTHER, expires_s=NOW_S + 1e9), Liveness.ALIVE, KeyHeld, "process 200 works on it"),
        (KeyLease(owner=OTHER, expires_s=NOW_S + 1e9), Liveness.GONE, KeyFree, "process 200 is gone"),
    ],
)
def test_who_may_take_a_lease(current: KeyLease | None, liveness: Liveness, expected: type, why: str) -> None:
    decision = decide_lease(current, me=ME, owner_liveness=liveness, now_s=NOW_S)
    assert type(decision) is expected
    assert why in decision.why


# --- the book ------------------------------------------------------------------------------------


def test_a_lease_is_taken_and_given_back(folder: str, clock: FakeClock) -> None:
    book = KeyLeases(folder, clock=clock)
    assert isinstance(book.take(KEY), KeyFree)
    assert owner_in(folder) == os.getpid()
    assert book.held() == [KEY]
    book.give_back(KEY)
    assert book.held() == []
    assert not os.path.exists(f"{folder}/{KEY}")
    book.give_back(KEY)
    book.give_back_all()


def test_another_process_that_holds_it_is_named_with_its_work_and_for_how_long(folder: str, clock: FakeClock) -> None:
    with another_owner(folder) as pid:
        clock.advance(20)
        decision = KeyLeases(folder, clock=clock).take(KEY)
        assert isinstance(decision, KeyHeld)
        why = f"process {pid} (run/train) has been running it for 20s: the same stage, with the same inputs"
        assert (decision.who, decision.why) == (f"process {pid} (run/train)", why)
        assert KeyLeases(folder, clock=clock).held() == [KEY]


def test_an_owner_that_was_killed_is_followed_at_once(folder: str, clock: FakeClock) -> None:
    with another_owner(folder) as pid:
        kill_and_reap(pid)
        assert KeyLeases(folder, clock=clock).held() == []
        decision = KeyLeases(folder, clock=clock).take(KEY)
        assert decision == KeyFree(why=f"process {pid} is gone")
        assert owner_in(folder) == os.getpid()


def test_a_lease_is_renewed_when_it_is_due(folder: str, clock: FakeClock) -> None:
    book = KeyLeases(folder, clock=clock)
    book.take(KEY)
    before = Path(folder, KEY).read_bytes()
    clock.advance(RENEW_EVERY_S - 1)
    book.renew_due()
    assert Path(folder, KEY).read_bytes() == before
    clock.advance(1)
    book.renew_due()
    assert loads(Path(folder, KEY).read_bytes())["expires_s"] == clock.wall_s() + LEASE_S


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0])
def test_a_clock_that_jumps_makes_the_owner_renew(folder: str, clock: FakeClock, jump_s: float) -> None:
    book = KeyLeases(folder, clock=clock)
    book.take(KEY)
    clock.jump(jump_s)
    book.renew_due()
    assert loads(Path(folder, KEY).read_bytes())["expires_s"] == clock.wall_s() + LEASE_S


def test_a_clock_that_was_set_back_does_not_take_the_lease_from_a_living_owner(folder: str) -> None:
    with another_owner(folder):
        early = FakeClock(NOW_S - 86400)
        assert isinstance(KeyLeases(folder, clock=early).take(KEY), KeyHeld)


def test_an_owner_that_was_silent_too_long_is_followed_and_loses_nothing(folder: str, clock: FakeClock) -> None:
    slow = KeyLeases(folder, clock=clock)
    slow.take(KEY)
    with signal_pipe() as (has_it, await_it), signal_pipe() as (let_go, await_end):

        def take_over() -> None:
            book = KeyLeases(folder, clock=FakeClock(NOW_S + LEASE_S))
            decision = book.take(KEY)
            assert isinstance(decision, KeyFree)
            assert "has not renewed" in decision.why
            has_it()
            await_end()
            book.give_back(KEY)

        pid = fork(take_over)
        await_it()
        clock.advance(LEASE_S)
        slow.renew_due()
        assert owner_in(folder) == pid
        slow.give_back(KEY)
        assert owner_in(folder) == pid
        let_go()
        assert code_of(pid) == 0
    assert not os.path.exists(f"{folder}/{KEY}")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"owner": 5}', '{"owner": {"pid": -1}, "expires_s": 1}'])
def test_a_lease_that_does_not_parse_protects_nobody(folder: str, clock: FakeClock, text: str) -> None:
    Path(folder, KEY).write_text(text)
    book = KeyLeases(folder, clock=clock)
    assert book.held() == []
    assert book.take(KEY) == KeyFree()
    book.give_back_all()


def test_leases_of_two_books_of_one_process_are_its_own(folder: str, clock: FakeClock) -> None:
    one, other = KeyLeases(folder, clock=clock), KeyLeases(folder, clock=clock)
    one.take(KEY)
    assert other.take(KEY) == KeyFree(why="already mine")


def test_a_folder_that_is_not_there_has_no_leases(tmp_path: Path, clock: FakeClock) -> None:
    assert KeyLeases(str(tmp_path / "none"), clock=clock).held() == []


def test_a_folder_that_cant_be_written_is_told(clock: FakeClock) -> None:
    with pytest.raises(StokerError, match="/proc"):
        KeyLeases("/proc", clock=clock).take(KEY)


def test_everything_is_given_back_at_the_end(folder: str, clock: FakeClock) -> None:
    book = KeyLeases(folder, clock=clock)
    for letter in "0123":
        book.take(Digest(letter * 64))
    book.give_back_all()
    assert [name for name in os.listdir(folder) if not name.startswith(".")] == []
    assert mine().pid == os.getpid()
