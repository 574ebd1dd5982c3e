"""Checkpoints that a program writes without reporting them: found in its outputs, kept when they are whole, put back.

A program that is interrupted leaves its newest checkpoint half written, or on a machine that is gone. So while it runs,
whole checkpoints are copied to its scratch folder, and the next attempt gets the newest one at the place where the
program left it. Files are known by their names; whether one is whole, by its own format where that says so, else by the
fact that it does not change.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.core.text import one_line
from stoker.engine.program import PUT_ASIDE
from stoker.engine.scratch import digest_checkpoint
from stoker.host.folders import BoundedWalk

LOOK_EVERY_S = 2.0
_MOST_ENTRIES = 50_000
_DEEPEST = 6
_MOST_CANDIDATES = 1000
_MOST_PARTS = 4000
_MOST_LOGGED = 5
_DEEPEST_PART = 20
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
_LARGEST_HEADER_BYTES = 8 << 20
_LAST_BEAT_S = 3.0
"""A program may write for so long after it was last seen to run."""
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


@frozen
class KeptCheckpoint:
    """A copy of a checkpoint in a scratch folder."""

    path: str
    place: str
    """Where the program left it, as `FoundCheckpoint.place`; said by a file that the program may write."""
    at_s: float
    """When it was kept."""
    digest: str


class CheckpointFinder:
    """Looks for checkpoints that are new since it was made, in folders that are known by a place."""

    def __init__(
        self,
        folders: Mapping[str, str],
        *,
        log: Callable[[str], None] = lambda _text: None,
        beat: Callable[[], None] = lambda: None,
        acting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Make it; `acting` returns the block in which files are read, `log` gets what keeps it from finding one."""
        self._folders = folders
        self._log = log
        self.beat = beat
        """Called again and again while the program runs."""
        self._acting = acting
        self._places: dict[str, str] = {}
        """Every candidate that was met, with its place: these are looked at first, however many files come later."""
        with acting():
            self._known = {path: signature_of(path) for path, _ in self._candidates()}
        """How each was when it was last judged, or lay there before."""
        self._seen: dict[str, Signature] = {}
        """How each that has yet to show that it does not change was at the last look."""
        self._taken = (False, 0)
        """The rank of the one that was returned last."""
        self._logged: set[str] = set()

    def look(self) -> FoundCheckpoint | None:
        """Return the newest whole checkpoint if it is newer than the one before; a `best` only if there is no other."""
        with self._acting():
            return self._look()

    def _look(self) -> FoundCheckpoint | None:
        newest: FoundCheckpoint | None = None
        seen: dict[str, Signature] = {}
        for path, place in self._candidates():
            signature = signature_of(path)
            if not signature:
                self._explain(path)
            if not signature or self._known.get(path) == signature:
                continue
            was_seen = self._seen.get(path) == signature
            if not is_whole(path, is_unchanged=was_seen):
                if was_seen:
                    # It is judged again when it changes.
                    self._known[path] = signature
                else:
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
        yield from list(self._places.items())
        walk = BoundedWalk(_MOST_ENTRIES, deepest=_DEEPEST)
        for place, top in self._folders.items():
            if top.endswith(_FILES) and not os.path.isdir(top):
                # A declared output may be a file itself.
                yield from self._met(top, place)
                continue
            for entry in walk.entries(top, enters=lambda entry: _FOLDER.fullmatch(entry.name) is None):
                is_folder = entry.is_dir(follow_symlinks=False)
                if _FOLDER.fullmatch(entry.name) if is_folder else entry.name.endswith(_FILES):
                    yield from self._met(entry.path, os.path.join(place, os.path.relpath(entry.path, top)))
        if not walk.left:
            self._log_once("", f"more than {_MOST_ENTRIES:,} files and folders; not all were searched for checkpoints")

    def _explain(self, path: str) -> None:
        """Log why a folder is no checkpoint that could be kept; an empty one may be filled later."""
        if os.path.isdir(path) and not os.path.islink(path) and os.listdir(path):
            shown = one_line(os.path.basename(path))
            fault = "it has a link to a folder, a pipe or a device, or too many files"
            self._log_once(path, f"checkpoint {shown} is not kept: {fault}")

    def _log_once(self, key: str, text: str) -> None:
        if key not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(key)
            self._log(text)

    def _met(self, path: str, place: str) -> Iterator[tuple[str, str]]:
        if path in self._places:
            return
        if len(self._places) >= _MOST_CANDIDATES:
            # Old ones are gone, as a rule.
            self._places = {path: place for path, place in self._places.items() if os.path.lexists(path)}
        if len(self._places) < _MOST_CANDIDATES:
            self._places[path] = place
        yield path, place


