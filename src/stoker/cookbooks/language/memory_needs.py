"""What the stages of this cookbook ask of the machine: device memory where they compute on a GPU, else its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from stoker.authoring import Needs, SharedBase
from stoker.cookbooks.language.arguments import (
    DEFAULT_TOKENS,
    LORA,
    Dtype,
    LoraArgs,
    SettledDtype,
    settled_dtype,
    share_key,
)
from stoker.cookbooks.language.base_search import base_facts, bases_here, find_base
from stoker.cookbooks.language.bases import CONFIG, Outline, TrainableBase, read_config_alone
from stoker.cookbooks.language.checks import LanguageArgsChecker
from stoker.cookbooks.language.safetensors import SHARD_BYTES
from stoker.core.device import GIB
from stoker.core.errors import BadInput, InsufficientDeviceMemory
from stoker.core.frozen import changed, frozen
from stoker.core.text import format_size
from stoker.devices.estimate.model_shapes import ModelShape
from stoker.devices.estimate.shared_base import (
    IMPORTS_BYTES,
    MANY,
    STEP_TOKENS,
    MemoryLocation,
    MultiAdapterCapacity,
    MultiAdapterEstimate,
    MultiAdapterNeeds,
    MultiAdapterTraining,
    SmallerOption,
    adapters_of_unknown_number,
    bases_that_fit,
    chunk_tokens,
    estimate_adapters,
    fewer_tokens,
    largest_fit,
    no_room,
    refusal,
    smaller,
    steady_base_bytes,
)
from stoker.devices.estimate.terms import estimate
from stoker.devices.estimate.training_setup import Method, Optimiser, TrainingSpec, Width
from stoker.engine.recipe import surroundings

_WORDS = {"adapters": "most", "rows": "batch", "sequence": "max_seq_len", "rank": "rank"}
"""What this cookbook calls a shared process's numbers."""


@frozen
class Load:
    """How much a training has before it at a time."""

    rank: int
    targets: tuple[str, ...]
    rows: int
    tokens: int
    """Of each row."""
    dtype: SettledDtype


def member_needs(shape: ModelShape, load: Load, where: MemoryLocation) -> MultiAdapterNeeds:
    """Return what a base takes once, and one adapter beside it."""
    return estimate_adapters(_multi_adapter(shape, load, where)).needs


def placed_needs(shape: ModelShape, load: Load, where: MemoryLocation) -> MultiAdapterNeeds:
    """Give the same for machines that are elsewhere: there members of any size have to agree on what the base takes."""
    training = _multi_adapter(shape, load, where)
    found = estimate_adapters(training).needs
    return MultiAdapterNeeds(
        base_bytes=max(steady_base_bytes(training), found.base_bytes), member_bytes=found.member_bytes
    )


def _multi_adapter(shape: ModelShape, load: Load, where: MemoryLocation) -> MultiAdapterTraining:
    return adapters_of_unknown_number(
        shape,
        dtype=load.dtype,
        rank=load.rank,
        targets=load.targets,
        rows=load.rows,
        sequence=load.tokens,
        where=where,
    )


def too_large(base: TrainableBase, load: Load, *, gpus: int) -> InsufficientDeviceMemory | None:
    """Return why nothing here could ever hold one adapter over a base, and what would fit; nothing if something could.

    On a GPU its devices have to, else the machine's own memory. What is of unknown size is not judged.
    """
    there = rooms_here(gpus=gpus)
    training = _multi_adapter(base.shape, load, MemoryLocation.CUDA if gpus else MemoryLocation.CPU)
    return no_room(training, there, _as_asked, _WORDS, lambda: _shapes(load)) if there else None


def what_fits(args: LoraArgs, room_bytes: int) -> str:
    """Return which of an adapter's numbers would fit into so much of the machine's memory, its base with it."""
    base = find_base(args.base)
    load = Load(rank=args.rank, targets=args.targets, rows=args.batch, tokens=args.max_seq_len, dtype=args.dtype)
    training = changed(_multi_adapter(base.shape, load, MemoryLocation.CPU), adapters=1)
    return "; ".join(map(str, smaller(room_bytes, training, _as_asked, _WORDS)))


def _as_asked(training: MultiAdapterTraining) -> MultiAdapterEstimate:
    """Estimate as it is requested: with what many hold once, since the number of members is not known."""
    return changed(estimate_adapters(changed(training, adapters=MANY)), adapters=training.adapters)


def rooms_here(*, gpus: int) -> list[MultiAdapterCapacity]:
    """Return how much memory there is at most: of each device, or else of the machine; nothing of unknown size."""
    return _devices() if gpus else _machine()


