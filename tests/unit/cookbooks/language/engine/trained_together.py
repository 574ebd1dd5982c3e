"""Members of a shared process without the process: what each is, and how they get their batches pass by pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stoker.cookbooks.language.compute.banks import AdapterSpec, AdapterState, Optim, fresh_adapter
from stoker.cookbooks.language.compute.base_weights import BaseWeights
from stoker.cookbooks.language.compute.passes import AdapterSlotRows
from stoker.cookbooks.language.compute.slots import Slots
from tests.unit.cookbooks.language.engine.peft_alone import IGNORED, Batch

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(kw_only=True)
class Member:
    """One adapter, its data and its rates; what it lost in each update."""

    spec: AdapterSpec
    batches: list[Batch]
    rates: list[float]
    optim: Optim = field(default_factory=Optim)
    accumulate: int = 1
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    finite: list[bool] = field(default_factory=list)

    def fresh(self, base: BaseWeights) -> AdapterState:
        return fresh_adapter(base.shape, self.spec)


def room_for(base: BaseWeights, members: Sequence[Member], **how: Any) -> Slots:
    """Make slots and load all members in order."""
    how = {"dora": any(one.spec.dora for one in members), "whole": members[0].spec.whole, **how}
    slots = Slots(base, count=len(members), rank=max(one.spec.rank for one in members), targets=ALL, **how)
    for slot, member in enumerate(members):
        slots.load(slot, member.fresh(base), member.optim)
    return slots


def train(
    slots: Slots,
    members: dict[int, Member],
    passes: range,
    *,
    length: int = 0,
    between: Callable[[int], None] = lambda _: None,
) -> None:
    """Show each its next batches, all in one pass; who has none left is shown nothing to learn."""
    for number in passes:
        between(number)
        rows, update, rates = _rows(members, number, length)
        result = slots.step(rows, update=update, rates=rates)
        for place, member in enumerate(members.values()):
            if number % member.accumulate == 0:
                member.losses.append(0.0)
            member.losses[-1] += result.losses[place]
            member.norms.append(result.norms[place])
            member.finite.append(result.finite[place])


def _rows(members: dict[int, Member], number: int, length: int) -> tuple[AdapterSlotRows, list[bool], list[float]]:
    shown, labels, denominators, update, rates = [], [], [], [], []
    length = max(length, *(len(one) for member in members.values() for one in member.batches[number].sequences))
    for member in members.values():
        first = number - number % member.accumulate
        tokens, same = member.batches[number].padded(length)
        shown.append(tokens)
        labels.append(torch.cat([same[:, 1:], torch.full((len(same), 1), IGNORED)], dim=1))
        denominators.append(sum(one.supervised for one in member.batches[first : first + member.accumulate]))
        update.append(number + 1 == first + member.accumulate)
        rates.append(member.rates[number // member.accumulate])
    everyone = AdapterSlotRows(
        slots=tuple(members), tokens=torch.stack(shown), labels=torch.stack(labels), denominators=denominators
    )
    return everyone, update, rates


def noised(adapter: AdapterState, seed: int, size: float) -> AdapterState:
    """Fill the half that is zero with noise, and magnitudes if there are to be any."""
    draws = torch.Generator().manual_seed(seed)
    adapter.weights = {
        name: (
            a,
            torch.randn(b.shape, generator=draws) * size,
            *[torch.rand(len(b), generator=draws) + 0.5][: adapter.spec.dora],
        )
        for name, (a, b) in adapter.weights.items()
    }
    return adapter


def same_bits(one: AdapterState, other: AdapterState) -> bool:
    """Return whether weights and moments are equal to the bit."""
    return one.steps == other.steps and all(
        torch.equal(mine, theirs)
        for part in ("weights", "first", "second")
        for name, pair in getattr(one, part).items()
        for mine, theirs in zip(pair, getattr(other, part)[name], strict=True)
    )


def cosine(one: Any, other: Any) -> float:
    """Return how alike two adapters' weights are."""
    mine, theirs = (
        torch.cat([part.flatten().double() for pair in of.values() for part in pair]) for of in (one, other)
    )
    return float(torch.nn.functional.cosine_similarity(mine, theirs, dim=0))
