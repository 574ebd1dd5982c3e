"""An attempt's checkpoints, brought to the coordinator as they come, for whoever continues with the job.

A thread looks at the scratch folders that the attempt works in. The newest verified checkpoint is packed, sent and
then pointed at, under the attempt's token: bytes, then name. One is under way at a time; what a newer one overtook is
never sent. Training waits for none of it. What can't be shipped is told and changes nothing for the attempt.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, cast

from stoker.core.clock import Clock
from stoker.core.digests import Digest, TreeEntry, digest_bytes, is_digest
from stoker.core.errors import BadInput, Forbidden, NotFound, NotVerified, StaleLease, StokerError, VersionSkew
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps
from stoker.core.leases import AttemptToken
from stoker.engine.metrics.attempt_metrics import EARLIER, earlier_curves
from stoker.engine.scratch import (
    INDEX,
    Checkpoint,
    ScratchInUse,
    choose_checkpoint,
    decide_scratch,
    hand_over,
    look_at,
    scratch_path,
)
from stoker.host.durable import open_regular, remove_tree, stamp_of, sync_dir, translated, writing
from stoker.host.identity import Liveness, is_alive, mine
from stoker.host.users import acting_as_owner
from stoker.protocol.lease_messages import CheckpointBody, PointCheckpoint
from stoker.store.archives.pack import NOT_HASHED, PackSource, pack
from stoker.store.archives.unpack import unpack
from stoker.store.trees import Heed, WalkedEntry, walk_tree
from stoker.transfer.trees.tree_download import receive
from stoker.transfer.trees.tree_sources import FleetConnection, TransferBackoff, TransferConnection, is_later
from stoker.transfer.trees.tree_upload import Archive, ArchiveSendOutcome, send


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

    The caller removes it. `CorruptBytes` if it changes meanwhile, `LocalFile` if a newer one took its place.
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


EVERY_S = 2.0
_Look = tuple[int, int, int]


@frozen
class WatchedScratch:
    """Where an attempt's checkpoints come to lie, and where they are packed."""

    root: str
    """Of all scratch folders."""
    run_id: str
    """What they know the attempt by: its folder's name."""
    spool: str
    every_s: float = EVERY_S


