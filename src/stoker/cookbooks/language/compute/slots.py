"""Slots for adapters over one base, trained together."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor

from stoker.cookbooks.language.arguments import IGNORED, can_compile
from stoker.cookbooks.language.compute.banks import PLAIN, AdapterSpec, AdapterState, BankLayout, Optim, Pairs, Rows
from stoker.cookbooks.language.compute.base_weights import BaseWeights, FrozenBase
from stoker.cookbooks.language.compute.decoding import SequenceCache
from stoker.cookbooks.language.compute.math import (
    AttentionMask,
    PackedLayout,
    PointwiseKernels,
    mask_of,
)
from stoker.cookbooks.language.compute.module_copies import OuterModule
from stoker.cookbooks.language.compute.objectives import AnswerInput
from stoker.cookbooks.language.compute.passes import (
    AdapterPasses,
    AdapterSlotRows,
    LossSums,
    PassInput,
    PassResult,
    PassRunner,
    is_out_of_memory,
)
from stoker.cookbooks.language.compute.slot_state import AdapterSlotState
from stoker.core.errors import BadInput

# Whole steps, and the passes of evaluations, as CUDA graphs: recorded once for each shape, replayed with new numbers.
#
# What changes from step to step (tokens, labels, learning rates, which slots are updated) is in tensors at fixed
# addresses, so a graph is valid for its shapes. The first step of a shape runs without recording, since many shapes
# occur only once.
#
# Graphs share one memory pool, since no two run at a time, and passes without a graph use it too: it is as large as the
# largest needs. So nothing that outlives a pass may be allocated in it: the next replay would overwrite it. If memory
# runs out, all graphs are freed, and with them the pool.
#
# Nothing can be compiled during a recording. So the inputs of a step have the same layout with and without recording:
# kernels for many shapes also depend on how their tensors are strided.

_Pool = tuple[int, int]
_PassKind = Literal["step", "losses"]
_LEAST_SEEN: Mapping[_PassKind, int] = {"step": 1, "losses": 3}
"""Passes of a shape that run before one is recorded. Recording takes as long as two large passes of an evaluation."""
_MOST: Mapping[_PassKind, int] = {"step": 16, "losses": 4}
_MOST_SHORT = 3
"""After freeing graphs for a pass so many times, no more are recorded."""
_MOST_FAILED = 2
_MOST_FAILED_IN_ALL = 8
"""After so many failures with enough memory, recording is not tried any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    given: PassInput
    result: Tensor


