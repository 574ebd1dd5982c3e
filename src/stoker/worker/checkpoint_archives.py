"""A checkpoint as one archive: its files, the line of `checkpoints.json` that vouches for them, and the curves so far.

What is packed lies as it does in the scratch folder, so an archive that is unpacked is a scratch folder in which the
plan's own rule finds that checkpoint and no other, on whichever machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stoker.core.digests import Digest, TreeEntry, digest_bytes
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps
from stoker.engine.checkpoints import INDEX, Checkpoint
from stoker.engine.metrics.previous_curves import EARLIER, earlier_curves
from stoker.host.durable import translated, writing
from stoker.host.file_stamps import stamp_of
from stoker.host.run_as import acting_as_owner
from stoker.store.archives.pack import NOT_HASHED, PackSource, pack
from stoker.store.trees import WalkedEntry, walk_tree
from stoker.transfer.trees.archive_upload import Archive


@frozen
class PackedCheckpoint:
    """A checkpoint in a file of the spool."""

    archive: Archive
    key: Digest
    """Of the work that it belongs to."""
    step: int | None
    file: str
    """What its scratch folder calls it."""


def pack_checkpoint(scratch: str, checkpoint: Checkpoint, said: Mapping[str, Any], spool: str) -> PackedCheckpoint:
    """Pack a verified checkpoint of a scratch folder, and what is said of it, into a file of `spool`.

    Whoever asked removes it. `CorruptBytes` if it changes meanwhile, `LocalFile` if a newer one took its place.
    """
    key = Digest(os.path.basename(scratch))
    name = os.path.relpath(checkpoint.path, os.path.realpath(scratch))
    index = dumps({"v": 1, "checkpoints": [dict(said)]}).encode()
    about = TreeEntry(INDEX, len(index), digest_bytes(index))
    with acting_as_owner(scratch):
        sources = [PackSource(entry=about, data=index), *_sources(checkpoint.path, name)]
    curves = earlier_curves(scratch)
    if curves:
        sources.append(PackSource(entry=TreeEntry(EARLIER, len(curves), digest_bytes(curves)), data=curves))
    path = os.path.join(spool, f"checkpoint-{key[:16]}.tar.zst")
    with translated(path):
        os.makedirs(spool, mode=0o700, exist_ok=True)
    with writing(path, mode=0o600) as file, acting_as_owner(scratch):
        bundle = pack(sources, file)
    archive = Archive(path=path, tree=bundle.tree_digest, sha256=bundle.archive_sha256, size_bytes=bundle.archive_bytes)
    return PackedCheckpoint(archive=archive, key=key, step=checkpoint.step, file=name)


def _sources(path: str, name: str) -> list[PackSource]:
    with translated(path):
        info = os.lstat(path)
    if not os.path.isdir(path):
        entry = TreeEntry(name, info.st_size, NOT_HASHED)
        return [PackSource(entry=entry, path=path, stamp=stamp_of(info))]
    return [_source(walked, name) for walked in walk_tree(path, hasher=_unread)]


def _source(walked: WalkedEntry, below: str) -> PackSource:
    entry = walked.entry
    if entry.link_to is not None:
        return PackSource(
            entry=TreeEntry(f"{below}/{entry.path}", entry.size_bytes, entry.sha256, link_to=entry.link_to)
        )
    placed = TreeEntry(f"{below}/{entry.path}", walked.info.st_size, NOT_HASHED, entry.executable)
    return PackSource(entry=placed, path=walked.path, stamp=stamp_of(walked.info))


def _unread(_path: str) -> tuple[Digest, int]:
    return NOT_HASHED, 0
