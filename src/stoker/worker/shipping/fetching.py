"""A fleet job's result, brought here: plain files in a folder, as `stoker get` lays out a local one.

The archive comes in ranges and is gone on with after a break; its digest and its tree's are verified, and nothing of it
is unpacked that could lead out of the folder. It goes through this machine's store, so a second `get` fetches nothing,
and files that somebody edited in the folder are kept beside the new ones.
"""

from __future__ import annotations

import os
from typing import Any

from stoker.host.durable import open_regular, remove_tree, translated
from stoker.host.names import name_fault, shown_name
from stoker.model.clock import Clock
from stoker.model.digests import Digest, is_digest
from stoker.model.errors import BadAnswer, NotFound, NotVerified
from stoker.model.frozen import frozen
from stoker.store.bundle.unpacking import unpack
from stoker.store.local import Found, LocalStore
from stoker.store.putting import put_key
from stoker.store.records import Record
from stoker.store.refs import PUT
from stoker.store.results import LaidOut, Part, lay_out
from stoker.store.trees import Heed
from stoker.worker.shipping.line import Passage
from stoker.worker.shipping.receiving import receive


@frozen
class FleetResult:
    """A result that lies with a coordinator, as a job's story tells of it."""

    name: str
    """The job's."""
    job: str
    """Its id."""
    tree: str
    archive_sha256: str
    size_bytes: int
    """Of the archive."""
    recipe: str = ""
    machine: str = ""

    @classmethod
    def of(cls, name: str, job: str, bundle: dict[str, Any], *, recipe: str = "", machine: str = "") -> FleetResult:
        """Read `JobStory.bundle`. `NotFound` if the job has no result, or its bytes were pruned."""
        if not bundle:
            raise NotFound(f"job {name} has no result", hint=f"stoker jobs show {name}")
        if bundle.get("pruned_s") is not None:
            raise NotFound(f"the result of {name} was pruned", hint=f"stoker jobs requeue {name} makes it again")
        tree, archive = str(bundle.get("tree", "")), str(bundle.get("archive_sha256", ""))
        if not (is_digest(tree) and is_digest(archive)):
            raise BadAnswer(f"the coordinator tells no digest of the result of {name}", hint="ask whoever runs it")
        size_bytes = int(bundle.get("size_bytes", 0))
        return cls(
            name=name,
            job=job,
            tree=tree,
            archive_sha256=archive,
            size_bytes=size_bytes,
            recipe=recipe,
            machine=machine,
        )


def folder_name(name: str) -> str:
    """Give a name for a folder back. A coordinator has no business anywhere but below the folder that was asked for."""
    fault = name_fault(name)
    if fault:
        raise BadAnswer(
            f"the coordinator has a job that no folder can be called by: {shown_name(name)}: {fault}",
            hint="ask whoever runs it",
        )
    return name


def fetch_result(
    passage: Passage, wanted: FleetResult, into: str, *, store: LocalStore, spool: str, heed: Heed = lambda _: None
) -> LaidOut:
    """Bring a result into a folder, verified; `heed` is told of every byte that comes.

    `ArchiveFaults` names everything that must not be unpacked, `NotVerified` says that the tree is another one than the
    coordinator tells. `Cancelled` if somebody said stop; the same call goes on from there.
    """
    key = put_key(Digest(wanted.tree))
    # While something lies in staging, those who prune know that somebody is at work.
    staging = store.new_staging(f"get.{wanted.tree[:12]}")
    try:
        found = store.lookup(key)
        if isinstance(found, Found) and found.has_bytes:
            return lay_out(store, [_part(found.record, wanted)], into)
        path = receive(passage, wanted.archive_sha256, wanted.size_bytes, spool, heed=heed)
        try:
            record = _take_in(store, wanted, path, staging, clock=passage.clock)
        finally:
            remove_tree(path)
        return lay_out(store, [_part(record, wanted)], into)
    finally:
        remove_tree(staging)


def _take_in(store: LocalStore, wanted: FleetResult, path: str, staging: str, *, clock: Clock) -> Record:
    with translated(path), open_regular(path) as archive:
        unpacked = unpack(archive, os.path.join(staging, "tree"))
    if unpacked.tree.digest() != wanted.tree:
        raise NotVerified(
            f"the archive of {wanted.name} holds another tree than the coordinator tells",
            hint="ask whoever runs the coordinator",
            expected=wanted.tree,
            found=unpacked.tree.digest(),
        )
    tree, inline = store.keep(unpacked.found, unpacked.small)
    body = {"stage": PUT, "kind": "", "made_at": clock.wall_s()}
    return store.publish(Record.of(key=put_key(Digest(wanted.tree)), tree=tree, inline=inline, body=body)).record


def _part(record: Record, wanted: FleetResult) -> Part:
    sidecar = {
        "node": wanted.name,
        "kind": "",
        "version": None,
        "digest": record.digest,
        "stage": wanted.recipe,
        "key": record.key,
        "made_at": record.body.get("made_at"),
        "job": wanted.job,
        "machine": wanted.machine,
    }
    return Part(record=record, folder="", sidecar=sidecar)
