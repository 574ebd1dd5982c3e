"""One file from any address: where it lands, what its receipt saves, and what a preview says of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.digests import Digest, digest_bytes
from stoker.core.errors import HashMismatch, NotOnServer
from stoker.host.http.exchange import Request
from stoker.store.memo import Memo
from stoker.transfer.download.receipts import Receipts, receipt_of
from stoker.transfer.download.types import (
    DownloadStop,
    DownloadTimeouts,
    DownloadTools,
    FetchedFile,
    PlannedDownload,
    Status,
)
from stoker.transfer.hub.client import Hub, RepoListing
from stoker.transfer.hub.listing import HubSettings, Repo, RepoFile, Revision
from stoker.transfer.hub.single_files import fetch_plain, plain_landing, preview_plain, wanted_at, wanted_of
from tests.fakes.transport import FakeTransport, Scripted
from tests.unit.transfer.download_scene import served

URL = "https://host.example/file?signature=secret"
DATA = b"plain bytes"


class Scene:
    """A server with one file, and a user's folder."""

    def __init__(self, folder: Path) -> None:
        self.data, self.etag = DATA, '"one"'
        self.transport = FakeTransport(self._answer)
        self.receipts = Receipts(str(folder / "receipts"))
        self.folder = folder / "out"
        self.landing = plain_landing(str(self.folder), "file", locks=str(folder / "locks"))
        self.memo = Memo(str(folder / "memo.db"), set_aside=lambda path, reason: None)

    def _answer(self, request: Request) -> Scripted:
        return served(request, self.data, self.etag)

    def hub(self, *, offline: bool = False) -> Hub:
        tools = DownloadTools(
            transport=self.transport,
            clock=FakeClock(),
            free_bytes=lambda _: 1 << 50,
            jitter=lambda: 0.5,
            keep=lambda came: self.receipts.keep(
                [receipt_of(one, label=wanted.label, ended_s=0.0, version="1") for wanted, one in came]
            ),
        )
        settings = HubSettings(endpoint="https://hub.example", cache="nowhere", offline=offline)
        return Hub(settings, tools=tools, patience=DownloadTimeouts(), stop=DownloadStop(), memo=self.memo)

    def fetch(self, *, sha256: Digest | None = None, force: bool = False, offline: bool = False) -> FetchedFile:
        hub = self.hub(offline=offline)
        wanted = wanted_at(hub, URL, "file", sha256=sha256)
        return fetch_plain(hub, wanted, self.landing, receipts=self.receipts, force=force)

    def preview(self, *, sha256: Digest | None = None, force: bool = False, offline: bool = False) -> PlannedDownload:
        hub = self.hub(offline=offline)
        wanted = wanted_at(hub, URL, "file", sha256=sha256)
        (one,) = preview_plain(hub, wanted, self.landing, receipts=self.receipts, force=force).files
        return one

    def bodies(self) -> int:
        return len([request for request in self.transport.requests if request.method == "GET"])


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_nothing_but_the_file_is_left_in_the_folder(scene: Scene) -> None:
    assert scene.fetch().path == str(scene.folder / "file")
    assert os.listdir(scene.folder) == ["file"]


def test_its_receipt_says_whether_it_is_still_the_newest(scene: Scene) -> None:
    assert scene.preview().to_come_bytes == len(DATA)
    assert scene.fetch().status is Status.DOWNLOADED
    assert scene.preview().is_there
    assert scene.fetch().status is Status.CACHED
    assert scene.bodies() == 1
    scene.data, scene.etag = b"newer bytes!", '"two"'
    assert scene.preview().to_come_bytes == len(b"newer bytes!")
    assert scene.fetch().status is Status.DOWNLOADED


def test_an_edited_file_is_fetched_again(scene: Scene) -> None:
    scene.fetch()
    (scene.folder / "file").write_bytes(b"mine")
    assert not scene.preview().is_there
    assert scene.fetch().status is Status.DOWNLOADED
    assert (scene.folder / "file").read_bytes() == DATA


def test_without_a_receipt_what_lies_there_may_be_anything(scene: Scene) -> None:
    scene.folder.mkdir()
    (scene.folder / "file").write_bytes(DATA)
    assert not scene.preview().is_there
    assert scene.preview(sha256=digest_bytes(DATA)).is_there
    assert scene.fetch(sha256=digest_bytes(DATA)).status is Status.CACHED
    assert scene.fetch().status is Status.DOWNLOADED


def test_force_fetches_anew_and_says_so_before(scene: Scene) -> None:
    scene.fetch()
    assert scene.preview(force=True).to_come_bytes == len(DATA)
    assert scene.fetch(force=True).status is Status.DOWNLOADED


def test_offline_nobody_is_asked(scene: Scene) -> None:
    assert scene.preview(offline=True).is_missing
    with pytest.raises(NotOnServer):
        scene.fetch(offline=True)
    assert scene.transport.requests == []
    scene.fetch()
    asked = len(scene.transport.requests)
    there = scene.preview(offline=True)
    assert (there.is_there, there.is_missing, there.size_bytes) == (True, False, len(DATA))
    assert scene.fetch(offline=True).status is Status.CACHED
    assert len(scene.transport.requests) == asked


def test_a_preview_touches_nothing(scene: Scene) -> None:
    scene.preview()
    assert not scene.folder.exists()
    assert not os.path.exists(os.path.dirname(scene.landing.lock_path))


def test_a_file_of_the_hub_is_held_to_the_digest_that_was_given(scene: Scene) -> None:
    file = RepoFile(path="sub/file", size_bytes=3, sha256=Digest("a" * 64))
    found = RepoListing(repo=Repo(name="org/repo"), revision=Revision(asked="main", commit="c" * 40), files=(file,))
    assert wanted_of(scene.hub(), found).sha256 == "a" * 64
    assert wanted_of(scene.hub(), found, sha256=Digest("a" * 64)).label == "org/repo: sub/file"
    with pytest.raises(HashMismatch, match="is aaa"):
        wanted_of(scene.hub(), found, sha256=Digest("0" * 64))
