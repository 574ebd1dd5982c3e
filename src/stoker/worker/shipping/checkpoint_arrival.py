"""The other way: a checkpoint that lies with the coordinator, put where this machine's attempt will look for it.

It is unpacked beside the scratch folders, judged by the plan's own rule, and takes its place whole. Whoever opens the
folder finds that a run left it: that is all a marker has to say, so it does not matter which machine that was. What
this machine has itself, if it is as new, stays; so does a folder in which somebody works.
"""

from __future__ import annotations

import os
from typing import BinaryIO, cast

from stoker.host.durable import open_regular, remove_tree, sync_dir, translated
from stoker.host.identity import Liveness, is_alive, mine
from stoker.model.clock import Clock
from stoker.model.digests import Digest, is_digest
from stoker.model.errors import BadInput, NotVerified
from stoker.model.frozen import frozen
from stoker.plan.checkpoints import Checkpoint, choose_checkpoint
from stoker.plan.scratch import KeepOut, decide_scratch, hand_over, look_at, scratch_path
from stoker.store.bundle.unpacking import unpack
from stoker.store.trees import Heed
from stoker.wire.leasing import CheckpointBody
from stoker.worker.shipping.line import Passage
from stoker.worker.shipping.receiving import receive

_ARRIVING = ".arriving"


@frozen
class Arrived:
    """What became of a granted checkpoint."""

    is_placed: bool
    why: str


@frozen
class Take:
    """Fetch it."""


@frozen
class Leave:
    """What is here stays."""

    why: str


def decide_arrival(granted: CheckpointBody, own: Checkpoint | None, *, works_there: str) -> Take | Leave:
    """Decide whether a granted checkpoint takes the place of what this machine has."""
    if works_there:
        return Leave(why=works_there)
    if own is not None and own.step is not None and granted.step is not None and own.step >= granted.step:
        return Leave(why=f"this machine has its own of step {own.step}")
    return Take()


def bring_checkpoint(
    passage: Passage, granted: CheckpointBody, scratch_root: str, *, run_id: str, heed: Heed = lambda _: None
) -> Arrived:
    """Fetch a granted checkpoint and put it where the attempt will look; before the attempt starts.

    `run_id` is only what the folder says of who left it; `heed` is told of every byte of the archive twice, as it comes
    and as it is unpacked. Raises what fetching and unpacking raise, `NotVerified` if the
    checkpoint is not what it says: an attempt may still start without it, from the beginning.
    """
    if not is_digest(granted.scratch):
        raise BadInput(f"not the key of a scratch folder: {granted.scratch[:80]!r}")
    key = Digest(granted.scratch)
    scratch = scratch_path(scratch_root, key)
    own = choose_checkpoint(scratch, key).checkpoint if os.path.isdir(scratch) else None
    decision = decide_arrival(granted, own, works_there=_who_works_in(scratch, run_id, passage.clock))
    if isinstance(decision, Leave):
        return Arrived(is_placed=False, why=decision.why)
    arriving = os.path.join(scratch_root, _ARRIVING)
    path = receive(passage, granted.archive_sha256, granted.size_bytes, arriving, heed=heed)
    folder = os.path.join(arriving, f"{key}-{os.urandom(6).hex()}")
    try:
        with translated(path), open_regular(path) as archive:
            unpacked = unpack(cast("BinaryIO", _Heeded(archive, heed)), folder)
        if unpacked.tree.digest() != granted.tree:
            raise NotVerified(f"checkpoint {granted.tree[:12]} unpacks to another tree", hint="it begins anew")
        choice = choose_checkpoint(folder, key)
        if choice.checkpoint is None:
            why = "; ".join(choice.refused) or "it has none"
            raise NotVerified(f"checkpoint {granted.tree[:12]} can't be gone on from: {why}", hint="it begins anew")
        hand_over(folder, run_id=run_id, me=mine(), clock=passage.clock)
        _put_in_place(folder, scratch)
    finally:
        remove_tree(folder)
        remove_tree(path)
    at = "" if granted.step is None else f" of step {granted.step}"
    return Arrived(is_placed=True, why=f"the checkpoint{at} that an earlier attempt left")


class _Heeded:
    """A file of which somebody hears how far it was read."""

    def __init__(self, file: BinaryIO, heed: Heed) -> None:
        self._file = file
        self._heed = heed

    def read(self, at_most_bytes: int) -> bytes:
        data = self._file.read(at_most_bytes)
        self._heed(len(data))
        return data


def _who_works_in(scratch: str, run_id: str, clock: Clock) -> str:
    marker = look_at(scratch)
    liveness = is_alive(marker.owner) if marker else Liveness.GONE
    decision = decide_scratch(marker, run_id=run_id, liveness=liveness, now_s=clock.wall_s())
    return decision.why if isinstance(decision, KeepOut) else ""


def _put_in_place(folder: str, scratch: str) -> None:
    # A crash between the two leaves nothing to go on from here; the coordinator still has it.
    remove_tree(scratch)
    with translated(scratch):
        os.rename(folder, scratch)
    sync_dir(os.path.dirname(scratch))
