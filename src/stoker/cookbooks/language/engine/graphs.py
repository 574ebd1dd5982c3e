"""Whole steps as CUDA graphs: recorded once for each shape, replayed with new numbers.

What changes from step to step (tokens, labels, learning rates, who is updated) lies in tensors that stay where they
are, so a graph serves as long as shapes do. The first time that a shape is seen the step runs plainly, since many are
seen only once.

Records share one pool of memory, for no two run at a time, and passes that run plainly use that pool as well: it is
there once, as large as the largest needs it. So whatever is to outlive a pass must not be allocated in it: the next
replay would write over it. Where memory runs out, all records go, and with them the pool.

A recording can compile nothing. So what a step is given looks the same plainly and recorded: kernels for many shapes
are kept by how their tensors lie in others, too.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from stoker.cookbooks.language.engine.passing import Given, Passing
from stoker.cookbooks.language.engine.shortage import is_out_of_memory

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
    given: Given
    told: Tensor


class Graphs:
    """Runs passes, steps from records where there are some."""

    def __init__(self, passing: Passing) -> None:
        self._passing = passing
        self._seen: set[object] = set()
        self._failed: Counter[object] = Counter()
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
            return self.plainly(self._passing.step, _copied(given))
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

    def _newly_recorded(self, key: object, given: Given) -> _Recorded | None:
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


def _cause(error: BaseException) -> BaseException:
    """Give what spoiled a recording: that it could not be ended either is raised last, and says nothing."""
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
    """Give the process's one stream beside the usual: each that multiplies gets a workspace, and keeps it."""
    return torch.cuda.Stream()


def _key(given: Given) -> object:
    shapes = tuple((name, tuple(tensor.shape)) for name, tensor in _tensors(given).items())
    return (given.slots, shapes, given.looking.longest, given.updates_any, given.gathers, given.drops)


def _tensors(given: Given) -> dict[str, Tensor]:
    own = {name: getattr(given, name) for name in ("tokens", "labels", "shares", "update", "rates")}
    return own | given.looking.tensors


def _copied(given: Given) -> Given:
    """Give the same in tensors that stay where they are."""
    own = {name: tensor.clone() for name, tensor in _tensors(given).items()}
    looking = replace(given.looking, **{name: own.pop(name) for name in given.looking.tensors})
    return replace(given, looking=looking, **own)
