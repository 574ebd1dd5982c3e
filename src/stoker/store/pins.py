"""Pins: records that pruning leaves alone, under a name a person chose."""

from __future__ import annotations

import os
from urllib.parse import quote, unquote

from stoker.host.durable import remove_tree, translated, write_file
from stoker.model.digests import Digest, is_digest
from stoker.model.errors import CorruptBytes
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps, loads
from stoker.store.places import Places

_SUFFIX = ".json"


@frozen
class Pin:
    """A name and the records that it keeps."""

    name: str
    keys: tuple[Digest, ...]
    damage: str = ""
    """Why its file can't be read; what it kept is then unknown."""


def pin(places: Places, name: str, keys: tuple[Digest, ...]) -> Pin:
    """Keep these records until the pin is taken away; an existing pin of that name is replaced."""
    path = _path(places, name)
    if os.path.isdir(path):
        remove_tree(path)
    write_file(path, (dumps({"name": name, "keys": list(keys)}) + "\n").encode())
    return Pin(name=name, keys=keys)


def unpin(places: Places, name: str) -> bool:
    """Take a pin away, a damaged one too; says whether there was one."""
    return remove_tree(_path(places, name))


def list_pins(places: Places) -> list[Pin]:
    """Give all pins by name, damaged ones included."""
    with translated(places.pins):
        files = sorted(os.listdir(places.pins)) if os.path.isdir(places.pins) else []
    return [_read(places, file) for file in files if file.endswith(_SUFFIX)]


def refuse_if_damaged(places: Places) -> None:
    """Raise `CorruptBytes` if some pin can't be read: nobody knows what may not go then."""
    damaged = [pin for pin in list_pins(places) if pin.damage]
    if damaged:
        first = damaged[0]
        raise CorruptBytes(
            f"pin {first.name} can't be read, so nobody knows what it keeps: {first.damage}",
            hint=f"pin it again, or take it away: stoker store pin {first.name} --remove",
        )


def _read(places: Places, file: str) -> Pin:
    name = unquote(file.removesuffix(_SUFFIX), errors="surrogateescape")
    path = os.path.join(places.pins, file)
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


def _path(places: Places, name: str) -> str:
    return os.path.join(places.pins, f"{quote(name, safe='', errors='surrogateescape')}{_SUFFIX}")
