"""What a preview of a repository says is what the fetch after it does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import BadAnswer, BadInput, HashMismatch
from stoker.core.frozen import changed
from stoker.host.resources import SPARE_BYTES
from stoker.transfer.download.types import DownloadPreview, Status
from stoker.transfer.hub.listing import RepoFile, Revision
from stoker.transfer.hub.repository import RepoRequest, fetch_repository, preview_fetch
from tests.unit.transfer.real_hubs import FILES, LARGE, REPO, Scene, content, scenes


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with scenes(tmp_path) as one:
        yield one


def order_of(scene: Scene, **more: object) -> RepoRequest:
    hub = scene.hub()
    revision = hub.resolve(REPO, "main")
    return changed(RepoRequest(repo=REPO, revision=revision, files=hub.files(REPO, revision.commit)), **more)


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != "memo.db"}


def nothing(scene: Scene, out: Path) -> None:
    """There is nothing yet."""


def some_cached(scene: Scene, out: Path) -> None:
    hub = scene.hub()
    files = [file for file in hub.files(REPO, scene.commit) if file.path in ("config.json", "model.bin")]
    scene.fetch(hub, files=tuple(files))


def all_cached(scene: Scene, out: Path) -> None:
    scene.fetch()


def all_in_the_folder(scene: Scene, out: Path) -> None:
    scene.fetch(out=str(out))


def another_size_in_the_folder(scene: Scene, out: Path) -> None:
    scene.fetch(out=str(out))
    os.unlink(out / "tiny.bin")
    (out / "tiny.bin").write_bytes(b"other")


@pytest.mark.parametrize("force", [False, True], ids=["", "force"])
@pytest.mark.parametrize("place", ["cache", "folder", "elsewhere"])
@pytest.mark.parametrize(
    "before",
    [nothing, some_cached, all_cached, all_in_the_folder, another_size_in_the_folder],
    ids=lambda one: one.__name__,
)
def test_a_preview_says_what_the_fetch_then_does(scene: Scene, monkeypatch, before, place: str, force: bool) -> None:
    out = scene.folder / "out"
    if place == "elsewhere":
        monkeypatch.setattr("stoker.transfer.hub.repository.device_of", lambda path: path)
    before(scene, out)
    order = order_of(scene, out="" if place == "cache" else str(out), force=force)
    found = tree(scene.folder)
    preview = preview_fetch(scene.hub(), order)
    assert tree(scene.folder) == found
    outcomes = fetch_repository(scene.hub(), order)
    assert [one.label for one in preview.files] == [one.label for one in outcomes]
    for said, did in zip(preview.files, outcomes, strict=True):
        assert did.fetched is not None
        assert said.path == did.fetched.path
        assert said.size_bytes == did.fetched.size_bytes
        assert said.to_come_bytes == did.fetched.bytes_from_network, said
        assert said.status is did.fetched.status, said


def test_what_an_earlier_try_left_does_not_come_again(scene: Scene) -> None:
    order = order_of(scene)
    large = next(file for file in order.files if file.path == "model.bin")
    blobs = scene.repo_folder / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{large.blob}.part").write_bytes(LARGE[:1000])
    said = named(preview_fetch(scene.hub(), order), "model.bin")
    assert (said.partial_bytes, said.to_come_bytes) == (1000, len(LARGE) - 1000)
    assert named(preview_fetch(scene.hub(), changed(order, force=True)), "model.bin").to_come_bytes == len(LARGE)


def test_room_is_asked_for_where_the_bytes_go_and_copies_need_it_too(scene: Scene, monkeypatch) -> None:
    scene.fetch()
    out = str(scene.folder / "out")
    total = sum(len(content(path)) for path in FILES)
    asked: list[str] = []

    def free_bytes(path: str) -> int:
        asked.append(path)
        return total + SPARE_BYTES - 1

    def look(**more: object) -> DownloadPreview:
        hub = scene.hub()
        hub.tools = changed(hub.tools, free_bytes=free_bytes)
        return preview_fetch(hub, order_of(scene, **more))

    shared = look(out=out)
    assert (shared.needed_bytes, shared.to_come_bytes, shared.has_space) == (0, 0, True)
    monkeypatch.setattr("stoker.transfer.hub.repository.device_of", lambda path: path)
    copied = look(out=out)
    assert (copied.needed_bytes, copied.to_come_bytes, copied.has_space) == (total, 0, False)
    assert asked == [str(scene.repo_folder / "blobs"), out]


def test_offline_what_is_not_here_would_not_come(scene: Scene) -> None:
    some_cached(scene, scene.folder)
    hub = scene.hub(offline=True)
    order = order_of(scene)
    scene.fake.asked.clear()
    preview = preview_fetch(hub, order)
    outcomes = fetch_repository(hub, order)
    assert [one.is_missing for one in preview.files] == [one.error is not None for one in outcomes]
    assert preview.missing == 3
    assert preview.to_come_bytes == 0
    assert scene.fake.asked == []


def test_a_mirror_without_commits_needs_a_folder_and_tells_no_size_it_does_not_know(scene: Scene) -> None:
    revision = Revision(asked="main", commit="")
    order = RepoRequest(repo=REPO, revision=revision, files=[RepoFile(path="config.json")])
    with pytest.raises(BadInput, match="no commit"):
        preview_fetch(scene.hub(), order)
    preview = preview_fetch(scene.hub(), changed(order, out=str(scene.folder / "out")))
    assert (preview.to_come_bytes, preview.needed_bytes, preview.has_space) == (None, None, None)
    (said,) = preview.files
    assert said.status is Status.DOWNLOADED


@pytest.mark.parametrize("names", [("../x",), ("a", "a.part")])
def test_what_would_be_refused_is_refused(scene: Scene, names: tuple[str, ...]) -> None:
    files = [RepoFile(path=name, size_bytes=1, git_sha1="a" * 40) for name in names]
    order = order_of(scene, files=files, out=str(scene.folder / "out"))
    for act in (preview_fetch, fetch_repository):
        with pytest.raises(BadAnswer):
            act(scene.hub(), order)


def test_a_digest_that_the_hub_does_not_have_is_refused_at_once(scene: Scene) -> None:
    order = order_of(scene)
    large = [file for file in order.files if file.path == "model.bin"]
    scene.downloads()
    for act in (preview_fetch, fetch_repository):
        with pytest.raises(HashMismatch, match="not 0000"):
            act(scene.hub(), changed(order, files=large, sha256="0" * 64))
        with pytest.raises(BadInput, match="6 files"):
            act(scene.hub(), changed(order, sha256="0" * 64))
    assert scene.downloads() == 0


def named(preview: DownloadPreview, path: str):
    return next(one for one in preview.files if one.label == f"{REPO}: {path}")
