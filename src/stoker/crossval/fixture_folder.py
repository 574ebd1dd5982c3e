"""A folder with one fixture in several formats: written whole or not at all, and its listing last.

A second call with the same fixture changes no file. Files that Stoker did not write are never replaced.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from stoker.core.errors import BadInput, LocalFile, StokerError
from stoker.core.frozen import fields_of, frozen
from stoker.core.text import some_of
from stoker.crossval.fixture_models import (
    GROUP,
    FixtureSpec,
    FixtureTensor,
    config_json,
    matrix_parts,
    shape_of,
    tensors_of,
    vector,
)
from stoker.crossval.fixture_tokenizer import fixture_tokenizer, tokenizer_config_json, tokenizer_json
from stoker.crossval.gguf_models import GGUF_TYPES, fits, write_gguf
from stoker.host.durable import (
    is_temp_name,
    move_into,
    sweep_temps,
    sync_dir,
    temp_name,
    translated,
    write_file,
)
from stoker.host.resources import check_space, free_bytes
from stoker.store.trees import hash_file
from stoker.store.weight_files.headers import read_foreign_json
from stoker.store.weight_files.safetensors import SINGLE

SAFETENSORS: Final = "safetensors"
FORMATS: Final = (SAFETENSORS, *sorted(GGUF_TYPES))
LISTING: Final = "fixture.json"
"""Name of the file that lists the others."""

_FORMAT = "stoker/fixture"
_VERSION = 1
_SLACK_BYTES = 64 * 1024
_GROUP_BYTES: Final = {SAFETENSORS: 128, "f32": 128, "f16": 64, "bf16": 64, "q8_0": 34, "q4_k": 18}
"""Bytes of a group of 32 values in each format."""
_STALE_S = 3600.0


@frozen
class FixtureFile:
    """One file of a fixture."""

    name: str
    format: str
    """A format of weights, or `config`, `tokenizer`."""
    size_bytes: int
    sha256: str


@frozen
class WrittenFixture:
    """What a folder holds now."""

    folder: str
    spec: FixtureSpec
    files: tuple[FixtureFile, ...]
    changed: tuple[str, ...]
    """Names of files that were not there before, or differed."""

    def to_dict(self) -> dict[str, Any]:
        return {**fixture_facts(self.spec, self.files), "folder": self.folder, "changed": list(self.changed)}


def fixture_facts(spec: FixtureSpec, files: tuple[FixtureFile, ...]) -> dict[str, Any]:
    """Return what the listing of a folder states: the same for the same fixture, wherever it is."""
    shape = shape_of(spec)
    return {
        "format": _FORMAT,
        "version": _VERSION,
        **fields_of(spec),
        "parameters": sum(tensor.count for tensor in tensors_of(spec)),
        "tensors": len(tensors_of(spec)),
        "shape": fields_of(shape),
        "files": [fields_of(file) for file in files],
    }


def formats_of(spec: FixtureSpec) -> tuple[str, ...]:
    """Return all formats that a fixture can have."""
    return tuple(name for name in FORMATS if name == SAFETENSORS or fits(spec, name))


def write_fixture(folder: str, spec: FixtureSpec, formats: tuple[str, ...], *, now_s: float) -> WrittenFixture:
    """Write a fixture into a folder, which may not exist, hold the same fixture, or another one, which is replaced.

    Formats of the same fixture that it holds are checked too. Raises `BadInput` if there is no such format, or if the
    folder holds other files; `NoSpace` if the disk is too small. Then the folder is as it was.
    """
    _check_formats(spec, formats)
    before = _read_listing(folder)
    more = before.formats if before is not None and before.spec == spec else ()
    formats = tuple(name for name in FORMATS if name in formats or name in more)
    check_space(
        "the fixture", folder, coming_bytes=_estimated_bytes(spec, formats), free=free_bytes(folder), spare_bytes=0
    )
    was_there = os.path.isdir(folder)
    with translated(folder):
        os.makedirs(folder, exist_ok=True)
        if before is None:
            # So that a folder that a crash leaves is known as ours.
            write_file(os.path.join(folder, LISTING), _listing(spec, ()))
        sweep_temps(folder, _STALE_S, now_s)
        staged: dict[str, str] = {}
        try:
            files = tuple(_make(folder, spec, formats, staged))
        except BaseException:
            _discard(folder, staged, is_ours=before is None, is_new=not was_there)
            raise
        changed = _publish(folder, spec, files, staged)
    return WrittenFixture(folder=folder, spec=spec, files=files, changed=changed)


def _check_formats(spec: FixtureSpec, formats: tuple[str, ...]) -> None:
    possible = formats_of(spec)
    for name in formats:
        if name not in FORMATS:
            raise BadInput(f"there is no format {name!r}", hint=f"formats: {', '.join(FORMATS)}")
        if name not in possible:
            raise BadInput(
                f"a fixture of size {spec.size} can't be {name}: its rows are not whole blocks of 256 values",
                hint=f"formats of this size: {', '.join(possible)}; {name} needs --size medium",
            )


def _estimated_bytes(spec: FixtureSpec, formats: tuple[str, ...]) -> int:
    groups = sum(tensor.count for tensor in tensors_of(spec)) // GROUP
    return sum(groups * _GROUP_BYTES[name] + _SLACK_BYTES for name in formats) + _SLACK_BYTES


@frozen
class _Listing:
    """What a folder's listing states."""

    spec: FixtureSpec | None
    """None if it is of another version."""
    formats: tuple[str, ...]


