"""The settings in config.json that a forward pass needs, beyond sizes: eps, rotation, windows."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from stoker.cookbooks.language.compute.matrices import AdaptedMatrix, MatrixGroup
from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.devices.estimate.model_shapes import ModelShape, read_shape

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Supported families."""
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
"""Names in weight files; a head may be the embedding."""
_HOMES: Mapping[str, str] = {
    "q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn",
    "gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp",
}  # fmt: skip
"""The part of a block of each matrix."""
MEMBERS: Mapping[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""The matrices that share an input, in the order of the base."""
_THETA = 10_000.0
_MOST = 10**9
_ROTATIONS = ("default", "linear", "llama3", "yarn")
_OTHER_BASE = f"use another base; supported: {', '.join(FAMILIES)}"
_COPY_AGAIN = "download or copy the file again"


@frozen
class Rotation:
    """The rotation of queries and keys by position."""

    theta: float = _THETA
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 0
    """Positions that the base was first trained on."""
    fast: float = 32.0
    slow: float = 1.0
    attention: float = 1.0
    """Factor of queries and keys."""
    truncates: bool = True


@frozen
class DecoderShape:
    """A decoder that can be trained."""

    model: ModelShape
    eps: float
    rotation: Rotation
    positions: int
    """The maximum sequence length."""
    windows: tuple[int, ...]
    """The attention window of each layer; 0: unlimited."""
    padding: int | None = None
    """The token that transformers' embedding does not learn."""

    @property
    def hidden(self) -> int:
        return self.model.hidden

    @property
    def layers(self) -> int:
        return self.model.layers

    @property
    def vocabulary(self) -> int:
        return self.model.vocabulary

    def groups(self) -> Iterator[MatrixGroup]:
        """Return all matrices, those that share an input together, in the order of the base."""
        for layer in range(self.layers):
            for name, members in MEMBERS.items():
                matrices = tuple(_matrix(layer, target, *self.linear(target)) for target in members)
                yield MatrixGroup(block=layer, name=name, matrices=matrices)

    def linear(self, target: str) -> tuple[int, int]:
        """Return inputs and outputs of one of a block's matrices."""
        return next((one.inputs, one.outputs) for one in self.model.linears if one.name == target)


def _matrix(layer: int, target: str, inputs: int, outputs: int) -> AdaptedMatrix:
    return AdaptedMatrix(name=module_name(layer, target), inputs=inputs, outputs=outputs)


def module_name(layer: int, target: str) -> str:
    """Return the full name of a matrix in weight files and PEFT."""
    return f"model.layers.{layer}.{_HOMES[target]}.{target}"


def unlike(config: Mapping[str, Any]) -> str:
    """Return what a base has that the blocks computed here have not; empty if nothing."""
    family, activation = config.get("model_type"), config.get("hidden_activation") or config.get("hidden_act") or "silu"
    if family not in FAMILIES:
        return f"its architecture {family or 'without a name'} is none of {', '.join(FAMILIES)}"
    if activation not in ("silu", "swish"):
        return f"hidden_act {activation} is not supported; only silu is"
    return _unlike_rotation(_rope(config))


def _unlike_rotation(rope: Any) -> str:
    kind = _rope_kind(rope) if isinstance(rope, Mapping) else _ROTATIONS[0]
    if kind not in _ROTATIONS:
        return f"rope_type {kind!r} is not supported"
    if kind == "yarn" and (rope.get("mscale") or rope.get("mscale_all_dim")):
        return "rope_type yarn with mscale is not supported"
    if isinstance(rope, Mapping) and rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "partial_rotary_factor is not supported"
    return ""


def _rope(config: Mapping[str, Any]) -> Any:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _rope_kind(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type") or rope.get("type") or "default"


def shape_of(config: Mapping[str, Any], *, where: str = "config.json") -> DecoderShape:
    """Read a config.json. Raises `BadInput` with the reason if it can't be trained."""
    differs = unlike(config)
    if differs:
        raise BadInput(f"{where}: {differs}", hint=_OTHER_BASE)
    family = config["model_type"]
    model = read_shape(config, where=where)
    positions = _whole(config, "max_position_embeddings", 2048, where)
    return DecoderShape(
        model=model,
        eps=_number(config, "rms_norm_eps", 1e-6, where),
        rotation=_rotation(config, positions, where),
        positions=positions,
        windows=_windows(config, str(family), model.layers, where),
        padding=_padding(config, model.vocabulary),
    )


def _padding(config: Mapping[str, Any], vocabulary: int) -> int | None:
    token = config.get("pad_token_id")
    return token % vocabulary if isinstance(token, int) and -vocabulary <= token < vocabulary else None


def _rotation(config: Mapping[str, Any], positions: int, where: str) -> Rotation:
    said = _rope(config)
    if not isinstance(said, Mapping):
        raise BadInput(f"{where}: rope_parameters is {said!r}, not a table", hint=_COPY_AGAIN)
    kind = _rope_kind(said)
    factor = _number(said, "factor", 1.0, where)
    attention = 1.0
    if kind == "yarn":
        default = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        attention = _number(said, "attention_factor", default, where)
    theta = said.get("rope_theta") or config.get("rope_theta") or _THETA
    return Rotation(
        theta=_number({"rope_theta": theta}, "rope_theta", _THETA, where),
        kind=str(kind),
        factor=factor,
        low=_number(said, "low_freq_factor", 1.0, where),
        high=_number(said, "high_freq_factor", 4.0, where),
        original=_whole(said, "original_max_position_embeddings", positions, where),
        fast=_number(said, "beta_fast", 32.0, where),
        slow=_number(said, "beta_slow", 1.0, where),
        attention=attention,
        truncates=said.get("truncate", True) is True,
    )


def _windows(config: Mapping[str, Any], family: str, layers: int, where: str) -> tuple[int, ...]:
    """Return the attention window of each layer. By default only Mistral's windows are on."""
    usual = 4096 if family == "mistral" and "sliding_window" not in config else 0
    width = _whole(config, "sliding_window", usual, where, least=0) if config.get("sliding_window") else usual
    if family == "llama" or (family.startswith("qwen") and not config.get("use_sliding_window")):
        width = 0
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return tuple(width if kind == "sliding_attention" else 0 for kind in kinds)
    first = _whole(config, "max_window_layers", 0, where, least=0) if family.startswith("qwen") else 0
    return tuple(width if layer >= first else 0 for layer in range(layers))


def _number(table: Mapping[str, Any], name: str, default: float, where: str) -> float:
    value = table.get(name)
    if value is None:
        return default
    # A JSON integer may be larger than any float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise BadInput(f"{where}: {name} is {value!r}, not a number above 0", hint=_COPY_AGAIN)
    return float(value)


def _whole(table: Mapping[str, Any], name: str, default: int, where: str, *, least: int = 1) -> int:
    value = table.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise BadInput(f"{where}: {name} is {value!r}, not a whole number from {least} to {_MOST:,}", hint=_COPY_AGAIN)
    return value
