"""A folder of its own for each piece of work, named by its key, that survives attempts, runs and crashes.

Checkpoints lie there until the work succeeds. A marker says who works in it; whether a newcomer may go on from what
lies there, has to start again, or must wait is a pure decision.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from stoker.core.clock import Clock
from stoker.core.digests import Digest, digest_bytes, digest_value
from stoker.core.errors import ScratchBusy, StokerError
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.jsontext import dumps, loads
from stoker.engine.action import Action
from stoker.engine.metrics.attempt_metrics import FILES as CURVE_FILES
from stoker.engine.stage import Stage
from stoker.host.durable import read_regular, remove_tree, translated, write_file
from stoker.host.identity import Liveness, ProcessIdentity, is_alive
from stoker.store.trees import hash_file

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
    """Another run works here."""

    why: str


def decide_scratch(
    marker: Marker | None, *, run_id: str, liveness: Liveness, now_s: float
) -> ScratchStart | ScratchResume | ScratchInUse:
    """Decide what a run may do with a scratch folder, from its marker and whether the process that wrote it lives."""
    if marker is None or marker.status not in (_RUNNING, _LEFT):
        return ScratchStart(why="unused" if marker is None else "its work is finished")
    if marker.run_id == run_id:
        return ScratchResume(why="an earlier attempt of this run")
    if marker.status == _LEFT:
        who = "an earlier attempt" if marker.run_id == EARLIER_ATTEMPT else f"run {marker.run_id}"
        return ScratchResume(why=f"{who} left it")
    if liveness is Liveness.GONE:
        return ScratchResume(why=f"run {marker.run_id} is gone")
    # Who is known to live may have been suspended, or be busy with a large result. Of whom we can't see, a heartbeat
    # from the future is a clock that jumped: its age is unknown, so it counts as fresh.
    if liveness is Liveness.UNKNOWN and now_s - marker.heartbeat_s >= STALE_AFTER_S:
        return ScratchResume(why=f"run {marker.run_id} has been silent for {now_s - marker.heartbeat_s:.0f} s")
    return ScratchInUse(why=f"run {marker.run_id} works there (process {marker.owner.pid})")


class Scratch:
    """One opened scratch folder."""

    def __init__(self, path: str, marker: Marker, clock: Clock, *, goes_on: bool, why: str) -> None:
        self.path = path
        self.goes_on = goes_on
        """True if the files of an earlier attempt may be used."""
        self.why = why
        self._marker = marker
        self._clock = clock

    def beat(self) -> None:
        """Renew the heartbeat if it is due."""
        now_s = self._clock.wall_s()
        # A clock that was set back must not keep it silent.
        if abs(now_s - self._marker.heartbeat_s) >= BEAT_EVERY_S:
            self._say(changed(self._marker, heartbeat_s=now_s))

    def leave(self) -> None:
        """Mark the folder as left; remove it if it holds nothing for a next attempt."""
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
    """Return who works, or worked, in a scratch folder; None if there is no marker, or it can't be read."""
    return _read(path)


def hand_over(path: str, *, run_id: str, me: ProcessIdentity, clock: Clock) -> None:
    """Mark a folder that was filled from elsewhere as left by a run: the next one may resume from it."""
    _write(path, Marker(status=_LEFT, run_id=run_id, owner=me, heartbeat_s=clock.wall_s()))


def scratch_path(root: str, key: Digest) -> str:
    """Name the scratch folder of a piece of work."""
    return os.path.join(root, key)


def clear_scratch(path: str) -> None:
    """Remove a scratch folder whose work is done."""
    if os.path.isdir(path) and not remove_if_empty(path):
        # Marked first: if we are killed half-way, the next attempt starts again.
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
        # It is gone already, or another run has begun to use it.
        return not os.path.isdir(path)
    return True


