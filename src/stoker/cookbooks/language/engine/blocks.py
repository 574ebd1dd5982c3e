"""One block, forward and backward, by hand.

Kept from forward to backward: what came in, rotated queries, keys and values with what attention gave, what the second
half got, and gate and up. Norms and the gate are computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stoker.cookbooks.language.engine.attention import Looking, attend, attend_backward
from stoker.cookbooks.language.engine.banks import MEMBERS
from stoker.cookbooks.language.engine.bases import Layer
from stoker.cookbooks.language.engine.dropout import Dropping
from stoker.cookbooks.language.engine.pointwise import Pointwise
from stoker.cookbooks.language.engine.products import (
    Bank,
    narrowed,
    narrowed_back,
    onto,
    widened,
)
from stoker.cookbooks.language.engine.shapes import Shape

Banks = Mapping[str, Bank]
"""The adapters of one layer: `qkv`, `o`, `gate_up`, `down`; those that nobody trains are missing."""
_GROUPS = tuple(MEMBERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What all blocks have in common in one pass over a batch."""

    shape: Shape
    looking: Looking
    cos: Tensor
    sin: Tensor
    """`[rows, T, 1, head_dim / 2]`."""
    kernels: Pointwise
    keeps: bool
    """A backward pass follows."""
    dropping: Dropping | None = None


@dataclass(slots=True, kw_only=True)
class Kept:
    """What a block's backward pass needs."""

    x: Tensor
    raw: Tensor | None
    """Queries, keys and values before their norms, where heads have norms."""
    attention: Any
    seen: Tensor
    middle: Tensor
    gate: Tensor
    up: Tensor
    narrow: dict[str, Tensor]


def forward_block(
    x: Tensor, more: Tensor | None, layer: Layer, banks: Banks, number: int, now: Pass
) -> tuple[Tensor, Tensor, Kept | None]:
    """Give what a block makes of `[n, rows, hidden]`, and what its backward pass needs.

    What it is given and what it gives is a sum of two that nobody has added up yet: the next norm does so as it reads.
    """
    model, kernels, eps = now.shape.model, now.kernels, now.shape.eps
    narrow: dict[str, Tensor] = {}

    def seen_by(group: str, given: Tensor) -> tuple[Bank | None, Tensor | None]:
        bank = banks.get(group)
        if bank is not None:
            narrow[group] = narrowed(_seen(given, number, group, now), bank)
        return bank, narrow.get(group)

    if more is None:
        normed = kernels.norm(x, layer.norm1, eps)
    else:
        x, normed = kernels.norm_sum(x, more, layer.norm1, eps)
    qkv = widened(normed, layer.qkv, layer.qkv_bias, *seen_by("qkv", normed))
    rows, length = now.looking.positions.shape
    raw = qkv.view(rows, length, -1, model.head_dim)
    heads, kv_heads = model.heads, model.kv_heads
    turned = kernels.rotate_heads(_normed_heads(raw, layer, heads, kv_heads, now), heads + kv_heads, now.cos, now.sin)
    seen, tape = attend(turned, heads, kv_heads, now.looking, now.shape.windows[number], keeps=now.keeps)
    seen = seen.view(*x.shape[:2], -1)
    mixed = widened(seen, layer.o, layer.o_bias, *seen_by("o", seen))
    middle, normed = kernels.norm_sum(x, mixed, layer.norm2, eps)
    adapted, inner = seen_by("gate_up", normed), model.inner
    gate_bias, up_bias = (None, None) if layer.gate_up_bias is None else layer.gate_up_bias.chunk(2)
    gate = widened(normed, layer.gate_up[:inner], gate_bias, *adapted)
    up = widened(normed, layer.gate_up[inner:], up_bias, *adapted, begin=inner)
    gated = kernels.gate(gate, up)
    out = widened(gated, layer.down, layer.down_bias, *seen_by("down", gated))
    if not now.keeps:
        return middle, out, None
    kept_raw = raw if layer.q_norm is not None else None
    kept = Kept(x=x, raw=kept_raw, attention=tape, seen=seen, middle=middle, gate=gate, up=up, narrow=narrow)
    return middle, out, kept


