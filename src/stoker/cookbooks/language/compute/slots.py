"""Slots for adapters over one base, trained together: the engine as its users see it."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from stoker.cookbooks.language.compute.banks import AdapterSpec, AdapterState, BankLayout, Optim
from stoker.cookbooks.language.compute.base_weights import BaseWeights
from stoker.cookbooks.language.compute.math import (
    AttentionMask,
    PointwiseKernels,
    can_compile,
    looking_of,
    takes_ragged,
)
from stoker.cookbooks.language.compute.passes import (
    AdapterSlotRows,
    AdapterSlotState,
    PassInput,
    PassResult,
    PassRunner,
    is_out_of_memory,
)

# Whole steps as CUDA graphs: recorded once for each shape, replayed with new numbers.
#
# What changes from step to step (tokens, labels, learning rates, who is updated) lies in tensors that stay where they
# are, so a graph serves as long as shapes do. The first time that a shape is seen the step runs plainly, since many are
# seen only once.
#
# Records share one pool of memory, for no two run at a time, and passes that run plainly use that pool as well: it is
# there once, as large as the largest needs it. So whatever is to outlive a pass must not be allocated in it: the next
# replay would write over it. Where memory runs out, all records go, and with them the pool.
#
# A recording can compile nothing. So what a step is given looks the same plainly and recorded: kernels for many shapes
# are kept by how their tensors lie in others, too.

_Pool = tuple[int, int]
_MOST = 16
_MOST_SHORT = 3
"""So many times records make room for a pass; then no more are made."""
_MOST_FAILED = 2
_MOST_FAILED_IN_ALL = 8
"""So many times recording a step, or any, may fail though there is memory; then it is no longer tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    given: PassInput
    result: Tensor


class Graphs:
    """Runs passes, steps from records where there are some."""

    def __init__(self, passing: PassRunner) -> None:
        self._passing = passing
        self._seen: set[object] = set()
        self._failed: Counter[object] = Counter()
        self._recorded: dict[object, _Recorded] = {}
        self._stream = _side_stream()
        self._pool: _Pool | None = None
        self._times_short = 0
        self.why_not = ""
        """Why a step that was to be recorded could not be."""

    def step(self, given: PassInput) -> Tensor:
        """Do a step; return what `PassRunner.step` returns."""
        key = _key(given)
        recorded = self._recorded.get(key) or self._newly_recorded(key, given)
        if recorded is None:
            self._seen.add(key)
            return self.plainly(self._passing.step, _copied(given))
        for name, tensor in _tensors(given).items():
            _tensors(recorded.given)[name].copy_(tensor, non_blocking=True)
        recorded.graph.replay()
        return recorded.result.clone()

    def plainly(self, compute: Callable[[PassInput], Tensor], given: PassInput) -> Tensor:
        """Compute a pass without a record, in the memory of those that there are."""
        if self._pool is None:
            return compute(given)
        self._passing.prepare(given.tokens.shape[2])
        with self._in_pool(self._pool):
            result = compute(given)
        return result.clone()

    def let_go(self) -> bool:
        """Give back the memory of all records; says whether there was any."""
        held = bool(self._recorded)
        self._times_short += held
        self._drop()
        return held

    def leave_out(self, slot: int) -> None:
        """Drop records of steps in which a slot has rows; the memory of all if no others are left."""
        gone = [key for key, record in self._recorded.items() if slot in record.given.slots]
        for key in gone:
            del self._recorded[key]
        if gone and not self._recorded:
            self._drop()

    def _newly_recorded(self, key: object, given: PassInput) -> _Recorded | None:
        """Record a step that is seen again; nothing if that fails: it then runs, or fails, plainly."""
        if key not in self._seen or len(self._recorded) >= _MOST or self._is_in_vain(key):
            return None
        try:
            self._recorded[key] = self._record(given)
        except RuntimeError as error:
            cause = _cause(error)
            self.why_not = str(cause).partition("\n")[0]
            is_short = is_out_of_memory(cause)
        else:
            return self._recorded[key]
        if is_short:
            self._times_short += 1
        else:
            self._failed[key] += 1
        # All of them: in the pool of a recording that failed torch can't record again.
        self._drop()
        return None

    def _is_in_vain(self, key: object) -> bool:
        has_failed = self._failed[key] >= _MOST_FAILED or self._failed.total() >= _MOST_FAILED_IN_ALL
        return has_failed or self._times_short >= _MOST_SHORT

    def _drop(self) -> None:
        self._recorded.clear()
        self._pool = None
        # What a failed pass allocated hangs on its error, which may hang on itself.
        gc.collect()
        torch.cuda.empty_cache()

    def _record(self, given: PassInput) -> _Recorded:
        """Record a step. Nothing runs yet: its first plain run has made every kernel that it needs."""
        kept = _copied(given)
        self._passing.prepare(given.tokens.shape[2])
        graph, pool = torch.cuda.CUDAGraph(), self._pool or torch.cuda.graph_pool_handle()
        with _recording(graph, pool, self._stream):
            result = self._passing.step(kept)
        # Not before: a pool exists as long as a graph has it.
        self._pool = pool
        return _Recorded(graph=graph, given=kept, result=result)

    @contextmanager
    def _in_pool(self, pool: _Pool) -> Iterator[None]:
        """Compute in the pool, on the stream that its blocks belong to; torch's own graphs warm up the same way.

        What threads of autograd allocate (a block's attention on the way back) lies beside the pool.
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
    """Record what is done; where that fails, leave torch as it was, which it does not see to itself."""
    outside, collects = torch.cuda.current_stream(), gc.isenabled()
    gc.collect()
    # What the collector lets go of in the middle of it may ask things of the device that spoil a recording.
    gc.disable()
    try:
        # What other threads do with the device is no business of a recording.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            yield
    except RuntimeError:
        with suppress(RuntimeError):
            # Fails where the recording was ended well, and the graph lets go of the pool.
            _leave(pool)
        raise
    finally:
        torch.cuda.set_stream(outside)
        if collects:
            gc.enable()


def _cause(error: BaseException) -> BaseException:
    """Return what spoiled a recording: that it could not be ended either is raised last, and says nothing."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return error


