"""How much of a device a training will take, term by term, with where each number comes from.

What is foretold is what the driver counts for the process: torch's allocator and the CUDA context. `nvidia-smi` and
the ledger speak of the same. Made by a rehearsal of the training's own steps, so the terms are those of its fullest
moment, not sums of what never meets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.hardware.estimate.rehearsal import Rehearsal, rehearse
from stoker.hardware.estimate.shape import ModelShape
from stoker.hardware.estimate.tape import Purpose
from stoker.hardware.estimate.targets import adapter_parameters, names_of, targeted
from stoker.hardware.estimate.training import Optimiser, Training
from stoker.model.errors import BadInput
from stoker.model.frozen import frozen

MIB = 1024**2
DEFAULT_CONTEXT_BYTES = 563 * MIB
"""Where nobody has measured one: 0.55 GiB."""
_CONTEXTS = {"NVIDIA H200": 758 * MIB}
"""Measured: what the driver counts for a training process beyond torch's allocator."""
_WHEN = {
    "forward": "at the end of its forward pass",
    "backward": "in its backward pass",
    "step": "while the optimiser steps",
}


@frozen
class Term:
    """One part of an estimate."""

    name: str
    size_bytes: int
    why: str

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "bytes": self.size_bytes, "why": self.why}


@frozen
class Estimate:
    """What a training will take of one device."""

    terms: tuple[Term, ...]
    fullest: str
    """When it takes most."""
    parameters: int
    trained_parameters: int
    measured_runs: int = 0
    """How many measured runs of its kind have corrected it."""

    @property
    def total_bytes(self) -> int:
        return sum(term.size_bytes for term in self.terms)

    def term(self, name: str) -> int:
        """Give one term's size; nothing if it has no such term."""
        return sum(term.size_bytes for term in self.terms if term.name == name)

    def to_dict(self) -> dict[str, Any]:
        return {
            "total_bytes": self.total_bytes,
            "terms": [term.to_dict() for term in self.terms],
            "fullest": self.fullest,
            "parameters": self.parameters,
            "trained_parameters": self.trained_parameters,
            "measured_runs": self.measured_runs,
        }


@frozen
class Correction:
    """What measured runs of one kind say about its estimates."""

    percent: float
    """Of the estimate, what most of them took at most: 103 if they took 3 % more."""
    runs: int


def context_bytes_of(gpu: str) -> tuple[int, str]:
    """Give what a process takes of a device before it has a tensor, and how that is known."""
    known = _CONTEXTS.get(gpu)
    if known is not None:
        return known, f"CUDA context (as measured on an {gpu})"
    return DEFAULT_CONTEXT_BYTES, "CUDA context (0.55 GiB, as usual; not measured on this device)"


def estimate(
    training: Training, *, context_bytes: int | None = None, gpu: str = "", correction: Correction | None = None
) -> Estimate:
    """Rehearse a training. `gpu` is the device's name: contexts differ."""
    if training.is_lora:
        refuse_no_adapters(training.shape, training.targets)
    rehearsal = rehearse(training)
    terms = [*_terms(training, rehearsal), _context(rehearsal, context_bytes, gpu)]
    if correction is not None:
        terms.append(calibration_term(terms, correction))
    return Estimate(
        terms=tuple(terms),
        fullest=_WHEN[rehearsal.fullest],
        parameters=training.shape.parameters,
        trained_parameters=_trained(training),
        measured_runs=0 if correction is None else correction.runs,
    )


def calibration_term(terms: Sequence[Term], correction: Correction) -> Term:
    """Give what measured runs add to these terms, or take away."""
    sum_bytes = sum(term.size_bytes for term in terms)
    runs = "1 measured run" if correction.runs == 1 else f"{correction.runs} measured runs"
    corrected_bytes = round(sum_bytes * (correction.percent - 100) / 100)
    why = f"{correction.percent - 100:+.1f} %, by {runs} of this kind"
    return Term(name="calibration", size_bytes=corrected_bytes, why=why)


def _trained(training: Training) -> int:
    shape = training.shape
    return adapter_parameters(shape, training.targets, training.rank) if training.is_lora else shape.parameters


def refuse_no_adapters(shape: ModelShape, targets: tuple[str, ...]) -> None:
    """Raise `BadInput` if targets name no matrix of a model."""
    if not targeted(shape, targets):
        raise BadInput(
            f"no matrix of a {shape.family} model is called {' or '.join(targets)}",
            hint=f"targets=all-linear, attention, mlp, or some of {', '.join(names_of(shape))}",
        )


def _terms(training: Training, rehearsal: Rehearsal) -> list[Term]:
    shape, held = training.shape, rehearsal.held_bytes
    width = training.trained_width
    terms = [
        Term(
            name="weights",
            size_bytes=held[Purpose.WEIGHTS],
            why=f"{shape.parameters:,} parameters in {training.dtype}",
        )
    ]
    if training.is_lora:
        count = _trained(training)
        why = f"{count:,} parameters in {width}, with gradients and {training.optimiser}'s states"
        terms.append(Term(name="adapters", size_bytes=held[Purpose.ADAPTERS], why=why))
    else:
        none = "" if held[Purpose.GRADIENTS] else "; none yet at the fullest moment"
        terms += [
            Term(name="gradients", size_bytes=held[Purpose.GRADIENTS], why=f"one of each weight, in {width}{none}"),
            Term(name="optimiser", size_bytes=held[Purpose.OPTIMISER], why=_of_optimiser(training.optimiser)),
        ]
    spare_bytes = rehearsal.reserved_bytes - rehearsal.allocated_bytes
    segments = "a growing segment" if training.expandable_segments else "segments"
    return [
        *terms,
        Term(name="activations", size_bytes=held[Purpose.ACTIVATIONS], why=_of_activations(training)),
        Term(name="logits", size_bytes=held[Purpose.LOGITS], why=_of_logits(training)),
        Term(
            name="fragmentation",
            size_bytes=spare_bytes,
            why=f"what torch's allocator keeps in {segments} beyond its tensors",
        ),
    ]


def _context(rehearsal: Rehearsal, context_bytes: int | None, gpu: str) -> Term:
    known_bytes, why = context_bytes_of(gpu) if context_bytes is None else (context_bytes, "CUDA context (as given)")
    workspace_bytes = rehearsal.held_bytes[Purpose.WORKSPACE]
    return Term(name="context", size_bytes=known_bytes + workspace_bytes, why=f"{why} and workspaces of products")


def _of_optimiser(optimiser: Optimiser) -> str:
    return {
        Optimiser.ADAMW: "two states of each weight, and a third while it steps",
        Optimiser.ADAMW_FUSED: "two states of each weight",
        Optimiser.ADAMW_8BIT: "two states of one byte of each weight; by formula, not measured",
        Optimiser.SGD: "no states",
        Optimiser.SGD_MOMENTUM: "one state of each weight",
    }[optimiser]


def _of_activations(training: Training) -> str:
    layers, tokens = training.shape.layers, f"{training.batch} × {training.sequence} tokens"
    if training.checkpointing:
        return f"the inputs of {layers} blocks and the inside of one, for {tokens}"
    return f"the inside of {layers} blocks, for {tokens}"


def _of_logits(training: Training) -> str:
    count = training.loss_chunk or training.tokens
    held = "" if training.keeps_outputs else ", the outputs let go"
    return f"{count:,} tokens × {training.shape.vocabulary:,} words, in {training.dtype} and in 32 bits{held}"
