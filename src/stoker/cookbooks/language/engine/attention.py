"""Attention within sequences: causal, inside one segment of a packed row, within a window; forward and backward.

torch's own kernels do the work. Their little graph is kept from forward to backward; nothing else here needs autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """Who may look at whom in a batch of rows."""

    positions: Tensor
    """Of each token in its own sequence, `[rows, T]`."""
    borders: Tensor | None = None
    """Where sequences begin in all rows laid end to end, then the end of all, repeated; for packed rows on a GPU."""
    segments: Tensor | None = None
    """Which sequence each token belongs to, `[rows, T]`; for packed rows elsewhere."""
    longest: int = 0
    """No sequence is longer; said of packed rows on a GPU."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that lies on a device, by name."""
        named = {"positions": self.positions, "borders": self.borders, "segments": self.segments}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def mask(self, window: int, length: int) -> Tensor | None:
        """Give which keys each query sees; nothing if that is all before it."""
        if self.segments is None and not (0 < window < length):
            return None
        place = torch.arange(length, device=self.positions.device)
        sees = place[None, :, None] >= place[None, None, :]
        if 0 < window < length:
            sees = sees & (place[None, :, None] - place[None, None, :] < window)
        if self.segments is not None:
            sees = sees & (self.segments[:, :, None] == self.segments[:, None, :])
        return sees[:, None]


def takes_ragged(device: str, dtype: torch.dtype, windows: Iterable[int]) -> bool:
    """Say whether there is a kernel for several sequences in one row, without a mask as large as the row's square."""
    return device != "cpu" and dtype != torch.float32 and not any(windows) and _ragged() is not None


def looking_of(rows: int, length: int, segments: Tensor | None, *, is_ragged: bool) -> Looking:
    """Say who looks at whom, on the CPU. `is_ragged`: with the kernel of `takes_ragged`."""
    place = torch.arange(length).expand(rows, length)
    if segments is None:
        return Looking(positions=place)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    positions = place - torch.where(begins, place, 0).cummax(dim=1).values
    if not is_ragged:
        return Looking(positions=positions, segments=segments)
    starts = begins.reshape(-1).nonzero().flatten()
    # Their number goes up by doubling, so that batches with a few more or less can use the same recorded graph.
    borders = torch.full((max(16, 1 << len(starts).bit_length()),), rows * length)
    borders[: len(starts)] = starts
    longest = min(length, 1 << int(positions.max()).bit_length())
    return Looking(positions=positions, borders=borders.to(torch.int32), longest=longest)


def attend(qkv: Tensor, heads: int, kv_heads: int, looking: Looking, window: int, *, keeps: bool) -> tuple[Tensor, Any]:
    """Give `[rows, T, heads · head_dim]` and what `attend_backward` needs, of `[rows, T, heads + 2 · kv, head_dim]`."""
    rows, length, _, head_dim = qkv.shape
    q, k, v = (part.detach().requires_grad_(keeps) for part in qkv.split([heads, kv_heads, kv_heads], dim=2))
    with torch.set_grad_enabled(keeps):
        if looking.borders is not None and not window and (ragged := _ragged()) is not None:
            kernel, shares_keys = ragged
            queries, keys, values = (part.reshape(rows * length, -1, head_dim) for part in (q, k, v))
            groups = {"enable_gqa": True} if shares_keys else {}
            if not shares_keys:
                keys, values = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (keys, values))
            borders, longest = looking.borders, looking.longest
            seen = kernel(queries, keys, values, borders, borders, longest, longest, window_size=(-1, 0), **groups)
            seen = seen.view(rows, length, heads, head_dim)
        else:
            mask = looking.mask(window, length)
            queries, keys, values = (part.transpose(1, 2) for part in (q, k, v))
            seen = scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=heads != kv_heads
            ).transpose(1, 2)
    return seen.detach().reshape(rows, length, heads * head_dim), (seen, q, k, v)


def attend_backward(tape: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of queries, keys and values, each `[rows, T, heads, head_dim]`."""
    seen, q, k, v = tape
    dq, dk, dv = torch.autograd.grad(seen, (q, k, v), gradient.view(seen.shape))
    return dq, dk, dv


@cache
def _ragged() -> tuple[Callable[..., Tensor], bool] | None:
    """Give the kernel for several sequences in one row, without a mask, and whether its heads may share keys."""
    try:
        # On CUDA alone, and imported there: it brings torch's compiler, as much again as torch itself.
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    takes = signature(varlen_attn).parameters
    # From torch 2.11 its window says what is causal.
    return (varlen_attn, "enable_gqa" in takes) if "window_size" in takes else None
