"""Kill -9 just before every step of a commit, a prune and a laying-out: nothing torn, nothing lost, and again works."""

from __future__ import annotations

import itertools
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.digests import digest_bytes, is_digest
from stoker.host.durable import remove_tree
from stoker.store.local_store import LocalStore, RecordHit, RecordMiss
from stoker.store.prune import GRACE_S, all_records, candidates, carry_out, decide_prune
from stoker.store.records import Record
from stoker.store.results import SIDECAR, ResultPart, lay_out
from stoker.store.tree_views import open_view
from tests.lengths import moments
from tests.unit.host.real_processes import code_of, fork
from tests.unit.store.real_stores import (
    BIG,
    clock_of_now,
    commit,
    contents,
    files_below,
    found,
    key_of,
    make_store,
    quarantined,
    record_of,
    sweep,
)

OLD = {"model": b"old" * BIG, "notes": b"old", "shared": b"shared" * BIG}
NEW = {"model": b"new" * BIG, "notes": b"new", "shared": b"shared" * BIG, "deep/other": b"other" * BIG}

# What changes the file system and has no step of its own.
CALLS = ("rename", "replace", "unlink", "rmdir", "mkdir", "symlink", "link", "utime")


@pytest.fixture
def memory(tmp_path):
    """A folder in memory where there is such a place: every step is synced, and what is tested is not the disk."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


class Countdown:
    """Kills its process just before the n-th thing that it is told of."""

    def __init__(self, moments: int) -> None:
        self._left = moments

    def __call__(self, step: str = "") -> None:
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch_calls(self) -> None:
        """Count every call that changes a name. Only ever done in a child."""
        for name in CALLS:
            setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **options: object) -> object:
            self()
            return call(*args, **options)

        return counted


def survives(action: Callable[[], object]) -> bool:
    """Run an action in a child; say whether it came to its end or was killed on the way."""
    code = code_of(fork(action))
    assert code in (0, -signal.SIGKILL), code
    return code == 0


def assert_nothing_is_torn(store: LocalStore) -> None:
    """Every blob has the bytes it is named by, every record is whole and has all its bytes."""
    for path in Path(store.places.blobs).rglob("*"):
        if path.is_file():
            assert digest_bytes(path.read_bytes()) == path.name
            assert path.stat().st_mode & 0o777 == 0o444
    for path in Path(store.places.records).rglob("*"):
        if path.is_file() and is_digest(path.name):
            outcome = store.lookup(path.name)  # type: ignore[arg-type]
            assert isinstance(outcome, RecordHit)
            assert outcome.lost == ()
    assert quarantined(store) == []


def assert_rubbish_is_swept(store: LocalStore) -> None:
    for name in os.listdir(store.places.staging):
        remove_tree(os.path.join(store.places.staging, name))
    sweep(store, clock=FakeClock(start_s=time.time() + GRACE_S + 60))
    named = {entry.sha256 for record, _ in all_records(store) for entry in record.blobs()}
    assert {path.name for path in Path(store.places.blobs).rglob("*") if path.is_file()} == named
    assert [path for path in Path(store.places.records).rglob("*") if path.name.startswith(".stoker-tmp-")] == []


def _before_nothing(store: LocalStore) -> None:
    """A key of which nothing is known."""


def _before_shared_blob(store: LocalStore) -> None:
    commit(store, "other", OLD)


def _before_other_result(store: LocalStore) -> None:
    commit(store, "key", OLD)


def _before_tombstone(store: LocalStore) -> None:
    record = commit(store, "key", OLD).record
    prune_everything(store)
    assert found(store, "key").record.digest == record.digest


def prune_everything(store: LocalStore) -> None:
    kept = candidates(store, kept=lambda key: "", label=lambda record: "")
    carry_out(store, decide_prune(kept, now_s=0, max_bytes=0, older_than_s=None), clock=clock_of_now())


@pytest.mark.parametrize(
    ("before", "replace"),
    [
        pytest.param(_before_nothing, False, id="nothing, first wins"),
        pytest.param(_before_nothing, True, id="nothing, replace", marks=pytest.mark.slow),
        pytest.param(_before_shared_blob, False, id="shared blob, first wins", marks=pytest.mark.slow),
        pytest.param(_before_shared_blob, True, id="shared blob, replace"),
        pytest.param(_before_other_result, False, id="other result, first wins", marks=pytest.mark.slow),
        pytest.param(_before_other_result, True, id="other result, replace"),
        pytest.param(_before_tombstone, False, id="tombstone, first wins"),
        pytest.param(_before_tombstone, True, id="tombstone, replace", marks=pytest.mark.slow),
    ],
)
def test_a_commit_killed_at_any_step_leaves_all_or_nothing_and_can_be_repeated(memory, before, replace):
    for moment in moments():
        root = memory / str(moment)
        store = make_store(root)
        before(store)
        store.close()
        ended = survives(partial(_commit_until, str(root), Countdown(moment), replace=replace))
        store = make_store(root)
        assert_nothing_is_torn(store)
        outcome = store.lookup(key_of("key"))
        if isinstance(outcome, RecordHit) and outcome.has_bytes:
            assert contents(store, outcome.record) in (OLD, NEW)
        if isinstance(outcome, RecordMiss):
            assert before in (_before_nothing, _before_shared_blob)
            assert outcome.damage == ""
        commit(store, "key", NEW, replace=replace)
        expected = OLD if before is _before_other_result and not replace else NEW
        assert contents(store, found(store, "key").record) == expected
        assert_nothing_is_torn(store)
        assert_rubbish_is_swept(store)
        assert contents(store, found(store, "key").record) == expected
        store.close()
        if ended:
            break
    assert moment > 10


def _commit_until(root: str, countdown: Countdown, *, replace: bool) -> None:
    store = make_store(root, on_step=countdown)
    staging = store.new_staging("attempt")
    for path, data in NEW.items():
        Path(staging, path).parent.mkdir(exist_ok=True)
        Path(staging, path).write_bytes(data)
    tree, inline = store.take_in(staging)
    countdown("between bytes and name")
    store.publish(Record.of(key=key_of("key"), tree=tree, inline=inline, body={}), replace=replace)
    countdown("between name and news")


def test_commits_killed_at_any_moment_leave_a_store_without_a_torn_file(tmp_path):
    chance = random.Random(7)

    def commit_for_ever() -> None:
        store = make_store(tmp_path)
        for number in itertools.count(os.getpid() * 1000):
            size = chance.choice([10, BIG, 20 * BIG])
            commit(store, number % 5, {"x": b"%d" % (number % 7) * size, "y": b"%d" % number}, replace=number % 2 == 0)

    for _ in range(25):
        pid = fork(commit_for_ever)
        time.sleep(chance.uniform(0.0, 0.04))
        os.kill(pid, signal.SIGKILL)
        assert code_of(pid) == -signal.SIGKILL
        store = make_store(tmp_path)
        assert_nothing_is_torn(store)
        store.close()
    assert_rubbish_is_swept(make_store(tmp_path))


def test_a_prune_killed_at_any_call_leaves_every_record_with_its_bytes_or_a_tombstone(memory):
    for moment in moments():
        root = memory / str(moment)
        store = make_store(root)
        for name in ("a", "b", "c"):
            commit(store, name, {**NEW, "own": name.encode() * BIG})
            open_view(store, found(store, name).record)
        used_s = {name: record_of(store, name).stat().st_mtime for name in ("a", "b", "c")}
        store.close()

        def prune(root: Path = root, moment: int = moment) -> None:
            Countdown(moment).watch_calls()
            prune_everything(make_store(root))

        ended = survives(prune)
        store = make_store(root)
        for name in used_s:
            outcome = found(store, name)
            # Bytes go only after their name went, so what still claims to have them has them.
            assert outcome.has_bytes or outcome.record.is_tombstone
        prune_everything(store)
        assert not any(found(store, name).has_bytes for name in used_s)
        sweep(store, clock=FakeClock(start_s=time.time() + GRACE_S + 60))
        assert [path for path in Path(store.places.blobs).rglob("*") if path.is_file()] == []
        assert os.listdir(store.places.views) == []
        store.close()
        if ended:
            break
    assert moment > 15


ONE = {"report": b"one", "plots/roc": b"1" * BIG, "gone/away": b"gone", "same": b"same"}
TWO = {"report": b"two", "plots/roc": b"2" * BIG, "new/file": b"new", "same": b"same"}
THREE = {"report": b"three", "plots/roc": b"3" * BIG, "new/file": b"newer", "same": b"same"}


def lay(store: LocalStore, out: Path, files: dict[str, bytes]) -> tuple[str, ...]:
    record = commit(store, tuple(files.items()), files).record
    return lay_out(store, [ResultPart(record=record, folder="", sidecar={})], str(out)).kept_edits


@pytest.mark.parametrize("after", [ONE, TWO, THREE], ids=["the old one", "the same one", "a third one"])
def test_a_laying_out_killed_at_any_call_shows_whole_files_and_can_be_repeated(memory, after):
    store = make_store(memory / "store")
    for files in (ONE, TWO, THREE):
        commit(store, tuple(files.items()), files)
    for moment in moments():
        out = memory / "out" / str(moment)
        lay(store, out, ONE)
        (out / "mine").write_bytes(b"mine")

        def again(out: Path = out, moment: int = moment) -> None:
            other = make_store(memory / "store")
            record = found(other, tuple(TWO.items())).record
            Countdown(moment).watch_calls()
            lay_out(other, [ResultPart(record=record, folder="", sidecar={})], str(out))

        ended = survives(again)
        for path, data in files_below(out).items():
            if not path.startswith(".stoker") and path != "mine":
                assert data in (ONE.get(path), TWO.get(path)), path
        assert lay(store, out, after) == ()
        shown = files_below(out)
        assert shown.pop("mine") == b"mine"
        assert SIDECAR in shown
        shown.pop(SIDECAR)
        assert shown == after
        if ended:
            break
    assert moment > 8
