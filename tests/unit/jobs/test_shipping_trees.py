"""Trees on their way to the coordinator: resumable, known files not at all, and never accepted before verification."""

from __future__ import annotations

import hashlib
import os
import random

import pytest

from stoker.coordinator.storage.storage import Bundles, CoordinatorStorage
from stoker.core.clock import FakeClock
from stoker.core.errors import Cancelled, CorruptBytes, NoCoordinator, NoSpace
from stoker.engine.journal import read_status
from stoker.jobs.job_history import tell
from stoker.jobs.results import parts_of_job
from stoker.store.results import SIDECAR, lay_out, tree_of
from stoker.store.trees import scan_tree
from stoker.transfer.trees import tree_upload
from stoker.transfer.trees.tree_upload import FolderFileSource, StoreFileSource, send_tree
from tests.fakes.fleet_line import KeptLine

DATA = random.Random(7).randbytes(10_000)
SHA = hashlib.sha256(DATA).hexdigest()


class Waiting:
    """A stop that is never set unless `stops_after` says so: waiting takes no time and is counted."""

    def __init__(self, stops_after: int = 1000) -> None:
        self.waits: list[float] = []
        self.stops_after = stops_after

    def is_set(self) -> bool:
        return len(self.waits) >= self.stops_after

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return self.is_set()


class NoWait(tree_upload._EitherEvent):
    """Waits without time, so that the test's stop counts it."""

    def wait(self, timeout=None):
        return self._stop.wait(timeout) or self.is_set()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(tree_upload, "PIECE_BYTES", 1000)
    # Every file goes as an upload.
    monkeypatch.setattr(tree_upload, "PACKED_BYTES", 0)
    monkeypatch.setattr(tree_upload, "_EitherEvent", NoWait)


@pytest.fixture
def line(tmp_path):
    keeping = CoordinatorStorage(str(tmp_path / "fleet"), FakeClock())
    yield KeptLine(keeping)
    keeping.close()


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "file").write_bytes(DATA)
    return path


def send(line, folder, stop=None, *, tree=None, **more):
    return send_tree(
        line, tree or scan_tree(str(folder)), FolderFileSource(str(folder)), stop=stop or Waiting(), **more
    )


def breaks_at(calls):
    """Break the calls of these numbers, counted from 1."""
    count = 0

    def breaks(_call):
        nonlocal count
        count += 1
        return NoCoordinator("cut") if count in calls else None

    return breaks


def test_a_file_arrives_whole(line, folder):
    heard: list[int] = []
    assert send(line, folder, heed=heard.append).sent_bytes == len(DATA)
    assert line.keeping.has_archive(SHA) == len(DATA)
    assert sum(heard) == len(DATA)
    with line.keeping.bundles.open(SHA) as file:
        assert file.read() == DATA


def test_what_the_coordinator_has_is_not_sent_again(line, folder):
    send(line, folder)
    line.calls.clear()
    assert send(line, folder).sent_bytes == 0
    assert line.calls == ["want_tree"]
    # A tree that shares a file with one that is there needs only the rest.
    (folder / "more").write_bytes(b"more")
    assert send(line, folder).sent_bytes == 4


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_line_that_breaks_at_every_call_costs_time_and_few_bytes(line, folder, lost):
    setattr(line, lost, breaks_at(range(2, 60, 2)))
    stop = Waiting()
    send(line, folder, stop)
    assert line.keeping.has_archive(SHA) == len(DATA)
    assert stop.waits
    assert line.uploaded_bytes <= 2 * len(DATA)


def test_a_coordinator_that_restarts_in_the_middle_goes_on_where_it_was(line, folder):
    def restart(_call):
        if line.uploaded_bytes == 5000:
            line.keeping.bundles = Bundles(line.keeping.objects)
            line.before = lambda _call: None
            return NoCoordinator("restarting")
        return None

    line.before = restart
    assert send(line, folder).sent_files == 1
    assert line.uploaded_bytes == len(DATA)


def test_an_upload_that_was_swept_is_begun_anew(line, folder):
    def sweep(_call):
        if line.uploaded_bytes == 3000:
            line.keeping.objects.sweep_uploads(grace_s=-1e12)
            line.before = lambda _call: None

    line.before = sweep
    assert send(line, folder).sent_files == 1
    assert line.keeping.has_archive(SHA) == len(DATA)


def test_bytes_that_are_others_are_refused_and_not_sent_for_ever(line, folder):
    tree = scan_tree(str(folder))
    with open(folder / "file", "r+b") as file:
        file.write(b"other bytes")
    with pytest.raises(CorruptBytes, match="file changed while it was sent"):
        send(line, folder, tree=tree)
    assert line.keeping.has_archive(SHA) is None
    assert line.calls.count("finish_upload") == 3


def test_a_file_that_became_shorter_is_told(line, folder):
    tree = scan_tree(str(folder))
    os.truncate(folder / "file", 10)
    with pytest.raises(CorruptBytes):
        send(line, folder, tree=tree)


def test_a_stop_ends_it(line, folder):
    line.before = lambda _call: NoCoordinator("cut")
    stop = Waiting(stops_after=4)
    with pytest.raises(Cancelled):
        send(line, folder, stop)
    assert len(stop.waits) == 4


def test_only_a_worker_waits_for_space_on_the_coordinator_s_disk(line, folder):
    line.before = lambda call: NoSpace("full") if call == "missing" and line.calls.count("missing") < 4 else None
    with pytest.raises(NoSpace):
        send(line, folder)
    line.calls.clear()
    assert send(line, folder, waits_for_space=True).sent_files == 1


def test_two_that_send_the_same_help_each_other(line, folder):
    begun = line.keeping.bundles.begin(SHA, len(DATA))
    line.keeping.bundles.append(begun.id, 0, DATA[:7000])
    assert send(line, folder).sent_files == 1
    assert line.uploaded_bytes == 3000


def sent_result(office, line, done):
    store = office.lab.store
    parts = parts_of_job(store, done.folder, tell(read_status(done.folder.status_path)))
    send_tree(line, tree_of(parts), StoreFileSource(store, *(part.record for part in parts)))
    return parts


def test_the_tree_of_a_result_is_what_get_lays_out(office, line, tmp_path, monkeypatch):
    monkeypatch.setattr(tree_upload, "PACKED_BYTES", 1 << 20)
    done = office.run("test/blobs")
    parts = sent_result(office, line, done)
    laid_out = lay_out(office.lab.store, parts, str(tmp_path / "out"))
    os.unlink(os.path.join(laid_out.folder, SIDECAR))
    assert scan_tree(laid_out.folder).digest() == tree_of(parts).digest()
    assert line.trees.has(tree_of(parts).digest())


def test_a_job_that_made_nothing_gives_an_empty_tree(office, line):
    done = office.run("test/blobs")
    os.unlink(f"{done.folder.path}/end.json")
    parts = sent_result(office, line, done)
    assert tree_of(parts).entries == ()
    assert line.trees.has(tree_of(parts).digest())
