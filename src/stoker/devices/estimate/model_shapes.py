"""From a config.json to a shape: one reader per family, with transformers' defaults for missing fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from stoker.core.digests import Digest, digest_value
from stoker.core.errors import BadInput, Diagnostic, InvalidInput
from stoker.core.frozen import frozen
from stoker.core.text import did_you_mean

# The shape of a language model: width, depth, matrices, so that its parameters can be counted exactly.


class Norm(StrEnum):
    """How rows are normalised."""

    RMS = "rms"
    """By their root mean square, in 32 bits, then scaled."""
    RMS_FLOAT = "rms_float"
    """The same, scaled in 32 bits too."""
    LAYER = "layer"
    """By mean and variance, in one kernel."""


class Wiring(StrEnum):
    """How a block is put together."""

    SEPARATE = "separate"
    """Queries, keys, values, gate and up from matrices of their own (Llama and its many relatives)."""
    FUSED = "fused"
    """One matrix for queries, keys and values, one for gate and up (Phi-3)."""
    PLAIN = "plain"
    """One matrix for queries, keys and values, no gate, learned positions (GPT-2)."""
    PARALLEL = "parallel"
    """One matrix for queries, keys and values, no gate, attention beside the rest (GPT-NeoX)."""


@frozen
class Linear:
    """One matrix of a block."""

    name: str
    inputs: int
    outputs: int
    has_bias: bool = False

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs + self.outputs * self.has_bias


@frozen
class ModelShape:
    """A decoder of equal blocks over a vocabulary."""

    family: str
    wiring: Wiring
    norm: Norm
    activation: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    """Inner width of a block's second half."""
    vocabulary: int
    is_tied: bool
    """The output matrix is the embedding."""
    linears: tuple[Linear, ...]
    """The matrices of one block, in the order in which they are made."""
    positions: int = 0
    """Learned positions; none if they are computed."""
    rotary_dim: int = 0
    """Rotated part of each head."""
    has_head_norms: bool = False
    """Queries and keys are normalised, head by head."""
    is_sequential: bool = True
    """A block's second half reads the output of its first half."""
    residual_dropout: float = 0.0
    attention_dropout: float = 0.0
    embedding_dropout: float = 0.0
    holds_scores: bool = False
    """Attention holds all its scores: no kernel of torch's computes it."""
    counted: int = 0
    """Number of parameters, if they were counted in the weights: of a family whose blocks are not known here."""

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over a whole row."""
        return self.hidden * (2 if self.norm is Norm.LAYER else 1)

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """Number of parameters; a tied matrix counts once."""
        return self.counted or sum(self.all_parameters())

    def all_parameters(self) -> Iterator[int]:
        """Return the size of every weight tensor, in the order in which they are made."""
        yield self.vocabulary * self.hidden
        if self.positions:
            yield self.positions * self.hidden
        for _ in range(self.layers):
            for linear in self.linears:
                yield linear.inputs * linear.outputs
                if linear.has_bias:
                    yield linear.outputs
            yield from self.small_parameters()
        yield self.norm_parameters
        if not self.is_tied:
            yield self.vocabulary * self.hidden

    def small_parameters(self) -> Iterator[int]:
        """Return the sizes of one block's norms."""
        yield from (self.norm_parameters, self.norm_parameters)
        if self.has_head_norms:
            yield from (self.head_dim, self.head_dim)

    @property
    def digest(self) -> Digest:
        """Return the name under which measured peaks of the shape are kept."""
        fields = [
            self.family, self.hidden, self.layers, self.heads, self.kv_heads, self.head_dim, self.inner,
            self.vocabulary, self.is_tied, self.positions, self.activation, self.rotary_dim, self.is_sequential,
            [[one.name, one.inputs, one.outputs, one.has_bias] for one in self.linears],
            [self.residual_dropout, self.attention_dropout, self.embedding_dropout],
        ]  # fmt: skip
        return digest_value("model-shape", fields)


_MOST = 10**8
_MOST_LAYERS = 1000


