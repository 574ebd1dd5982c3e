"""What goes into a step and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What some slots are shown in one pass: as many rows of one length for each. Arrays of numpy or torch."""

    slots: tuple[int, ...]
    tokens: Any
    """`[n, rows, T]`."""
    labels: Any
    """`[n, rows, T]`: the token after each; `IGNORED` where none is to be learned."""
    denominators: Sequence[float]
    """Of each: what its sum of losses is divided by, the learned tokens of the whole update."""
    segments: Any = None
    """`[n, rows, T]`: which of a packed row's sequences a token belongs to; nothing: each row is one."""


class Result:
    """What became of a pass. On a GPU it is fetched when first read: until then the next rows can be prepared."""

    def __init__(self, told: Tensor) -> None:
        """Of `[3, n]`: losses, norms, and whether both are finite."""
        self._told = told

    @cached_property
    def _rows(self) -> list[list[float]]:
        rows: list[list[float]] = self._told.tolist()
        return rows

    @property
    def losses(self) -> list[float]:
        """Of each: the sum of its tokens' losses over its denominator."""
        return self._rows[0]

    @property
    def norms(self) -> list[float]:
        """Of each: the length of its gradient before it was shortened, as accumulated so far."""
        return self._rows[1]

    @property
    def finite(self) -> list[bool]:
        """Of each: whether its loss and gradient are numbers. If not, and it was to be updated, it was left alone."""
        return [value == 1.0 for value in self._rows[2]]
