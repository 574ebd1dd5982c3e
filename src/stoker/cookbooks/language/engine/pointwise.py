"""What is done element by element: norms, rotations, the gate; forward and backward, each a pure function.

On a GPU each is compiled into one kernel where the compiler is there; elsewhere they run as they are written.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_MOST_KINDS = 64


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise rows by their root mean square, in 32 bits, then scale."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def norm_sum(x: Tensor, more: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Give the sum of two, and what `norm` makes of it."""
    both = x + more
    return both, norm(both, weight, eps)


def norm_backward(x: Tensor, weight: Tensor, eps: float, gradient: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
    """Give the gradient of a norm's input, with the one that comes `beside` it added; and what `norm` had given."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    unit = wide * scale
    upstream = (gradient * weight).float()
    inner = scale * (upstream - unit * (upstream * unit).mean(-1, keepdim=True))
    return beside + inner.to(x.dtype), weight * unit.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn heads by their positions: x is `[…, head_dim]`, tables are `[…, 1, head_dim / 2]`."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def rotate_heads(qkv: Tensor, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first `heads` heads of `[…, heads + v, head_dim]`; the rest stays."""
    return torch.cat([rotate(qkv[..., :heads, :], cos, sin), qkv[..., heads:, :]], dim=-2)


def rotate_into(x: Tensor, cos: Tensor, sin: Tensor, into: Tensor) -> None:
    """Turn heads, and write them where they are wanted."""
    into.copy_(rotate(x, cos, sin))


def gate(opened: Tensor, up: Tensor) -> Tensor:
    """Give silu(gate) · up."""
    return torch.nn.functional.silu(opened) * up


def gate_backward(opened: Tensor, up: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of gate and up, and what `gate` had given."""
    wide, straight, given = opened.float(), up.float(), gradient.float()
    sigma = torch.sigmoid(wide)
    silu = wide * sigma
    d_open = given * straight * sigma * (1 + wide * (1 - sigma))
    return d_open.to(up.dtype), (given * silu).to(up.dtype), silu.to(up.dtype) * up


def loss_and_gradient(logits: Tensor, labels: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Give each row's cross entropy (zero where the label is negative) and the gradient of Σ share · loss."""
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
    """Move rows against their gradient, in place; rows that are not to be moved stay, whatever their gradient is.

    The gradient is multiplied by `scale`, and so is what products are made with.
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


class Pointwise:
    """These functions, compiled or plain."""

    def __init__(self, *, compiles: bool) -> None:
        if compiles:
            _allow_many_shapes()

        def made(function: Callable[..., Any]) -> Callable[..., Any]:
            # Not `fullgraph`: past the limit of shapes that would be an error, where this runs as it is written.
            return torch.compile(function) if compiles else function

        self.norm = made(norm)
        self.norm_sum = made(norm_sum)
        self.norm_backward = made(norm_backward)
        self.rotate_heads = made(rotate_heads)
        self.rotate_into = made(rotate_into)
        self.gate = made(gate)
        self.gate_backward = made(gate_backward)
        self.loss_and_gradient = made(loss_and_gradient)
        self.move = made(move)


def _allow_many_shapes() -> None:
    """Let torch keep kernels for as many kinds of input as a long-lived company meets: it gives up after eight."""
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = max(dynamo.recompile_limit, _MOST_KINDS)


def can_compile() -> bool:
    """Say whether torch can make kernels here: it needs its own compiler's parts, and one for C."""
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))
