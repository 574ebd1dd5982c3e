"""What every place where objects live promises. An implementation joins by a bench of its own."""

from __future__ import annotations

import io
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pytest

from stoker.core.clock import FakeClock, SystemClock
from stoker.core.digests import Digest, digest_bytes
from stoker.core.errors import BadInput, HashMismatch, LockHeld, NoSpace, NotFound, Refused
from stoker.store.local_store import LocalStore
from stoker.store.objects.local import LocalObjects
from stoker.store.objects.s3 import S3Objects, index_name
from stoker.store.objects.s3_bucket import S3Bucket
from stoker.store.objects.s3_index import S3Index
from stoker.store.objects.seam import Condition, Objects, PutOutcome
from tests.servers.seaweed import SeaweedServer

DAY_S = 86400.0


class Bench(Protocol):
    """One implementation on trial, with what the suite can't do through the seam."""

    clock: FakeClock

    @property
    def objects(self) -> Objects: ...

    def reopen(self) -> Objects:
        """Return the same place as another process would see it."""

    def rot(self, digest: Digest) -> None:
        """Flip a bit of an object where it lies, without its times showing it."""

    def fill_up(self) -> None:
        """Leave no room."""

    def close(self) -> None: ...


class LocalBench:
    def __init__(self, folder: Path) -> None:
        # A little after whatever the file system calls now.
        self.clock = FakeClock(start_s=time.time() + 1)
        self._folder = folder
        self._free_bytes = 1 << 50
        self._stores: list[LocalStore] = []
        self.objects = self.reopen()

    def reopen(self) -> LocalObjects:
        store = LocalStore(str(self._folder / "store"), clock=self.clock)
        store.open()
        self._stores.append(store)
        return LocalObjects(store, clock=self.clock, free_bytes=lambda _: self._free_bytes)

    def rot(self, digest: Digest) -> None:
        path = self._stores[0].places.blob(digest)
        before = os.stat(path)
        os.chmod(path, 0o644)
        data = bytearray(Path(path).read_bytes())
        data[len(data) // 2] ^= 1
        Path(path).write_bytes(data)
        os.chmod(path, before.st_mode)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def fill_up(self) -> None:
        self._free_bytes = 0

    def close(self) -> None:
        for store in self._stores:
            store.close()


class S3Bench:
    """SeaweedFS: a prefix for each test, and parts of 1 MiB, so that large objects have several."""

    def __init__(self, folder: Path, server: SeaweedServer) -> None:
        self.clock = FakeClock(start_s=time.time() + 1)
        self._folder = folder
        self._site = server.new_site()
        self._free_bytes = 1 << 50
        self._opened: list[tuple[LocalStore, S3Objects]] = []
        self.objects = self.reopen()

    def reopen(self) -> S3Objects:
        store = LocalStore(str(self._folder / "store"), clock=self.clock)
        store.open()
        objects = S3Objects(
            store,
            self._site,
            folder=str(self._folder),
            clock=self.clock,
            part_bytes=1 << 20,
            free_bytes=lambda _: self._free_bytes,
        )
        self._opened.append((store, objects))
        return objects

    def rot(self, digest: Digest) -> None:
        bucket = S3Bucket(self._site, clock=SystemClock())
        found = S3Index(str(self._folder / index_name(self._site))).find(digest)
        assert found is not None
        name = f"objects/{found.parts[1][0] if found.parts else digest}"
        data = bytearray(bucket.get(name) or b"")
        data[len(data) // 2] ^= 1
        bucket.replace(name, bytes(data))

    def fill_up(self) -> None:
        self._free_bytes = 0

    def close(self) -> None:
        for store, objects in self._opened:
            objects.close()
            store.close()


@pytest.fixture(params=["local", "s3"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    is_local = request.param == "local"
    made: Bench = LocalBench(tmp_path) if is_local else S3Bench(tmp_path, request.getfixturevalue("seaweed"))
    yield made
    made.close()


@pytest.fixture
def objects(bench: Bench) -> Objects:
    return bench.objects


SMALL = b"some bytes"
# Past every buffer, and no multiple of one.
LARGE = random.Random(7).randbytes(3 * (1 << 20) + 17)


def put(objects: Objects, data: bytes) -> Digest:
    digest = digest_bytes(data)
    assert objects.put(digest, io.BytesIO(data)) is PutOutcome.NEW
    return digest


def read(objects: Objects, digest: Digest, **span: int) -> bytes:
    with objects.open(digest, **span) as stream:
        return stream.read()


class Cut(io.RawIOBase):
    """A stream that breaks after so many bytes, and is read in small pieces."""

    def __init__(self, data: bytes, breaks_at: int, *, piece: int = 70_000) -> None:
        self._data = data[:breaks_at]
        self._at = 0
        self._piece = piece

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        piece = self._data[self._at : self._at + min(self._piece, size or 0)]
        self._at += len(piece)
        if not piece:
            message = "the other side is gone"
            raise ConnectionResetError(message)
        return piece


class Untouchable(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        message = "nobody may read this"
        raise AssertionError(message)


# --- objects --------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
def test_what_is_put_is_there_and_comes_back(bench: Bench, data: bytes) -> None:
    digest = put(bench.objects, data)
    for objects in (bench.objects, bench.reopen()):
        assert objects.size(digest) == len(data)
        assert read(objects, digest) == data


def test_what_nobody_put_is_not_there(objects: Objects) -> None:
    digest = digest_bytes(SMALL)
    assert objects.size(digest) is None
    assert objects.verify(digest) is Condition.MISSING
    assert not objects.remove(digest)
    assert list(objects.list()) == []
    with pytest.raises(NotFound):
        objects.open(digest)


@pytest.mark.parametrize(
    ("start", "length"), [(0, 5), (3, 5), (0, None), (17, None), (1 << 20, 2_000_000), (len(LARGE), None), (5, 0)]
)
def test_a_range_is_just_those_bytes(objects: Objects, start: int, length: int | None) -> None:
    digest = put(objects, LARGE)
    with objects.open(digest, start=start, length=length) as stream:
        assert stream.read() == LARGE[start : None if length is None else start + length]


def test_a_range_may_be_longer_than_the_rest_but_must_begin_within(objects: Objects) -> None:
    digest = put(objects, SMALL)
    assert read(objects, digest, start=4, length=1000) == SMALL[4:]
    for start, length in ((-1, 1), (len(SMALL) + 1, 1), (0, -1)):
        with pytest.raises(BadInput):
            objects.open(digest, start=start, length=length)


def test_a_range_can_be_read_piece_by_piece(objects: Objects) -> None:
    digest = put(objects, LARGE)
    with objects.open(digest, start=10, length=100_000) as stream:
        pieces = list(iter(lambda: stream.read(999), b""))
    assert b"".join(pieces) == LARGE[10:100_010]


@pytest.mark.parametrize("data", [b"other bytes", SMALL + b"!", SMALL[:-1], b""])
def test_bytes_of_another_digest_are_refused_and_leave_nothing(objects: Objects, data: bytes) -> None:
    digest = digest_bytes(SMALL)
    with pytest.raises(HashMismatch):
        objects.put(digest, io.BytesIO(data))
    assert objects.size(digest) is None
    assert objects.size(digest_bytes(data)) is None
    assert list(objects.list()) == []
    assert objects.put(digest, io.BytesIO(SMALL)) is PutOutcome.NEW


@pytest.mark.parametrize("announced", [0, len(SMALL) - 1, len(SMALL) + 1])
def test_another_size_than_announced_is_refused(objects: Objects, announced: int) -> None:
    digest = digest_bytes(SMALL)
    with pytest.raises(HashMismatch):
        objects.put(digest, io.BytesIO(SMALL), size_bytes=announced)
    assert objects.size(digest) is None
    assert objects.put(digest, io.BytesIO(SMALL), size_bytes=len(SMALL)) is PutOutcome.NEW
    with pytest.raises(HashMismatch):
        objects.put(digest, io.BytesIO(SMALL), size_bytes=announced)


def test_a_stream_that_never_ends_is_not_read_for_ever(objects: Objects) -> None:
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size: int | None = -1, /) -> bytes:
            self.given += size or 0
            return bytes(size or 0)

    endless = Endless()
    with pytest.raises(HashMismatch):
        objects.put(digest_bytes(SMALL), endless, size_bytes=len(SMALL))  # type: ignore[arg-type]
    assert endless.given < 100_000_000


@pytest.mark.parametrize("breaks_at", [0, 1, 1 << 20, len(LARGE) - 1, len(LARGE)])
def test_a_stream_that_breaks_leaves_nothing(objects: Objects, breaks_at: int) -> None:
    digest = digest_bytes(LARGE)
    with pytest.raises(ConnectionResetError):
        objects.put(digest, Cut(LARGE, breaks_at))  # type: ignore[arg-type]
    assert objects.size(digest) is None
    assert list(objects.list()) == []
    assert objects.put(digest, io.BytesIO(LARGE)) is PutOutcome.NEW


def test_an_object_that_is_known_is_not_read_again(bench: Bench) -> None:
    digest = put(bench.objects, LARGE)
    for objects in (bench.objects, bench.reopen()):
        assert objects.put(digest, Untouchable()) is PutOutcome.KNOWN  # type: ignore[arg-type]
    assert read(bench.objects, digest) == LARGE


def test_equal_objects_put_at_once_both_come_in(bench: Bench) -> None:
    digest = digest_bytes(LARGE)
    everybody = threading.Barrier(4)

    class Together(io.BytesIO):
        """Lets nobody finish before all have begun."""

        def read(self, size: int | None = -1, /) -> bytes:
            if not self.tell():
                everybody.wait(10)
            return super().read(size)

    with ThreadPoolExecutor(4) as pool:
        puts = [pool.submit(bench.reopen().put, digest, Together(LARGE)) for _ in range(4)]
        outcomes = [one.result() for one in puts]
    assert set(outcomes) <= {PutOutcome.NEW, PutOutcome.KNOWN}
    assert read(bench.objects, digest) == LARGE
    assert [stored.digest for stored in bench.objects.list()] == [digest]


def test_no_room_is_said_before_a_byte_is_read(bench: Bench) -> None:
    bench.fill_up()
    digest = digest_bytes(SMALL)
    with pytest.raises(NoSpace):
        bench.objects.put(digest, Untouchable(), size_bytes=len(SMALL))  # type: ignore[arg-type]
    with pytest.raises(NoSpace):
        bench.objects.begin(digest, len(SMALL))


@pytest.mark.parametrize("span", [{}, {"start": 5, "length": 2_000_000}], ids=["whole", "range"])
def test_what_is_open_stays_whole_while_it_is_removed(objects: Objects, span: dict[str, int]) -> None:
    digest = put(objects, LARGE)
    with objects.open(digest, **span) as stream:
        first = stream.read(3)
        assert objects.remove(digest)
        assert objects.size(digest) is None
        rest = stream.read()
    start = span.get("start", 0)
    assert first + rest == LARGE[start : start + span.get("length", len(LARGE))]


def test_everything_that_is_there_is_listed_once_in_order(bench: Bench) -> None:
    digests = {put(bench.objects, bytes([number]) * number): number for number in range(40)}
    listed = list(bench.objects.list())
    assert [stored.digest for stored in listed] == sorted(digests)
    assert all(stored.size_bytes == digests[stored.digest] for stored in listed)
    assert all(abs(stored.touched_s - bench.clock.wall_s()) < 60 for stored in listed)


def test_removing_spares_what_was_put_lately(bench: Bench) -> None:
    digest = put(bench.objects, SMALL)
    assert not bench.objects.remove(digest, grace_s=DAY_S)
    assert read(bench.objects, digest) == SMALL
    bench.clock.advance(2 * DAY_S)
    assert bench.objects.remove(digest, grace_s=DAY_S)
    assert bench.objects.size(digest) is None
    assert not bench.objects.remove(digest, grace_s=DAY_S)
    assert put(bench.objects, SMALL) == digest


def test_a_rotten_object_is_found_no_longer_served_and_mended_by_a_put(bench: Bench) -> None:
    digest = put(bench.objects, LARGE)
    assert bench.objects.verify(digest) is Condition.WHOLE
    bench.rot(digest)
    assert bench.objects.verify(digest) is Condition.DAMAGED
    for objects in (bench.objects, bench.reopen()):
        assert objects.size(digest) is None
        with pytest.raises(NotFound):
            objects.open(digest)
    assert objects.verify(digest) is Condition.MISSING
    assert objects.put(digest, io.BytesIO(LARGE)) is PutOutcome.NEW
    assert bench.objects.verify(digest) is Condition.WHOLE
    assert read(bench.objects, digest) == LARGE


BAD_DIGESTS = [
    "",
    "abc",
    "../../etc/passwd",
    "sha256:" + "0" * 64,
    "0" * 63,
    "0" * 65,
    "A" * 64,
    "0" * 63 + "\n",
    "0" * 62 + "/x",
    "\u0660" * 64,
    "\0" * 64,
]


@pytest.mark.parametrize("text", BAD_DIGESTS, ids=ascii)
def test_what_is_not_a_digest_is_refused_everywhere(objects: Objects, text: str) -> None:
    digest = Digest(text)
    asked: list[Callable[[], object]] = [
        lambda: objects.size(digest),
        lambda: objects.open(digest),
        lambda: objects.put(digest, Untouchable()),  # type: ignore[arg-type]
        lambda: objects.begin(digest, 1),
        lambda: objects.remove(digest),
        lambda: objects.verify(digest),
    ]
    for ask in asked:
        with pytest.raises(BadInput):
            ask()


# --- uploads --------------------------------------------------------------------------------


def test_an_upload_comes_in_pieces_over_several_processes(bench: Bench) -> None:
    digest = digest_bytes(LARGE)
    upload = bench.objects.begin(digest, len(LARGE))
    assert (upload.digest, upload.size_bytes, upload.offset) == (digest, len(LARGE), 0)
    at = 0
    for end in (1, 1 << 20, (1 << 20) + 5, len(LARGE)):
        objects = bench.reopen()
        assert objects.upload(upload.id).offset == at
        assert objects.append(upload.id, at, io.BytesIO(LARGE[at:end])).offset == end
        assert objects.size(digest) is None
        at = end
    assert bench.reopen().finish(upload.id) is PutOutcome.NEW
    assert read(bench.objects, digest) == LARGE


def test_an_upload_goes_on_only_where_it_is(objects: Objects) -> None:
    upload = objects.begin(digest_bytes(SMALL), len(SMALL))
    objects.append(upload.id, 0, io.BytesIO(SMALL[:4]))
    for offset in (0, 3, 5, -1, len(SMALL)):
        with pytest.raises(Refused) as refused:
            objects.append(upload.id, offset, Untouchable())  # type: ignore[arg-type]
        assert refused.value.data["offset"] == 4
    assert objects.append(upload.id, 4, io.BytesIO(SMALL[4:])).offset == len(SMALL)
    assert objects.finish(upload.id) is PutOutcome.NEW


@pytest.mark.parametrize("breaks_at", [0, 1, 100_000, len(LARGE)])
def test_what_came_before_an_upload_broke_stays(bench: Bench, breaks_at: int) -> None:
    upload = bench.objects.begin(digest_bytes(LARGE), len(LARGE))
    with pytest.raises(ConnectionResetError):
        bench.objects.append(upload.id, 0, Cut(LARGE, breaks_at))  # type: ignore[arg-type]
    objects = bench.reopen()
    offset = objects.upload(upload.id).offset
    assert offset == breaks_at
    objects.append(upload.id, offset, io.BytesIO(LARGE[offset:]))
    assert objects.finish(upload.id) is PutOutcome.NEW
    assert read(objects, upload.digest) == LARGE


def test_more_than_was_announced_is_not_taken(objects: Objects) -> None:
    upload = objects.begin(digest_bytes(LARGE), len(LARGE))
    objects.append(upload.id, 0, io.BytesIO(LARGE[:4]))
    with pytest.raises(BadInput):
        objects.append(upload.id, 4, io.BytesIO(LARGE[4:] + b"!"))
    assert objects.upload(upload.id).offset == 4
    objects.append(upload.id, 4, io.BytesIO(LARGE[4:]))
    assert objects.finish(upload.id) is PutOutcome.NEW


def test_an_upload_that_lacks_bytes_is_not_finished(objects: Objects) -> None:
    upload = objects.begin(digest_bytes(SMALL), len(SMALL))
    for end in (0, 4):
        objects.append(upload.id, objects.upload(upload.id).offset, io.BytesIO(SMALL[:end]))
        with pytest.raises(Refused):
            objects.finish(upload.id)
    assert objects.size(upload.digest) is None
    objects.append(upload.id, 4, io.BytesIO(SMALL[4:]))
    assert objects.finish(upload.id) is PutOutcome.NEW


def test_an_upload_of_wrong_bytes_is_refused_and_gone(objects: Objects) -> None:
    upload = objects.begin(digest_bytes(SMALL), len(SMALL))
    objects.append(upload.id, 0, io.BytesIO(SMALL[::-1]))
    with pytest.raises(HashMismatch):
        objects.finish(upload.id)
    assert objects.size(upload.digest) is None
    with pytest.raises(NotFound):
        objects.upload(upload.id)
    again = objects.begin(upload.digest, len(SMALL))
    objects.append(again.id, 0, io.BytesIO(SMALL))
    assert objects.finish(again.id) is PutOutcome.NEW


def test_an_empty_object_may_be_uploaded(objects: Objects) -> None:
    upload = objects.begin(digest_bytes(b""), 0)
    assert objects.finish(upload.id) is PutOutcome.NEW
    assert read(objects, upload.digest) == b""


def test_two_uploads_of_one_object_both_finish(objects: Objects) -> None:
    uploads = [objects.begin(digest_bytes(SMALL), len(SMALL)) for _ in range(2)]
    assert uploads[0].id != uploads[1].id
    for upload in uploads:
        objects.append(upload.id, 0, io.BytesIO(SMALL))
    assert [objects.finish(upload.id) for upload in uploads] == [PutOutcome.NEW, PutOutcome.KNOWN]
    assert read(objects, uploads[0].digest) == SMALL


def test_only_one_at_a_time_adds_to_an_upload(bench: Bench) -> None:
    upload = bench.objects.begin(digest_bytes(SMALL), len(SMALL))
    other = bench.reopen()

    class Meanwhile(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            for act in (
                lambda: other.append(upload.id, 0, io.BytesIO(SMALL)),
                lambda: other.finish(upload.id),
                lambda: other.abandon(upload.id),
            ):
                with pytest.raises(LockHeld):
                    act()
            assert other.sweep_uploads(grace_s=-DAY_S) == ()
            return super().read(size)

    bench.objects.append(upload.id, 0, Meanwhile(SMALL))
    assert other.finish(upload.id) is PutOutcome.NEW


def test_an_upload_can_be_dropped(objects: Objects) -> None:
    upload = objects.begin(digest_bytes(SMALL), len(SMALL))
    objects.append(upload.id, 0, io.BytesIO(SMALL[:3]))
    assert objects.abandon(upload.id)
    assert not objects.abandon(upload.id)
    with pytest.raises(NotFound):
        objects.append(upload.id, 3, io.BytesIO(SMALL[3:]))


def test_uploads_that_nobody_goes_on_with_are_swept(bench: Bench) -> None:
    assert bench.objects.sweep_uploads(grace_s=0.0) == ()
    upload = bench.objects.begin(digest_bytes(SMALL), len(SMALL))
    assert bench.objects.stale_uploads(grace_s=DAY_S) == ()
    assert bench.objects.sweep_uploads(grace_s=DAY_S) == ()
    assert bench.objects.upload(upload.id).offset == 0
    bench.clock.advance(2 * DAY_S)
    assert bench.reopen().stale_uploads(grace_s=DAY_S) == (upload.id,)
    assert bench.objects.upload(upload.id).offset == 0, "to say it changes nothing"
    assert bench.reopen().sweep_uploads(grace_s=DAY_S) == (upload.id,)
    with pytest.raises(NotFound):
        bench.objects.upload(upload.id)


@pytest.mark.parametrize("text", ["", "x", "../..", "0" * 31, "0" * 33, "A" * 32, "0" * 31 + "/", "0" * 31 + "\n"])
def test_what_is_not_the_id_of_an_upload_is_refused(objects: Objects, text: str) -> None:
    for act in (
        lambda: objects.upload(text),
        lambda: objects.append(text, 0, Untouchable()),  # type: ignore[arg-type]
        lambda: objects.finish(text),
        lambda: objects.abandon(text),
    ):
        with pytest.raises(BadInput):
            act()


def test_an_upload_that_was_never_begun_is_not_found(objects: Objects) -> None:
    with pytest.raises(NotFound):
        objects.upload("0" * 32)
    assert not objects.abandon("0" * 32)


def test_an_upload_of_fewer_bytes_than_none_is_refused(objects: Objects) -> None:
    with pytest.raises(BadInput):
        objects.begin(digest_bytes(SMALL), -1)


def test_small_objects_come_in_together_or_not_at_all(bench):
    files = {digest_bytes(data): data for data in (b"", b"one", b"two" * 5000)}
    assert bench.objects.put_all(files.items()) == 3
    assert bench.objects.put_all(files.items()) == 0
    for digest, data in files.items():
        with bench.reopen().open(digest) as stream:
            assert stream.read() == data
    new = digest_bytes(b"new")
    with pytest.raises(HashMismatch):
        bench.objects.put_all([(new, b"new"), (digest_bytes(b"x"), b"y")])
    with pytest.raises(BadInput):
        bench.objects.put_all([("../x", b"")])
    assert bench.objects.size(new) is None
    if isinstance(bench, LocalBench):
        # A pack for a bucket is made in memory.
        bench.fill_up()
        with pytest.raises(NoSpace):
            bench.objects.put_all([(new, b"new")])


def test_of_many_large_pieces_all_are_there_and_go_on(bench):
    data = random.Random(5).randbytes(6 << 20)
    digest = digest_bytes(data)
    upload = bench.objects.begin(digest, len(data))
    for start in range(0, len(data), 2 << 20):
        assert bench.reopen().upload(upload.id).offset == start
        bench.objects.append(upload.id, start, io.BytesIO(data[start : start + (2 << 20)]))
    assert bench.objects.finish(upload.id) is PutOutcome.NEW
