"""Archives with the coordinator: known ones need no bytes, and what is on its way out is not there any more."""

from __future__ import annotations

import hashlib
import io
import os

import pytest

from stoker.coordinator.storage.attempt_files import CoordinatorStorageLimits
from stoker.coordinator.storage.models import IngestRecord, ModelView
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.core.clock import FakeClock
from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes
from stoker.core.errors import BadInput, HashMismatch, NotFound, Refused, TooLarge, Unavailable
from stoker.core.frozen import changed
from stoker.store.archives.archive_members import listing_bytes
from stoker.store.objects.seam import PutOutcome

DATA = b"an archive" * 100
SHA = hashlib.sha256(DATA).hexdigest()
JOB = "7" * 64


@pytest.fixture
def keeping(tmp_path):
    keeping = CoordinatorStorage(
        str(tmp_path / "fleet"), FakeClock(), limits=CoordinatorStorageLimits(archive_bytes=5000)
    )
    yield keeping
    keeping.close()


def bring(keeping, data=DATA):
    sha = hashlib.sha256(data).hexdigest()
    upload = keeping.bundles.begin(sha, len(data))
    keeping.bundles.append(upload.id, 0, data)
    keeping.bundles.finish(upload.id)
    return sha


def test_an_archive_is_there_once_it_is_finished_and_not_before(keeping):
    bundles = keeping.bundles
    upload = bundles.begin(SHA, len(DATA))
    assert bundles.append(upload.id, 0, DATA[:300]) == 300
    assert keeping.has_archive(SHA) is None
    with pytest.raises(Refused):
        bundles.finish(upload.id)
    assert bundles.append(upload.id, 300, io.BytesIO(DATA[300:])) == len(DATA)
    assert keeping.has_archive(SHA) is None
    assert bundles.finish(upload.id) is PutOutcome.NEW
    assert keeping.has_archive(SHA) == len(DATA)
    with bundles.open(SHA, start=5, length=10) as file:
        assert file.read() == DATA[5:15]


def test_an_upload_is_its_owner_s_alone_also_for_another_process(keeping, tmp_path):
    bundles = keeping.bundles
    mine = bundles.begin(SHA, len(DATA), owner="person ada")
    bundles.append(mine.id, 0, DATA[:300], owner="person ada")
    assert bundles.begin(SHA, len(DATA), owner="person ada") == changed(mine, offset=300)
    theirs = bundles.begin(SHA, len(DATA), owner="person eve")
    assert (theirs.id != mine.id, theirs.offset) == (True, 0)
    keeping.close()
    again = CoordinatorStorage(
        str(tmp_path / "fleet"), FakeClock(), limits=CoordinatorStorageLimits(archive_bytes=5000)
    ).bundles
    for other in ("person eve", "machine ada", ""):
        with pytest.raises(NotFound):
            again.append(mine.id, 300, b"x", owner=other)
        with pytest.raises(NotFound):
            again.finish(mine.id, owner=other)
        with pytest.raises(NotFound):
            again.upload(mine.id, owner=other)
    assert again.append(mine.id, 300, DATA[300:], owner="person ada") == len(DATA)
    assert again.finish(mine.id, owner="person ada") is PutOutcome.NEW


def test_a_known_archive_needs_no_bytes(keeping):
    bring(keeping)
    begun = keeping.bundles.begin(SHA, len(DATA))
    assert (begun.id, begun.offset, begun.is_known) == ("", len(DATA), True)


def test_whoever_asks_again_is_given_the_upload_that_is_under_way(keeping):
    first = keeping.bundles.begin(SHA, len(DATA))
    keeping.bundles.append(first.id, 0, DATA[:10])
    again = keeping.bundles.begin(SHA, len(DATA))
    assert (again.id, again.offset) == (first.id, 10)
    keeping.objects.abandon(first.id)
    assert keeping.bundles.begin(SHA, len(DATA)).id != first.id


def test_bytes_that_are_others_are_not_kept(keeping):
    upload = keeping.bundles.begin(SHA, 5)
    keeping.bundles.append(upload.id, 0, b"other")
    with pytest.raises(HashMismatch):
        keeping.bundles.finish(upload.id)
    assert keeping.has_archive(SHA) is None
    with pytest.raises(NotFound):
        keeping.bundles.upload(upload.id)


def test_an_offset_that_is_not_where_the_upload_is_is_refused_with_the_right_one(keeping):
    upload = keeping.bundles.begin(SHA, len(DATA))
    keeping.bundles.append(upload.id, 0, DATA[:10])
    with pytest.raises(Refused) as caught:
        keeping.bundles.append(upload.id, 20, b"x")
    assert caught.value.data["offset"] == 10


def test_too_much_and_what_is_no_digest_is_refused_before_anything_is_touched(keeping):
    with pytest.raises(TooLarge):
        keeping.bundles.begin(SHA, 5001)
    for odd in ("", "../../etc/passwd", SHA.upper(), SHA[:-1]):
        with pytest.raises(BadInput):
            keeping.bundles.begin(odd, 5)
        assert keeping.has_archive(odd) is None
    assert keeping.objects.stale_uploads(grace_s=-1e12) == ()