def signature_of(path: str) -> Signature:
    """Return what changes when a checkpoint is written; empty if it is gone, or can't be copied as it is.

    A link to a file counts as the file. One to a folder, a pipe or a device is nothing that a copy could have.
    """
    try:
        if os.path.islink(path):
            return ()
        if not os.path.isdir(path):
            return (_signature_of_file("", path),)
        walk = BoundedWalk(_MOST_PARTS, deepest=_DEEPEST_PART)
        entries = walk.entries(path, enters=lambda _entry: True)
        files = [entry.path for entry in entries if not entry.is_dir(follow_symlinks=False)]
        parts = [_signature_of_file(os.path.relpath(file, path), file) for file in files]
    except (OSError, ValueError):
        return ()
    return tuple(sorted(parts)) if walk.left else ()


def _signature_of_file(name: str, path: str) -> tuple[str, int, int, int]:
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise ValueError(f"{name} is not a regular file")
    return name, info.st_ino, info.st_size, info.st_mtime_ns


def is_whole(path: str, *, is_unchanged: bool) -> bool:
    """Return True if a checkpoint is completely written. `is_unchanged`: it did not change for some seconds."""
    if not os.path.isdir(path):
        said = _says_whole(path)
        return is_unchanged if said is None else said
    names = [name for name, *_ in signature_of(path)]
    bare = {os.path.basename(name) for name in names}
    if not bare.isdisjoint(_HUGGING_FACE):
        if _LAST_FILE not in bare:
            return False
        # Older releases write the state of the random numbers behind the last file.
        is_unchanged = is_unchanged or (_RANDOM_STATE in bare and _is_json(os.path.join(path, _LAST_FILE)))
    return is_unchanged and bool(names) and all(_says_whole(os.path.join(path, name)) is not False for name in names)


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


def _is_whole_safetensors(file: Any, size_bytes: int) -> bool | None:
    (header_bytes,) = struct.unpack("<Q", file.read(8))
    if not 0 < header_bytes <= size_bytes - 8:
        return False
    if header_bytes > _LARGEST_HEADER_BYTES:
        return None
    header = json.loads(file.read(header_bytes))
    ends = [int(one["data_offsets"][1]) for name, one in header.items() if name != "__metadata__"]
    return bool(8 + header_bytes + max(ends, default=0) == size_bytes)


def _open_plain(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _newest_ns(signature: Signature) -> int:
    return max(changed_ns for *_, changed_ns in signature)


def _step_of(name: str) -> int | None:
    found = _STEP.findall(name)
    return int(found[-1]) if found else None


def put_back(kept: KeptCheckpoint, folders: Mapping[str, str], *, interrupted_s: float | None) -> tuple[str, str]:
    """Put a checkpoint where the program left it; return that path, and where what lay there is now.

    The path is empty if the place is in none of these folders. What lies there stays if it is the same; or if it is
    newer, its format says that it is whole, and the program wrote it before it was interrupted, at `interrupted_s`
    (None: other work had the folder meanwhile). What is broken is replaced, all else is put aside.
    """
    top = next((top for top in folders if f"{kept.place}/".startswith(f"{top}/")), "")
    rest = kept.place[len(top) + 1 :]
    path = os.path.join(folders[top], rest) if top and rest else folders.get(top, "")
    is_output_itself = kept.place == top and not os.path.isdir(path) and not os.path.isdir(kept.path)
    if not top or not (is_output_itself or all(name not in ("", ".", "..") for name in rest.split("/"))):
        return "", ""
    signature, aside = signature_of(path), ""
    if signature:
        with suppress(OSError, StokerError):
            if digest_checkpoint(path)[0] == kept.digest:
                return path, ""
        is_broken, changed_s = _is_broken(path), _newest_ns(signature) / 1e9
        is_own = interrupted_s is not None and changed_s <= interrupted_s + _LAST_BEAT_S
        if is_own and changed_s > kept.at_s and is_broken is False:
            return path, ""
        aside = "" if is_own and is_broken else path
    elif os.path.lexists(path):
        aside = path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fresh = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.stoker")
    _remove(fresh)
    if os.path.isdir(kept.path):
        shutil.copytree(kept.path, fresh)
    else:
        shutil.copyfile(kept.path, fresh)
    if aside:
        aside = _free_name(f"{path}{PUT_ASIDE}")
        os.rename(path, aside)
    # A folder is not replaced by a file, nor one that holds something by another.
    _remove(path)
    os.replace(fresh, path)
    return path, aside


def _is_broken(path: str) -> bool | None:
    """Return whether a checkpoint is incomplete by its format; None if that does not say."""
    if os.path.isdir(path):
        return not is_whole(path, is_unchanged=True)
    said = _says_whole(path)
    return None if said is None else not said


def _free_name(path: str) -> str:
    numbered = (path if number == 1 else f"{path}-{number}" for number in itertools.count(1))
    return next(name for name in numbered if not os.path.lexists(name))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
