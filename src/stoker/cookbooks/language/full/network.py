"""A model of the known families as a function of its weights, by their names in the hub's layout, for autograd.

Promises the numbers that transformers gives for the same weights, to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, linear, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from stoker.cookbooks.language.engine.attention import Looking, looking_of
from stoker.cookbooks.language.engine.losses import IGNORED, chunk_tokens
from stoker.cookbooks.language.engine.rotary import tables
from stoker.cookbooks.language.engine.shapes import EMBEDDING, HEAD, Shape

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows to learn from, on their device."""

    tokens: Tensor
    """`[rows, T]`."""
    labels: Tensor
    """`[rows, T]`: the token after each, or `IGNORED`."""
    looking: Looking


def batch_of(tokens: Tensor, labels: Tensor, segments: Tensor | None, device: str) -> Batch:
    """Put rows on a device. `segments` are those of packed rows."""
    rows, length = tokens.shape
    looking = looking_of(rows, length, segments, is_ragged=False)
    moved = Looking(
        positions=looking.positions.to(device),
        segments=None if looking.segments is None else looking.segments.to(device),
    )
    return Batch(tokens=tokens.long().to(device), labels=labels.long().to(device), looking=moved)


class Network:
    """The forward pass over some weights."""

    def __init__(self, shape: Shape, weights: Weights, *, device: str, longest: int) -> None:
        self._shape = shape
        self._weights = weights
        model = shape.model
        self._head = weights.get(HEAD, weights[EMBEDDING]) if not model.is_tied else weights[EMBEDDING]
        self._cos, self._sin = tables(shape.rotation, model.head_dim, longest, device)

    def loss_sum(self, batch: Batch) -> Tensor:
        """Give the sum of the losses of all tokens that have a label, in 32 bits."""
        hidden = self.hidden(batch).flatten(0, 1)
        labels = batch.labels.flatten()
        size = chunk_tokens(self._shape.vocabulary, len(labels))
        losses = [
            # All logits are never there at once: each chunk's are computed again for its gradient.
            checkpoint(_chunk_loss, part, self._head, wanted, use_reentrant=False)
            for part, wanted in zip(hidden.split(size), labels.split(size), strict=True)
        ]
        return torch.stack(losses).sum()

    def logits(self, batch: Batch) -> Tensor:
        """Give `[rows, T, vocabulary]`."""
        return linear(self.hidden(batch), self._head)

    def hidden(self, batch: Batch) -> Tensor:
        """Give what the head is shown, `[rows, T, hidden]`."""
        x = embedding(batch.tokens, self._weights[EMBEDDING])
        cos, sin = (table[batch.looking.positions][:, None] for table in (self._cos, self._sin))
        for number in range(self._shape.layers):
            x = self._block(x, number, batch.looking, cos, sin)
        return self._norm(x, "model.norm")

    def _block(self, x: Tensor, number: int, looking: Looking, cos: Tensor, sin: Tensor) -> Tensor:
        at, model = f"model.layers.{number}", self._shape.model
        rows, length, _ = x.shape
        given = self._norm(x, f"{at}.input_layernorm")
        q, k, v = (
            self._linear(given, f"{at}.self_attn.{name}_proj").view(rows, length, -1, model.head_dim)
            for name in ("q", "k", "v")
        )
        if model.has_head_norms:
            q, k = self._norm(q, f"{at}.self_attn.q_norm"), self._norm(k, f"{at}.self_attn.k_norm")
        mask = looking.mask(self._shape.windows[number], length)
        seen = scaled_dot_product_attention(
            _turned(q.transpose(1, 2), cos, sin),
            _turned(k.transpose(1, 2), cos, sin),
            v.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=model.heads != model.kv_heads,
        )
        x = x + self._linear(seen.transpose(1, 2).flatten(2), f"{at}.self_attn.o_proj")
        given = self._norm(x, f"{at}.post_attention_layernorm")
        gated = silu(self._linear(given, f"{at}.mlp.gate_proj")) * self._linear(given, f"{at}.mlp.up_proj")
        return x + self._linear(gated, f"{at}.mlp.down_proj")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._shape.eps)
        return (self._weights[f"{name}.weight"] * scaled).to(x.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `[rows, heads, T, head_dim]` by position."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def _chunk_loss(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(linear(hidden, head).float(), labels, ignore_index=IGNORED, reduction="sum")
