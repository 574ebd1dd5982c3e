"""A tree packed into one archive: the same tree gives the same bytes, on any machine with the same zstd library.

The archive is a canonical tar (`tar`) in one zstd frame, level 1, with its size and a checksum. The number of
workers does not change a byte as long as there is one; without any the bytes would differ, so there always is one.
Everything is streamed: a file is read once, hashed during compression, and memory does not depend on its size.

A bundle's id is the digest of its tree. The archive's own SHA-256 is for its transport, and that of the tar shows
whether two archives differ only in their compression. zstandard is imported when something is packed.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from typing import BinaryIO

from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes
from stoker.core.errors import CorruptBytes
from stoker.core.frozen import changed, frozen
from stoker.host.durable import Stamp, open_regular, stamp_of, translated, writing
from stoker.host.resources import usable_cores
from stoker.store.archives.archive_members import tree_faults
from stoker.store.archives.tar import END_OF_ARCHIVE, head_of, padding, tar_bytes
from stoker.store.local_store import LocalStore
from stoker.store.records import Record
from stoker.store.results import SIDECAR, ResultPart
from stoker.store.trees import HashLane, Heed

LEVEL = 1
NOT_HASHED = Digest("")
_BLOCK_BYTES = 1 << 20
_MOST_WORKERS = 4


@frozen
class Bundle:
    """A tree as an archive."""

    tree_digest: Digest
    """The bundle's id."""
    size_bytes: int
    """Of the tree's files."""
    archive_sha256: Digest
    archive_bytes: int
    made_by: str
    """The library that compressed it: another one may compress the same tar differently."""
    level: int


@frozen
class PackSource:
    """One entry to be packed, and where its bytes are."""

    entry: TreeEntry
    """With the digest `NOT_HASHED` if the file is to be hashed during packing."""
    path: str = ""
    data: bytes | None = None
    """The bytes themselves, for small files of a record."""
    stamp: Stamp | None = None
    """The file's stamp before it was hashed, or found: after packing it must be the same."""


class BundlePacker:
    """An archive that is made as it is read: iterate over it once, and then read its properties.

    `InvalidArchive` at once if an entry could not be unpacked again: its name is not safe everywhere, or clashes with
    another. `CorruptBytes` during packing if a file does not match its digest, or changes.
    """

    def __init__(self, sources: Sequence[PackSource], *, workers: int = 0) -> None:
        """Make a packing with so many compression workers; 0 means `workers_here`."""
        self._sources = sorted(sources, key=lambda source: source.entry.path)
        self._entries = [source.entry for source in self._sources]
        tree_faults(Tree(tuple(self._entries))).raise_any(
            "the files could not be unpacked on every machine", hint="without --bundle they are returned as plain files"
        )
        self._workers = workers or workers_here()
        self._bundle: Bundle | None = None
        self._blocks = self._run()

    @property
    def bundle(self) -> Bundle:
        """The bundle; known once every block was read."""
        if self._bundle is None:
            message = "the archive has not been read to its end"
            raise ValueError(message)
        return self._bundle

    @property
    def tree(self) -> Tree:
        """The tree; its digests are all known once every block was read."""
        return Tree(tuple(self._entries))

    def __iter__(self) -> Iterator[bytes]:
        return self._blocks

    def close(self) -> None:
        """Release files and threads, if it was not read to its end."""
        self._blocks.close()

    def _run(self) -> Generator[bytes, None, None]:
        import zstandard  # noqa: PLC0415 - needed only to pack

        settings = zstandard.ZstdCompressionParameters.from_level(
            LEVEL, threads=self._workers, write_checksum=True, write_content_size=True
        )
        compressor = zstandard.ZstdCompressor(compression_params=settings)
        squeeze = compressor.compressobj(size=tar_bytes(self._entries))
        archive_sha256 = sha256()
        archive_bytes = 0
        with HashLane() as file_lane, HashLane() as archive_lane:
            for block in _gathered(self._tar(file_lane)):
                if squeezed := squeeze.compress(block):
                    archive_lane.feed(archive_sha256, squeezed)
                    archive_bytes += len(squeezed)
                    yield squeezed
            squeezed = squeeze.flush()
            archive_lane.feed(archive_sha256, squeezed)
            archive_bytes += len(squeezed)
            archive_lane.wait()
            yield squeezed
        tree = self.tree
        version = ".".join(map(str, zstandard.ZSTD_VERSION))
        self._bundle = Bundle(
            tree_digest=tree.digest(),
            size_bytes=tree.size_bytes,
            archive_sha256=Digest(archive_sha256.hexdigest()),
            archive_bytes=archive_bytes,
            made_by=f"zstandard {zstandard.__version__} with zstd {version}",
            level=LEVEL,
        )

    def _tar(self, lane: HashLane) -> Iterator[bytes]:
        for number, source in enumerate(self._sources):
            entry = source.entry
            yield head_of(entry)
            if entry.link_to is None:
                digest = yield from (_file(source, lane) if source.data is None else _inline(source, source.data))
                if entry.sha256 == NOT_HASHED:
                    self._entries[number] = TreeEntry(entry.path, entry.size_bytes, digest, entry.executable)
                yield padding(entry.size_bytes)
        yield END_OF_ARCHIVE


