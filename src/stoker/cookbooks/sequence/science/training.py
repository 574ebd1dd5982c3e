"""The training itself, alone or as one of several ranks.

    batch of the whole ──▶ this rank's share ──▶ gradient ──▶ added up over ranks ÷ examples of the batch ──▶ step

Promises: every rank begins with the same weights, shuffles alike and takes the same step, so all end with the same
weights; a batch that can't be divided evenly, down to ranks that get nothing of it, counts each example once; what is
decided (keep, stop, fail) is decided from sums over all ranks, so all decide alike. From one seed, a training on a CPU
with one thread gives the same bits every time, however often it was interrupted. Against one rank, N ranks add up in
another order: with float32 on a CPU the losses agree to 1e-5 of their value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

import torch
from torch import nn

from stoker.cookbooks.sequence.records import Curve
from stoker.cookbooks.sequence.science.stepping import Stepper
from stoker.cookbooks.sequence.science.worlds import SOLO, World, agree

Watch = Callable[[int, int, Mapping[str, float]], None]
"""Called on every rank with (epochs done, epochs planned, metrics); may raise to stop the training."""

_SCORING_BATCH = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to train."""

    epochs: int
    learning_rate: float
    weight_decay: float
    batch: int
    """Examples per step, over all ranks together."""
    patience: int
    clip: float
    """The longest gradient; a longer one is shortened to it."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch of the whole world, and which of it is this rank's."""

    examples: torch.Tensor
    rank: int
    size: int
    seed: int
    """For whatever is drawn at random about this batch: drawn for all of it, then shared out."""

    def mine(self, values: torch.Tensor) -> torch.Tensor:
        """Give this rank's share of something that has a row for each example."""
        return values[self.rank :: self.size]


