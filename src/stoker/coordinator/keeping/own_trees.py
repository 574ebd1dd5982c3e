"""Trees of files on the coordinator's own machine: code and data of its own manifest, taken in without a line."""

from __future__ import annotations

from io import BytesIO

from stoker.coordinator.keeping.contents import Contents
from stoker.host.durable import translated
from stoker.model.artifacts import OpenEntry, Tree, TreeEntry
from stoker.model.errors import Refused
from stoker.store.listing import check_tree, files_of, listing_bytes
from stoker.store.objects.seam import ObjectStore
from stoker.wire.contents import PACKED_BYTES
from stoker.wire.packs import in_packs


def keep_own_tree(contents: Contents, objects: ObjectStore, tree: Tree, open_file: OpenEntry, shown: str) -> None:
    """Have a tree here whose files this machine has. Raises what keeping it raises, or `HashMismatch`.

    `shown` is what it is called where its files changed meanwhile.
    """
    check_tree(tree)
    digest = tree.digest()
    if contents.want(digest, files=len(tree.entries), size_bytes=tree.size_bytes) is not None:
        return
    sizes = files_of(tree)
    entries: dict[str, TreeEntry] = {entry.sha256: entry for entry in tree.entries if entry.link_to is None}
    missing = set(contents.missing(sizes, tuple(sizes.values())))
    small = [(one, sizes[one]) for one in sizes if one in missing and sizes[one] <= PACKED_BYTES]
    for pack in in_packs(small):
        objects.put_all([(one, _read(entries[one], open_file)) for one in pack])
    for one in (one for one in sizes if one in missing and sizes[one] > PACKED_BYTES):
        with translated(entries[one].path), open_file(entries[one]) as file:
            objects.put(one, file, size_bytes=sizes[one])
    if contents.keep_tree(digest, BytesIO(listing_bytes(tree))).missing:
        raise Refused(f"files of {shown} changed while they were read", hint="say it again when nobody writes there")


def _read(entry: TreeEntry, open_file: OpenEntry) -> bytes:
    with translated(entry.path), open_file(entry) as file:
        return file.read()
