"""A training as its memory sees it: what is trained, in which widths, how much at a time."""

from __future__ import annotations

from enum import StrEnum

from stoker.hardware.estimate.shape import ModelShape
from stoker.model.frozen import fields_of, frozen

ALL_LINEAR = "all-linear"
ATTENTION = "attention"
MLP = "mlp"
OF_ADAPTERS = frozenset({"rank", "targets", "dropout", "adapter_dtype"})
"""What only adapters have."""


class Method(StrEnum):
    """What is trained."""

    LORA = "lora"
    """Small adapters beside frozen weights, as peft does."""
    FULL = "full"
    """Every weight."""


class Width(StrEnum):
    """How numbers are kept."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def bytes(self) -> int:
        return 4 if self is Width.FP32 else 2


class Optimiser(StrEnum):
    """What updates the weights."""

    ADAMW = "adamw"
    """torch's default: two states a parameter, and a third of their size while it steps."""
    ADAMW_FUSED = "adamw-fused"
    ADAMW_8BIT = "adamw-8bit"
    """Two states of one byte a parameter. By formula; nobody has measured it here."""
    SGD = "sgd"
    SGD_MOMENTUM = "sgd-momentum"


class Attention(StrEnum):
    """How scores are computed."""

    SDPA = "sdpa"
    """torch's own, which never holds them."""
    FLASH = "flash_attention_2"
    EAGER = "eager"
    """All of them at once."""


@frozen
class Training:
    """How a model is trained."""

    shape: ModelShape
    method: Method = Method.LORA
    rank: int = 16
    targets: tuple[str, ...] = (ALL_LINEAR,)
    """Names of matrices that get an adapter, or `all-linear`, `attention`, `mlp`."""
    dropout: float = 0.0
    """Of the adapters."""
    adapter_dtype: Width = Width.FP32
    batch: int = 1
    """Sequences at a time on one device."""
    sequence: int = 1024
    """Tokens of each."""
    dtype: Width = Width.BF16
    """Of the weights."""
    autocast: Width | None = None
    """What products are computed in, where it is not the weights' own."""
    optimiser: Optimiser = Optimiser.ADAMW
    checkpointing: bool = False
    """Blocks are computed again for the backward pass instead of kept."""
    attention: Attention = Attention.SDPA
    padded: bool = False
    """Sequences of a batch are of different lengths, so that a mask is needed."""
    accumulation: int = 1
    """Backward passes for each step of the optimiser."""
    keeps_outputs: bool = True
    """The program still holds the model's outputs, logits included, while it runs backward."""
    loss_chunk: int = 0
    """Tokens whose logits are there at a time; none: of all tokens."""
    expandable_segments: bool = False
    """PYTORCH_CUDA_ALLOC_CONF says so."""

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    @property
    def is_lora(self) -> bool:
        return self.method is Method.LORA

    @property
    def trained_width(self) -> Width:
        """How the trained weights are kept."""
        return self.adapter_dtype if self.is_lora else self.dtype

    @property
    def exact_kind(self) -> str:
        """Say nothing: runs of any size correct each other."""
        return ""

    @property
    def kind(self) -> str:
        """Name everything but how much at a time: trainings of one kind are wrong by the same factor, nearly."""
        left_out = {"shape", "batch", "sequence"} | (set() if self.is_lora else OF_ADAPTERS)
        told = {name: value for name, value in fields_of(self).items() if name not in left_out}
        return " ".join(f"{name}={_told(value)}" for name, value in told.items())


def _told(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool | None) else str(value)
