"""Where each adapter's numbers lie in flat tensors with a row per slot, and views of them by layer and group.

One row holds all of an adapter, so that norms, updates and copies are single operations over all slots. Adapters of a
smaller rank, or without some matrix, have zeros there; products with zeros keep their gradients zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from stoker.cookbooks.language.engine.adapters import Pairs
from stoker.cookbooks.language.engine.products import Bank
from stoker.cookbooks.language.engine.shapes import Shape, module_name

MEMBERS: dict[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""The matrices that share an input, in the order in which the base lays them side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    layer: int
    name: str
    targets: tuple[str, ...]
    inputs: int
    columns: tuple[tuple[int, int], ...]
    a_at: int
    b_at: tuple[int, ...]


class Layout:
    """The order of all A's and all B's in their rows."""

    def __init__(self, shape: Shape, targets: tuple[str, ...], rank: int) -> None:
        self.shape = shape
        self.targets = targets
        self.rank = rank
        self.groups: list[_Group] = []
        self.a_size = self.b_size = 0
        for layer in range(shape.layers):
            for name, members in MEMBERS.items():
                self._place(layer, name, members)

    def banks(self, a: Tensor, b: Tensor) -> list[dict[str, Bank]]:
        """Give views of flat tensors `[n, a_size]` and `[n, b_size]`, layer by layer."""
        layers: list[dict[str, Bank]] = [{} for _ in range(self.shape.layers)]
        n, rank = len(a), self.rank
        for group in self.groups:
            height = len(group.targets) * rank
            sizes = [end - begin for begin, end in group.columns]
            layers[group.layer][group.name] = Bank(
                a=a[:, group.a_at : group.a_at + height * group.inputs].view(n, height, group.inputs),
                b=tuple(
                    b[:, at : at + size * rank].view(n, size, rank) for at, size in zip(group.b_at, sizes, strict=True)
                ),
                columns=group.columns,
            )
        return layers

    def write(self, pairs: Pairs, a_row: Tensor, b_row: Tensor) -> None:
        """Lay one adapter's numbers into a row of each; what it lacks becomes zero."""
        a_row.zero_()
        b_row.zero_()
        for name, a, b in self._pairs(a_row, b_row):
            given = pairs.get(name)
            if given is not None:
                rank = len(given[0])
                a[:rank].copy_(given[0])
                b[:, :rank].copy_(given[1])

    def read(self, names: Pairs, a_row: Tensor, b_row: Tensor, rank: int) -> Pairs:
        """Give copies, on the CPU, of the matrices of the given names, cut to a rank."""
        return {
            name: (a[:rank].float().cpu().clone(), b[:, :rank].float().cpu().clone().contiguous())
            for name, a, b in self._pairs(a_row, b_row)
            if name in names
        }

    def _pairs(self, a_row: Tensor, b_row: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        layers = self.banks(a_row[None], b_row[None])
        for group in self.groups:
            bank = layers[group.layer][group.name]
            for number, target in enumerate(group.targets):
                yield module_name(group.layer, target), bank.a[0, bank.narrow(number)], bank.b[number][0]

    def _place(self, layer: int, name: str, members: tuple[str, ...]) -> None:
        present = tuple(target for target in members if target in self.targets)
        if not present:
            return
        columns, b_at, begin = [], [], 0
        for target in members:
            end = begin + self.shape.linear(target)[1]
            if target in present:
                columns.append((begin, end))
                b_at.append(self.b_size)
                self.b_size += (end - begin) * self.rank
            begin = end
        inputs = self.shape.linear(members[0])[0]
        self.groups.append(
            _Group(
                layer=layer,
                name=name,
                targets=present,
                inputs=inputs,
                columns=tuple(columns),
                a_at=self.a_size,
                b_at=tuple(b_at),
            )
        )
        self.a_size += len(present) * self.rank * inputs