def _devices() -> list[MultiAdapterCapacity]:
    here = surroundings()
    rooms = here.rooms() if here.count_gpus() else {}
    return [MultiAdapterCapacity(name=name, room_bytes=size_bytes) for name, size_bytes in rooms.items()]


def _machine() -> list[MultiAdapterCapacity]:
    memory = surroundings().memory()
    if memory is None or memory.total_bytes is None or memory.most_bytes is None:
        return []
    why = f"of {format_size(memory.total_bytes)}, the rest stays with the machine"
    if memory.room_bytes is not None:
        why += f"; {format_size(memory.room_bytes)} of it free now"
    return [MultiAdapterCapacity(name="this machine", room_bytes=memory.most_bytes, why=why)]


def _shapes(load: Load) -> dict[str, ModelShape]:
    return {name: one.shape for name, one in bases_at_hand(load).items()}


def bases_at_hand(load: Load) -> dict[str, TrainableBase]:
    """Return the bases at hand that read rows of such a length."""
    return {name: one for name, one in bases_here().items() if one.positions >= load.tokens}


def lora_needs(base: TrainableBase, load: Load, *, gpus: int, most: int = 0) -> Needs:
    """Return what an adapter asks: in shared process the base counts once."""
    if not gpus:
        found = member_needs(base.shape, load, MemoryLocation.CPU)
        return Needs(memory_gib=found.total_bytes / GIB, base_memory_gib=found.base_bytes / GIB, most=most)
    training, here = _multi_adapter(base.shape, load, MemoryLocation.CUDA), surroundings()
    remembered = here.remembered(training)
    found = estimate_adapters(training, gpu=next(iter(here.rooms()), ""), correction=remembered.correction).needs
    return Needs(
        gpu=gpus,
        vram_gib=found.total_bytes / GIB,
        base_gib=found.base_bytes / GIB,
        shares=True,
        most=most,
        peaks=remembered.names,
        foretold_percent=100.0 if remembered.correction is None else remembered.correction.percent,
    )


def sample_needs(base: TrainableBase, load: Load, *, gpus: int) -> Needs:
    """Return what completing prompts asks, one row at a time."""
    one = changed(load, rows=1)
    total_gib = member_needs(base.shape, one, MemoryLocation.CUDA if gpus else MemoryLocation.CPU).total_bytes / GIB
    return Needs(gpu=gpus, vram_gib=total_gib, shares=True) if gpus else Needs(memory_gib=total_gib)


def reading_needs(base: TrainableBase) -> Needs:
    """Return what holding a base in memory for a moment asks."""
    return Needs(memory_gib=(2 * base.size_bytes + IMPORTS_BYTES) / GIB)


# What an adapter's training shares with its like on a machine that is not known yet: its base, and how large.


class _LoraSizeArgs(Protocol):
    """The arguments of language/lora that determine its size."""

    @property
    def base(self) -> str: ...
    @property
    def dtype(self) -> Dtype: ...
    @property
    def rank(self) -> int: ...
    @property
    def targets(self) -> tuple[str, ...]: ...
    @property
    def batch(self) -> int: ...
    @property
    def max_seq_len(self) -> int | None: ...
    @property
    def gpus(self) -> int | None: ...


def shared_by_lora(args: _LoraSizeArgs, digest_of: Callable[[str], str]) -> SharedBase:
    """Return the base that an adapter is trained over, by content, with what it takes on a device and on a CPU."""
    base = _base_at(args.base)
    if isinstance(base, Outline):
        _judge(args, base)
        files, about = [str(Path(args.base) / CONFIG)], ""
    else:
        files, about = [str(base.folder / name) for name in base.files], base_facts(base, digest_of)

    def needs(where: MemoryLocation) -> MultiAdapterNeeds:
        load = Load(
            rank=args.rank,
            targets=args.targets,
            rows=args.batch,
            tokens=min(args.max_seq_len or DEFAULT_TOKENS, base.positions),
            dtype=settled_dtype(args.dtype, on_gpu=where is MemoryLocation.CUDA),
        )
        return placed_needs(base.shape, load, where)

    on_device, on_cpu = needs(MemoryLocation.CUDA), needs(MemoryLocation.CPU)
    # Bases are looked for on devices alone: who does not say is named as if it had one.
    dtype = settled_dtype(args.dtype, on_gpu=args.gpus != 0)
    return SharedBase(
        share_key=share_key(map(digest_of, files), dtype),
        base_bytes=on_device.base_bytes,
        member_bytes=on_device.member_bytes,
        base_ram_bytes=on_cpu.base_bytes,
        member_ram_bytes=on_cpu.member_bytes,
        about=about,
    )