class Graphs:
    """Runs passes, with graphs if there are any."""

    def __init__(self, passing: AdapterPasses) -> None:
        self._passing = passing
        self._seen: Counter[object] = Counter()
        self._failed: Counter[object] = Counter()
        self._recorded: dict[tuple[_PassKind, object], _Recorded] = {}
        self._stream = _side_stream()
        self._pool: _Pool | None = None
        self._times_short = 0
        self.why_not = ""
        """Why a step could not be recorded."""
        self.recorded_in_all = 0

    def step(self, given: PassInput) -> Tensor:
        """Run a step; return what `AdapterPasses.step` returns."""
        return self._run("step", self._passing.step, given)

    def losses(self, given: PassInput) -> Tensor:
        """Run a pass of an evaluation; return what `AdapterPasses.losses` returns."""
        return self._run("losses", self._passing.losses, given)

    def _run(self, kind: _PassKind, compute: Callable[[PassInput], Tensor], given: PassInput) -> Tensor:
        key: tuple[_PassKind, object] = (kind, _key(given))
        recorded = self._recorded.get(key) or self._newly_recorded(key, compute, given)
        if recorded is None:
            self._seen[key] += 1
            return self.plainly(compute, _copied(given))
        for name, tensor in _tensors(given).items():
            _tensors(recorded.given)[name].copy_(tensor, non_blocking=True)
        recorded.graph.replay()
        return recorded.result.clone()

    def plainly(self, compute: Callable[[PassInput], Tensor], given: PassInput) -> Tensor:
        """Run a pass without a graph, in the memory pool of the graphs."""
        if self._pool is None:
            return compute(given)
        self._passing.prepare(given.tokens.shape[2])
        with self._in_pool(self._pool):
            result = compute(given)
        return result.clone()

    def let_go(self) -> bool:
        """Free all graphs; return True if there were any."""
        held = bool(self._recorded)
        self._times_short += held
        self._drop()
        return held

    def leave_out(self, slot: int) -> None:
        """Drop graphs of steps in which a slot has rows; free the pool if no others are left."""
        gone = [key for key, record in self._recorded.items() if slot in record.given.slots]
        for key in gone:
            del self._recorded[key]
        if gone and not self._recorded:
            self._drop()

    def _newly_recorded(
        self, key: tuple[_PassKind, object], compute: Callable[[PassInput], Tensor], given: PassInput
    ) -> _Recorded | None:
        """Record a pass that occurs again; None if that fails: it then runs, or fails, without a graph."""
        kind, _ = key
        count = sum(1 for one, _ in self._recorded if one == kind)
        if self._seen[key] < _LEAST_SEEN[kind] or count >= _MOST[kind] or self._is_in_vain(key):
            return None
        try:
            self._recorded[key] = self._record(compute, given)
        except RuntimeError as error:
            cause = _cause(error)
            self.why_not = str(cause).partition("\n")[0]
            is_short = is_out_of_memory(cause)
        else:
            self.recorded_in_all += 1
            return self._recorded[key]
        if is_short:
            self._times_short += 1
        else:
            self._failed[key] += 1
        # All of them: after a failed recording torch can't record in that pool again.
        self._drop()
        return None

    def _is_in_vain(self, key: object) -> bool:
        has_failed = self._failed[key] >= _MOST_FAILED or self._failed.total() >= _MOST_FAILED_IN_ALL
        return has_failed or self._times_short >= _MOST_SHORT

    def _drop(self) -> None:
        self._recorded.clear()
        self._pool = None
        # The error keeps what a failed pass allocated alive, perhaps by a cycle.
        gc.collect()
        torch.cuda.empty_cache()

    def _record(self, compute: Callable[[PassInput], Tensor], given: PassInput) -> _Recorded:
        """Record a pass. Nothing runs yet: its first run has compiled every kernel."""
        kept = _copied(given)
        self._passing.prepare(given.tokens.shape[2])
        graph, pool = torch.cuda.CUDAGraph(), self._pool or torch.cuda.graph_pool_handle()
        with _recording(graph, pool, self._stream):
            result = compute(kept)
        # Not before: a pool exists as long as a graph uses it.
        self._pool = pool
        return _Recorded(graph=graph, given=kept, result=result)

    @contextmanager
    def _in_pool(self, pool: _Pool) -> Iterator[None]:
        """Compute in the pool, on the stream of its blocks; torch's own graphs warm up the same way.

        What autograd's threads allocate (attention in the backward pass) is outside of the pool.
        """
        outside, device = torch.cuda.current_stream(), torch.cuda.current_device()
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            torch._C._cuda_beginAllocateCurrentThreadToPool(device, pool)  # noqa: SLF001 - as in `_leave`
            try:
                yield
            finally:
                _leave(pool)
                outside.wait_stream(self._stream)


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: _Pool, stream: torch.cuda.Stream) -> Iterator[None]:
    """Record a block; after a failure restore torch's state, which torch does not do itself."""
    outside, collects = torch.cuda.current_stream(), gc.isenabled()
    gc.collect()
    # Objects freed by the garbage collector meanwhile may call the device, which breaks a recording.
    gc.disable()
    try:
        # Calls of other threads do not concern a recording.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            yield
    except RuntimeError:
        with suppress(RuntimeError):
            # Fails if the recording ended normally, and the graph releases the pool.
            _leave(pool)
        raise
    finally:
        torch.cuda.set_stream(outside)
        if collects:
            gc.enable()


