"""Results and things that were put as one file to send: a deterministic archive, durable before it has its name.

An archive is never kept as such (`putting` takes one in file by file), since the same tree gives it back, byte for
byte, wherever the same zstd library is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from stoker.host.durable import translated, writing
from stoker.model.artifacts import TreeEntry
from stoker.model.errors import CorruptBytes
from stoker.model.frozen import changed
from stoker.store.bundle.packing import Bundle, Source, pack
from stoker.store.local import LocalStore
from stoker.store.memo import stamp_of
from stoker.store.records import Record
from stoker.store.results import SIDECAR, Part
from stoker.store.trees import Heed


def write_bundle(store: LocalStore, parts: list[Part], path: str, *, heed: Heed) -> Bundle:
    """Pack what these parts show, each below its folder, into one file; what lay there before is replaced.

    `heed` is told of every byte of the archive. `CorruptBytes` if bytes of a part are not in the store, or change.
    """
    placed = [_below(part.folder, source) for part in parts for source in _sources(store, part.record)]
    # As `lay_out` does: the later of two stands, and a list of ours at the top is no part of a result.
    sources = {source.entry.path: source for source in placed if source.entry.path != SIDECAR}
    with translated(path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with writing(path, mode=0o666) as file:
        return pack(list(sources.values()), file, heed=heed)


def _below(folder: str, source: Source) -> Source:
    if not folder:
        return source
    entry = source.entry
    placed = TreeEntry(f"{folder}/{entry.path}", entry.size_bytes, entry.sha256, entry.executable, entry.link_to)
    return changed(source, entry=placed)


def _sources(store: LocalStore, record: Record) -> Iterator[Source]:
    """Give the entries of a record to be packed; their digests are known, so none is hashed again."""
    if record.is_tombstone:
        raise CorruptBytes(f"record {record.key[:12]}: its bytes were pruned", hint="make or fetch it again")
    for entry in record.tree.entries:
        if entry.link_to is not None:
            yield Source(entry=entry)
        elif entry.path in record.inline:
            yield Source(entry=entry, data=record.inline[entry.path])
        else:
            yield _blob_source(store, entry)


def _blob_source(store: LocalStore, entry: TreeEntry) -> Source:
    # In this order: what changes after we looked will look different once it is packed.
    try:
        stamp = stamp_of(os.lstat(store.places.blob(entry.sha256)))
    except OSError:
        stamp = None
    return Source(entry=entry, path=store.blob(entry), stamp=stamp)