def _leave(pool: _Pool) -> None:
    """Allocate in the pool no longer."""
    device = torch.cuda.current_device()
    torch._C._cuda_endAllocateToPool(device, pool)  # noqa: SLF001 - no public name takes the pool of a graph
    torch._C._cuda_releasePool(device, pool)  # noqa: SLF001 - the same


@cache
def _side_stream() -> torch.cuda.Stream:
    """Return the process's one stream beside the usual: each that multiplies gets a workspace, and keeps it."""
    return torch.cuda.Stream()


def _key(given: PassInput) -> object:
    shapes = tuple((name, tuple(tensor.shape)) for name, tensor in _tensors(given).items())
    return (given.slots, shapes, given.looking.longest, given.updates_any, given.gathers, given.drops)


def _tensors(given: PassInput) -> dict[str, Tensor]:
    own = {name: getattr(given, name) for name in ("tokens", "labels", "shares", "update", "rates")}
    return own | given.looking.tensors


def _copied(given: PassInput) -> PassInput:
    """Return the same in tensors that stay where they are."""
    own = {name: tensor.clone() for name, tensor in _tensors(given).items()}
    looking = replace(given.looking, **{name: own.pop(name) for name in given.looking.tensors})
    return replace(given, looking=looking, **own)


_EVEN_RANK = 8
"""On a GPU ranks are filled up to a multiple of this: kernels read sixteen bytes at a time."""


