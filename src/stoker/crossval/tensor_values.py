"""Values of tensors from their bytes: floats, integers, and the quantised types of GGUF."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stoker.store.weight_files.gguf import BLOCKS
from stoker.store.weight_files.headers import TensorEntry

if TYPE_CHECKING:
    import numpy as np

    Values = np.ndarray[Any, Any]

_PLAIN: Final = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8",
    "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_QUANTISED: Final = frozenset(name for name, (values, _) in BLOCKS.items() if values > 1)


def block_of(dtype: str) -> tuple[int, int]:
    """Return how many values are stored together, and in how many bytes; (1, 1) for a type that can't be read."""
    if dtype in _PLAIN:
        return 1, 1 if dtype == "BOOL" else int(_PLAIN[dtype][-1])
    return BLOCKS.get(dtype, (1, 1))


def can_read(dtype: str) -> bool:
    """Return True if values of this type can be read."""
    return dtype in _PLAIN or dtype in BLOCKS


def count_of(entry: TensorEntry) -> int:
    """Return how many values a tensor has."""
    values, size = block_of(entry.dtype)
    return (entry.end - entry.begin) // size * values


def read_values(data: bytes | bytearray, dtype: str) -> Values:
    """Return the values of whole blocks, as floats, or as integers if they are. Raises `ValueError`."""
    import numpy as np

    if dtype in _PLAIN:
        return np.frombuffer(data, _PLAIN[dtype])
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype not in _QUANTISED:
        raise ValueError(f"values of type {dtype} can't be read")
    import gguf

    kind = gguf.GGMLQuantizationType[dtype]
    # Scales may be anything.
    with np.errstate(invalid="ignore", over="ignore"):
        return gguf.quants.dequantize(np.frombuffer(data, np.uint8).reshape(-1, BLOCKS[dtype][1]), kind).reshape(-1)
