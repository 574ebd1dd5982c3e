"""A digest that somebody gives with a small file, of which the hub only tells git's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import HashMismatch
from stoker.core.frozen import changed
from stoker.transfer.download.types import DownloadOutcome
from stoker.transfer.hub.listing import RepoFile, Revision
from stoker.transfer.hub.repository import RepoRequest, fetch_repository
from tests.servers.hub import git_sha1
from tests.unit.transfer.real_hubs import REPO, Scene, content, scenes

NAME = "config.json"
RIGHT, WRONG = hashlib.sha256(content(NAME)).hexdigest(), "0" * 64


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with scenes(tmp_path) as one:
        yield one


def fetch(scene: Scene, sha256: str, out: str) -> DownloadOutcome:
    files = tuple(file for file in scene.hub().files(REPO, scene.commit) if file.path == NAME)
    (outcome,) = scene.fetch(files=files, sha256=sha256, out=out)
    return outcome


@pytest.mark.parametrize("place", ["cache", "folder", "elsewhere"])
@pytest.mark.parametrize("is_cached", [False, True], ids=["new", "cached"])
def test_wrong_bytes_get_no_name_and_right_ones_do(scene: Scene, monkeypatch, place: str, is_cached: bool) -> None:
    if is_cached:
        scene.fetch()
    if place == "elsewhere":
        monkeypatch.setattr("stoker.transfer.hub.repository.device_of", lambda path: path)
    out = scene.folder / "out"
    named = "" if place == "cache" else str(out)
    assert isinstance(fetch(scene, WRONG, named).error, HashMismatch)
    assert not (out / NAME).exists()
    if is_cached:
        # It is the user who may be wrong: the cache's bytes are what the hub says.
        assert (scene.repo_folder / "blobs" / git_sha1(content(NAME))).read_bytes() == content(NAME)
    right = fetch(scene, RIGHT, named)
    assert right.fetched is not None
    assert Path(right.fetched.path).read_bytes() == content(NAME)


def test_a_mirror_that_tells_no_digest_at_all_is_held_to_it_too(scene: Scene) -> None:
    out = scene.folder / "out"
    order = RepoRequest(
        repo=REPO, revision=Revision(asked="main", commit=""), files=[RepoFile(path=NAME)], out=str(out)
    )
    (wrong,) = fetch_repository(scene.hub(), changed(order, sha256=WRONG))
    assert isinstance(wrong.error, HashMismatch)
    assert not (out / NAME).exists()
    (right,) = fetch_repository(scene.hub(), changed(order, sha256=RIGHT))
    assert right.error is None
    assert (out / NAME).read_bytes() == content(NAME)
