"""Element-wise operations on a GPU: a kernel each, in Triton, for any number of rows.

`math` has the same operations in torch; they define what is computed, and in which precision. A kernel is compiled in a
fraction of a second on its first use, once for a base: its number of rows is no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stoker.cookbooks.language.compute.math import Angles, HeadNorms, PackedLayout, PointwiseKernels
from stoker.cookbooks.language.compute.nf4 import QuantisedMatrix, tables
from stoker.cookbooks.language.compute.packed_attention import takes_heads

_TILE = 1024
"""Numbers of short rows that one program reads."""
_FLAT = 2048
_VOCABULARY = 8192
_ANY_ROWS = ("count",)
"""Not part of a kernel's identity. Where the numbers of all rows lie side by side it is: whether sixteen can be read at
once depends on it."""


@triton.jit
def _precise_rsqrt(value):
    return tl.div_rn(1.0, tl.sqrt_rn(value))


@triton.jit(do_not_specialize=_ANY_ROWS)
def _norm(
    x, more, weight, both, out, eps, x_token, x_head, m_token, m_head, heads, count,
    width: tl.constexpr, block: tl.constexpr, rows: tl.constexpr, adds: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    column = tl.arange(0, block)
    inside = (row < count)[:, None] & (column < width)[None, :]
    token, head = row // heads, row % heads
    wide = tl.load(x + (token * x_token + head * x_head)[:, None] + column[None, :], inside, 0.0)
    kind = wide.dtype
    wide = wide.to(tl.float32)
    place = row[:, None] * width + column[None, :]
    if adds:
        added = tl.load(more + (token * m_token + head * m_head)[:, None] + column[None, :], inside, 0.0)
        total = (wide + added.to(tl.float32)).to(kind)
        tl.store(both + place, total, inside)
        wide = total.to(tl.float32)
    scale = _precise_rsqrt(tl.sum(wide * wide, 1) / width + eps)
    unit = (wide * scale[:, None]).to(kind).to(tl.float32)
    by = tl.load(weight + column, column < width, 0.0).to(tl.float32)
    tl.store(out + place, (unit * by[None, :]).to(kind), inside)


@triton.jit(do_not_specialize=_ANY_ROWS)
def _norm_backward(
    x, weight, gradient, beside, out, normed, eps,
    x_token, x_head, g_token, g_head, b_token, b_head, heads, count,
    width: tl.constexpr, block: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    column = tl.arange(0, block)
    inside = (row < count)[:, None] & (column < width)[None, :]
    token, head = row // heads, row % heads
    wide = tl.load(x + (token * x_token + head * x_head)[:, None] + column[None, :], inside, 0.0)
    kind = wide.dtype
    wide = wide.to(tl.float32)
    by = tl.load(weight + column, column < width, 0.0).to(tl.float32)[None, :]
    upstream = tl.load(gradient + (token * g_token + head * g_head)[:, None] + column[None, :], inside, 0.0)
    upstream = (upstream.to(tl.float32) * by).to(kind).to(tl.float32)
    scale = _precise_rsqrt(tl.sum(wide * wide, 1) / width + eps)[:, None]
    unit = wide * scale
    mean = (tl.sum(upstream * unit, 1) / width)[:, None]
    inner = (scale * (upstream - unit * mean)).to(kind).to(tl.float32)
    place = row[:, None] * width + column[None, :]
    added = tl.load(beside + (token * b_token + head * b_head)[:, None] + column[None, :], inside, 0.0)
    tl.store(out + place, (added.to(tl.float32) + inner).to(kind), inside)
    tl.store(normed + place, (by * unit.to(kind).to(tl.float32)).to(kind), inside)


@triton.jit
def _rotations(cos, sin, token, half: tl.constexpr, block: tl.constexpr):
    """Return the cosines and sines of a token."""
    column = tl.arange(0, block)[None, :]
    at = token * half + column
    return tl.load(cos + at, column < half, 0.0), tl.load(sin + at, column < half, 0.0)


@triton.jit
def _head_weights(
    q_weight, k_weight, head, q_heads: tl.constexpr, half: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Return the weights of the norm of each head, a half each."""
    column = tl.arange(0, block)[None, :]
    is_query, inside = head < q_heads, column < half
    first = tl.where(is_query, tl.load(q_weight + column, inside, 0.0), tl.load(k_weight + column, inside, 0.0))
    q_weight, k_weight = q_weight + half, k_weight + half
    second = tl.where(is_query, tl.load(q_weight + column, inside, 0.0), tl.load(k_weight + column, inside, 0.0))
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def _norm_rotate(
    x, q_weight, k_weight, cos, sin, out, eps, x_token, x_head,
    heads: tl.constexpr, q_heads: tl.constexpr, turned: tl.constexpr, normed: tl.constexpr,
    half: tl.constexpr, some: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, some)[:, None], tl.arange(0, block)[None, :]
    inside, is_turned = (head < heads) & (column < half), head < turned
    source = x + token * x_token + head * x_head + column
    first, second = tl.load(source, inside, 0.0), tl.load(source + half, inside, 0.0)
    kind = first.dtype
    one, two = first.to(tl.float32), second.to(tl.float32)
    if normed:
        scale = _precise_rsqrt((tl.sum(one * one, 1) + tl.sum(two * two, 1)) / (2 * half) + eps)[:, None]
        by_one, by_two = _head_weights(q_weight, k_weight, head, q_heads, half, block)
        one = tl.where(is_turned, ((one * scale).to(kind).to(tl.float32) * by_one).to(kind).to(tl.float32), one)
        two = tl.where(is_turned, ((two * scale).to(kind).to(tl.float32) * by_two).to(kind).to(tl.float32), two)
    c, s = _rotations(cos, sin, token, half, block)
    target = out + (token * heads + head) * 2 * half + column
    tl.store(target, tl.where(is_turned, one * c - two * s, one).to(kind), inside)
    tl.store(target + half, tl.where(is_turned, two * c + one * s, two).to(kind), inside)


