"""Which path a base takes: blocks of our own if they are its blocks, otherwise transformers' module.

Decided by config.json and the names of the weights, before they are loaded. Importing this module imports no library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stoker.cookbooks.language.arguments import BasePath
from stoker.cookbooks.language.compute.frozen_base import shape_of, unlike
from stoker.cookbooks.language.compute.general_shape import Sizes, general_shape
from stoker.cookbooks.language.saved_quantisation import without_parts
from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.devices.estimate.model_shapes import ModelShape, read_shape
from stoker.store.weight_files.headers import read_foreign_json, shown, unreadable_weights
from stoker.store.weight_files.safetensors import ADAPTER_CONFIG, INDEX, SINGLE, read_header, weight_files

_IN_BLOCK = re.compile(r"model\.layers\.\d+\.(.+)")
_UNUSED = frozenset({"inv_freq"})
"""Tensors that old checkpoints have and no block reads."""


@frozen
class ChosenPath:
    """How a base is computed."""

    is_general: bool
    why: str

    def __str__(self) -> str:
        return f"{'general' if self.is_general else 'fast'} path: {self.why}"


def choose_path(folder: Path, wanted: BasePath) -> ChosenPath:
    """Return how the base in a folder is computed, and why. Raises `BadInput` if the fast path can't, `Damaged`."""
    if wanted == "general":
        return ChosenPath(is_general=True, why="path=general")
    config = read_foreign_json(folder / "config.json")
    differs = unlike(config)
    if not differs:
        shape = shape_of(config, where=str(folder / "config.json")).model
        differs = unlike_weights(without_parts(weight_sizes(folder)), shape)
        if not differs:
            return ChosenPath(is_general=False, why=f"its blocks are those of {shape.family}")
    if wanted == "fast":
        raise BadInput(f"{folder.name} can't take the fast path: {differs}", hint="path=general, or leave it out")
    return ChosenPath(is_general=True, why=differs)


def leads_elsewhere(folder: Path, config: Mapping[str, Any]) -> str:
    """Return what makes transformers load more than the weights beside a config.json; empty if nothing.

    An adapter in the same folder is loaded with its base; settings name other files of weights, and code on the hub.
    """
    if os.path.lexists(folder / ADAPTER_CONFIG):
        return f"{ADAPTER_CONFIG} is beside its weights: transformers would load that adapter, too"
    left: list[tuple[str, Any]] = [("", config)]
    while left:
        name, value = left.pop()
        is_kernel = name.endswith("_implementation")
        if isinstance(value, Mapping):
            left += [(name if is_kernel else key, one) for key, one in value.items()]
        elif isinstance(value, list):
            left += [(name, one) for one in value]
        elif isinstance(value, str) and (name == "transformers_weights" or (is_kernel and "/" in value)):
            return f"its config.json makes transformers load something else: {name} is {shown(repr(value))}"
    return ""


def estimated_shape(folder: Path, config: Mapping[str, Any]) -> tuple[ModelShape, bool]:
    """Return the shape of a base for memory estimates, and True if it takes the general path."""
    if not unlike(config):
        return read_shape(config, where=str(folder / "config.json")), False
    has_weights = (folder / INDEX).is_file() or (folder / SINGLE).is_file()
    return general_shape(config, weight_sizes(folder) if has_weights else {}).model, True


def unlike_weights(names: Iterable[str], shape: ModelShape) -> str:
    """Return what weights have that blocks of a family have not; empty if nothing."""
    for name in sorted(names):
        match = _IN_BLOCK.fullmatch(name)
        if match and not _is_used(match[1], shape):
            return f"no block of {shape.family} has a tensor {shown(name)}"
    return ""


def _is_used(part: str, shape: ModelShape) -> bool:
    name, _, kind = part.rpartition(".")
    of_matrix = next((one for one in shape.linears if name.endswith(f".{one.name}")), None)
    if kind == "bias":
        return of_matrix is not None and of_matrix.has_bias
    return of_matrix is not None or name in block_norms(shape) or kind in _UNUSED


def block_norms(shape: ModelShape) -> dict[str, int]:
    """Return the norms of one block of the fast path, each with its size."""
    whole = dict.fromkeys(("input_layernorm", "post_attention_layernorm"), shape.hidden)
    heads = ("self_attn.q_norm", "self_attn.k_norm") if shape.has_head_norms else ()
    return whole | dict.fromkeys(heads, shape.head_dim)


def weight_sizes(folder: Path) -> Sizes:
    """Return the size of each weight of a folder, by name, from the headers of its files. Raises `Damaged`."""
    try:
        headers = [read_header(folder / file) for file in weight_files(folder)]
        return {name: one.shape for header in headers for name, one in header.tensors.items()}
    except (OSError, ValueError) as error:
        raise unreadable_weights(str(folder), error) from error
