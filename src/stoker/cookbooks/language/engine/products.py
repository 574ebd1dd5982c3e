"""A frozen matrix with a bank of adapters beside it: one product for all rows, and small ones member by member.

    y = x Wᵀ + (x Aₖᵀ) Bₖᵀ                                        (B comes scaled)
    dx = dy W + (dy Bₖ) Aₖ      dAₖ = (dy Bₖ)ᵀ x      dBₖ = dyᵀ (x Aₖᵀ)

The small product is written first and the large one added onto it, which costs nothing: a large product waits for its
arithmetic, not for memory. Matrices that share their input share the product with their A's, which lie side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """The adapters of one group of matrices: views into one flat tensor, or into that of its gradients."""

    a: Tensor
    """`[n, targets · rank, inputs]`."""
    b: tuple[Tensor, ...]
    """Of each target `[n, outputs, rank]`."""
    columns: tuple[tuple[int, int], ...]
    """Where each target's outputs lie among those of the group."""

    def narrow(self, number: int) -> slice:
        """Say where a target's part of x Aᵀ lies."""
        rank = self.b[0].shape[2]
        return slice(number * rank, (number + 1) * rank)


def narrowed(x: Tensor, bank: Bank) -> Tensor:
    """Give x Aᵀ of `[n, rows, inputs]`."""
    return torch.bmm(x, bank.a.mT)


def widened(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bank: Bank | None,
    narrow: Tensor | None,
    begin: int = 0,
) -> Tensor:
    """Give x Wᵀ with what adapters add. The weight's outputs begin at a column of the group's."""
    n, rows, inputs = x.shape
    outputs = len(weight)
    y = _added(x, weight, bank, narrow, begin)
    if bias is not None:
        y += bias
    y.view(n * rows, outputs).addmm_(x.reshape(n * rows, inputs), weight.T)
    return y


def _added(x: Tensor, weight: Tensor, bank: Bank | None, narrow: Tensor | None, begin: int) -> Tensor:
    """Give what is there before the large product: what adapters add."""
    outputs, parts = len(weight), []
    if bank is not None and narrow is not None:
        parts = [
            (first - begin, last - begin, narrow[..., bank.narrow(number)], bank.b[number])
            for number, (first, last) in enumerate(bank.columns)
            if begin <= first < begin + outputs
        ]
    covered = sum(last - first for first, last, _, _ in parts)
    y = (torch.empty if covered == outputs else torch.zeros)(*x.shape[:2], outputs, dtype=x.dtype, device=x.device)
    for first, last, low, b in parts:
        torch.bmm(low, b.mT, out=y[..., first:last])
    return y


def narrowed_back(dys: list[tuple[Tensor, int]], narrow: Tensor, bank: Bank, gradients: Bank) -> Tensor:
    """Write the gradients of B; give dy B. Each dy comes with the column of the group at which it begins."""
    back = torch.empty_like(narrow)
    for number, (b, (first, last)) in enumerate(zip(bank.b, bank.columns, strict=True)):
        dy, begin = next((dy, begin) for dy, begin in dys if begin <= first < begin + dy.shape[-1])
        part, mine = bank.narrow(number), dy[..., first - begin : last - begin]
        torch.bmm(mine, b, out=back[..., part])
        torch.bmm(mine.mT, narrow[..., part], out=gradients.b[number])
    return back


def onto(dx: Tensor | None, dy: Tensor, weight: Tensor) -> Tensor:
    """Add dy W to dx, in place; without one, begin it."""
    n, rows, outputs = dy.shape
    flat = dy.reshape(n * rows, outputs)
    if dx is None:
        return torch.mm(flat, weight).view(n, rows, -1)
    dx.view(n * rows, -1).addmm_(flat, weight)
    return dx
