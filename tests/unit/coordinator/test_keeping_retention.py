"""What a prune of a fleet's results takes, decided and carried out: marked first, then gone."""

from __future__ import annotations

import hashlib
import os
from io import BytesIO

import pytest

from stoker.coordinator.storage.models import IngestRecord
from stoker.coordinator.storage.retention import (
    NEWEST,
    ORPHAN_GRACE_S,
    AttemptLogs,
    BundleRow,
    CoordinatorPruner,
    QueueRecords,
    RetentionPolicy,
    decide_logs,
    decide_retention,
)
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.coordinator.storage.tree_storage import PINNED, CoordinatorTrees
from stoker.core.clock import FakeClock, SystemClock
from stoker.core.digests import Tree, TreeEntry, digest_bytes
from stoker.core.errors import BadInput
from stoker.core.frozen import changed
from stoker.protocol.tree_messages import frame
from stoker.store.archives.archive_members import listing_bytes
from tests.fakes.trees import MemoryTrees

NOW_S = 1_000_000.0
DAY_S = 86400.0


def row(id_, *, job="a", tree="", archive=None, size_bytes=10, days_old=0.0, is_pinned=False):
    return BundleRow(
        id=id_,
        job=job * 64,
        name=job,
        attempt=id_,
        tree=tree,
        archive_sha256=f"{id_:064x}" if archive is None else archive,
        size_bytes=size_bytes,
        at_s=NOW_S - days_old * DAY_S,
        is_pinned=is_pinned,
    )


def gone(rows, **policy):
    decision = decide_retention(rows, RetentionPolicy(**policy), now_s=NOW_S)
    return [removal.row.id for removal in decision.removals], decision


def test_without_a_limit_nothing_goes():
    assert gone([row(1, days_old=1000), row(2)])[0] == []


def test_what_is_too_old_goes_but_the_newest_of_a_job_stays():
    rows = [row(1, days_old=9), row(2, days_old=8), row(3, job="b", days_old=9), row(4, job="b", days_old=1)]
    ids, decision = gone(rows, older_than_s=5 * DAY_S)
    assert ids == [1, 3]
    assert decision.kept_by_reason == {NEWEST: 1}
    assert gone(rows, older_than_s=5 * DAY_S, keep_last=0)[0] == [1, 3, 2]
    assert gone(rows, older_than_s=5 * DAY_S, keep_last=2)[0] == []


def test_over_the_limit_the_oldest_go_and_only_results_last():
    rows = [row(1, job="b", days_old=9), row(2, days_old=8), row(3, days_old=7), row(4, days_old=1)]
    assert gone(rows, max_bytes=20)[0] == [2, 3]
    ids, decision = gone(rows, max_bytes=5)
    assert ids == [2, 3, 1, 4]
    assert decision.after_bytes == 0


def test_pinned_ones_stay_whatever_the_limit():
    rows = [row(1, days_old=9, is_pinned=True), row(2, days_old=8), row(3, days_old=1)]
    ids, decision = gone(rows, older_than_s=0.0, max_bytes=0, keep_last=0)
    assert ids == [2, 3]
    assert decision.kept_by_reason[PINNED] >= 1
    assert decision.after_bytes == 10


def test_an_archive_that_another_result_names_frees_nothing():
    rows = [row(1, archive="c" * 64, days_old=9), row(2, job="b", archive="c" * 64, days_old=1)]
    _, decision = gone(rows, older_than_s=5 * DAY_S, keep_last=0)
    assert [removal.freed_bytes for removal in decision.removals] == [0]
    assert (decision.before_bytes, decision.after_bytes) == (10, 10)


def test_logs_of_ended_attempts_go_when_they_are_old():
    logs = AttemptLogs(job="a" * 64, attempt=1, size_bytes=5, changed_s=NOW_S - 9 * DAY_S, is_live=False)
    policy = RetentionPolicy(logs_older_than_s=5 * DAY_S)
    live, young = changed(logs, is_live=True), changed(logs, changed_s=NOW_S)
    assert decide_logs([logs, live, young], policy, now_s=NOW_S) == (logs,)
    assert decide_logs([logs], RetentionPolicy(), now_s=NOW_S) == ()


@pytest.mark.parametrize("policy", [{"keep_last": -1}, {"max_bytes": -1}, {"older_than_s": -1.0}], ids=str)
def test_a_policy_that_can_not_be_is_refused(policy):
    assert RetentionPolicy(**policy).faults()