def workers_here() -> int:
    """Return the default number of workers: one core is left for hashing, and one hash is fast enough for so many."""
    return min(_MOST_WORKERS, max(1, usable_cores() - 1))


def pack(sources: Sequence[PackSource], sink: BinaryIO, *, heed: Heed = lambda _: None, workers: int = 0) -> Bundle:
    """Write the archive of some entries into a buffered stream; `heed` is called for every byte of it."""
    with closing(BundlePacker(sources, workers=workers)) as packing:
        for block in packing:
            sink.write(block)
            heed(len(block))
    return packing.bundle


def _gathered(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Join small blocks, so that a thousand small files do not cost a thousand calls."""
    waiting: list[bytes] = []
    size_bytes = 0
    for block in blocks:
        waiting.append(block)
        size_bytes += len(block)
        if size_bytes >= _BLOCK_BYTES:
            yield b"".join(waiting)
            waiting, size_bytes = [], 0
    yield b"".join(waiting)


def _inline(source: PackSource, data: bytes) -> Generator[bytes, None, Digest]:
    digest = digest_bytes(data)
    if (digest, len(data)) != (source.entry.sha256, source.entry.size_bytes):
        raise _not_as_said(source)
    yield data
    return digest


def _file(source: PackSource, lane: HashLane) -> Generator[bytes, None, Digest]:
    """Yield the content of a file, and set its digest at the end. A known file with the same stamp is not hashed."""
    entry = source.entry
    is_known = entry.sha256 != NOT_HASHED and source.stamp is not None
    hashing = sha256()
    left_bytes = entry.size_bytes
    with translated(source.path), open_regular(source.path) as file:
        while left_bytes:
            block = os.read(file.fileno(), min(left_bytes, _BLOCK_BYTES))
            if not block:
                raise _not_as_said(source)
            left_bytes -= len(block)
            if not is_known:
                lane.feed(hashing, block)
            yield block
        lane.wait()
        digest = entry.sha256 if is_known else Digest(hashing.hexdigest())
        looks = os.fstat(file.fileno())
        # Perhaps only its times changed: a blob becomes young when the same bytes are put again, or was pruned.
        is_same = source.stamp in (None, stamp_of(looks)) or (is_known and _has_digest(file, digest))
    if not is_same or looks.st_size != entry.size_bytes or entry.sha256 not in (NOT_HASHED, digest):
        raise _not_as_said(source)
    return digest


def _has_digest(file: BinaryIO, digest: Digest) -> bool:
    file.seek(0)
    hashing = sha256()
    while block := file.read(_BLOCK_BYTES):
        hashing.update(block)
    return hashing.hexdigest() == digest


def _not_as_said(source: PackSource) -> CorruptBytes:
    hint = "pack it again when nothing writes to it"
    return CorruptBytes(f"{source.entry.path}: changed while it was packed, or is damaged", hint=hint, path=source.path)


def write_bundle(store: LocalStore, parts: list[ResultPart], path: str, *, heed: Heed) -> Bundle:
    """Pack these parts, each below its folder, into one file; an existing one is replaced.

    `heed` is called for every byte of the archive. `CorruptBytes` if bytes of a part are not in the store, or change.

    An archive is never stored as such (`put` stores its files), since the same tree gives the same bytes with the same
    zstd library.
    """
    placed = [_below(part.folder, source) for part in parts for source in _sources(store, part.record)]
    # As `lay_out` does: the later of two wins, and our own sidecar at the top is no part of a result.
    sources = {source.entry.path: source for source in placed if source.entry.path != SIDECAR}
    with translated(path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with writing(path, mode=0o666) as file:
        return pack(list(sources.values()), file, heed=heed)


def _below(folder: str, source: PackSource) -> PackSource:
    if not folder:
        return source
    entry = source.entry
    placed = TreeEntry(f"{folder}/{entry.path}", entry.size_bytes, entry.sha256, entry.executable, entry.link_to)
    return changed(source, entry=placed)


def _sources(store: LocalStore, record: Record) -> Iterator[PackSource]:
    """Return the entries of a record to be packed; their digests are known, so none is hashed again."""
    if record.is_tombstone:
        raise CorruptBytes(f"record {record.key[:12]}: its bytes were pruned", hint="make or fetch it again")
    for entry in record.tree.entries:
        if entry.link_to is not None:
            yield PackSource(entry=entry)
        elif entry.path in record.inline:
            yield PackSource(entry=entry, data=record.inline[entry.path])
        else:
            yield _blob_source(store, entry)


def _blob_source(store: LocalStore, entry: TreeEntry) -> PackSource:
    # In this order: what changes after our check will have another stamp once it is packed.
    try:
        stamp = stamp_of(os.lstat(store.places.blob(entry.sha256)))
    except OSError:
        stamp = None
    return PackSource(entry=entry, path=store.blob(entry), stamp=stamp)
