"""Objects in an S3 bucket, or in anything that has its interface.

    objects/SHA256    an object, or one part of a large one: bytes that have this digest
    packs/SHA256      small objects, each with its digest (32 bytes) and size (8 bytes) before it
    files/SHA256      the listing of a large object: its size, and digest and size of each part
    stoker.json       which coordinator the prefix belongs to

What is there is known from an index on this machine (`s3_index`), so `size` never waits for the store. An object is
durable in the store before its row is written; its row is deleted before its bytes. Large objects are cut into parts of
64 MiB, so an interrupted transfer goes on with the first part that is missing.

Other machines transfer bytes directly, by passes (`s3_passes`). The store itself refuses bytes that do not have the
signed digest. That the parts of a large object have its digest together is proven by its readers: they hash it whole.
"""

from __future__ import annotations

import io
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any, BinaryIO, cast

from stoker.core.clock import Clock
from stoker.core.digests import Digest, digest_bytes, is_digest
from stoker.core.errors import BadInput, Conflict, Damaged, NotFound, StokerError
from stoker.host.durable import open_regular, translated
from stoker.host.resources import free_bytes
from stoker.store.local_store import LocalStore
from stoker.store.objects.s3_bucket import S3Bucket
from stoker.store.objects.s3_index import IndexedObject, Parts, S3Index
from stoker.store.objects.s3_passes import PASS_LIFE_S, Pass, S3Site
from stoker.store.objects.seam import Condition, StoredObject, check_digest, checked, not_here, wrong_bytes
from stoker.store.objects.staging import StagedObjects

PART_BYTES = 64 << 20
MARKER = "stoker.json"
_HEAD_BYTES = 40
_DIGEST_BYTES = 32
_TOUCHED_EVERY_S = 60.0
_SWEPT_EVERY_S = 86400.0
_PACKS_IN_MEMORY = 4
_LANES = 8
_MOST_PARTS = 1 << 20


def index_name(site: S3Site) -> str:
    """Return the name of the index of a site: another bucket has another one."""
    return f"objects-{digest_bytes(f'{site.endpoint} {site.url}'.encode())[:12]}.db"


