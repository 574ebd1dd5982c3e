"""From words such as `batch=8` to a training: every fault at once, each with what would be right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from stoker.hardware.estimate.shape import ModelShape
from stoker.hardware.estimate.targets import names_of
from stoker.hardware.estimate.training import (
    ALL_LINEAR,
    ATTENTION,
    MLP,
    OF_ADAPTERS,
    Attention,
    Method,
    Optimiser,
    Training,
    Width,
)
from stoker.model.errors import ArgsFaults, Fault
from stoker.model.suggest import did_you_mean

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
"""Other programs' words for ours."""

KEYS: Mapping[str, str] = {
    "method": "lora or full",
    "batch": "sequences at a time on one device; 1 unless told",
    "sequence": "tokens of each; 1024 unless told",
    "dtype": "how weights are kept: bf16, fp16 or fp32",
    "autocast": "what products are computed in, if not in the weights' own: bf16 or fp16",
    "optimiser": "adamw, adamw-fused, adamw-8bit, sgd or sgd-momentum",
    "checkpointing": "true if blocks are computed again for the backward pass",
    "rank": "of adapters; 16 unless told",
    "targets": "which matrices get one: all-linear, attention, mlp, or names with commas",
    "dropout": "of adapters",
    "adapter_dtype": "how adapters are kept: fp32, as peft does, or bf16",
    "attention": "sdpa, flash_attention_2 or eager",
    "padded": "true if sequences of a batch differ in length, so that a mask is needed",
    "accumulation": "backward passes for each step of the optimiser",
    "keeps_outputs": "false if logits are let go before the backward pass, as transformers' Trainer does",
    "loss_chunk": "tokens whose logits are there at a time; of all unless told",
    "expandable_segments": "true if PYTORCH_CUDA_ALLOC_CONF says so",
}
"""What may be said of a training."""


def read_training(shape: ModelShape, words: Sequence[str]) -> Training:
    """Read a training of a model; `ArgsFaults` has everything that is wrong."""
    reading = _Reading(shape)
    for word in words:
        reading.take(word)
    return reading.training()


class _Reading:
    """Words on their way into a training."""

    def __init__(self, shape: ModelShape) -> None:
        self._shape = shape
        self._said: dict[str, Any] = {}
        self._faults: list[Fault] = []

    def take(self, word: str) -> None:
        name, equals, text = word.partition("=")
        key = _ELSEWHERE.get(name, name)
        if not equals:
            self._faults.append(Fault(word, "is no key=value", "for example batch=8"))
        elif key not in _READERS:
            self._faults.append(Fault(name, "there is no such key", did_you_mean(name, KEYS)))
        elif key in self._said:
            self._faults.append(Fault(name, "is said twice"))
        else:
            try:
                self._said[key] = _READERS[key](text.strip())
            except ValueError as error:
                self._said[key] = None
                self._faults.append(Fault(name, str(error)))

    def training(self) -> Training:
        said = {key: value for key, value in self._said.items() if value is not None}
        training = Training(shape=self._shape, **said)
        self._look_at(training)
        if self._faults:
            count = len(self._faults)
            message = str(self._faults[0]) if count == 1 else f"{count} faults in what is said of the training"
            raise ArgsFaults(message, faults=tuple(self._faults), hint="stoker help machines estimate")
        return training

    def _look_at(self, training: Training) -> None:
        shape = self._shape
        if not training.is_lora:
            self._faults += [
                Fault(key, "is of adapters, and method=full has none")
                for key in sorted(OF_ADAPTERS & self._said.keys())
            ]
        if shape.positions and training.sequence > shape.positions:
            message = f"{training.sequence} tokens, but the model has {shape.positions:,} positions"
            self._faults.append(Fault("sequence", message))
        if (
            training.autocast is not None
            and training.dtype is not training.autocast
            and training.dtype is not Width.FP32
        ):
            message = f"{training.autocast} over weights in {training.dtype}"
            self._faults.append(Fault("autocast", message, "dtype=fp32, or the same for both"))
        known = [ALL_LINEAR, ATTENTION, MLP, *names_of(shape)]
        for target in training.targets:
            if training.is_lora and target not in known:
                hint = did_you_mean(target, known) or f"one of {', '.join(known)}"
                self._faults.append(Fault("targets", f"no matrix of a {shape.family} model is called {target!r}", hint))


def _count(least: int) -> Callable[[str], int]:
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


def _flag(text: str) -> bool:
    if text.lower() not in _YES + _NO:
        message = f"{text!r} is neither true nor false"
        raise ValueError(message)
    return text.lower() in _YES


def _choice(kind: type[StrEnum], *but: StrEnum) -> Callable[[str], StrEnum]:
    known = [str(one) for one in kind if one not in but]

    def read(text: str) -> StrEnum:
        if text.lower() not in known:
            near = did_you_mean(text, known)
            message = f"{text!r} is none of {', '.join(known)}{f'; {near}' if near else ''}"
            raise ValueError(message)
        return kind(text.lower())

    return read


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        message = f"{text!r} names nothing"
        raise ValueError(message)
    return names


_READERS: dict[str, Callable[[str], Any]] = {
    "method": _choice(Method),
    "batch": _count(1),
    "sequence": _count(1),
    "dtype": _choice(Width),
    "autocast": _choice(Width, Width.FP32),
    "optimiser": _choice(Optimiser),
    "checkpointing": _flag,
    "rank": _count(1),
    "targets": _names,
    "dropout": _share,
    "adapter_dtype": _choice(Width),
    "attention": _choice(Attention),
    "padded": _flag,
    "accumulation": _count(1),
    "keeps_outputs": _flag,
    "loss_chunk": _count(0),
    "expandable_segments": _flag,
}