def _read_listing(folder: str) -> _Listing | None:
    """Return the listing of a folder; None if there is nothing yet. Raises `BadInput` if it holds anything else."""
    if not os.path.lexists(folder):
        return None
    hint = "choose an empty or a new folder"
    if not os.path.isdir(folder):
        raise LocalFile(f"{folder} is not a folder", hint=hint)
    path = Path(folder, LISTING)
    if not path.exists():
        with translated(folder):
            others = sorted(name for name in os.listdir(folder) if not is_temp_name(name))
        if others:
            raise BadInput(f"{folder} holds files that are no fixture: {some_of(others, 3)}", hint=hint)
        return None
    try:
        with translated(path):
            stated = read_foreign_json(path)
        is_ours = stated["format"] == _FORMAT
    except (ValueError, TypeError, KeyError):
        is_ours, stated = False, None
    if not is_ours:
        raise BadInput(f"{path} is not the listing of a fixture", hint=hint)
    try:
        spec = FixtureSpec(size=stated["size"], arch=stated["arch"], seed=stated["seed"])
        formats = tuple(one["format"] for one in stated["files"] if one["format"] in FORMATS)
    except (TypeError, KeyError):
        return _Listing(spec=None, formats=())
    return _Listing(spec=spec if stated.get("version") == _VERSION else None, formats=formats)


def _listing(spec: FixtureSpec, files: tuple[FixtureFile, ...]) -> bytes:
    return _json(fixture_facts(spec, files))


def _make(folder: str, spec: FixtureSpec, formats: tuple[str, ...], staged: dict[str, str]) -> Iterator[FixtureFile]:
    """Write all files under temporary names, which `staged` gets."""
    for name, kind, write in _writers(spec, formats):
        temp = staged[name] = temp_name(folder)
        write(temp)
        digest, size_bytes = hash_file(temp)
        yield FixtureFile(name=name, format=kind, size_bytes=size_bytes, sha256=digest)


def _writers(spec: FixtureSpec, formats: tuple[str, ...]) -> Iterator[tuple[str, str, Callable[[str], None]]]:
    """Return name and format of each file, and what writes it."""
    shape = shape_of(spec)
    small = {
        "config.json": ("config", config_json(spec)),
        "tokenizer.json": ("tokenizer", tokenizer_json(fixture_tokenizer(shape.vocabulary))),
        "tokenizer_config.json": ("tokenizer", tokenizer_config_json(shape.positions)),
    }
    for name, (kind, value) in small.items():
        yield name, kind, partial(_write_json, value)
    for kind in formats:
        if kind == SAFETENSORS:
            yield SINGLE, kind, partial(write_safetensors, spec=spec)
        else:
            yield f"model-{kind}.gguf", kind, partial(write_gguf, spec=spec, kind=kind)


_NAMES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    SINGLE,
    *(f"model-{kind}.gguf" for kind in GGUF_TYPES),
)
"""All names that files of a fixture may have."""


def _publish(folder: str, spec: FixtureSpec, files: tuple[FixtureFile, ...], staged: dict[str, str]) -> tuple[str, ...]:
    """Give the files their names, and list them."""
    same = tuple(file for file in files if _is_there(folder, file))
    listing = os.path.join(folder, LISTING)
    changed = tuple(file.name for file in files if file not in same)
    if changed:
        # Never a listing of files that are not there.
        write_file(listing, _listing(spec, same))
    for file in files:
        if file in same:
            os.unlink(staged[file.name])
        else:
            move_into(staged[file.name], os.path.join(folder, file.name))
    for name in set(_NAMES) - {file.name for file in files}:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
    sync_dir(folder)
    write_file(listing, _listing(spec, files))
    return changed


def _is_there(folder: str, file: FixtureFile) -> bool:
    path = os.path.join(folder, file.name)
    try:
        return stat.S_ISREG(os.lstat(path).st_mode) and hash_file(path)[0] == file.sha256
    except (OSError, StokerError):
        # It is replaced.
        return False


def _discard(folder: str, staged: dict[str, str], *, is_ours: bool, is_new: bool) -> None:
    """Remove what an unfinished call wrote."""
    for temp in staged.values():
        with suppress(OSError):
            os.unlink(temp)
    with suppress(OSError):
        if is_ours:
            os.unlink(os.path.join(folder, LISTING))
        if is_new:
            os.rmdir(folder)


def _write_json(value: Any, path: str) -> None:
    with open(path, "xb") as file:
        file.write(_json(value))


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"


def write_safetensors(path: str, spec: FixtureSpec) -> None:
    """Write a fixture's weights as F32: tensors by name, the header padded to 8 bytes. Raises `OSError`."""
    tensors = sorted(tensors_of(spec), key=lambda tensor: tensor.layout.name)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        size = 4 * tensor.count
        header[tensor.layout.name] = {"dtype": "F32", "shape": _shape(tensor), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            values = vector(spec, tensor) if tensor.is_vector else matrix_parts(spec, tensor).floats()
            file.write((values.T if tensor.layout.is_transposed else values).astype("<f4").tobytes())


def _shape(tensor: FixtureTensor) -> list[int]:
    if tensor.is_vector:
        return [tensor.columns]
    sides = [tensor.rows, tensor.columns]
    return sides[::-1] if tensor.layout.is_transposed else sides
