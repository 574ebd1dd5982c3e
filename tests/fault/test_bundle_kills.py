"""Kill -9 at every step of putting an archive, disks that fill up, and memory that must not grow."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.core.errors import InvalidArchive, NoSpace
from stoker.host.durable import NO_STEP, remove_tree
from stoker.store.archives.unpack import unpack
from stoker.store.local_store import RecordHit
from stoker.store.put import PutRequest, StoredTree, StoreWriter
from tests.fault.test_store_kills import (
    Countdown,
    assert_nothing_is_torn,
    assert_rubbish_is_swept,
    memory,
    survives,
)
from tests.lengths import examples, moments
from tests.unit.host.real_mounts import small_disk
from tests.unit.store.hostile_archives import file, packed, squeezed, tar
from tests.unit.store.real_stores import BIG, clock_of_now, fill, make_store, put_contents

__all__ = ["memory"]

ROOT = Path(__file__).parents[2]
FILES = {"model": b"m" * BIG, "sub/data": b"d" * BIG, "notes": b"small"}


def put_archive(root: Path, path: Path, on_step: Callable[[str], None] = NO_STEP) -> StoredTree:
    store = make_store(root, on_step=on_step)
    putting = StoreWriter(store, clock=clock_of_now(), heed=lambda _: None, on_step=on_step)
    return putting.put_unpacked(str(path), PutRequest(name="data"))


def test_putting_an_archive_killed_at_any_step_leaves_all_or_nothing_and_can_be_repeated(memory):
    fill(memory / "tree", FILES)
    (memory / "tree/link").symlink_to("sub/data")
    bundle, archive = packed(memory / "tree")
    (memory / "a.tar.zst").write_bytes(archive)
    for moment in moments():
        root = memory / str(moment)
        make_store(root).close()

        def keep(root: Path = root, moment: int = moment) -> None:
            countdown = Countdown(moment)
            countdown.watch_calls()
            put_archive(root, memory / "a.tar.zst", countdown)

        ended = survives(keep)
        store = make_store(root)
        assert_nothing_is_torn(store)
        assert_rubbish_is_swept(store)
        done = put_archive(root, memory / "a.tar.zst")
        assert done.ref.digest == bundle.tree_digest
        assert isinstance(store.lookup(done.ref.key), RecordHit)
        assert put_contents(store, "data") == FILES
        store.close()
        remove_tree(root)
        if ended:
            assert moment > 10
            return


@pytest.mark.parametrize("size", ["size=200k", "size=1m,nr_inodes=20"], ids=["bytes", "names"])
def test_unpacking_onto_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, size: str) -> None:
    numbers = random.Random(6)
    archive = squeezed(tar(*(file(f"d{number}/f", numbers.randbytes(20_000)) for number in range(30))))
    with small_disk(tmp_path / "disk", size) as disk:
        with pytest.raises(NoSpace):
            unpack(io.BytesIO(archive), str(disk / "out"))
        assert os.listdir(disk) == []


def test_after_a_fault_nothing_is_written_any_more(tmp_path: Path) -> None:
    archive = tar(file("../evil"), file("large", bytes(2_000_000)))
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        with pytest.raises(InvalidArchive):
            unpack(io.BytesIO(archive), str(disk / "out"))
        assert os.listdir(disk) == []


MEASURED = """
import sys
from stoker.store.archives.pack import pack
from stoker.store.archives.unpack import unpack
from tests.unit.store.hostile_archives import folder_sources
what, folder = sys.argv[1:]
if what == "pack":
    with open(folder + ".zst", "wb") as sink:
        pack(folder_sources(folder), sink, workers=2)
else:
    with open(folder + ".zst", "rb") as stream:
        unpack(stream, folder + ".out")
with open("/proc/self/status") as status:
    # Not what `getrusage` says: that begins with what the parent had.
    print(next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is read from /proc")
def test_memory_stays_flat_whatever_the_size_of_a_file(memory):
    """Two sorts of content: one that shrinks to nothing, and one that does not shrink at all."""
    top = memory / "tree"
    top.mkdir()
    with open(top / "zeros", "wb") as zeros:
        zeros.truncate(examples(128, 200) << 20)
    numbers = random.Random(8)
    with open(top / "noise", "wb") as noise:
        noise.writelines(numbers.randbytes(1 << 20) for _ in range(examples(24, 48)))
    for what in ("pack", "unpack"):
        command = [sys.executable, "-c", MEASURED, what, str(top)]
        measured = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        assert int(measured.stdout) <= 100, f"{what}: {measured.stdout} MB"
