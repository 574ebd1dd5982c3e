"""A whole model on disk: weights read into one map by name, and written as the hub lays them out, with what goes along.

The same weights give the same bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stoker.cookbooks.language.bases import CONFIG, TrainableBase, read_base
from stoker.cookbooks.language.safetensors import INDEX, SHARD_BYTES, SINGLE, unreadable_weights
from stoker.core import jsontext


def read_weights(base: TrainableBase) -> dict[str, Tensor]:
    """Read every weight of a base, as it lies there. Raises `Damaged` if a file is."""
    weights: dict[str, Tensor] = {}
    for name in base.weight_files:
        try:
            weights |= load_file(base.folder / name)
        except (SafetensorError, OSError, ValueError) as error:
            raise unreadable_weights(str(base.folder / name), error) from error
    return weights


def write_model(folder: Path, base: TrainableBase, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Write a model that is a base with other weights: its config and tokenizer go along."""
    for name in base.files:
        if name not in (*base.weight_files, INDEX, CONFIG):
            shutil.copyfile(base.folder / name, folder / name)
    kept = {"torch_dtype", "dtype"} & base.config.keys() or {"torch_dtype"}
    config = {**base.config, **dict.fromkeys(kept, str(dtype).removeprefix("torch."))}
    (folder / CONFIG).write_text(jsontext.dumps(config, indent=2) + "\n", encoding="utf-8", newline="")
    shards = list(_shards(weights, dtype))
    if len(shards) == 1:
        _save(shards[0], folder / SINGLE, weights, dtype)
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _save(names, folder / file, weights, dtype)
        weight_map |= dict.fromkeys(names, file)
    size_bytes = sum(one.numel() for one in weights.values()) * dtype.itemsize
    index = {"metadata": {"total_size": size_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(jsontext.dumps(index, indent=2) + "\n", encoding="utf-8", newline="")


def base_at(folder: str, name: str, *, use: str = "trained") -> TrainableBase:
    """Return the base in a folder."""
    return read_base(Path(folder), name=name, use=use)


def _shards(weights: Mapping[str, Tensor], dtype: torch.dtype) -> Iterable[list[str]]:
    names: list[str] = []
    size_bytes = 0
    for name in sorted(weights):
        own_bytes = weights[name].numel() * dtype.itemsize
        if names and size_bytes + own_bytes > SHARD_BYTES:
            yield names
            names, size_bytes = [], 0
        names.append(name)
        size_bytes += own_bytes
    yield names


def _save(names: list[str], file: Path, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    # Whole numbers, such as places in a row, stay what they are.
    widths = {name: dtype if weights[name].is_floating_point() else weights[name].dtype for name in names}
    tensors = {name: weights[name].detach().to("cpu", widths[name]).contiguous() for name in names}
    save_file(tensors, file, metadata={"format": "pt"})
