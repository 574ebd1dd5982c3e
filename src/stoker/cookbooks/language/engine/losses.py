"""The loss over a vocabulary, a chunk of tokens at a time: all logits are never there at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from stoker.cookbooks.language.engine.pointwise import Pointwise
from stoker.hardware.estimate.company_activations import CHUNK_BYTES

IGNORED = -100
"""The label of a token that teaches nothing."""


def chunk_tokens(vocabulary: int, tokens: int) -> int:
    """Say how many tokens' logits are there at a time."""
    return max(1, min(tokens, CHUNK_BYTES // (4 * vocabulary)))


def token_losses(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Give each token's loss, `[tokens]`; zero where there is no label."""
    size = chunk_tokens(head.shape[0], len(labels))
    return torch.cat(
        [
            _losses(linear(part, head), wanted)
            for part, wanted in zip(hidden.split(size), labels.split(size), strict=True)
        ]
    )


def losses_and_gradient(
    hidden: Tensor, head: Tensor, labels: Tensor, shares: Tensor, kernels: Pointwise
) -> tuple[Tensor, Tensor]:
    """Give each token's loss, and the gradient of Σ share · loss with respect to the hidden rows."""
    size = chunk_tokens(head.shape[0], len(labels))
    gradient = torch.empty_like(hidden)
    losses = []
    for begin in range(0, len(labels), size):
        part = slice(begin, begin + size)
        loss, dlogits = kernels.loss_and_gradient(linear(hidden[part], head), labels[part], shares[part])
        losses.append(loss)
        torch.mm(dlogits, head, out=gradient[part])
    return torch.cat(losses), gradient


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    wide = logits.float()
    is_wanted = labels != IGNORED
    chosen = wide.gather(-1, labels.clamp(min=0)[:, None]).squeeze(-1)
    return torch.where(is_wanted, wide.logsumexp(-1) - chosen, 0.0)
