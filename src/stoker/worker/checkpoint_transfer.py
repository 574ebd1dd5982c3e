"""Checkpoints of an attempt, sent to the coordinator as the attempt saves them, for the next attempt.

A thread polls the scratch folders of the attempt. It sends the newest verified checkpoint as a tree, then records it in
the queue under the attempt's token: bytes, then name. One is sent at a time, and at most one each 2 s; one that was
overtaken is never sent. The training does not wait, so a worker that is killed may lose a checkpoint that was saved a
moment ago. What can't be sent is logged and changes nothing for the attempt.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from stoker.core.clock import Clock
from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes, is_digest
from stoker.core.errors import (
    BadInput,
    Cancelled,
    Forbidden,
    NotFound,
    NotVerified,
    StaleLease,
    StokerError,
    VersionSkew,
)
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
from stoker.host.durable import open_regular, remove_tree, sync_dir, translated
from stoker.host.identity import Liveness, is_alive, mine
from stoker.host.users import acting_as_owner
from stoker.protocol.client import FleetClient
from stoker.protocol.lease_messages import CheckpointBody, PointCheckpoint
from stoker.store.local_store import LocalStore
from stoker.store.trees import Heed, ReadingStopped, hash_file, heeding, walk_tree
from stoker.transfer.download.types import DownloadStop
from stoker.transfer.trees.holdings import check_out
from stoker.transfer.trees.tree_download import receive_tree
from stoker.transfer.trees.tree_sources import CoordinatorSource, TransferBackoff, is_later
from stoker.transfer.trees.tree_upload import send_tree


class CheckpointFiles:
    """A verified checkpoint of a scratch folder as a tree: its files, the index that describes it, earlier curves.

    Raises `LocalFile` if a newer checkpoint took its place.
    """

    is_verified = False
    """Its program may write to them."""

    def __init__(self, scratch: str, checkpoint: Checkpoint, description: Mapping[str, Any]) -> None:
        self._scratch = scratch
        self._root = os.path.realpath(scratch)
        self._made = {INDEX: dumps({"v": 1, "checkpoints": [dict(description)]}).encode()}
        if curves := earlier_curves(scratch):
            self._made[EARLIER] = curves
        entries = [TreeEntry(path, len(data), digest_bytes(data)) for path, data in self._made.items()]
        with acting_as_owner(scratch):
            entries += _entries(checkpoint.path, os.path.relpath(checkpoint.path, self._root))
        self.tree = Tree(tuple(sorted(entries, key=lambda entry: entry.path)))

    def open(self, entry: TreeEntry) -> BinaryIO:
        """Open a file of the tree. Thread-safe. Caller closes."""
        if entry.path in self._made:
            return io.BytesIO(self._made[entry.path])
        path = os.path.join(self._root, entry.path)
        with acting_as_owner(self._scratch), translated(path):
            return open_regular(path)


def _entries(path: str, name: str) -> list[TreeEntry]:
    if os.path.isdir(path):
        return [
            TreeEntry(f"{name}/{entry.path}", entry.size_bytes, entry.sha256, entry.executable, entry.link_to)
            for entry, *_ in walk_tree(path)
        ]
    with translated(path):
        digest, size_bytes = hash_file(path)
    return [TreeEntry(name, size_bytes, digest)]


EVERY_S = 2.0
"""Between two looks for scratch folders of the attempt, and after each checkpoint that was handled."""
LOOK_S = 0.5
"""Between two looks for a new checkpoint in those folders: what is not sent is lost with a worker that is killed."""
_Stamp = tuple[int, int, int]


@frozen
class WatchedScratch:
    """Where an attempt saves its checkpoints."""

    root: str
    """Of all scratch folders."""
    run_id: str
    """The attempt's name in its scratch folders: that of its job folder."""
    every_s: float = EVERY_S
    look_s: float = LOOK_S


