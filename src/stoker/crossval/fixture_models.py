"""Fixture models: small language models that are the same on every machine, for comparing runtimes.

Weights come from SHAKE-256 of the tensor's name and from integers, so they depend on no library's generator. Each is
`2^e × s × (2q − 15)` with `s` of a group of 32 and `q` of four bits: exact in F32, F16, BF16, Q8_0 and Q4_K. Files in
all these formats hold one model, and whatever two runtimes disagree on is not the rounding of weights.

Weights are spread so that faults show. Attention is sharp, logits have a standard deviation of 3, and every eighth row
of the embedding is so small that the norm's epsilon counts. With the usual initialisation, exchanged heads would pass.
"""

from __future__ import annotations

import hashlib
from math import sqrt
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from stoker.core.frozen import changed, frozen
from stoker.crossval.fixture_tokenizer import BEGIN, END
from stoker.store.weight_files.tensor_layouts import Architecture, TensorLayout, tensor_layouts

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Exponents = np.ndarray[Any, np.dtype[np.int8]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]

SizeName = Literal["tiny", "small", "medium"]
SIZES: Final[tuple[str, ...]] = get_args(SizeName)
GROUP: Final = 32
"""Neighbouring values of a row that have one scale."""

_GENERATOR = "stoker fixture 1"
"""Changes when a change of this module changes weights."""
_EPSILON = 1e-5
# Not the default of runtimes, so that one that ignores it is noticed.
_ROPE_BASE = 50_000.0
_SMALL_ROWS, _SMALL_EXPONENT = 8, -7


@frozen
class FixtureSpec:
    """Which fixture."""

    size: SizeName = "small"
    arch: Architecture = "llama"
    seed: int = 0


