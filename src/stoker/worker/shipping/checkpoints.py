"""An attempt's checkpoints, brought to the coordinator as they come, for whoever goes on with the job.

A thread looks at the scratch folders that the attempt works in. The newest verified checkpoint is packed, sent and
then pointed at, under the attempt's token: bytes, then name. One is under way at a time; what a newer one overtook is
never sent. Training waits for none of it. What can't be shipped is told and changes nothing for the attempt.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from stoker.host.acting_as import acting_as_owner
from stoker.host.durable import remove_tree
from stoker.model.clock import Clock
from stoker.model.digests import Digest, is_digest
from stoker.model.errors import NotFound, StokerError
from stoker.model.fleet_errors import NotAllowed, StaleLease, VersionSkew
from stoker.model.frozen import frozen
from stoker.model.leases import Token
from stoker.plan.checkpoints import INDEX, choose_checkpoint
from stoker.plan.scratch import look_at
from stoker.wire.leasing import CheckpointBody, PointCheckpoint
from stoker.worker.shipping.checkpoint_packing import pack_checkpoint
from stoker.worker.shipping.line import FleetLine, Passage, is_later
from stoker.worker.shipping.pauses import Pauses
from stoker.worker.shipping.sending import Sent, send

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
        token: Token,
        line: FleetLine,
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
        self._pauses = Pauses(chance=chance)
        self._stop = threading.Event()
        self._passage = Passage(line=line, stop=self._stop, clock=clock, chance=chance)
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
                except (StaleLease, NotFound, NotAllowed, VersionSkew) as error:
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
        """The attempt's process is gone: ship what it saved last, and give where the job goes on.

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
        """Give the scratch folders of this attempt whose index is not as it was, and how it looks."""
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
            if send(self._passage, packed.archive) is Sent.STOPPED:
                return False
            token = self._token
            said = PointCheckpoint(
                attempt=token.attempt, epoch=token.epoch, generation=token.generation, checkpoint=body
            )
            self._line.checkpoint(token.job, said)
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
