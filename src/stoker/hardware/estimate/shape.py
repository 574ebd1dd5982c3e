"""The shape of a language model: how wide, how deep, which matrices, so that its parameters can be counted exactly.

Only nouns and sums; `families` reads them from a config.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from stoker.model.digests import Digest, digest_value
from stoker.model.frozen import frozen


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
    """How wide a block's second half is inside."""
    vocabulary: int
    is_tied: bool
    """The output matrix is the embedding."""
    linears: tuple[Linear, ...]
    """The matrices of one block, in the order in which they are made."""
    positions: int = 0
    """Learned positions; none where they are computed."""
    rotary_dim: int = 0
    """How much of each head is rotated by position."""
    has_head_norms: bool = False
    """Queries and keys are normalised, head by head."""
    is_sequential: bool = True
    """A block's second half reads what its first half gave."""
    residual_dropout: float = 0.0
    attention_dropout: float = 0.0
    embedding_dropout: float = 0.0

    @property
    def norm_parameters(self) -> int:
        """What one norm over a whole row has."""
        return self.hidden * (2 if self.norm is Norm.LAYER else 1)

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """How many numbers the model has; a tied matrix counts once."""
        return sum(self.all_parameters())

    def all_parameters(self) -> Iterator[int]:
        """Give the size of every weight tensor, in the order in which they are made."""
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
        """Give the sizes of one block's norms."""
        yield from (self.norm_parameters, self.norm_parameters)
        if self.has_head_norms:
            yield from (self.head_dim, self.head_dim)

    @property
    def digest(self) -> Digest:
        """Name the shape: what its measured peaks are kept under."""
        told = [
            self.family, self.hidden, self.layers, self.heads, self.kv_heads, self.head_dim, self.inner,
            self.vocabulary, self.is_tied, self.positions, self.activation, self.rotary_dim, self.is_sequential,
            [[one.name, one.inputs, one.outputs, one.has_bias] for one in self.linears],
            [self.residual_dropout, self.attention_dropout, self.embedding_dropout],
        ]  # fmt: skip
        return digest_value("model-shape", told)
