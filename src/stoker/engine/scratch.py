"""A folder of its own for each piece of work, named by its key, that survives attempts, runs and crashes.

Checkpoints lie there until the work succeeds. A marker says who works in it; whether a newcomer may go on from what
lies there, has to begin anew, or must keep out is decided purely.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from stoker.core.clock import Clock
from stoker.core.digests import Digest
from stoker.core.errors import ScratchBusy, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.jsontext import dumps, loads
from stoker.engine.metrics.previous_curves import FILES as CURVE_FILES
from stoker.host.durable import read_regular, remove_tree, translated, write_file
from stoker.host.identity import Liveness, ProcessIdentity, is_alive

BEAT_EVERY_S = 60.0
STALE_AFTER_S = 180.0
MARKER = "marker.json"
EARLIER_ATTEMPT = "an-earlier-attempt"
"""Who left what was brought from elsewhere: on which machine that was does not matter."""
OURS = frozenset({MARKER, *CURVE_FILES})
"""Names in a scratch folder that are not the work's own."""
_LARGEST_MARKER_BYTES = 1 << 16
_RUNNING, _LEFT, _FINISHED = "running", "left", "finished"


@frozen
class Marker:
    """Who works in a scratch folder, and when that was last confirmed."""

    status: str
    run_id: str
    owner: ProcessIdentity
    heartbeat_s: float

    def to_json(self) -> dict[str, Any]:
        return {
            "v": 1,
            "status": self.status,
            "run_id": self.run_id,
            "owner": self.owner.to_dict(),
            "heartbeat_unix": self.heartbeat_s,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Marker:
        return cls(
            status=str(raw["status"]),
            run_id=str(raw["run_id"]),
            owner=ProcessIdentity.from_dict(raw["owner"]),
            heartbeat_s=float(raw["heartbeat_unix"]),
        )


@frozen
class ScratchStart:
    """Nothing here is to be gone on with."""

    why: str


@frozen
class ScratchResume:
    """What lies here was left by work that ended before its time."""

    why: str


@frozen
class ScratchInUse:
    """Somebody works here."""

    why: str


def decide_scratch(
    marker: Marker | None, *, run_id: str, liveness: Liveness, now_s: float
) -> ScratchStart | ScratchResume | ScratchInUse:
    """Decide what a run may do with a scratch folder, from its marker and what is known of whoever wrote it."""
    if marker is None or marker.status not in (_RUNNING, _LEFT):
        return ScratchStart(
            why="nobody has worked here" if marker is None else "the work that was done here is finished"
        )
    if marker.run_id == run_id:
        return ScratchResume(why="an earlier attempt of this run")
    if marker.status == _LEFT:
        who = "an earlier attempt" if marker.run_id == EARLIER_ATTEMPT else f"run {marker.run_id}"
        return ScratchResume(why=f"{who} left it")
    if liveness is Liveness.GONE:
        return ScratchResume(why=f"run {marker.run_id} is gone")
    # Who is known to live may have been suspended, or be busy with a large result. Of whom we can't see, a heartbeat
    # from the future is a clock that jumped: nobody can say how old it is, so it counts as fresh.
    if liveness is Liveness.UNKNOWN and now_s - marker.heartbeat_s >= STALE_AFTER_S:
        return ScratchResume(why=f"run {marker.run_id} has been silent for {now_s - marker.heartbeat_s:.0f} s")
    return ScratchInUse(why=f"run {marker.run_id} works there (process {marker.owner.pid})")


class Scratch:
    """One opened scratch folder."""

    def __init__(self, path: str, marker: Marker, clock: Clock, *, goes_on: bool, why: str) -> None:
        self.path = path
        self.goes_on = goes_on
        """Whether what an earlier attempt left may be used."""
        self.why = why
        self._marker = marker
        self._clock = clock

    def beat(self) -> None:
        """Confirm, now and then, that the work goes on."""
        now_s = self._clock.wall_s()
        # A clock that was set back must not keep it silent.
        if abs(now_s - self._marker.heartbeat_s) >= BEAT_EVERY_S:
            self._say(changed(self._marker, heartbeat_s=now_s))

    def leave(self) -> None:
        """Say that nobody works here any more; a folder in which nothing was left for a next attempt goes."""
        if not remove_if_empty(self.path):
            self._say(changed(self._marker, status=_LEFT, heartbeat_s=self._clock.wall_s()))

    def _say(self, marker: Marker) -> None:
        self._marker = marker
        # A full disk, or a program that removed its own scratch folder, is no reason to end its work.
        with suppress(StokerError):
            _write(self.path, marker)


def open_scratch(path: str, *, run_id: str, me: ProcessIdentity, clock: Clock) -> Scratch:
    """Take a scratch folder for a run; `ScratchBusy` if another run works in it."""
    marker = _read(path)
    liveness = is_alive(marker.owner) if marker else Liveness.GONE
    decision = decide_scratch(marker, run_id=run_id, liveness=liveness, now_s=clock.wall_s())
    if isinstance(decision, ScratchInUse):
        raise ScratchBusy(f"its scratch folder is in use: {decision.why}", hint="wait for that run, or cancel it")
    if isinstance(decision, ScratchStart):
        remove_tree(path)
    with translated(path):
        # Each by itself, because only the last folder of a path gets the mode.
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.makedirs(path, mode=0o700, exist_ok=True)
    mine = Marker(status=_RUNNING, run_id=run_id, owner=me, heartbeat_s=clock.wall_s())
    _write(path, mine)
    return Scratch(path, mine, clock, goes_on=isinstance(decision, ScratchResume), why=decision.why)


def look_at(path: str) -> Marker | None:
    """Return who works, or worked, in a scratch folder; nothing if nobody has, or it can't be read."""
    return _read(path)


def hand_over(path: str, *, run_id: str, me: ProcessIdentity, clock: Clock) -> None:
    """Say of a folder that was filled from elsewhere that a run left it: whoever opens it may go on from there."""
    _write(path, Marker(status=_LEFT, run_id=run_id, owner=me, heartbeat_s=clock.wall_s()))


def scratch_path(root: str, key: Digest) -> str:
    """Name the scratch folder of a piece of work."""
    return os.path.join(root, key)


def clear_scratch(path: str) -> None:
    """Remove a scratch folder whose work is done."""
    if os.path.isdir(path) and not remove_if_empty(path):
        # Said first: whoever finds half of it, because we were killed, begins anew.
        marker = _read(path)
        if marker is not None:
            _write(path, changed(marker, status=_FINISHED))
        remove_tree(path)


def remove_if_empty(path: str) -> bool:
    """Remove a scratch folder with nothing in it but its marker and curves; return whether that was so."""
    try:
        names = os.listdir(path)
        if any(name not in OURS for name in names):
            return False
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(path, name))
        os.rmdir(path)
    except OSError:
        # It is gone already, or somebody else has begun to use it.
        return not os.path.isdir(path)
    return True


def forgotten(root: str, *, older_than_s: float, now_s: float) -> list[str]:
    """Return the scratch folders of work that ended without success and that nobody came back to for so long."""
    try:
        # What begins with a dot is not a scratch folder but belongs to all of them.
        names = sorted(name for name in os.listdir(root) if not name.startswith("."))
    except OSError:
        return []
    found = []
    for name in names:
        path = os.path.join(root, name)
        marker = _read(path)
        with suppress(OSError):
            used_s = marker.heartbeat_s if marker else os.stat(path).st_mtime
            is_free = marker is None or is_alive(marker.owner) is not Liveness.ALIVE
            if is_free and now_s - used_s >= older_than_s:
                found.append(path)
    return found


def _read(path: str) -> Marker | None:
    try:
        # A folder may have been given to another user, who could write a marker that speaks for somebody else.
        if os.lstat(os.path.join(path, MARKER)).st_uid not in (0, os.geteuid()):
            return None
        return Marker.from_json(loads(read_regular(os.path.join(path, MARKER), _LARGEST_MARKER_BYTES)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: str, marker: Marker) -> None:
    write_file(os.path.join(path, MARKER), dumps(marker.to_json()).encode())
