"""Headers of GGUF files: their values, and names, types, shapes and offsets of tensors. Versions 2 and 3."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO, Final

from stoker.core.frozen import frozen
from stoker.store.weight_files.headers import DamagedHeader, TensorEntry, open_weights, shown

GgufValue = bool | int | float | str | tuple[bool | int | float | str, ...]

_FORMATS = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2), "F64": (28, 1, 8), "I8": (24, 1, 1), "I16": (25, 1, 2),
    "I32": (26, 1, 4), "I64": (27, 1, 8), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "IQ1_S": (19, 256, 50), "IQ1_M": (29, 256, 56),
    "IQ2_XXS": (16, 256, 66), "IQ2_XS": (17, 256, 74), "IQ2_S": (22, 256, 82), "IQ3_XXS": (18, 256, 98),
    "IQ3_S": (21, 256, 110), "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136), "TQ1_0": (34, 256, 54),
    "TQ2_0": (35, 256, 66), "MXFP4": (39, 32, 17),
}  # fmt: skip
BLOCKS: Final[Mapping[str, tuple[int, int]]] = {name: (values, size) for name, (_, values, size) in _FORMATS.items()}
"""Of each type: values in a block, and bytes of a block."""

_TYPES = {number: name for name, (number, _, _) in _FORMATS.items()}
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_ALIGNMENT = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_ALIGNMENTS = frozenset(1 << power for power in range(17))
_MOST_TENSORS = 100_000
_MOST_VALUES = 100_000
# A vocabulary of 256,000 has four lists of that length: tokens, scores, types and merges.
_MOST_ELEMENTS = 4_000_000
_LONGEST_HEADER_BYTES = 256 * 1024 * 1024
_MOST_AXES = 4
_LONGEST_NAME_BYTES = 63
_LONGEST_KEY_BYTES = 65_535
_LARGEST = 2**63 - 1


@frozen
class GgufHeader:
    """The header of a file. Shapes are in the order of other libraries: the last axis is the contiguous one."""

    version: int
    values: Mapping[str, GgufValue]
    tensors: Mapping[str, TensorEntry]
    """In the order of the file."""
    size_bytes: int


def read_gguf_header(path: Path) -> GgufHeader:
    """Read a file's header. Raises `DamagedHeader` with its fault, `OSError` if it can't be read."""
    with open_weights(path) as file:
        return _Reading(file).header()


class _Reading:
    """One header, read from the beginning of its file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._at = 0
        self._elements = 0

    def header(self) -> GgufHeader:
        if self._size < 24:
            raise DamagedHeader(f"it has {self._size} bytes, too few for a header")
        if self._take(4) != _MAGIC:
            raise DamagedHeader("it does not begin with GGUF")
        version = self._number(_U32)
        if version not in _VERSIONS:
            is_swapped = version & 0xFFFF == 0
            raise DamagedHeader(
                "it is big-endian" if is_swapped else f"version {version} is not supported, only 2 and 3"
            )
        tensors, values = self._count("tensors", _MOST_TENSORS), self._count("values", _MOST_VALUES)
        found = self._values(values)
        places = self._tensors(tensors, _alignment_of(found))
        return GgufHeader(version=version, values=found, tensors=places, size_bytes=self._size)

    def _values(self, count: int) -> dict[str, GgufValue]:
        found: dict[str, GgufValue] = {}
        for _ in range(count):
            key = self._name("a key", _LONGEST_KEY_BYTES)
            if key in found:
                raise DamagedHeader(f"its header names {shown(repr(key))} twice")
            found[key] = self._value(key)
        return found

    def _value(self, key: str) -> GgufValue:
        kind = self._number(_U32)
        if kind != _ARRAY:
            return self._elements_of(key, kind, 1)[0]
        kind, count = self._number(_U32), self._number(_U64)
        self._elements += count
        if self._elements > _MOST_ELEMENTS:
            raise DamagedHeader(f"{shown(repr(key))} makes more than {_MOST_ELEMENTS:,} values in lists")
        return self._elements_of(key, kind, count)

    def _elements_of(self, key: str, kind: int, count: int) -> tuple[bool | int | float | str, ...]:
        if kind == _STRING:
            return tuple(text.decode(errors="replace") for text in self._texts(count))
        if kind not in _SCALARS:
            raise DamagedHeader(f"{shown(repr(key))} has type {kind}, which is unknown here or a list of lists")
        form = struct.Struct(f"<{count}{_SCALARS[kind]}")
        return form.unpack(self._take(form.size))

    def _texts(self, count: int) -> Iterator[bytes]:
        """Return so many texts, in a loop of its own: a vocabulary has hundreds of thousands."""
        read, unpack = self._file.read, _U64.unpack
        left = min(self._size, _LONGEST_HEADER_BYTES) - self._at
        for _ in range(count):
            first = read(8)
            length = unpack(first)[0] if len(first) == 8 else left
            left -= 8 + length
            if left < 0:
                raise DamagedHeader(f"it has {self._size:,} bytes and ends within its header")
            yield read(length)
        self._at = min(self._size, _LONGEST_HEADER_BYTES) - left

    def _tensors(self, count: int, alignment: int) -> dict[str, TensorEntry]:
        listed: dict[str, tuple[str, tuple[int, ...], int]] = {}
        last = 0
        for _ in range(count):
            name = self._name("the name of a tensor", _LONGEST_NAME_BYTES)
            if name in listed:
                raise DamagedHeader(f"its header names {shown(repr(name))} twice")
            dtype, shape, size, offset = self._tensor(name)
            if offset != last:
                raise DamagedHeader(f"there is a gap before {shown(repr(name))}, or an overlap")
            listed[name] = dtype, shape, size
            last += -(-size // alignment) * alignment
        begin = -(-self._at // alignment) * alignment
        found: dict[str, TensorEntry] = {}
        for name, (dtype, shape, size) in listed.items():
            found[name] = TensorEntry(dtype=dtype, shape=shape, begin=begin, end=begin + size)
            if begin + size > self._size:
                raise DamagedHeader(f"it has {self._size:,} bytes; {shown(repr(name))} ends at {begin + size:,}")
            begin += -(-size // alignment) * alignment
        return found

    def _tensor(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        """Return type, shape, size in bytes and offset."""
        axes = self._number(_U32)
        if axes > _MOST_AXES:
            raise DamagedHeader(f"{shown(repr(name))} has {axes} axes; the maximum is {_MOST_AXES}")
        sides = struct.unpack(f"<{axes}Q", self._take(8 * axes))
        kind, offset = self._number(_U32), self._number(_U64)
        if kind not in _TYPES:
            raise DamagedHeader(f"{shown(repr(name))} has type {kind}, which is unknown here")
        dtype = _TYPES[kind]
        values, size = BLOCKS[dtype]
        if prod(sides) > _LARGEST or (sides[0] if sides else 1) % values:
            raise DamagedHeader(f"{shown(repr(name))} has the shape {list(sides)}, which {dtype} can't have")
        return dtype, tuple(reversed(sides)), prod(sides) // values * size, offset

    def _count(self, what: str, most: int) -> int:
        count = self._number(_U64)
        if count > most:
            raise DamagedHeader(f"its header states {count:,} {what}; the maximum is {most:,}")
        return count

    def _name(self, what: str, longest: int) -> str:
        try:
            return self._bytes(longest).decode()
        except UnicodeDecodeError:
            raise DamagedHeader(f"{what} is not UTF-8") from None

    def _bytes(self, longest: int) -> bytes:
        length = self._number(_U64)
        if length > longest:
            raise DamagedHeader(f"a text of {length:,} bytes in its header; the maximum is {longest:,}")
        return self._take(length)

    def _number(self, packed: struct.Struct) -> int:
        return int(packed.unpack(self._take(packed.size))[0])

    def _take(self, count: int) -> bytes:
        self._at += count
        if self._at > self._size:
            raise DamagedHeader(f"it has {self._size:,} bytes and ends within its header")
        if self._at > _LONGEST_HEADER_BYTES:
            raise DamagedHeader(f"its header is longer than {_LONGEST_HEADER_BYTES:,} bytes")
        taken = self._file.read(count)
        if len(taken) < count:
            raise DamagedHeader("it became shorter while it was read")
        return taken


def _alignment_of(values: Mapping[str, GgufValue]) -> int:
    alignment = values.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment not in _ALIGNMENTS:
        raise DamagedHeader(f"{_ALIGNMENT} is {shown(repr(alignment))}; it must be a power of two, at most 65,536")
    return alignment