class _Fields:
    """The fields of one config.json, with every fault noted."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._where = where
        self.faults: list[Diagnostic] = []

    def whole(self, *names: str, default: int | None, most: int = _MOST) -> int:
        """Read a count: the first of these names that is present."""
        value = self._first(names, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            self._note(names[0], f"{value!r} is not a whole number from 1 to {most:,}")
            return 1
        return value

    def share(self, name: str, *, default: float) -> float:
        value = self._first((name,), default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            self._note(name, f"{value!r} is not a number from 0 to 1")
            return default
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._first((name,), default)
        if not isinstance(value, bool):
            self._note(name, f"{value!r} is neither true nor false")
            return default
        return value

    def word(self, *names: str, default: str) -> str:
        value = self._first(names, default)
        if not isinstance(value, str):
            self._note(names[0], f"{value!r} is not a name")
            return default
        return value

    def divides(self, small: int, large: int, what: str) -> None:
        if large % small:
            self.faults.append(Diagnostic(self._where, f"{what}: {large} is not a multiple of {small}"))

    def rotary_share(self, default: float) -> float:
        """Read the rotated part of a head, wherever this version of transformers keeps it."""
        rope = self._config.get("rope_parameters")
        nested = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
        named = next(
            (self._config[name] for name in ("partial_rotary_factor", "rotary_pct") if name in self._config), None
        )
        value = nested if nested is not None else named if named is not None else default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            self._note("partial_rotary_factor", f"{value!r} is not a share above 0")
            return default
        return float(value)

    def _first(self, names: tuple[str, ...], default: object) -> Any:
        return next((self._config[name] for name in names if self._config.get(name) is not None), default)

    def _note(self, name: str, message: str) -> None:
        self.faults.append(Diagnostic(f"{self._where}: {name}", message))


def read_shape(config: Mapping[str, Any], *, where: str = "config.json") -> ModelShape:
    """Read a model's shape; all faults at once."""
    family = config.get("model_type")
    reader = _FAMILIES.get(family) if isinstance(family, str) else None
    if reader is None:
        known = ", ".join(sorted(_FAMILIES))
        near = did_you_mean(family, _FAMILIES) if isinstance(family, str) else ""
        problem = f"no family of models that is known here: {family!r}" if family else "it has no model_type"
        raise BadInput(f"{where}: {problem}", hint=f"{near} known: {known}".strip())
    fields = _Fields(config, where)
    shape = reader(fields, str(family))
    if fields.faults:
        count = len(fields.faults)
        message = str(fields.faults[0]) if count == 1 else f"{where} is not a model configuration: {count} errors"
        raise InvalidInput(message, faults=tuple(fields.faults))
    return shape


def families() -> list[str]:
    """Return the names of the supported families."""
    return sorted(_FAMILIES)


@frozen
class _Usual:
    """A family's defaults for fields missing in its config.json."""

    hidden: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int | None = None
    head_dim: int | None = None
    inner: int = 11008
    vocabulary: int = 32000
    is_tied: bool = False
    norm: Norm = Norm.RMS
    activation: str = "silu"
    has_qkv_bias: bool = False
    may_have_bias: bool = True
    """Its config.json may have `attention_bias`."""
    has_head_norms: bool = False


