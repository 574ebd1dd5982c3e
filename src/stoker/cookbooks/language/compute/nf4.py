"""Weights of four bits: NF4 with double quantisation, bit for bit as bitsandbytes makes them (QLoRA).

A block of 64 weights is divided by its largest magnitude; each quotient becomes the nearest of 16 values, quantiles of
a normal distribution. The magnitudes of a matrix are quantised, too: their mean is subtracted, and blocks of 256 of
them become the nearest of 256 values that are dense near zero. That is 4.127 bits a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from stoker.cookbooks.language.arguments import NF4_BLOCK

SCALE_BLOCK = 256
"""Magnitudes with a common scale."""
_VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of a normal distribution, zero among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedMatrix:
    """A matrix of four-bit weights."""

    shape: tuple[int, int]
    codes: Tensor
    """Two weights a byte, the first in its upper half; rows one after another."""
    scales: Tensor
    """The magnitude of each block, as a byte; or in 32 bits, if magnitudes are not quantised."""
    scale_sizes: Tensor
    """The largest of each block of magnitudes, their mean subtracted; empty if they are not quantised."""
    mean: Tensor
    """Of all magnitudes."""

    @property
    def size_bytes(self) -> int:
        parts = (self.codes, self.scales, self.scale_sizes, self.mean)
        return sum(part.numel() * part.element_size() for part in parts)


def quantise(weight: Tensor) -> QuantisedMatrix:
    """Quantise a matrix, on its device. Its size must be a multiple of 64."""
    blocks = weight.float().reshape(-1, NF4_BLOCK)
    largest = blocks.abs().amax(dim=1)
    near = _nearest(blocks, largest, _table(_VALUES, weight.device))
    codes = (near[:, 0::2] << 4 | near[:, 1::2]).to(torch.uint8).reshape(-1)
    mean = largest.mean()
    rest = largest - mean
    padded = torch.nn.functional.pad(rest, (0, -len(rest) % SCALE_BLOCK)).view(-1, SCALE_BLOCK)
    sizes = padded.abs().amax(dim=1)
    scales = _nearest(padded, sizes, _table(_dynamic_values(), weight.device)).to(torch.uint8)
    return QuantisedMatrix(
        shape=(weight.shape[0], weight.shape[1]),
        codes=codes,
        scales=scales.reshape(-1)[: len(rest)].contiguous(),
        scale_sizes=sizes,
        mean=mean,
    )


def dequantise(matrix: QuantisedMatrix, into: Tensor) -> None:
    """Write a matrix in the precision of a tensor into it."""
    device, largest = matrix.codes.device, matrix.scales
    if not largest.is_floating_point():
        sizes = matrix.scale_sizes.repeat_interleave(SCALE_BLOCK)[: len(matrix.scales)]
        largest = _table(_dynamic_values(), device)[matrix.scales.long()] * sizes + matrix.mean
    near = torch.stack([matrix.codes >> 4, matrix.codes & 15], dim=1).long()
    values = _table(_VALUES, device)[near.view(-1, NF4_BLOCK)] * largest[:, None]
    into.copy_(values.view(matrix.shape))


def _nearest(blocks: Tensor, largest: Tensor, values: Tensor) -> Tensor:
    """Return the number of the value that is nearest to each quotient; the lower one in the middle."""
    quotients = blocks / torch.where(largest > 0, largest, 1.0)[:, None]
    return torch.bucketize(quotients, (values[1:] + values[:-1]) / 2)


@cache
def _table(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


def tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the values of four bits, and those of a byte of a magnitude."""
    return _table(_VALUES, device), _table(_dynamic_values(), device)


@cache
def _dynamic_values() -> tuple[float, ...]:
    """Return the 256 values of a byte whose leading zeros are an exponent of ten."""
    exponents = 7
    values = [0.0, 1.0]
    for exponent in range(exponents):
        edges = torch.linspace(0.1, 1, 2**exponent + 1)
        means = (10.0 ** (exponent - exponents + 1)) * (edges[1:] + edges[:-1]) / 2
        values += [*means.tolist(), *(-means).tolist()]
    return tuple(sorted(values))
