"""What a training of every weight asks of the machine, and what would fit where there is no room for it."""

from __future__ import annotations

from collections.abc import Callable

from stoker.cookbooks.language.asking import Load, bases_at_hand, rooms_here
from stoker.cookbooks.language.bases import FoundBase
from stoker.cookbooks.language.safetensors_header import SHARD_BYTES
from stoker.hardware.estimate.company import IMPORTS_BYTES
from stoker.hardware.estimate.company_activations import chunk_tokens
from stoker.hardware.estimate.seating import (
    STEP_TOKENS,
    Smaller,
    bases_that_fit,
    fewer_tokens,
    largest_fit,
    refusal,
)
from stoker.hardware.estimate.terms import estimate
from stoker.hardware.estimate.training import Method, Optimiser, Training, Width
from stoker.model.errors import NoRoom
from stoker.model.frozen import changed, frozen
from stoker.model.resources import GIB
from stoker.model.units import format_size
from stoker.plan.authoring import Needs
from stoker.plan.surroundings import surroundings

_STATES = 4
"""Of every weight, in 32 bits: itself, its gradient and two moments."""
_OF_TENSORS = ("weights", "gradients", "optimiser", "activations", "logits")
_OTHERWISE = "take a smaller base, or train an adapter, which takes far less: language/lora"


@frozen
class Whole:
    """A training of every weight of a base."""

    base: FoundBase
    load: Load
    accumulate: int
    is_packed: bool

    @property
    def copy_bytes(self) -> int:
        """Of all weights, as they are trained."""
        return self.base.shape.parameters * Width.FP32.bytes

    @property
    def training(self) -> Training:
        """It, as the estimates know trainings."""
        return Training(
            shape=self.base.shape,
            method=Method.FULL,
            batch=self.load.rows,
            sequence=self.load.tokens,
            dtype=Width.FP32,
            autocast=Width.BF16 if self.load.dtype == "bfloat16" else None,
            optimiser=Optimiser.ADAMW_FUSED,
            padded=self.is_packed,
            accumulation=self.accumulate,
            loss_chunk=chunk_tokens(self.base.shape),
        )


def full_needs(whole: Whole, *, gpus: int) -> Needs:
    """Give what a training of every weight asks."""
    if not gpus:
        return Needs(memory_gib=on_cpu_bytes(whole) / GIB)
    return Needs(gpu=gpus, vram_gib=on_gpu_bytes(whole) / GIB, shares=True)


def full_too_large(whole: Whole, *, gpus: int) -> NoRoom | None:
    """Say why nothing here could ever hold such a training, and what would fit; nothing if something could.

    On a GPU its devices have to, else the machine's own memory. Of what nobody knows how large it is, nothing is said.
    """
    rooms = rooms_here(gpus=gpus)
    if not rooms:
        return None
    takes = on_gpu_bytes if gpus else on_cpu_bytes
    needed_bytes = takes(whole)
    load, kept_bytes = whole.load, _STATES * whole.copy_bytes
    numbers = (
        f"training every weight takes {format_size(needed_bytes)}: {format_size(kept_bytes)} for weights, gradients "
        f"and moments, the rest for {load.rows} × {load.tokens} tokens and copies on the way"
    )
    return refusal(numbers, needed_bytes, rooms, lambda room: _fitting(room, whole, takes), _OTHERWISE)


def on_gpu_bytes(whole: Whole) -> int:
    """Foretell what it takes of a device, in the context that such a device has."""
    return estimate(whole.training, gpu=next(iter(surroundings().rooms()), "")).total_bytes


def on_cpu_bytes(whole: Whole) -> int:
    """Foretell what it takes of the machine's memory: while it learns, or while it writes its weights down.

    Beside what is learned stand the best weights so far. A base that is narrower stays as it was read.
    """
    every_bytes, read_bytes = whole.copy_bytes, whole.base.size_bytes
    told = estimate(whole.training)
    learning_bytes = sum(map(told.term, _OF_TENSORS))
    writing_bytes = _STATES * every_bytes + min(read_bytes, SHARD_BYTES)
    narrow_bytes = read_bytes if read_bytes < every_bytes else 0
    return IMPORTS_BYTES + narrow_bytes + every_bytes + max(learning_bytes, writing_bytes)


def _fitting(room_bytes: int, whole: Whole, takes: Callable[[Whole], int]) -> tuple[Smaller, ...]:
    """Give what would fit: fewer rows, or fewer tokens, or the least of both, or another base."""
    load = whole.load

    def asking(**less: int) -> int:
        return takes(changed(whole, load=changed(load, **less)))

    rows = largest_fit(room_bytes, range(1, load.rows), lambda value: asking(rows=value))
    tokens = largest_fit(room_bytes, fewer_tokens(load.tokens), lambda value: asking(tokens=value))
    found = [
        *(Smaller(change=f"batch={n} (instead of {load.rows})", total_bytes=taken) for n, taken in rows),
        *(Smaller(change=f"max_seq_len={n} (instead of {load.tokens})", total_bytes=taken) for n, taken in tokens),
    ]
    if found:
        return tuple(found)
    shortest = min(load.tokens, STEP_TOKENS)
    least_bytes = asking(rows=1, tokens=shortest)
    if least_bytes <= room_bytes:
        return (Smaller(change=f"batch=1 max_seq_len={shortest}", total_bytes=least_bytes),)
    others = bases_at_hand(load)
    shapes = {name: one.shape for name, one in others.items()}
    return bases_that_fit(room_bytes, shapes, lambda name: takes(changed(whole, base=others[name])))
