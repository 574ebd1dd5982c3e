"""The changing tensors of adapters in their slots: what is trained, with moments, and what products use of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from stoker.cookbooks.language.compute.banks import AdapterSpec, BankLayout, Optim
from stoker.cookbooks.language.compute.base_weights import FrozenBase
from stoker.cookbooks.language.compute.module_copies import OuterModule


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedNumbers:
    """Numbers of one sort of all adapters, with their optimiser's moments: a row for each slot."""

    weights: Tensor
    first: Tensor
    second: Tensor
    used: Tensor
    """What products use: in the base's precision, B scaled; for magnitudes the factors of outputs."""
    gathered: Tensor
    """Rows since the last update."""

    @classmethod
    def empty(cls, count: int, size: int, dtype: torch.dtype, device: str, *, trains: bool = True) -> TrainedNumbers:
        """Return zeros for so many adapters; `dtype` is that of products.

        Unless they are trained, all have one row of weights: it is needed only until `used` is made of it.
        """
        used = torch.zeros(count, size, dtype=dtype, device=device)
        if not trains:
            none = torch.zeros(count, 0, device=device)
            weights = torch.zeros(1, size, device=device).expand(count, size)
            return cls(weights=weights, first=none, second=none, used=used, gathered=none)
        weights, first, second, gathered = (torch.zeros(count, size, device=device) for _ in range(4))
        return cls(weights=weights, first=first, second=second, used=used, gathered=gathered)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSlotState:
    """All changing tensors: a row for each slot."""

    a: TrainedNumbers
    b: TrainedNumbers
    m: TrainedNumbers
    """Magnitudes of outputs (DoRA); empty if no adapter has any."""
    copies: tuple[TrainedNumbers, ...]
    """Of the modules that are trained whole, in their order."""
    has_magnitude: Tensor
    inverse_norms: Tensor
    """One over the norms of adapted matrices, `[slots, m_size]`; zero without a magnitude."""
    base_squares: Tensor
    """The squared norms of the base's own, `[m_size]`."""
    scales: Tensor
    dropouts: Tensor
    seeds: Tensor
    updates: Tensor
    passes: Tensor
    """Since the last update."""
    settings: Tensor
    """`[slots, 6]`: betas, eps, weight decay, clip, rate of B over that of A."""

    @classmethod
    def empty(
        cls, layout: BankLayout, count: int, base: FrozenBase, whole: Sequence[OuterModule] = (), *, trains: bool = True
    ) -> AdapterSlotState:
        """Return empty slots for so many adapters, which are trained or only used."""
        device, m = base.device, layout.m_size
        empty = partial(TrainedNumbers.empty, count, device=device, trains=trains)
        numbers = {
            name: torch.zeros(count, device=device, dtype=torch.int64) for name in ("seeds", "updates", "passes")
        }
        magnitudes = empty(m, torch.float32)
        # A slot without an adapter computes the base alone.
        magnitudes.used.fill_(1.0)
        return cls(
            a=empty(layout.a_size, base.dtype),
            b=empty(layout.b_size, base.dtype),
            m=magnitudes,
            copies=tuple(empty(one.size, base.dtype) for one in whole),
            has_magnitude=torch.zeros(count, m, dtype=torch.bool, device=device),
            inverse_norms=torch.zeros(count, m, device=device),
            base_squares=torch.zeros(m, device=device),
            scales=torch.zeros(count, 1, device=device),
            dropouts=torch.zeros(count, device=device),
            settings=torch.zeros(count, 6, device=device),
            **numbers,
        )

    @property
    def trained(self) -> tuple[TrainedNumbers, ...]:
        """All that is trained."""
        return (self.a, self.b, self.m, *self.copies)

    def settle(self, slot: int, spec: AdapterSpec, optim: Optim, updates: int) -> None:
        """Set the settings of the adapter in a slot, and prepare its weights for use."""
        self.scales[slot] = spec.scale
        self.dropouts[slot] = spec.dropout
        self.seeds[slot] = spec.seed
        self.updates[slot] = updates
        settings = (*optim.betas, optim.eps, optim.weight_decay, optim.clip, optim.b_rate)
        self.settings[slot] = torch.tensor(settings, device=self.settings.device)
        self.forget((slot,))
        for one in (self.a, *self.copies):
            one.used[slot] = one.weights[slot].to(one.used.dtype)
        self.b.used[slot] = (self.b.weights[slot] * self.scales[slot]).to(self.b.used.dtype)

    def forget(self, slots: Sequence[int]) -> None:
        """Discard gradients since the last update."""
        for slot in slots:
            for gathered in (*(one.gathered for one in self.trained), self.passes):
                gathered[slot] = 0
