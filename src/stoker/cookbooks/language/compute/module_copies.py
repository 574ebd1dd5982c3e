"""Embeddings and heads that are trained beside adapters (`modules_to_save` in PEFT): each member has copies of its own.

In products a copy stands in place of the base's module. Gradients are sums in 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import embedding

from stoker.cookbooks.language.compute.matrices import GROUPS, meant_by
from stoker.core.errors import BadInput

ModuleRole = Literal["embedding", "head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterModule:
    """The embedding or the head of a base."""

    name: str
    """The full name of its module, as in transformers and PEFT."""
    role: ModuleRole
    weight: Tensor
    """`[vocabulary, hidden]`."""
    bias: Tensor | None = None
    padding: int | None = None
    """The token that an embedding does not learn."""

    @property
    def size(self) -> int:
        return sum(one.numel() for one in self.parts)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def split(self, row: Tensor) -> tuple[Tensor, ...]:
        """Return views of the parts in a flat row."""
        pieces = row.split([one.numel() for one in self.parts])
        return tuple(piece.view(part.shape) for piece, part in zip(pieces, self.parts, strict=True))


Copies = Mapping[ModuleRole, Sequence[tuple[Tensor, ...]]]
"""The parts of each member's copy, or their gradients; a module that is not there is the base's, for all."""


def copies_of(modules: Iterable[OuterModule], rows: Iterable[Sequence[Tensor]]) -> Copies:
    """Return views of flat rows: of each module one for each member."""
    return {one.role: [one.split(row) for row in own] for one, own in zip(modules, rows, strict=True)}


def chosen_modules(words: Iterable[str], modules: Sequence[OuterModule], family: str) -> tuple[OuterModule, ...]:
    """Return the modules that words mean, in their order. Raises `BadInput` if a word means none of them."""
    names = [one.name for one in modules]
    meant: set[str] = set()
    for word in words:
        found = [] if word in GROUPS else meant_by(word, names)
        if not found:
            message = f"modules_to_save: no module {word!r} that can be trained whole in this {family} model"
            raise BadInput(message, hint=f"its embedding and its head are {', '.join(names)}")
        meant.update(found)
    return tuple(one for one in modules if one.name in meant)


def own_embedded(tokens: Tensor, own: Sequence[tuple[Tensor, ...]]) -> Tensor:
    """Return the embeddings of the tokens of each member, `[n, …]`, by its own table."""
    return torch.stack([embedding(mine, table) for mine, (table, *_) in zip(tokens, own, strict=True)])


def embedded_back(tokens: Tensor, dy: Tensor, gradients: Copies, padding: int | None) -> None:
    """Add the gradients of the members' own tables."""
    for mine, rows, (gradient, *_) in zip(tokens, dy, gradients["embedding"], strict=True):
        flat, count = rows.reshape(-1, rows.shape[-1]).contiguous(), len(gradient)
        # Sums are added up in the same order every time, on a GPU too.
        made = torch.ops.aten.embedding_dense_backward(
            flat, mine.reshape(-1), count, -1 if padding is None else padding, False
        )
        gradient.add_(made)
