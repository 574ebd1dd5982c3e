"""Trees with the coordinator: what is refused early, what a prune takes and spares, what is named when."""

from __future__ import annotations

import os
from io import BytesIO

import pytest

from stoker.coordinator.storage.attempt_files import CoordinatorStorageLimits, limits_for
from stoker.coordinator.storage.retention import CoordinatorPruner, QueueRecords, RetentionPolicy
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.coordinator.storage.tree_storage import (
    PINNED,
    WANTED,
    YOUNG,
    CoordinatorTrees,
    TreeRow,
    decide_trees,
    keep_own_tree,
)
from stoker.core.clock import FakeClock, SystemClock
from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes
from stoker.core.errors import BadInput, HashMismatch, NoSpace, NotFound, TooLarge, Unavailable
from stoker.protocol.tree_messages import frame, read_frames
from stoker.store.archives.archive_members import listing_bytes
from tests.fakes.trees import MemoryTrees

DAY_S = 86400.0
MIB = 1 << 20
ONE_FILE = Tree((TreeEntry("bundle", 200, digest_bytes(b"x" * 200)),))
LIMITS = CoordinatorStorageLimits(tree_bytes=100 * MIB, tree_files=3, free_floor_bytes=10 * MIB)


class Results(QueueRecords):
    """No results at all."""

    def __init__(self):
        """Need no database."""

    def bundles(self):
        return iter(())

    def mark_pruned(self, ids, *, by=""):
        return frozenset()

    def named(self, *, but=frozenset()):
        return frozenset()

    def is_live(self, job):
        return False


class Desk:
    def __init__(self, folder):
        self.clock = FakeClock(SystemClock().wall_s() + 10.0)
        self.free = 1 << 40
        self.keeping = CoordinatorStorage(folder, self.clock, limits=LIMITS, free_bytes=lambda _: self.free)
        self.trees = MemoryTrees(self.clock)
        self.contents = CoordinatorTrees(self.keeping, self.trees)
        self.pruning = CoordinatorPruner(self.keeping, Results(), self.contents)

    def bring(self, *files):
        tree = Tree(tuple(TreeEntry(f"f{n}", len(data), digest_bytes(data)) for n, data in enumerate(files)))
        self.contents.keep_pack(b"".join(frame(digest_bytes(data), data) for data in files))
        assert self.contents.keep_tree(tree.digest(), BytesIO(listing_bytes(tree))).missing == 0
        return tree

    def prune(self, **policy):
        return self.pruning.carry_out(self.pruning.look(RetentionPolicy(**policy)))

    def has(self, data):
        return self.keeping.has_archive(digest_bytes(data)) is not None


@pytest.fixture
def desk(tmp_path):
    desk = Desk(str(tmp_path / "fleet"))
    yield desk
    desk.keeping.close()


def test_a_tree_that_is_too_large_is_refused_by_what_it_says_of_itself(desk):
    assert desk.contents.want("0" * 64, files=3, size_bytes=100 * MIB) is None
    with pytest.raises(TooLarge, match=r"10\.0 GiB"):
        desk.contents.want("0" * 64, files=1, size_bytes=10 << 30)
    with pytest.raises(TooLarge, match="4 files"):
        desk.contents.want("0" * 64, files=4)
    # Also of who did not say it when the tree was wanted.
    with pytest.raises(TooLarge, match=r"101\.0 MiB") as caught:
        desk.contents.missing(["1" * 64, "2" * 64], (100 * MIB, MIB))
    assert "--upload-limit" in caught.value.hint
    large = Tree((TreeEntry("corpus.bin", 101 * MIB, Digest("1" * 64)),))
    with pytest.raises(TooLarge, match=r"101\.0 MiB"):
        desk.contents.keep_tree(large.digest(), BytesIO(listing_bytes(large)))


def test_a_limit_for_uploads_holds_for_trees_and_results_alike_and_the_usual_one_is_a_tebibyte():
    limits = limits_for(20 * MIB)
    assert (limits.tree_bytes, limits.archive_bytes) == (20 * MIB, 20 * MIB)
    assert limits_for(None) == CoordinatorStorageLimits()
    with pytest.raises(BadInput, match="lets no job's code come"):
        limits_for(1000)


