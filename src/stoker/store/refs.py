"""Refs: names of stored trees. A ref protects its tree from pruning until it is removed.

A ref is one small file with its own check (`records.seal`). It is unknown what a damaged one protects, so nothing is
pruned until it is repaired (`stoker store verify` reads it back from the index) or removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import quote, unquote

from stoker.core.digests import Digest, is_digest
from stoker.core.errors import BadInput, CorruptBytes, Refused
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.host.durable import NO_STEP, read_regular, remove_tree, sync_dir, translated, write_file
from stoker.host.locks import BriefLocks
from stoker.store.places import StorePaths
from stoker.store.records import BrokenSeal, seal, unseal

PUT = "put"
"""What the record of a stored tree has in the place of a result's stage."""

_SUFFIX = ".ref"
_SEAL = "ref/1"
_LARGEST_BYTES = 1 << 16
_LONGEST_NAME_BYTES = 200


@frozen
class Ref:
    """A name and its tree."""

    name: str
    digest: Digest
    """Of the tree."""
    key: Digest
    kind: str = ""
    files: int = 0
    size_bytes: int = 0
    at_s: float = 0.0
    damage: str = ""
    """Why its file can't be read; what it protects is then unknown."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "digest": self.digest,
            "key": self.key,
            "kind": self.kind,
            "files": self.files,
            "bytes": self.size_bytes,
            "at_s": self.at_s,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Ref:
        """Read the result of `to_json`; `ValueError` if it is not that."""
        try:
            digest, key = Digest(raw["digest"]), Digest(raw["key"])
            ref = cls(
                name=str(raw["name"]),
                digest=digest,
                key=key,
                kind=str(raw["kind"]),
                files=int(raw["files"]),
                size_bytes=int(raw["bytes"]),
                at_s=float(raw["at_s"]),
            )
        except (KeyError, TypeError) as error:
            message = f"{type(error).__name__}: {error}"
            raise ValueError(message) from None
        if not is_digest(digest) or not is_digest(key):
            message = "its target is not a digest"
            raise ValueError(message)
        return ref


def check_ref_name(name: str) -> str:
    """Return a name if it is valid for a ref; `BadInput` with the reason otherwise."""
    why = ""
    if not name or name in (".", "..", "last"):
        why = "it is reserved" if name else "it is empty"
    elif name.startswith("-") or "/" in name or not name.isprintable():
        why = "no dash at its beginning, no slash, no control characters"
    elif is_digest(name):
        why = "it looks like a digest"
    elif len(quote(name, safe="")) > _LONGEST_NAME_BYTES:
        why = "it is too long"
    if why:
        raise BadInput(f"invalid name {name!r}: {why}", hint="choose another one with --as NAME")
    return name


def set_ref(places: StorePaths, ref: Ref, *, replace: bool, on_step: Callable[[str], None] = NO_STEP) -> Ref | None:
    """Set a name to a tree, durably; return its previous tree, if that was another one.

    `Refused` if the name belongs to another tree and may not be moved.
    """
    path = ref_path(places, ref.name)
    with closing(BriefLocks()) as locks, locks.hold(os.path.join(places.refs, ".lock")):
        before = find_ref(places, ref.name)
        if before is not None and before.key == ref.key and before.kind == ref.kind:
            return None
        refuse_taken(before, ref.key, replace=replace)
        on_step("ref")
        write_file(path, seal(_SEAL, ref.to_json()), mode=0o444, on_step=on_step)
    return before if before is not None and before.key != ref.key else None


def refuse_taken(before: Ref | None, key: Digest, *, replace: bool) -> None:
    """Raise `Refused` if a name belongs to another tree than `key` and may not be moved."""
    if before is not None and before.key != key and not replace:
        stands_for = f"a ref that can't be read ({before.damage})" if before.damage else before.digest[:12]
        raise Refused(
            f"the name {before.name!r} already belongs to another tree: {stands_for}",
            hint="--replace moves the name, --as NAME chooses another one",
            digest=before.digest,
        )


def remove_ref(places: StorePaths, name: str) -> bool:
    """Remove a name, a damaged one too; return True if there was one."""
    with closing(BriefLocks()) as locks, locks.hold(os.path.join(places.refs, ".lock")):
        if not remove_tree(ref_path(places, name)):
            return False
        sync_dir(places.refs)
    return True


def list_refs(places: StorePaths) -> list[Ref]:
    """Return all refs by name, damaged ones included."""
    return [ref for name in _names(places.refs, _SUFFIX) if (ref := find_ref(places, name)) is not None]


def find_ref(places: StorePaths, name: str) -> Ref | None:
    """Return the ref of a name, or nothing."""
    path = ref_path(places, name)
    if not os.path.lexists(path):
        return None
    try:
        ref = Ref.from_json(unseal(_SEAL, read_regular(path, _LARGEST_BYTES)))
    except FileNotFoundError:
        return None
    except BrokenSeal as broken:
        return _damaged(name, f"it {broken}")
    except (OSError, ValueError) as error:
        return _damaged(name, str(error))
    return ref if ref.name == name else _damaged(name, f"it is the ref of {ref.name!r}")


def ref_path(places: StorePaths, name: str) -> str:
    """Return the path of a ref's file."""
    return _path(places.refs, name, _SUFFIX)


