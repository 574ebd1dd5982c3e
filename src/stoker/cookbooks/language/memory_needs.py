"""Memory that the stages of this cookbook need: on a device if they compute on a GPU, otherwise RAM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from stoker.authoring import Needs, SharedBase
from stoker.cookbooks.language.arguments import (
    DEFAULT_TOKENS,
    LORA,
    BaseDtype,
    Dtype,
    LoraArgs,
    SettledDtype,
    TrainingMethod,
    settled_dtype,
    share_key,
)
from stoker.cookbooks.language.bases import CONFIG, Outline, TrainableBase, read_config_alone
from stoker.cookbooks.language.checks import LanguageArgsChecker, base_facts, bases_here, find_base
from stoker.core.device import GIB
from stoker.core.errors import BadInput, InsufficientDeviceMemory
from stoker.core.frozen import changed, frozen
from stoker.core.text import format_size
from stoker.devices.estimate.model_shapes import ModelShape
from stoker.devices.estimate.shared_base import (
    IMPORTS_BYTES,
    MANY,
    BaseWidth,
    MemoryLocation,
    MultiAdapterEstimate,
    MultiAdapterNeeds,
    MultiAdapterTraining,
    chunk_tokens,
    estimate_adapters,
    no_room,
    smaller,
    steady_base_bytes,
)
from stoker.devices.estimate.terms import (
    STEP_TOKENS,
    MemoryCapacity,
    SmallerOption,
    bases_that_fit,
    estimate,
    fewer_tokens,
    largest_fit,
    refusal,
)
from stoker.devices.estimate.training_setup import Method, Optimiser, TrainingSpec, Width
from stoker.engine.recipe import surroundings
from stoker.store.weight_files.safetensors import SHARD_BYTES

_WORDS = {"adapters": "most", "rows": "batch", "sequence": "max_seq_len", "rank": "rank"}
"""Names of a shared process's numbers in this cookbook."""


@frozen
class Load:
    """The size of one pass of a training."""

    rank: int
    targets: tuple[str, ...]
    rows: int
    tokens: int
    """Of each row."""
    dtype: SettledDtype
    base_dtype: BaseDtype = "auto"
    is_paired: bool = False
    """True if each is a pair: two rows."""


def member_needs(shape: ModelShape, load: Load, where: MemoryLocation) -> MultiAdapterNeeds:
    """Return what a base needs once, and one adapter beside it."""
    return estimate_adapters(_multi_adapter(shape, load, where)).needs


def placed_needs(shape: ModelShape, load: Load, where: MemoryLocation) -> MultiAdapterNeeds:
    """Return the same for other machines, where members of any size must agree on the base's size."""
    training = _multi_adapter(shape, load, where)
    found = estimate_adapters(training).needs
    return MultiAdapterNeeds(
        base_bytes=max(steady_base_bytes(training), found.base_bytes), member_bytes=found.member_bytes
    )


def _multi_adapter(shape: ModelShape, load: Load, where: MemoryLocation) -> MultiAdapterTraining:
    """Return a training of members of that size; their number is not known."""
    return MultiAdapterTraining(
        shape=shape,
        adapters=MANY,
        rank=load.rank,
        targets=load.targets,
        rows=load.rows,
        sequence=load.tokens,
        dtype=Width.BF16 if load.dtype == "bfloat16" else Width.FP32,
        base_dtype=BaseWidth(load.base_dtype),
        where=where,
        is_paired=load.is_paired,
    )


def too_large(base: TrainableBase, load: Load, *, gpus: int) -> InsufficientDeviceMemory | None:
    """Return why no device here can hold one adapter over a base, and what would fit; empty if one can.

    Without a GPU, RAM counts. Memory of unknown size is not checked.
    """
    there = rooms_here(gpus=gpus)
    training = _multi_adapter(base.shape, load, MemoryLocation.CUDA if gpus else MemoryLocation.CPU)
    return no_room(training, there, _as_asked, _WORDS, lambda: _shapes(load)) if there else None


def what_fits(args: LoraArgs, room_bytes: int) -> str:
    """Return which sizes of an adapter would fit into so much RAM, with its base."""
    base = find_base(args.base)
    load = Load(
        rank=args.rank,
        targets=args.targets,
        rows=args.batch,
        tokens=args.max_seq_len,
        dtype=args.dtype,
        base_dtype=args.base_dtype,
        is_paired=args.method != "sft",
    )
    training = changed(_multi_adapter(base.shape, load, MemoryLocation.CPU), adapters=1)
    return "; ".join(map(str, smaller(room_bytes, training, _as_asked, _WORDS)))


def _as_asked(training: MultiAdapterTraining) -> MultiAdapterEstimate:
    """Estimate with the shared part, since the number of members is unknown."""
    return changed(estimate_adapters(changed(training, adapters=MANY)), adapters=training.adapters)


def rooms_here(*, gpus: int) -> list[MemoryCapacity]:
    """Return the memory of each device, or the RAM; empty if unknown."""
    return _devices() if gpus else _machine()


def _devices() -> list[MemoryCapacity]:
    here = surroundings()
    rooms = here.rooms() if here.count_gpus() else {}
    return [MemoryCapacity(name=name, room_bytes=size_bytes) for name, size_bytes in rooms.items()]


def _machine() -> list[MemoryCapacity]:
    memory = surroundings().memory()
    if memory is None or memory.total_bytes is None or memory.most_bytes is None:
        return []
    why = f"of {format_size(memory.total_bytes)}; the rest is reserved for the system"
    if memory.room_bytes is not None:
        why += f"; {format_size(memory.room_bytes)} of it free now"
    return [MemoryCapacity(name="this machine", room_bytes=memory.most_bytes, why=why)]


