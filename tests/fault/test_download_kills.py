"""F64: kill -9 on the way and at every step of the commit; the next run goes on, and ends bit for bit the same."""

from __future__ import annotations

import itertools
import signal
import threading
from pathlib import Path

import pytest

from tests.fault.download_lab import random_bytes
from tests.fault.download_parent import ONCE, Downloads
from tests.lengths import moments
from tests.servers import habits as bad
from tests.servers.faulty import Answer, Asked, FaultyServer, Habit, Version, well
from tests.unit.host.real_processes import wait_until

MIB = 1 << 20
BLOCK_BYTES = MIB // 4
"""Of the downloads past the page cache here: as many blocks of less, which are written in the same order."""
WHOLE = Version(data=random_bytes(8 * MIB, 5))
BLOCKS = Version(data=WHOLE.data[: BLOCK_BYTES * 5 // 2])
DIRECT = {"direct_bytes": 0, "block_bytes": BLOCK_BYTES}
SMALL = Version(data=random_bytes(200_000, 6))
LARGE = Version(data=random_bytes(1_200_000, 6))


def until_byte(place: int, reached: threading.Event) -> Habit:
    """Send the file up to one of its bytes, whatever range is asked for, and then nothing more."""

    def answer(asked: Asked, version: Version) -> Answer:
        return bad.stalling(max(0, place - asked.first_byte), reached)(asked, version)

    return answer


def kill_at_every(step: int, folder: Path, *, with_digest: bool, is_direct: bool) -> None:
    wanted = WHOLE if with_digest else None
    order = DIRECT if is_direct else {}
    # What was received and is not written yet is lost: less than one piece, or less than one block.
    lag = MIB + (BLOCK_BYTES if is_direct else 0)
    with FaultyServer(WHOLE) as server, Downloads(server, folder / "out") as downloads:
        had = 0
        for place in range(step, len(WHOLE.data), step):
            reached = threading.Event()
            server.become(until_byte(place, reached))
            downloads.start(wanted, **order)
            assert reached.wait(20)
            wait_until(lambda: downloads.partial.exists() and downloads.partial_bytes() > place - lag)  # noqa: B023 - called within the turn
            downloads.kill()
            assert downloads.end() == -signal.SIGKILL
            assert not downloads.path.exists()
            assert [asked.first_byte for asked in server.gets()] == [had]
            had = downloads.partial_bytes()
            assert place - lag < had <= place
            assert WHOLE.data.startswith(downloads.partial.read_bytes())
        server.become(well)
        assert downloads.run(wanted, **order) == 0
        assert [asked.first_byte for asked in server.gets()] == [had]
        assert downloads.path.read_bytes() == WHOLE.data
        assert sorted(path.name for path in downloads.folder.iterdir()) == ["model.bin"]


WAYS = pytest.mark.parametrize(
    ("with_digest", "is_direct"), [(True, False), (False, False), (True, True)], ids=["digest", "bare", "direct"]
)


@WAYS
def test_a_download_killed_at_every_mebibyte_goes_on_where_it_was(disk, with_digest, is_direct):
    kill_at_every(MIB, disk, with_digest=with_digest, is_direct=is_direct)


@pytest.mark.slow
@WAYS
def test_a_download_killed_at_every_64_kibibytes_goes_on_where_it_was(disk, with_digest, is_direct):
    kill_at_every(MIB // 16, disk, with_digest=with_digest, is_direct=is_direct)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("does", "ends"), [("SIGKILL", -signal.SIGKILL), ("ENOSPC", 10)])
def test_a_download_past_the_page_cache_that_dies_at_any_call_can_be_repeated(disk, every, does, ends):
    calls = ["pwrite", "fsync", "fdatasync", "rename", "unlink"]
    with FaultyServer(BLOCKS) as server, Downloads(server, disk / "out") as downloads:
        for moment in itertools.count(0, every):
            at = {"left": moment, "does": does, "steps": False, "calls": calls}
            code = downloads.run(BLOCKS, **DIRECT, at=at)
            assert code in (0, ends)
            assert not downloads.path.exists() or downloads.path.read_bytes() == BLOCKS.data
            # A failed removal of what nobody needs any more is no failure of the download.
            if code == 0 and moment > 30:
                break
            assert downloads.run(BLOCKS, **DIRECT) == 0
            assert downloads.path.read_bytes() == BLOCKS.data
            downloads.path.unlink()


@pytest.mark.parametrize("version", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("had", [0, 50_000], ids=["fresh", "resumed"])
def test_a_download_killed_at_every_step_leaves_all_or_nothing_and_can_be_repeated(memory, version, had):
    with FaultyServer(version) as server, Downloads(server, memory) as downloads:
        for moment in moments():
            downloads.into(memory / str(moment))
            # A digest every other time: the steps are the same.
            wanted = version if moment % 2 else None
            if had:
                server.become(bad.breaking_off(had))
                assert downloads.run(wanted, patience=ONCE) == 14
            server.become(well)
            code = downloads.run(wanted, at={"left": moment, "does": "SIGKILL"})
            assert code in (0, -signal.SIGKILL)
            assert not downloads.path.exists() or downloads.path.read_bytes() == version.data
            if code == 0:
                assert downloads.path.exists()
                break
            assert downloads.run(wanted) == 0
            assert downloads.path.read_bytes() == version.data
            assert all(is_explained(path.name) for path in downloads.folder.iterdir())
    assert moment > 8


def test_a_replacement_killed_at_every_step_shows_the_old_file_or_the_new_one(memory):
    """What was there stays until the new bytes are whole, checked and durable."""
    old = random_bytes(90_000, 7)
    with FaultyServer(LARGE) as server, Downloads(server, memory) as downloads:
        for moment in moments():
            downloads.into(memory / str(moment))
            downloads.path.write_bytes(old)
            code = downloads.run(LARGE, at={"left": moment, "does": "SIGKILL"})
            assert code in (0, -signal.SIGKILL)
            assert downloads.path.read_bytes() in (old, LARGE.data)
            if code == 0:
                break
    assert moment > 8


def is_explained(name: str) -> bool:
    """Return whether a file may lie in a folder after a run was killed and another one finished.

    The record of a partial file that has its final name already is removed by the next run that has to write.
    """
    return name in ("model.bin", "model.bin.part.json") or name.startswith(".stoker-tmp-")