class Records(QueueRecords):
    """The database, as far as a prune knows it."""

    def __init__(self):
        self.rows = []
        self.pruned = set()
        self.checkpoints = set()
        self.live = set()
        self.on_mark = lambda: None

    def bundles(self):
        return iter([row for row in self.rows if row.id not in self.pruned])

    def mark_pruned(self, ids, *, by=""):
        self.on_mark()
        pinned = {row.id for row in self.rows if row.is_pinned}
        marked = frozenset(ids) - pinned
        self.pruned |= marked
        return marked

    def named(self, *, but=frozenset()):
        rows = [row for row in self.bundles() if row.id not in but]
        return frozenset({row.archive_sha256 for row in rows} | {row.tree for row in rows} | self.checkpoints)

    def is_live(self, job):
        return job in self.live


class House:
    """A keeping with results in it."""

    def __init__(self, folder):
        # Objects know their age by the disk's own clock.
        self.clock = FakeClock(SystemClock().wall_s() + 10.0)
        self.keeping = CoordinatorStorage(folder, self.clock)
        self.records = Records()
        self.rows = MemoryTrees(self.clock)
        self.trees = CoordinatorTrees(self.keeping, self.rows)
        self.pruning = CoordinatorPruner(self.keeping, self.records, self.trees)

    def bring(self, data):
        sha = hashlib.sha256(data).hexdigest()
        upload = self.keeping.bundles.begin(sha, len(data))
        if not upload.is_known:
            self.keeping.bundles.append(upload.id, 0, data)
            self.keeping.bundles.finish(upload.id)
        return sha

    def result(self, id_, data, **more):
        sha = self.bring(data)
        given = {"archive": sha, "size_bytes": len(data)} | more
        self.records.rows.append(changed(row(id_, **given), at_s=self.clock.wall_s() - 10 * DAY_S))
        ingest = IngestRecord(
            job="a" * 64,
            name="a",
            attempt=id_,
            model="gbt",
            mode="",
            archive_sha256=sha,
            tree="",
            listing="",
            size_bytes=5,
            at_s=id_,
        )
        self.keeping.models.ingest(ingest)
        return sha

    def tree(self, *files):
        """Bring a tree, and return its digest."""
        tree = Tree(tuple(TreeEntry(f"f{n}", len(data), digest_bytes(data)) for n, data in enumerate(files)))
        self.trees.keep_pack(b"".join(frame(digest_bytes(data), data) for data in files))
        self.trees.keep_tree(tree.digest(), BytesIO(listing_bytes(tree)))
        return tree.digest()

    def tree_result(self, id_, *files, days_old=10):
        digest, size_bytes = self.tree(*files), sum(map(len, files))
        at_s = self.clock.wall_s()
        self.records.rows.append(changed(row(id_, tree=digest, archive="", size_bytes=size_bytes), at_s=at_s))
        self.clock.advance(days_old * DAY_S)
        return digest

    def has(self, data):
        return self.keeping.has_archive(digest_bytes(data)) is not None

    def prune(self, **policy):
        return self.pruning.carry_out(self.pruning.look(RetentionPolicy(**policy)))


@pytest.fixture
def house(tmp_path):
    house = House(str(tmp_path / "fleet"))
    yield house
    house.keeping.close()


def test_looking_touches_nothing(house):
    sha = house.result(1, b"old")
    outlook = house.pruning.look(RetentionPolicy(older_than_s=DAY_S, keep_last=0))
    assert [removal.row.id for removal in outlook.results.removals] == [1]
    assert outlook.freed_bytes == 3
    assert house.keeping.has_archive(sha) == 3
    assert house.records.pruned == set()
    with pytest.raises(BadInput):
        house.pruning.look(RetentionPolicy(keep_last=-1))


def test_records_are_marked_before_their_bytes_go(house):
    sha = house.result(1, b"old")
    seen = []
    house.records.on_mark = lambda: seen.append(house.keeping.objects.size(sha))
    done = house.prune(older_than_s=DAY_S, keep_last=0)
    assert seen == [3]
    assert (done.marked, done.objects, done.freed_bytes) == ((1,), 1, 3)
    assert house.keeping.objects.size(sha) is None
    assert not os.path.lexists(os.path.join(house.keeping.models.folder, "gbt", sha))
    assert len(list(house.keeping.models.rows())) == 1


