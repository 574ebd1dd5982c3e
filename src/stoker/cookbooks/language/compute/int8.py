"""Weights of eight bits: a row is divided by its largest magnitude, bit for bit as bitsandbytes does (LLM.int8)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LARGEST = 127.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Matrix:
    """A matrix of eight-bit weights."""

    codes: Tensor
    """`[outputs, inputs]`, from -127 to 127."""
    sizes: Tensor
    """The largest magnitude of each row."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def size_bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in (self.codes, self.sizes))


def quantise_int8(weight: Tensor) -> Int8Matrix:
    """Quantise a matrix, on its device. A row of zeros stays zeros."""
    wide = weight.float()
    sizes = wide.abs().amax(dim=1)
    factors = _LARGEST / torch.where(sizes > 0, sizes, 1.0)
    codes = torch.round(wide * factors[:, None]).to(torch.int8)
    return Int8Matrix(codes=codes, sizes=sizes)


def dequantise_int8(matrix: Int8Matrix, into: Tensor) -> None:
    """Write a matrix in the precision of a tensor into it."""
    into.copy_(matrix.codes * matrix.sizes[:, None] * (1.0 / _LARGEST))
