"""Dropout whose every choice follows from who, when and where: it does not depend on who else is trained.

A choice is a hash of the member's seed, its update, the pass within it, the matrix, the token's row and place in it,
and the feature; how far rows are filled up for others' sake does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B1
_ROW_BITS = 20
"""More places than a row has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropping:
    """What is dropped in one pass."""

    shares: Tensor
    """Of each member, `[n]`."""
    keys: Tensor
    """Of each member: its seed, update and pass, mixed, `[n]`."""
    length: int
    """Tokens of a row, filled up."""

    def applied(self, x: Tensor, place: int) -> Tensor:
        """Give `[n, rows, features]` with some features hidden and the others scaled up; applied twice, the same."""
        _, tokens, features = x.shape
        number = torch.arange(tokens, device=x.device, dtype=torch.int64)
        token = (number // self.length << _ROW_BITS) + number % self.length
        word = _mix(_mix(token + self.keys[:, None]) + place * _GOLDEN)
        feature = torch.arange(features, device=x.device, dtype=torch.int64) * _GOLDEN
        keep = 1.0 - self.shares.view(-1, 1, 1)
        is_kept = _mix(word[:, :, None] + feature) < (keep * (1 << 32)).to(torch.int64)
        return torch.where(is_kept, x / keep.to(x.dtype), torch.zeros_like(x))


def keys_of(seeds: Tensor, updates: Tensor, passes: Tensor) -> Tensor:
    """Mix what tells one pass of a member from all others."""
    return _mix(_mix(_mix(seeds) + updates) + passes)


def _mix(word: Tensor) -> Tensor:
    """Scramble 32 bits."""
    word = word & _WORD
    word = ((word ^ (word >> 16)) * 0x85EBCA6B) & _WORD
    word = ((word ^ (word >> 13)) * 0xC2B2AE35) & _WORD
    return word ^ (word >> 16)
