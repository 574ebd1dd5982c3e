"""F68, F69: two writers at once, with locks that work, lie or are missing; holders that were killed or hang."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from stoker.core.errors import LockHeld
from stoker.host.locks import FileLock
from stoker.transfer.download.types import DownloadTimeouts
from tests.fault.download_lab import HALF, NAME, ONE, SIZE, TWO, open_lab, random_bytes
from tests.fault.download_parent import ONCE, Downloads
from tests.servers import habits as bad
from tests.servers.faulty import Answer, Asked, FaultyServer, Version, well
from tests.unit.host.real_processes import wait_until

FLOCKS = ["works", "lies", "is missing"]
BIG = Version(data=random_bytes(3 << 20, 9))
BRIEFLY = {"lock_wait_s": 0.3, "attempts": 1}


@contextmanager
def two_writers(folder: Path, version: Version) -> Iterator[tuple[FaultyServer, Downloads, Downloads]]:
    with FaultyServer(version) as server, Downloads(server, folder) as first, Downloads(server, folder) as second:
        yield server, first, second


@pytest.mark.parametrize("flock", FLOCKS)
def test_f68_a_second_writer_waits_a_while_and_is_then_told_by_whom_the_file_is_held(memory, flock):
    with two_writers(memory / "out", BIG) as (server, first, second):
        reached = threading.Event()
        server.become(bad.stalling(1 << 20, reached))
        first.start(BIG, flock=flock)
        assert reached.wait(20)
        assert second.run(BIG, flock=flock, patience=BRIEFLY) == 16
        assert len(server.gets()) == 1
        assert not first.path.exists()
        server.become(well)
        server.hang_up()
        assert first.end() == 0
        assert first.path.read_bytes() == BIG.data


@pytest.mark.parametrize("flock", FLOCKS)
def test_f68_a_second_writer_who_waits_long_enough_finds_the_file_there(memory, flock):
    with two_writers(memory / "out", BIG) as (server, first, second):
        reached = threading.Event()
        server.become(bad.stalling(1 << 20, reached))
        first.start(BIG, flock=flock)
        assert reached.wait(20)
        second.start(BIG, flock=flock, patience={"lock_wait_s": 20})
        server.become(well)
        server.hang_up()
        assert first.end() == 0
        assert second.end() == 0
        assert first.path.read_bytes() == BIG.data
        assert sorted(path.name for path in first.folder.iterdir()) == [NAME]
        assert [asked.first_byte for asked in server.gets()] == [1 << 20]


@pytest.mark.parametrize("with_digest", [True, False], ids=["digest", "bare"])
@pytest.mark.parametrize("versions", [(ONE, ONE), (ONE, TWO)], ids=["one-version", "two-versions"])
@pytest.mark.parametrize("flock", ["lies", "is missing"])
def test_f68_two_writers_side_by_side_never_make_a_file_of_two(memory, flock, versions, with_digest):
    """Both are past the lock before either has written a byte, and their bytes then come in turns."""
    both_asked = threading.Barrier(2)
    in_turns = [threading.Barrier(2) for _ in range(10)]

    def answer(asked: Asked, version: Version) -> Answer:
        if asked.number < 2:
            both_asked.wait(20)
        turns = iter(in_turns if asked.number < 2 else ())

        def meet() -> None:
            turn = next(turns, None)
            with suppress(threading.BrokenBarrierError):
                if turn is not None:
                    turn.wait(1)

        return bad.in_pieces(SIZE // 10, meet, bad.serving(versions[asked.number % 2]))(asked, version)

    wanted = versions[0] if with_digest and versions[0] is versions[1] else None
    with two_writers(memory / "out", ONE) as (server, first, second):
        server.become(answer)
        first.start(wanted, flock=flock, patience=BRIEFLY)
        second.start(wanted, flock=flock, patience=BRIEFLY)
        codes = [first.end(), second.end()]
        assert set(codes) <= {0, 13, 14, 16}
        whole = [version.data for version in versions]
        if 0 in codes or first.path.exists():
            assert first.path.read_bytes() in whole
        server.become(well)
        assert first.run(ONE, flock=flock) == 0
        assert first.path.read_bytes() == ONE.data


@pytest.mark.parametrize("flock", FLOCKS)
def test_f69_the_lock_of_a_killed_holder_is_nobodys(memory, flock):
    with two_writers(memory / "out", BIG) as (server, first, second):
        reached = threading.Event()
        server.become(bad.stalling(1 << 20, reached))
        first.start(BIG, flock=flock)
        assert reached.wait(20)
        wait_until(lambda: any(path.stat().st_size == 1 << 20 for path in first.folder.iterdir()))
        first.kill()
        assert first.end() == -signal.SIGKILL
        server.become(well)
        assert second.run(BIG, flock=flock, patience=BRIEFLY) == 0
        assert second.path.read_bytes() == BIG.data
        assert [asked.first_byte for asked in server.gets()] == [1 << 20]
        assert sorted(path.name for path in first.folder.iterdir()) == [NAME]


@pytest.mark.parametrize("flock", FLOCKS)
def test_f69_a_holder_that_hangs_is_named_and_what_it_holds_is_left_alone(memory, flock):
    with two_writers(memory / "out", BIG) as (server, first, second):
        reached = threading.Event()
        server.become(bad.stalling(1 << 20, reached))
        first.start(BIG, flock=flock, read_s=60)
        assert reached.wait(20)
        first.kill(signal.SIGSTOP)
        assert second.run(BIG, flock=flock, patience=BRIEFLY) == 16
        first.kill(signal.SIGCONT)
        server.become(well)
        server.hang_up()
        assert first.end() == 0
        assert first.path.read_bytes() == BIG.data


def test_f69_whoever_waits_says_so_and_names_the_holder(memory):
    with open_lab(memory / "out") as lab, FileLock(lab.folder / f"{NAME}.lock", "something else"):
        with pytest.raises(LockHeld) as caught:
            lab.fetch(ONE, patience=DownloadTimeouts(lock_wait_s=5))
        assert caught.value.exit_code == 16
        assert [event.fields["phase"] for event in lab.events] == ["waiting"]
        assert lab.clock.monotonic_s() == pytest.approx(5, abs=0.2)
        assert lab.server.asked == []


def test_the_file_of_another_name_in_the_same_folder_is_not_waited_for(memory):
    with two_writers(memory / "out", BIG) as (server, first, second):
        reached = threading.Event()
        second.name = "other.bin"
        server.become(bad.at_first(1, bad.stalling(1 << 20, reached)))
        first.start(BIG)
        assert reached.wait(20)
        assert second.run(BIG, patience=BRIEFLY) == 0
        server.hang_up()
        assert first.end() == 0
        assert first.path.read_bytes() == second.path.read_bytes() == BIG.data


@pytest.mark.parametrize("flock", ["works", "lies", "is missing"])
def test_a_partial_left_under_one_kind_of_lock_is_gone_on_with_under_another(memory, flock):
    """A share that was mounted without locks yesterday has them today."""
    with FaultyServer(ONE) as server, Downloads(server, memory / "out") as downloads:
        for before in FLOCKS:
            server.become(bad.breaking_off(HALF))
            assert downloads.run(ONE, flock=before, patience=ONCE) == 14
            server.become(well)
            assert downloads.run(ONE, flock=flock) == 0
            assert [asked.first_byte for asked in server.gets()] == [HALF]
            downloads.path.unlink()
