"""Bases that are quantised on disk: what config.json says of it, and which tensors belong to a matrix.

NF4 and int8 as bitsandbytes saves them are read as they are; other formats are refused before weights are read.
Importing this module imports no library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from stoker.cookbooks.language.arguments import NF4_BLOCK, BaseDtype
from stoker.core.errors import BadInput
from stoker.store.weight_files.headers import TensorEntry, shown

STATE: Final = "quant_state.bitsandbytes__nf4"
_SCALE_BLOCK = 256
_LARGEST_STATE_BYTES = 64 * 1024
_CODES: Final[Mapping[BaseDtype, tuple[str, ...]]] = {"auto": (), "nf4": ("U8", "F32", "F16", "BF16"), "int8": ("I8",)}
"""Types of the codes in files; those of NF4 may be stored as any type."""
_SCALES = ("F32", "F16", "BF16")
_PARTS = frozenset({"SCB", "weight_format"})
INSTEAD: Final = "use the model in 16 bits that it was made from; language/lora quantises it with base_dtype=nf4"


def saved_as(config: Mapping[str, Any]) -> BaseDtype:
    """Return how the matrices of a base are kept on disk: `auto` if they are not quantised. Raises `BadInput`."""
    said = config.get("quantization_config")
    if not said:
        return "auto"
    method = said.get("quant_method") if isinstance(said, Mapping) else said
    if isinstance(said, Mapping) and method in (None, "bitsandbytes"):
        if said.get("load_in_8bit") is True or said.get("_load_in_8bit") is True:
            return "int8"
        if said.get("load_in_4bit") is True or said.get("_load_in_4bit") is True:
            kind = said.get("bnb_4bit_quant_type", "fp4")
            if kind == "nf4":
                return "nf4"
            method = f"bitsandbytes {kind}"
    by = "an unknown method" if method is None else shown(str(method))
    known = "supported on disk: 32 and 16 bits, NF4 and int8 of bitsandbytes"
    raise BadInput(f"its weights are quantised by {by} ({known})", hint=INSTEAD)


def has_wide_scales(config: Mapping[str, Any]) -> bool:
    """Return True if a base in NF4 keeps its magnitudes in 32 bits: double quantisation is off by default."""
    said = config.get("quantization_config")
    is_double = isinstance(said, Mapping) and said.get("bnb_4bit_use_double_quant") is True
    return saved_as(config) == "nf4" and not is_double


def without_parts(names: Iterable[str]) -> Iterator[str]:
    """Return the names of weights without those that only belong to a quantised matrix."""
    for name in names:
        if ".weight." not in name and name.rpartition(".")[2] not in _PARTS:
            yield name


def is_quantised(name: str, there: Mapping[str, TensorEntry]) -> bool:
    """Return True if a matrix is quantised: some are left as they are."""
    return f"{name}.{STATE}" in there or scales_of(name) in there


def scales_of(name: str) -> str:
    """Return the name of the scales of a matrix in int8."""
    return f"{name.removesuffix('weight')}SCB"


def matrix_faults(
    name: str,
    size: tuple[int, ...],
    there: Mapping[str, TensorEntry],
    read: Callable[[str], bytes],
    saved: BaseDtype,
) -> Iterator[str]:
    """Collect what is wrong with the tensors of a quantised matrix; `read` returns the bytes of one."""
    entry, count = there[name], size[0] * size[1]
    if entry.dtype not in _CODES[saved]:
        yield f"{name} is {entry.dtype}, not {saved}"
        return
    held = (entry.end - entry.begin) * (2 if saved == "nf4" else 1)
    if held != count:
        yield f"{name} has {held:,} weights; config.json states {size[0]:,} × {size[1]:,}"
    if saved == "nf4":
        yield from _state_faults(name, size, there, read)
        return
    if entry.shape != size:
        yield f"{name} is {list(entry.shape)}; config.json states {list(size)}"
    scales = there.get(scales_of(name))
    if scales is None or scales.shape != size[:1] or scales.dtype not in _SCALES:
        yield f"it has no {scales_of(name)} of {size[0]:,} numbers"


def _state_faults(
    name: str, size: tuple[int, ...], there: Mapping[str, TensorEntry], read: Callable[[str], bytes]
) -> Iterator[str]:
    try:
        at = there[f"{name}.{STATE}"]
        state: Any = json.loads(read(f"{name}.{STATE}")) if at.end - at.begin <= _LARGEST_STATE_BYTES else None
        blocks = state["blocksize"], state.get("nested_blocksize", _SCALE_BLOCK)
        shape, is_double = state.get("shape", list(size)), "nested_offset" in state
        is_finite = math.isfinite(state.get("nested_offset", 0.0))
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError):
        yield f"{name}.{STATE} can't be read"
        return
    if not is_finite:
        yield f"{name}.{STATE} has a nested_offset that is no number"
    if blocks != (NF4_BLOCK, _SCALE_BLOCK):
        said = " and ".join(shown(str(one)) for one in blocks)
        yield f"{name} has blocks of {said} weights; {NF4_BLOCK} and {_SCALE_BLOCK} are supported"
        return
    if shape != list(size):
        yield f"{name} was {shown(str(shape))} before; config.json states {list(size)}"
    scales = -(-math.prod(size) // NF4_BLOCK)
    wanted = {"absmax": ("U8" if is_double else "F32", scales), "quant_map": ("F32", 16)}
    if is_double:
        wanted |= {"nested_absmax": ("F32", -(-scales // _SCALE_BLOCK)), "nested_quant_map": ("F32", 256)}
    for part, (dtype, length) in wanted.items():
        entry = there.get(f"{name}.{part}")
        if entry is None or entry.shape != (length,) or entry.dtype != dtype:
            yield f"it has no {name}.{part} of {length:,} numbers ({dtype})"