def _damaged(name: str, why: str) -> Ref:
    return Ref(name=name, digest=Digest(""), key=Digest(""), damage=why)


def _names(folder: str, suffix: str) -> list[str]:
    """Return the names of the files of a folder, in order."""
    with translated(folder):
        files = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [unquote(file.removesuffix(suffix), errors="surrogateescape") for file in files if file.endswith(suffix)]


def _path(folder: str, name: str, suffix: str) -> str:
    return os.path.join(folder, f"{quote(name, safe='', errors='surrogateescape')}{suffix}")


# Pins: records that are protected from pruning, under a name a person chose.

_PINS_SUFFIX = ".json"


@frozen
class Pin:
    """A name and the records that it protects."""

    name: str
    keys: tuple[Digest, ...]
    damage: str = ""
    """Why its file can't be read; what it protects is then unknown."""


def pin(places: StorePaths, name: str, keys: tuple[Digest, ...]) -> Pin:
    """Protect these records until the pin is removed; an existing pin of that name is replaced."""
    path = _path(places.pins, name, _PINS_SUFFIX)
    if os.path.isdir(path):
        remove_tree(path)
    write_file(path, (dumps({"name": name, "keys": list(keys)}) + "\n").encode())
    return Pin(name=name, keys=keys)


def unpin(places: StorePaths, name: str) -> bool:
    """Remove a pin, a damaged one too; return True if there was one."""
    return remove_tree(_path(places.pins, name, _PINS_SUFFIX))


def list_pins(places: StorePaths) -> list[Pin]:
    """Return all pins by name, damaged ones included."""
    return [_read_pin(places, name) for name in _names(places.pins, _PINS_SUFFIX)]


def refuse_if_damaged(places: StorePaths) -> None:
    """Raise `CorruptBytes` if some pin or ref can't be read: what it protects is unknown then."""
    for pinned in list_pins(places):
        if pinned.damage:
            raise CorruptBytes(
                f"pin {pinned.name} can't be read, so it is unknown what it protects: {pinned.damage}",
                hint=f"pin it again, or remove it: stoker store pin {pinned.name} --remove",
            )
    for ref in list_refs(places):
        if ref.damage:
            remove = f"remove it: stoker store refs {ref.name} --remove"
            raise CorruptBytes(
                f"the ref {ref.name} can't be read, so it is unknown what it protects: {ref.damage}",
                hint=f"`stoker store verify` repairs it if possible; or {remove}",
            )


def _read_pin(places: StorePaths, name: str) -> Pin:
    path = _path(places.pins, name, _PINS_SUFFIX)
    if not os.path.isfile(path):
        return Pin(name=name, keys=(), damage="not a file")
    try:
        with open(path, "rb") as stream:
            keys = tuple(loads(stream.read())["keys"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Pin(name=name, keys=(), damage=f"{type(error).__name__}: {error}")
    if not all(isinstance(key, str) and is_digest(key) for key in keys):
        return Pin(name=name, keys=(), damage="not a list of keys")
    return Pin(name=name, keys=keys)
