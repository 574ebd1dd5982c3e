"""A frozen base on a device: its safetensors, read once, with matrices that share an input side by side.

Its blocks are kept as they are computed with, or in four bits: then one block at a time is dequantised into memory that
all blocks share, once for all adapters of a pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from safetensors import SafetensorError, safe_open

from stoker.cookbooks.language.arguments import BaseDtype, can_compile
from stoker.cookbooks.language.compute.decoding import KeyValueCache, SequenceCache
from stoker.cookbooks.language.compute.frozen_base import EMBEDDING, HEAD, DecoderShape, shape_of
from stoker.cookbooks.language.compute.int8 import Int8Matrix, dequantise_int8, quantise_int8
from stoker.cookbooks.language.compute.math import HeadNorms, takes_ragged
from stoker.cookbooks.language.compute.matrices import AdaptableShape
from stoker.cookbooks.language.compute.module_copies import OuterModule
from stoker.cookbooks.language.compute.nf4 import QuantisedMatrix, dequantise, quantise, tables
from stoker.cookbooks.language.saved_quantisation import STATE, saved_as, scales_of
from stoker.core.errors import BadInput
from stoker.store.weight_files.headers import read_foreign_json, unreadable_weights
from stoker.store.weight_files.safetensors import weight_files


class FrozenBase(Protocol):
    """A base on a device, however it is computed."""

    @property
    def shape(self) -> AdaptableShape:
        """Its sizes, and the matrices that may have adapters."""

    @property
    def device(self) -> str:
        """The device, as torch names it."""

    @property
    def dtype(self) -> torch.dtype:
        """The precision of products."""

    @property
    def size_bytes(self) -> int:
        """Memory of its weights."""

    @property
    def takes_ragged(self) -> bool:
        """True if it computes several sequences in one row without a mask of the row's length squared."""

    @property
    def records(self) -> bool:
        """True if its steps can be recorded as CUDA graphs."""

    def matrices(self) -> Iterator[tuple[int, str, torch.Tensor]]:
        """Return the matrices of each group, `[outputs, inputs]`, with its block and name; valid until the next."""

    def outer_modules(self) -> tuple[OuterModule, ...]:
        """Return the embedding and the head, of which members may have copies."""

    def cache(self) -> SequenceCache:
        """Return a cache of one sequence, which is empty."""


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

    @property
    def head_norms(self) -> HeadNorms | None:
        """The norms of queries and keys, if heads have norms."""
        return None if self.q_norm is None or self.k_norm is None else (self.q_norm, self.k_norm)


_MATRICES: Mapping[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The matrices of each field of a block, in their order."""


KeptMatrix: TypeAlias = QuantisedMatrix | Int8Matrix | torch.Tensor
"""A matrix in four or eight bits; or as it is, where a base on disk left it so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedLayer:
    """A block in few bits: its matrices, and everything else as it is."""

    matrices: Mapping[str, tuple[KeptMatrix, ...]]
    """By the field of a block: one below the other."""
    rest: Mapping[str, torch.Tensor | None]


class QuantisedLayers:
    """Blocks in four or eight bits. Only the block that was requested last is valid."""

    def __init__(self, layers: Sequence[QuantisedLayer], device: str, dtype: torch.dtype) -> None:
        self._layers = layers
        self._dequantise = dequantise_on(device)
        self._shared = {
            name: torch.empty(sum(one.shape[0] for one in parts), parts[0].shape[1], device=device, dtype=dtype)
            for name, parts in layers[0].matrices.items()
        }

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, number: int) -> LayerWeights:
        layer = self._layers[number]
        for name, parts in layer.matrices.items():
            begin = 0
            for part in parts:
                self._dequantise(part, self._shared[name][begin : begin + part.shape[0]])
                begin += part.shape[0]
        return LayerWeights(**self._shared, **layer.rest)

    @property
    def size_bytes(self) -> int:
        matrices = (part for layer in self._layers for parts in layer.matrices.values() for part in parts)
        rest = (one for layer in self._layers for one in layer.rest.values() if one is not None)
        kept = sum(_size([one]) if isinstance(one, torch.Tensor) else one.size_bytes for one in matrices)
        return kept + _size(rest) + _size(self._shared.values())


def packed(weight: torch.Tensor, base_dtype: BaseDtype) -> QuantisedMatrix | Int8Matrix:
    """Return a matrix in four or eight bits, on its device."""
    return quantise(weight) if base_dtype == "nf4" else quantise_int8(weight)


