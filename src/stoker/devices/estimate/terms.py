"""Estimate of a training's device memory, term by term, each with its source.

The estimate is what the driver counts for the process: torch's allocator and the CUDA context, as shown by `nvidia-smi`
and the ledger. It comes from a simulation of the training's own steps, so the terms are those of its peak, not sums of
what is never held together.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, Protocol

from stoker.core.digests import Digest, digest_value
from stoker.core.errors import BadInput, InsufficientDeviceMemory
from stoker.core.frozen import frozen, frozen_by_position
from stoker.core.text import format_size
from stoker.devices.estimate.model_shapes import ModelShape
from stoker.devices.estimate.symbolic import MemoryTrace, rehearse
from stoker.devices.estimate.tape import Purpose
from stoker.devices.estimate.training_setup import Optimiser, TrainingSpec, adapter_parameters, names_of, targeted
from stoker.host.durable import read_regular, write_file
from stoker.host.folders import make_state
from stoker.host.locks import BriefLocks

MIB = 1024**2
DEFAULT_CONTEXT_BYTES = 563 * MIB
"""Default where none is measured: 0.55 GiB."""
_CONTEXTS = {"NVIDIA H200": 758 * MIB}
"""Measured: what the driver counts for a training process beyond torch's allocator."""
_WHEN = {
    "forward": "at the end of its forward pass",
    "backward": "in its backward pass",
    "step": "while the optimiser steps",
}


@frozen_by_position
class EstimateTerm:
    """One part of an estimate."""

    name: str
    size_bytes: int
    why: str

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "bytes": self.size_bytes, "why": self.why}


@frozen
class Estimate:
    """What a training will take of one device."""

    terms: tuple[EstimateTerm, ...]
    fullest: str
    """When the peak is."""
    parameters: int
    trained_parameters: int
    measured_runs: int = 0
    """Number of measured runs of its kind that corrected it."""

    @property
    def total_bytes(self) -> int:
        return sum(term.size_bytes for term in self.terms)

    def term(self, name: str) -> int:
        """Return one term's size; nothing if it has no such term."""
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
    """Correction of the estimates of one kind by measured runs."""

    percent: float
    """Of the estimate, what most of them took at most: 103 if they took 3 % more."""
    runs: int


def context_bytes_of(gpu: str) -> tuple[int, str]:
    """Return what a process takes of a device before it has a tensor, and the source."""
    known = _CONTEXTS.get(gpu)
    if known is not None:
        return known, f"CUDA context (as measured on an {gpu})"
    return DEFAULT_CONTEXT_BYTES, "CUDA context (0.55 GiB by default; not measured on this device)"


def estimate(
    training: TrainingSpec, *, context_bytes: int | None = None, gpu: str = "", correction: Correction | None = None
) -> Estimate:
    """Estimate a training. `gpu` is the device's name: contexts differ."""
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


def calibration_term(terms: Sequence[EstimateTerm], correction: Correction) -> EstimateTerm:
    """Return what measured runs add to these terms, or subtract."""
    sum_bytes = sum(term.size_bytes for term in terms)
    runs = "1 measured run" if correction.runs == 1 else f"{correction.runs} measured runs"
    corrected_bytes = round(sum_bytes * (correction.percent - 100) / 100)
    why = f"{correction.percent - 100:+.1f} %, by {runs} of this kind"
    return EstimateTerm("calibration", corrected_bytes, why)


def _trained(training: TrainingSpec) -> int:
    shape = training.shape
    return adapter_parameters(shape, training.targets, training.rank) if training.is_lora else shape.parameters


def refuse_no_adapters(shape: ModelShape, targets: tuple[str, ...]) -> None:
    """Raise `BadInput` if targets name no matrix of a model."""
    if not targeted(shape, targets):
        raise BadInput(
            f"no matrix of a {shape.family} model is called {' or '.join(targets)}",
            hint=f"targets=all-linear, attention, mlp, or some of {', '.join(names_of(shape))}",
        )


def _terms(training: TrainingSpec, rehearsal: MemoryTrace) -> list[EstimateTerm]:
    shape, held = training.shape, rehearsal.held_bytes
    width = training.trained_width
    terms = [EstimateTerm("weights", held[Purpose.WEIGHTS], f"{shape.parameters:,} parameters in {training.dtype}")]
    if training.is_lora:
        count = _trained(training)
        why = f"{count:,} parameters in {width}, with gradients and {training.optimiser}'s states"
        terms.append(EstimateTerm("adapters", held[Purpose.ADAPTERS], why))
    else:
        none = "" if held[Purpose.GRADIENTS] else "; none yet at the peak"
        terms += [
            EstimateTerm("gradients", held[Purpose.GRADIENTS], f"one of each weight, in {width}{none}"),
            EstimateTerm("optimiser", held[Purpose.OPTIMISER], _of_optimiser(training.optimiser)),
        ]
    spare_bytes = rehearsal.reserved_bytes - rehearsal.allocated_bytes
    segments = "a growing segment" if training.expandable_segments else "segments"
    return [
        *terms,
        EstimateTerm("activations", held[Purpose.ACTIVATIONS], _of_activations(training)),
        EstimateTerm("logits", held[Purpose.LOGITS], _of_logits(training)),
        EstimateTerm("fragmentation", spare_bytes, f"what torch's allocator keeps in {segments} beyond its tensors"),
    ]