def test_bytes_that_are_gone_or_damaged_are_not_there(keeping):
    bring(keeping)
    path = os.path.join(keeping.folder, "store", "blobs", SHA[0], SHA)
    os.chmod(path, 0o644)
    with open(path, "ab") as file:
        file.write(b"!")
    assert keeping.has_archive(SHA) is None
    bring(keeping)
    assert keeping.has_archive(SHA) == len(DATA)
    os.unlink(path)
    assert keeping.has_archive(SHA) is None


def test_what_is_being_removed_is_not_there_and_can_not_come_in(keeping):
    bring(keeping)
    upload = keeping.bundles.begin("1" * 64, 5)
    keeping.bundles.append(upload.id, 0, b"other")
    with keeping.bundles.removing(frozenset({SHA, "1" * 64})):
        assert keeping.has_archive(SHA) is None
        for act in (
            lambda: keeping.bundles.begin(SHA, len(DATA)),
            lambda: keeping.bundles.finish(upload.id),
            lambda: keeping.bundles.removing(frozenset({SHA})).__enter__(),
        ):
            with pytest.raises(Unavailable):
                act()
    assert keeping.has_archive(SHA) == len(DATA)


INGEST = IngestRecord(
    job=JOB,
    name="gbt",
    attempt=1,
    model="tabular/gbt",
    mode="realistic",
    archive_sha256=SHA,
    tree="2" * 64,
    listing="",
    size_bytes=len(DATA),
    at_s=5.0,
)


def ingest(**more):
    return changed(INGEST, **more)


def test_a_result_is_shown_by_model_and_mode_with_one_line_in_the_index(keeping):
    bring(keeping)
    assert keeping.models.ingest(ingest())
    link = os.path.join(keeping.folder, "models", "tabular_gbt_realistic", SHA, "bundle")
    with open(link, "rb") as file:
        assert file.read() == DATA
    assert not os.path.isabs(os.readlink(link))
    (row,) = keeping.models.rows()
    assert (row["job"], row["attempt"], row["sha256"], row["model"]) == (JOB, 1, SHA, "tabular/gbt")


def test_the_files_of_a_tree_are_shown_as_links(keeping):
    bring(keeping)
    link = TreeEntry("last", 5, digest_bytes(b"a/one"), link_to="a/one")
    tree = Tree((TreeEntry("a/one", len(DATA), Digest(SHA)), link))
    listing = listing_bytes(tree)
    keeping.objects.put(digest_bytes(listing), io.BytesIO(listing))
    one = ingest(archive_sha256="", tree=tree.digest(), listing=digest_bytes(listing))
    assert keeping.models.ingest(one)
    assert not keeping.models.ingest(one)
    folder = os.path.join(keeping.folder, "models", "tabular_gbt_realistic", tree.digest(), "bundle")
    assert keeping.models.link_of(one) == folder
    for path in ("a/one", "last"):
        with open(os.path.join(folder, path), "rb") as file:
            assert file.read() == DATA
    (row,) = keeping.models.rows()
    assert (row["sha256"], row["tree"]) == ("", tree.digest())
    keeping.models.drop(frozenset({tree.digest()}))
    assert set(os.listdir(os.path.join(keeping.folder, "models"))) == {".lock", "index.jsonl"}


def test_a_result_that_is_taken_in_again_changes_nothing_also_after_a_restart(keeping):
    bring(keeping)
    assert keeping.models.ingest(ingest())
    assert not keeping.models.ingest(ingest())
    again = ModelView(keeping.models.folder, keeping.models._place_of)
    assert not again.ingest(ingest())
    assert not again.ingest(ingest(attempt=3, at_s=4.0))
    assert again.ingest(ingest(attempt=2))
    assert again.ingest(ingest(job="8" * 64, at_s=6.0))
    assert not ModelView(keeping.models.folder, keeping.models._place_of).ingest(ingest(attempt=2))
    assert [(row["attempt"], row["at_s"]) for row in again.rows()] == [(1, 5.0), (2, 5.0), (1, 6.0)]


def test_a_torn_line_of_the_index_is_passed_over_and_the_next_begins_anew(keeping):
    keeping.models.ingest(ingest())
    with open(keeping.models.index, "ab") as file:
        file.write(b'{"v":1,"jo')
    keeping.models.ingest(ingest(attempt=2))
    assert [row["attempt"] for row in keeping.models.rows()] == [1, 2]


@pytest.mark.parametrize("model", ["../../escape", "/etc", ".", "", "x" * 500, "a/b:c d", "con"], ids=repr)
def test_whatever_a_model_is_called_its_folder_lies_in_the_view(keeping, model):
    one = ingest(model=model, mode="")
    keeping.models.ingest(one)
    folder = os.path.dirname(os.path.dirname(keeping.models.link_of(one)))
    assert os.path.dirname(folder) == keeping.models.folder
    assert os.path.basename(folder) in os.listdir(keeping.models.folder)
