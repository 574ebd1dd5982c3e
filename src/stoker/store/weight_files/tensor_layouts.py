"""Where the tensors of a Hugging Face checkpoint are in a GGUF file: their names there, and how their rows are ordered.

A matrix has one row for each output in GGUF. GPT-2's checkpoints hold most matrices transposed. For models of the
architecture `llama`, GGUF pairs neighbouring rows of a head for rope, where checkpoints pair the halves of the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from stoker.core.frozen import frozen

Architecture = Literal["llama", "qwen2", "qwen3", "gpt2"]
ARCHITECTURES: Final = ("llama", "qwen2", "gpt2")
"""Those of fixtures and comparisons."""


@frozen
class TensorLayout:
    """One tensor in both formats."""

    name: str
    """In a Hugging Face checkpoint."""
    gguf: str
    is_transposed: bool = False
    heads: int = 0
    """Not 0: the rows of each of so many heads are interleaved in GGUF."""


def tensor_layouts(arch: Architecture, *, layers: int, heads: int, kv_heads: int) -> tuple[TensorLayout, ...]:
    """Return all tensors of a model whose head is a matrix of its own, in the order of the computation."""
    found = _gpt2(layers) if arch == "gpt2" else _llama(arch, layers, heads, kv_heads)
    return tuple(found)


def interleaved(row: int, rows: int, heads: int) -> int:
    """Return which row of a checkpoint is this row of a GGUF file, for a matrix with so many rows and heads."""
    size = rows // heads
    head, place = divmod(row, size)
    return head * size + place % 2 * (size // 2) + place // 2


def _llama(arch: Architecture, layers: int, heads: int, kv_heads: int) -> Iterator[TensorLayout]:
    is_interleaved = arch == "llama"
    yield TensorLayout(name="model.embed_tokens.weight", gguf="token_embd.weight")
    for layer in range(layers):
        at, to = f"model.layers.{layer}", f"blk.{layer}"
        yield TensorLayout(name=f"{at}.input_layernorm.weight", gguf=f"{to}.attn_norm.weight")
        for letter, count in (("q", heads), ("k", kv_heads), ("v", 0)):
            parts = ("weight", "bias") if arch == "qwen2" else ("weight",)
            for part in parts:
                name = f"{at}.self_attn.{letter}_proj.{part}"
                yield TensorLayout(name=name, gguf=f"{to}.attn_{letter}.{part}", heads=count if is_interleaved else 0)
        for letter in ("q", "k") if arch == "qwen3" else ():
            yield TensorLayout(name=f"{at}.self_attn.{letter}_norm.weight", gguf=f"{to}.attn_{letter}_norm.weight")
        yield TensorLayout(name=f"{at}.self_attn.o_proj.weight", gguf=f"{to}.attn_output.weight")
        yield TensorLayout(name=f"{at}.post_attention_layernorm.weight", gguf=f"{to}.ffn_norm.weight")
        for word in ("gate", "up", "down"):
            yield TensorLayout(name=f"{at}.mlp.{word}_proj.weight", gguf=f"{to}.ffn_{word}.weight")
    yield TensorLayout(name="model.norm.weight", gguf="output_norm.weight")
    yield TensorLayout(name="lm_head.weight", gguf="output.weight")


def _gpt2(layers: int) -> Iterator[TensorLayout]:
    yield TensorLayout(name="transformer.wte.weight", gguf="token_embd.weight")
    yield TensorLayout(name="transformer.wpe.weight", gguf="position_embd.weight")
    words = (
        ("ln_1", "attn_norm"), ("attn.c_attn", "attn_qkv"), ("attn.c_proj", "attn_output"), ("ln_2", "ffn_norm"),
        ("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down"),
    )  # fmt: skip
    for layer in range(layers):
        for word, gguf in words:
            for part in ("weight", "bias"):
                name = f"transformer.h.{layer}.{word}.{part}"
                is_transposed = part == "weight" and ".c_" in name
                yield TensorLayout(name=name, gguf=f"blk.{layer}.{gguf}.{part}", is_transposed=is_transposed)
    for part in ("weight", "bias"):
        yield TensorLayout(name=f"transformer.ln_f.{part}", gguf=f"output_norm.{part}")
    yield TensorLayout(name="lm_head.weight", gguf="output.weight")
