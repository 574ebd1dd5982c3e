"""Archives on their way: resumable, known ones not at all, and never believed before they are verified."""

from __future__ import annotations

import hashlib
import os
import random

import pytest

from stoker.coordinator.storage.storage import Bundles, LocalCoordinatorStorage
from stoker.core.clock import FakeClock
from stoker.core.errors import Cancelled, CorruptBytes, HashMismatch, NetworkFailed, NoCoordinator, NotFound
from stoker.engine.journal import read_status
from stoker.jobs.job_history import tell
from stoker.jobs.result_archives import pack_result
from stoker.jobs.results import parts_of_job
from stoker.store.results import SIDECAR, lay_out
from stoker.store.trees import scan_tree
from stoker.transfer.trees import tree_download, tree_upload
from stoker.transfer.trees.tree_download import receive
from stoker.transfer.trees.tree_sources import TransferConnection
from stoker.transfer.trees.tree_upload import Archive, ArchiveSendOutcome, send
from tests.fakes.fleet_line import KeptLine

DATA = random.Random(7).randbytes(10_000)
SHA = hashlib.sha256(DATA).hexdigest()


class Waiting:
    """A stop that nobody says unless told: waiting takes no time and is counted."""

    def __init__(self, stops_after: int = 1000) -> None:
        self.waits: list[float] = []
        self.stops_after = stops_after

    def is_set(self) -> bool:
        return len(self.waits) >= self.stops_after

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return self.is_set()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(tree_upload, "PIECE_BYTES", 1000)
    monkeypatch.setattr(tree_download, "PIECE_BYTES", 1000)


@pytest.fixture
def keeping(tmp_path):
    keeping = LocalCoordinatorStorage(str(tmp_path / "fleet"), FakeClock())
    yield keeping
    keeping.close()


@pytest.fixture
def line(keeping):
    return KeptLine(keeping)


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "archive"
    path.write_bytes(DATA)
    return Archive(path=str(path), tree="0" * 64, sha256=SHA, size_bytes=len(DATA))


def over(line, stop=None):
    return TransferConnection(line=line, stop=stop or Waiting(), clock=FakeClock(), chance=lambda: 0.0)


def breaks_at(calls):
    """Break the calls of these numbers, counted from 1."""
    count = 0

    def breaks(_call):
        nonlocal count
        count += 1
        return NoCoordinator("cut") if count in calls else None

    return breaks


def test_an_archive_arrives_whole(line, archive):
    heard: list[int] = []
    assert send(over(line), archive, heed=heard.append) is ArchiveSendOutcome.NEW
    assert line.keeping.has_archive(SHA) == len(DATA)
    assert sum(heard) == len(DATA)
    with line.keeping.bundles.open(SHA) as file:
        assert file.read() == DATA


def test_what_the_coordinator_has_is_not_sent_again(line, archive):
    send(over(line), archive)
    line.calls.clear()
    assert send(over(line), archive) is ArchiveSendOutcome.KNOWN
    assert line.calls == ["begin_upload"]


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_line_that_breaks_at_every_call_costs_time_and_few_bytes(line, archive, lost):
    setattr(line, lost, breaks_at(range(2, 60, 2)))
    stop = Waiting()
    assert send(over(line, stop), archive) in (ArchiveSendOutcome.NEW, ArchiveSendOutcome.KNOWN)
    assert line.keeping.has_archive(SHA) == len(DATA)
    assert stop.waits
    assert line.uploaded_bytes <= 2 * len(DATA)


def test_a_coordinator_that_restarts_in_the_middle_goes_on_where_it_was(line, archive):
    def restart(_call):
        if line.uploaded_bytes == 5000:
            line.keeping.bundles = Bundles(line.keeping.objects)
            line.before = lambda _call: None
            return NoCoordinator("restarting")
        return None

    line.before = restart
    assert send(over(line), archive) is ArchiveSendOutcome.NEW
    assert line.uploaded_bytes == len(DATA)


def test_an_upload_that_was_swept_is_begun_anew(line, archive):
    def sweep(_call):
        if line.uploaded_bytes == 3000:
            line.keeping.objects.sweep_uploads(grace_s=-1e12)
            line.before = lambda _call: None

    line.before = sweep
    assert send(over(line), archive) is ArchiveSendOutcome.NEW
    assert line.keeping.has_archive(SHA) == len(DATA)


def test_bytes_that_are_others_are_refused_and_not_sent_for_ever(line, archive):
    with open(archive.path, "r+b") as file:
        file.write(b"other bytes")
    with pytest.raises(HashMismatch):
        send(over(line), archive)
    assert line.keeping.has_archive(SHA) is None
    assert line.calls.count("finish_upload") == 3


