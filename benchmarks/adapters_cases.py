"""What benchmarks of adapters have in common: the base's shape, the sizes asked, and what a token costs by count."""

from __future__ import annotations

from typing import Any

MODEL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "intermediate_size": 5632,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
"""A Llama of 1.1 G parameters; its weights are random."""
TINY: dict[str, Any] = {
    **MODEL,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "vocab_size": 512,
}
"""The same in small, to try the scripts where there is no GPU."""
SHAPES: dict[str, dict[str, Any]] = {
    "llama-1.1g": MODEL,
    "llama-8g": {
        **MODEL,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    },
    "qwen2-1.5g": {
        **MODEL,
        "model_type": "qwen2",
        "hidden_size": 1536,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "intermediate_size": 8960,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
    "qwen3-0.6g": {
        **MODEL,
        "model_type": "qwen3",
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
    },
}
"""Their weights are random too."""
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK = 16
SEQUENCE = 512
SIZES = (512, 2048, 8192)
"""Tokens of one adapter in one step: 1, 4 and 16 sequences of 512."""
MEMORY_SIZE = 1024
MEMBERS = 8


def linear_parameters(shape: dict[str, Any]) -> int:
    """Weights that every token is multiplied with: all linears of the blocks, and the head."""
    hidden, ffn = shape["hidden_size"], shape["intermediate_size"]
    queries, keys = _widths(shape)
    block = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * ffn
    return int(shape["num_hidden_layers"] * block + hidden * shape["vocab_size"])


def adapter_parameters(shape: dict[str, Any], rank: int = RANK) -> int:
    """Weights of one adapter on all seven linears."""
    hidden, ffn = shape["hidden_size"], shape["intermediate_size"]
    queries, keys = _widths(shape)
    ports = 2 * (hidden + queries) + 2 * (hidden + keys) + 3 * (hidden + ffn)
    return int(shape["num_hidden_layers"] * rank * ports)


def frozen_flop_per_token(shape: dict[str, Any]) -> int:
    """Forward, and backward to the inputs alone: the weights are frozen. Attention and adapters are not counted."""
    return 4 * linear_parameters(shape)


def flop_per_token(shape: dict[str, Any], *, rank: int = RANK, sequence: int = SEQUENCE) -> int:
    """The same with causal attention (forward, and twice that backward) and the adapter (all three products)."""
    attention = 3 * 2 * sequence * _widths(shape)[0] * shape["num_hidden_layers"]
    return frozen_flop_per_token(shape) + attention + 6 * adapter_parameters(shape, rank)


def _widths(shape: dict[str, Any]) -> tuple[int, int]:
    """Return the outputs of the queries, and of the keys."""
    head_dim = shape.get("head_dim", shape["hidden_size"] // shape["num_attention_heads"])
    return head_dim * shape["num_attention_heads"], head_dim * shape["num_key_value_heads"]