def _cause(error: BaseException) -> BaseException:
    """Return the cause of a failed recording: the last error only reports that it could not end."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return error


def _leave(pool: _Pool) -> None:
    """Stop allocating in the pool."""
    device = torch.cuda.current_device()
    torch._C._cuda_endAllocateToPool(device, pool)  # noqa: SLF001 - no public name takes the pool of a graph
    torch._C._cuda_releasePool(device, pool)  # noqa: SLF001 - the same


@cache
def _side_stream() -> torch.cuda.Stream:
    """Return the second stream of this process: each stream that multiplies gets its own workspace, and keeps it."""
    return torch.cuda.Stream()


def _key(given: PassInput) -> object:
    shapes = tuple((name, tuple(tensor.shape)) for name, tensor in _tensors(given).items())
    objective = None if given.answers is None else given.answers.objective
    return (given.slots, shapes, given.mask.longest, given.updates_any, given.gathers, given.drops, objective)


def _tensors(given: PassInput) -> dict[str, Tensor]:
    own = {name: getattr(given, name) for name in ("tokens", "labels", "shares", "update", "rates")}
    return own | given.mask.tensors | ({} if given.answers is None else given.answers.tensors)


def _copied(given: PassInput) -> PassInput:
    """Return copies in tensors at fixed addresses."""
    own = {name: tensor.clone() for name, tensor in _tensors(given).items()}
    mask = replace(given.mask, **{name: own.pop(name) for name in given.mask.tensors})
    answers = given.answers
    if answers is not None:
        answers = replace(answers, **{name: own.pop(name) for name in answers.tensors})
    return replace(given, mask=mask, answers=answers, **own)


_EVEN_RANK = 8
"""On a GPU ranks are padded to a multiple of this: kernels read sixteen bytes at a time."""


class Slots:
    """`count` slots for adapters of up to `rank`. Not thread-safe."""

    def __init__(  # noqa: PLR0913 - the size of the slots, and how they compute
        self,
        base: FrozenBase,
        *,
        count: int,
        rank: int,
        targets: tuple[str, ...],
        dora: bool = False,
        whole: tuple[str, ...] = (),
        trains: bool = True,
        compiles: bool | None = None,
        records: bool | None = None,
    ) -> None:
        """Allocate the slots, with magnitudes if an adapter may have any (`dora`).

        `whole`: full names of the modules of which adapters have copies of their own. Without `trains` there is memory
        for `logits` only.

        `compiles` and `records`: kernels and CUDA graphs (default: if available).
        """
        is_gpu = base.device != "cpu"
        self.base = base
        self.count = count
        even = -(-rank // _EVEN_RANK) * _EVEN_RANK if is_gpu else rank
        self.layout = BankLayout(base.shape, targets, even, dora=dora)
        self._whole = [one for one in base.outer_modules() if one.name in whole] if whole else []
        self._kept = ("weights", "first", "second") if trains else ("weights",)
        """What is loaded of an adapter."""
        self._state = AdapterSlotState.empty(self.layout, count, base, self._whole, trains=trains)
        self._specs: list[AdapterSpec | None] = [None] * count
        self._names: list[dict[str, Any]] = [{} for _ in range(count)]
        self._gathering: set[int] = set()
        self._plain: dict[tuple[int, int], AttentionMask] = {}
        self._indexes: dict[tuple[int, ...], Tensor] = {}
        self._shapes: set[object] = set()
        kernels = pointwise_kernels(compiles=can_compile() if compiles is None and is_gpu else bool(compiles))
        self._packed_layout: PackedLayout = "mask"
        if isinstance(base, BaseWeights) and base.takes_ragged:
            self._packed_layout = kernels.packed_layout(base.shape.model.head_dim)
        self._passing = _passes_over(base, self.layout, self._state, kernels, self._whole)
        for slot in range(count) if whole else ():
            self._write_copies(slot, {}, "weights")
            self._state.settle(slot, AdapterSpec(rank=1, alpha=1.0, targets=()), Optim(), 0)
        self._graphs = Graphs(self._passing) if is_gpu and records is not False and base.records else None

    def load(self, slot: int, adapter: AdapterState, optim: Optim | None = None) -> None:
        """Load an adapter into a slot, with its optimiser state. Raises `BadInput` for a part without a place."""
        places = {*self.layout.names, *(one.name for one in self._whole)}
        if odd := [name for name in adapter.weights if name not in places]:
            message = f"an adapter has a part for {odd[0]}, which is no target here"
            raise BadInput(message, hint="use the base that it was trained on")
        state, optim = self._state, optim or Optim()
        with torch.no_grad():
            for kept in self._kept:
                self.layout.write(getattr(adapter, kept), self._rows(slot, kept))
                self._write_copies(slot, getattr(adapter, kept), kept)
            state.settle(slot, adapter.spec, optim, adapter.steps)
            if self.layout.m_size:
                matrices = {name: one for name, one in adapter.weights.items() if name not in adapter.spec.whole}
                weighed = matrices if adapter.spec.dora else {}
                begins = all(len(one) == PLAIN for one in weighed.values())
                self._passing.set_magnitudes(slot, weighed.keys(), begins=begins)
        self._gathering.discard(slot)
        self._specs[slot] = adapter.spec
        self._names[slot] = dict.fromkeys(adapter.weights)

    def adapter(self, slot: int) -> AdapterState:
        """Return a copy of the adapter in a slot."""
        spec, state = self._spec(slot), self._state
        return AdapterState(
            spec=spec,
            weights=self.weights(slot),
            first=self._read(slot, "first"),
            second=self._read(slot, "second"),
            steps=int(state.updates[slot]),
        )

    def weights(self, slot: int) -> Pairs:
        """Return a copy of the adapter's matrices, without the optimiser's state."""
        return self._read(slot, "weights")

    def snapshot(self, slot: int) -> Callable[[], Pairs]:
        """Return a function that makes that copy of the matrices as they are now, in any thread."""
        return self._snapshot(slot, "weights")

    def _read(self, slot: int, kept: str) -> Pairs:
        return self._snapshot(slot, kept)()

    def _snapshot(self, slot: int, kept: str) -> Callable[[], Pairs]:
        self._refuse_unless_trained()
        spec, rows = self._spec(slot), self._rows(slot, kept)
        copies = {
            one.name: tuple(part.to("cpu", copy=True) for part in one.split(row))
            for one, row in zip(self._whole, rows[-len(self._whole) :], strict=False)
            if one.name in spec.whole
        }
        matrices = self.layout.snapshot(self._names[slot], rows, spec)
        return lambda: matrices() | copies

    def _rows(self, slot: int, kept: str) -> Rows:
        """Return the numbers of a slot that trained tensors keep under a name."""
        return tuple(getattr(one, kept)[slot] for one in self._state.trained)

    def _write_copies(self, slot: int, given: Pairs, kept: str) -> None:
        """Write modules of an adapter's own: at the beginning the base's."""
        for module, numbers in zip(self._whole, self._state.copies, strict=True):
            row = getattr(numbers, kept)[slot]
            if module.name not in given and kept != "weights":
                row.zero_()
                continue
            parts = given.get(module.name, module.parts)
            if [one.shape for one in parts] != [one.shape for one in module.parts]:
                message = f"an adapter's copy of {module.name} has other parameters than the base"
                raise BadInput(message, hint="use the base that it was trained on")
            for part, own in zip(module.split(row), parts, strict=True):
                part.copy_(own)

    def _spec(self, slot: int) -> AdapterSpec:
        spec = self._specs[slot]
        if spec is None:
            raise IndexError(f"slot {slot} is empty")
        return spec

    def _refuse_unless_trained(self) -> None:
        if len(self._kept) == 1:
            raise TypeError("these slots have no memory for training")

    def clear(self, slot: int) -> None:
        """Empty a slot. Rows without labels for it have no effect."""
        empty = AdapterSpec(rank=1, alpha=1.0, targets=())
        self.load(slot, AdapterState(spec=empty, weights={}))
        self._specs[slot] = None

    def forget(self, slots: Sequence[int]) -> None:
        """Discard gradients since the last update."""
        self._state.forget(slots)
        self._gathering -= set(slots)

    @property
    def why_not_recorded(self) -> str:
        """Return why a step could not be recorded; empty if all could."""
        return "" if self._graphs is None else self._graphs.why_not

    @property
    def shapes_prepared(self) -> int:
        """Return how many shapes of passes ran for the first time, or were recorded."""
        return len(self._shapes) + (0 if self._graphs is None else self._graphs.recorded_in_all)

    def let_go(self) -> bool:
        """Free memory that only makes steps faster; return True if there was any."""
        return self._graphs is not None and self._graphs.let_go()

    def leave_out(self, slot: int) -> None:
        """Free the memory kept for steps in which a slot has rows: it is empty from now on."""
        if self._graphs is not None:
            self._graphs.leave_out(slot)

    def step(self, rows: AdapterSlotRows, *, update: Sequence[bool], rates: Sequence[float]) -> PassResult:
        """Pass rows to their slots, accumulate gradients, and update some slots with their learning rates."""
        self._refuse_unless_trained()
        waiting = {slot for slot, now in zip(rows.slots, update, strict=True) if not now}
        gathers = bool(waiting or self._gathering.intersection(rows.slots))
        self._gathering = (self._gathering - set(rows.slots)) | waiting
        given = self._given(rows, update, rates, gathers=gathers)
        self._shapes.add((given.tokens.shape, given.updates_any, given.gathers, given.drops))
        with _computing(self.base):
            if self._graphs is not None:
                return PassResult(self._graphs.step(given))
            return PassResult(self._passing.step(given))

    def losses(self, rows: AdapterSlotRows) -> LossSums:
        """Compute each slot's sum of token losses and number of learned tokens; changes nothing."""
        given = self._still(rows)
        self._shapes.add(given.tokens.shape)
        with _computing(self.base):
            if self._graphs is not None:
                return LossSums(self._graphs.losses(given))
            return LossSums(self._passing.losses(given))

    def reference(self, rows: AdapterSlotRows) -> Tensor:
        """Compute the log-probability of each answer of pairs under the base alone, `[n, answers]`, on the device."""
        return self._computed(self._passing.reference, self._still(rows))

    def _still(self, rows: AdapterSlotRows) -> PassInput:
        """Return the input of a pass that changes nothing."""
        return self._given(rows, [False] * len(rows.slots), [0.0] * len(rows.slots))

    def logits(self, slot: int, tokens: Any, cache: SequenceCache | None = None) -> Tensor:
        """Return the logits of one adapter after the last token of each row of `[rows, T]`; in 32 bits, on the CPU.

        With a cache of the base there is one row, and its tokens continue those of the cache.
        """
        shown = torch.as_tensor(tokens)[None]
        rows = AdapterSlotRows(slots=(slot,), tokens=shown, labels=torch.full_like(shown, IGNORED), denominators=(0.0,))
        compute = partial(self._passing.logits, cache=cache)
        return self._computed(compute, self._given(rows, (False,), (0.0,))).float().cpu()

    def _computed(self, compute: Callable[[PassInput], Tensor], given: PassInput) -> Tensor:
        with _computing(self.base):
            return compute(given) if self._graphs is None else self._graphs.plainly(compute, given)

    def _given(
        self, rows: AdapterSlotRows, update: Sequence[bool], rates: Sequence[float], *, gathers: bool = False
    ) -> PassInput:
        device, slots = self.base.device, tuple(rows.slots)
        shown = torch.stack([torch.as_tensor(rows.tokens).long(), torch.as_tensor(rows.labels).long()])
        _, n, count, length = shown.shape
        shares = [0.0 if denominator <= 0 else 1.0 / denominator for denominator in rows.denominators]
        tokens, labels = _on(shown, device)
        # Few copies: each costs the CPU as much as many kernels cost the GPU.
        share, rate, moved = _on(torch.tensor([shares, list(rates), [float(one) for one in update]]), device)
        return PassInput(
            slots=slots,
            index=self._index(slots),
            tokens=tokens,
            labels=labels,
            mask=self._mask(n * count, length, rows.segments),
            shares=share,
            update=moved > 0,
            rates=rate,
            updates_any=any(update),
            gathers=gathers,
            drops=any(spec is not None and spec.dropout > 0 for spec in map(self._specs.__getitem__, slots)),
            answers=self._answers(rows),
        )

    def _answers(self, rows: AdapterSlotRows) -> AnswerInput | None:
        answers, device = rows.answers, self.base.device
        if answers is None:
            return None
        shares = torch.as_tensor(answers.pair_shares, dtype=torch.float32)
        token_shares, betas = _on(torch.tensor([list(answers.token_shares), list(answers.betas)]), device)
        reference = answers.reference
        return AnswerInput(
            objective=answers.objective,
            places=_on(torch.as_tensor(answers.places).long(), device),
            reference=torch.zeros(len(shares), 2 * shares.shape[1], device=device) if reference is None else reference,
            pair_shares=_on(shares, device),
            token_shares=token_shares,
            betas=betas,
        )

    def _mask(self, rows: int, length: int, segments: Any) -> AttentionMask:
        if segments is None and (rows, length) in self._plain:
            return self._plain[rows, length]
        base = self.base
        packed = None if segments is None else torch.as_tensor(segments).reshape(rows, length)
        found = mask_of(rows, length, packed, self._packed_layout)
        mask = replace(found, **{name: _on(tensor, base.device) for name, tensor in found.tensors.items()})
        if segments is None:
            self._plain[rows, length] = mask
        return mask

    def _index(self, slots: tuple[int, ...]) -> Tensor | None:
        """Return the slots as a tensor at a fixed address: a recorded graph reads it again and again."""
        if slots == tuple(range(self.count)):
            return None
        if slots not in self._indexes:
            self._indexes[slots] = torch.tensor(slots, device=self.base.device)
        return self._indexes[slots]


