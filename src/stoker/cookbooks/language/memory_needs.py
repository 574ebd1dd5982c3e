"""Memory that the stages of this cookbook need: on a device if they compute on a GPU, otherwise RAM."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from stoker.authoring import Needs, SharedBase
from stoker.cookbooks.language.arguments import (
    ALL_LINEAR,
    DEFAULT_TOKENS,
    LORA,
    BaseDtype,
    BasePath,
    Dtype,
    LoraArgs,
    Optimizer,
    SettledDtype,
    TrainingMethod,
    can_compile,
    settled_dtype,
    share_key,
)
from stoker.cookbooks.language.bases import CONFIG, Outline, TrainableBase, read_config_alone
from stoker.cookbooks.language.checks import LanguageArgsChecker, base_facts, bases_here, find_base, whole_modules
from stoker.cookbooks.language.compute.general_shape import block_name, general_shape
from stoker.cookbooks.language.compute.matrices import meant_by
from stoker.cookbooks.language.saved_quantisation import has_wide_scales
from stoker.core.device import GIB
from stoker.core.errors import BadInput, InsufficientDeviceMemory, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.text import format_size
from stoker.devices.estimate.fitting_adapters import no_room, smaller
from stoker.devices.estimate.model_shapes import ModelShape, read_shape
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
    has_wide_scales: bool = False
    """True if a base in four bits was saved without double quantisation."""
    is_paired: bool = False
    """True if each is a pair: two rows."""
    is_general: bool = False
    """True if transformers computes the base."""
    dora: bool = False
    """True if adapters have magnitudes."""
    whole: int = 0
    """Number of embeddings and heads that are trained beside each."""
    is_compiled: bool = True
    """False if kernels can't be compiled where it runs on a GPU."""


def load_over(base: TrainableBase | Outline, *, base_dtype: BaseDtype, path: BasePath, **sizes: Any) -> Load:
    """Return a load over a base: how the base is kept and computed, with the other sizes."""
    return Load(
        base_dtype=kept_as(base, base_dtype),
        has_wide_scales=has_wide_scales(base.config),
        is_general=is_general(base, path),
        **sizes,
    )


def adapter_load(
    base: TrainableBase | Outline,
    args: _AdapterSizeArgs,
    *,
    tokens: int,
    dtype: SettledDtype,
    targets: tuple[str, ...] | None = None,
    is_compiled: bool = True,
) -> Load:
    """Return the load of an adapter over a base; `targets` are those of the arguments, or what they mean."""
    return load_over(
        base,
        base_dtype=args.base_dtype,
        path=args.path,
        rank=args.rank,
        targets=targets_in_block(base, args.targets if targets is None else targets),
        rows=args.batch,
        tokens=tokens,
        dtype=dtype,
        is_paired=args.method != "sft",
        dora=args.dora,
        whole=len(whole_modules(args.modules_to_save, base)),
        is_compiled=is_compiled,
    )


def compiles_here() -> bool:
    """Return False if kernels can't be compiled for the GPUs of this machine; another machine's compile."""
    return can_compile() or not _devices()


def member_needs(shape: ModelShape, load: Load, where: MemoryLocation) -> MultiAdapterNeeds:
    """Return what a base needs once, and one adapter beside it."""
    return estimate_adapters(multi_adapter(shape, load, where)).needs


def placed_needs(shape: ModelShape, load: Load, where: MemoryLocation) -> MultiAdapterNeeds:
    """Return the same for other machines, where members of any size must agree on the base's size."""
    training = multi_adapter(shape, load, where)
    found = estimate_adapters(training).needs
    return MultiAdapterNeeds(
        base_bytes=max(steady_base_bytes(training), found.base_bytes), member_bytes=found.member_bytes
    )


def multi_adapter(shape: ModelShape, load: Load, where: MemoryLocation) -> MultiAdapterTraining:
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
        has_wide_scales=load.has_wide_scales,
        is_general=load.is_general,
        where=where,
        is_paired=load.is_paired,
        dora=load.dora,
        whole=load.whole,
        is_compiled=load.is_compiled,
    )


def too_large(base: TrainableBase, load: Load, *, gpus: int) -> InsufficientDeviceMemory | None:
    """Return why no device here can hold one adapter over a base, and what would fit; None if one can.

    Without a GPU, RAM counts. Memory of unknown size is not checked.
    """
    there = rooms_here(gpus=gpus)
    training = multi_adapter(base.shape, load, MemoryLocation.CUDA if gpus else MemoryLocation.CPU)
    return no_room(training, there, _as_asked, _WORDS, lambda: _shapes(load)) if there else None


