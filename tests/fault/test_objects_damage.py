"""Objects and uploads on disks that are full, and among files that are not what they should be."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import pytest

from stoker.core.digests import digest_bytes
from stoker.core.errors import NoSpace, NotFound
from stoker.store.local_store import LocalStore
from stoker.store.objects.local import LocalObjects
from stoker.store.objects.seam import Condition, PutOutcome
from stoker.store.prune import GRACE_S
from tests.unit.host.real_mounts import small_disk
from tests.unit.store.real_stores import (
    clock_of_now,
    make_store,
    quarantined,
    sweep,
)

DATA = random.Random(4).randbytes(1_500_000)
DIGEST = digest_bytes(DATA)


def objects_of(store: LocalStore) -> LocalObjects:
    return LocalObjects(store, clock=clock_of_now(), free_bytes=lambda _: 1 << 50)


def test_a_disk_that_fills_up_leaves_nothing_half(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        store = make_store(disk / "store")
        objects = objects_of(store)
        with pytest.raises(NoSpace):
            objects.put(DIGEST, io.BytesIO(DATA))
        assert objects.size(DIGEST) is None
        assert os.listdir(store.places.staging) == []
        small = b"small" * 1000
        assert objects.put(digest_bytes(small), io.BytesIO(small)) is PutOutcome.NEW
        store.close()


def test_an_upload_to_a_disk_that_fills_up_keeps_what_came(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        store = make_store(disk / "store")
        objects = objects_of(store)
        (disk / "filler").write_bytes(bytes(300_000))
        upload = objects.begin(DIGEST, len(DATA))
        pieces = io.BytesIO(DATA)
        pieces.read = lambda size=-1: io.BytesIO.read(pieces, 50_000)  # type: ignore[method-assign]
        with pytest.raises(NoSpace):
            objects.append(upload.id, 0, pieces)
        os.unlink(disk / "filler")
        came = objects.upload(upload.id).offset
        assert 0 < came < len(DATA)
        store.close()


def test_there_is_no_room_that_the_disk_does_not_have(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        store = make_store(disk / "store")
        objects = LocalObjects(store, clock=clock_of_now())
        for act in (
            lambda: objects.begin(DIGEST, len(DATA)),
            lambda: objects.put(DIGEST, io.BytesIO(), size_bytes=len(DATA)),
        ):
            with pytest.raises(NoSpace, match="needs"):
                act()
        store.close()


def test_an_object_that_is_swept_while_somebody_reads_it_stays_whole(tmp_path: Path) -> None:
    clock = clock_of_now()
    store = make_store(tmp_path / "store", clock=clock)
    objects = LocalObjects(store, clock=clock)
    objects.put(DIGEST, io.BytesIO(DATA))
    with objects.open(DIGEST) as whole, objects.open(DIGEST, start=7, length=900_000) as part:
        first = whole.read(5)
        clock.advance(GRACE_S + 60)
        assert sweep(store, clock=clock).blobs == 1
        assert objects.size(DIGEST) is None
        assert first + whole.read() == DATA
        assert part.read() == DATA[7:900_007]
    assert objects.put(DIGEST, io.BytesIO(DATA)) is PutOutcome.NEW
    store.close()


def test_an_object_that_is_put_again_is_spared_by_a_sweep(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    objects = objects_of(store)
    objects.put(DIGEST, io.BytesIO(DATA))
    blob = store.places.blob(DIGEST)
    os.utime(blob, (1, 1))
    assert objects.put(DIGEST, io.BytesIO(DATA)) is PutOutcome.KNOWN
    assert os.stat(blob).st_mtime > 1
    assert sweep(store, clock=clock_of_now()).blobs == 0
    assert objects.verify(DIGEST) is Condition.WHOLE
    store.close()


@pytest.mark.parametrize("kind", ["folder", "symlink", "truncated", "emptied"])
def test_whatever_lies_in_an_objects_place_is_set_aside_and_mended(tmp_path: Path, kind: str) -> None:
    store = make_store(tmp_path / "store")
    objects = objects_of(store)
    objects.put(DIGEST, io.BytesIO(DATA))
    blob = Path(store.places.blob(DIGEST))
    if kind in {"folder", "symlink"}:
        blob.unlink()
        blob.mkdir() if kind == "folder" else blob.symlink_to("/etc/passwd")
    else:
        blob.chmod(0o644)
        os.truncate(blob, 1000 if kind == "truncated" else 0)
    assert objects.verify(DIGEST) is Condition.DAMAGED
    assert len(quarantined(store)) == 1
    assert objects.size(DIGEST) is None
    assert objects.put(DIGEST, io.BytesIO(DATA)) is PutOutcome.NEW
    assert objects.verify(DIGEST) is Condition.WHOLE
    store.close()


def test_a_put_mends_an_object_whose_damage_nobody_had_found(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    objects = objects_of(store)
    objects.put(DIGEST, io.BytesIO(DATA))
    blob = Path(store.places.blob(DIGEST))
    blob.chmod(0o644)
    blob.write_bytes(bytes(len(DATA)))
    assert objects.put(DIGEST, io.BytesIO(DATA)) is PutOutcome.NEW
    assert blob.read_bytes() == DATA
    assert blob.stat().st_mode & 0o777 == 0o444
    assert len(quarantined(store)) == 1
    store.close()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"not json",
        b"\xff",
        b"[]",
        b'{"digest": "../../x", "size_bytes": 1, "durable_bytes": 0, "boot_id": ""}',
        b'{"digest": 5, "size_bytes": 1, "durable_bytes": 0, "boot_id": ""}',
        b"x" * 10_000,
    ],
)
def test_an_upload_with_a_damaged_sidecar_is_not_found_and_swept(tmp_path: Path, text: bytes) -> None:
    store = make_store(tmp_path / "store")
    objects = objects_of(store)
    upload = objects.begin(DIGEST, len(DATA))
    Path(store.places.upload(upload.id), "about.json").write_bytes(text)
    for act in (lambda: objects.upload(upload.id), lambda: objects.finish(upload.id)):
        with pytest.raises(NotFound):
            act()
    assert objects.sweep_uploads(grace_s=-60) == (upload.id,)
    assert os.listdir(store.places.uploads) == []
    store.close()


def test_what_is_no_upload_is_left_alone_by_a_sweep(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    os.makedirs(f"{store.places.uploads}/somebody's")
    assert objects_of(store).sweep_uploads(grace_s=-60) == ()
    assert os.listdir(store.places.uploads) == ["somebody's"]
    store.close()


def test_a_planted_link_in_an_uploads_place_is_not_written_through(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    objects = objects_of(store)
    upload = objects.begin(DIGEST, len(DATA))
    (tmp_path / "precious").write_bytes(b"mine")
    part = Path(store.places.upload(upload.id), "part")
    part.unlink()
    part.symlink_to(tmp_path / "precious")
    with pytest.raises(Exception, match="symbolic link"):
        objects.append(upload.id, objects.upload(upload.id).offset, io.BytesIO(DATA))
    assert (tmp_path / "precious").read_bytes() == b"mine"
    store.close()
