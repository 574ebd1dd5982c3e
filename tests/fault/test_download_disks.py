"""F62, F63, F71: disks that are full, can't be written, fail, or lose the folder under a download."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.core.errors import NoPermission, NoSpace
from stoker.host.resources import SPARE_BYTES, free_bytes
from tests.fault.download_lab import HALF, ONE, PLENTY, SIZE, open_lab
from tests.fault.download_parent import Downloads
from tests.servers import habits as bad
from tests.servers.faulty import FaultyServer, Version, well
from tests.unit.host.real_mounts import small_disk
from tests.unit.host.real_processes import code_of, fork, wait_until

BLOCK = 4096


def fill_up(disk: Path, leave_bytes: int) -> Path:
    """Use a disk up but for so much."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        status = os.statvfs(disk)
        file.write(b"\0" * max(0, status.f_bavail * status.f_frsize - leave_bytes))
    return filler


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        yield disk


def test_f62_what_can_not_fit_is_refused_before_a_byte_of_it_is_written(memory):
    with open_lab(memory / "out") as lab:
        lab.free_bytes = lambda path: SIZE + SPARE_BYTES - 1
        with pytest.raises(NoSpace) as caught:
            lab.fetch(ONE)
        assert caught.value.exit_code == 10
        assert not lab.partial.exists() or lab.partial.stat().st_size == 0
        assert lab.has() is None
        lab.free_bytes = lambda path: SIZE + SPARE_BYTES
        lab.fetch(ONE)
        assert lab.has() == ONE.data


def test_f62_a_resume_needs_room_for_the_rest_only(memory):
    with open_lab(memory / "out") as lab:
        lab.interrupt(HALF, ONE)
        lab.server.become(well)
        lab.free_bytes = lambda path: SIZE - HALF + SPARE_BYTES
        lab.fetch(ONE)
        assert lab.has() == ONE.data


def test_f62_a_forced_start_from_zero_counts_room_again(memory):
    """What the partial file holds is given back when it is thrown away, so it counts as room."""
    with open_lab(memory / "out") as lab:
        lab.interrupt(HALF, ONE)
        lab.server.become(bad.to_resumes(bad.ignores_ranges))
        # As a disk behaves: what the partial file takes is not free.
        size = lambda: lab.partial.stat().st_size if lab.partial.exists() else 0  # noqa: E731
        lab.free_bytes = lambda path: SIZE + SPARE_BYTES - 3 * BLOCK - size()
        with pytest.raises(NoSpace):
            lab.fetch(ONE)
        assert lab.has() is None
        lab.free_bytes = lambda path: SIZE + SPARE_BYTES - size()
        lab.fetch(ONE)
        assert lab.has() == ONE.data