def test_what_would_fill_the_disk_below_its_floor_is_refused_before_it_comes(desk):
    desk.free = 30 * MIB
    digests = ["1" * 64, "2" * 64]
    assert desk.contents.missing(digests, (10 * MIB, 10 * MIB)) == tuple(digests)
    with pytest.raises(NoSpace, match=r"20\.1 MiB"):
        desk.contents.missing(digests, (10 * MIB, 10 * MIB + 100_000))
    desk.free = 10 * MIB
    with pytest.raises(NoSpace):
        desk.contents.keep_pack(frame(digest_bytes(b"x"), b"x"))
    with pytest.raises(BadInput):
        desk.contents.missing(digests, (1,))


def test_a_tree_is_named_only_when_all_its_files_are_here(desk):
    data = os.urandom(100)
    tree = Tree((TreeEntry("f", 100, digest_bytes(data)),))
    assert desk.contents.keep_tree(tree.digest(), BytesIO(listing_bytes(tree))).missing == 1
    with pytest.raises(NotFound):
        desk.contents.listing(tree.digest())
    # A file of that digest, and of another size than the listing says, is not it either.
    wrong = Tree((TreeEntry("f", 99, digest_bytes(data)),))
    desk.contents.keep_pack(frame(digest_bytes(data), data))
    assert desk.contents.keep_tree(wrong.digest(), BytesIO(listing_bytes(wrong))).missing == 1
    assert desk.contents.keep_tree(tree.digest(), BytesIO(listing_bytes(tree))).missing == 0
    assert desk.contents.listing(tree.digest()) == listing_bytes(tree)
    with pytest.raises(HashMismatch):
        desk.contents.keep_tree("0" * 64, BytesIO(listing_bytes(tree)))


def test_frames_give_what_is_here_and_small(desk):
    desk.bring(b"one", b"", b"three")
    large = os.urandom(MIB + 1)
    upload = desk.keeping.bundles.begin(digest_bytes(large), len(large))
    desk.keeping.bundles.append(upload.id, 0, large)
    desk.keeping.bundles.finish(upload.id)
    wanted = [digest_bytes(data) for data in (b"three", b"not here", b"", large)]
    length, pieces = desk.contents.frames([*wanted, wanted[0]])
    whole = b"".join(pieces)
    assert len(whole) == length
    at = 0

    def read(count):
        nonlocal at
        piece = whole[at : at + count]
        at += len(piece)
        return piece

    assert list(read_frames(read)) == [(wanted[0], b"three"), (wanted[2], b"")]


def test_trees_go_when_no_job_needs_them_and_files_when_no_tree_does(desk):
    old = desk.bring(b"shared", b"old only")
    desk.clock.advance(8 * DAY_S)
    desk.bring(b"shared", b"new only")
    outlook = desk.pruning.look(RetentionPolicy())
    assert [removal.row.tree for removal in outlook.trees.removals] == [old.digest()]
    assert desk.has(b"old only")
    done = desk.pruning.carry_out(outlook)
    assert (done.trees, done.tree_bytes) == ((old.digest(),), outlook.freed_bytes)
    assert [desk.has(data) for data in (b"shared", b"old only", b"new only")] == [True, False, True]
    assert desk.contents.want(old.digest()) is None


def test_a_tree_that_a_job_needs_is_never_pruned(desk):
    tree = desk.bring(b"needed")
    desk.trees.needed.add(tree.digest())
    desk.clock.advance(1000 * DAY_S)
    assert desk.prune(trees_unused_s=0.0).trees == ()
    assert desk.has(b"needed")


def test_a_tree_that_is_wanted_after_the_look_stays(desk):
    tree = desk.bring(b"wanted")
    desk.clock.advance(8 * DAY_S)
    outlook = desk.pruning.look(RetentionPolicy())
    desk.trees.keep(tree.digest(), listing=desk.trees.rows[tree.digest()].listing, files=1, size_bytes=6)
    assert desk.pruning.carry_out(outlook).trees == ()
    assert desk.has(b"wanted")