def backward_block(  # noqa: PLR0913, PLR0917 - what a block's gradients are made of
    dx: Tensor, layer: Layer, banks: Banks, gradients: Banks, number: int, now: Pass, kept: Kept
) -> Tensor:
    """Write the gradients of a block's adapters; give that of what came in."""
    model, kernels, eps = now.shape.model, now.kernels, now.shape.eps

    def narrow_back(group: str, *dys: tuple[Tensor, int]) -> tuple[Tensor | None, Tensor | None]:
        """Give dy B, and what it adds to the gradient of what the group was given."""
        bank = banks.get(group)
        if bank is None:
            return None, None
        back = narrowed_back(list(dys), kept.narrow[group], bank, gradients[group])
        added = torch.bmm(back, bank.a)
        return back, added if now.dropping is None else now.dropping.applied(added, _place(number, group))

    def finish(group: str, back: Tensor | None, given: Tensor) -> None:
        """Write the gradient of A."""
        if back is not None:
            torch.bmm(back.mT, _seen(given, number, group, now), out=gradients[group].a)

    back, added = narrow_back("down", (dx, 0))
    dgate, dup, gated = kernels.gate_backward(kept.gate, kept.up, onto(added, dx, layer.down))
    finish("down", back, gated)
    del gated

    inner = model.inner
    back, added = narrow_back("gate_up", (dgate, 0), (dup, inner))
    dnormed = onto(onto(added, dgate, layer.gate_up[:inner]), dup, layer.gate_up[inner:])
    del dgate, dup
    dmiddle, normed = kernels.norm_backward(kept.middle, layer.norm2, eps, dnormed, dx)
    finish("gate_up", back, normed)

    back, added = narrow_back("o", (dmiddle, 0))
    finish("o", back, kept.seen)
    dq, dk, dv = attend_backward(kept.attention, onto(added, dmiddle, layer.o))
    dturned = _turned_back(dq, dk, dv, now)
    dqkv = _normed_heads_backward(dturned, kept, layer, model.heads, model.kv_heads, now).view(*dx.shape[:2], -1)

    back, added = narrow_back("qkv", (dqkv, 0))
    dx, normed = kernels.norm_backward(kept.x, layer.norm1, eps, onto(added, dqkv, layer.qkv), dmiddle)
    finish("qkv", back, normed)
    return dx


def _turned_back(dq: Tensor, dk: Tensor, dv: Tensor, now: Pass) -> Tensor:
    """Undo the rotation of queries and keys on gradients, and lay all three side by side."""
    heads, kv_heads = dq.shape[2], dk.shape[2]
    into = torch.empty(*dq.shape[:2], heads + 2 * kv_heads, dq.shape[3], dtype=dq.dtype, device=dq.device)
    back = -now.sin
    now.kernels.rotate_into(dq, now.cos, back, into[:, :, :heads])
    now.kernels.rotate_into(dk, now.cos, back, into[:, :, heads : heads + kv_heads])
    into[:, :, heads + kv_heads :] = dv
    return into


def _seen(given: Tensor, number: int, group: str, now: Pass) -> Tensor:
    """Give what adapters see of what a group is given."""
    return given if now.dropping is None else now.dropping.applied(given, _place(number, group))


def _place(number: int, group: str) -> int:
    return number * len(_GROUPS) + _GROUPS.index(group)


def _normed_heads(raw: Tensor, layer: Layer, heads: int, kv_heads: int, now: Pass) -> Tensor:
    if layer.q_norm is None or layer.k_norm is None:
        return raw
    q, k, v = raw.split([heads, kv_heads, kv_heads], dim=2)
    norm, eps = now.kernels.norm, now.shape.eps
    return torch.cat([norm(q, layer.q_norm, eps), norm(k, layer.k_norm, eps), v], dim=2)


def _normed_heads_backward(d: Tensor, kept: Kept, layer: Layer, heads: int, kv_heads: int, now: Pass) -> Tensor:
    if kept.raw is None or layer.q_norm is None or layer.k_norm is None:
        return d
    dq, dk, dv = d.split([heads, kv_heads, kv_heads], dim=2)
    q, k, _ = kept.raw.split([heads, kv_heads, kv_heads], dim=2)
    back, eps = now.kernels.norm_backward, now.shape.eps
    zero_q, zero_k = torch.zeros_like(q), torch.zeros_like(k)
    dq, _ = back(q, layer.q_norm, eps, dq, zero_q)
    dk, _ = back(k, layer.k_norm, eps, dk, zero_k)
    return torch.cat([dq, dk, dv], dim=2)
