"""Checkpoints that a program writes without reporting them: found in its outputs, kept when they are whole, put back.

A program that is interrupted leaves its newest checkpoint half written, or on a machine that is gone. So while it runs,
whole checkpoints are copied to its scratch folder, and the next attempt gets the newest one at the place where the
program left it. Files are known by their names; whether one is whole, by its own format where that says so, else by the
fact that it does not change.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from stoker.core.frozen import frozen
from stoker.host.folders import BoundedWalk

LOOK_EVERY_S = 2.0
_MOST_ENTRIES = 4000
_DEEPEST = 6
_ZIPPED = (".pt", ".pth", ".ckpt", ".pth.tar", ".keras", ".npz")
_FILES = (*_ZIPPED, ".safetensors", ".h5", ".ubj")
_FOLDER = re.compile(r"(?:checkpoint|ckpt|global_step|step|epoch)[-_=]?\d+", re.IGNORECASE)
_STEP = re.compile(r"(?:step|iter|checkpoint|ckpt)[-_=]?(\d{1,18})", re.IGNORECASE)
_LAST_FILE = "trainer_state.json"
"""What the Hugging Face Trainer writes into a checkpoint's folder behind weights and optimizer."""
_RANDOM_STATE = "rng_state.pth"
_HUGGING_FACE = ("training_args.bin", "optimizer.pt", _RANDOM_STATE, "rng_state_0.pth")
"""Other files that the Trainer writes; Accelerate and `save_pretrained` write none of them."""
_PICKLED = b"\x80"
"""How files of PyTorch before 1.6 begin."""
_ZIP_END_BYTES = 22
_LARGEST_COMMENT_BYTES = 1 << 16
_LARGEST_HEADER_BYTES = 100 << 20
Signature = tuple[tuple[str, int, int, int], ...]
"""Of each file: its name within the checkpoint, its inode, size and time."""


@frozen
class FoundCheckpoint:
    """A whole checkpoint in one of the folders that a program writes to."""

    path: str
    place: str
    """`out/…` below `$STOKER_OUT`, `folder/…` below the program's folder."""
    step: int | None
    size_bytes: int