def what_fits(args: LoraArgs, room_bytes: int) -> str:
    """Return which sizes of an adapter would fit into so much RAM, with its base."""
    base = find_base(args.base)
    load = adapter_load(base, args, tokens=args.max_seq_len, dtype=args.dtype)
    training = changed(multi_adapter(base.shape, load, MemoryLocation.CPU), adapters=1)
    return "; ".join(map(str, smaller(room_bytes, training, _as_asked, _WORDS)))


def is_general(base: TrainableBase | Outline, path: BasePath) -> bool:
    """Return True if transformers computes a base."""
    return path == "general" or bool(base.differs)


def kept_as(base: TrainableBase | Outline, wanted: BaseDtype) -> BaseDtype:
    """Return how the matrices of a base are kept in memory."""
    return base.quantised if wanted == "auto" else wanted


def targets_in_block(base: TrainableBase | Outline, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the matrices of a block that words mean, as its shape names them; every one if that is not known yet."""
    names = [one.name for one in base.matrices]
    meant = dict.fromkeys(block_name(name) for word in words for name in meant_by(word, names))
    known = {one.name for one in base.shape.linears}
    return tuple(name if name in known else name.rpartition(".")[2] for name in meant) or (ALL_LINEAR,)


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
        return Needs(
            memory_gib=found.total_bytes / GIB,
            base_memory_gib=found.base_bytes / GIB,
            state_gib=found.state_bytes / GIB,
            pass_gib=found.pass_bytes / GIB,
            most=most,
        )
    training, here = multi_adapter(base.shape, load, MemoryLocation.CUDA), surroundings()
    remembered = here.remembered(training)
    found = estimate_adapters(training, gpu=next(iter(here.rooms()), ""), correction=remembered.correction).needs
    return Needs(
        gpu=gpus,
        vram_gib=found.total_bytes / GIB,
        base_gib=found.base_bytes / GIB,
        state_gib=found.state_bytes / GIB,
        pass_gib=found.pass_bytes / GIB,
        shares=True,
        most=most,
        peaks=remembered.names,
        foretold_percent=100.0 if remembered.correction is None else remembered.correction.percent,
    )


def reading_needs(base: TrainableBase) -> Needs:
    """Return what a base needs while it is loaded."""
    return Needs(memory_gib=(2 * base.size_bytes + IMPORTS_BYTES) / GIB)


# What adapters share on a machine that is not known yet: the base, and its size.


class _AdapterSizeArgs(Protocol):
    """The arguments of an adapter that decide its size over a base, beside its tokens and precision."""

    @property
    def base_dtype(self) -> BaseDtype: ...
    @property
    def method(self) -> TrainingMethod: ...
    @property
    def path(self) -> BasePath: ...
    @property
    def rank(self) -> int: ...
    @property
    def dora(self) -> bool: ...
    @property
    def modules_to_save(self) -> tuple[str, ...]: ...
    @property
    def targets(self) -> tuple[str, ...]: ...
    @property
    def batch(self) -> int: ...


class _LoraSizeArgs(_AdapterSizeArgs, Protocol):
    """The arguments of language/lora that decide its size."""

    @property
    def base(self) -> str: ...
    @property
    def dtype(self) -> Dtype: ...
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
        tokens = min(args.max_seq_len or DEFAULT_TOKENS, base.positions)
        dtype = settled_dtype(args.dtype, on_gpu=where is MemoryLocation.CUDA)
        load = adapter_load(base, args, tokens=tokens, dtype=dtype)
        return placed_needs(base.shape, load, where)

    on_device, on_cpu = needs(MemoryLocation.CUDA), needs(MemoryLocation.CPU)
    # Bases are shared on devices only: an unknown device counts as one.
    dtype = settled_dtype(args.dtype, on_gpu=args.gpus != 0)
    return SharedBase(
        share_key=share_key(map(digest_of, files), dtype, args.base_dtype, args.path, args.modules_to_save),
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
    checking.targets(args.targets, base, args.rank)
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

_OPTIMISERS = {
    "adamw": Optimiser.ADAMW_FUSED,
    "adamw8bit": Optimiser.ADAMW_8BIT,
    "adafactor": Optimiser.ADAFACTOR,
}
_MOMENTS = {"adamw": 8, "adamw8bit": 2, "adafactor": 0}
"""Bytes for every weight that an optimiser keeps."""
_WIDE = 4
"""Bytes of a number in 32 bits."""
_OF_PASSES = ("activations", "logits")
_BITSANDBYTES_BYTES = 64 * 1024**2
_SPARE_PERCENT = 8
"""Of RAM: what was measured beyond the sum of tensors, for a base of 50 million weights."""
_OTHERWISE = "use a smaller base, or train an adapter, which needs far less memory: language/lora"


@frozen
class FullTrainingSpec:
    """A training of all weights of a base."""

    base: TrainableBase
    load: Load
    accumulate: int
    is_packed: bool
    optimizer: Optimizer = "adamw"
    recomputes: bool = False
    """Blocks are computed again for the backward pass."""
    ranks: int = 1

    @property
    def copy_bytes(self) -> int:
        """All weights, in 32 bits."""
        return self.base.shape.parameters * _WIDE

    @property
    def state_bytes(self) -> int:
        """Weights and gradients in 32 bits, and moments, of all ranks together."""
        return self.base.shape.parameters * (2 * _WIDE + _MOMENTS[self.optimizer])

    @property
    def width(self) -> Width:
        """What is computed in."""
        return Width.BF16 if self.load.dtype == "bfloat16" else Width.FP32

    @property
    def masters_bytes(self) -> int:
        """What weights with 16 bits have beside them: themselves and their gradients in 32 bits, and wider moments."""
        if self.width is Width.FP32:
            return 0
        shape, moments = self.base.shape, _MOMENTS[self.optimizer] // 2 if self.optimizer == "adamw" else 0
        # Adafactor's copies of the largest matrix are wider, too.
        copies = shape.vocabulary * shape.hidden if self.optimizer == "adafactor" else 0
        return shape.parameters * (_WIDE + _WIDE - self.width.bytes + moments) + copies * _WIDE

    @property
    def block_gradient_bytes(self) -> int:
        """Gradients of a block's products beside its activations; without recomputing, those of later blocks are free.

        On an H200 the peak was 2,444 MiB where 2,234 were estimated without them.
        """
        shape, tokens = self.base.shape, self.training.batch * self.training.sequence
        return self.recomputes * self.width.bytes * tokens * (4 * shape.inner + 3 * shape.hidden)

    @property
    def together_bytes(self) -> int:
        """What one of several ranks holds whole, with gradients: two blocks, and what is outside of blocks."""
        shape = self.base.shape
        outside = shape.vocabulary * shape.hidden * (1 if shape.is_tied else 2)
        return 2 * self.width.bytes * (outside + 2 * (shape.parameters - outside) // shape.layers)

    @property
    def narrow_bytes(self) -> int:
        """The weights in 16 bits, if they are computed with beside those in 32."""
        return 0 if self.width is Width.FP32 else self.copy_bytes // 2

    @property
    def training(self) -> TrainingSpec:
        """The same as a training of the memory estimates, of one rank."""
        return TrainingSpec(
            shape=_estimated_shape(self.base),
            method=Method.FULL,
            batch=-(-self.load.rows // self.ranks),
            sequence=self.load.tokens,
            dtype=self.width,
            optimiser=_OPTIMISERS[self.optimizer],
            checkpointing=self.recomputes,
            padded=self.is_packed,
            accumulation=self.accumulate,
            loss_chunk=chunk_tokens(self.base.shape),
        )


def _estimated_shape(base: TrainableBase) -> ModelShape:
    """Return a shape with blocks that can be estimated: its own, or else blocks like Llama's as wide."""
    if not base.shape.counted:
        return base.shape
    with suppress(StokerError):
        return read_shape(base.config)
    config, experts = dict(base.config), base.config.get("num_experts_per_tok")
    if isinstance(experts, int):
        config["intermediate_size"] = experts * (config.get("moe_intermediate_size") or base.shape.inner)
    return general_shape(config, {}).model


def full_needs(whole: FullTrainingSpec, *, gpus: int) -> Needs:
    """Return what a training of all weights needs; each rank has a device, or a core."""
    ranks = whole.ranks
    if not gpus:
        return Needs(cpu=ranks, memory_gib=on_cpu_bytes(whole) / GIB, ranks=ranks)
    return Needs(cpu=ranks, gpu=gpus * ranks, vram_gib=on_gpu_bytes(whole) / GIB, shares=ranks == 1, ranks=ranks)


def full_too_large(whole: FullTrainingSpec, *, gpus: int) -> InsufficientDeviceMemory | None:
    """Return why no device here can hold such a training, and what would fit; None if one can.

    Without a GPU, RAM counts. Memory of unknown size is not checked.
    """
    rooms = rooms_here(gpus=gpus)
    if not rooms:
        return None
    takes = on_gpu_bytes if gpus else on_cpu_bytes
    needed_bytes = takes(whole)
    load, ranks = whole.load, f" over {whole.ranks} ranks" if whole.ranks > 1 else ""
    where = " on each device" if gpus and ranks else ""
    numbers = (
        f"training every weight takes {format_size(needed_bytes)}{where}: {format_size(whole.state_bytes)}{ranks} for "
        f"weights, gradients and {whole.optimizer}'s moments, the rest for {load.rows} × {load.tokens} tokens and "
        "temporary copies"
    )
    return refusal(numbers, needed_bytes, rooms, lambda room: _fitting(room, whole, takes), _OTHERWISE)


def on_gpu_bytes(whole: FullTrainingSpec) -> int:
    """Estimate the memory on a device, with the context of such a device."""
    estimated = estimate(whole.training, gpu=next(iter(surroundings().rooms()), ""))
    if whole.ranks == 1 and not whole.base.shape.counted:
        return estimated.total_bytes + whole.masters_bytes + whole.block_gradient_bytes
    passes_bytes = sum(map(estimated.term, (*_OF_PASSES, "fragmentation", "context"))) + whole.block_gradient_bytes
    whole_bytes = whole.narrow_bytes if whole.ranks == 1 else whole.together_bytes
    return passes_bytes + whole_bytes + -(-whole.state_bytes // whole.ranks)


def on_cpu_bytes(whole: FullTrainingSpec) -> int:
    """Estimate the RAM of all ranks: during training, or while the weights are written.

    The best weights so far are kept beside the current ones, and ranks' parts are put together to write them. A
    narrower base keeps its precision.
    """
    every_bytes, read_bytes, ranks = whole.copy_bytes, whole.base.size_bytes, whole.ranks
    estimated = estimate(whole.training)
    passes_bytes = sum(map(estimated.term, _OF_PASSES)) + whole.block_gradient_bytes
    wide_bytes = whole.state_bytes + whole.narrow_bytes
    learning_bytes = wide_bytes + ranks * passes_bytes + (ranks * whole.together_bytes if ranks > 1 else 0)
    writing_bytes = wide_bytes + min(read_bytes, SHARD_BYTES) + (every_bytes if ranks > 1 else 0)
    narrow_bytes = read_bytes if read_bytes < every_bytes else 0
    held_bytes = narrow_bytes + every_bytes + max(learning_bytes, writing_bytes)
    imports_bytes = IMPORTS_BYTES + (_BITSANDBYTES_BYTES if whole.optimizer == "adamw8bit" else 0)
    return ranks * imports_bytes + held_bytes * (100 + _SPARE_PERCENT) // 100


def _fitting(
    room_bytes: int, whole: FullTrainingSpec, takes: Callable[[FullTrainingSpec], int]
) -> tuple[SmallerOption, ...]:
    """Return what would fit: fewer rows, or fewer tokens, or less memory for each weight, or another base."""
    load = whole.load

    def asking(**less: int) -> int:
        return takes(changed(whole, load=changed(load, **less)))

    rows = largest_fit(room_bytes, range(whole.ranks, load.rows), lambda value: asking(rows=value))
    tokens = largest_fit(room_bytes, fewer_tokens(load.tokens), lambda value: asking(tokens=value))
    cheaper = {} if whole.recomputes else {"gradient_checkpointing=true": changed(whole, recomputes=True)}
    if whole.optimizer == "adamw" and whole.ranks == 1:
        cheaper |= {f"optimizer={one}": changed(whole, optimizer=one) for one in ("adamw8bit", "adafactor")}
    found = [
        *(SmallerOption(change=f"batch={n} (instead of {load.rows})", total_bytes=taken) for n, taken in rows),
        *(
            SmallerOption(change=f"max_seq_len={n} (instead of {load.tokens})", total_bytes=taken)
            for n, taken in tokens
        ),
        *(
            SmallerOption(change=change, total_bytes=taken)
            for change, one in cheaper.items()
            if (taken := takes(one)) <= room_bytes
        ),
    ]
    if found:
        return tuple(found)
    shortest = min(load.tokens, STEP_TOKENS)
    least_bytes = asking(rows=whole.ranks, tokens=shortest)
    if least_bytes <= room_bytes:
        return (SmallerOption(change=f"batch={whole.ranks} max_seq_len={shortest}", total_bytes=least_bytes),)
    others = bases_at_hand(load)
    shapes = {name: one.shape for name, one in others.items()}
    return bases_that_fit(room_bytes, shapes, lambda name: takes(changed(whole, base=others[name])))