@frozen
class FixtureShape:
    """The dimensions of a fixture."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    positions: int
    epsilon: float = _EPSILON
    rope_base: float = _ROPE_BASE

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


_SHAPES: Final = {
    "tiny": FixtureShape(vocabulary=100, hidden=64, layers=2, heads=4, kv_heads=2, inner=128, positions=128),
    "small": FixtureShape(vocabulary=1000, hidden=128, layers=4, heads=4, kv_heads=2, inner=256, positions=256),
    "medium": FixtureShape(vocabulary=10_000, hidden=256, layers=8, heads=8, kv_heads=4, inner=512, positions=512),
}


@frozen
class FixtureTensor:
    """One tensor of a fixture, with a row for each output; a vector has one row."""

    layout: TensorLayout
    rows: int
    columns: int
    spread: float
    """The standard deviation of a matrix; of a vector, the largest distance from its centre."""
    centre: float = 0.0
    is_vector: bool = False

    @property
    def count(self) -> int:
        return self.rows * self.columns


@frozen
class MatrixParts:
    """The values of a matrix in integers: `2^exponents × scales × (2 × nibbles − 15)`."""

    nibbles: Bytes
    """A row for each output."""
    scales: Bytes
    """1 to 8, for each group of a row."""
    exponents: Exponents
    """Of each row."""

    def multipliers(self) -> np.ndarray[Any, np.dtype[np.int8]]:
        """Return `scales × (2 × nibbles − 15)`: odd multiples, at most 120."""
        import numpy as np

        signed = 2 * self.nibbles.astype(np.int8) - 15
        return signed * np.repeat(self.scales, GROUP, axis=1).astype(np.int8)

    def floats(self) -> Floats:
        """Return the values."""
        import numpy as np

        units = np.ldexp(np.float32(1), self.exponents.astype(np.int32)).astype(np.float32)
        return self.multipliers().astype(np.float32) * units[:, None]

    def reordered(self, order: list[int]) -> MatrixParts:
        """Return these rows in that order."""
        return MatrixParts(nibbles=self.nibbles[order], scales=self.scales[order], exponents=self.exponents[order])


def shape_of(spec: FixtureSpec) -> FixtureShape:
    """Return the dimensions of a fixture."""
    shape = _SHAPES[spec.size]
    # GPT-2 has a key and a value for each head.
    return changed(shape, kv_heads=shape.heads) if spec.arch == "gpt2" else shape


def tensors_of(spec: FixtureSpec) -> tuple[FixtureTensor, ...]:
    """Return the tensors of a fixture, in the order of the computation."""
    shape = shape_of(spec)
    layouts = tensor_layouts(spec.arch, layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads)
    return tuple(_tensor(shape, layout) for layout in layouts)


def matrix_parts(spec: FixtureSpec, tensor: FixtureTensor) -> MatrixParts:
    """Return the values of a matrix."""
    import numpy as np

    exponent, least, most = _grid(tensor.spread)
    groups = tensor.count // GROUP
    drawn = _drawn(spec, tensor, groups + tensor.count // 2)
    scales = least + drawn[:groups] % (most - least + 1)
    pairs = drawn[groups:]
    nibbles = np.stack((pairs & 15, pairs >> 4), axis=1)
    exponents = np.full(tensor.rows, exponent, np.int8)
    if tensor.layout.gguf == "token_embd.weight":
        exponents[_SMALL_ROWS - 1 :: _SMALL_ROWS] += _SMALL_EXPONENT
    return MatrixParts(
        nibbles=nibbles.reshape(tensor.rows, tensor.columns),
        scales=scales.reshape(tensor.rows, tensor.columns // GROUP),
        exponents=exponents,
    )


def vector(spec: FixtureSpec, tensor: FixtureTensor) -> Floats:
    """Return the values of a vector: multiples of 1/128 around its centre, at most 2."""
    import numpy as np

    reach = round(tensor.spread * 128)
    drawn = _drawn(spec, tensor, tensor.count).astype(np.int16) % (2 * reach + 1) - reach
    return ((drawn + round(tensor.centre * 128)) / 128).astype(np.float32)


def config_json(spec: FixtureSpec) -> dict[str, Any]:
    """Return what `config.json` holds."""
    shape = shape_of(spec)
    config = _gpt2_config(shape) if spec.arch == "gpt2" else _llama_config(spec.arch, shape)
    return {
        **config,
        "model_type": spec.arch,
        "vocab_size": shape.vocabulary,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
    }


def _llama_config(arch: Architecture, shape: FixtureShape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM" if arch == "qwen2" else "LlamaForCausalLM"],
        "attention_dropout": 0.0,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "max_position_embeddings": shape.positions,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.epsilon,
        "rope_theta": shape.rope_base,
        **({"use_sliding_window": False} if arch == "qwen2" else {"attention_bias": False, "mlp_bias": False}),
    }


def _gpt2_config(shape: FixtureShape) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new",
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "layer_norm_epsilon": shape.epsilon,
        "n_embd": shape.hidden,
        "n_head": shape.heads,
        "n_inner": shape.inner,
        "n_layer": shape.layers,
        "n_positions": shape.positions,
        "resid_pdrop": 0.0,
        "scale_attn_weights": True,
    }


# Of each matrix, its standard deviation times the square root of its inputs.
_GAINS: Final = {
    "attn_q": 1.6, "attn_k": 1.6, "attn_v": 1.0, "attn_qkv": 1.4, "attn_output": 1.0,
    "ffn_gate": 1.5, "ffn_up": 1.0, "ffn_down": 1.0, "output": 3.0,
}  # fmt: skip
# Of tables that are looked up, the standard deviation.
_SPREADS: Final = {"token_embd": 1.0, "position_embd": 0.5}
_NORM_REACH = 0.25
_BIAS_REACH = 0.75


def _tensor(shape: FixtureShape, layout: TensorLayout) -> FixtureTensor:
    word, part = layout.gguf.rsplit(".", 2)[-2:]
    rows, columns = _sides(word, shape)
    if part == "bias" or word.endswith("norm"):
        is_gain = part == "weight"
        reach, centre = (_NORM_REACH, 1.0) if is_gain else (_BIAS_REACH, 0.0)
        return FixtureTensor(layout=layout, rows=1, columns=rows, spread=reach, centre=centre, is_vector=True)
    spread = _SPREADS.get(word) or _GAINS[word] / sqrt(columns)
    return FixtureTensor(layout=layout, rows=rows, columns=columns, spread=spread)


def _sides(word: str, shape: FixtureShape) -> tuple[int, int]:
    """Return rows and columns of a matrix; a bias has as many values as the matrix has rows, a norm `hidden`."""
    hidden, inner, kv = shape.hidden, shape.inner, shape.kv_heads * shape.head_dim
    return {
        "token_embd": (shape.vocabulary, hidden), "position_embd": (shape.positions, hidden),
        "output": (shape.vocabulary, hidden), "attn_q": (hidden, hidden), "attn_k": (kv, hidden),
        "attn_v": (kv, hidden), "attn_qkv": (3 * hidden, hidden), "attn_output": (hidden, hidden),
        "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
    }.get(word, (hidden, hidden))  # fmt: skip


def _grid(spread: float) -> tuple[int, int, int]:
    """Return the exponent, and the least and the largest scale, whose values have the nearest standard deviation."""
    deviation = sqrt(85.0)
    found = []
    for least, most in ((4, 8), (4, 7), (4, 6), (3, 6), (3, 5), (2, 5), (2, 4)):
        scales = range(least, most + 1)
        each = deviation * sqrt(sum(scale * scale for scale in scales) / len(scales))
        for exponent in range(-12, 1):
            ratio = each * 2.0**exponent / spread
            found.append((max(ratio, 1 / ratio), exponent, least, most))
    return min(found)[1:]


def _drawn(spec: FixtureSpec, tensor: FixtureTensor, count: int) -> Bytes:
    import numpy as np

    word = f"{_GENERATOR}/{spec.arch}/{spec.size}/{spec.seed}/{tensor.layout.gguf}"
    return np.frombuffer(hashlib.shake_256(word.encode()).digest(count), np.uint8)
