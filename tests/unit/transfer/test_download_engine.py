from __future__ import annotations

import hashlib
import os
import shutil

import pytest

from stoker.core.clock import FakeClock
from stoker.core.digests import Digest, digest_bytes
from stoker.core.errors import BadInput, HashMismatch, LocalFile, LockHeld, NotOnServer
from stoker.core.frozen import changed
from stoker.host.locks import FileLock
from stoker.transfer.download.content import STEPS
from stoker.transfer.download.types import DownloadRequest, Status, TargetFile
from tests.fakes.transport import Scripted
from tests.unit.transfer.download_scene import DATE, ETAG, LARGE, SMALL, URL, open_scene, served


@pytest.fixture
def scene(tmp_path):
    with open_scene(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("data", [LARGE, SMALL, b""], ids=["large", "small", "empty"])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_file_is_fetched_checked_and_named(scene, data, is_known):
    scene.data = data
    fetched = scene.fetch(scene.exact() if is_known else scene.bare())
    assert scene.path.read_bytes() == data
    assert scene.names() == ["f.bin", "f.bin.etag", "f.bin.lastmod"]
    assert scene.asked() == ["GET"]
    assert (fetched.path, fetched.status) == (str(scene.path), Status.DOWNLOADED)
    assert (fetched.size_bytes, fetched.sha256) == (len(data), digest_bytes(data))
    assert (fetched.bytes_from_network, fetched.bytes_resumed) == (len(data), 0)
    assert (fetched.url, fetched.commit) == ("https://host/models/file", "c0ffee")
    assert (fetched.etag, fetched.last_modified) == (ETAG, DATE)


def test_the_steps_are_taken_in_their_order(scene):
    scene.fetch()
    assert tuple(dict.fromkeys(scene.steps)) == STEPS


def test_events_tell_the_story_without_secrets(scene):
    scene.fetch()
    assert scene.phases() == ["start", "progress", "done"]
    start, progress, done = (event.fields for event in scene.events)
    assert start == {
        "phase": "start",
        "file": "the file",
        "url": "https://host/models/file",
        "resume": False,
        "start": 0,
        "total": len(LARGE),
        "sha256": digest_bytes(LARGE),
    }
    assert progress["total"] == len(LARGE)
    assert set(progress) == {"phase", "file", "downloaded", "total", "rate_bytes_per_s", "eta_s", "hashed"}
    assert done["bytes"] == done["bytes_from_network"] == len(LARGE)
    assert (done["status"], done["path"], done["bytes_resumed"]) == ("downloaded", str(scene.path), 0)


def test_a_small_file_is_never_seen_in_parts(scene):
    scene.data = SMALL
    scene.fetch()
    assert "sidecar" not in scene.steps
    assert scene.steps == ["write", "sync", "rename", "sync_dir", "validators", "done"]


def test_a_git_digest_is_checked_too(scene):
    for data in (SMALL, LARGE):
        scene.data = data
        git_sha1 = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        scene.fetch(DownloadRequest(url=URL, git_sha1=git_sha1.upper()), force=True)
        with pytest.raises(HashMismatch, match="git sha1"):
            scene.fetch(DownloadRequest(url=URL, git_sha1="0" * 40), force=True)
        assert scene.path.read_bytes() == data


def test_an_expected_digest_may_be_written_in_capitals(scene):
    wanted = changed(scene.exact(), sha256=Digest(digest_bytes(LARGE).upper()))
    assert scene.fetch(wanted).status is Status.DOWNLOADED
    assert scene.fetch(wanted).status is Status.CACHED


def test_a_file_that_is_there_is_kept_without_a_request(scene):
    scene.fetch()
    scene.transport.requests.clear()
    scene.events.clear()
    fetched = scene.fetch()
    assert fetched.status is Status.CACHED
    assert fetched.sha256 == digest_bytes(LARGE)
    assert scene.asked() == []
    assert scene.phases() == ["done"]


def test_a_file_that_is_not_the_wanted_one_is_replaced(scene):
    scene.fetch()
    scene.path.write_bytes(LARGE[:-1] + b"?")
    assert scene.fetch().status is Status.DOWNLOADED
    assert scene.path.read_bytes() == LARGE


def test_force_fetches_whatever_is_there(scene):
    scene.fetch()
    assert scene.fetch(force=True).status is Status.DOWNLOADED


def test_force_does_not_go_on_with_an_old_partial_file(scene):
    scene.interrupt()
    assert scene.fetch(force=True).bytes_resumed == 0
    assert scene.asked() == ["GET"]


def test_without_a_digest_the_server_says_whether_a_file_is_still_the_newest(scene):
    scene.fetch(scene.bare())
    scene.transport.requests.clear()
    fetched = scene.fetch(scene.bare())
    assert fetched.status is Status.CACHED
    assert scene.asked() == ["HEAD"]
    headers = scene.transport.requests[0].headers
    assert (headers["If-None-Match"], headers["If-Modified-Since"]) == (ETAG, DATE)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_damaged_file_is_fetched_anew_though_the_server_has_the_same_version(scene, is_known):
    scene.fetch(scene.bare())
    scene.path.write_bytes(b"?" + LARGE[1:])
    if not is_known:
        scene.received.clear()
    assert scene.fetch(scene.bare()).status is Status.DOWNLOADED
    assert scene.path.read_bytes() == LARGE
    assert scene.received[str(scene.path)] == digest_bytes(LARGE)


def test_a_damaged_file_is_not_passed_off_as_the_one_that_was_received_offline_either(scene):
    scene.fetch(scene.bare())
    scene.path.write_bytes(b"?" + LARGE[1:])
    with pytest.raises(HashMismatch):
        scene.fetch(scene.bare(), offline=True)
    assert scene.received[str(scene.path)] == digest_bytes(LARGE)


@pytest.mark.parametrize("data", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("swap", ["link", "folder"])
def test_a_file_whose_folder_is_swapped_under_way_is_not_said_to_be_there(scene, data, swap):
    scene.data = data
    elsewhere = scene.folder / "elsewhere"
    elsewhere.mkdir()

    def swap_folder(step):
        if step == "rename":
            scene.path.parent.rename(scene.folder / "moved")
            scene.path.parent.symlink_to(elsewhere) if swap == "link" else scene.path.parent.mkdir()

    scene.on_step = swap_folder
    with pytest.raises(LocalFile, match="moved or replaced"):
        scene.fetch()
    assert (scene.folder / "moved" / "f.bin").read_bytes() == data
    assert list(elsewhere.iterdir()) == []
    assert scene.received == {}
    assert "done" not in scene.phases()


def test_a_folder_that_is_removed_under_way_is_named(scene):
    def remove(step):
        if step == "check":
            shutil.rmtree(scene.path.parent)

    scene.on_step = remove
    with pytest.raises(LocalFile, match="folder removed"):
        scene.fetch()


def test_a_server_that_knows_no_conditions_may_still_name_the_same_version(scene):
    scene.fetch(scene.bare())
    head = Scripted(fields=(("ETag", ETAG), ("Content-Length", str(len(LARGE)))))
    scene.script(head)
    assert scene.fetch(scene.bare()).status is Status.CACHED
    scene.script(Scripted(fields=(("ETag", ETAG), ("Content-Length", "5"))))
    assert scene.fetch(scene.bare()).status is Status.DOWNLOADED


@pytest.mark.parametrize("answer", [Scripted(status=405), Scripted(status=403), Scripted(status=500), TimeoutError()])
def test_trouble_with_the_question_whether_it_is_newest_ends_in_a_download(scene, answer):
    scene.fetch(scene.bare())
    scene.script(answer)
    assert scene.fetch(scene.bare()).status is Status.DOWNLOADED


def test_a_newer_version_replaces_the_file_and_its_validators(scene):
    scene.fetch(scene.bare())
    newer = LARGE[::-1]
    scene.transport.script = lambda request: served(request, newer, '"two"')
    assert scene.fetch(scene.bare()).status is Status.DOWNLOADED
    assert scene.path.read_bytes() == newer
    assert scene.beside(".etag").read_text() == '"two"\n'


def test_old_validators_are_gone_before_the_name_changes_hands(scene):
    scene.fetch(scene.bare())

    def crash(step):
        if step == "validators":
            raise KeyboardInterrupt

    scene.on_step = crash
    with pytest.raises(KeyboardInterrupt):
        scene.fetch(scene.bare(), force=True)
    assert not scene.beside(".etag").exists()


def test_offline_takes_what_is_there_and_asks_nobody(scene):
    with pytest.raises(NotOnServer) as missing:
        scene.fetch(offline=True)
    assert missing.value.exit_code == 14
    assert list(scene.folder.iterdir()) == []
    scene.fetch()
    scene.transport.requests.clear()
    for wanted in (scene.exact(), scene.bare()):
        assert scene.fetch(wanted, offline=True).status is Status.CACHED
    scene.path.write_bytes(b"edited")
    with pytest.raises(HashMismatch):
        scene.fetch(offline=True)
    assert scene.path.read_bytes() == b"edited"
    os.unlink(scene.path)
    with pytest.raises(NotOnServer):
        scene.fetch(offline=True)
    assert scene.asked() == []


def test_what_another_process_finished_meanwhile_is_not_fetched_again(scene):
    scene.fetch()
    whole = scene.path.read_bytes()
    scene.path.unlink()
    scene.transport.requests.clear()
    lock = FileLock(scene.beside(".lock"), "another")
    lock.acquire()

    class FinishingClock(FakeClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if lock.is_held:
                scene.path.write_bytes(whole)
                lock.release()

    scene.clock = FinishingClock()
    assert scene.fetch().status is Status.CACHED
    assert scene.asked() == []
    assert scene.phases()[-2:] == ["waiting", "done"]


def test_a_lock_that_stays_held_ends_it(scene):
    scene.path.parent.mkdir()
    with FileLock(scene.beside(".lock"), "another"), pytest.raises(LockHeld):
        scene.fetch()
    assert scene.asked() == []


def test_a_file_that_another_writer_took_over_is_not_named(scene):
    def replace(step):
        if step == "check":
            scene.beside(".part").rename(scene.beside(".moved"))
            scene.beside(".part").write_bytes(b"another's")

    scene.on_step = replace
    with pytest.raises(LockHeld, match="took over"):
        scene.fetch()
    assert not scene.path.exists()
    assert scene.beside(".part").read_bytes() == b"another's"


@pytest.mark.parametrize("suffix", ["", ".part", ".part.json", ".etag", ".lastmod"])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "linked twice"])
def test_nothing_planted_leads_a_write_elsewhere(scene, suffix, kind):
    victim = scene.folder / "victim"
    victim.write_bytes(b"mine")
    scene.path.parent.mkdir()
    planted = scene.beside(suffix)
    if kind == "pipe":
        os.mkfifo(planted)
    elif kind == "linked twice":
        os.link(victim, planted)
    else:
        planted.symlink_to(victim if kind == "link" else scene.folder / "nowhere")
    scene.fetch()
    assert victim.read_bytes() == b"mine"
    assert not (scene.folder / "nowhere").exists()
    assert scene.path.read_bytes() == LARGE
    assert not scene.path.is_symlink()


def test_a_folder_under_the_final_name_is_refused(scene):
    scene.path.mkdir(parents=True)
    with pytest.raises(LocalFile):
        scene.fetch()
    scene.data = SMALL
    with pytest.raises(LocalFile):
        scene.fetch()


def test_a_name_that_leads_elsewhere_is_refused_before_anything(scene):
    scene.landing = TargetFile(folder=str(scene.folder / "inner"), name="../f.bin")
    with pytest.raises(BadInput):
        scene.fetch()
    assert list(scene.folder.iterdir()) == []
