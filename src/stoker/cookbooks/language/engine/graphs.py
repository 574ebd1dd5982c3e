"""Whole steps as CUDA graphs: recorded once for each shape, replayed with new numbers.

What changes from step to step (tokens, labels, learning rates, who is updated) lies in tensors that stay where they
are, so a graph serves as long as shapes do. The first time that a shape is seen the step runs plainly, since many are
seen only once.

Records share one pool of memory, for no two run at a time, and passes that run plainly use that pool as well: it is
there once, as large as the largest needs it. So whatever is to outlive a pass must not be allocated in it: the next
replay would write over it. Where memory runs out, all records go, and with them the pool.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import cache

import torch
from torch import Tensor

from stoker.cookbooks.language.engine.attention import Looking
from stoker.cookbooks.language.engine.passing import Given, Passing

_Pool = tuple[int, int]
_MOST = 8
_MOST_SHORT = 3
"""So many times records make room for a pass; then no more are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    given: Given
    told: Tensor


class Graphs:
    """Runs passes, steps from records where there are some."""

    def __init__(self, passing: Passing) -> None:
        self._passing = passing
        self._seen: set[object] = set()
        self._recorded: dict[object, _Recorded] = {}
        self._stream = _side_stream()
        self._pool: _Pool | None = None
        self._times_short = 0
        self.why_not = ""
        """Why a step that was to be recorded could not be."""

    def step(self, given: Given) -> Tensor:
        """Do a step; give what `Passing.step` gives."""
        key = _key(given)
        recorded = self._recorded.get(key) or self._newly_recorded(key, given)
        if recorded is None:
            self._seen.add(key)
            return self.plainly(self._passing.step, given)
        for name, tensor in _tensors(given).items():
            _tensors(recorded.given)[name].copy_(tensor, non_blocking=True)
        recorded.graph.replay()
        return recorded.told.clone()

    def plainly(self, compute: Callable[[Given], Tensor], given: Given) -> Tensor:
        """Compute a pass without a record, in the memory of those that there are."""
        if self._pool is None:
            return compute(given)
        self._passing.prepare(given.tokens.shape[2])
        with self._in_pool(self._pool):
            told = compute(given)
        return told.clone()

    def let_go(self) -> bool:
        """Give back the memory of all records; says whether there was any."""
        held = bool(self._recorded)
        self._recorded.clear()
        self._pool = None
        self._times_short += held
        # What a failed recording allocated hangs on its error, which may hang on itself.
        gc.collect()
        torch.cuda.empty_cache()
        return held

    def _newly_recorded(self, key: object, given: Given) -> _Recorded | None:
        """Record a step that is seen again; nothing if that fails: it then runs, or fails, plainly."""
        if key not in self._seen or len(self._recorded) >= _MOST or self._times_short >= _MOST_SHORT:
            return None
        try:
            self._recorded[key] = self._record(given)
        except RuntimeError as error:
            self.why_not = str(error)
        else:
            return self._recorded[key]
        if not self.let_go():
            self._times_short += 1
        return None

    def _record(self, given: Given) -> _Recorded:
        """Record a step. Nothing runs yet: its first plain run has made every kernel that it needs."""
        kept = _copied(given)
        self._passing.prepare(given.tokens.shape[2])
        graph, pool = torch.cuda.CUDAGraph(), self._pool or torch.cuda.graph_pool_handle()
        with _recording(graph, pool, self._stream):
            told = self._passing.step(kept)
        # Not before: a pool exists as long as a graph has it.
        self._pool = pool
        return _Recorded(graph=graph, given=kept, told=told)

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


def _leave(pool: _Pool) -> None:
    """Allocate in the pool no longer."""
    device = torch.cuda.current_device()
    torch._C._cuda_endAllocateToPool(device, pool)  # noqa: SLF001 - no public name takes the pool of a graph
    torch._C._cuda_releasePool(device, pool)  # noqa: SLF001 - the same


@cache
def _side_stream() -> torch.cuda.Stream:
    """Give the process's one stream beside the usual: each that multiplies gets a workspace, and keeps it."""
    return torch.cuda.Stream()


def _key(given: Given) -> object:
    shapes = tuple((name, tuple(tensor.shape)) for name, tensor in _tensors(given).items())
    return (given.slots, shapes, given.updates_any, given.gathers, given.drops)


def _tensors(given: Given) -> dict[str, Tensor]:
    own = {name: getattr(given, name) for name in ("tokens", "labels", "shares", "update", "rates")}
    looking = {one.name: getattr(given.looking, one.name) for one in fields(Looking)}
    return own | {name: tensor for name, tensor in looking.items() if tensor is not None}


def _copied(given: Given) -> Given:
    """Give the same in tensors that stay where they are."""
    own = {name: tensor.clone() for name, tensor in _tensors(given).items()}
    looking = Looking(**{one.name: own.pop(one.name, None) for one in fields(Looking)})
    return replace(given, looking=looking, **own)