def _context(rehearsal: MemoryTrace, context_bytes: int | None, gpu: str) -> EstimateTerm:
    known_bytes, why = context_bytes_of(gpu) if context_bytes is None else (context_bytes, "CUDA context (as given)")
    workspace_bytes = rehearsal.held_bytes[Purpose.WORKSPACE]
    return EstimateTerm("context", known_bytes + workspace_bytes, f"{why} and workspaces of products")


def _of_optimiser(optimiser: Optimiser) -> str:
    return {
        Optimiser.ADAMW: "two states of each weight, and a third while it steps",
        Optimiser.ADAMW_FUSED: "two states of each weight",
        Optimiser.ADAMW_8BIT: "two states of one byte of each weight; by formula, not measured",
        Optimiser.ADAFACTOR: "two copies of the largest weight while it steps; by formula, not measured",
        Optimiser.SGD: "no states",
        Optimiser.SGD_MOMENTUM: "one state of each weight",
    }[optimiser]


def _of_activations(training: TrainingSpec) -> str:
    layers, tokens = training.shape.layers, f"{training.batch} × {training.sequence} tokens"
    if training.checkpointing:
        return f"the inputs of {layers} blocks and the inside of one, for {tokens}"
    return f"the inside of {layers} blocks, for {tokens}"


def _of_logits(training: TrainingSpec) -> str:
    count = training.loss_chunk or training.tokens
    held = "" if training.keeps_outputs else ", the outputs freed"
    return f"{count:,} tokens × {training.shape.vocabulary:,} words, in {training.dtype} and in 32 bits{held}"


# Measured peaks of trainings, beside their estimates: by model, kind of training and version of torch.
#
# Estimates of one kind are wrong by nearly the same factor, so the next one is corrected by what the worst of them
# took: with fewer than twenty runs the largest ratio of all, with more the 95th percentile. So a correction errs to the
# safe side. The file is JSON and may be deleted; a damaged one counts as empty, and `trouble` names the reason. Unlike
# `engine.run_history`, which knows what one stage with the same arguments took, it covers runs never made.

_FORMAT = 1
_LONGEST_BYTES = 8 * 1024**2
_RUNS_KEPT = 40
_KINDS_KEPT = 2000
_FARTHEST = 4
"""A larger factor means that the run was not the estimated one."""

Runs = list[list[int]]
"""Measured and estimated bytes of each run, the newest last."""


class EstimatedWork(Protocol):
    """What there are estimates of: a training of one model, or of several adapters."""

    @property
    def shape(self) -> ModelShape:
        """Of its model."""

    @property
    def kind(self) -> str:
        """Names runs whose estimates are wrong by the same factor."""

    @property
    def exact_kind(self) -> str:
        """The same with the amount of data at a time; empty if that makes no difference."""


