"""Whole steps as CUDA graphs: recorded once for each shape, replayed with new numbers.

What changes from step to step (tokens, labels, learning rates, who is updated) lies in tensors that stay where they
are, so a graph serves as long as shapes do. The first time that a shape is seen the step runs plainly, since many are
seen only once; what is recorded shares one pool of memory, for no two run at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from stoker.cookbooks.language.engine.attention import Looking
from stoker.cookbooks.language.engine.passing import Given, Passing

_MOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    given: Given
    told: Tensor


class Graphs:
    """Runs steps, from records where there are some."""

    def __init__(self, passing: Passing) -> None:
        self._passing = passing
        self._seen: set[object] = set()
        self._given_up: set[object] = set()
        self._recorded: dict[object, _Recorded] = {}
        self._pool: object = None

    def run(self, given: Given) -> Tensor:
        """Do a step; give what `Passing.step` gives."""
        key = _key(given)
        recorded = self._recorded.get(key)
        if recorded is None and key in self._seen and len(self._recorded) < _MOST:
            recorded = self._try_to_record(key, given)
        if recorded is None:
            self._seen.add(key)
            told = self._passing.step(given)
            if self._recorded:
                # Else a plain step's memory would be held beside that of the recorded ones.
                torch.cuda.empty_cache()
            return told
        for name, tensor in _tensors(given).items():
            _tensors(recorded.given)[name].copy_(tensor, non_blocking=True)
        recorded.graph.replay()
        return recorded.told.clone()

    def _try_to_record(self, key: object, given: Given) -> _Recorded | None:
        """Record a step; nothing if that fails, as it does for want of memory: it then runs, or fails, plainly."""
        if key in self._given_up:
            return None
        try:
            recorded = self._recorded[key] = self._record(given)
        except RuntimeError:
            self._given_up.add(key)
            torch.cuda.empty_cache()
            return None
        return recorded

    def _record(self, given: Given) -> _Recorded:
        """Record a step. Nothing runs yet: its first plain run has made every kernel that it needs."""
        kept = _copied(given)
        self._passing.prepare(given.tokens.shape[2])
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool):
            told = self._passing.step(kept)
        return _Recorded(graph=graph, given=kept, told=told)


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