def test_a_file_that_became_shorter_is_told(line, archive):
    os.truncate(archive.path, 10)
    with pytest.raises(CorruptBytes):
        send(over(line), archive)


def test_who_says_stop_is_heard(line, archive):
    line.before = lambda _call: NoCoordinator("cut")
    stop = Waiting(stops_after=4)
    assert send(over(line, stop), archive) is ArchiveSendOutcome.STOPPED
    assert len(stop.waits) == 4


def test_two_that_send_the_same_help_each_other(line, archive):
    begun = line.keeping.bundles.begin(SHA, len(DATA))
    line.keeping.bundles.append(begun.id, 0, DATA[:7000])
    assert send(over(line), archive) is ArchiveSendOutcome.NEW
    assert line.uploaded_bytes == 3000


def put(line, data=DATA):
    sha = hashlib.sha256(data).hexdigest()
    upload = line.keeping.bundles.begin(sha, len(data))
    line.keeping.bundles.append(upload.id, 0, data)
    line.keeping.bundles.finish(upload.id)
    return sha


def test_an_archive_is_received_whole(line, tmp_path):
    put(line)
    heard: list[int] = []
    path = receive(over(line), SHA, len(DATA), str(tmp_path / "spool"), heed=heard.append)
    with open(path, "rb") as file:
        assert file.read() == DATA
    assert sum(heard) == len(DATA)
    assert os.listdir(tmp_path / "spool") == [os.path.basename(path)]


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_receiving_goes_on_after_every_break(line, tmp_path, knows_ranges):
    put(line)
    line.knows_ranges = knows_ranges
    line.ends_after = 3000 if knows_ranges else None
    line.before = breaks_at({1, 2, 4})
    heard: list[int] = []
    path = receive(over(line), SHA, len(DATA), str(tmp_path / "spool"), heed=heard.append)
    with open(path, "rb") as file:
        assert file.read() == DATA
    assert sum(heard) == len(DATA)


def test_another_process_goes_on_with_what_came(line, tmp_path):
    put(line)
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / f"{SHA}.part").write_bytes(DATA[:8000])
    heard: list[int] = []
    receive(over(line), SHA, len(DATA), str(spool), heed=heard.append)
    assert sum(heard) == 2000


def test_other_bytes_than_the_digest_says_are_not_kept(line, tmp_path):
    put(line)
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / f"{SHA}.part").write_bytes(b"x" * 8000)
    with pytest.raises(HashMismatch):
        receive(over(line), SHA, len(DATA), str(spool))
    assert not [name for name in os.listdir(spool) if name.endswith(".part")]


def test_a_line_that_brings_nothing_is_given_up(line, tmp_path):
    put(line)
    line.before = lambda _call: NoCoordinator("cut")
    with pytest.raises(NoCoordinator):
        receive(over(line), SHA, len(DATA), str(tmp_path))
    assert len(line.calls) == 5
    line.before = lambda _call: None
    line.ends_after = 0
    with pytest.raises(NetworkFailed):
        receive(over(line), SHA, len(DATA), str(tmp_path))
    with pytest.raises(NotFound):
        receive(over(line), "0" * 64, 5, str(tmp_path))


def test_receiving_can_be_stopped(line, tmp_path):
    put(line)
    with pytest.raises(Cancelled):
        receive(over(line, Waiting(stops_after=0)), SHA, len(DATA), str(tmp_path))


def test_nothing_is_received_of_an_empty_object(line, tmp_path):
    sha = put(line, b"")
    assert os.path.getsize(receive(over(line), sha, 0, str(tmp_path))) == 0


def test_a_packed_result_is_what_get_lays_out(office, tmp_path):
    done = office.run("test/blobs")
    archive = pack_result(office.lab.store, done.folder, str(tmp_path / "spool"))
    parts = parts_of_job(office.lab.store, done.folder, tell(read_status(done.folder.status_path)))
    laid_out = lay_out(office.lab.store, parts, str(tmp_path / "out"))
    os.unlink(os.path.join(laid_out.folder, SIDECAR))
    assert scan_tree(laid_out.folder).digest() == archive.tree
    with open(archive.path, "rb") as file:
        data = file.read()
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (archive.sha256, archive.size_bytes)
    again = pack_result(office.lab.store, done.folder, str(tmp_path / "again"))
    assert again.sha256 == archive.sha256


def test_a_job_that_made_nothing_gives_an_empty_archive(office, line, tmp_path):
    done = office.run("test/blobs")
    os.unlink(f"{done.folder.path}/end.json")
    archive = pack_result(office.lab.store, done.folder, str(tmp_path / "spool"))
    assert send(over(line), archive) is ArchiveSendOutcome.NEW