@triton.jit
def _norm_rotate_backward(
    dq, dk, dv, x, q_weight, k_weight, cos, sin, out, eps, x_token, x_head,
    q_token, q_head, k_token, k_head, v_token, v_head,
    heads: tl.constexpr, q_heads: tl.constexpr, turned: tl.constexpr, normed: tl.constexpr,
    half: tl.constexpr, some: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, some)[:, None], tl.arange(0, block)[None, :]
    is_there, is_turned = (head < heads) & (column < half), head < turned
    of_q, of_k, of_v = (
        is_there & (head < q_heads),
        is_there & (head >= q_heads) & is_turned,
        is_there & (head >= turned),
    )
    from_q = dq + token * q_token + head * q_head + column
    from_k = dk + token * k_token + (head - q_heads) * k_head + column
    from_v = dv + token * v_token + (head - turned) * v_head + column
    # Each head is in one of the three; the others are read as zero.
    first = tl.load(from_q, of_q, 0.0) + tl.load(from_k, of_k, 0.0) + tl.load(from_v, of_v, 0.0)
    from_q, from_k, from_v = from_q + half, from_k + half, from_v + half
    second = tl.load(from_q, of_q, 0.0) + tl.load(from_k, of_k, 0.0) + tl.load(from_v, of_v, 0.0)
    kind = first.dtype
    one, two = first.to(tl.float32), second.to(tl.float32)
    c, s = _rotations(cos, sin, token, half, block)
    d_one, d_two = tl.where(is_turned, one * c + two * s, one), tl.where(is_turned, two * c - one * s, two)
    if normed:
        source = x + token * x_token + head * x_head + column
        one = tl.load(source, is_there & is_turned, 0.0).to(tl.float32)
        two = tl.load(source + half, is_there & is_turned, 0.0).to(tl.float32)
        by_one, by_two = _head_weights(q_weight, k_weight, head, q_heads, half, block)
        up_one = (d_one.to(kind).to(tl.float32) * by_one).to(kind).to(tl.float32)
        up_two = (d_two.to(kind).to(tl.float32) * by_two).to(kind).to(tl.float32)
        scale = _precise_rsqrt((tl.sum(one * one, 1) + tl.sum(two * two, 1)) / (2 * half) + eps)[:, None]
        one, two = one * scale, two * scale
        mean = ((tl.sum(up_one * one, 1) + tl.sum(up_two * two, 1)) / (2 * half))[:, None]
        d_one = tl.where(is_turned, scale * (up_one - one * mean), d_one)
        d_two = tl.where(is_turned, scale * (up_two - two * mean), d_two)
    target = out + (token * heads + head) * 2 * half + column
    tl.store(target, d_one.to(kind), is_there)
    tl.store(target + half, d_two.to(kind), is_there)