def test_files_of_a_tree_that_is_just_being_named_are_spared(desk):
    old = desk.bring(b"shared")
    desk.clock.advance(8 * DAY_S)
    outlook = desk.pruning.look(RetentionPolicy())
    done = []
    desk.trees.before_keep = lambda: done.append(desk.pruning.carry_out(outlook))
    new = Tree((TreeEntry("another name", 6, digest_bytes(b"shared")),))
    desk.contents.keep_tree(new.digest(), BytesIO(listing_bytes(new)))
    assert done[0].trees == (old.digest(),)
    assert desk.has(b"shared")


def test_no_tree_is_named_whose_files_are_on_their_way_out(desk):
    desk.bring(b"going")
    digest = digest_bytes(b"going")
    tree = Tree((TreeEntry("x", 5, digest),))
    with desk.keeping.bundles.removing(frozenset({digest})):
        assert desk.contents.missing([digest]) == (digest,)
        assert desk.contents.keep_tree(tree.digest(), BytesIO(listing_bytes(tree))).missing == 1
        with pytest.raises(Unavailable):
            desk.contents.keep_pack(frame(digest, b"going"))


def test_files_that_no_tree_names_are_swept_after_a_day(desk):
    desk.contents.keep_pack(frame(digest_bytes(b"orphan"), b"orphan"))
    tree = desk.bring(b"named")
    desk.clock.advance(2 * DAY_S)
    desk.prune()
    assert (desk.has(b"orphan"), desk.has(b"named")) == (False, True)
    assert desk.contents.listing(tree.digest())


def test_why_trees_stay_is_told():
    def row(name, *, wanted_s=0.0, is_pinned=False):
        return TreeRow(tree=name, listing="", files=1, size_bytes=1, at_s=0.0, wanted_s=wanted_s, is_pinned=is_pinned)

    rows = [row("needed"), row("pinned", is_pinned=True), row("young", wanted_s=95.0), row("old")]
    decision = decide_trees(rows, frozenset({"needed"}), released={}, unused_s=10.0, now_s=100.0)
    assert [removal.row.tree for removal in decision.removals] == ["old"]
    assert decision.kept_by_reason == {WANTED: 1, PINNED: 1, YOUNG: 1}


def test_a_file_that_was_lost_can_come_again(desk):
    tree = desk.bring(b"lost", b"not lost")
    assert desk.contents.want(tree.digest()) is not None
    desk.keeping.objects.remove(digest_bytes(b"lost"))
    assert desk.contents.frames([digest_bytes(b"lost")])[0] == 0
    assert desk.contents.want(tree.digest()) is None
    assert desk.contents.missing([digest_bytes(b"lost"), digest_bytes(b"not lost")]) == (digest_bytes(b"lost"),)
    assert desk.bring(b"lost", b"not lost") == tree
    assert desk.contents.want(tree.digest()) is not None


@pytest.mark.parametrize(
    "keep",
    [
        lambda desk: desk.contents.keep_pack(frame(digest_bytes(b"x" * 200), b"x" * 200)),
        lambda desk: desk.contents.missing([digest_bytes(b"x")], (200,)),
        lambda desk: desk.keeping.append("a" * 64, 1, "logs/train.log", 0, b"x" * 200),
        lambda desk: desk.keeping.append("a" * 64, 1, "end.json", 0, b"x" * 200),
        lambda desk: desk.keeping.bundles.begin("a" * 64, 200, owner="machine lab1"),
        lambda desk: keep_own_tree(desk.contents, desk.keeping.objects, ONE_FILE, lambda _: BytesIO(b"x" * 200), "m"),
        lambda desk: desk.keeping.bundles.append(desk.begun, 0, b"x" * 200),
        lambda desk: desk.contents.keep_tree(desk.listed[0], BytesIO(desk.listed[1])),
    ],
    ids=["pack", "files", "log", "end", "upload", "model", "piece", "listing"],
)
def test_whatever_is_kept_leaves_the_floor_of_the_disk_free(desk, keep):
    tree = Tree(tuple(TreeEntry(f"{'f' * 200}{n}", 1, digest_bytes(b"y")) for n in range(3)))
    desk.contents.keep_pack(frame(digest_bytes(b"y"), b"y"))
    desk.listed = (tree.digest(), listing_bytes(tree))
    desk.begun = desk.keeping.bundles.begin("b" * 64, 200).id
    desk.free = LIMITS.free_floor_bytes + 199
    with pytest.raises(NoSpace, match="do not fit"):
        keep(desk)
