import os
from pathlib import Path

import pytest

from stoker.core.digests import Digest
from stoker.transfer.hub.hub_cache import HubCache
from stoker.transfer.hub.listing import Repo, RepoFile

REPO = Repo(name="org/name")
COMMIT = "c" * 40
FILES = (
    RepoFile(path="a/b.txt", size_bytes=3, git_sha1="1" * 40),
    RepoFile(path="m.bin", size_bytes=9, sha256=Digest("2" * 64), pointer_sha1="3" * 40, xet_hash="4" * 64),
)


@pytest.fixture
def cache(tmp_path: Path) -> HubCache:
    return HubCache(str(tmp_path / "hub"))


def test_a_ref_is_read_as_it_was_written(cache: HubCache):
    assert cache.read_ref(REPO, "refs/pr/1") == ""
    cache.write_ref(REPO, "refs/pr/1", COMMIT)
    assert cache.read_ref(REPO, "refs/pr/1") == COMMIT
    cache.write_ref(REPO, "refs/pr/1", "d" * 40)
    assert cache.read_ref(REPO, "refs/pr/1") == "d" * 40


def test_a_revision_is_here_once_there_are_files_of_its_commit(cache: HubCache):
    cache.write_ref(REPO, "main", COMMIT)
    assert cache.commit_at(REPO, "main") == cache.commit_at(REPO, COMMIT) == ""
    os.makedirs(cache.snapshot(REPO, COMMIT))
    assert cache.commit_at(REPO, "main") == cache.commit_at(REPO, COMMIT) == COMMIT
    assert cache.commit_at(REPO, "..") == cache.commit_at(REPO, "v1") == ""
    os.makedirs(os.path.join(cache.root, "datasets--org--data"))
    assert cache.models() == [REPO]


def test_a_commit_needs_no_ref(cache: HubCache):
    cache.write_ref(REPO, COMMIT, COMMIT)
    assert not os.path.exists(cache.folder(REPO))


@pytest.mark.parametrize("text", ["", "main", "../../x", "C" * 40, "c" * 41, "\xff"])
def test_a_ref_that_names_no_commit_counts_as_none(cache: HubCache, text: str):
    path = Path(cache.folder(REPO), "refs", "main")
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    assert cache.read_ref(REPO, "main") == ""


def test_what_a_commit_holds_is_read_as_it_was_noted(cache: HubCache):
    assert cache.read_tree(REPO, COMMIT) is None
    cache.write_tree(REPO, COMMIT, FILES)
    assert cache.read_tree(REPO, COMMIT) == FILES


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"format_version": 2, "files": {}}',
        '{"format_version": 1}',
        '{"format_version": 1, "files": {"a": {"size": -1, "blob_id": "x"}}}',
        '{"format_version": 1, "files": {"a": {"size": 1, "blob_id": "../../../x"}}}',
        '{"format_version": 1, "files": {"a": 3}}',
        "[" * 10_000,
    ],
)
def test_a_damaged_note_counts_as_none(cache: HubCache, text: str):
    path = Path(cache.folder(REPO), "trees", f"{COMMIT}.json")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert cache.read_tree(REPO, COMMIT) is None


def test_a_snapshot_tells_the_digests_that_its_links_name(cache: HubCache):
    top = Path(cache.snapshot(REPO, COMMIT))
    blobs = Path(cache.blobs(REPO))
    (top / "a").mkdir(parents=True)
    blobs.mkdir()
    (blobs / ("1" * 40)).write_bytes(b"one")
    (blobs / ("2" * 64)).write_bytes(b"two two")
    (top / "a" / "b.txt").symlink_to(f"../../../blobs/{'1' * 40}")
    (top / "m.bin").symlink_to(f"../../blobs/{'2' * 64}")
    (top / "plain").write_bytes(b"12345")
    (top / "gone").symlink_to("../../blobs/" + "5" * 40)
    found = cache.read_snapshot(REPO, COMMIT)
    assert [(file.path, file.size_bytes, file.blob) for file in found] == [
        ("a/b.txt", 3, "1" * 40),
        ("m.bin", 7, "2" * 64),
        ("plain", 5, ""),
    ]


def test_a_cache_that_is_not_there_is_empty(cache: HubCache):
    assert cache.read_snapshot(REPO, COMMIT) == ()
    assert cache.partials() == []
    assert cache.find(Digest("a" * 64)) == []


def test_bytes_are_found_by_their_digest_in_any_repository(cache: HubCache):
    digest = Digest("a" * 64)
    paths = [Path(cache.root, folder, "blobs", digest) for folder in ("datasets--d", "models--org--name")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    Path(cache.root, "models--other", "blobs", digest).mkdir(parents=True)
    assert cache.find(digest) == [str(path) for path in paths]


def test_whatever_did_not_come_to_its_end_is_listed_with_what_belongs_to_it(cache: HubCache):
    blobs = Path(cache.blobs(REPO))
    blobs.mkdir(parents=True)
    claim = "cc.part.0123abcd-0123abcd-0123abcd-77-8888"
    sizes = {
        "aa": 1,
        "aa.part.damaged-1-a": 1,
        "bb.part": 20,
        "bb.part.json": 3,
        claim: 40,
        f"{claim}.json": 5,
        "dd.part.json": 6,
        "ee.1234.incomplete": 70,
    }
    for name, size in sizes.items():
        (blobs / name).write_bytes(b"x" * size)
    found = [([Path(path).name for path in one.paths], one.size_bytes, one.is_foreign) for one in cache.partials()]
    assert found == [
        (["bb.part", "bb.part.json"], 23, False),
        ([claim, f"{claim}.json"], 45, False),
        (["dd.part.json"], 6, False),
        (["ee.1234.incomplete"], 70, True),
    ]
    names = {one.paths[0]: os.path.basename(cache.lock_of(one.paths[0])) for one in cache.partials()}
    assert list(names.values()) == ["bb.lock", "cc.lock", "dd.lock", "ee.lock"]
    assert cache.lock_of(str(blobs / claim)) == cache.lock(REPO, "cc")


def test_making_a_repositorys_folders_marks_the_cache_for_backup_programs(cache: HubCache):
    cache.make(REPO, now_s=0.0)
    assert os.path.isdir(cache.blobs(REPO))
    assert os.path.isdir(os.path.dirname(cache.lock(REPO, "x")))
    assert Path(cache.root, "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55")
    cache.make(REPO, now_s=0.0)


def test_the_lock_is_the_one_that_the_client_takes(cache: HubCache):
    assert cache.lock(REPO, "abc") == f"{cache.root}/.locks/models--org--name/abc.lock"


def test_only_a_hash_leads_into_the_shared_store(cache: HubCache):
    assert cache.shared("ab" + "0" * 62) == f"{cache.root}/blobs/ab/ab{'0' * 62}"
    assert cache.shared("../../../etc/passwd") == ""
    assert cache.shared("") == ""


def test_temporary_files_of_a_dead_process_are_swept_once_they_are_old(cache: HubCache):
    cache.make(REPO, now_s=0.0)
    left = Path(cache.blobs(REPO), ".stoker-tmp-999999999-1-abcdef")
    left.write_bytes(b"x")
    now_s = left.stat().st_mtime
    cache.make(REPO, now_s=now_s + 60)
    assert left.exists()
    cache.make(REPO, now_s=now_s + 7200)
    assert not left.exists()