class CheckpointShipper:
    """Sends the checkpoints of one attempt, in a thread of its own from `begin` on.

    `check_lease` raises `Unavailable` while the lease is over by this machine's clock.
    """

    def __init__(  # noqa: PLR0913 - what to send where, and what is called meanwhile
        self,
        watched: WatchedScratch,
        token: AttemptToken,
        client: FleetClient,
        *,
        clock: Clock,
        check_lease: Callable[[], None],
        log: Callable[[str], None],
        on_sent: Callable[[float], None] = lambda _took_s: None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self._root = watched.root
        self._run_id = watched.run_id
        self._every_s = watched.every_s
        self._look_s = min(watched.look_s, watched.every_s)
        self._token = token
        self._client = client
        self._clock = clock
        self._check_lease = check_lease
        self._log = log
        self._on_sent = on_sent
        self._backoff = TransferBackoff(chance=chance)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # The stamp of each index when its newest checkpoint was handled.
        self._seen: dict[str, _Stamp] = {}
        # Its scratch folders. A machine may have thousands of others, so they are listed less often.
        self._own: set[str] = set()
        self._list_at_s = 0.0
        self.pointed: CheckpointBody | None = None
        """The checkpoint from which the job would continue now."""
        self.ended_by: StokerError | None = None

    def begin(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="stoker-checkpoints", daemon=True)
        self._thread.start()

    def ship(self) -> float:
        """Send the newest checkpoint that was not sent yet, if any; return the seconds to wait before the next call.

        Raises nothing: what fails is tried again later, or logged.
        """
        with self._lock:
            found = self._changed()
            for scratch, stamp in found:
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
                        return self._backoff.failed()
                    if _owner(scratch) != owner:
                        # The folder was taken back from the job's user meanwhile.
                        return 0.0
                    self._log(f"a checkpoint was not sent to the coordinator: {error}")
                self._seen[scratch] = stamp
        return self._every_s if found else self._look_s

    def settle(self, deadline_s: float) -> CheckpointBody | None:
        """Send what the attempt saved last; call it after its process has ended. Return where the job continues.

        Gives up at `deadline_s` on the clock's monotonic scale.
        """
        waiter = threading.Timer(max(0.0, deadline_s - self._clock.monotonic_s()), self._stop.set)
        waiter.daemon = True
        waiter.start()
        try:
            while not self._stop.is_set() and self._has_changed():
                pause_s = self.ship()
                if self._has_changed():
                    self._stop.wait(pause_s)
        finally:
            waiter.cancel()
            self.close()
        return self.pointed

    def close(self) -> None:
        """Stop sending."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._every_s)

    def _run(self) -> None:
        while not self._stop.wait(self.ship()):
            pass

    def _has_changed(self) -> bool:
        with self._lock:
            self._list_at_s = 0.0
            return bool(self._changed())

    def _changed(self) -> list[tuple[str, _Stamp]]:
        """Return the scratch folders of this attempt whose index has changed, with its stamp."""
        found = []
        for scratch in self._scratches():
            stamp = _stamp_of(os.path.join(scratch, INDEX))
            if stamp is None or stamp == self._seen.get(scratch):
                continue
            marker = look_at(scratch)
            if marker is not None and marker.run_id == self._run_id:
                found.append((scratch, stamp))
                self._own.add(scratch)
        return found

    def _scratches(self) -> list[str]:
        """Return the scratch folders that may be this attempt's: all each `every_s`, in between those that were."""
        now_s = self._clock.monotonic_s()
        if self._own and now_s < self._list_at_s:
            return sorted(self._own)
        self._list_at_s = now_s + self._every_s
        try:
            return sorted(os.path.join(self._root, name) for name in os.listdir(self._root) if is_digest(name))
        except OSError:
            return []

    def _ship_from(self, scratch: str) -> bool:
        """Send a checkpoint, then record it in the queue; return False if stopped meanwhile."""
        key = Digest(os.path.basename(scratch))
        with acting_as_owner(scratch):
            choice = choose_checkpoint(scratch, key)
        for why in choice.refused:
            self._log(f"a checkpoint is not sent to the coordinator: {why}")
        if choice.checkpoint is None:
            return True
        try:
            with heeding(self._check_stop):
                files = CheckpointFiles(scratch, choice.checkpoint, choice.said)
            tree = files.tree
            body = CheckpointBody(
                scratch=key, tree=tree.digest(), size_bytes=tree.size_bytes, step=choice.checkpoint.step
            )
            if body == self.pointed:
                return True
            began_s = self._clock.monotonic_s()
            send_tree(self._client, tree, files, stop=self._stop, waits_for_space=True)
        except (ReadingStopped, Cancelled):
            return False
        self._check_lease()
        self._client.write(self._token.job, PointCheckpoint(**self._token.fence(), checkpoint=body))
        self._backoff.worked()
        self.pointed = body
        self._on_sent(self._clock.monotonic_s() - began_s)
        return True

    def _check_stop(self, _size_bytes: int) -> None:
        if self._stop.is_set():
            raise ReadingStopped


def _owner(path: str) -> int | None:
    try:
        return os.lstat(path).st_uid
    except OSError:
        return None


def _stamp_of(path: str) -> _Stamp | None:
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


_ARRIVING = ".arriving"


@frozen
class CheckpointArrival:
    """Whether a granted checkpoint was placed, and why."""

    is_placed: bool
    why: str


@frozen
class FetchCheckpoint:
    """Fetch the granted checkpoint."""


@frozen
class KeepLocalCheckpoint:
    """Keep what this machine has."""

    why: str


def decide_arrival(
    granted: CheckpointBody, own: Checkpoint | None, *, works_there: str
) -> FetchCheckpoint | KeepLocalCheckpoint:
    """Decide whether a granted checkpoint replaces what this machine has."""
    if works_there:
        return KeepLocalCheckpoint(why=works_there)
    if own is not None and own.step is not None and granted.step is not None and own.step >= granted.step:
        return KeepLocalCheckpoint(why=f"this machine has its own of step {own.step}")
    return FetchCheckpoint()


def bring_checkpoint(  # noqa: PLR0913 - what, from where, to where, until when
    client: FleetClient,
    store: LocalStore,
    granted: CheckpointBody,
    scratch_root: str,
    *,
    run_id: str,
    stop: DownloadStop,
    clock: Clock,
    heed: Heed = lambda _: None,
) -> CheckpointArrival:
    """Fetch a granted checkpoint and put it where the attempt will look; call it before the attempt starts.

    `run_id` is the writer in the folder's marker; `heed` is called with the size of everything that arrives, and again
    when it is copied. Raises what `receive_tree` raises, and `NotVerified` if the checkpoint is invalid: an attempt
    may still start without it, from the beginning.

    It is checked out beside the scratch folders, verified by the engine's rule, and renamed into place. Its marker
    names an earlier run. A local checkpoint that is as new stays; so does a folder in use.
    """
    if not is_digest(granted.scratch):
        raise BadInput(f"not the key of a scratch folder: {granted.scratch[:80]!r}")
    key = Digest(granted.scratch)
    scratch = scratch_path(scratch_root, key)
    own = choose_checkpoint(scratch, key).checkpoint if os.path.isdir(scratch) else None
    decision = decide_arrival(granted, own, works_there=_who_works_in(scratch, run_id, clock))
    if isinstance(decision, KeepLocalCheckpoint):
        return CheckpointArrival(is_placed=False, why=decision.why)
    record = receive_tree(CoordinatorSource(client), granted.tree, store, stop=stop, clock=clock, heed=heed)
    folder = os.path.join(scratch_root, _ARRIVING, f"{key}-{os.urandom(6).hex()}")
    try:
        check_out(store, record, folder, heed=heed)
        choice = choose_checkpoint(folder, key)
        if choice.checkpoint is None:
            why = "; ".join(choice.refused) or "it has none"
            raise NotVerified(f"checkpoint {granted.tree[:12]} can't be used: {why}", hint="the job starts at step 0")
        hand_over(folder, run_id=run_id, me=mine(), clock=clock)
        _put_in_place(folder, scratch)
    finally:
        remove_tree(folder)
    at = "" if granted.step is None else f" of step {granted.step}"
    return CheckpointArrival(is_placed=True, why=f"the checkpoint{at} that an earlier attempt left")


def _who_works_in(scratch: str, run_id: str, clock: Clock) -> str:
    marker = look_at(scratch)
    liveness = is_alive(marker.owner) if marker else Liveness.GONE
    decision = decide_scratch(marker, run_id=run_id, liveness=liveness, now_s=clock.wall_s())
    return decision.why if isinstance(decision, ScratchInUse) else ""


def _put_in_place(folder: str, scratch: str) -> None:
    # After a crash between the two this machine has no checkpoint; the coordinator still has it.
    remove_tree(scratch)
    with translated(scratch):
        os.rename(folder, scratch)
    sync_dir(os.path.dirname(scratch))