def _passes_over(
    base: FrozenBase,
    layout: BankLayout,
    state: AdapterSlotState,
    kernels: PointwiseKernels,
    whole: Sequence[OuterModule],
) -> AdapterPasses:
    if isinstance(base, BaseWeights):
        return PassRunner(base, layout, state, kernels, whole)
    from stoker.cookbooks.language.compute.general_base import GeneralBase
    from stoker.cookbooks.language.compute.general_passes import GeneralPassRunner

    if not isinstance(base, GeneralBase):
        raise TypeError(f"{type(base).__name__} is no base")
    return GeneralPassRunner(base, layout, state, kernels, whole)


def pointwise_kernels(*, compiles: bool) -> PointwiseKernels:
    """Return the element-wise operations, as kernels of a GPU if they are to be compiled."""
    if not compiles:
        return PointwiseKernels()
    from stoker.cookbooks.language.compute.gpu_kernels import GpuKernels

    return GpuKernels()


def _on(tensor: Tensor | None, device: str) -> Any:
    if tensor is None or device == "cpu":
        return tensor
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)


@contextmanager
def _computing(base: FrozenBase) -> Iterator[None]:
    """Compute without autograd; on a CPU also without oneDNN, whose small products on Arm take ten times as long."""
    is_cpu, before = base.device == "cpu" and base.dtype == torch.float32, torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = before and not is_cpu
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mkldnn.enabled = before