class CheckpointShipper:
    """Ships the checkpoints of one attempt, in a thread of its own from `begin` on."""

    def __init__(
        self,
        watched: WatchedScratch,
        token: AttemptToken,
        line: FleetConnection,
        *,
        clock: Clock,
        tell: Callable[[str], None] = lambda _: None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self._root = watched.root
        self._run_id = watched.run_id
        self._every_s = watched.every_s
        self._spool = os.path.join(watched.spool, f"{token.job[:16]}-{token.attempt}")
        self._token = token
        self._line = line
        self._clock = clock
        self._tell = tell
        self._pauses = TransferBackoff(chance=chance)
        self._stop = threading.Event()
        self._passage = TransferConnection(line=line, stop=self._stop, clock=clock, chance=chance)
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None
        # How each index looked when its newest checkpoint was dealt with.
        self._seen: dict[str, _Look] = {}
        self.pointed: CheckpointBody | None = None
        """Where the job would go on now."""
        self.ended_by: StokerError | None = None

    def begin(self) -> None:
        """Start to look, beside whatever else happens."""
        self._thread = threading.Thread(target=self._run, name="stoker-checkpoints", daemon=True)
        self._thread.start()

    def ship(self) -> float:
        """Ship the newest checkpoint that was not shipped yet, if there is one; give how long to wait before the next.

        Raises nothing: what fails is tried again later, or told.
        """
        with self._turn:
            for scratch, look in self._news():
                owner = _owner(scratch)
                try:
                    if not self._ship_from(scratch):
                        return self._every_s
                except (StaleLease, NotFound, Forbidden, VersionSkew) as error:
                    self.ended_by = error
                    self._stop.set()
                    return 0.0
                except (StokerError, OSError) as error:
                    if isinstance(error, StokerError) and is_later(error):
                        return self._pauses.failed()
                    if _owner(scratch) != owner:
                        # It was taken back from the user who worked in it, under our hands.
                        return 0.0
                    self._tell(f"a checkpoint was not brought to the coordinator: {error}")
                self._seen[scratch] = look
        return self._every_s

    def settle(self, deadline_s: float) -> CheckpointBody | None:
        """The attempt's process is gone: ship what it saved last, and give where the job continues.

        Gives up at `deadline_s` on the clock's monotonic scale.
        """
        waiter = threading.Timer(max(0.0, deadline_s - self._clock.monotonic_s()), self._stop.set)
        waiter.daemon = True
        waiter.start()
        try:
            while not self._stop.is_set() and self._has_news():
                pause_s = self.ship()
                if self._has_news():
                    self._stop.wait(pause_s)
        finally:
            waiter.cancel()
            self.close()
        return self.pointed

    def close(self) -> None:
        """Ship nothing more."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._every_s)

    def _run(self) -> None:
        while not self._stop.wait(self.ship()):
            pass

    def _has_news(self) -> bool:
        with self._turn:
            return bool(self._news())

    def _news(self) -> list[tuple[str, _Look]]:
        """Return the scratch folders of this attempt whose index is not as it was, and how it looks."""
        try:
            names = sorted(name for name in os.listdir(self._root) if is_digest(name))
        except OSError:
            return []
        found = []
        for name in names:
            scratch = os.path.join(self._root, name)
            look = _look(os.path.join(scratch, INDEX))
            if look is None or look == self._seen.get(scratch):
                continue
            marker = look_at(scratch)
            if marker is not None and marker.run_id == self._run_id:
                found.append((scratch, look))
        return found

    def _ship_from(self, scratch: str) -> bool:
        """Pack, send and point; False if somebody said stop on the way."""
        with acting_as_owner(scratch):
            choice = choose_checkpoint(scratch, Digest(os.path.basename(scratch)))
        for why in choice.refused:
            self._tell(f"a checkpoint is not brought to the coordinator: {why}")
        if choice.checkpoint is None:
            return True
        packed = pack_checkpoint(scratch, choice.checkpoint, choice.said, self._spool)
        try:
            body = CheckpointBody(
                scratch=packed.key,
                tree=packed.archive.tree,
                archive_sha256=packed.archive.sha256,
                size_bytes=packed.archive.size_bytes,
                step=packed.step,
            )
            if body == self.pointed:
                return True
            if send(self._passage, packed.archive) is ArchiveSendOutcome.STOPPED:
                return False
            token = self._token
            self._line.checkpoint(token.job, PointCheckpoint(**token.fence(), checkpoint=body))
            self._pauses.worked()
            self.pointed = body
        finally:
            remove_tree(packed.archive.path)
        return True


def _owner(path: str) -> int | None:
    try:
        return os.lstat(path).st_uid
    except OSError:
        return None


def _look(path: str) -> _Look | None:
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


# The other way: a checkpoint that lies with the coordinator, put where this machine's attempt will look for it.
#
# It is unpacked beside the scratch folders, judged by the plan's own rule, and takes its place whole. Whoever opens the
# folder finds that a run left it: that is all a marker has to say, so it does not matter which machine that was. What
# this machine has itself, if it is as new, stays; so does a folder in which somebody works.

_ARRIVING = ".arriving"


@frozen
class CheckpointArrival:
    """What became of a granted checkpoint."""

    is_placed: bool
    why: str


@frozen
class FetchCheckpoint:
    """Fetch it."""


@frozen
class KeepLocalCheckpoint:
    """What is here stays."""

    why: str


def decide_arrival(
    granted: CheckpointBody, own: Checkpoint | None, *, works_there: str
) -> FetchCheckpoint | KeepLocalCheckpoint:
    """Decide whether a granted checkpoint takes the place of what this machine has."""
    if works_there:
        return KeepLocalCheckpoint(why=works_there)
    if own is not None and own.step is not None and granted.step is not None and own.step >= granted.step:
        return KeepLocalCheckpoint(why=f"this machine has its own of step {own.step}")
    return FetchCheckpoint()


def bring_checkpoint(
    passage: TransferConnection, granted: CheckpointBody, scratch_root: str, *, run_id: str, heed: Heed = lambda _: None
) -> CheckpointArrival:
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
    if isinstance(decision, KeepLocalCheckpoint):
        return CheckpointArrival(is_placed=False, why=decision.why)
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
    return CheckpointArrival(is_placed=True, why=f"the checkpoint{at} that an earlier attempt left")


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
    return decision.why if isinstance(decision, ScratchInUse) else ""


def _put_in_place(folder: str, scratch: str) -> None:
    # A crash between the two leaves nothing to go on from here; the coordinator still has it.
    remove_tree(scratch)
    with translated(scratch):
        os.rename(folder, scratch)
    sync_dir(os.path.dirname(scratch))