def _judge(args: _LoraSizeArgs, base: Outline) -> None:
    """Refuse what a base can't be asked for that is not here: its plan was made with another one."""
    checking = LanguageArgsChecker(LORA)
    checking.length(args.max_seq_len, base)
    checking.targets(args.targets, base.shape, args.rank)
    checking.refuse()


def _base_at(text: str) -> TrainableBase | Outline:
    """Look at a base; of one that is fetched where it is trained, only config.json is here, and says enough."""
    try:
        return find_base(text)
    except BadInput:
        if not (Path(text) / CONFIG).is_file():
            raise
        return read_config_alone(Path(text), "this base")


# What a training of every weight asks of the machine, and what would fit where there is no room for it.

_STATES = 4
"""Of every weight, in 32 bits: itself, its gradient and two moments."""
_OF_TENSORS = ("weights", "gradients", "optimiser", "activations", "logits")
_OTHERWISE = "take a smaller base, or train an adapter, which takes far less: language/lora"


@frozen
class FullTrainingSpec:
    """A training of every weight of a base."""

    base: TrainableBase
    load: Load
    accumulate: int
    is_packed: bool

    @property
    def copy_bytes(self) -> int:
        """Of all weights, as they are trained."""
        return self.base.shape.parameters * Width.FP32.bytes

    @property
    def training(self) -> TrainingSpec:
        """It, as the estimates know trainings."""
        return TrainingSpec(
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


def full_needs(whole: FullTrainingSpec, *, gpus: int) -> Needs:
    """Return what a training of every weight asks."""
    if not gpus:
        return Needs(memory_gib=on_cpu_bytes(whole) / GIB)
    return Needs(gpu=gpus, vram_gib=on_gpu_bytes(whole) / GIB, shares=True)


def full_too_large(whole: FullTrainingSpec, *, gpus: int) -> InsufficientDeviceMemory | None:
    """Return why nothing here could ever hold such a training, and what would fit; nothing if something could.

    On a GPU its devices have to, else the machine's own memory. What is of unknown size is not judged.
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


def on_gpu_bytes(whole: FullTrainingSpec) -> int:
    """Estimate what it takes of a device, in the context that such a device has."""
    return estimate(whole.training, gpu=next(iter(surroundings().rooms()), "")).total_bytes


def on_cpu_bytes(whole: FullTrainingSpec) -> int:
    """Estimate what it takes of the machine's memory: while it learns, or while it writes its weights down.

    Beside what is learned stand the best weights so far. A base that is narrower stays as it was read.
    """
    every_bytes, read_bytes = whole.copy_bytes, whole.base.size_bytes
    estimated = estimate(whole.training)
    learning_bytes = sum(map(estimated.term, _OF_TENSORS))
    writing_bytes = _STATES * every_bytes + min(read_bytes, SHARD_BYTES)
    narrow_bytes = read_bytes if read_bytes < every_bytes else 0
    return IMPORTS_BYTES + narrow_bytes + every_bytes + max(learning_bytes, writing_bytes)


def _fitting(
    room_bytes: int, whole: FullTrainingSpec, takes: Callable[[FullTrainingSpec], int]
) -> tuple[SmallerOption, ...]:
    """Return what would fit: fewer rows, or fewer tokens, or the least of both, or another base."""
    load = whole.load

    def asking(**less: int) -> int:
        return takes(changed(whole, load=changed(load, **less)))

    rows = largest_fit(room_bytes, range(1, load.rows), lambda value: asking(rows=value))
    tokens = largest_fit(room_bytes, fewer_tokens(load.tokens), lambda value: asking(tokens=value))
    found = [
        *(SmallerOption(change=f"batch={n} (instead of {load.rows})", total_bytes=taken) for n, taken in rows),
        *(
            SmallerOption(change=f"max_seq_len={n} (instead of {load.tokens})", total_bytes=taken)
            for n, taken in tokens
        ),
    ]
    if found:
        return tuple(found)
    shortest = min(load.tokens, STEP_TOKENS)
    least_bytes = asking(rows=1, tokens=shortest)
    if least_bytes <= room_bytes:
        return (SmallerOption(change=f"batch=1 max_seq_len={shortest}", total_bytes=least_bytes),)
    others = bases_at_hand(load)
    shapes = {name: one.shape for name, one in others.items()}
    return bases_that_fit(room_bytes, shapes, lambda name: takes(changed(whole, base=others[name])))
