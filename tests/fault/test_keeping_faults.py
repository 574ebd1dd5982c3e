"""What is kept for a fleet: on full disks, through kill -9 at every step, and while some finish and others prune."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from stoker.coordinator.storage.attempt_files import AttemptFiles, CoordinatorStorageLimits
from stoker.coordinator.storage.retention import BundleRow, CoordinatorPruner, QueueRecords, RetentionPolicy
from stoker.coordinator.storage.storage import Bundles, CoordinatorStorage
from stoker.coordinator.storage.tree_storage import CoordinatorTrees
from stoker.core.clock import FakeClock, SystemClock
from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes
from stoker.core.errors import NoSpace, Unavailable
from stoker.core.frozen import changed
from stoker.core.leases import AttemptToken
from stoker.host.durable import remove_tree
from stoker.protocol.tree_messages import frame
from stoker.store.archives.archive_members import listing_bytes
from stoker.transfer.mirror import AttemptFolderSync, AttemptFolderSyncSettings
from tests.fakes.fleet_line import KeptLine
from tests.fakes.trees import MemoryTrees
from tests.fault.test_store_disks import use_up
from tests.fault.test_store_kills import Countdown, survives
from tests.lengths import moments
from tests.unit.host.real_mounts import small_disk

JOB = digest_bytes(b"a job")
TOKEN = AttemptToken(job=JOB, attempt=1, epoch=1, generation=1)
NO_FLOOR = CoordinatorStorageLimits(free_floor_bytes=0)
TEXT = random.Random(3).randbytes(300_000)


def test_a_full_disk_takes_all_of_a_piece_or_nothing(tmp_path):
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        files = AttemptFiles(str(disk / "attempts"))
        files.append(JOB, 1, "logs/a.log", 0, TEXT[:1000])
        # Room for some of the next piece, and not for all.
        (disk / "filler").write_bytes(b"\0" * (800 << 10))
        with pytest.raises(NoSpace):
            files.append(JOB, 1, "logs/a.log", 1000, TEXT[1000:])
        assert files.read(JOB, 1, "logs/a.log", 0, 1 << 20) == TEXT[:1000]
        use_up(disk)
        for path in ("end.json", "logs/new.log", "fresh/new.log"):
            with pytest.raises(NoSpace):
                files.append(JOB, 1, path, 0, b"x" * 5000)
        assert files.size(JOB, 1, "end.json") is None
        # Known bytes need no room.
        assert files.append(JOB, 1, "logs/a.log", 0, TEXT[:1000]) == 1000
        os.unlink(disk / "filler")
        assert files.append(JOB, 1, "logs/a.log", 1000, TEXT[1000:]) == len(TEXT)
        assert files.append(JOB, 1, "end.json", 0, b"{}") == 2
        left = {file.path for file in files.files(JOB, 1) if file.size_bytes}
        assert left == {"end.json", "logs/a.log"}


def test_a_mirror_outlasts_a_coordinator_s_full_disk(tmp_path):
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "a.log").write_bytes(TEXT)
    (run / "end.json").write_bytes(b"{}")
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        clock = FakeClock()
        keeping = CoordinatorStorage(str(disk / "fleet"), clock, limits=NO_FLOOR)
        mirror = AttemptFolderSync(
            str(run),
            TOKEN,
            KeptLine(keeping).client,
            clock=clock,
            settings=AttemptFolderSyncSettings(longest_pause_s=0.01),
        )
        use_up(disk)
        for _ in range(5):
            assert mirror.ship() > 0
        assert not mirror.drain(clock.monotonic_s())
        os.unlink(disk / "filler")
        assert mirror.drain(clock.monotonic_s() + 60)
        assert keeping.attempt_files.read(JOB, 1, "logs/a.log", 0, 1 << 20) == TEXT
        assert keeping.attempt_files.read(JOB, 1, "end.json", 0, 10) == b"{}"
        keeping.close()


def test_an_upload_goes_on_when_a_full_disk_has_room_again(tmp_path):
    sha = hashlib.sha256(TEXT).hexdigest()
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        keeping = CoordinatorStorage(str(disk / "fleet"), FakeClock(), limits=NO_FLOOR)
        upload = keeping.bundles.begin(sha, len(TEXT))
        keeping.bundles.append(upload.id, 0, TEXT[:1000])
        use_up(disk)
        with pytest.raises(NoSpace):
            keeping.bundles.append(upload.id, 1000, TEXT[1000:])
        with pytest.raises(NoSpace):
            keeping.bundles.begin("1" * 64, len(TEXT))
        os.unlink(disk / "filler")
        again = keeping.bundles.begin(sha, len(TEXT))
        keeping.bundles.append(again.id, again.offset, TEXT[again.offset :])
        keeping.bundles.finish(again.id)
        assert keeping.has_archive(sha) == len(TEXT)
        keeping.close()


PIECES = [("logs/a.log", TEXT[:5000]), ("metrics/a.skm", TEXT[5000:9000]), ("logs/a.log", TEXT[9000:20_000])]
WHOLE = {"logs/a.log": TEXT[:5000] + TEXT[9000:20_000], "metrics/a.skm": TEXT[5000:9000], "end.json": b"{}"}


def ship(files: AttemptFiles) -> None:
    """What a worker does: it asks where each file is, and goes on from there."""
    for path in ("logs/a.log", "metrics/a.skm", "end.json"):
        at = files.append(JOB, 1, path, 0, b"") if path != "end.json" else files.size(JOB, 1, path) or 0
        while at < len(WHOLE[path]):
            at = files.append(JOB, 1, path, at, WHOLE[path][at : at + 4000])


def die_in_the_middle_of_a_write(countdown: Countdown) -> None:
    real = os.pwrite

    def pwrite(descriptor, data, offset):
        real(descriptor, bytes(data)[: len(data) // 2], offset)
        countdown()
        return real(descriptor, data, offset)

    os.pwrite = pwrite


def test_killed_at_every_step_a_mirror_is_a_beginning_and_an_end_means_all_of_it(memory):
    for moment in moments():
        folder = memory / str(moment)

        def until(folder: Path = folder, moment: int = moment) -> None:
            countdown = Countdown(moment)
            die_in_the_middle_of_a_write(countdown)
            ship(AttemptFiles(str(folder), on_step=countdown))

        ended = survives(until)
        files = AttemptFiles(str(folder))
        kept = {file.path: files.read(JOB, 1, file.path, 0, 1 << 20) for file in files.files(JOB, 1)}
        for path, data in kept.items():
            assert WHOLE[path].startswith(data)
        if "end.json" in kept:
            assert kept == WHOLE
        ship(files)
        assert {file.path: files.read(JOB, 1, file.path, 0, 1 << 20) for file in files.files(JOB, 1)} == WHOLE
        remove_tree(folder)
        if ended:
            assert moment > 8
            return


class Database(QueueRecords):
    """A queue's writer as far as results go: one thing after another, and a row only for bytes that are there."""

    def __init__(self, keeping: CoordinatorStorage) -> None:
        self.keeping = keeping
        self.rows: dict[int, BundleRow] = {}
        self.pruned: set[int] = set()
        self.lock = threading.Lock()
        self.trees = MemoryTrees(keeping.clock)
        self.contents = CoordinatorTrees(keeping, self.trees)

    def pruner(self) -> CoordinatorPruner:
        return CoordinatorPruner(self.keeping, self, self.contents)

    def finish(self, sha: str = "", tree: str = "") -> bool:
        """Let a job name an archive or a tree, if it is there: the check, then, a moment later, the row."""
        with self.lock:
            size = self.keeping.has_archive(sha) if sha else self._size_of(tree)
            if size is None:
                return False
            id_ = len(self.rows) + 1
            self.rows[id_] = BundleRow(
                id=id_,
                job=JOB,
                name="a",
                attempt=id_,
                tree=tree,
                archive_sha256=sha,
                size_bytes=size,
                at_s=self.keeping.clock.wall_s() - 1.0,
                is_pinned=False,
            )
            return True

    def _size_of(self, tree: str) -> int | None:
        """Return the size of a tree, as `stored_sizes` does."""
        row = self.trees.find(tree)
        if row is None or self.keeping.bundles.is_going(tree) or self.keeping.has_archive(row.listing) is None:
            return None
        return row.size_bytes

    def bundles(self):
        with self.lock:
            return iter([row for row in self.rows.values() if row.id not in self.pruned])

    def mark_pruned(self, ids, *, by=""):
        with self.lock:
            self.pruned |= set(ids)
        return frozenset(ids)

    def named(self, *, but=frozenset()):
        rows = [row for row in self.bundles() if row.id not in but]
        return frozenset(row.archive_sha256 for row in rows) | frozenset(row.tree for row in rows)

    def is_live(self, _job):
        return False

    def lies(self) -> list[int]:
        """Return the rows that name bytes which are not there."""
        return [row.id for row in self.bundles() if not self._is_whole(row)]

    def _is_whole(self, row: BundleRow) -> bool:
        size_of = self.keeping.objects.size
        if row.archive_sha256:
            return size_of(Digest(row.archive_sha256)) is not None
        tree = self.trees.find(row.tree)
        return tree is not None and all(size_of(Digest(one)) is not None for one in self.contents.files_of(tree))


