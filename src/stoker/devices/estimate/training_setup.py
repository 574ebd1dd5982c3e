"""From options such as `batch=8` to a training: every fault at once, each with what would be right."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from stoker.core.errors import Diagnostic, InvalidArgs
from stoker.core.frozen import fields_of, frozen
from stoker.core.text import did_you_mean
from stoker.devices.estimate.model_shapes import Linear, ModelShape

# A training as far as memory is concerned: what is trained, in which widths, how much at a time.

ALL_LINEAR = "all-linear"
ATTENTION = "attention"
MLP = "mlp"
OF_ADAPTERS = frozenset({"rank", "targets", "dropout", "adapter_dtype"})
"""Options of adapters only."""


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
    """torch's default: two states per parameter, and a third of their size while it steps."""
    ADAMW_FUSED = "adamw-fused"
    ADAMW_8BIT = "adamw-8bit"
    """Two states of one byte per parameter. By formula, not measured."""
    ADAFACTOR = "adafactor"
    """Sums over rows and columns of each matrix; one weight after the other. By formula, not measured."""
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
class TrainingSpec:
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
    """The width of products, if it is not the weights' own."""
    optimiser: Optimiser = Optimiser.ADAMW
    checkpointing: bool = False
    """Blocks are recomputed for the backward pass instead of kept."""
    attention: Attention = Attention.SDPA
    padded: bool = False
    """Sequences of a batch are of different lengths, so that a mask is needed."""
    accumulation: int = 1
    """Backward passes for each step of the optimiser."""
    keeps_outputs: bool = True
    """The program still holds the model's outputs, logits included, during the backward pass."""
    loss_chunk: int = 0
    """Tokens whose logits are held at a time; none: of all tokens."""
    expandable_segments: bool = False
    """As in PYTORCH_CUDA_ALLOC_CONF."""

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    @property
    def is_lora(self) -> bool:
        return self.method is Method.LORA

    @property
    def trained_width(self) -> Width:
        """The width of the trained weights."""
        return self.adapter_dtype if self.is_lora else self.dtype

    @property
    def exact_kind(self) -> str:
        """Return nothing: runs of any size correct each other."""
        return ""

    @property
    def kind(self) -> str:
        """Name everything but the amount of data: trainings of one kind are wrong by nearly the same factor."""
        left_out = {"shape", "batch", "sequence"} | (set() if self.is_lora else OF_ADAPTERS)
        named = {name: value for name, value in fields_of(self).items() if name not in left_out}
        return " ".join(f"{name}={_text(value)}" for name, value in named.items())


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool | None) else str(value)


# Which matrices of a block get an adapter, and how large the adapters are.

_OF_MLP = ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "c_fc", "c_proj_mlp", "dense_h_to_4h", "dense_4h_to_h")
_SPOKEN = {"c_proj_mlp": "c_proj"}


def names_of(shape: ModelShape) -> list[str]:
    """Return what a block's matrices are called; GPT-2 has two of one name."""
    return list(dict.fromkeys(spoken(one) for one in shape.linears))


def spoken(linear: Linear) -> str:
    """Return the name of a matrix in the model's own code."""
    return _SPOKEN.get(linear.name, linear.name)


def targeted(shape: ModelShape, targets: tuple[str, ...]) -> list[Linear]:
    """Return the matrices of one block that targets name."""
    return [one for one in shape.linears if any(_is_meant(one, target) for target in targets)]


def adapter_parameters(shape: ModelShape, targets: tuple[str, ...], rank: int) -> int:
    """Count the parameters that adapters add to all blocks."""
    return shape.layers * sum(rank * (one.inputs + one.outputs) for one in targeted(shape, targets))


def _is_meant(linear: Linear, target: str) -> bool:
    if target == ALL_LINEAR:
        return True
    if target in (ATTENTION, MLP):
        return (linear.name in _OF_MLP) == (target == MLP)
    return spoken(linear) == target


_MOST = 10**7
_YES = ("true", "yes", "on", "1")
_NO = ("false", "no", "off", "0")
_ELSEWHERE = {
    "optimizer": "optimiser",
    "batch_size": "batch",
    "per_device_train_batch_size": "batch",
    "seq": "sequence",
    "seq_len": "sequence",
    "max_length": "sequence",
    "max_seq_len": "sequence",
    "sequence_length": "sequence",
    "r": "rank",
    "lora_rank": "rank",
    "lora_r": "rank",
    "lora_dropout": "dropout",
    "target_modules": "targets",
    "gradient_checkpointing": "checkpointing",
    "gradient_accumulation_steps": "accumulation",
    "attn_implementation": "attention",
    "precision": "dtype",
}
"""Names of other programs for ours."""

KEYS: Mapping[str, str] = {
    "method": "lora or full",
    "batch": "sequences at a time on one device (default: 1)",
    "sequence": "tokens of each (default: 1024)",
    "dtype": "width of the weights: bf16, fp16 or fp32",
    "autocast": "width of products, if not that of the weights: bf16 or fp16",
    "optimiser": "adamw, adamw-fused, adamw-8bit, adafactor, sgd or sgd-momentum",
    "checkpointing": "true if blocks are recomputed for the backward pass",
    "rank": "of adapters (default: 16)",
    "targets": "which matrices get one: all-linear, attention, mlp, or names with commas",
    "dropout": "of adapters",
    "adapter_dtype": "width of adapters: fp32, as peft does, or bf16",
    "attention": "sdpa, flash_attention_2 or eager",
    "padded": "true if sequences of a batch differ in length, so that a mask is needed",
    "accumulation": "backward passes for each step of the optimiser",
    "keeps_outputs": "false if logits are freed before the backward pass, as transformers' Trainer does",
    "loss_chunk": "tokens whose logits are held at a time (default: all)",
    "expandable_segments": "true if set in PYTORCH_CUDA_ALLOC_CONF",
}
"""Options of a training."""


