"""What a safetensors file says of itself: names, types, shapes and places of its tensors. Standard library only.

Read as bytes of a stranger: every number is checked against the file's own size before it is used.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final

from stoker.core.errors import Damaged
from stoker.core.frozen import frozen
from stoker.core.text import first_line, one_line
from stoker.host.durable import read_regular

# What a stranger wrote: small files, read only if they are files and not endless, and how a message shows them.

_LONGEST_BYTES = 64 * 1024 * 1024
_LONGEST_SHOWN = 200
_WRONG = {errno.EINVAL: "it is no file", errno.EFBIG: "it is too large"}


def read_foreign(path: Path) -> bytes:
    """Read a small file. `ValueError` says what is wrong with it, `OSError` why it can't be read."""
    try:
        # The hub's cache is made of links.
        return read_regular(os.path.realpath(path), _LONGEST_BYTES)
    except OSError as error:
        if error.errno not in _WRONG:
            raise
        raise ValueError(_WRONG[error.errno]) from None


def read_foreign_json(path: Path) -> Any:
    """Read a small file's JSON, as `read_foreign` does; what is nested without end is wrong, too."""
    try:
        return json.loads(read_foreign(path))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def shown(text: str) -> str:
    """Return a stranger's text as a part of a message."""
    return one_line(text, _LONGEST_SHOWN)


SINGLE: Final = "model.safetensors"
"""What a folder calls the only file of its weights."""
INDEX: Final = "model.safetensors.index.json"
"""Or, where there are several, the file that says which tensor lies in which."""
SHARD_BYTES: Final = 5 * 10**9
"""The largest file of weights that is written, as the hub has them."""
# Of one file. The largest mixtures of experts have as many in all (384 experts of three matrices with their scales, in
# 60 layers, are 138,000), in dozens of files; what can be trained here has some thousand. So many are read in a second.
_MOST_TENSORS = 100_000
_LONGEST_HEADER_BYTES = 200 * _MOST_TENSORS
_WIDTHS = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
_MOST_AXES = 64
_LARGEST = 2**63 - 1
_PINCH_BYTES = 1024


class DamagedHeader(ValueError):
    """A file is not what its header says, or has none."""


def unreadable_weights(what: str, error: Exception) -> Damaged:
    """Return the message that weights are not what their file promises."""
    hint = "copy them again, or fetch them again: stoker fetch org/name finds what is damaged and brings it"
    return Damaged(f"the weights in {what} can't be read: {first_line(error)}", hint=hint)


@frozen
class SafetensorsEntry:
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Its first byte in the file."""
    end: int


@frozen
class Header:
    """What a file holds."""

    tensors: Mapping[str, SafetensorsEntry]
    size_bytes: int


def read_header(path: Path) -> Header:
    """Read a file's header. `DamagedHeader` says what is wrong, `OSError` why it can't be read."""
    if not stat.S_ISREG(path.stat().st_mode):
        # What is no file may never end, or never begin.
        raise DamagedHeader("it is no file")
    with path.open("rb") as file:
        return _read(file)


def pinch(path: Path, header: Header) -> list[bytes]:
    """Return a little from the middle of every tensor, in the order of their names.

    Two trainings of one model differ nearly everywhere, so they differ here; a change in a few places may not show.
    """
    with path.open("rb") as file:
        taken = []
        for _, tensor in sorted(header.tensors.items()):
            size = tensor.end - tensor.begin
            file.seek(tensor.begin + max(0, size - _PINCH_BYTES) // 2)
            taken.append(file.read(min(size, _PINCH_BYTES)))
        return taken


def _read(file: BinaryIO) -> Header:
    size = os.fstat(file.fileno()).st_size
    first = file.read(8)
    if len(first) < 8:
        raise DamagedHeader(f"it has {len(first)} bytes, too few for a header")
    length = struct.unpack("<Q", first)[0]
    if 8 + length > size:
        raise DamagedHeader(f"its header of {length:,} bytes does not fit into its {size:,}")
    if length > _LONGEST_HEADER_BYTES:
        raise DamagedHeader(f"its header has {length:,} bytes, and {_LONGEST_HEADER_BYTES:,} are the most that is read")
    tensors = {name: _tensor(name, one, 8 + length) for name, one in _table(file.read(length)).items()}
    last = 8 + length
    for name, one in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if one.begin != last:
            raise DamagedHeader(f"between {shown(repr(name))} and what lies before it is a gap, or both share bytes")
        last = one.end
    if last != size:
        raise DamagedHeader(f"it has {size:,} bytes, and its header promises {last:,}")
    return Header(tensors=tensors, size_bytes=size)


def _table(text: bytes) -> dict[str, Any]:
    """Return what a header says of each tensor, as it says it."""
    try:
        # From bytes it would take UTF-16, too.
        raw = json.loads(text.decode())
    except UnicodeDecodeError:
        raise DamagedHeader("its header is not UTF-8") from None
    except (ValueError, RecursionError):
        raise DamagedHeader("its header is no JSON") from None
    if not isinstance(raw, dict):
        raise DamagedHeader("its header is no table of tensors")
    raw.pop("__metadata__", None)
    # Before each is looked at, which is what takes long.
    if len(raw) > _MOST_TENSORS:
        raise DamagedHeader(f"its header lists more than {_MOST_TENSORS:,} tensors, as no model has them in one file")
    return raw


def _tensor(name: str, raw: Any, data: int) -> SafetensorsEntry:
    try:
        dtype, shape, (begin, end) = raw["dtype"], tuple(raw["shape"]), raw["data_offsets"]
        numbers = (*shape, begin, end)
        is_plain = len(shape) <= _MOST_AXES and set(map(type, numbers)) == {int} and isinstance(dtype, str)
        is_plain = is_plain and min(numbers) >= 0 and max(numbers) <= _LARGEST
    except (TypeError, KeyError, ValueError):
        is_plain, dtype, shape, begin, end = False, "", (), 0, 0
    if not is_plain or begin > end or (dtype in _WIDTHS and end - begin != prod(shape) * _WIDTHS[dtype]):
        raise DamagedHeader(f"what its header says of {shown(repr(name))} makes no sense")
    return SafetensorsEntry(dtype=dtype, shape=shape, begin=data + begin, end=data + end)