class Lessons(Protocol):
    """Examples to learn from."""

    def __len__(self) -> int: ...

    def loss_sum(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Give the sum of the losses of this rank's share; never called for an empty one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What to learn from, and what to judge by when to stop."""

    train: Lessons
    validation: Lessons


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a training is, and everything that it needs to go on from there."""

    epoch: int = 0
    train: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    kept: int = 0
    best: dict[str, torch.Tensor] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    stepper: dict[str, Any] = field(default_factory=dict)

    def is_over(self, settings: Settings) -> bool:
        return self.epoch >= settings.epochs or self.epoch - self.kept > settings.patience


class Keeper(Protocol):
    """Where a training that may be interrupted keeps how far it is."""

    def recall(self) -> Progress | None: ...

    def keep(self, progress: Progress) -> None: ...


class Forgetful:
    """Keeps nothing."""

    def recall(self) -> Progress | None:
        return None

    def keep(self, progress: Progress) -> None:
        return


def unwatched(done: int, of: int, metrics: Mapping[str, float]) -> None:
    """Watch nothing."""


def train(  # noqa: PLR0913 - what is trained, on what, how, with whom; the rest may be left out
    model: nn.Module,
    data: Data,
    settings: Settings,
    world: World = SOLO,
    *,
    watch: Watch = unwatched,
    keeper: Keeper | None = None,
    name: str = "training",
) -> Curve:
    """Train until the validation loss has not fallen for `patience` epochs; the model is left as it was at its best.

    Only rank 0 keeps its progress; every rank may recall it. All ranks return together.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    stepper = Stepper(parameters, learning_rate=settings.learning_rate, weight_decay=settings.weight_decay)
    keeper = keeper or Forgetful()
    progress = keeper.recall() or Progress()
    if progress.epoch:
        model.load_state_dict(progress.weights)
        stepper.go_on(progress.stepper)
    _check_alike(world, parameters, data, progress)
    while not progress.is_over(settings):
        epoch = progress.epoch + 1
        seen = _learn(model, parameters, stepper, data.train, settings, world, epoch)
        unseen = score(model, data.validation, settings.seed, world)
        watch(epoch, settings.epochs, {"loss": unseen, "train_loss": seen})
        if not math.isfinite(unseen):
            raise ArithmeticError(f"the loss is {unseen} in epoch {epoch}")
        _note(progress, model, seen, unseen)
        if world.rank == 0:
            progress.weights, progress.stepper = _copied(model), stepper.state()
            keeper.keep(progress)
    model.load_state_dict(progress.best)
    world.barrier()
    return Curve(
        name=name,
        train=[significant(value) for value in progress.train],
        validation=[significant(value) for value in progress.validation],
        kept=progress.kept,
    )


def score(model: nn.Module, lessons: Lessons, seed: int, world: World = SOLO) -> float:
    """Give the mean loss over all examples, each rank looking at its share."""
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        order = torch.arange(len(lessons))
        for number, examples in enumerate(torch.split(order, _SCORING_BATCH)):
            batch = Batch(examples=examples, rank=world.rank, size=world.size, seed=_seed(seed, 0, number))
            share = len(batch.mine(examples))
            total += float(lessons.loss_sum(model, batch)) if share else 0.0
            count += share
    sums = torch.tensor([total, count], dtype=torch.float64, device=_device(model))
    world.all_reduce(sums)
    return float(sums[0] / sums[1])


def significant(value: float) -> float:
    """Round to six significant digits: what lies beyond is noise of the machine, and would change bytes for nothing."""
    return float(f"{value:.6g}")


def _learn(  # noqa: PLR0913, PLR0917 - the whole of what an epoch is made of
    model: nn.Module,
    parameters: list[nn.Parameter],
    stepper: Stepper,
    lessons: Lessons,
    settings: Settings,
    world: World,
    epoch: int,
) -> float:
    """Go over every example once; give their mean loss on the way."""
    model.train()
    total = 0.0
    for batch in _batches(lessons, settings, world, epoch):
        model.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=_device(model))
        if len(batch.mine(batch.examples)):
            loss = lessons.loss_sum(model, batch)
            loss.backward()
        # One tensor, one exchange: gradients and, behind them, the loss.
        flat = torch.cat([*(_gradient(parameter) for parameter in parameters), loss.detach().reshape(1)])
        world.all_reduce(flat)
        total += float(flat[-1])
        gradient = flat[:-1].div_(len(batch.examples))
        length = float(gradient.norm())
        if length > settings.clip:
            gradient.mul_(settings.clip / length)
        stepper.step(gradient)
    return total / len(lessons)


def _batches(lessons: Lessons, settings: Settings, world: World, epoch: int) -> Iterator[Batch]:
    shuffle = torch.Generator().manual_seed(_seed(settings.seed, epoch, -1))
    order = torch.randperm(len(lessons), generator=shuffle)
    for number, examples in enumerate(torch.split(order, settings.batch)):
        yield Batch(examples=examples, rank=world.rank, size=world.size, seed=_seed(settings.seed, epoch, number))


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad
    return (torch.zeros_like(parameter) if gradient is None else gradient).reshape(-1)


def _note(progress: Progress, model: nn.Module, seen: float, unseen: float) -> None:
    progress.epoch += 1
    progress.train.append(seen)
    progress.validation.append(unseen)
    if unseen <= min(progress.validation[:-1], default=unseen):
        progress.kept, progress.best = progress.epoch, _copied(model)


def _check_alike(world: World, parameters: list[nn.Parameter], data: Data, progress: Progress) -> None:
    if world.size == 1:
        return
    device = parameters[0].device
    weight = float(sum(parameter.detach().double().abs().sum() for parameter in parameters))
    agree(world, "numbers of epochs behind them", progress.epoch, device)
    agree(world, "numbers of examples", len(data.train), device)
    agree(world, "weights to begin with", weight, device)


def _copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: values.detach().clone() for name, values in model.state_dict().items()}


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _seed(seed: int, epoch: int, number: int) -> int:
    """Mix a seed with what it is for, so that no two draws of a training are alike."""
    digest = sha256(f"{seed}/{epoch}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
