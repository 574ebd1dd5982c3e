"""Element-wise operations: norms, rotations, the gate; forward and backward, each a pure function.

On a GPU each is one kernel (`gpu_kernels`) if a compiler is available; otherwise they run as written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from stoker.cookbooks.language.compute.frozen_base import Rotation

# Attention within sequences: causal, inside one segment of a packed row, within a window; forward and backward.
#
# Packed rows on a GPU have a kernel of our own, `packed_attention`; without a compiler, or for other widths of heads,
# torch's, which is called by its low-level name: its public one imports torch's compiler, which takes as long as torch
# itself. All else is torch's public operation, whose small graph is kept from forward to backward; nothing else here
# needs autograd.

PackedLayout = Literal["mask", "borders", "ends"]
"""What tells a kernel the sequences of packed rows: a mask, torch's borders, or the ends of `packed_attention`."""
AttentionGradients = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Returns the gradients of queries, keys and values, each `[rows, T, heads, head_dim]`, for that of what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMask:
    """The attention mask of a batch of rows."""

    positions: Tensor
    """The position of each token in its own sequence, `[rows, T]`."""
    ends: Tensor | None = None
    """The end of each token's sequence in its row, `[rows, T]`; for packed rows with this layout."""
    borders: Tensor | None = None
    """Starts of sequences in all concatenated rows, then the end, repeated; for packed rows with this layout."""
    segments: Tensor | None = None
    """The sequence of each token, `[rows, T]`; for packed rows elsewhere."""
    longest: int = 0
    """Maximum sequence length, with borders."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors on a device, by name."""
        named = {
            "positions": self.positions,
            "ends": self.ends,
            "borders": self.borders,
            "segments": self.segments,
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def visible(self, window: int, length: int) -> Tensor | None:
        """Return which keys each query sees; None: all before it."""
        if self.segments is None and not (0 < window < length):
            return None
        place = torch.arange(length, device=self.positions.device)
        sees = place[None, :, None] >= place[None, None, :]
        if 0 < window < length:
            sees = sees & (place[None, :, None] - place[None, None, :] < window)
        if self.segments is not None:
            sees = sees & (self.segments[:, :, None] == self.segments[:, None, :])
        return sees[:, None]


_FLASH_CAPABILITY = (8, 0)
_LEAST_BORDERS = 64
"""Unused ones cost nearly nothing; another number of them means another recorded graph."""


def takes_ragged(device: str, dtype: torch.dtype, windows: Iterable[int]) -> bool:
    """Return True if there is a kernel for several sequences in one row, without a mask of the row's length squared."""
    if device == "cpu" or dtype == torch.float32 or any(windows):
        return False
    return bool(torch.cuda.get_device_capability() >= _FLASH_CAPABILITY)


def mask_of(rows: int, length: int, segments: Tensor | None, layout: PackedLayout = "mask") -> AttentionMask:
    """Return the mask, on the CPU. A layout other than `mask` is for a kernel of `takes_ragged`."""
    place = torch.arange(length).expand(rows, length)
    if segments is None:
        return AttentionMask(positions=place)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    positions = place - torch.where(begins, place, 0).cummax(dim=1).values
    if layout == "mask":
        return AttentionMask(positions=positions, segments=segments)
    if layout == "ends":
        following = torch.where(begins, place, length).roll(-1, dims=1)
        following[:, -1] = length
        return AttentionMask(positions=positions, ends=following.flip(1).cummin(dim=1).values.flip(1))
    starts = begins.reshape(-1).nonzero().flatten()
    # Their number is rounded up to a power of two, so that batches with slightly more or fewer share a recorded graph.
    borders = torch.full((max(_LEAST_BORDERS, 1 << len(starts).bit_length()),), rows * length)
    borders[: len(starts)] = starts
    longest = min(length, 1 << int(positions.max()).bit_length())
    return AttentionMask(positions=positions, borders=borders.to(torch.int32), longest=longest)


def attend(
    qkv: Tensor, heads: int, kv_heads: int, mask: AttentionMask, window: int, *, keeps: bool
) -> tuple[Tensor, AttentionGradients]:
    """Return `[rows, T, heads · head_dim]`, and the backward pass. `qkv` is `[rows, T, heads, head_dim]`."""
    if mask.ends is not None:
        from stoker.cookbooks.language.compute.packed_attention import attend_packed

        seen, gradients = attend_packed(qkv, heads, kv_heads, mask.positions, mask.ends)
    elif mask.borders is not None:
        seen, gradients = _attend_ragged(qkv, heads, kv_heads, mask.borders, mask.longest)
    else:
        visible = mask.visible(window, qkv.shape[1])
        q, k, v = (part.detach().requires_grad_(keeps) for part in qkv.split([heads, kv_heads, kv_heads], dim=2))
        with torch.set_grad_enabled(keeps):
            queries, keys, values = (part.transpose(1, 2) for part in (q, k, v))
            graph = scaled_dot_product_attention(
                queries, keys, values, attn_mask=visible, is_causal=visible is None, enable_gqa=heads != kv_heads
            ).transpose(1, 2)
        seen = graph.detach()

        def gradients(given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            dq, dk, dv = torch.autograd.grad(graph, (q, k, v), given.view(graph.shape))
            return dq, dk, dv

    return seen.reshape(*qkv.shape[:2], -1), gradients


def _attend_ragged(
    qkv: Tensor, heads: int, kv_heads: int, borders: Tensor, longest: int
) -> tuple[Tensor, AttentionGradients]:
    rows, length, _, head_dim = qkv.shape
    q, k, v = (part.reshape(rows * length, -1, head_dim) for part in qkv.split([heads, kv_heads, kv_heads], dim=2))
    ragged = (borders, borders, longest, longest, 0.0, True)
    seen, scales, *state, _ = torch.ops.aten._flash_attention_forward(q, k, v, *ragged, False)  # noqa: SLF001 - as said above

    def gradients(given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = torch.ops.aten._flash_attention_backward(  # noqa: SLF001 - the same
            given.reshape(seen.shape), q, k, v, seen, scales, *ragged, *state
        )
        dq, dk, dv = (part.view(rows, length, *part.shape[1:]) for part in parts)
        return dq, dk, dv

    return seen.view(rows, length, heads, head_dim), gradients


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise rows by their root mean square, in 32 bits, then scale."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def norm_sum(x: Tensor, more: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the sum of two tensors, and its `norm`."""
    both = x + more
    return both, norm(both, weight, eps)


def norm_backward(x: Tensor, weight: Tensor, eps: float, gradient: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of a norm's input plus `beside`, and the output of `norm`."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    unit = wide * scale
    upstream = (gradient * weight).float()
    inner = scale * (upstream - unit * (upstream * unit).mean(-1, keepdim=True))
    return beside + inner.to(x.dtype), weight * unit.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads, `[…, head_dim]`, by their positions."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


HeadNorms = tuple[Tensor, Tensor]
"""The weights of the norms of queries and of keys."""
Angles = tuple[Tensor, Tensor]
"""Cosines and sines of each token's position, `[rows, T, 1, head_dim / 2]`."""


def norm_rotate(qkv: Tensor, heads: int, norms: HeadNorms | None, eps: float, angles: Angles) -> Tensor:
    """Normalise queries and keys of `[…, q + k + v heads, head_dim]`, if heads have norms, and rotate them.

    `heads`: of queries. Keys and values have equally many.
    """
    kv_heads = (qkv.shape[-2] - heads) // 2
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=-2)
    if norms is not None:
        q, k = norm(q, norms[0], eps), norm(k, norms[1], eps)
    return torch.cat([rotate(q, *angles), rotate(k, *angles), v], dim=-2)


def norm_rotate_backward(
    gradients: tuple[Tensor, Tensor, Tensor],
    qkv: Tensor | None,
    norms: HeadNorms | None,
    eps: float,
    angles: Angles,
) -> Tensor:
    """Return the gradient of the input of `norm_rotate` for those of queries, keys and values in its result.

    Only norms need the input.
    """
    (dq, dk, dv), (cos, sin) = gradients, angles
    dq, dk = rotate(dq, cos, -sin), rotate(dk, cos, -sin)
    if norms is not None and qkv is not None:
        q, k, _ = qkv.split([dq.shape[-2], dk.shape[-2], dv.shape[-2]], dim=-2)
        dq, _ = norm_backward(q, norms[0], eps, dq, torch.zeros_like(q))
        dk, _ = norm_backward(k, norms[1], eps, dk, torch.zeros_like(k))
    return torch.cat([dq, dk, dv], dim=-2)


def gate(opened: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) · up."""
    return torch.nn.functional.silu(opened) * up


def gate_backward(opened: Tensor, up: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of gate and up, and the output of `gate`."""
    wide, straight, given = opened.float(), up.float(), gradient.float()
    sigma = torch.sigmoid(wide)
    silu = wide * sigma
    d_open = given * straight * sigma * (1 + wide * (1 - sigma))
    return d_open.to(up.dtype), (given * silu).to(up.dtype), silu.to(up.dtype) * up


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return each row's cross entropy, zero for a negative label."""
    wide = logits.float()
    chosen = wide.gather(-1, labels.clamp(min=0)[:, None]).squeeze(-1)
    return torch.where(labels >= 0, wide.logsumexp(-1) - chosen, 0.0)


def loss_and_gradient(logits: Tensor, labels: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's cross entropy (zero for a negative label) and the gradient of Σ share · loss."""
    wide = logits.float()
    is_wanted = labels >= 0
    total = wide.logsumexp(-1, keepdim=True)
    words = torch.arange(wide.shape[-1], device=wide.device)
    is_label = words[None, :] == labels[:, None]
    chosen = torch.where(is_label, wide, 0.0).sum(-1)
    loss = torch.where(is_wanted, total.squeeze(-1) - chosen, 0.0)
    share = torch.where(is_wanted, shares, 0.0)[:, None]
    gradient = torch.where(is_wanted[:, None], ((wide - total).exp() - is_label.float()) * share, 0.0)
    return loss, gradient.to(logits.dtype)


def move(  # noqa: PLR0913, PLR0917 - a kernel takes tensors
    weights: Tensor,
    first: Tensor,
    second: Tensor,
    used: Tensor,
    gradient: Tensor,
    scale: Tensor,
    is_moved: Tensor,
    rate: Tensor,
    shortened: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    eps: Tensor,
    decay: Tensor,
    count: Tensor,
) -> None:
    """Update rows by their gradient, in place; others stay unchanged, whatever their gradient is.

    The gradient is multiplied by `scale`, and so are the weights used in products.
    """
    g = gradient.float() * (scale * shortened)
    mean = first + (g - first) * (1 - beta1)
    square = second * beta2 + g * g * (1 - beta2)
    spread = square.sqrt() / (1 - beta2**count).sqrt() + eps
    there = weights * (1 - rate * decay) - rate / (1 - beta1**count) * (mean / spread)
    there = torch.where(is_moved, there, weights)
    first.copy_(torch.where(is_moved, mean, first))
    second.copy_(torch.where(is_moved, square, second))
    weights.copy_(there)
    used.copy_((there * scale).to(used.dtype))


class PointwiseKernels:
    """These functions, as written. `GpuKernels` has a kernel for each."""

    norm = staticmethod(norm)
    norm_sum = staticmethod(norm_sum)
    norm_backward = staticmethod(norm_backward)
    norm_rotate = staticmethod(norm_rotate)
    norm_rotate_backward = staticmethod(norm_rotate_backward)
    gate = staticmethod(gate)
    gate_backward = staticmethod(gate_backward)
    loss = staticmethod(loss)
    loss_and_gradient = staticmethod(loss_and_gradient)
    move: Callable[..., None] = staticmethod(move)

    @staticmethod
    def packed_layout(head_dim: int) -> PackedLayout:  # noqa: ARG004 - that of `GpuKernels` depends on it
        """Return how sequences of packed rows are given to a kernel for heads of this width."""
        return "borders"


# Rotary positions: the angles of each frequency, as in the supported families.


def tables(rotation: Rotation, head_dim: int, length: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines, `[length, head_dim / 2]`, in 32 bits."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies(rotation, head_dim))
    return (angles.cos() * rotation.attention).to(device), (angles.sin() * rotation.attention).to(device)


def frequencies(rotation: Rotation, head_dim: int) -> torch.Tensor:
    """Return the angle of each pair of a head from one position to the next."""
    plain = 1.0 / rotation.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if rotation.kind == "linear":
        return plain / rotation.factor
    if rotation.kind == "llama3":
        return _llama3(plain, rotation)
    if rotation.kind == "yarn":
        return _yarn(plain, rotation, head_dim)
    return plain


def _llama3(plain: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Stretch slow waves, keep fast ones, and mix those between."""
    length = 2 * math.pi / plain
    longest, shortest = rotation.original / rotation.low, rotation.original / rotation.high
    share = (rotation.original / length - rotation.low) / (rotation.high - rotation.low)
    mixed = (1 - share) * plain / rotation.factor + share * plain
    stretched = torch.where(length > longest, plain / rotation.factor, plain)
    is_between = (length >= shortest) & (length <= longest)
    return torch.where(is_between, mixed, stretched)


def _yarn(plain: torch.Tensor, rotation: Rotation, head_dim: int) -> torch.Tensor:
    def turn(count: float) -> float:
        span = rotation.original / (count * 2 * math.pi)
        return head_dim * math.log(span) / (2 * math.log(rotation.theta))

    low, high = turn(rotation.fast), turn(rotation.slow)
    if rotation.truncates:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / rotation.factor * ramp + plain * (1 - ramp)