EVERYTHING = RetentionPolicy(older_than_s=0.0, keep_last=0)


def bring(bundles: Bundles, data: bytes) -> str:
    sha = hashlib.sha256(data).hexdigest()
    upload = bundles.begin(sha, len(data))
    if not upload.is_known:
        if upload.offset < len(data):
            bundles.append(upload.id, upload.offset, data[upload.offset :])
        bundles.finish(upload.id)
    return sha


def bring_tree(contents: CoordinatorTrees, *files: bytes) -> str:
    """Bring a tree as a worker does."""
    tree = Tree(tuple(TreeEntry(f"f{n}", len(data), digest_bytes(data)) for n, data in enumerate(files)))
    if contents.want(tree.digest()) is None:
        contents.keep_pack(b"".join(frame(digest_bytes(data), data) for data in files))
        contents.keep_tree(tree.digest(), io.BytesIO(listing_bytes(tree)))
    return tree.digest()


@pytest.mark.parametrize("is_tree", [False, True], ids=["archive", "tree"])
def test_no_record_without_bytes_while_some_finish_and_others_prune(memory, is_tree):
    """Equal results come again and again while a prune takes them away; each time both sides see the same truth."""
    keeping = CoordinatorStorage(str(memory / "fleet"), SystemClock(), limits=NO_FLOOR)
    database = Database(keeping)
    pruning = database.pruner()
    is_over = threading.Event()
    pruned = 0

    def prune() -> None:
        nonlocal pruned
        while not is_over.is_set():
            pruned += pruning.carry_out(pruning.look(EVERYTHING)).objects

    thread = threading.Thread(target=prune)
    thread.start()
    finished = 0
    until_s = SystemClock().monotonic_s() + 60
    try:
        for number in itertools.count():
            if (number > 200 and finished > 20 and pruned > 5) or SystemClock().monotonic_s() > until_s:
                break
            try:
                data = b"result %d" % (number % 3)
                if is_tree:
                    finished += database.finish(tree=bring_tree(database.contents, data, b"shared"))
                else:
                    finished += database.finish(bring(keeping.bundles, data))
            except Unavailable:
                continue
    finally:
        is_over.set()
        thread.join()
    assert finished > 20
    assert pruned > 5
    assert database.lies() == []
    keeping.close()