Readers = Mapping[str, Callable[[str], Any]]
"""From a key to the reader of its value, which raises `ValueError`."""


def read_training(shape: ModelShape, words: Sequence[str], *, elsewhere: Collection[str] = ()) -> TrainingSpec:
    """Read a training of a model; `InvalidArgs` has everything that is wrong, keys that are `elsewhere` included."""
    values, faults = read_words(words, _READERS, elsewhere=elsewhere)
    training = TrainingSpec(shape=shape, **values)
    faults += _look_at(training, values)
    refuse(faults, "the options of the training")
    return training


def read_words(
    words: Sequence[str], readers: Readers, *, elsewhere: Collection[str] = ()
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Read options `key=value`; return the values, and every fault.

    Keys that are known `elsewhere` are not accepted here, but may be suggested.
    """
    values: dict[str, Any] = {}
    faults: list[Diagnostic] = []
    for word in words:
        name, equals, text = word.partition("=")
        key = _ELSEWHERE.get(name, name)
        if not equals:
            faults.append(Diagnostic(word, "is not key=value", "for example batch=8"))
        elif key in elsewhere:
            faults.append(
                Diagnostic(name, "is for adapters that are trained together", "give their number: adapters=8")
            )
        elif key not in readers:
            faults.append(Diagnostic(name, "there is no such key", did_you_mean(name, [*readers, *elsewhere])))
        elif key in values:
            faults.append(Diagnostic(name, "is given twice"))
        else:
            try:
                values[key] = readers[key](text.strip())
            except ValueError as error:
                values[key] = None
                faults.append(Diagnostic(name, str(error)))
    return {key: value for key, value in values.items() if value is not None}, faults


def refuse(faults: Sequence[Diagnostic], where: str) -> None:
    """Raise `InvalidArgs` if there is any fault."""
    if faults:
        message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} errors in {where}"
        raise InvalidArgs(message, faults=tuple(faults), hint="stoker help machines estimate")


def target_faults(shape: ModelShape, targets: Sequence[str]) -> list[Diagnostic]:
    """Return the faults of the matrices that are to get an adapter."""
    known = [ALL_LINEAR, ATTENTION, MLP, *names_of(shape)]
    return [
        Diagnostic(
            "targets",
            f"no matrix of a {shape.family} model is called {target!r}",
            did_you_mean(target, known) or f"one of {', '.join(known)}",
        )
        for target in targets
        if target not in known
    ]


def position_faults(shape: ModelShape, sequence: int) -> list[Diagnostic]:
    """Return the faults of the length of sequences."""
    if not shape.positions or sequence <= shape.positions:
        return []
    return [Diagnostic("sequence", f"{sequence} tokens, but the model has {shape.positions:,} positions")]


def _look_at(training: TrainingSpec, values: Mapping[str, Any]) -> list[Diagnostic]:
    faults: list[Diagnostic] = []
    if not training.is_lora:
        faults += [
            Diagnostic(key, "is for adapters; method=full has none") for key in sorted(OF_ADAPTERS & values.keys())
        ]
    faults += position_faults(training.shape, training.sequence)
    if training.autocast is not None and training.dtype not in (training.autocast, Width.FP32):
        message = f"{training.autocast} over weights in {training.dtype}"
        faults.append(Diagnostic("autocast", message, "dtype=fp32, or the same for both"))
    return faults + (target_faults(training.shape, training.targets) if training.is_lora else [])


def count_from(least: int) -> Callable[[str], int]:
    """Return the reader of a count."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= _MOST:
            message = f"{text!r} is not a whole number from {least} to {_MOST:,}"
            raise ValueError(message)
        return int(text)

    return read


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        message = f"{text!r} is not a number from 0 to below 1"
        raise ValueError(message)
    return value


def flag_of(text: str) -> bool:
    """Read a boolean."""
    if text.lower() not in _YES + _NO:
        message = f"{text!r} is neither true nor false"
        raise ValueError(message)
    return text.lower() in _YES


def choice_of(kind: type[StrEnum], *but: StrEnum) -> Callable[[str], StrEnum]:
    """Return the reader of one of some words."""
    known = [str(one) for one in kind if one not in but]

    def read(text: str) -> StrEnum:
        if text.lower() not in known:
            near = did_you_mean(text, known)
            message = f"{text!r} is none of {', '.join(known)}{f'; {near}' if near else ''}"
            raise ValueError(message)
        return kind(text.lower())

    return read


def names_in(text: str) -> tuple[str, ...]:
    """Read names with commas, each once."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        message = f"{text!r} names nothing"
        raise ValueError(message)
    return names


_READERS: dict[str, Callable[[str], Any]] = {
    "method": choice_of(Method),
    "batch": count_from(1),
    "sequence": count_from(1),
    "dtype": choice_of(Width),
    "autocast": choice_of(Width, Width.FP32),
    "optimiser": choice_of(Optimiser),
    "checkpointing": flag_of,
    "rank": count_from(1),
    "targets": names_in,
    "dropout": _share,
    "adapter_dtype": choice_of(Width),
    "attention": choice_of(Attention),
    "padded": flag_of,
    "accumulation": count_from(1),
    "keeps_outputs": flag_of,
    "loss_chunk": count_from(0),
    "expandable_segments": flag_of,
}