@triton.jit
def _gate(opened, up, out, count, block: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    wide = tl.load(opened + place, inside, 0.0)
    kind = wide.dtype
    wide = wide.to(tl.float32)
    silu = (wide * tl.sigmoid(wide)).to(kind).to(tl.float32)
    tl.store(out + place, (silu * tl.load(up + place, inside, 0.0).to(tl.float32)).to(kind), inside)


@triton.jit
def _gate_backward(opened, up, gradient, d_open, d_up, gated, count, block: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    wide = tl.load(opened + place, inside, 0.0)
    kind = wide.dtype
    wide = wide.to(tl.float32)
    straight = tl.load(up + place, inside, 0.0).to(tl.float32)
    given = tl.load(gradient + place, inside, 0.0).to(tl.float32)
    sigma = tl.sigmoid(wide)
    silu = wide * sigma
    tl.store(d_open + place, (given * straight * sigma * (1 + wide * (1 - sigma))).to(kind), inside)
    tl.store(d_up + place, (given * silu).to(kind), inside)
    tl.store(gated + place, (silu.to(kind).to(tl.float32) * straight).to(kind), inside)


@triton.jit
def _loss(
    logits, labels, shares, losses, row_stride,
    words: tl.constexpr, block: tl.constexpr, writes_gradient: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    source = logits + row * row_stride
    is_wanted = label >= 0
    column = tl.arange(0, block)
    if is_wanted:
        # Of each column so far: the largest number, and the sum of exponentials relative to it.
        most = tl.full([block], -float("inf"), tl.float32)
        total = tl.zeros([block], tl.float32)
        for begin in range(0, words, block):
            wide = tl.load(source + begin + column, begin + column < words, -float("inf")).to(tl.float32)
            now = tl.where(wide > most, wide, most)
            # Still nothing but minus infinity: no difference can be made.
            since = tl.where(now == -float("inf"), 0.0, now)
            total = total * tl.exp(most - since) + tl.exp(wide - since)
            most = now
        largest = tl.max(most, 0)
        summed = largest + tl.log(tl.sum(total * tl.exp(most - largest), 0))
        chosen = tl.load(source + label).to(tl.float32)
        tl.store(losses + row, summed - chosen)
        if writes_gradient:
            share = tl.load(shares + row)
            for begin in range(0, words, block):
                inside = begin + column < words
                given = tl.load(source + begin + column, inside, 0.0)
                wide = tl.exp(given.to(tl.float32) - summed)
                wide = tl.where(begin + column == label, wide - 1.0, wide) * share
                tl.store(source + begin + column, wide.to(given.dtype), inside)
    else:
        tl.store(losses + row, 0.0)
        if writes_gradient:
            zero = tl.zeros([block], tl.float32)
            for begin in range(0, words, block):
                tl.store(source + begin + column, zero.to(logits.dtype.element_ty), begin + column < words)


@triton.jit
def _move(
    weights, first, second, used, gradient, factors, is_moved, count,
    block: tl.constexpr, factor_count: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = column < count
    place = row * count + column
    mine = factors + row * factor_count
    by, scale, beta1, beta2 = tl.load(mine), tl.load(mine + 1), tl.load(mine + 2), tl.load(mine + 3)
    eps, kept, rate, spread_by = tl.load(mine + 4), tl.load(mine + 5), tl.load(mine + 6), tl.load(mine + 7)
    there = tl.load(weights + place, inside, 0.0)
    if tl.load(is_moved + row):
        g = tl.load(gradient + place, inside, 0.0).to(tl.float32) * by
        mean = tl.load(first + place, inside, 0.0)
        mean = mean + (g - mean) * (1 - beta1)
        square = tl.load(second + place, inside, 0.0) * beta2 + g * g * (1 - beta2)
        spread = tl.div_rn(tl.sqrt_rn(square), spread_by) + eps
        there = there * kept - rate * tl.div_rn(mean, spread)
        tl.store(first + place, mean, inside)
        tl.store(second + place, square, inside)
        tl.store(weights + place, there, inside)
    tl.store(used + place, (there * scale).to(used.dtype.element_ty), inside)


@triton.jit
def _dequantise(
    codes, scales, sizes, mean, values, magnitudes, out, count, block: tl.constexpr, doubly: tl.constexpr
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    pair = tl.load(codes + place // 2, inside, 0).to(tl.int32)
    near = tl.where(place % 2 == 0, pair >> 4, pair & 15)
    group = place // 64
    if doubly:
        scale = tl.load(scales + group, inside, 0).to(tl.int32)
        # In 64 bits, so that product and sum are rounded one after the other, as in torch.
        size = tl.load(sizes + group // 256, inside, 0.0).to(tl.float64)
        product = tl.load(magnitudes + scale).to(tl.float64) * size
        largest = product.to(tl.float32) + tl.load(mean)
    else:
        largest = tl.load(scales + group, inside, 0.0)
    tl.store(out + place, (tl.load(values + near) * largest).to(out.dtype.element_ty), inside)


def dequantise_nf4(matrix: QuantisedMatrix, into: Tensor) -> None:
    """Write a matrix of four-bit weights in the precision of a contiguous tensor into it."""
    count = into.numel()
    values, magnitudes = tables(into.device)
    _dequantise[(triton.cdiv(count, _FLAT),)](
        matrix.codes, matrix.scales, matrix.scale_sizes, matrix.mean, values, magnitudes, into, count, block=_FLAT,
        doubly=not matrix.scales.is_floating_point(),
    )  # fmt: skip


@triton.jit
def _gather(tokens, table, out, width, stride, block: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    token = tl.load(tokens + row)
    tl.store(out + row * width + column, tl.load(table + token * stride + column, inside, 0.0), inside)


def gathered_rows(tokens: Tensor, table: Tensor) -> Tensor:
    """Return the rows of a table for tokens, `[…, width]`; the table may be in page-locked memory of the machine."""
    width, flat = table.shape[1], tokens.contiguous()
    out = torch.empty(*tokens.shape, width, dtype=table.dtype, device=tokens.device)
    _gather[(flat.numel(), triton.cdiv(width, _FLAT))](flat, table, out, width, table.stride(0), block=_FLAT)
    return out


@dataclass(frozen=True, slots=True)
class _Rows:
    """A tensor as rows: `tokens` times `heads`, each of `width` numbers side by side."""

    tensor: Tensor
    tokens: int
    heads: int
    width: int
    token_stride: int
    head_stride: int

    @property
    def count(self) -> int:
        return self.tokens * self.heads


def _rows_of(x: Tensor) -> _Rows:
    """Return the rows of `[tokens, width]`, `[n, T, width]` or `[rows, T, heads, width]`; copied if they lie apart."""
    if x.stride(-1) != 1 or (x.dim() > 2 and x.stride(0) != x.shape[1] * x.stride(1)):
        x = x.contiguous()
    width = x.shape[-1]
    if x.dim() == 4:
        return _Rows(x, x.shape[0] * x.shape[1], x.shape[2], width, x.stride(1), x.stride(2))
    return _Rows(x, x.numel() // width, 1, width, x.stride(-2), 0)


def _tiles(rows: _Rows) -> dict[str, int]:
    """Return how many rows one program takes, and its warps."""
    block = triton.next_power_of_2(rows.width)
    return {
        "width": rows.width,
        "block": block,
        "rows": max(1, _TILE // block),
        "num_warps": min(16, max(4, block // 512)),
    }


def _contiguous(angles: Angles) -> Angles:
    cos, sin = angles
    return cos.contiguous(), sin.contiguous()


def _heads(rows: _Rows) -> dict[str, int]:
    """Return the sizes of the heads of one token, which one program takes in two halves."""
    half = rows.width // 2
    return {
        "heads": rows.heads,
        "half": half,
        "some": triton.next_power_of_2(rows.heads),
        "block": triton.next_power_of_2(half),
    }


class GpuKernels(PointwiseKernels):
    """The operations as kernels. Tensors may have any number of rows; results are contiguous."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._norm(x, None, weight, eps)[1]

    def norm_sum(self, x: Tensor, more: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return self._norm(x, more, weight, eps)

    def _norm(self, x: Tensor, more: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        both = out if more is None else torch.empty_like(out)
        one = _rows_of(x)
        two = one if more is None else _rows_of(more)
        how = _tiles(one)
        _norm[(triton.cdiv(one.count, how["rows"]),)](
            one.tensor, two.tensor, weight, both, out, eps,
            one.token_stride, one.head_stride, two.token_stride, two.head_stride, one.heads, one.count,
            adds=more is not None, **how,
        )  # fmt: skip
        return both, out

    def norm_backward(
        self, x: Tensor, weight: Tensor, eps: float, gradient: Tensor, beside: Tensor
    ) -> tuple[Tensor, Tensor]:
        out, normed = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
        one, given, added = _rows_of(x), _rows_of(gradient), _rows_of(beside)
        how = _tiles(one)
        _norm_backward[(triton.cdiv(one.count, how["rows"]),)](
            one.tensor, weight, given.tensor, added.tensor, out, normed, eps,
            one.token_stride, one.head_stride, given.token_stride, given.head_stride,
            added.token_stride, added.head_stride, one.heads, one.count, **how,
        )  # fmt: skip
        return out, normed

    def norm_rotate(self, qkv: Tensor, heads: int, norms: HeadNorms | None, eps: float, angles: Angles) -> Tensor:
        out = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
        one = _rows_of(qkv)
        q_weight, k_weight = (one.tensor, one.tensor) if norms is None else norms
        _norm_rotate[(one.tokens,)](
            one.tensor, q_weight, k_weight, *_contiguous(angles), out, eps, one.token_stride, one.head_stride,
            q_heads=heads, turned=(heads + one.heads) // 2, normed=norms is not None, **_heads(one),
        )  # fmt: skip
        return out

    def norm_rotate_backward(
        self,
        gradients: tuple[Tensor, Tensor, Tensor],
        qkv: Tensor | None,
        norms: HeadNorms | None,
        eps: float,
        angles: Angles,
    ) -> Tensor:
        q, k, v = map(_rows_of, gradients)
        heads = q.heads + k.heads + v.heads
        out = torch.empty(*gradients[0].shape[:2], heads, q.width, dtype=q.tensor.dtype, device=q.tensor.device)
        # Without norms the input is not read.
        one = _rows_of(out if qkv is None else qkv)
        q_weight, k_weight = (out, out) if norms is None else norms
        _norm_rotate_backward[(q.tokens,)](
            q.tensor, k.tensor, v.tensor, one.tensor, q_weight, k_weight, *_contiguous(angles), out, eps,
            one.token_stride, one.head_stride, q.token_stride, q.head_stride, k.token_stride, k.head_stride,
            v.token_stride, v.head_stride,
            q_heads=q.heads, turned=q.heads + k.heads, normed=norms is not None, **_heads(one),
        )  # fmt: skip
        return out

    def gate(self, opened: Tensor, up: Tensor) -> Tensor:
        opened, up = opened.contiguous(), up.contiguous()
        out = torch.empty_like(up)
        count = up.numel()
        _gate[(triton.cdiv(count, _FLAT),)](opened, up, out, count, block=_FLAT)
        return out

    def gate_backward(self, opened: Tensor, up: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        opened, up, gradient = opened.contiguous(), up.contiguous(), gradient.contiguous()
        d_open, d_up, gated = (torch.empty_like(up) for _ in range(3))
        count = up.numel()
        _gate_backward[(triton.cdiv(count, _FLAT),)](opened, up, gradient, d_open, d_up, gated, count, block=_FLAT)
        return d_open, d_up, gated

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self._loss(logits, labels, None)

    def loss_and_gradient(self, logits: Tensor, labels: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses, and the gradient in the memory of the logits."""
        return self._loss(logits, labels, shares), logits

    def _loss(self, logits: Tensor, labels: Tensor, shares: Tensor | None) -> Tensor:
        losses = torch.empty(len(labels), device=logits.device)
        _loss[(len(labels),)](
            logits, labels, labels if shares is None else shares.contiguous(), losses, logits.stride(0),
            words=logits.shape[1], block=min(_VOCABULARY, triton.next_power_of_2(logits.shape[1])),
            writes_gradient=shares is not None, num_warps=16,
        )  # fmt: skip
        return losses

    @staticmethod
    def packed_layout(head_dim: int) -> PackedLayout:
        return "ends" if takes_heads(head_dim) else "borders"

    def move(self, weights: Tensor, first: Tensor, second: Tensor, used: Tensor, *given: Any) -> None:
        gradient, scale, is_moved, rate, shortened, beta1, beta2, eps, decay, count = given
        # As in `math.move`, a number for each row.
        factors = torch.cat(
            [
                scale * shortened, scale, beta1, beta2, eps, 1 - rate * decay,
                rate / (1 - beta1**count), (1 - beta2**count).sqrt(),
            ],
            dim=1,
        )  # fmt: skip
        size = weights.shape[1]
        _move[(triton.cdiv(size, _FLAT), len(weights))](
            weights, first, second, used, gradient, factors, is_moved.contiguous(), size,
            block=_FLAT, factor_count=factors.shape[1],
        )  # fmt: skip