class CalibrationFile:
    """One file of measured runs. Several processes may write to it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.trouble = ""

    def note(self, work: EstimatedWork, torch: str, *, measured_bytes: int, estimated_bytes: int) -> Correction:
        """Record one run: its measured peak, and its estimate without any correction."""
        return self.note_under(keys_of(work, torch), measured_bytes=measured_bytes, estimated_bytes=estimated_bytes)

    def note_under(self, keys: Sequence[str], *, measured_bytes: int, estimated_bytes: int) -> Correction:
        """Record one run under the keys of `keys_of`; return the correction of the first of them."""
        if not estimated_bytes < measured_bytes * _FARTHEST or not measured_bytes < estimated_bytes * _FARTHEST:
            raise BadInput(
                f"measured {measured_bytes:,} bytes, estimated {estimated_bytes:,}: that is not the same training",
                hint="give every option that is not the default: method, batch, sequence, dtype, checkpointing, …",
            )
        make_state(os.path.dirname(self._path))
        with closing(BriefLocks()) as locks, locks.hold(f"{self._path}.lock"):
            kinds = self._read()
            for key in keys:
                kinds[key] = [*kinds.pop(key, []), [measured_bytes, estimated_bytes]][-_RUNS_KEPT:]
            kept = dict(list(kinds.items())[-_KINDS_KEPT:])
            write_file(self._path, json.dumps({"format": _FORMAT, "kinds": kept}, separators=(",", ":")).encode())
        return correction_of(kinds[keys[0]])

    def correction(self, work: EstimatedWork, torch: str) -> Correction | None:
        """Return the correction by runs of this very size, or else of this kind, if there were any."""
        kinds = self._read()
        runs = next((kinds[key] for key in keys_of(work, torch) if key in kinds), None)
        return correction_of(runs) if runs else None

    @property
    def is_empty(self) -> bool:
        return not self._read()

    def _read(self) -> dict[str, Runs]:
        try:
            return _checked(json.loads(read_regular(self._path, _LONGEST_BYTES)))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            self.trouble = f"{self._path} can't be read and counts as empty: {error}"
            return {}


def correction_of(runs: Runs) -> Correction:
    """Return the correction: the 95th percentile of measured over estimated, by nearest rank."""
    ratios = sorted(measured_bytes / estimated_bytes for measured_bytes, estimated_bytes in runs)
    place = -(-len(ratios) * 95 // 100) - 1
    return Correction(percent=100 * ratios[place], runs=len(runs))


def keys_of(work: EstimatedWork, torch: str) -> tuple[Digest, ...]:
    """Return the keys that runs are kept under, the narrowest first."""
    kinds = [kind for kind in (work.exact_kind, work.kind) if kind]
    # Its build is part of one of its two versions, and not of the other.
    plain = torch.partition("+")[0]
    return tuple(digest_value("vram-kind", [str(work.shape.digest), kind, plain]) for kind in kinds)


def _checked(content: object) -> dict[str, Runs]:
    """Return the content of the file; `ValueError` if it is not one."""
    kinds = content.get("kinds") if isinstance(content, dict) and content.get("format") == _FORMAT else None
    if not isinstance(kinds, dict) or not all(_is_runs(runs) for runs in kinds.values()):
        message = "not a file of this version"
        raise ValueError(message)
    return kinds


def _is_runs(runs: object) -> bool:
    return (
        isinstance(runs, list)
        and bool(runs)
        and all(
            isinstance(run, list) and len(run) == 2 and all(type(one) is int and one > 0 for one in run) for run in runs
        )
    )


# What would fit into the memory of a device, and the error if nothing does.

STEP_TOKENS = 64
"""Step between lengths that are tried."""
_MOST_BASES = 3


@frozen
class MemoryCapacity:
    """Memory of one device, or of the machine."""

    name: str
    room_bytes: int
    why: str = ""
    """Other facts about it: how much of that is free now."""


@frozen
class SmallerOption:
    """A change that fits, and its memory."""

    change: str
    """In the caller's terms: `batch=1 (instead of 4)`."""
    total_bytes: int

    def __str__(self) -> str:
        return f"{self.change} takes {format_size(self.total_bytes)}"


def bases_that_fit(
    room_bytes: int, bases: Mapping[str, ModelShape], takes: Callable[[str], int | None]
) -> tuple[SmallerOption, ...]:
    """Return the largest of some bases with which something fits; `takes` returns None for one that is no choice."""
    names = sorted(bases, key=lambda name: (-bases[name].parameters, name))
    fitting = ((name, taken) for name in names if (taken := takes(name)) is not None and taken <= room_bytes)
    return tuple(
        SmallerOption(change=f"base={name}", total_bytes=taken) for name, taken in islice(fitting, _MOST_BASES)
    )


def refusal(
    numbers: str,
    needed_bytes: int,
    rooms: Sequence[MemoryCapacity],
    fitting: Callable[[int], Sequence[SmallerOption]],
    otherwise: str,
) -> InsufficientDeviceMemory | None:
    """Return the error for work that fits none of these; nothing if it fits one.

    `numbers` describe its memory, `fitting` returns what would fit, and `otherwise` is the hint if nothing would.
    """
    largest = max(rooms, key=lambda one: one.room_bytes, default=None)
    if largest is None:
        return InsufficientDeviceMemory(f"{numbers}, and there is no device", hint="stoker doctor shows what is here")
    if needed_bytes <= largest.room_bytes:
        return None
    has = f"{largest.name} has {format_size(largest.room_bytes)}{f' ({largest.why})' if largest.why else ''}"
    found = fitting(largest.room_bytes)
    hint = f"would fit: {'; '.join(map(str, found))}" if found else otherwise
    most = "" if len(rooms) == 1 else ", the most of any"
    return InsufficientDeviceMemory(
        f"{numbers}; {has}{most}", hint=hint, needed_bytes=needed_bytes, devices=[one.name for one in rooms]
    )


def largest_fit(room_bytes: int, values: Sequence[int], takes: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """Yield the largest of some values, in order, with which something fits, and its memory."""
    place = bisect_right(values, room_bytes, key=takes)
    if place:
        yield values[place - 1], takes(values[place - 1])


def fewer_tokens(tokens: int) -> Sequence[int]:
    """Return the shorter lengths to try."""
    return range(STEP_TOKENS, tokens, STEP_TOKENS)