def forgotten(root: str, *, older_than_s: float, now_s: float) -> list[str]:
    """Return the scratch folders of work that ended without success and were not used for so long."""
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
        # A folder may have been given to another user, who could forge the marker of another.
        if os.lstat(os.path.join(path, MARKER)).st_uid not in (0, os.geteuid()):
            return None
        return Marker.from_json(loads(read_regular(os.path.join(path, MARKER), _LARGEST_MARKER_BYTES)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: str, marker: Marker) -> None:
    write_file(os.path.join(path, MARKER), dumps(marker.to_json()).encode())


def digest_checkpoint(path: str) -> tuple[Digest, int]:
    """Return digest and size of a checkpoint, a file or a folder. Raises ours if something can't be read.

    Of a file it is the SHA-256 of its bytes. Of a folder, that of a list with a line for each file: its name within the
    folder, a zero byte and its digest, sorted by name. `stoker_trainer` has its own copy of this rule, since it imports
    nothing of ours; a test holds the two together.
    """
    if not os.path.isdir(path):
        return hash_file(path)
    found = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    lines, size_bytes = [], 0
    for name, file in sorted((os.path.relpath(file, path), file) for file in found):
        digest, file_bytes = hash_file(file)
        size_bytes += file_bytes
        lines.append(f"{name}\0{digest}\n")
    return digest_bytes("".join(lines).encode("utf-8", "surrogateescape")), size_bytes


CONTRACT = 1
"""Version of the trainer contract; another one's checkpoints are not ours."""
INDEX = "checkpoints.json"
_LARGEST_INDEX_BYTES = 1 << 20


@frozen
class Checkpoint:
    """A verified place to go on from."""

    path: str
    step: int | None


@frozen
class CheckpointChoice:
    """The checkpoint to use, if any, and why others were passed over."""

    checkpoint: Checkpoint | None
    refused: tuple[str, ...]
    said: dict[str, Any] = fresh(factory=dict)
    """What the trainer wrote down about the one to use."""


def resume_key(stage: Stage, action: Action) -> Digest:
    """Bind checkpoints to what they were made from: configuration, data and contract. Code is not part of it."""
    inputs = [[port, [ref.digest for ref in refs]] for port, refs in action.inputs]
    args = {name: value for name, value in action.args.items() if not stage.args.specs[name].is_read_first}
    return digest_value("resume", [CONTRACT, action.facts.stage, inputs, args, action.partition])


def choose_checkpoint(scratch: str, key: Digest) -> CheckpointChoice:
    """Find the newest checkpoint that may be used."""
    refused: list[str] = []
    for entry in reversed(_entries(scratch)):
        checkpoint, why = _verified(scratch, entry, key)
        if checkpoint is not None:
            return CheckpointChoice(checkpoint=checkpoint, refused=tuple(refused), said=dict(entry))
        refused.append(why)
    return CheckpointChoice(checkpoint=None, refused=tuple(refused))


def newest_checkpoint(scratch: str) -> dict[str, Any] | None:
    """Return what was said of the newest checkpoint, for the record; its bytes are not looked at."""
    entries = _entries(scratch)
    return {name: entries[-1].get(name) for name in ("file", "step", "sha256")} if entries else None


def _entries(scratch: str) -> list[Mapping[str, Any]]:
    try:
        raw = loads(read_regular(os.path.join(scratch, INDEX), _LARGEST_INDEX_BYTES))
    except (OSError, ValueError):
        return []
    listed = raw.get("checkpoints") if isinstance(raw, dict) else None
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _verified(scratch: str, entry: Mapping[str, Any], key: Digest) -> tuple[Checkpoint | None, str]:
    name: Any = entry.get("file")
    if why := _why_no_name(name):
        return None, why
    path = os.path.realpath(os.path.join(scratch, name))
    if not path.startswith(os.path.realpath(scratch) + os.sep):
        return None, f"{name} lies outside the scratch folder"
    if entry.get("resume_key") != key:
        return None, f"{name} was made from another configuration or other data"
    try:
        if not _is_plain(path) or digest_checkpoint(path) != (entry.get("sha256"), entry.get("size_bytes")):
            return None, f"{name} is not what was saved"
    except (OSError, StokerError):
        return None, f"{name} is gone"
    step = entry.get("step")
    return Checkpoint(path=path, step=step if isinstance(step, int) else None), ""


def _why_no_name(name: Any) -> str:
    if not isinstance(name, str) or not name or "\0" in name:
        return "a checkpoint without a name"
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return f"{name!a} can't be the name of a file"
    return ""


def _is_plain(path: str) -> bool:
    """Return whether it consists of files alone: a pipe or a device would block its reader."""
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    return all(stat.S_ISREG(os.stat(file).st_mode) for file in (files if os.path.isdir(path) else [path]))
