"""Data taken into this machine's store from where whoever submitted it has it, on this very machine.

For programs that may not read it in place. It is copied once, hashed on its way, and kept only if it is still that.
"""

from __future__ import annotations

import os

from stoker.host.durable import NO_STEP, remove_tree, translated
from stoker.model.artifacts import TreeEntry
from stoker.model.clock import Clock
from stoker.model.digests import Digest
from stoker.store.held import note_held
from stoker.store.local import LocalStore
from stoker.store.putting import put_key
from stoker.store.records import Record
from stoker.store.refs import PUT
from stoker.store.staging_copy import StagingCopy
from stoker.store.trees import Heed, Walked, walk_tree


def take_in(path: str, name: str, tree: str, store: LocalStore, *, clock: Clock, heed: Heed) -> bool:
    """Copy what lies at a path into the store, if it is the tree that is meant. Raises `StokerError`."""
    staging = store.new_staging(f"tree.{tree[:12]}")
    try:
        copying = StagingCopy(store, staging, clock=clock, heed=heed, on_step=NO_STEP)
        copying.copy_all(_found(path, name))
        made, inline = copying.keep_all()
        if made.digest() != tree:
            return False
        body = {"stage": PUT, "kind": "", "made_at": clock.wall_s()}
        store.publish(Record.of(key=put_key(Digest(tree)), tree=made, inline=inline, body=body))
        note_held(store, tree)
    finally:
        remove_tree(staging)
    return True


def _found(path: str, name: str) -> list[Walked]:
    if os.path.isdir(path):
        return walk_tree(path, hasher=lambda _: (Digest(""), 0))
    with translated(path):
        return [Walked(TreeEntry(name, 0, Digest("")), path, os.stat(path))]