class CheckpointFinder:
    """Looks for checkpoints that are new since it was made, in folders that are known by a place."""

    def __init__(
        self, folders: Mapping[str, str], *, acting: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """Make it; `acting` gives the block in which files are read."""
        self._folders = folders
        self._acting = acting
        with acting():
            self._known = {path: signature_of(path) for path, _ in self._candidates()}
        """How each was when it was last taken, or lay there before."""
        self._seen: dict[str, Signature] = {}
        """How each that is not known to be whole was at the last look."""
        self._taken = (False, 0)
        """The rank of the one that was returned last."""

    def look(self) -> FoundCheckpoint | None:
        """Return the newest whole checkpoint if it is newer than the one before; a `best` only if there is no other."""
        with self._acting():
            return self._look()

    def _look(self) -> FoundCheckpoint | None:
        newest: FoundCheckpoint | None = None
        seen: dict[str, Signature] = {}
        for path, place in self._candidates():
            signature = signature_of(path)
            if not signature or self._known.get(path) == signature:
                continue
            if not is_whole(path, is_unchanged=self._seen.get(path) == signature):
                seen[path] = signature
                continue
            self._known[path] = signature
            rank = ("best" not in os.path.basename(path).lower(), _newest_ns(signature))
            if rank > self._taken:
                self._taken = rank
                size_bytes = sum(file_bytes for _, _, file_bytes, _ in signature)
                step = _step_of(os.path.basename(path))
                newest = FoundCheckpoint(path=path, place=place, step=step, size_bytes=size_bytes)
        self._seen = seen
        return newest

    def _candidates(self) -> Iterator[tuple[str, str]]:
        walk = BoundedWalk(_MOST_ENTRIES, deepest=_DEEPEST)
        for place, top in self._folders.items():
            if top.endswith(_FILES) and not os.path.isdir(top):
                # A declared output may be a file itself.
                yield top, place
                continue
            for entry in walk.entries(top, enters=lambda entry: _FOLDER.fullmatch(entry.name) is None):
                is_folder = entry.is_dir(follow_symlinks=False)
                if _FOLDER.fullmatch(entry.name) if is_folder else entry.name.endswith(_FILES):
                    yield entry.path, os.path.join(place, os.path.relpath(entry.path, top))


def signature_of(path: str) -> Signature:
    """Return what changes when a checkpoint is written; empty if it is gone, or is not made of plain files."""
    try:
        info = os.lstat(path)
        if stat.S_ISREG(info.st_mode):
            return (("", info.st_ino, info.st_size, info.st_mtime_ns),)
        if not stat.S_ISDIR(info.st_mode):
            return ()
        parts = []
        for folder, _, names in os.walk(path):
            for name in names:
                file = os.path.join(folder, name)
                info = os.lstat(file)
                if not stat.S_ISREG(info.st_mode):
                    return ()
                parts.append((os.path.relpath(file, path), info.st_ino, info.st_size, info.st_mtime_ns))
                if len(parts) > _MOST_ENTRIES:
                    return ()
    except OSError:
        return ()
    return tuple(sorted(parts))


def is_whole(path: str, *, is_unchanged: bool) -> bool:
    """Return True if a checkpoint is completely written. `is_unchanged`: it did not change for some seconds."""
    if not os.path.isdir(path):
        said = _says_whole(path)
        return is_unchanged if said is None else said
    names = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    bare = {os.path.basename(name) for name in names}
    if not bare.isdisjoint(_HUGGING_FACE):
        if _LAST_FILE not in bare:
            return False
        # Older releases write the state of the random numbers behind the last file.
        is_unchanged = is_unchanged or (_RANDOM_STATE in bare and _is_json(os.path.join(path, _LAST_FILE)))
    return is_unchanged and bool(names) and all(_says_whole(name) is not False for name in names)


def _is_json(path: str) -> bool:
    try:
        with open(path, "rb", opener=_open_plain) as file:
            json.loads(file.read(_LARGEST_HEADER_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return True


def _says_whole(path: str) -> bool | None:
    """Return what the format of a file says of its being whole; None if it says nothing."""
    try:
        with open(path, "rb", opener=_open_plain) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if path.endswith(".safetensors"):
                return _is_whole_safetensors(file, size_bytes)
            begin = file.read(4)
            if begin == b"PK\x03\x04":
                return _is_whole_zip(file, size_bytes)
            if path.endswith(_ZIPPED) and not begin.startswith(_PICKLED):
                return False
    except (OSError, ValueError, TypeError, LookupError, AttributeError, struct.error, RecursionError):
        return False
    return None if size_bytes else False


def _is_whole_zip(file: Any, size_bytes: int) -> bool:
    tail_bytes = min(size_bytes, _ZIP_END_BYTES + _LARGEST_COMMENT_BYTES)
    file.seek(size_bytes - tail_bytes)
    tail = file.read(tail_bytes)
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) - end < _ZIP_END_BYTES:
        return False
    return bool(end + _ZIP_END_BYTES + int.from_bytes(tail[end + 20 : end + 22], "little") == len(tail))


def _is_whole_safetensors(file: Any, size_bytes: int) -> bool:
    (header_bytes,) = struct.unpack("<Q", file.read(8))
    if not 0 < header_bytes <= min(size_bytes - 8, _LARGEST_HEADER_BYTES):
        return False
    header = json.loads(file.read(header_bytes))
    ends = [int(one["data_offsets"][1]) for name, one in header.items() if name != "__metadata__"]
    return bool(8 + header_bytes + max(ends, default=0) == size_bytes)


def _open_plain(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _newest_ns(signature: Signature) -> int:
    return max(changed_ns for *_, changed_ns in signature)


def _step_of(name: str) -> int | None:
    found = _STEP.findall(name)
    return int(found[-1]) if found else None


def put_back(kept: str, at_s: float, place: str, folders: Mapping[str, str]) -> str:
    """Put a checkpoint where the program left it, and return that path; "" if the place is none of these folders'.

    What lies there stays if it is newer than the one that was kept at `at_s`, and its format says that it is whole.
    """
    top, _, rest = place.partition("/")
    names = rest.split("/")
    if top not in folders or any(name in ("", ".", "..") for name in names):
        return ""
    path = os.path.join(folders[top], *names)
    signature = signature_of(path)
    is_newer = bool(signature) and _newest_ns(signature) / 1e9 > at_s
    if is_newer and (is_whole(path, is_unchanged=True) if os.path.isdir(path) else _says_whole(path)):
        return path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fresh = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.stoker")
    _remove(fresh)
    if os.path.isdir(kept):
        shutil.copytree(kept, fresh)
    else:
        shutil.copyfile(kept, fresh)
    # A folder is not replaced by a file, nor one that holds something by another.
    _remove(path)
    os.replace(fresh, path)
    return path


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
