"""`stoker get` of a fleet's job: plain files, verified, nothing that leads out."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading

import pytest

from stoker.api.fleet_job import FleetResult, fetch_result
from stoker.coordinator.storage.storage import LocalCoordinatorStorage
from stoker.core.clock import SystemClock
from stoker.core.errors import InvalidArchive, NotFound, NotVerified
from stoker.core.frozen import changed
from stoker.jobs.result_archives import pack_result
from stoker.store.local_store import LocalStore
from stoker.store.trees import scan_tree
from stoker.transfer.trees.tree_sources import TransferConnection
from stoker.transfer.trees.tree_upload import send
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
        passage = TransferConnection(line=self.line, stop=threading.Event(), clock=CLOCK, tries=2, chance=lambda: 0.0)
        spool = str(self.top / "spool")
        return fetch_result(passage, wanted, str(self.top / into), store=self.store, spool=spool)

    def left_over(self):
        spool = self.top / "spool"
        return [*os.listdir(self.store.places.staging), *(os.listdir(spool) if spool.is_dir() else ())]


@pytest.fixture
def line(tmp_path):
    keeping = LocalCoordinatorStorage(str(tmp_path / "fleet"), CLOCK)
    yield KeptLine(keeping)
    keeping.close()


@pytest.fixture
def laptop(tmp_path, line):
    laptop = Laptop(tmp_path / "laptop", line)
    yield laptop
    laptop.store.close()


@pytest.fixture
def wanted(office, line, tmp_path):
    done = office.run("test/blobs")
    archive = pack_result(office.lab.store, done.folder, str(tmp_path / "spool"))
    send(TransferConnection(line=line, stop=threading.Event(), clock=CLOCK), archive)
    bundle = {"tree": archive.tree, "archive_sha256": archive.sha256, "size_bytes": archive.size_bytes}
    return FleetResult.of("blobs", "7" * 64, bundle, recipe="test/blobs", machine="desk")


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
    with pytest.raises(NotVerified):
        laptop.get(changed(wanted, tree="1" * 64))
    assert not (laptop.top / "out").exists()
    assert laptop.left_over() == []


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
    data = HOSTILE[name]
    sha = hashlib.sha256(data).hexdigest()
    laptop.line.keeping.bundles.put(sha, io.BytesIO(data))
    hostile = FleetResult(name="bad", job="7" * 64, tree="1" * 64, archive_sha256=sha, size_bytes=len(data))
    with pytest.raises(InvalidArchive):
        laptop.get(hostile)
    assert not (laptop.top / "out").exists()
    assert not (laptop.top.parent / "escaped").exists()
    assert laptop.left_over() == []


def test_a_job_without_a_result_or_with_a_pruned_one_says_so():
    with pytest.raises(NotFound, match="has no result"):
        FleetResult.of("gbt", "7" * 64, {})
    with pytest.raises(NotFound, match="was pruned") as caught:
        FleetResult.of("gbt", "7" * 64, {"tree": "1" * 64, "archive_sha256": "2" * 64, "pruned_s": 5.0})
    assert "requeue" in caught.value.hint
