"""Trees of files on the coordinator's own machine: code and data of its own manifest, taken in without a line."""

from __future__ import annotations

import os

from stoker.coordinator.keeping.contents import Contents
from stoker.host.durable import open_regular, translated
from stoker.model.artifacts import Tree
from stoker.model.errors import Refused
from stoker.store.listing import check_tree, files_of, listing_bytes
from stoker.store.objects.seam import ObjectStore
from stoker.wire.contents import PACKED_BYTES
from stoker.wire.packs import in_packs


def keep_own_tree(contents: Contents, objects: ObjectStore, tree: Tree, root: str) -> None:
    """Have a tree here whose files lie below a folder. Raises what keeping it raises, or `HashMismatch`."""
    check_tree(tree)
    digest = tree.digest()
    if contents.want(digest, files=len(tree.entries), size_bytes=tree.size_bytes) is not None:
        return
    sizes = files_of(tree)
    places = {entry.sha256: os.path.join(root, entry.path) for entry in tree.entries if entry.link_to is None}
    missing = contents.missing(sizes, tuple(sizes.values()))
    small = [(one, sizes[one]) for one in sizes if one in set(missing) and sizes[one] <= PACKED_BYTES]
    for pack in in_packs(small):
        objects.put_all([(one, _read(places[one])) for one in places if one in set(pack)])
    for one in (one for one in sizes if one in set(missing) and sizes[one] > PACKED_BYTES):
        with translated(places[one]), open_regular(places[one]) as file:
            objects.put(one, file, size_bytes=sizes[one])
    if contents.keep_tree(digest, listing_bytes(tree)).missing:
        raise Refused(f"files below {root} changed while they were read", hint="say it again when nobody writes there")


def _read(path: str) -> bytes:
    with translated(path), open_regular(path) as file:
        return file.read()
