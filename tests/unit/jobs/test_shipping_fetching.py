"""`stoker get` of a fleet's job: plain files, verified, nothing that leads out."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile

import pytest

from stoker.api.fleet_attempt import FleetResult, fetch_result
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.core.clock import SystemClock
from stoker.core.digests import Tree, TreeEntry, digest_bytes
from stoker.core.errors import HashMismatch, InvalidArchive, NotFound
from stoker.core.frozen import changed
from stoker.engine.journal import read_status
from stoker.jobs.job_history import tell
from stoker.jobs.results import parts_of_job
from stoker.store.archives.archive_members import listing_bytes
from stoker.store.archives.pack import write_bundle
from stoker.store.local_store import LocalStore
from stoker.store.results import lay_out, tree_of
from stoker.store.trees import scan_tree
from stoker.transfer.trees.tree_upload import StoreFileSource, send_tree
from tests.fakes.fleet_line import KeptLine

CLOCK = SystemClock()


class Laptop:
    """Where `stoker get` is typed."""

    def __init__(self, top, line):
        self.top = top
        self.line = line
        self.store = LocalStore(str(top / "store"), clock=CLOCK)
        self.store.open()

    def get(self, wanted, into="out"):
        part = fetch_result(self.line, wanted, self.store, clock=CLOCK)
        return lay_out(self.store, [part], str(self.top / into))

    def left_over(self):
        return os.listdir(self.store.places.staging)


@pytest.fixture
def line(tmp_path):
    keeping = CoordinatorStorage(str(tmp_path / "fleet"), CLOCK)
    yield KeptLine(keeping)
    keeping.close()


@pytest.fixture
def laptop(tmp_path, line):
    laptop = Laptop(tmp_path / "laptop", line)
    yield laptop
    laptop.store.close()


def parts_of(office, done):
    return parts_of_job(office.lab.store, done.folder, tell(read_status(done.folder.status_path)))


def result(tree, size_bytes):
    bundle = {"tree": tree, "archive_sha256": "", "size_bytes": size_bytes}
    return FleetResult.of("blobs", "7" * 64, bundle, recipe="test/blobs", machine="desk")


@pytest.fixture
def wanted(office, line):
    parts = parts_of(office, office.run("test/blobs"))
    tree = tree_of(parts)
    send_tree(line, tree, StoreFileSource(office.lab.store, *(part.record for part in parts)))
    return result(tree.digest(), tree.size_bytes)


def test_a_result_comes_as_plain_files(laptop, wanted):
    laid_out = laptop.get(wanted)
    assert laid_out.files
    os.unlink(os.path.join(laid_out.folder, ".stoker.json"))
    assert scan_tree(laid_out.folder).digest() == wanted.tree
    assert laptop.left_over() == []


def test_a_second_get_fetches_nothing(laptop, wanted):
    laptop.get(wanted)
    laptop.line.calls.clear()
    laptop.get(wanted, "again")
    assert laptop.line.calls == []


def test_what_somebody_edited_is_kept_beside_the_new_one(laptop, wanted):
    laid_out = laptop.get(wanted)
    edited = os.path.join(laid_out.folder, laid_out.files[0])
    os.chmod(edited, 0o644)
    with open(edited, "wb") as file:
        file.write(b"mine")
    assert laptop.get(wanted).kept_edits == (f"{laid_out.files[0]}~",)


def test_a_tree_that_is_another_than_the_coordinator_tells_is_not_believed(laptop, wanted):
    laptop.line.tree_listing = lambda _tree: laptop.line.trees.listing(wanted.tree)
    with pytest.raises(HashMismatch):
        laptop.get(changed(wanted, tree="1" * 64))
    assert not (laptop.top / "out").exists()
    assert laptop.left_over() == []


@pytest.mark.parametrize(
    "entry",
    [
        TreeEntry("../../escaped", 1, digest_bytes(b"x")),
        TreeEntry("/tmp/escaped", 1, digest_bytes(b"x")),
        TreeEntry("way", 5, digest_bytes(b"../.."), link_to="../.."),
    ],
    ids=["climbs out", "absolute", "link out"],
)
def test_a_hostile_listing_is_refused(laptop, entry):
    tree = Tree((entry,))
    laptop.line.tree_listing = lambda _tree: listing_bytes(tree)
    with pytest.raises(InvalidArchive):
        laptop.get(result(tree.digest(), 1))
    assert not (laptop.top / "out").exists()
    assert not (laptop.top.parent / "escaped").exists()
    assert laptop.left_over() == []


# --- archives of an earlier version -----------------------------------------------------------


def archived(line, tree, data):
    sha = hashlib.sha256(data).hexdigest()
    line.keeping.objects.put(sha, io.BytesIO(data))
    line.rows.archives[tree] = sha


def test_a_result_that_an_earlier_version_kept_as_an_archive_is_unpacked_once(office, laptop, tmp_path):
    parts = parts_of(office, office.run("test/blobs"))
    path = tmp_path / "bundle.tar.zst"
    write_bundle(office.lab.store, parts, str(path), heed=lambda _: None)
    tree = tree_of(parts).digest()
    archived(laptop.line, tree, path.read_bytes())
    assert laptop.line.trees.has(tree)
    assert tree not in laptop.line.rows.rows
    assert laptop.get(result(tree, 1)).files
    assert tree in laptop.line.rows.rows
    assert os.listdir(tmp_path / "fleet" / "store" / "staging") == []


def _tar(*members):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for member in members:
            info = tarfile.TarInfo(member["name"])
            info.type = member.get("type", tarfile.REGTYPE)
            info.linkname = member.get("link", "")
            info.size = len(member.get("data", b""))
            tar.addfile(info, io.BytesIO(member.get("data", b"")))
    return sink.getvalue()


HOSTILE = {
    "climbs out": _tar({"name": "../../escaped", "data": b"x"}),
    "absolute": _tar({"name": "/tmp/escaped", "data": b"x"}),
    "link out": _tar({"name": "way", "type": tarfile.SYMTYPE, "link": "../.."}),
    "hard link out": _tar({"name": "way", "type": tarfile.LNKTYPE, "link": "/etc/passwd"}),
    "device": _tar({"name": "null", "type": tarfile.CHRTYPE}),
    "pipe": _tar({"name": "pipe", "type": tarfile.FIFOTYPE}),
    "no archive": b"not an archive at all",
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_nothing_hostile_is_unpacked(laptop, name):
    archived(laptop.line, "1" * 64, HOSTILE[name])
    with pytest.raises((InvalidArchive, NotFound)):
        laptop.get(result("1" * 64, 1))
    assert not (laptop.top / "out").exists()
    assert not list(laptop.top.parent.rglob("escaped"))
    assert laptop.left_over() == []


def test_a_job_without_a_result_or_with_a_pruned_one_says_so():
    with pytest.raises(NotFound, match="has no result"):
        FleetResult.of("gbt", "7" * 64, {})
    with pytest.raises(NotFound, match="was pruned") as caught:
        FleetResult.of("gbt", "7" * 64, {"tree": "1" * 64, "archive_sha256": "2" * 64, "pruned_s": 5.0})
    assert "requeue" in caught.value.hint
