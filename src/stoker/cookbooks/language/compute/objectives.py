"""Objectives over pairs of answers: from the losses of tokens to a loss per member, and each token's gradient weight.

The gradient of a loss of whole answers is a weighted sum of the gradients of token losses. So an objective serves every
way to compute these: with autograd as `(weights * token_losses).sum().backward()`, in the engine by scaling the rows of
the head's gradient. The mean of the learned tokens (`sft`) needs no function: its weights are known before the losses.

Members are rows of every tensor, and none affects another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from stoker.cookbooks.language.arguments import Objective

_MOST_LIKELY: Final = -1e-6
"""The highest mean log-probability of a token that has odds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerInput:
    """What an objective needs beside the losses of the tokens of a pass. All but the name are tensors."""

    objective: Objective
    places: Tensor
    """`[n, rows, T]`: the answer of a token's loss: 2 i for the chosen one of pair i, 2 i + 1 for the rejected one, or
    negative. A loss of no answer is that of a chosen one's prompt."""
    reference: Tensor
    """`[n, answers]`: the log-probability of each answer under the base alone; dpo only."""
    pair_shares: Tensor
    """`[n, pairs]`: the factor of each pair: one over the pairs of the update, zero where there is none."""
    token_shares: Tensor
    """`[n]`: the factor of each token of chosen texts: one over those of the update; orpo only."""
    betas: Tensor
    """`[n]`."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "objective"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedLosses:
    """The result of an objective."""

    scores: Tensor
    """`[3, n]`: each member's loss, the share of pairs whose chosen answer has the higher reward, and by how much."""
    weights: Tensor
    """Of each token's loss in the gradient, in the shape of the losses."""


def weigh(token_losses: Tensor, given: AnswerInput) -> WeighedLosses:
    """Apply an objective to token losses, `[n, rows, T]`, which are zero without a label."""
    losses, places = token_losses.detach().flatten(1), given.places.flatten(1)
    with torch.enable_grad():
        logps, sizes = answer_logps(losses, places, given.reference.shape[1])
        logps.requires_grad_()
        of_pairs, rewards = _LOSSES[given.objective](logps, sizes, given)
        # A pair that is not there is zero whatever its loss is.
        total = torch.where(given.pair_shares > 0, of_pairs * given.pair_shares, 0.0).sum(1)
        (slopes,) = torch.autograd.grad(total.sum(), logps)
    weights = torch.where(places >= 0, -slopes.gather(1, places.clamp(min=0)), 0.0)
    loss = total.detach()
    if given.objective == "orpo":
        is_chosen = (places < 0) | (places % 2 == 0)
        likelihood = torch.where(is_chosen, given.token_shares[:, None], 0.0)
        weights, loss = weights + likelihood, loss + (losses * likelihood).sum(1)
    margins = (rewards[..., 0] - rewards[..., 1]).detach()
    ranked = ((margins > 0) * given.pair_shares).sum(1), (margins * given.pair_shares).sum(1)
    return WeighedLosses(scores=torch.stack([loss, *ranked]), weights=weights.view_as(token_losses))


def answer_logps(losses: Tensor, places: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each of so many answers, and its number of tokens, at least 1: `[n, count]`."""
    belongs = places.flatten(1)[:, None] == torch.arange(count, device=places.device)[:, None]
    return -torch.where(belongs, losses.flatten(1)[:, None], 0.0).sum(-1), belongs.sum(-1).clamp(min=1)


def _dpo(
    logps: Tensor, sizes: Tensor, given: AnswerInput, judge: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the loss of each pair, and rewards, `[n, pairs, 2]`."""
    betas, gains = given.betas[:, None], logps - given.reference
    # IPO is of the mean token, as its authors computed it.
    judged = (gains / sizes if given.objective == "dpo-ipo" else gains).unflatten(1, (-1, 2))
    return judge(judged[..., 0] - judged[..., 1], betas), gains.unflatten(1, (-1, 2)) * betas[:, None]


def _sigmoid(logps: Tensor, sizes: Tensor, given: AnswerInput) -> tuple[Tensor, Tensor]:
    return _dpo(logps, sizes, given, lambda gap, betas: -logsigmoid(betas * gap))


def _ipo(logps: Tensor, sizes: Tensor, given: AnswerInput) -> tuple[Tensor, Tensor]:
    return _dpo(logps, sizes, given, lambda gap, betas: (gap - 1 / (2 * betas)).square())


def _hinge(logps: Tensor, sizes: Tensor, given: AnswerInput) -> tuple[Tensor, Tensor]:
    return _dpo(logps, sizes, given, lambda gap, betas: relu(1 - betas * gap))


def _orpo(logps: Tensor, sizes: Tensor, given: AnswerInput) -> tuple[Tensor, Tensor]:
    """Return beta times the loss of the odds ratio; rewards are beta times the mean log-probabilities."""
    betas = given.betas[:, None]
    means = (logps / sizes).unflatten(1, (-1, 2))
    likely = means.clamp(max=_MOST_LIKELY)
    odds = likely - torch.where(likely > -0.7, (-likely.expm1()).log(), (-likely.exp()).log1p())
    return -betas * logsigmoid(odds[..., 0] - odds[..., 1]), means * betas[:, None]


_LOSSES: Mapping[Objective, Callable[[Tensor, Tensor, AnswerInput], tuple[Tensor, Tensor]]] = {
    "dpo-sigmoid": _sigmoid,
    "dpo-ipo": _ipo,
    "dpo-hinge": _hinge,
    "orpo": _orpo,
}


# The base's log-probabilities: what dpo compares an adapter with.


class ReferenceLogps:
    """The log-probability of each text's answer under the base alone: computed once, and kept on the device."""

    def __init__(self, count: int, device: str) -> None:
        self._logps = torch.zeros(count, device=device)
        self._is_known = np.zeros(count, dtype=np.bool_)

    def has(self, texts: npt.NDArray[np.int64]) -> bool:
        """Return True if all of these texts are known. A negative index is no text."""
        return bool(self._is_known[texts[texts >= 0]].all())

    def at(self, texts: Tensor) -> Tensor:
        """Return those of texts on the device, any number where there is none."""
        return self._logps[texts.clamp(min=0)]

    def put(self, texts: npt.NDArray[np.int64], logps: Tensor) -> None:
        """Keep those of texts; those without a text are last."""
        count = int((texts >= 0).sum())
        self._logps[torch.as_tensor(texts[:count], device=self._logps.device)] = logps[:count]
        self._is_known[texts[:count]] = True

    def state(self) -> dict[str, Any]:
        """Return what is known, for a checkpoint."""
        texts = torch.as_tensor(np.flatnonzero(self._is_known))
        return {"texts": texts, "logps": self._logps.cpu()[texts]}

    def resume(self, state: dict[str, Any]) -> None:
        """Add what `state` returned."""
        self.put(state["texts"].numpy(), state["logps"].to(self._logps.device))
