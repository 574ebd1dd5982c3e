"""Kill -9 at every step of putting an object; a power cut in the middle of an upload."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.core.digests import digest_bytes
from stoker.core.errors import NotFound
from stoker.host.durable import remove_tree
from stoker.store.local_store import LocalStore
from stoker.store.objects.local import LocalObjects
from stoker.store.objects.seam import PutOutcome, Upload
from stoker.store.records import seal, unseal
from tests.fault.test_store_kills import Countdown, assert_nothing_is_torn, memory, survives
from tests.lengths import moments
from tests.unit.host.real_processes import code_of, fork
from tests.unit.store.real_stores import clock_of_now, make_store

__all__ = ["memory"]

DATA = random.Random(2).randbytes(2_500_000)
DIGEST = digest_bytes(DATA)
HALF = len(DATA) // 2


def objects_of(store: LocalStore) -> LocalObjects:
    return LocalObjects(store, clock=clock_of_now())


class Stepping(io.BytesIO):
    """A stream that counts as a step at every read."""

    def __init__(self, data: bytes, step: Countdown) -> None:
        super().__init__(data)
        self._step = step

    def read(self, size: int | None = -1, /) -> bytes:
        self._step()
        return super().read(min(size or 0, 300_000))


def killed_at_every_step(
    folder: Path, before: Callable[[LocalStore], str], act: Callable[[LocalStore, str, Countdown], object]
):
    """Do it in a child that is killed one step later each time; gives the store after every kill."""
    for moment in moments():
        root = folder / str(moment)
        store = make_store(root)
        upload_id = before(store)
        store.close()

        def until(root: Path = root, upload_id: str = upload_id, moment: int = moment) -> None:
            countdown = Countdown(moment)
            countdown.watch_calls()
            act(make_store(root, on_step=countdown), upload_id, countdown)

        ended = survives(until)
        store = make_store(root)
        yield store, upload_id, ended
        store.close()
        remove_tree(root)
        if ended:
            # Else there was nothing to be killed at, and nothing was tried.
            assert moment > 5
            return


def test_a_put_killed_at_any_step_leaves_all_or_nothing_and_can_be_repeated(memory):
    def put(store: LocalStore, _: str, countdown: Countdown) -> None:
        objects_of(store).put(DIGEST, Stepping(DATA, countdown))

    for store, _, ended in killed_at_every_step(memory, lambda _: "", put):
        assert_nothing_is_torn(store)
        objects = objects_of(store)
        assert objects.size(DIGEST) in ({len(DATA)} if ended else {None, len(DATA)})
        objects.put(DIGEST, io.BytesIO(DATA))
        with objects.open(DIGEST) as stream:
            assert stream.read() == DATA


def begun(store: LocalStore) -> str:
    objects = objects_of(store)
    upload = objects.begin(DIGEST, len(DATA))
    objects.append(upload.id, 0, io.BytesIO(DATA[:HALF]))
    return upload.id


def test_an_upload_killed_at_any_step_can_be_gone_on_with(memory):
    def go_on(store: LocalStore, upload_id: str, countdown: Countdown) -> None:
        objects_of(store).append(upload_id, HALF, Stepping(DATA[HALF:], countdown))

    for store, upload_id, ended in killed_at_every_step(memory, begun, go_on):
        objects = objects_of(store)
        offset = objects.upload(upload_id).offset
        assert HALF <= offset <= len(DATA)
        assert not ended or offset == len(DATA)
        objects.append(upload_id, offset, io.BytesIO(DATA[offset:]))
        assert objects.finish(upload_id) is PutOutcome.NEW
        with objects.open(DIGEST) as stream:
            assert stream.read() == DATA


def complete(store: LocalStore) -> str:
    upload_id = begun(store)
    objects_of(store).append(upload_id, HALF, io.BytesIO(DATA[HALF:]))
    return upload_id


def test_finishing_killed_at_any_step_leaves_all_or_nothing_and_can_be_repeated(memory):
    def finish(store: LocalStore, upload_id: str, _: Countdown) -> None:
        objects_of(store).finish(upload_id)

    for store, upload_id, ended in killed_at_every_step(memory, complete, finish):
        assert_nothing_is_torn(store)
        objects = objects_of(store)
        if objects.size(DIGEST) is None:
            assert not ended
            assert objects.finish(upload_id) is PutOutcome.NEW
        elif os.path.exists(f"{store.places.upload(upload_id)}/about.json"):
            assert objects.finish(upload_id) is PutOutcome.KNOWN
        with objects.open(DIGEST) as stream:
            assert stream.read() == DATA
        objects.sweep_uploads(grace_s=-60)
        assert os.listdir(store.places.uploads) == []


def test_an_upload_whose_about_was_edited_or_torn_is_none(memory):
    store = make_store(memory / "store")
    for spoil in (lambda data: data.replace(b'"size_bytes":', b'"size_bytes":1'), lambda data: data[:-9]):
        upload_id = begun(store)
        about = Path(store.places.upload(upload_id), "about.json")
        about.write_bytes(spoil(about.read_bytes()))
        with pytest.raises(NotFound):
            objects_of(store).upload(upload_id)
    assert len(objects_of(store).sweep_uploads(grace_s=-60)) == 2
    store.close()


def after_a_power_cut(store: LocalStore, upload_id: str) -> Upload:
    """Make an upload look as after another boot, and see how far it is."""
    about = Path(store.places.upload(upload_id), "about.json")
    about.write_bytes(seal("upload/1", unseal("upload/1", about.read_bytes()) | {"boot_id": "another"}))
    return objects_of(store).upload(upload_id)


def test_after_a_power_cut_only_durable_bytes_are_trusted(tmp_path):
    store = make_store(tmp_path / "store")
    upload_id = begun(store)
    part = Path(store.places.upload(upload_id), "part")
    with part.open("ab") as file:
        # Its length came to the disk, its bytes did not.
        file.write(bytes(100_000))
    assert after_a_power_cut(store, upload_id).offset == HALF
    objects = objects_of(store)
    assert objects.append(upload_id, HALF, io.BytesIO(DATA[HALF : HALF + 10])).offset == HALF + 10
    assert part.stat().st_size == HALF + 10
    objects.append(upload_id, HALF + 10, io.BytesIO(DATA[HALF + 10 :]))
    assert objects.finish(upload_id) is PutOutcome.NEW
    store.close()


def test_a_part_that_lost_bytes_is_believed_over_its_sidecar(tmp_path):
    store = make_store(tmp_path / "store")
    upload_id = begun(store)
    os.truncate(Path(store.places.upload(upload_id), "part"), 1000)
    assert objects_of(store).upload(upload_id).offset == 1000
    assert after_a_power_cut(store, upload_id).offset == 1000
    store.close()


def test_two_processes_put_one_object_at_once(tmp_path):
    store = make_store(tmp_path / "store")
    children = [fork(lambda: objects_of(store).put(DIGEST, io.BytesIO(DATA))) for _ in range(4)]
    assert [code_of(child) for child in children] == [0] * 4
    assert_nothing_is_torn(store)
    assert [stored.digest for stored in objects_of(store).list()] == [DIGEST]
    assert os.listdir(store.places.staging) == []
    store.close()