class S3Objects(StagedObjects):
    """Objects of one bucket and prefix. Thread-safe; one process at a time writes. Caller closes."""

    def __init__(  # noqa: PLR0913 - everything is handed in
        self,
        store: LocalStore,
        site: S3Site,
        *,
        folder: str,
        clock: Clock,
        part_bytes: int = PART_BYTES,
        free_bytes: Callable[[str], int] = free_bytes,
        is_listed: bool = True,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Open them. An index that is not complete is made from the bucket; `progress` is called for each object.

        Without `is_listed` it is not: the caller claims the prefix, and rebuilds the index if it uses it.
        """
        super().__init__(store, clock=clock, free_bytes=free_bytes)
        self.site = site
        self.part_bytes = part_bytes
        self._bucket = S3Bucket(site, clock=clock)
        self._index = S3Index(os.path.join(folder, index_name(site)))
        self._turn = threading.RLock()
        self._memory = threading.Lock()
        self._packs: OrderedDict[str, bytes] = OrderedDict()
        self._swept_s = clock.monotonic_s()
        self._progress = progress
        try:
            if is_listed and not self._index.is_complete:
                # It was lost, or the bucket is new and empty.
                self.rebuild()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    def claim(self, owner: str, *, takes_over: bool = False) -> None:
        """Make the prefix that of one coordinator. Raises `Conflict` if it is another one's."""
        marker = json.dumps({"v": 1, "owner": owner}).encode()
        if self._bucket.put(MARKER, marker):
            return
        found = self._bucket.get(MARKER) or b"{}"
        try:
            is_ours = json.loads(found).get("owner") == owner
        except (ValueError, AttributeError):
            is_ours = False
        if is_ours:
            return
        if not takes_over:
            raise Conflict(
                f"{self.site.url} belongs to another coordinator, which deletes what its own jobs do not need",
                hint="choose another prefix; after the loss of that coordinator: stoker admin objects adopt",
            )
        self._bucket.replace(MARKER, marker)

    def size(self, digest: Digest) -> int | None:
        """Return an object's size in bytes, or nothing if it is not there."""
        check_digest(digest)
        return self._index.size(digest)

    def open(self, digest: Digest, *, start: int = 0, length: int | None = None) -> BinaryIO:
        """Open an object, or a range of it. Caller closes.

        `NotFound` if it is not there, also later, if it is removed meanwhile.
        """
        check_digest(digest)
        found = self._index.find(digest)
        if found is None:
            raise not_here(digest)
        if not 0 <= start <= found.size_bytes or (length is not None and length < 0):
            raise BadInput(f"object {digest[:12]} has {found.size_bytes} bytes: there is no range from {start}")
        end = found.size_bytes if length is None else min(found.size_bytes, start + length)
        if found.pack:
            data = self._pack(found.pack)
            return io.BytesIO(data[found.start + start : found.start + end])
        return cast("BinaryIO", io.BufferedReader(_S3Stream(self._bucket, found, start, end), 1 << 20))

    def put_all(self, objects: Iterable[tuple[str, bytes]]) -> int:
        """Put small objects together, durable on return; return how many were new."""
        wanted = checked(objects)
        new = [Digest(name) for name, data in wanted.items() if not self._is_known(Digest(name), len(data))]
        if not new:
            return 0
        pack = io.BytesIO()
        places = []
        for digest in new:
            data = wanted[digest]
            pack.write(bytes.fromhex(digest) + len(data).to_bytes(8, "big"))
            places.append((digest, len(data), pack.tell()))
            pack.write(data)
        name = digest_bytes(pack.getvalue())
        now_s = self._clock.wall_s()
        with self._turn:
            # Under the lock, because a removal may be deleting an equal pack.
            self._bucket.put(f"packs/{name}", pack.getbuffer())
            self._index.add(
                IndexedObject(digest=digest, size_bytes=size, touched_s=now_s, pack=name, start=at)
                for digest, size, at in places
            )
        return len(new)

    def list(self) -> Iterator[StoredObject]:
        """Return all objects, in the order of their digests."""
        for one in self._index.all():
            yield StoredObject(digest=one.digest, size_bytes=one.size_bytes, touched_s=one.touched_s)

    def remove(self, digest: Digest, *, grace_s: float = 0.0) -> bool:
        """Remove an object that was not put for so long. Returns False if it stays, or is not there."""
        check_digest(digest)
        with self._turn:
            found = self._index.find(digest)
            now_s = self._clock.wall_s()
            if found is None or now_s - found.touched_s < grace_s:
                return False
            self._index.drop(digest)
            if found.pack:
                if not self._index.has_pack(found.pack):
                    self._bucket.remove([f"packs/{found.pack}"])
            elif found.parts:
                self._bucket.remove([f"files/{digest}"])
                # A part that was offered to a sender a moment ago stays; a later sweep removes it.
                self._remove_loose([part for part, _ in found.parts], before_s=now_s - PASS_LIFE_S)
            else:
                self._remove_loose([digest], before_s=now_s + 1.0)
        return True

    def verify(self, digest: Digest) -> Condition:
        """Read every byte of an object again. A damaged one is deleted: a new put repairs it."""
        check_digest(digest)
        found = self._index.find(digest)
        if found is None:
            return Condition.MISSING
        hashed = sha256()
        try:
            with self.open(digest) as stream:
                while piece := stream.read(1 << 20):
                    hashed.update(piece)
            if hashed.hexdigest() == digest:
                return Condition.WHOLE
        except (NotFound, Damaged):
            pass
        with self._turn:
            self._index.drop(digest)
            damaged = [part for part, _ in found.parts if not self._is_whole(part)]
            if not found.parts and not found.pack:
                damaged = [digest]
            self._bucket.remove(f"objects/{one}" for one in damaged)
            self._index.drop_blobs(damaged)
            if found.parts:
                self._bucket.remove([f"files/{digest}"])
        return Condition.DAMAGED

    def sweep_uploads(self, *, grace_s: float) -> tuple[str, ...]:
        """Delete stale uploads; once a day also blobs in the bucket that nothing has named for so long."""
        swept = super().sweep_uploads(grace_s=grace_s)
        if self._clock.monotonic_s() - self._swept_s >= _SWEPT_EVERY_S:
            self._swept_s = self._clock.monotonic_s()
            self.sweep_bucket(grace_s=grace_s)
        return swept

    def sweep_bucket(self, *, grace_s: float) -> int:
        """Delete blobs that are neither objects nor parts, and that are older; return how many."""
        before_s = self._clock.wall_s() - grace_s
        for name, size_bytes, changed_s in self._bucket.list("objects/"):
            digest = name.rpartition("/")[2]
            if changed_s < before_s and is_digest(digest) and self._index.blob_size(digest) is None:
                self._index.add_blob(digest, size_bytes, changed_s)
        with self._turn:
            loose = self._index.loose_blobs(before_s)
            self._remove_loose(loose, before_s=before_s)
        return len(loose)

    def rebuild(self) -> int:
        """Make the index again from what is in the bucket; return the number of objects.

        After an error it is what it was before.
        """
        now_s = self._clock.wall_s()
        self._progress()
        blobs = {name.rpartition("/")[2]: size for name, size in self._names("objects/")}
        found = [
            IndexedObject(digest=Digest(digest), size_bytes=size, touched_s=now_s)
            for digest, size in blobs.items()
            if is_digest(digest)
        ]
        for pack, data in self._contents("packs/"):
            if digest_bytes(data) == pack:
                found += [
                    IndexedObject(digest=digest, size_bytes=size, touched_s=now_s, pack=pack, start=at)
                    for digest, size, at in _pack_places(data)
                ]
        for digest, data in self._contents("files/"):
            parts = _read_parts(data)
            if is_digest(digest) and parts and all(blobs.get(part) == size for part, size in parts):
                size_bytes = sum(size for _, size in parts)
                found.append(IndexedObject(digest=Digest(digest), size_bytes=size_bytes, touched_s=now_s, parts=parts))
        self._index.replace(found)
        return len({one.digest for one in found})

    def _contents(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Return the last part of the name and the bytes of everything below a prefix, read several at once."""
        names = [name for name, _ in self._names(prefix)]
        with ThreadPoolExecutor(_LANES, thread_name_prefix="listing") as lanes:
            for at in range(0, len(names), _LANES):
                some = names[at : at + _LANES]
                for name, data in zip(some, lanes.map(self._bucket.get, some), strict=True):
                    self._progress()
                    yield name.rpartition("/")[2], data or b""

    def _names(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Return the name and size of everything below a prefix."""
        for name, size_bytes, _ in self._bucket.list(prefix):
            self._progress()
            yield name, size_bytes

    # Bytes that other machines transfer themselves.

    def pass_to_put(self, digest: Digest, size_bytes: int) -> Pass | None:
        """Return a pass to put an object or a part, at most `part_bytes`; None if it is there."""
        check_digest(digest)
        if not 0 <= size_bytes <= self.part_bytes:
            raise BadInput(f"a part of {size_bytes} bytes: at most {self.part_bytes}")
        known = self._index.touch_blob(digest, self._clock.wall_s())
        if known is None:
            # Not noted here: only `name_parts` does, which no removal runs beside.
            known = self._bucket.size(f"objects/{digest}")
        if known == size_bytes:
            return None
        return self.site.pass_to_put(f"objects/{digest}", digest, size_bytes, now_s=self._clock.wall_s())

    def passes_to_get(self, digest: Digest) -> tuple[Pass, ...]:
        """Return passes to get an object: one for each part, in order. None of an object in a pack."""
        check_digest(digest)
        found = self._index.find(digest)
        if found is None:
            raise not_here(digest)
        if found.pack:
            return ()
        now_s = self._clock.wall_s()
        parts = found.parts or ((digest, found.size_bytes),)
        return tuple(self.site.pass_to_get(f"objects/{part}", part, size, now_s=now_s) for part, size in parts)

    def name_parts(self, digest: Digest, parts: Parts) -> tuple[Digest, ...]:
        """Name an object whose parts were put by passes; return the parts that are not there, if any.

        A single part must be the object itself. That several have the digest together is not checked here.
        """
        check_digest(digest)
        if not 0 < len(parts) <= _MOST_PARTS or any(size > self.part_bytes for _, size in parts):
            raise BadInput(f"object {digest[:12]} has parts that are too large, or none")
        if len(parts) == 1 and parts[0][0] != digest:
            raise BadInput(f"object {digest[:12]} can't have one part with another digest")
        with self._turn, ThreadPoolExecutor(_LANES, thread_name_prefix="parts") as lanes:
            present = lanes.map(lambda part: self._has_blob(*part), parts)
            missing = tuple(part for (part, _), is_there in zip(parts, present, strict=True) if not is_there)
            if not missing:
                self._name(digest, parts)
        return missing

    def _name(self, digest: Digest, parts: Parts) -> None:
        now_s = self._clock.wall_s()
        size_bytes = sum(size for _, size in parts)
        if len(parts) == 1:
            parts = ()
        else:
            listing = {"v": 1, "size_bytes": size_bytes, "parts": parts}
            self._bucket.replace(f"files/{digest}", json.dumps(listing).encode())
        self._index.add([IndexedObject(digest=digest, size_bytes=size_bytes, touched_s=now_s, parts=parts)])

    def _has_blob(self, digest: Digest, size_bytes: int) -> bool:
        """Return True if a blob is in the bucket; it is noted then, and not swept for a while."""
        known = self._index.blob_size(digest)
        if known is None:
            known = self._bucket.size(f"objects/{digest}")
        if known != size_bytes:
            return False
        self._index.add_blob(digest, size_bytes, self._clock.wall_s())
        return True

    def _remove_loose(self, digests: Sequence[Digest], *, before_s: float) -> None:
        loose = set(self._index.loose_blobs(before_s)).intersection(digests)
        self._index.drop_blobs(sorted(loose))
        self._bucket.remove(f"objects/{digest}" for digest in sorted(loose))

    def _is_whole(self, part: Digest) -> bool:
        data = self._bucket.get(f"objects/{part}")
        return data is not None and digest_bytes(data) == part

    def _is_known(self, digest: Digest, size_bytes: int | None) -> bool:
        check_digest(digest)
        found = self._index.find(digest)
        if found is None:
            return False
        if size_bytes not in (None, found.size_bytes):
            raise wrong_bytes(digest, digest, found.size_bytes, size_bytes)
        now_s = self._clock.wall_s()
        if now_s - found.touched_s > _TOUCHED_EVERY_S:
            self._index.touch(digest, now_s)
        return True

    def _keep(self, part: str, digest: Digest) -> None:
        """Put a file into the bucket: whole, or in parts of which the bucket may have some."""
        size_bytes = os.path.getsize(part)
        parts: list[tuple[Digest, int]] = []
        with translated(part), open_regular(part) as file, ThreadPoolExecutor(2, thread_name_prefix="parts") as lanes:
            puts = []
            while data := file.read(self.part_bytes):
                one = digest if len(data) == size_bytes else digest_bytes(data)
                parts.append((one, len(data)))
                puts.append(lanes.submit(self._put_blob, one, data))
                if len(puts) > 2:
                    puts.pop(0).result()
            for put in puts:
                put.result()
        if not size_bytes:
            parts = [(digest, 0)]
            self._put_blob(digest, b"")
        with self._turn:
            for one, size in parts:
                # Again: a removal of another object may have deleted a part that was there.
                if not self._has_blob(one, size):
                    message = f"part {one[:12]} was removed while object {digest[:12]} was stored"
                    raise NotFound(message, hint="send it again")
            self._name(digest, tuple(parts))

    def _put_blob(self, digest: Digest, data: bytes) -> None:
        if self._index.touch_blob(digest, self._clock.wall_s()) is None:
            self._bucket.put(f"objects/{digest}", data)

    def _pack(self, pack: str) -> bytes:
        with self._memory:
            data = self._packs.get(pack)
        if data is None:
            data = self._bucket.get(f"packs/{pack}")
            if data is None:
                raise NotFound(
                    f"no pack {pack[:12]} in {self.site.url}", hint="it was deleted there by another program"
                )
            if digest_bytes(data) != pack:
                raise Damaged(f"pack {pack[:12]} in {self.site.url} has other bytes", hint="submit the job again")
        with self._memory:
            self._packs[pack] = data
            self._packs.move_to_end(pack)
            while len(self._packs) > _PACKS_IN_MEMORY:
                self._packs.popitem(last=False)
        return data


class _S3Stream(io.RawIOBase):
    """A range of an object, read part after part; a broken connection is opened again where it broke."""

    def __init__(self, bucket: S3Bucket, found: IndexedObject, start: int, end: int) -> None:
        self._bucket = bucket
        self._parts = found.parts or ((found.digest, found.size_bytes),)
        self._at = start
        self._end = end
        self._pieces: Iterator[bytes] | None = None
        self._left = b""
        # Now: what is not there is found out by `open`.
        self._fill()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        if not self._left:
            self._fill()
        count = min(len(view), len(self._left))
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def _fill(self) -> None:
        failures = 0
        while self._at < self._end and not self._left:
            if self._pieces is None:
                self._pieces = self._next_part()
            try:
                self._left = next(self._pieces, b"")
            except StokerError:
                raise
            except Exception as error:  # noqa: BLE001 - the library's errors have several roots
                failures += 1
                if failures > 2:
                    raise self._bucket.fault(error) from None
                self._pieces = None
                continue
            self._at += len(self._left)
            if not self._left:
                failures += 1
                self._pieces = None
                if failures > 3:
                    message = f"object in {self._bucket.site.url} is shorter than it was"
                    raise Damaged(message, hint="submit the job again")

    def _next_part(self) -> Iterator[bytes]:
        at = 0
        for digest, size in self._parts:
            if self._at < at + size:
                length = min(at + size, self._end) - self._at
                pieces = self._bucket.stream(f"objects/{digest}", start=self._at - at, length=length)
                if pieces is None:
                    raise not_here(digest)
                return pieces
            at += size
        return iter(())


def _pack_places(data: bytes) -> Iterator[tuple[Digest, int, int]]:
    """Return digest, size and place of each object of a pack."""
    at = 0
    while at + _HEAD_BYTES <= len(data):
        digest, size = data[at : at + _DIGEST_BYTES].hex(), int.from_bytes(data[at + _DIGEST_BYTES : at + _HEAD_BYTES])
        yield Digest(digest), size, at + _HEAD_BYTES
        at += _HEAD_BYTES + size


def _read_parts(data: bytes) -> Parts:
    try:
        listed = json.loads(data)["parts"]
        return tuple((Digest(part), int(size)) for part, size in listed if is_digest(part))
    except (ValueError, KeyError, TypeError):
        return ()