def _shapes(load: Load) -> dict[str, ModelShape]:
    return {name: one.shape for name, one in bases_at_hand(load).items()}


def bases_at_hand(load: Load) -> dict[str, TrainableBase]:
    """Return the available bases that support rows of such a length."""
    return {name: one for name, one in bases_here().items() if one.positions >= load.tokens}


def lora_needs(base: TrainableBase, load: Load, *, gpus: int, most: int = 0) -> Needs:
    """Return what an adapter needs: in a shared process the base counts once."""
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
    """Return what the completion of prompts needs, one row at a time."""
    one = changed(load, rows=1, is_paired=False)
    total_gib = member_needs(base.shape, one, MemoryLocation.CUDA if gpus else MemoryLocation.CPU).total_bytes / GIB
    return Needs(gpu=gpus, vram_gib=total_gib, shares=True) if gpus else Needs(memory_gib=total_gib)


def reading_needs(base: TrainableBase) -> Needs:
    """Return what a base needs while it is loaded."""
    return Needs(memory_gib=(2 * base.size_bytes + IMPORTS_BYTES) / GIB)


# What adapters share on a machine that is not known yet: the base, and its size.


class _LoraSizeArgs(Protocol):
    """The arguments of language/lora that decide its size."""

    @property
    def base(self) -> str: ...
    @property
    def dtype(self) -> Dtype: ...
    @property
    def base_dtype(self) -> BaseDtype: ...
    @property
    def method(self) -> TrainingMethod: ...
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
    """Return the base of an adapter, by content, with what it needs on a device and on a CPU."""
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
            base_dtype=args.base_dtype,
            is_paired=args.method != "sft",
        )
        return placed_needs(base.shape, load, where)

    on_device, on_cpu = needs(MemoryLocation.CUDA), needs(MemoryLocation.CPU)
    # Bases are shared on devices only: an unknown device counts as one.
    dtype = settled_dtype(args.dtype, on_gpu=args.gpus != 0)
    return SharedBase(
        share_key=share_key(map(digest_of, files), dtype, args.base_dtype),
        base_bytes=on_device.base_bytes,
        member_bytes=on_device.member_bytes,
        base_ram_bytes=on_cpu.base_bytes,
        member_ram_bytes=on_cpu.member_bytes,
        about=about,
    )


def _judge(args: _LoraSizeArgs, base: Outline) -> None:
    """Raise if the base is not here and was replaced since the plan was made."""
    checking = LanguageArgsChecker(LORA)
    checking.length(args.max_seq_len, base)
    checking.targets(args.targets, base.shape, args.rank)
    checking.refuse()


def _base_at(text: str) -> TrainableBase | Outline:
    """Return the facts of a base; if it is downloaded elsewhere, those of config.json, the only file here."""
    try:
        return find_base(text)
    except BadInput:
        if not (Path(text) / CONFIG).is_file():
            raise
        return read_config_alone(Path(text), "this base")


# What a training of all weights needs, and what would fit instead.

_STATES = 4
"""For every weight, in 32 bits: itself, its gradient and two moments."""
_OF_TENSORS = ("weights", "gradients", "optimiser", "activations", "logits")
_OTHERWISE = "use a smaller base, or train an adapter, which needs far less memory: language/lora"


@frozen
class FullTrainingSpec:
    """A training of all weights of a base."""

    base: TrainableBase
    load: Load
    accumulate: int
    is_packed: bool

    @property
    def copy_bytes(self) -> int:
        """All weights, in the training precision."""
        return self.base.shape.parameters * Width.FP32.bytes

    @property
    def training(self) -> TrainingSpec:
        """The same as a training of the memory estimates."""
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
    """Return what a training of all weights needs."""
    if not gpus:
        return Needs(memory_gib=on_cpu_bytes(whole) / GIB)
    return Needs(gpu=gpus, vram_gib=on_gpu_bytes(whole) / GIB, shares=True)


def full_too_large(whole: FullTrainingSpec, *, gpus: int) -> InsufficientDeviceMemory | None:
    """Return why no device here can hold such a training, and what would fit; empty if one can.

    Without a GPU, RAM counts. Memory of unknown size is not checked.
    """
    rooms = rooms_here(gpus=gpus)
    if not rooms:
        return None
    takes = on_gpu_bytes if gpus else on_cpu_bytes
    needed_bytes = takes(whole)
    load, kept_bytes = whole.load, _STATES * whole.copy_bytes
    numbers = (
        f"training every weight takes {format_size(needed_bytes)}: {format_size(kept_bytes)} for weights, gradients "
        f"and moments, the rest for {load.rows} × {load.tokens} tokens and temporary copies"
    )
    return refusal(numbers, needed_bytes, rooms, lambda room: _fitting(room, whole, takes), _OTHERWISE)


def on_gpu_bytes(whole: FullTrainingSpec) -> int:
    """Estimate the memory on a device, with the context of such a device."""
    return estimate(whole.training, gpu=next(iter(surroundings().rooms()), "")).total_bytes


def on_cpu_bytes(whole: FullTrainingSpec) -> int:
    """Estimate the RAM: during training, or while the weights are written.

    The best weights so far are kept beside the current ones. A narrower base keeps its precision.
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
    """Return what would fit: fewer rows, or fewer tokens, or the minimum of both, or another base."""
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