@pytest.mark.parametrize("with_digest", [True, False], ids=["digest", "bare"])
def test_f62_a_disk_that_fills_at_any_block_is_named_and_the_next_run_finishes(disk, with_digest):
    """The space is there when it is counted, and somebody else takes it."""
    wanted = ONE if with_digest else None
    blocks = -(-SIZE // BLOCK)
    with open_lab(disk / "out") as lab:
        lab.free_bytes = lambda path: PLENTY
        for left in [*range(6), *range(6, blocks, 9), blocks - 1, blocks, blocks + 1]:
            filler = fill_up(disk, left * BLOCK)
            code = lab.code(wanted)
            assert (code, lab.has()) in ((0, ONE.data), (10, None))
            filler.unlink()
            lab.fetch(wanted)
            assert lab.has() == ONE.data
            assert lab.leftovers() == []
            lab.path.unlink()


def test_f62_a_disk_without_a_free_inode_is_named(tmp_path):
    with small_disk(tmp_path / "disk", "size=2m,nr_inodes=30") as disk, open_lab(disk / "out") as lab:
        for left in range(5):
            fillers: list[Path] = []
            while os.statvfs(disk).f_favail > left:
                fillers.append(disk / f"filler-{len(fillers)}")
                fillers[-1].touch()
            code = lab.code(ONE)
            assert (code, lab.has()) in ((0, ONE.data), (10, None))
            for filler in fillers:
                filler.unlink()
            lab.fetch(ONE)
            assert lab.has() == ONE.data
            lab.path.unlink()


FAILING = ("ENOSPC", "EDQUOT", "EIO")
CALLS = ("pwrite", "fsync", "fdatasync", "rename", "replace")


@pytest.mark.parametrize("number", FAILING)
@pytest.mark.parametrize("had", [0, HALF], ids=["fresh", "resumed"])
def test_f62_f71_a_call_that_fails_once_anywhere_leaves_all_or_nothing_and_the_next_run_finishes(
    memory, monkeypatch, number, had
):
    """At every write, sync and rename in turn: of the sidecar, of the bytes, of the name."""
    errno_of_it = getattr(errno, number)
    left = itertools.count()
    fatal = -1

    def failing(name: str):
        call = getattr(os, name)

        def counted(*args: object, **options: object) -> object:
            if next(left) == fatal:
                raise OSError(errno_of_it, os.strerror(errno_of_it))
            return call(*args, **options)

        return counted

    with open_lab(memory / "out") as lab:
        for name in CALLS:
            monkeypatch.setattr(os, name, failing(name))
        for moment in itertools.count():
            fatal = -1
            if had:
                lab.interrupt(had, ONE)
                lab.server.become(well)
            left, fatal = itertools.count(), moment
            code = lab.code(ONE)
            assert code in ((0, 10) if number != "EIO" else (0, 16))
            assert lab.has() == ONE.data if code == 0 else lab.has() in (None, ONE.data)
            was_reached = next(left) > fatal
            fatal = -1
            lab.fetch(ONE)
            assert lab.has() == ONE.data
            assert lab.leftovers() == []
            lab.path.unlink()
            if not was_reached:
                break
        assert moment > 4


@pytest.mark.parametrize("times", [1, 99], ids=["once", "always"])
def test_f71_what_a_failed_sync_may_have_lost_is_never_named(memory, monkeypatch, times):
    """After a failed sync the kernel forgets that the pages were dirty, and a second sync succeeds on nothing."""
    with open_lab(memory / "out") as lab:
        left = [times]

        def failing(sync: Callable[[int], None]) -> Callable[[int], None]:
            def fail(descriptor: int) -> None:
                if left[0] and os.fstat(descriptor).st_size == SIZE:
                    left[0] -= 1
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                sync(descriptor)

            return fail

        monkeypatch.setattr(os, "fsync", failing(os.fsync))
        monkeypatch.setattr(os, "fdatasync", failing(os.fdatasync))
        code = lab.code(ONE)
        assert (code, lab.has()) == ((0, ONE.data) if times == 1 else (16, None))
        assert [asked.first_byte for asked in lab.server.gets()] == [0, 0]
        left = [0]
        lab.fetch(ONE)
        assert lab.has() == ONE.data


def test_f63_a_read_only_disk_is_named_and_nothing_is_asked(disk):
    (disk / "out").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with open_lab(disk / "out") as lab:
        with pytest.raises(NoPermission) as caught:
            lab.fetch(ONE)
        assert caught.value.exit_code == 16
        assert lab.server.gets() == []


def test_f63_a_folder_of_somebody_else_is_named(open_path):
    if os.getuid() != 0:
        pytest.skip("becoming another user is not permitted here")
    folder = open_path / "out"
    folder.mkdir(mode=0o755)

    def as_nobody() -> None:
        os.setgid(65534)
        os.setuid(65534)
        with open_lab(folder) as lab:
            try:
                lab.fetch(ONE)
            except NoPermission as error:
                os._exit(error.exit_code)

    assert code_of(fork(as_nobody)) == 16
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_f63_a_folder_that_vanishes_on_the_way_is_told_and_nothing_appears_elsewhere(memory, how):
    reached = threading.Event()
    with open_lab(memory / "out") as lab:
        folder = lab.folder

        def vanish() -> None:
            if reached.is_set():
                return
            wait_until(lambda: lab.partial.exists() and lab.partial.stat().st_size == HALF)
            reached.set()
            if how == "moved":
                folder.rename(memory / "moved")
            else:
                shutil.rmtree(folder)
            if how == "replaced":
                folder.mkdir()

        lab.server.become(bad.in_pieces(SIZE, vanish, start=HALF))
        code = lab.code(ONE)
        assert not lab.path.exists()
        # Moved is no fault: the folder is held, and the file is whole where the folder is now.
        assert code in ((0, 16) if how == "moved" else (16,))
        if code == 0:
            assert (memory / "moved" / lab.path.name).read_bytes() == ONE.data
        assert reached.is_set()
        lab.server.become(well)
        folder.mkdir(exist_ok=True)
        lab.fetch(ONE)
        assert lab.has() == ONE.data


def test_f62_a_full_disk_in_a_real_process_ends_with_its_exit_code(tmp_path):
    version = Version(data=ONE.data * 10)
    with (
        small_disk(tmp_path / "disk", "size=2m") as disk,
        FaultyServer(version) as server,
        Downloads(server, disk / "out") as downloads,
    ):
        assert downloads.run(version) == 10
        assert server.gets() == [] or downloads.partial_bytes() == 0
        assert downloads.run(version, counts_space=False) == 10
        kept = downloads.partial_bytes()
        assert kept > 0
        assert version.data.startswith(downloads.partial.read_bytes())
        assert not downloads.path.exists()
        assert free_bytes(disk) < 64 * BLOCK
        subprocess.run(["mount", "-o", "remount,size=80m", str(disk)], check=True)
        server.become(well)
        assert downloads.run(version) == 0
        assert downloads.path.read_bytes() == version.data
        assert [asked.first_byte for asked in server.gets()] == [kept]
