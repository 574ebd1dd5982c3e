"""One block, forward and backward, by hand.

Kept from forward to backward: the input, rotated queries, keys and values with the output of attention, the input of
the second half, and gate and up. Norms and the gate are computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import linear

from stoker.cookbooks.language.compute.banks import (
    Bank,
    narrowed,
    narrowed_back,
    onto,
    scaled,
    scaled_back,
    widened,
)
from stoker.cookbooks.language.compute.base_weights import LayerWeights
from stoker.cookbooks.language.compute.decoding import KeyValueCache
from stoker.cookbooks.language.compute.frozen_base import MEMBERS, DecoderShape
from stoker.cookbooks.language.compute.math import Angles, AttentionGradients, AttentionMask, PointwiseKernels, attend
from stoker.devices.estimate.shared_base import CHUNK_BYTES

# Dropout whose every choice is a function of member, update and position: independent of other members.
#
# A choice is a hash of the member's seed, its update, the pass within it, the matrix, the token's row and position in
# it, and the feature; padding has no effect.

_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B1
_ROW_BITS = 20
"""More places than a row has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassDropout:
    """The dropout of one pass."""

    shares: Tensor
    """Of each member, `[n]`."""
    keys: Tensor
    """Of each member: its seed, update and pass, mixed, `[n]`."""
    length: int
    """Tokens of a row, padded."""

    def applied(self, x: Tensor, place: int) -> Tensor:
        """Return `[n, rows, features]` with some features dropped and the others scaled up. Deterministic."""
        _, tokens, features = x.shape
        number = torch.arange(tokens, device=x.device, dtype=torch.int64)
        token = (number // self.length << _ROW_BITS) + number % self.length
        word = _mix(_mix(token + self.keys[:, None]) + place * _GOLDEN)
        feature = torch.arange(features, device=x.device, dtype=torch.int64) * _GOLDEN
        keep = 1.0 - self.shares.view(-1, 1, 1)
        is_kept = _mix(word[:, :, None] + feature) < (keep * (1 << 32)).to(torch.int64)
        return torch.where(is_kept, x / keep.to(x.dtype), torch.zeros_like(x))


def keys_of(seeds: Tensor, updates: Tensor, passes: Tensor) -> Tensor:
    """Return a hash that identifies one pass of a member."""
    return _mix(_mix(_mix(seeds) + updates) + passes)


def _mix(word: Tensor) -> Tensor:
    """Scramble 32 bits."""
    word = word & _WORD
    word = ((word ^ (word >> 16)) * 0x85EBCA6B) & _WORD
    word = ((word ^ (word >> 13)) * 0xC2B2AE35) & _WORD
    return word ^ (word >> 16)


Banks = Mapping[str, Bank]
"""The adapters of one layer: `qkv`, `o`, `gate_up`, `down`; those without an adapter are missing."""
_GROUPS = tuple(MEMBERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassContext:
    """The common inputs of all blocks in one pass."""

    shape: DecoderShape
    mask: AttentionMask
    angles: Angles
    kernels: PointwiseKernels
    keeps: bool
    """True if a backward pass follows."""
    dropping: PassDropout | None = None
    cache: KeyValueCache | None = None
    """Of the one sequence that continues; None: rows are whole."""


@dataclass(slots=True, kw_only=True)
class SavedActivations:
    """What a block's backward pass needs."""

    x: Tensor
    raw: Tensor | None
    """Queries, keys and values before their norms, if heads have norms."""
    attention: AttentionGradients | None
    seen: Tensor
    middle: Tensor
    gate: Tensor
    up: Tensor
    narrow: dict[str, Tensor]
    products: dict[str, list[Tensor]]
    """What was multiplied by the factors of adapters with magnitudes."""


def forward_block(
    x: Tensor, more: Tensor | None, layer: LayerWeights, banks: Banks, number: int, now: PassContext
) -> tuple[Tensor, Tensor, SavedActivations | None]:
    """Return the output of a block for `[n, rows, hidden]`, and what its backward pass needs.

    Input and output are pairs of summands: the next norm adds them as it reads.
    """
    model, kernels, eps = now.shape.model, now.kernels, now.shape.eps
    narrow: dict[str, Tensor] = {}
    products: dict[str, list[Tensor]] = {}

    def wide(group: str, given: Tensor, *parts: tuple[Tensor, Tensor | None]) -> list[Tensor]:
        """Return the outputs of the parts of a group, each a weight and a bias, for the group's input."""
        bank = banks.get(group)
        if bank is None:
            return [widened(given, weight, bias, None, None) for weight, bias in parts]
        seen = _seen(given, number, group, now)
        narrow[group] = low = narrowed(seen, bank)
        placed = [(*part, begin) for part, begin in zip(parts, _begins(weight for weight, _ in parts), strict=True)]
        if bank.factors is None:
            return [widened(given, weight, bias, bank, low, begin) for weight, bias, begin in placed]
        made = [scaled(given, seen, weight, bias, bank, low, begin) for weight, bias, begin in placed]
        products[group] = [product for _, product in made]
        return [y for y, _ in made]

    if more is None:
        normed = kernels.norm(x, layer.norm1, eps)
    else:
        x, normed = kernels.norm_sum(x, more, layer.norm1, eps)
    (qkv,) = wide("qkv", normed, (layer.qkv, layer.qkv_bias))
    rows, length = now.mask.positions.shape
    raw = qkv.view(rows, length, -1, model.head_dim)
    heads, kv_heads = model.heads, model.kv_heads
    turned = kernels.norm_rotate(raw, heads, layer.head_norms, eps, now.angles)
    window = now.shape.windows[number]
    if now.cache is not None:
        seen, tape = now.cache.attend(number, turned, heads, window), None
    else:
        seen, tape = attend(turned, heads, kv_heads, now.mask, window, keeps=now.keeps)
    seen = seen.view(*x.shape[:2], -1)
    (mixed,) = wide("o", seen, (layer.o, layer.o_bias))
    middle, normed = kernels.norm_sum(x, mixed, layer.norm2, eps)
    gate_bias, up_bias = (None, None) if layer.gate_up_bias is None else layer.gate_up_bias.chunk(2)
    opening, inner = layer.gate_up, model.inner
    gate, up = wide("gate_up", normed, (opening[:inner], gate_bias), (opening[inner:], up_bias))
    gated = kernels.gate(gate, up)
    (out,) = wide("down", gated, (layer.down, layer.down_bias))
    if not now.keeps:
        return middle, out, None
    kept_raw = None if layer.head_norms is None else raw
    kept = SavedActivations(
        x=x, raw=kept_raw, attention=tape, seen=seen, middle=middle, gate=gate, up=up, narrow=narrow, products=products
    )
    return middle, out, kept


def backward_block(  # noqa: PLR0913, PLR0917 - what a block's gradients are made of
    dx: Tensor,
    layer: LayerWeights,
    banks: Banks,
    gradients: Banks,
    number: int,
    now: PassContext,
    kept: SavedActivations,
) -> Tensor:
    """Write the gradients of a block's adapters; return that of its input."""
    model, kernels, eps = now.shape.model, now.kernels, now.shape.eps

    def wide_back(group: str, *parts: tuple[Tensor, Tensor]) -> tuple[Tensor | None, Tensor]:
        """Return dy B, and the gradient of the group's input; each part is a gradient and its weight."""
        bank, added, back = banks.get(group), None, None
        if bank is not None:
            own, begins = [dy for dy, _ in parts], _begins(weight for _, weight in parts)
            if bank.factors is not None:
                placed = zip(own, kept.products[group], begins, strict=True)
                own = [scaled_back(dy, product, bank, gradients[group], begin) for dy, product, begin in placed]
            back = narrowed_back(list(zip(own, begins, strict=True)), kept.narrow[group], bank, gradients[group])
            added = torch.bmm(back, bank.a)
            if now.dropping is not None:
                for mine, (dy, weight) in zip(own, parts, strict=True):
                    # Products with factors see the group's input after dropout alone.
                    added = added if mine is dy else onto(added, mine - dy, weight)
                added = now.dropping.applied(added, _place(number, group))
            else:
                parts = tuple((mine, weight) for mine, (_, weight) in zip(own, parts, strict=True))
        for dy, weight in parts:
            added = onto(added, dy, weight)
        assert added is not None  # noqa: S101 - a group has a part
        return back, added

    def finish(group: str, back: Tensor | None, given: Tensor) -> None:
        """Write the gradient of A."""
        if back is not None:
            torch.bmm(back.mT, _seen(given, number, group, now), out=gradients[group].a)

    back, dgated = wide_back("down", (dx, layer.down))
    dgate, dup, gated = kernels.gate_backward(kept.gate, kept.up, dgated)
    finish("down", back, gated)
    del gated, dgated

    back, dnormed = wide_back("gate_up", (dgate, layer.gate_up[: model.inner]), (dup, layer.gate_up[model.inner :]))
    del dgate, dup
    dmiddle, normed = kernels.norm_backward(kept.middle, layer.norm2, eps, dnormed, dx)
    finish("gate_up", back, normed)

    back, dseen = wide_back("o", (dmiddle, layer.o))
    finish("o", back, kept.seen)
    assert kept.attention is not None  # noqa: S101 - only without a cache is anything kept
    dturned = kept.attention(dseen)
    dqkv = kernels.norm_rotate_backward(dturned, kept.raw, layer.head_norms, eps, now.angles)

    back, dnormed = wide_back("qkv", (dqkv.view(*dx.shape[:2], -1), layer.qkv))
    dx, normed = kernels.norm_backward(kept.x, layer.norm1, eps, dnormed, dmiddle)
    finish("qkv", back, normed)
    return dx


def _begins(weights: Iterable[Tensor]) -> list[int]:
    """Return the column of the group at which the outputs of each part begin."""
    return [0, *accumulate(map(len, weights))][:-1]


def _seen(given: Tensor, number: int, group: str, now: PassContext) -> Tensor:
    """Return the adapters' input: the group's input after dropout."""
    return given if now.dropping is None else now.dropping.applied(given, _place(number, group))


def _place(number: int, group: str) -> int:
    return number * len(_GROUPS) + _GROUPS.index(group)


# The loss over a vocabulary, a chunk of tokens at a time: all logits are never in memory at once.


def chunk_tokens(vocabulary: int, tokens: int) -> int:
    """Return the number of tokens per chunk of logits."""
    return max(1, min(tokens, CHUNK_BYTES // (4 * vocabulary)))


def token_losses(hidden: Tensor, head: Tensor, labels: Tensor, kernels: PointwiseKernels) -> Tensor:
    """Return each token's loss, `[tokens]`; zero without a label."""
    size = chunk_tokens(head.shape[0], len(labels))
    chunks = zip(hidden.split(size), labels.split(size), strict=True)
    return torch.cat([kernels.loss(linear(part, head), wanted) for part, wanted in chunks])


def losses_and_gradient(
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    shares: Tensor,
    kernels: PointwiseKernels,
    dhead: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return each token's loss, and the gradient of Σ share · loss with respect to the hidden rows.

    That of the head is added to `dhead`.
    """
    size = chunk_tokens(head.shape[0], len(labels))
    gradient = torch.empty_like(hidden)
    losses = []
    for begin in range(0, len(labels), size):
        part = slice(begin, begin + size)
        loss, dlogits = kernels.loss_and_gradient(linear(hidden[part], head), labels[part], shares[part])
        losses.append(loss)
        torch.mm(dlogits, head, out=gradient[part])
        if dhead is not None:
            dhead += torch.mm(dlogits.T, hidden[part])
    return torch.cat(losses), gradient
