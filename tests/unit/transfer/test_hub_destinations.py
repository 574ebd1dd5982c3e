import errno
import hashlib
import os
import stat
from pathlib import Path

import pytest

from stoker.core.errors import BadInput
from stoker.core.events import Kinds
from stoker.transfer.download.types import Status
from stoker.transfer.hub.listing import RepoFile, Revision
from stoker.transfer.hub.repository import RepoRequest, fetch_repository, first_cause
from tests.servers.hub import Served, git_sha1
from tests.unit.transfer.real_hubs import FILES, LARGE, REPO, Scene, content, fetched, named, path_of, scenes


@pytest.fixture
def scene(tmp_path: Path):
    with scenes(tmp_path) as one:
        yield one


def statuses(outcomes) -> set[Status]:
    return {outcome.fetched.status for outcome in outcomes}


def test_a_blob_that_is_not_what_its_name_says_is_set_aside_told_and_fetched_anew(scene: Scene):
    blobs = scene.repo_folder / "blobs"
    blobs.mkdir(parents=True)
    wrong_large = bytes(len(LARGE))
    (blobs / hashlib.sha256(LARGE).hexdigest()).write_bytes(wrong_large)
    (blobs / git_sha1(content("nested/deep/notes.md"))).write_bytes(b"# nothes")
    outcomes = scene.fetch()
    assert first_cause(outcomes) is None
    assert (scene.snapshot / "model.bin").read_bytes() == LARGE
    aside = [path for path in blobs.iterdir() if ".damaged-" in path.name]
    assert sorted(path.read_bytes() for path in aside) == [wrong_large, b"# nothes"]
    told = [event.fields["message"] for event in scene.news if event.kind == Kinds.WARNING]
    assert len(told) == 2
    assert any("model.bin was damaged" in str(message) for message in told)


def test_good_blobs_of_another_program_are_adopted_without_a_byte_sent(scene: Scene):
    blobs = scene.repo_folder / "blobs"
    blobs.mkdir(parents=True)
    for path, file in FILES.items():
        name = file.sha256 if isinstance(file, Served) else git_sha1(file)
        (blobs / name).write_bytes(content(path))
    assert statuses(scene.fetch()) == {Status.CACHED}
    assert scene.downloads() == 0
    assert (scene.snapshot / "nested/deep/notes.md").read_bytes() == content("nested/deep/notes.md")


