import hashlib
import os
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.digests import Digest
from stoker.core.errors import Cancelled
from stoker.core.events import Event
from stoker.store.memo import Memo
from stoker.transfer.download.download_events import DownloadEvents
from stoker.transfer.download.types import DownloadRequest, DownloadStop
from stoker.transfer.hub.hub_cache import BlobChecker, CheckedBlob
from stoker.transfer.hub.listing import RepoFile
from tests.servers.hub import git_sha1

DATA = b"some bytes " * 1000
LARGE = RepoFile(path="m.bin", size_bytes=len(DATA), sha256=Digest(hashlib.sha256(DATA).hexdigest()))
SMALL = RepoFile(path="a.txt", size_bytes=len(DATA), git_sha1=git_sha1(DATA))


class Watched(BlobChecker):
    """Counts how often bytes are read."""

    reads = 0

    def _hashed(self, *arguments):
        self.reads += 1
        return super()._hashed(*arguments)


@pytest.fixture
def judge(tmp_path: Path):
    memo = Memo(str(tmp_path / "memo.db"), set_aside=lambda path, reason: None)
    # Long after whatever the tests write: files that changed a moment ago are not remembered.
    clock = FakeClock()
    clock.advance(4e9)
    yield Watched(memo, clock=clock, stop=DownloadStop())
    memo.close()


def look(judge: BlobChecker, path: Path, file: RepoFile) -> CheckedBlob:
    found = judge.look(str(path), file)
    assert found is not None
    return found


@pytest.mark.parametrize("file", [LARGE, SMALL])
def test_bytes_that_are_what_their_name_says_are_good_and_read_once(judge: Watched, tmp_path: Path, file: RepoFile):
    path = tmp_path / "blob"
    path.write_bytes(DATA)
    for _ in range(3):
        assert look(judge, path, file).sha256 == hashlib.sha256(DATA).hexdigest()
    assert judge.reads == 1


@pytest.mark.parametrize("file", [LARGE, SMALL])
def test_one_wrong_byte_is_a_fault(judge: Watched, tmp_path: Path, file: RepoFile):
    path = tmp_path / "blob"
    path.write_bytes(b"S" + DATA[1:])
    found = look(judge, path, file)
    assert found.sha256 is None
    assert "sha" in found.fault


def test_a_wrong_size_is_a_fault_without_a_byte_read(judge: Watched, tmp_path: Path):
    path = tmp_path / "blob"
    path.write_bytes(DATA[:-1])
    assert "10,999 bytes instead of 11,000" in look(judge, path, LARGE).fault
    assert judge.reads == 0


def test_a_file_that_changed_since_is_read_again(judge: Watched, tmp_path: Path):
    path = tmp_path / "blob"
    path.write_bytes(DATA)
    look(judge, path, LARGE)
    path.write_bytes(b"S" + DATA[1:])
    assert look(judge, path, LARGE).fault
    assert judge.reads == 2


def test_that_a_path_was_good_for_one_digest_says_nothing_about_another(judge: Watched, tmp_path: Path):
    path = tmp_path / "blob"
    path.write_bytes(DATA)
    look(judge, path, LARGE)
    other = RepoFile(path="a.txt", size_bytes=len(DATA), git_sha1="0" * 40)
    assert look(judge, path, other).fault
    assert look(judge, path, SMALL).sha256


def test_nothing_and_a_link_to_nowhere_are_nothing(judge: Watched, tmp_path: Path):
    (tmp_path / "link").symlink_to("nowhere")
    assert judge.look(str(tmp_path / "none"), LARGE) is None
    assert judge.look(str(tmp_path / "link"), LARGE) is None


def test_a_link_is_read_through_and_set_aside_itself(judge: Watched, tmp_path: Path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"S" + DATA[1:])
    link.symlink_to("target")
    assert look(judge, link, LARGE).fault
    aside = judge.set_aside(str(link), LARGE)
    assert os.path.islink(aside)
    assert not link.is_symlink()
    assert target.exists()


def test_a_folder_or_a_pipe_is_a_fault_and_never_waited_for(judge: Watched, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert look(judge, tmp_path / "folder", LARGE).fault
    assert look(judge, tmp_path / "pipe", LARGE).fault


def test_being_stopped_ends_the_reading(tmp_path: Path):
    path = tmp_path / "blob"
    path.write_bytes(DATA)
    stop = DownloadStop()
    stop.ask(Cancelled("stopped"))
    memo = Memo(str(tmp_path / "memo.db"), set_aside=lambda path, reason: None)
    with pytest.raises(Cancelled):
        BlobChecker(memo, clock=FakeClock(), stop=stop).look(str(path), LARGE)
    memo.close()


def test_the_reading_of_a_large_file_is_told(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("stoker.transfer.hub.hub_cache._TOLD_BYTES", 1)
    path = tmp_path / "blob"
    path.write_bytes(DATA)
    told: list[Event] = []
    memo = Memo(str(tmp_path / "memo.db"), set_aside=lambda path, reason: None)
    judge = BlobChecker(
        memo,
        clock=FakeClock(),
        stop=DownloadStop(),
        teller_of=lambda file: DownloadEvents(told.append, DownloadRequest(url="http://x/"), "x"),
    )
    look(judge, path, LARGE)
    memo.close()
    assert [(event.fields["phase"], event.fields["hashed"], event.fields["total"]) for event in told] == [
        ("progress", len(DATA), len(DATA))
    ]
