"""Bases that are quantised on disk: what config.json says of it, and which tensors belong to a matrix.

NF4 and int8 as bitsandbytes saves them are read as they are; other formats are refused before weights are read.
Importing this module imports no library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from stoker.cookbooks.language.arguments import NF4_BLOCK, BaseDtype
from stoker.core.errors import BadInput
from stoker.store.weight_files.headers import TensorEntry, shown

STATE: Final = "quant_state.bitsandbytes__nf4"
_SCALE_BLOCK = 256
_CODES: Final[Mapping[BaseDtype, tuple[str, ...]]] = {"auto": (), "nf4": ("U8", "F32", "F16", "BF16"), "int8": ("I8",)}
"""Types of the codes in files; those of NF4 may be stored as any type."""
_PARTS = frozenset({"SCB", "weight_format"})
_INSTEAD = "use the base that it was made from, with base_dtype=nf4"


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
    known = "supported on disk: 32 and 16 bits, NF4 and int8 of bitsandbytes"
    raise BadInput(f"its weights are quantised by {shown(str(method))} ({known})", hint=_INSTEAD)


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
    if saved == "int8":
        if there[scales_of(name)].shape != size[:1]:
            yield f"{scales_of(name)} is {list(there[scales_of(name)].shape)}, not [{size[0]}]"
        return
    yield from _state_faults(name, count, there, read)


def _state_faults(
    name: str, count: int, there: Mapping[str, TensorEntry], read: Callable[[str], bytes]
) -> Iterator[str]:
    try:
        state = json.loads(read(f"{name}.{STATE}"))
        blocks = state["blocksize"], state.get("nested_blocksize", _SCALE_BLOCK)
        is_double = "nested_offset" in state
    except (ValueError, KeyError, AttributeError, TypeError):
        yield f"{name}.{STATE} can't be read"
        return
    if blocks != (NF4_BLOCK, _SCALE_BLOCK):
        yield f"{name} has blocks of {blocks[0]} and {blocks[1]} weights; {NF4_BLOCK} and {_SCALE_BLOCK} are supported"
        return
    scales = -(-count // NF4_BLOCK)
    wanted = {"absmax": scales, "quant_map": 16}
    if is_double:
        wanted |= {"nested_absmax": -(-scales // _SCALE_BLOCK), "nested_quant_map": 256}
    for part, length in wanted.items():
        entry = there.get(f"{name}.{part}")
        if entry is None or entry.shape != (length,):
            yield f"it has no {name}.{part} of {length:,} numbers"