@pytest.mark.parametrize("dies", ["before the marks", "between marks and bytes", "between bytes and bytes"])
def test_a_prune_that_is_killed_leaves_bytes_without_a_name_and_never_the_other_way(memory, dies):
    folder = str(memory / "fleet")
    clock = SystemClock()
    keeping = CoordinatorStorage(folder, clock, limits=NO_FLOOR)
    database = Database(keeping)
    for number in range(3):
        database.finish(bring(keeping.bundles, b"result %d" % number))
    keeping.close()
    marks = memory / "marks"

    def die_on_the_way() -> None:
        ours = CoordinatorStorage(folder, clock, limits=NO_FLOOR)
        records = Marking(ours, database.rows, marks, dies)
        pruning = records.pruner()
        if dies == "between bytes and bytes":
            countdown = Countdown(1)
            remove = os.unlink

            def unlink(*args: Any, **named: Any) -> None:
                countdown()
                remove(*args, **named)

            os.unlink = unlink
        pruning.carry_out(pruning.look(EVERYTHING))

    assert not survives(die_on_the_way)
    keeping = CoordinatorStorage(folder, clock, limits=NO_FLOOR)
    records = Marking(keeping, database.rows, marks, "")
    assert records.lies() == []
    pruning = records.pruner()
    pruning.carry_out(pruning.look(EVERYTHING))
    assert records.lies() == []
    # What lost its name before the kill is swept once it is old enough.
    keeping.close()
    late = CoordinatorStorage(folder, FakeClock(clock.wall_s() + 30 * 86400), limits=NO_FLOOR)
    pruning = Marking(late, database.rows, marks, "").pruner()
    pruning.carry_out(pruning.look(EVERYTHING))
    assert list(late.objects.list()) == []
    late.close()


class Marking(Database):
    """A database whose marks are in a file, so that they outlive the process."""

    def __init__(self, keeping: CoordinatorStorage, rows: dict[int, BundleRow], marks: Path, dies: str) -> None:
        super().__init__(keeping)
        self.rows = {id_: changed(row) for id_, row in rows.items()}
        self.marks = marks
        self.dies = dies
        if marks.exists():
            self.pruned = set(map(int, marks.read_text().split()))

    def mark_pruned(self, ids, *, by=""):
        if self.dies == "before the marks":
            os.kill(os.getpid(), signal.SIGKILL)
        self.marks.write_text(" ".join(map(str, ids)))
        if self.dies == "between marks and bytes":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().mark_pruned(ids)