def _separate(fields: _Fields, family: str) -> ModelShape:
    usual = _SEPARATE[family]
    hidden = fields.whole("hidden_size", default=usual.hidden)
    heads = fields.whole("num_attention_heads", default=usual.heads)
    kv_heads = fields.whole("num_key_value_heads", default=usual.kv_heads or heads)
    head_dim = fields.whole("head_dim", default=usual.head_dim or max(1, hidden // heads))
    inner = fields.whole("intermediate_size", default=usual.inner)
    fields.divides(kv_heads, heads, "num_attention_heads over num_key_value_heads")
    out = usual.may_have_bias and fields.flag("attention_bias", default=False)
    qkv = usual.has_qkv_bias or out
    mlp = family == "llama" and fields.flag("mlp_bias", default=False)
    return ModelShape(
        family=family,
        wiring=Wiring.SEPARATE,
        norm=usual.norm,
        activation=fields.word("hidden_activation", "hidden_act", default=usual.activation),
        hidden=hidden,
        layers=fields.whole("num_hidden_layers", default=usual.layers, most=_MOST_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        inner=inner,
        vocabulary=fields.whole("vocab_size", default=usual.vocabulary),
        is_tied=fields.flag("tie_word_embeddings", default=usual.is_tied),
        rotary_dim=head_dim,
        has_head_norms=usual.has_head_norms,
        attention_dropout=fields.share("attention_dropout", default=0.0),
        linears=(
            Linear(name="q_proj", inputs=hidden, outputs=heads * head_dim, has_bias=qkv),
            Linear(name="k_proj", inputs=hidden, outputs=kv_heads * head_dim, has_bias=qkv),
            Linear(name="v_proj", inputs=hidden, outputs=kv_heads * head_dim, has_bias=qkv),
            Linear(name="o_proj", inputs=heads * head_dim, outputs=hidden, has_bias=out),
            Linear(name="gate_proj", inputs=hidden, outputs=inner, has_bias=mlp),
            Linear(name="up_proj", inputs=hidden, outputs=inner, has_bias=mlp),
            Linear(name="down_proj", inputs=inner, outputs=hidden, has_bias=mlp),
        ),
    )


def _phi3(fields: _Fields, family: str) -> ModelShape:
    hidden = fields.whole("hidden_size", default=3072)
    heads = fields.whole("num_attention_heads", default=32)
    kv_heads = fields.whole("num_key_value_heads", default=heads)
    head_dim = fields.whole("head_dim", default=max(1, hidden // heads))
    inner = fields.whole("intermediate_size", default=8192)
    fields.divides(kv_heads, heads, "num_attention_heads over num_key_value_heads")
    return ModelShape(
        family=family,
        wiring=Wiring.FUSED,
        norm=Norm.RMS,
        activation=fields.word("hidden_act", default="silu"),
        hidden=hidden,
        layers=fields.whole("num_hidden_layers", default=32, most=_MOST_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        inner=inner,
        vocabulary=fields.whole("vocab_size", default=32064),
        is_tied=fields.flag("tie_word_embeddings", default=False),
        rotary_dim=int(head_dim * fields.rotary_share(1.0)),
        residual_dropout=fields.share("resid_pdrop", default=0.0),
        attention_dropout=fields.share("attention_dropout", default=0.0),
        linears=(
            Linear(name="o_proj", inputs=heads * head_dim, outputs=hidden),
            Linear(name="qkv_proj", inputs=hidden, outputs=(heads + 2 * kv_heads) * head_dim),
            Linear(name="gate_up_proj", inputs=hidden, outputs=2 * inner),
            Linear(name="down_proj", inputs=inner, outputs=hidden),
        ),
    )


def _gpt2(fields: _Fields, family: str) -> ModelShape:
    hidden = fields.whole("n_embd", "hidden_size", default=768)
    heads = fields.whole("n_head", "num_attention_heads", default=12)
    inner = fields.whole("n_inner", default=4 * hidden)
    fields.divides(heads, hidden, "n_embd over n_head")
    return ModelShape(
        family=family,
        wiring=Wiring.PLAIN,
        norm=Norm.LAYER,
        activation=fields.word("activation_function", default="gelu_new"),
        hidden=hidden,
        layers=fields.whole("n_layer", "num_hidden_layers", default=12, most=_MOST_LAYERS),
        heads=heads,
        kv_heads=heads,
        head_dim=max(1, hidden // heads),
        inner=inner,
        vocabulary=fields.whole("vocab_size", default=50257),
        is_tied=fields.flag("tie_word_embeddings", default=True),
        positions=fields.whole("n_positions", "max_position_embeddings", default=1024),
        residual_dropout=fields.share("resid_pdrop", default=0.1),
        attention_dropout=fields.share("attn_pdrop", default=0.1),
        embedding_dropout=fields.share("embd_pdrop", default=0.1),
        linears=(
            Linear(name="c_attn", inputs=hidden, outputs=3 * hidden, has_bias=True),
            Linear(name="c_proj", inputs=hidden, outputs=hidden, has_bias=True),
            Linear(name="c_fc", inputs=hidden, outputs=inner, has_bias=True),
            Linear(name="c_proj_mlp", inputs=inner, outputs=hidden, has_bias=True),
        ),
    )


def _gpt_neox(fields: _Fields, family: str) -> ModelShape:
    hidden = fields.whole("hidden_size", default=6144)
    heads = fields.whole("num_attention_heads", default=64)
    inner = fields.whole("intermediate_size", default=24576)
    bias = fields.flag("attention_bias", default=True)
    fields.divides(heads, hidden, "hidden_size over num_attention_heads")
    head_dim = max(1, hidden // heads)
    return ModelShape(
        family=family,
        wiring=Wiring.PARALLEL,
        norm=Norm.LAYER,
        activation=fields.word("hidden_act", default="gelu"),
        hidden=hidden,
        layers=fields.whole("num_hidden_layers", default=44, most=_MOST_LAYERS),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        inner=inner,
        vocabulary=fields.whole("vocab_size", default=50432),
        is_tied=fields.flag("tie_word_embeddings", default=False),
        rotary_dim=int(head_dim * fields.rotary_share(0.25)),
        is_sequential=not fields.flag("use_parallel_residual", default=True),
        residual_dropout=fields.share("hidden_dropout", default=0.0),
        attention_dropout=fields.share("attention_dropout", default=0.0),
        linears=(
            Linear(name="query_key_value", inputs=hidden, outputs=3 * hidden, has_bias=bias),
            Linear(name="dense", inputs=hidden, outputs=hidden, has_bias=bias),
            Linear(name="dense_h_to_4h", inputs=hidden, outputs=inner, has_bias=True),
            Linear(name="dense_4h_to_h", inputs=inner, outputs=hidden, has_bias=True),
        ),
    )


_SEPARATE = {
    "llama": _Usual(),
    "mistral": _Usual(kv_heads=8, inner=14336, may_have_bias=False),
    "qwen2": _Usual(kv_heads=32, inner=22016, vocabulary=151936, has_qkv_bias=True, may_have_bias=False),
    "qwen3": _Usual(kv_heads=32, head_dim=128, inner=22016, vocabulary=151936, has_head_norms=True),
    "gemma": _Usual(
        hidden=3072, layers=28, heads=16, kv_heads=16, head_dim=256, inner=24576, vocabulary=256000, is_tied=True,
        norm=Norm.RMS_FLOAT, activation="gelu_pytorch_tanh",
    ),
}  # fmt: skip

_FAMILIES: dict[str, Callable[[_Fields, str], ModelShape]] = {
    **dict.fromkeys(_SEPARATE, _separate),
    "phi3": _phi3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}