def dequantise_on(device: str) -> Callable[[KeptMatrix, torch.Tensor], None]:
    """Return what writes a matrix into a tensor."""
    four = dequantise
    if device != "cpu" and can_compile():
        from stoker.cookbooks.language.compute.gpu_kernels import dequantise_nf4 as four

    def write(matrix: KeptMatrix, into: torch.Tensor) -> None:
        if isinstance(matrix, QuantisedMatrix):
            four(matrix, into)
        elif isinstance(matrix, Int8Matrix):
            dequantise_int8(matrix, into)
        else:
            into.copy_(matrix)

    return write


def _size(tensors: Iterable[torch.Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseWeights:
    """A model that is read and never written."""

    shape: DecoderShape
    device: str
    dtype: torch.dtype
    embedding: torch.Tensor
    """Of a quantised base on a GPU in page-locked memory of the machine, unless it is the head, too."""
    layers: Sequence[LayerWeights] | QuantisedLayers
    norm: torch.Tensor
    head: torch.Tensor

    @property
    def takes_ragged(self) -> bool:
        return takes_ragged(self.device, self.dtype, self.shape.windows)

    @property
    def records(self) -> bool:
        return True

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of tokens."""
        if self.embedding.device == tokens.device:
            return torch.nn.functional.embedding(tokens, self.embedding)
        from stoker.cookbooks.language.compute.gpu_kernels import gathered_rows

        return gathered_rows(tokens, self.embedding)

    def matrices(self) -> Iterator[tuple[int, str, torch.Tensor]]:
        for number in range(len(self.layers)):
            layer = self.layers[number]
            yield from ((number, name, getattr(layer, name)) for name in _MATRICES)

    def outer_modules(self) -> tuple[OuterModule, ...]:
        names = [name.removesuffix(".weight") for name in (EMBEDDING, HEAD)]
        return (
            OuterModule(name=names[0], role="embedding", weight=self.embedding, padding=self.shape.padding),
            OuterModule(name=names[1], role="head", weight=self.head),
        )

    def cache(self) -> KeyValueCache:
        return KeyValueCache()

    @property
    def size_bytes(self) -> int:
        outside = {id(one): one for one in (self.embedding, self.norm, self.head) if not one.is_pinned()}
        layers = self.layers
        inside = layers.size_bytes if isinstance(layers, QuantisedLayers) else _size(_each(layers))
        return _size(outside.values()) + inside


def _each(layers: Iterable[LayerWeights]) -> Iterator[torch.Tensor]:
    for layer in layers:
        yield from (one for name in LayerWeights.__slots__ if (one := getattr(layer, name)) is not None)


def load_base(
    folder: Path, *, device: str = "cpu", dtype: str = "float32", base_dtype: BaseDtype = "auto"
) -> BaseWeights:
    """Read a base from a folder in the hub's layout. Raises `BadInput` if it is not a base, `Damaged`."""
    config = read_foreign_json(folder / "config.json")
    shape = shape_of(config, where=str(folder / "config.json"))
    with ExitStack() as stack:
        saved = saved_as(config)
        files = _Files(folder, stack, device, getattr(torch, dtype), is_quantised=saved != "auto")
        return assemble(shape, files, device, getattr(torch, dtype), base_dtype if saved == "auto" else saved)


class _Files:
    """The tensors of a folder by name, in any of its files."""

    def __init__(self, folder: Path, stack: ExitStack, device: str, dtype: torch.dtype, *, is_quantised: bool) -> None:
        self.is_quantised = is_quantised
        self._folder = folder
        self._device = device
        self._dtype = dtype
        self._where: dict[str, Any] = {}
        try:
            for name in weight_files(folder):
                opened = stack.enter_context(safe_open(str(folder / name), framework="pt", device=device))
                self._where |= dict.fromkeys(opened.keys(), opened)
        except (SafetensorError, OSError, ValueError) as error:
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

    def saved(self, name: str, *shape: int) -> QuantisedMatrix | Int8Matrix | None:
        """Read a matrix that is quantised on disk; None if it is not."""
        rows, columns = shape
        if f"{name}.{STATE}" in self._where:
            return self._saved_nf4(name, (rows, columns))
        if (scales := scales_of(name)) in self._where:
            return Int8Matrix(codes=self._raw(name), sizes=self._raw(scales).float())
        return None

    def _saved_nf4(self, name: str, shape: tuple[int, int]) -> QuantisedMatrix:
        state = json.loads(self._raw(f"{name}.{STATE}").cpu().numpy().tobytes())
        parts = {"quant_map": tables(self._raw(name).device)[0]}
        is_double = "nested_offset" in state
        if is_double:
            parts["nested_quant_map"] = tables(self._raw(name).device)[1]
        for part, values in parts.items():
            if not torch.equal(self._raw(f"{name}.{part}"), values):
                message = f"{self._folder}: {name}.{part} has other values than those of NF4"
                raise BadInput(message, hint="use a base that bitsandbytes saved")
        scales = self._raw(f"{name}.absmax")
        none = torch.empty(0, device=scales.device)
        return QuantisedMatrix(
            shape=shape,
            codes=self._raw(name).view(torch.uint8).reshape(-1),
            scales=scales,
            scale_sizes=self._raw(f"{name}.nested_absmax") if is_double else none,
            mean=torch.tensor(state["nested_offset"] if is_double else 0.0, device=scales.device),
        )

    def _raw(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._where[name].get_tensor(name).contiguous()
        return found


class WeightSource(Protocol):
    """Where the weights of a base come from."""

    is_quantised: bool
    """True if they come quantised, except those that are left as they are."""

    def has(self, name: str) -> bool:
        """Return True if there is a tensor of that name."""

    def read(self, name: str, *shape: int) -> torch.Tensor:
        """Return a tensor, which has that shape."""

    def saved(self, name: str, *shape: int) -> QuantisedMatrix | Int8Matrix | None:
        """Return a matrix that comes quantised; None if it does not."""


def assemble(
    shape: DecoderShape, files: WeightSource, device: str, dtype: torch.dtype, base_dtype: BaseDtype
) -> BaseWeights:
    """Return a base of such weights."""
    hidden, vocabulary = shape.hidden, shape.vocabulary
    embedding = files.read(EMBEDDING, vocabulary, hidden)
    numbers = range(shape.layers)
    layers: Sequence[LayerWeights] | QuantisedLayers
    if base_dtype != "auto":
        if device != "cpu" and can_compile() and not shape.model.is_tied:
            embedding = in_ram(embedding)
        quantised = [_quantised_layer(shape, files, number, base_dtype) for number in numbers]
        layers = QuantisedLayers(quantised, device, dtype)
    else:
        layers = tuple(_layer(shape, files, number) for number in numbers)
    return BaseWeights(
        shape=shape,
        device=device,
        dtype=dtype,
        embedding=embedding,
        layers=layers,
        norm=files.read("model.norm.weight", hidden),
        head=embedding if shape.model.is_tied else files.read(HEAD, vocabulary, hidden),
    )


def in_ram(embedding: torch.Tensor) -> torch.Tensor:
    """Return an embedding in page-locked memory of the machine, of which a pass reads some rows.

    As it is, if there is no such memory.
    """
    try:
        return embedding.cpu().pin_memory()
    except RuntimeError:
        return embedding


def _layer(shape: DecoderShape, files: WeightSource, number: int) -> LayerWeights:
    matrices = {field: list(_matrices(shape, files, number, names)) for field, names in _MATRICES.items()}
    whole = {field: torch.cat(parts) if len(parts) > 1 else parts[0] for field, parts in matrices.items()}
    return LayerWeights(**whole, **_rest(shape, files, number))


def _quantised_layer(shape: DecoderShape, files: WeightSource, number: int, base_dtype: BaseDtype) -> QuantisedLayer:
    def kept(name: str, size: tuple[int, ...]) -> KeptMatrix:
        saved = files.saved(name, *size)
        if saved is not None:
            return saved
        return files.read(name, *size) if files.is_quantised else packed(files.read(name, *size), base_dtype)

    matrices = {field: tuple(kept(*one) for one in _sizes(shape, number, names)) for field, names in _MATRICES.items()}
    return QuantisedLayer(matrices=matrices, rest=_rest(shape, files, number))


def _matrices(shape: DecoderShape, files: WeightSource, number: int, names: tuple[str, ...]) -> Iterator[torch.Tensor]:
    for name, size in _sizes(shape, number, names):
        yield files.read(name, *size)


def _sizes(shape: DecoderShape, number: int, names: tuple[str, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Return the name and the size of matrices of a block."""
    for name in names:
        yield f"model.layers.{number}.{name}.weight", tuple(reversed(shape.linear(name.rpartition(".")[2])))


def _rest(shape: DecoderShape, files: WeightSource, number: int) -> dict[str, torch.Tensor | None]:
    """Return the norms and biases of a block."""
    at, model, hidden = f"model.layers.{number}", shape.model, shape.hidden

    def bias(*names: str) -> torch.Tensor | None:
        if not any(files.has(f"{at}.{name}.bias") for name in names):
            return None
        return torch.cat([files.read(f"{at}.{name}.bias", shape.linear(name.rpartition(".")[2])[1]) for name in names])

    norms = model.has_head_norms
    return {
        "norm1": files.read(f"{at}.input_layernorm.weight", hidden),
        "q_norm": files.read(f"{at}.self_attn.q_norm.weight", model.head_dim) if norms else None,
        "k_norm": files.read(f"{at}.self_attn.k_norm.weight", model.head_dim) if norms else None,
        "norm2": files.read(f"{at}.post_attention_layernorm.weight", hidden),
        **{f"{field}_bias": bias(*names) for field, names in _MATRICES.items()},
    }
