"""Checkpoints in a scratch folder: which one an attempt may go on from.

The trainer names what it saved in `checkpoints.json`, the newest last, each with digest and resume key. One is used
only if its key is ours and its bytes are what was named; else the one before it is tried. Anything may be wrong with
the file: it was written by somebody's program.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from stoker.core.digests import Digest, digest_bytes, digest_value
from stoker.core.errors import StokerError
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import loads
from stoker.engine.action import Action
from stoker.engine.stage import Stage
from stoker.host.durable import read_regular
from stoker.store.trees import hash_file

# The digest of a checkpoint, a file or a folder, as `stoker_trainer` writes it down.
#
# Of a file it is the SHA-256 of its bytes. Of a folder, that of a list with a line for each file: its name within the
# folder, a zero byte and its digest, sorted by name. `stoker_trainer` has its own copy of this rule, since it imports
# nothing of ours; a test holds the two together.


def digest_checkpoint(path: str) -> tuple[Digest, int]:
    """Return digest and size of what was saved. Raises ours if something can't be read."""
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
    """Return whether it consists of files alone: a pipe or a device would keep whoever reads it waiting."""
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    return all(stat.S_ISREG(os.stat(file).st_mode) for file in (files if os.path.isdir(path) else [path]))
