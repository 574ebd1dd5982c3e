"""Headers of safetensors files: names, types, shapes and offsets of tensors."""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final

from stoker.store.weight_files.headers import DamagedHeader, Header, TensorEntry, open_weights, read_foreign_json, shown

SINGLE: Final = "model.safetensors"
"""Name of the only file of weights in a folder."""
INDEX: Final = "model.safetensors.index.json"
"""Name of the index that maps tensors to files if there are several."""
ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
"""Names of the files of an adapter in PEFT's layout."""
SHARD_BYTES: Final = 5 * 10**9
"""The largest file of weights that is written, as in the hub."""
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
_READ_BYTES = 2**22


def read_header(path: Path) -> Header:
    """Read a file's header. Raises `DamagedHeader` with its fault, `OSError` if it can't be read."""
    with open_weights(path) as file:
        return _read(file)


def read_index(folder: Path) -> tuple[str, ...]:
    """Return which files a folder's index names. Raises `ValueError` with its fault, `OSError` if it can't be read."""
    try:
        named = set(read_foreign_json(folder / INDEX)["weight_map"].values())
    except (TypeError, KeyError, AttributeError):
        named = set()
    if not named or any(not isinstance(one, str) or os.path.basename(one) != one for one in named):
        raise ValueError("it does not name files of this folder")
    return tuple(sorted(named))


def weight_files(folder: Path) -> tuple[str, ...]:
    """Return the files of a folder's weights: those of its index, or the only one. Raises like `read_index`."""
    return read_index(folder) if (folder / INDEX).is_file() else (SINGLE,)


def read_tensor(path: Path, entry: TensorEntry) -> bytes:
    """Return the bytes of a tensor."""
    with path.open("rb") as file:
        file.seek(entry.begin)
        return file.read(entry.end - entry.begin)


def are_equal(one: tuple[Path, TensorEntry], other: tuple[Path, TensorEntry]) -> bool:
    """Return True if two tensors, each with its file, have the same bytes."""
    (path, entry), (other_path, other_entry) = one, other
    left = entry.end - entry.begin
    if entry.dtype != other_entry.dtype or left != other_entry.end - other_entry.begin:
        return False
    with path.open("rb") as file, other_path.open("rb") as other_file:
        file.seek(entry.begin)
        other_file.seek(other_entry.begin)
        while left > 0:
            part = file.read(min(left, _READ_BYTES))
            if not part or part != other_file.read(len(part)):
                return False
            left -= len(part)
    return True


def pinch(path: Path, header: Header) -> list[bytes]:
    """Return a few bytes from the middle of every tensor, in the order of their names.

    Two trainings of one model differ nearly everywhere, so they differ here; a change in a few places may be missed.
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
        raise DamagedHeader(f"its header has {length:,} bytes; the maximum is {_LONGEST_HEADER_BYTES:,}")
    tensors = {name: _tensor(name, one, 8 + length) for name, one in _table(file.read(length)).items()}
    last = 8 + length
    for name, one in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if one.begin != last:
            raise DamagedHeader(f"there is a gap before {shown(repr(name))}, or an overlap")
        last = one.end
    if last != size:
        raise DamagedHeader(f"it has {size:,} bytes; its header states {last:,}")
    return Header(tensors=tensors, size_bytes=size)


def _table(text: bytes) -> dict[str, Any]:
    """Return the entries of a header, unchecked."""
    try:
        # From bytes it would accept UTF-16 too.
        raw = json.loads(text.decode(), object_pairs_hook=_unambiguous)
    except UnicodeDecodeError:
        raise DamagedHeader("its header is not UTF-8") from None
    except DamagedHeader:
        raise
    except (ValueError, RecursionError):
        raise DamagedHeader("its header is not JSON") from None
    if not isinstance(raw, dict):
        raise DamagedHeader("its header is not a JSON object")
    raw.pop("__metadata__", None)
    # Checked before the entries, which take long.
    if len(raw) > _MOST_TENSORS:
        raise DamagedHeader(f"its header lists more than {_MOST_TENSORS:,} tensors")
    return raw


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of a header. Of two entries of one name, readers use different ones."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise DamagedHeader(f"its header names {shown(repr(twice))} twice")
    return found


def _tensor(name: str, raw: Any, data: int) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = raw["dtype"], tuple(raw["shape"]), raw["data_offsets"]
        numbers = (*shape, begin, end)
        is_plain = len(shape) <= _MOST_AXES and set(map(type, numbers)) == {int} and isinstance(dtype, str)
        is_plain = is_plain and min(numbers) >= 0 and max(numbers) <= _LARGEST
    except (TypeError, KeyError, ValueError):
        is_plain, dtype, shape, begin, end = False, "", (), 0, 0
    if not is_plain or begin > end or (dtype in _WIDTHS and end - begin != prod(shape) * _WIDTHS[dtype]):
        raise DamagedHeader(f"invalid header entry {shown(repr(name))}")
    return TensorEntry(dtype=dtype, shape=shape, begin=data + begin, end=data + end)