@pytest.fixture
def as_a_user(monkeypatch):
    """Be somebody to whom a read-only file is read-only, whoever runs the tests."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.fixture
def as_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.fixture
def without_shared_blocks(monkeypatch):
    monkeypatch.setattr("stoker.host.writers.reflink", lambda *_: False)


@pytest.mark.usefixtures("as_a_user", "without_shared_blocks")
def test_files_in_a_folder_share_the_caches_bytes_and_can_not_damage_it(scene: Scene):
    out = scene.folder / "out"
    outcomes = scene.fetch(out=str(out))
    assert first_cause(outcomes) is None
    for path in FILES:
        assert (out / path).read_bytes() == content(path)
    file, blob = out / "model.bin", scene.repo_folder / "blobs" / hashlib.sha256(LARGE).hexdigest()
    assert os.path.samefile(file, blob)
    assert not stat.S_IMODE(file.stat().st_mode) & 0o222
    assert fetched(outcomes, "model.bin").path == str(file)
    assert (scene.snapshot / "model.bin").exists()


@pytest.mark.usefixtures("as_root", "without_shared_blocks")
def test_root_whom_no_mode_binds_gets_files_that_are_not_the_caches(scene: Scene):
    out = scene.folder / "out"
    assert first_cause(scene.fetch(out=str(out))) is None
    (out / "config.json").write_bytes(b"edited")
    (out / "model.bin").write_bytes(b"edited")
    assert (scene.snapshot / "config.json").read_bytes() == content("config.json")
    assert (scene.snapshot / "model.bin").read_bytes() == LARGE


def test_beside_a_cache_that_can_only_be_read_a_folder_is_filled_from_it(scene: Scene, monkeypatch):
    scene.fetch()
    scene.downloads()
    before = {path: path.lstat().st_ctime_ns for path in scene.cache.rglob("*")}
    # Root may write anywhere, so that it can't is only said.
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(scene.cache)))
    outcomes = scene.fetch(out=str(scene.folder / "out"))
    assert first_cause(outcomes) is None
    assert statuses(outcomes) == {Status.LINKED}
    assert scene.downloads() == 0
    assert {path: path.lstat().st_ctime_ns for path in scene.cache.rglob("*")} == before


def test_damage_in_a_cache_that_can_only_be_read_is_left_there_and_the_file_fetched(scene: Scene, monkeypatch):
    scene.fetch()
    blob = scene.repo_folder / "blobs" / hashlib.sha256(LARGE).hexdigest()
    blob.chmod(0o644)
    blob.write_bytes(bytes(len(LARGE)))
    renamed = os.rename

    def refuse(source, target, **more):
        if str(source).startswith(str(scene.cache)):
            raise PermissionError(errno.EACCES, "not yours")
        renamed(source, target, **more)

    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(scene.cache)))
    monkeypatch.setattr(os, "rename", refuse)
    outcomes = scene.fetch(out=str(scene.folder / "out"))
    assert fetched(outcomes, "model.bin").status is Status.DOWNLOADED
    assert (scene.folder / "out/model.bin").read_bytes() == LARGE


def test_a_folder_swapped_for_a_link_while_it_is_filled_leads_no_file_out_of_it(scene: Scene, monkeypatch):
    scene.fetch()
    out, elsewhere = scene.folder / "out", scene.folder / "elsewhere"
    elsewhere.mkdir()

    def swap(*arguments, **more):
        if (out / "nested").is_dir() and not (out / "nested").is_symlink():
            (out / "nested").rename(out / "was_nested")
            (out / "nested").symlink_to(elsewhere)
        return False

    # Called between the opening of the folder and the first byte.
    monkeypatch.setattr("stoker.host.writers.reflink", swap)
    scene.fetch(out=str(out), workers=1)
    assert (out / "nested").is_symlink()
    assert os.listdir(elsewhere) == []


def test_a_folder_is_filled_from_the_cache_without_a_byte_sent_and_a_second_time_left_alone(scene: Scene):
    scene.fetch()
    scene.downloads()
    out = scene.folder / "out"
    assert statuses(scene.fetch(out=str(out))) == {Status.LINKED}
    assert scene.downloads() == 0
    before = {path: (out / path).stat() for path in FILES}
    assert statuses(scene.fetch(out=str(out))) == {Status.CACHED}
    assert {path: (out / path).stat().st_ino for path in FILES} == {path: before[path].st_ino for path in FILES}


def test_an_older_file_in_a_folder_is_replaced(scene: Scene):
    out = scene.folder / "out"
    out.mkdir()
    (out / "config.json").write_bytes(b"{}")
    assert first_cause(scene.fetch(out=str(out))) is None
    assert (out / "config.json").read_bytes() == content("config.json")


def test_a_folder_on_another_file_system_gets_files_of_its_own(scene: Scene, monkeypatch):
    out = scene.folder / "out"
    monkeypatch.setattr("stoker.transfer.hub.repository.device_of", lambda path: path)
    assert statuses(scene.fetch(out=str(out))) == {Status.DOWNLOADED}
    assert not (scene.repo_folder / "blobs").exists()
    for path in FILES:
        assert (out / path).read_bytes() == content(path)
        assert (out / path).stat().st_mode & 0o200
    assert statuses(scene.fetch(out=str(out))) == {Status.CACHED}


def test_no_lock_stays_beside_the_files_of_a_folder_not_even_that_of_a_killed_process(scene: Scene, monkeypatch):
    monkeypatch.setattr("stoker.transfer.hub.repository.device_of", hash)
    out = scene.folder / "elsewhere"
    assert first_cause(scene.fetch(out=str(out))) is None
    assert list(out.rglob("*.lock")) == []
    (out / "model.bin.lock").write_bytes(b'{"identity":')
    assert statuses(scene.fetch(out=str(out))) == {Status.CACHED}
    assert list(out.rglob("*.lock")) == []


def test_a_folder_on_another_file_system_is_copied_from_the_cache(scene: Scene, monkeypatch):
    scene.fetch()
    scene.downloads()
    monkeypatch.setattr("stoker.transfer.hub.repository.device_of", lambda path: path)
    out = scene.folder / "out"
    assert statuses(scene.fetch(out=str(out))) == {Status.LINKED}
    assert scene.downloads() == 0
    assert (out / "model.bin").stat().st_nlink == 1


def test_a_link_planted_in_the_folder_leads_no_file_out_of_it(scene: Scene):
    out, elsewhere = scene.folder / "out", scene.folder / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (out / "nested").symlink_to(elsewhere)
    (out / "config.json").symlink_to(elsewhere / "config.json")
    outcomes = scene.fetch(out=str(out), workers=1)
    assert {path_of(one) for one in outcomes if one.error} == {"nested/deep/notes.md", "nested/again.json"}
    assert os.listdir(elsewhere) == []
    assert not (out / "config.json").is_symlink()


def test_a_link_planted_in_the_snapshot_leads_no_name_out_of_it(scene: Scene):
    elsewhere = scene.folder / "elsewhere"
    elsewhere.mkdir()
    scene.snapshot.mkdir(parents=True)
    (scene.snapshot / "nested").symlink_to(elsewhere)
    outcomes = scene.fetch(workers=1)
    assert named(outcomes, "nested/deep/notes.md").error is not None
    assert named(outcomes, "empty.txt").error is None
    assert os.listdir(elsewhere) == []


def test_without_symbolic_links_a_snapshot_holds_files(scene: Scene):
    hub = scene.hub(symlinks=False)
    assert first_cause(scene.fetch(hub)) is None
    for path in FILES:
        assert not (scene.snapshot / path).is_symlink()
        assert (scene.snapshot / path).read_bytes() == content(path)
    scene.downloads()
    assert statuses(scene.fetch(hub)) == {Status.CACHED}
    assert scene.downloads() == 0


def test_where_the_file_system_has_no_links_a_snapshot_holds_files(scene: Scene, monkeypatch):
    def no_links(*arguments, **more):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "symlink", no_links)
    assert first_cause(scene.fetch()) is None
    assert (scene.snapshot / "nested/deep/notes.md").read_bytes() == content("nested/deep/notes.md")
    assert not (scene.snapshot / "nested/deep/notes.md").is_symlink()


def test_a_name_that_leads_to_other_bytes_is_put_right(scene: Scene):
    (scene.snapshot / "nested").mkdir(parents=True)
    (scene.snapshot / "config.json").symlink_to("../../blobs/elsewhere")
    (scene.snapshot / "empty.txt").write_bytes(b"not empty")
    assert first_cause(scene.fetch()) is None
    assert (scene.snapshot / "config.json").read_bytes() == content("config.json")
    assert (scene.snapshot / "empty.txt").read_bytes() == b""


def test_a_file_that_the_client_left_in_a_snapshot_without_links_is_adopted(scene: Scene):
    scene.snapshot.mkdir(parents=True)
    (scene.snapshot / "model.bin").write_bytes(LARGE)
    assert fetched(scene.fetch(), "model.bin").status is Status.CACHED
    assert scene.fake.asked_for(hashlib.sha256(LARGE).hexdigest()) == []


def test_bytes_in_the_clients_shared_store_are_used_and_never_changed(scene: Scene):
    xet_hash = "ab" + "0" * 62
    scene.commit = scene.fake.repository("org/name").commit({"model.bin": Served(LARGE, True, xet_hash)})
    shared = scene.cache / "blobs" / "ab" / xet_hash
    shared.parent.mkdir(parents=True)
    shared.write_bytes(LARGE)
    before = sorted(os.listdir(shared.parent))
    assert statuses(scene.fetch()) == {Status.LINKED}
    assert (scene.snapshot / "model.bin").read_bytes() == LARGE
    assert sorted(os.listdir(shared.parent)) == before
    assert scene.downloads() == 0


def test_damage_in_the_shared_store_is_left_there_and_the_file_fetched(scene: Scene):
    xet_hash = "ab" + "0" * 62
    scene.commit = scene.fake.repository("org/name").commit({"model.bin": Served(LARGE, True, xet_hash)})
    shared = scene.cache / "blobs" / "ab" / xet_hash
    shared.parent.mkdir(parents=True)
    shared.write_bytes(bytes(len(LARGE)))
    blobs = scene.repo_folder / "blobs"
    blobs.mkdir(parents=True)
    (blobs / hashlib.sha256(LARGE).hexdigest()).symlink_to(f"../../blobs/ab/{xet_hash}")
    assert statuses(scene.fetch()) == {Status.DOWNLOADED}
    assert (scene.snapshot / "model.bin").read_bytes() == LARGE
    assert shared.read_bytes() == bytes(len(LARGE))


def test_without_a_commit_only_a_folder_will_do(scene: Scene):
    hub = scene.hub()
    revision = Revision(asked="main", commit="")
    files = [RepoFile(path="config.json")]
    with pytest.raises(BadInput, match="no commit"):
        fetch_repository(hub, RepoRequest(repo=REPO, revision=revision, files=files))
    out = scene.folder / "out"
    outcomes = fetch_repository(hub, RepoRequest(repo=REPO, revision=revision, files=files, out=str(out)))
    assert first_cause(outcomes) is None
    assert (out / "config.json").read_bytes() == content("config.json")


def test_blobs_of_ours_are_read_only(scene: Scene):
    scene.fetch()
    for blob in (scene.repo_folder / "blobs").iterdir():
        if blob.suffix == "":
            assert not blob.stat().st_mode & 0o222, blob


def test_nothing_but_blobs_is_left_beside_them(scene: Scene):
    scene.fetch()
    names = os.listdir(scene.repo_folder / "blobs")
    assert all(len(name) in (40, 64) for name in names), names
