"""Attention within the sequences of packed rows on a GPU, forward and backward, in Triton.

A query sees the keys from the start of its sequence to itself, so blocks of keys before that start are left out, and
blocks of queries after the end of a sequence in the backward pass. Shapes depend on rows and tokens alone, not on how
many sequences there are: one recorded graph serves all batches. Heads that share keys add their gradients in one
program, without a copy for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2_E: Final = 1.4426950408889634
_NOTHING = tl.constexpr(-1.0e30)
"""The score of a key that is not seen; what it adds to a sum is removed by the first key that is."""
_TILE: Final = 64
"""Queries and keys of one product: on an H200 larger and smaller ones took longer, for heads of 64 and of 128."""
_WIDTHS: Final = (16, 32, 64, 128)


def takes_heads(head_dim: int) -> bool:
    """Return True if heads of this width can be computed."""
    return head_dim in _WIDTHS


@triton.jit
def _tile(at, places, columns, stride, count):
    """Return pointers to rows of a head, and which of them exist."""
    return at + places[:, None] * stride + columns[None, :], (places < count)[:, None] & (columns >= 0)[None, :]


@triton.jit
def _attend(
    q, k, v, positions, seen, totals, row_stride, token_stride, count, scale,
    heads: tl.constexpr, sharing: tl.constexpr, width: tl.constexpr, queries: tl.constexpr, keys: tl.constexpr,
):  # fmt: skip
    row, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * queries
    place, column = first + tl.arange(0, queries), tl.arange(0, width)
    begin = place - tl.load(positions + row * count + place, place < count, 0).to(tl.int32)
    at, is_there = _tile(q + row * row_stride + head * width, place, column, token_stride, count)
    mine = tl.load(at, is_there, 0.0)
    most = tl.full([queries], _NOTHING, tl.float32)
    total = tl.zeros([queries], tl.float32)
    mean = tl.zeros([queries, width], tl.float32)
    least = (first - tl.load(positions + row * count + first).to(tl.int32)) // keys * keys
    shared = row * row_stride + head // sharing * width
    for start in tl.range(least, tl.minimum(first + queries, count), keys):
        other = start + tl.arange(0, keys)
        spot, exists = _tile(k + shared, other, column, token_stride, count)
        score = tl.dot(mine, tl.load(spot, exists, 0.0).T) * scale
        is_seen = (other[None, :] <= place[:, None]) & (other[None, :] >= begin[:, None])
        score = tl.where(is_seen, score, _NOTHING)
        higher = tl.maximum(most, tl.max(score, 1))
        share = tl.exp2(score - higher[:, None])
        kept = tl.exp2(most - higher)
        spot, exists = _tile(v + shared, other, column, token_stride, count)
        values = tl.load(spot, exists, 0.0)
        mean = tl.dot(share.to(values.dtype), values, mean * kept[:, None])
        total = total * kept + tl.sum(share, 1)
        most = higher
    at, is_there = _tile(seen + (row * count * heads + head) * width, place, column, heads * width, count)
    tl.store(at, (mean / total[:, None]).to(seen.dtype.element_ty), is_there)
    tl.store(totals + (row * heads + head) * count + place, most + tl.log2(total), place < count)


@triton.jit
def _shares(mine, theirs, total, scale, is_seen):
    score = tl.dot(mine, theirs.T) * scale
    return tl.where(is_seen, tl.exp2(score - total[:, None]), 0.0)


@triton.jit
def _key_gradients(
    q, k, v, positions, ends, given, totals, products, dk, dv, row_stride, token_stride, count, scale, factor,
    heads: tl.constexpr, sharing: tl.constexpr, width: tl.constexpr, queries: tl.constexpr, keys: tl.constexpr,
):  # fmt: skip
    key_heads: tl.constexpr = heads // sharing
    row, key_head = (tl.program_id(1) // key_heads).to(tl.int64), tl.program_id(1) % key_heads
    first = tl.program_id(0) * keys
    other, column = first + tl.arange(0, keys), tl.arange(0, width)
    at, is_there = _tile(k + row * row_stride + key_head * width, other, column, token_stride, count)
    my_keys = tl.load(at, is_there, 0.0)
    at, is_there = _tile(v + row * row_stride + key_head * width, other, column, token_stride, count)
    my_values = tl.load(at, is_there, 0.0)
    to_keys = tl.zeros([keys, width], tl.float32)
    to_values = tl.zeros([keys, width], tl.float32)
    last = tl.load(ends + row * count + tl.minimum(first + keys, count) - 1).to(tl.int32)
    for number in range(sharing):
        head = key_head * sharing + number
        for start in tl.range(first // queries * queries, last, queries):
            place = start + tl.arange(0, queries)
            begin = place - tl.load(positions + row * count + place, place < count, 0).to(tl.int32)
            spot, exists = _tile(q + row * row_stride + head * width, place, column, token_stride, count)
            mine = tl.load(spot, exists, 0.0)
            spot, exists = _tile(given + (row * count * heads + head) * width, place, column, heads * width, count)
            gradient = tl.load(spot, exists, 0.0)
            total = tl.load(totals + (row * heads + head) * count + place, place < count, 0.0)
            product = tl.load(products + (row * heads + head) * count + place, place < count, 0.0)
            is_seen = (other[None, :] <= place[:, None]) & (other[None, :] >= begin[:, None])
            share = _shares(mine, my_keys, total, scale, is_seen & (place < count)[:, None])
            to_values = tl.dot(share.to(gradient.dtype).T, gradient, to_values)
            pull = share * (tl.dot(gradient, my_values.T) - product[:, None])
            to_keys = tl.dot(pull.to(mine.dtype).T, mine, to_keys)
    out, is_there = _tile(dk + (row * count * key_heads + key_head) * width, other, column, key_heads * width, count)
    tl.store(out, (to_keys * factor).to(dk.dtype.element_ty), is_there)
    out, is_there = _tile(dv + (row * count * key_heads + key_head) * width, other, column, key_heads * width, count)
    tl.store(out, to_values.to(dv.dtype.element_ty), is_there)


@triton.jit
def _query_gradients(
    q, k, v, positions, seen, given, totals, products, dq, row_stride, token_stride, count, scale, factor,
    heads: tl.constexpr, sharing: tl.constexpr, width: tl.constexpr, queries: tl.constexpr, keys: tl.constexpr,
):  # fmt: skip
    row, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * queries
    place, column = first + tl.arange(0, queries), tl.arange(0, width)
    begin = place - tl.load(positions + row * count + place, place < count, 0).to(tl.int32)
    at, is_there = _tile(q + row * row_stride + head * width, place, column, token_stride, count)
    mine = tl.load(at, is_there, 0.0)
    flat = (row * count * heads + head) * width
    at, is_there = _tile(given + flat, place, column, heads * width, count)
    gradient = tl.load(at, is_there, 0.0)
    at, is_there = _tile(seen + flat, place, column, heads * width, count)
    product = tl.sum(gradient.to(tl.float32) * tl.load(at, is_there, 0.0).to(tl.float32), 1)
    tl.store(products + (row * heads + head) * count + place, product, place < count)
    total = tl.load(totals + (row * heads + head) * count + place, place < count, 0.0)
    pulled = tl.zeros([queries, width], tl.float32)
    least = (first - tl.load(positions + row * count + first).to(tl.int32)) // keys * keys
    shared = row * row_stride + head // sharing * width
    for start in tl.range(least, tl.minimum(first + queries, count), keys):
        other = start + tl.arange(0, keys)
        spot, exists = _tile(k + shared, other, column, token_stride, count)
        theirs = tl.load(spot, exists, 0.0)
        spot, exists = _tile(v + shared, other, column, token_stride, count)
        values = tl.load(spot, exists, 0.0)
        is_seen = (other[None, :] <= place[:, None]) & (other[None, :] >= begin[:, None])
        share = _shares(mine, theirs, total, scale, is_seen)
        pull = share * (tl.dot(gradient, values.T) - product[:, None])
        pulled = tl.dot(pull.to(theirs.dtype), theirs, pulled)
    at, is_there = _tile(dq + flat, place, column, heads * width, count)
    tl.store(at, (pulled * factor).to(dq.dtype.element_ty), is_there)


def attend_packed(
    qkv: Tensor, heads: int, key_heads: int, positions: Tensor, ends: Tensor
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]]:
    """Return what is seen, `[rows, T, heads, head_dim]`, and the backward pass. `qkv` is `[rows, T, …, head_dim]`.

    `positions` and `ends` are those of each token within its sequence and of its sequence within the row.
    """
    rows, count, _, width = qkv.shape
    q, k, v = qkv.split([heads, key_heads, key_heads], dim=2)
    seen = torch.empty(rows, count, heads, width, dtype=qkv.dtype, device=qkv.device)
    totals = torch.empty(rows, heads, count, dtype=torch.float32, device=qkv.device)
    strides = (qkv.stride(0), qkv.stride(1), count, width**-0.5 * _LOG2_E)
    sizes = {"heads": heads, "sharing": heads // key_heads, "width": width, "queries": _TILE, "keys": _TILE}
    of_queries, of_keys = ((triton.cdiv(count, _TILE), rows * one) for one in (heads, key_heads))
    _attend[of_queries](q, k, v, positions, seen, totals, *strides, **sizes, num_warps=4, num_stages=3)

    def gradients(given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        given = given.reshape(seen.shape).contiguous()
        dq, dk, dv = (torch.empty_like(part, memory_format=torch.contiguous_format) for part in (q, k, v))
        products = torch.empty_like(totals)
        pull = (*strides, width**-0.5)
        # First: it writes the products that the other one reads.
        _query_gradients[of_queries](
            q, k, v, positions, seen, given, totals, products, dq, *pull, **sizes, num_warps=4, num_stages=2
        )
        _key_gradients[of_keys](
            q, k, v, positions, ends, given, totals, products, dk, dv, *pull, **sizes, num_warps=4, num_stages=2
        )
        return dq, dk, dv

    return seen, gradients