class Slots:
    """`count` places for adapters of up to `rank`. Not for several threads."""

    def __init__(
        self,
        base: BaseWeights,
        *,
        count: int,
        rank: int,
        targets: tuple[str, ...],
        compiles: bool | None = None,
        records: bool | None = None,
    ) -> None:
        """Make room. `compiles` and `records`: kernels and CUDA graphs; by default wherever they are available."""
        is_gpu = base.device != "cpu"
        self.base = base
        self.count = count
        even = -(-rank // _EVEN_RANK) * _EVEN_RANK if is_gpu else rank
        self.layout = BankLayout(base.shape, targets, even)
        self._state = AdapterSlotState.empty(self.layout, count, base)
        self._specs: list[AdapterSpec | None] = [None] * count
        self._names: list[dict[str, Any]] = [{} for _ in range(count)]
        self._gathering: set[int] = set()
        self._plain: dict[tuple[int, int], AttentionMask] = {}
        self._indexes: dict[tuple[int, ...], Tensor] = {}
        kernels = PointwiseKernels(compiles=can_compile() if compiles is None and is_gpu else bool(compiles))
        self._passing = PassRunner(base, self.layout, self._state, kernels)
        self._graphs = Graphs(self._passing) if is_gpu and records is not False else None

    def load(self, slot: int, adapter: AdapterState, optim: Optim | None = None) -> None:
        """Put an adapter into a slot, with what its optimiser knows."""
        state, optim = self._state, optim or Optim()
        with torch.no_grad():
            for pairs, a, b in (
                (adapter.weights, state.a, state.b),
                (adapter.first, state.a_first, state.b_first),
                (adapter.second, state.a_second, state.b_second),
            ):
                self.layout.write(pairs, a[slot], b[slot])
            state.settle(slot, adapter.spec, optim, adapter.steps)
        self._gathering.discard(slot)
        self._specs[slot] = adapter.spec
        self._names[slot] = dict.fromkeys(adapter.weights)

    def adapter(self, slot: int) -> AdapterState:
        """Return a copy of the adapter in a slot."""
        spec, state, names = self._specs[slot], self._state, self._names[slot]
        if spec is None:
            raise IndexError(f"slot {slot} is empty")

        def read(a: Tensor, b: Tensor) -> Any:
            return self.layout.read(names, a[slot], b[slot], spec.rank)

        return AdapterState(
            spec=spec,
            weights=read(state.a, state.b),
            first=read(state.a_first, state.b_first),
            second=read(state.a_second, state.b_second),
            steps=int(state.updates[slot]),
        )

    def clear(self, slot: int) -> None:
        """Empty a slot. Rows for it without labels do no harm."""
        empty = AdapterSpec(rank=1, alpha=1.0, targets=())
        self.load(slot, AdapterState(spec=empty, weights={}))
        self._specs[slot] = None

    def forget(self, slots: Sequence[int]) -> None:
        """Drop what was gathered since the last update."""
        self._state.forget(slots)
        self._gathering -= set(slots)

    @property
    def why_not_recorded(self) -> str:
        """Return why a step that was to be recorded could not be; nothing if all could."""
        return "" if self._graphs is None else self._graphs.why_not

    def let_go(self) -> bool:
        """Give back memory that only makes steps faster; says whether there was any."""
        return self._graphs is not None and self._graphs.let_go()

    def leave_out(self, slot: int) -> None:
        """Give back what was kept for steps in which a slot has rows: it has none from here on."""
        if self._graphs is not None:
            self._graphs.leave_out(slot)

    def step(self, rows: AdapterSlotRows, *, update: Sequence[bool], rates: Sequence[float]) -> PassResult:
        """Show rows to their slots, gather gradients, and update those that are to be, at their rates."""
        waiting = {slot for slot, now in zip(rows.slots, update, strict=True) if not now}
        gathers = bool(waiting or self._gathering.intersection(rows.slots))
        self._gathering = (self._gathering - set(rows.slots)) | waiting
        given = self._given(rows, update, rates, gathers=gathers)
        with _computing(self.base):
            if self._graphs is not None:
                return PassResult(self._graphs.step(given))
            return PassResult(self._passing.step(given))

    def losses(self, rows: AdapterSlotRows) -> tuple[list[float], list[int]]:
        """Return each slot's sum of token losses and number of learned tokens; nothing is changed."""
        given = self._given(rows, [False] * len(rows.slots), [0.0] * len(rows.slots))
        sums, counts = self._computed(self._passing.losses, given).tolist()
        return sums, [int(count) for count in counts]

    def logits(self, slot: int, tokens: Any) -> Tensor:
        """Return what one adapter expects after the last token of each row of `[rows, T]`; in 32 bits, on the CPU."""
        shown = torch.as_tensor(tokens)[None]
        rows = AdapterSlotRows(slots=(slot,), tokens=shown, labels=torch.full_like(shown, -100), denominators=(0.0,))
        return self._computed(self._passing.logits, self._given(rows, (False,), (0.0,))).float().cpu()

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
        # Few copies: each costs the computer as much as many kernels cost the GPU.
        share, rate, moved = _on(torch.tensor([shares, list(rates), [float(one) for one in update]]), device)
        return PassInput(
            slots=slots,
            index=self._index(slots),
            tokens=tokens,
            labels=labels,
            looking=self._looking(n * count, length, rows.segments),
            shares=share,
            update=moved > 0,
            rates=rate,
            updates_any=any(update),
            gathers=gathers,
            drops=any(spec is not None and spec.dropout > 0 for spec in map(self._specs.__getitem__, slots)),
        )

    def _looking(self, rows: int, length: int, segments: Any) -> AttentionMask:
        if segments is None and (rows, length) in self._plain:
            return self._plain[rows, length]
        base = self.base
        is_ragged = takes_ragged(base.device, base.dtype, base.shape.windows)
        packed = None if segments is None else torch.as_tensor(segments).reshape(rows, length)
        found = looking_of(rows, length, packed, is_ragged=is_ragged)
        looking = replace(found, **{name: _on(tensor, base.device) for name, tensor in found.tensors.items()})
        if segments is None:
            self._plain[rows, length] = looking
        return looking

    def _index(self, slots: tuple[int, ...]) -> Tensor | None:
        """Return the slots as a tensor that stays, for a recorded graph reads it again and again."""
        if slots == tuple(range(self.count)):
            return None
        if slots not in self._indexes:
            self._indexes[slots] = torch.tensor(slots, device=self.base.device)
        return self._indexes[slots]


def _on(tensor: Tensor | None, device: str) -> Any:
    if tensor is None or device == "cpu":
        return tensor
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)


@contextmanager
def _computing(base: BaseWeights) -> Iterator[None]:
    """Compute without autograd; on a CPU also without oneDNN, whose small products on Arm take ten times as long."""
    is_cpu, before = base.device == "cpu" and base.dtype == torch.float32, torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = before and not is_cpu
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mkldnn.enabled = before