def test_what_was_pinned_or_named_again_meanwhile_stays(house):
    pinned, shared = house.result(1, b"pinned"), house.result(2, b"shared")

    def meanwhile():
        house.records.rows[0] = changed(house.records.rows[0], is_pinned=True)
        house.records.rows.append(row(3, archive=shared))

    house.records.on_mark = meanwhile
    done = house.prune(older_than_s=DAY_S, keep_last=0)
    assert (done.marked, done.objects) == ((2,), 0)
    assert house.keeping.has_archive(pinned)
    assert house.keeping.has_archive(shared)


def test_nobody_can_point_at_bytes_on_their_way_out(house):
    sha = house.result(1, b"old")
    seen = []
    house.records.on_mark = lambda: seen.append(house.keeping.has_archive(sha))
    house.prune(older_than_s=DAY_S, keep_last=0)
    assert seen == [None]


def test_archives_that_nothing_names_go_once_they_are_old_enough(house):
    orphan, checkpoint = house.bring(b"orphan"), house.bring(b"checkpoint")
    house.records.checkpoints.add(checkpoint)
    assert house.prune().objects == 0
    house.clock.advance(ORPHAN_GRACE_S + 60)
    assert house.prune().objects == 1
    assert house.keeping.has_archive(orphan) is None
    assert house.keeping.has_archive(checkpoint)


def test_uploads_that_nobody_goes_on_with_are_swept(house):
    house.keeping.bundles.begin("1" * 64, 5)
    assert house.prune().uploads == 0
    house.clock.advance(8 * DAY_S)
    assert house.prune().uploads == 1


def test_logs_of_jobs_that_are_over_go_and_those_of_living_ones_stay(house):
    for job in ("a" * 64, "b" * 64):
        house.keeping.append(job, 1, "logs/x.log", 0, b"12345")
    house.records.live.add("b" * 64)
    house.clock.advance(10 * DAY_S)
    done = house.prune(logs_older_than_s=5 * DAY_S)
    assert done.logs == 1
    assert done.log_bytes >= 5
    assert list(house.keeping.attempt_files.jobs()) == ["b" * 64]


def test_the_tree_of_a_removed_result_goes_at_once_but_for_files_that_others_need(house):
    gone = house.tree_result(1, b"old weights", b"shared", days_old=0.1)
    kept = house.tree(b"shared", b"code")
    outlook = house.pruning.look(RetentionPolicy(older_than_s=60.0, keep_last=0))
    assert [row.tree for row in outlook.trees.released] == [gone]
    assert outlook.trees.removals == ()
    done = house.pruning.carry_out(outlook)
    assert done.freed_bytes == outlook.freed_bytes > len(b"old weights")
    assert (set(house.rows.rows), done.marked, done.trees) == ({kept}, (1,), ())
    assert not house.has(b"old weights")
    assert house.has(b"shared")


def test_trees_of_results_and_checkpoints_stay_however_long_nobody_submits_them(house):
    result = house.tree_result(1, b"weights")
    checkpoint, unused = house.tree(b"checkpoint"), house.tree(b"unused")
    house.records.checkpoints.add(checkpoint)
    house.clock.advance(100 * DAY_S)
    assert house.prune().trees == (unused,)
    assert set(house.rows.rows) == {result, checkpoint}
    assert house.has(b"weights")
    assert house.has(b"checkpoint")


def test_a_tree_that_a_result_or_a_job_names_meanwhile_stays(house):
    result = house.tree_result(1, b"weights")
    house.records.on_mark = lambda: house.records.rows.append(row(2, tree=result, archive=""))
    done = house.prune(older_than_s=DAY_S, keep_last=0)
    assert (done.marked, set(house.rows.rows)) == ((1,), {result})
    assert house.has(b"weights")


def test_the_tree_of_a_removed_result_stays_if_a_submission_named_it_since(house):
    result = house.tree_result(1, b"weights", days_old=3)
    house.rows.rows[result] = changed(house.rows.rows[result], wanted_s=house.clock.wall_s() - 60.0)
    done = house.prune(older_than_s=DAY_S, keep_last=0)
    assert (done.marked, set(house.rows.rows)) == ((1,), {result})
