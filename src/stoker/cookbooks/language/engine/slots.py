"""Slots for adapters over one base, trained together: the engine as its users see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stoker.cookbooks.language.engine.adapters import Adapter, AdapterSpec, Optim
from stoker.cookbooks.language.engine.attention import Looking, looking_of, takes_ragged
from stoker.cookbooks.language.engine.banks import Layout
from stoker.cookbooks.language.engine.bases import Base
from stoker.cookbooks.language.engine.graphs import Graphs
from stoker.cookbooks.language.engine.passing import Given, Passing, State
from stoker.cookbooks.language.engine.pointwise import Pointwise, can_compile
from stoker.cookbooks.language.engine.rows import Result, Rows

_EVEN_RANK = 8
"""On a GPU ranks are filled up to a multiple of this: kernels read sixteen bytes at a time."""


class Slots:
    """`count` places for adapters of up to `rank`. Not for several threads."""

    def __init__(
        self,
        base: Base,
        *,
        count: int,
        rank: int,
        targets: tuple[str, ...],
        compiles: bool | None = None,
        records: bool | None = None,
    ) -> None:
        """Make room. `compiles` and `records`: kernels and CUDA graphs; unless told, wherever they are to be had."""
        is_gpu = base.device != "cpu"
        self.base = base
        self.count = count
        even = -(-rank // _EVEN_RANK) * _EVEN_RANK if is_gpu else rank
        self.layout = Layout(base.shape, targets, even)
        self._state = State.empty(self.layout, count, base)
        self._specs: list[AdapterSpec | None] = [None] * count
        self._names: list[dict[str, Any]] = [{} for _ in range(count)]
        self._gathering: set[int] = set()
        self._plain: dict[tuple[int, int], Looking] = {}
        self._indexes: dict[tuple[int, ...], Tensor] = {}
        kernels = Pointwise(compiles=can_compile() if compiles is None and is_gpu else bool(compiles))
        self._passing = Passing(base, self.layout, self._state, kernels)
        self._graphs = Graphs(self._passing) if is_gpu and records is not False else None

    def seat(self, slot: int, adapter: Adapter, optim: Optim | None = None) -> None:
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

    def adapter(self, slot: int) -> Adapter:
        """Give a copy of the adapter in a slot."""
        spec, state, names = self._specs[slot], self._state, self._names[slot]
        if spec is None:
            raise IndexError(f"slot {slot} is empty")

        def read(a: Tensor, b: Tensor) -> Any:
            return self.layout.read(names, a[slot], b[slot], spec.rank)

        return Adapter(
            spec=spec,
            weights=read(state.a, state.b),
            first=read(state.a_first, state.b_first),
            second=read(state.a_second, state.b_second),
            steps=int(state.updates[slot]),
        )

    def clear(self, slot: int) -> None:
        """Empty a slot. Rows for it without labels do no harm."""
        empty = AdapterSpec(rank=1, alpha=1.0, targets=())
        self.seat(slot, Adapter(spec=empty, weights={}))
        self._specs[slot] = None

    def forget(self, slots: Sequence[int]) -> None:
        """Drop what was gathered since the last update."""
        self._state.forget(slots)
        self._gathering -= set(slots)

    @property
    def why_not_recorded(self) -> str:
        """Say why a step that was to be recorded could not be; nothing if all could."""
        return "" if self._graphs is None else self._graphs.why_not

    def let_go(self) -> bool:
        """Give back memory that only makes steps faster; says whether there was any."""
        return self._graphs is not None and self._graphs.let_go()

    def leave_out(self, slot: int) -> None:
        """Give back what was kept for steps in which a slot has rows: it has none from here on."""
        if self._graphs is not None:
            self._graphs.leave_out(slot)

    def step(self, rows: Rows, *, update: Sequence[bool], rates: Sequence[float]) -> Result:
        """Show rows to their slots, gather gradients, and update those that are to be, at their rates."""
        waiting = {slot for slot, now in zip(rows.slots, update, strict=True) if not now}
        gathers = bool(waiting or self._gathering.intersection(rows.slots))
        self._gathering = (self._gathering - set(rows.slots)) | waiting
        given = self._given(rows, update, rates, gathers=gathers)
        with _computing(self.base):
            if self._graphs is not None:
                return Result(self._graphs.step(given))
            return Result(self._passing.step(given))

    def losses(self, rows: Rows) -> tuple[list[float], list[int]]:
        """Give each slot's sum of token losses and number of learned tokens; nothing is changed."""
        given = self._given(rows, [False] * len(rows.slots), [0.0] * len(rows.slots))
        sums, counts = self._computed(self._passing.losses, given).tolist()
        return sums, [int(count) for count in counts]

    def logits(self, slot: int, tokens: Any) -> Tensor:
        """Give what one adapter expects after the last token of each row of `[rows, T]`; in 32 bits, on the CPU."""
        shown = torch.as_tensor(tokens)[None]
        rows = Rows(slots=(slot,), tokens=shown, labels=torch.full_like(shown, -100), denominators=(0.0,))
        return self._computed(self._passing.logits, self._given(rows, (False,), (0.0,))).float().cpu()

    def _computed(self, compute: Callable[[Given], Tensor], given: Given) -> Tensor:
        with _computing(self.base):
            return compute(given) if self._graphs is None else self._graphs.plainly(compute, given)

    def _given(self, rows: Rows, update: Sequence[bool], rates: Sequence[float], *, gathers: bool = False) -> Given:
        device, slots = self.base.device, tuple(rows.slots)
        shown = torch.stack([torch.as_tensor(rows.tokens).long(), torch.as_tensor(rows.labels).long()])
        _, n, count, length = shown.shape
        shares = [0.0 if denominator <= 0 else 1.0 / denominator for denominator in rows.denominators]
        tokens, labels = _on(shown, device)
        # Few copies: each costs the computer as much as many kernels cost the GPU.
        share, rate, moved = _on(torch.tensor([shares, list(rates), [float(one) for one in update]]), device)
        return Given(
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

    def _looking(self, rows: int, length: int, segments: Any) -> Looking:
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
        """Give the slots as a tensor that stays, for a recorded graph reads it again and again."""
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
def _computing(base: Base) -> Iterator[None]:
    """Compute without autograd; on a CPU also without oneDNN, whose small products on Arm take ten times as long."""
    is_cpu, before = base.device == "cpu" and base.dtype == torch.float32, torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = before and not is_cpu
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mkldnn.enabled = before
