"""A frozen base on a device: its safetensors, read once, with matrices that share an input side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from stoker.cookbooks.language.compute.frozen_base import EMBEDDING, HEAD, DecoderShape, shape_of
from stoker.core.errors import BadInput
from stoker.store.weight_files.headers import unreadable_weights
from stoker.store.weight_files.safetensors import INDEX, SINGLE


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """The weights of one block."""

    norm1: torch.Tensor
    qkv: torch.Tensor
    """`[q + k + v, hidden]`."""
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: torch.Tensor
    o_bias: torch.Tensor | None
    norm2: torch.Tensor
    gate_up: torch.Tensor
    """`[gate + up, hidden]`."""
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseWeights:
    """A model that is read and never written."""

    shape: DecoderShape
    device: str
    dtype: torch.dtype
    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor

    def tensors(self) -> Iterator[torch.Tensor]:
        """Return every weight once."""
        yield self.embedding
        for layer in self.layers:
            yield from (one for name in LayerWeights.__slots__ if (one := getattr(layer, name)) is not None)
        yield self.norm
        if self.head is not self.embedding:
            yield self.head

    @property
    def size_bytes(self) -> int:
        return sum(one.numel() * one.element_size() for one in self.tensors())


def load_base(folder: Path, *, device: str = "cpu", dtype: str = "float32") -> BaseWeights:
    """Read a base from a folder in the hub's layout. Raises `BadInput` if it is not a base, `Damaged`."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = shape_of(config, where=str(folder / "config.json"))
    with ExitStack() as stack:
        files = _Files(folder, stack, device, getattr(torch, dtype))
        return _assemble(shape, files, device, getattr(torch, dtype))


class _Files:
    """The tensors of a folder by name, in any of its files."""

    def __init__(self, folder: Path, stack: ExitStack, device: str, dtype: torch.dtype) -> None:
        self._folder = folder
        self._device = device
        self._dtype = dtype
        self._where: dict[str, Any] = {}
        index = folder / INDEX
        try:
            names = {SINGLE}
            if index.is_file():
                names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            for name in sorted(names):
                if Path(name).name != name:
                    raise BadInput(
                        f"{index} names a file outside its folder: {name}",
                        hint="download or copy the file again",
                    )
                opened = stack.enter_context(safe_open(str(folder / name), framework="pt", device=device))
                self._where |= dict.fromkeys(opened.keys(), opened)
        except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:
            raise unreadable_weights(str(folder), error) from error

    def has(self, name: str) -> bool:
        return name in self._where

    def read(self, name: str, *shape: int) -> torch.Tensor:
        """Read one tensor, whose shape must be that of config.json."""
        if name not in self._where:
            raise BadInput(f"{self._folder} has no tensor {name}", hint="use the config.json of these weights")
        found: torch.Tensor = self._where[name].get_tensor(name).to(self._dtype)
        if tuple(found.shape) != shape:
            message = f"{self._folder}: {name} is {list(found.shape)}; config.json states {list(shape)}"
            raise BadInput(message, hint="use the config.json of these weights")
        return found.contiguous()


def _assemble(shape: DecoderShape, files: _Files, device: str, dtype: torch.dtype) -> BaseWeights:
    hidden, vocabulary = shape.hidden, shape.vocabulary
    embedding = files.read(EMBEDDING, vocabulary, hidden)
    is_tied = shape.model.is_tied or not files.has(HEAD)
    return BaseWeights(
        shape=shape,
        device=device,
        dtype=dtype,
        embedding=embedding,
        layers=tuple(_layer(shape, files, f"model.layers.{number}") for number in range(shape.layers)),
        norm=files.read("model.norm.weight", hidden),
        head=embedding if is_tied else files.read(HEAD, vocabulary, hidden),
    )


def _layer(shape: DecoderShape, files: _Files, at: str) -> LayerWeights:
    model, hidden = shape.model, shape.hidden

    def weight(*names: str) -> torch.Tensor:
        parts = [files.read(f"{at}.{name}.weight", *reversed(shape.linear(name.rpartition(".")[2]))) for name in names]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def bias(*names: str) -> torch.Tensor | None:
        if not any(files.has(f"{at}.{name}.bias") for name in names):
            return None
        return torch.cat([files.read(f"{at}.{name}.bias", shape.linear(name.rpartition(".")[2])[1]) for name in names])

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    inner = ("mlp.gate_proj", "mlp.up_proj")
    norms = model.has_head_norms
    return LayerWeights(
        norm1=files.read(f"{at}.input_layernorm.weight", hidden),
        qkv=weight(*qkv),
        qkv_bias=bias(*qkv),
        q_norm=files.read(f"{at}.self_attn.q_norm.weight", model.head_dim) if norms else None,
        k_norm=files.read(f"{at}.self_attn.k_norm.weight", model.head_dim) if norms else None,
        o=weight("self_attn.o_proj"),
        o_bias=bias("self_attn.o_proj"),
        norm2=files.read(f"{at}.post_attention_layernorm.weight", hidden),
        gate_up=weight(*inner),
        gate_up_bias=bias(*inner),
        down=weight("mlp.down_proj"),
        down_bias=bias("mlp.down_proj"),
    )
