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
from typing import Any, Final, Protocol

import torch
from torch import distributed, nn

from stoker.cookbooks.sequence.arrays import WindowArrays
from stoker.cookbooks.sequence.schemas import PartName, SequenceCurve, TrainingArgs

# AdamW over one flat gradient.
#
# The same rule as `torch.optim.AdamW`, for a gradient that is one tensor anyway (ranks exchange it so). Torch's own
# imports its compiler at the first step, which costs four seconds of CPU time: as much as a whole training of a small
# network.

_KEEP_MEAN = 0.9
_KEEP_SQUARE = 0.999
_LEAST = 1e-8


class Stepper:
    """AdamW over one flat gradient."""

    def __init__(self, parameters: list[nn.Parameter], *, learning_rate: float, weight_decay: float) -> None:
        self._parameters = parameters
        self._learning_rate = learning_rate
        self._weight_decay = weight_decay
        self._sizes = [parameter.numel() for parameter in parameters]
        self._steps = 0
        self._mean = torch.zeros(sum(self._sizes), device=parameters[0].device)
        self._square = torch.zeros_like(self._mean)

    def step(self, gradient: torch.Tensor) -> None:
        """Take one step. The gradient is in the order of the parameters, concatenated."""
        self._steps += 1
        self._mean.lerp_(gradient, 1 - _KEEP_MEAN)
        self._square.mul_(_KEEP_SQUARE).addcmul_(gradient, gradient, value=1 - _KEEP_SQUARE)
        # Bias correction: both moments start at zero.
        pace = self._learning_rate / (1 - _KEEP_MEAN**self._steps)
        spread = self._square.sqrt().div_((1 - _KEEP_SQUARE**self._steps) ** 0.5).add_(_LEAST)
        moves = torch.split(self._mean / spread, self._sizes)
        with torch.no_grad():
            for parameter, move in zip(self._parameters, moves, strict=True):
                parameter.mul_(1 - self._learning_rate * self._weight_decay).sub_(move.view_as(parameter), alpha=pace)

    def state(self) -> dict[str, Any]:
        """Return the state to resume from."""
        return {"steps": self._steps, "mean": self._mean.clone(), "square": self._square.clone()}

    def resume(self, state: dict[str, Any]) -> None:
        """Resume from what `state` returned."""
        self._steps, self._mean, self._square = state["steps"], state["mean"].clone(), state["square"].clone()


# The ranks of a training: rank, number of ranks, sum over ranks, barrier.
#
# One training function works alone and as one of N: alone, a sum over ranks changes nothing.


class World(Protocol):
    """The ranks of one training."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, values: torch.Tensor) -> None:
        """Replace this rank's values by the sum over all ranks. Every rank must call it."""

    def barrier(self) -> None:
        """Wait for every rank."""


class SoloWorld:
    """A world of one."""

    rank = 0
    size = 1

    def all_reduce(self, values: torch.Tensor) -> None:
        return

    def barrier(self) -> None:
        return


class ProcessGroupWorld:
    """The process group that torch.distributed was initialised with."""

    def __init__(self) -> None:
        self.rank: int = distributed.get_rank()
        self.size: int = distributed.get_world_size()

    def all_reduce(self, values: torch.Tensor) -> None:
        distributed.all_reduce(values)

    def barrier(self) -> None:
        distributed.barrier()


SOLO: Final = SoloWorld()
_SAME = 1e-9


def world_here() -> World:
    """Return the process group of this process; `SoloWorld` if there is none."""
    return ProcessGroupWorld() if distributed.is_available() and distributed.is_initialized() else SOLO


def agree(world: World, what: str, value: float, device: Any = "cpu") -> None:
    """Raise `RuntimeError` on every rank unless all of them have the same number, to nine digits."""
    # One element for each rank: differences can't cancel in a sum.
    values = torch.zeros(world.size, dtype=torch.float64, device=device)
    values[world.rank] = value
    world.all_reduce(values)
    if float(values.max() - values.min()) > _SAME * float(values.abs().max()):
        raise RuntimeError(f"the ranks have different {what}; rank {world.rank} has {value:.12g}")


Watch = Callable[[int, int, Mapping[str, float]], None]
"""Called on every rank with (epochs done, epochs planned, metrics); may raise to stop the training."""

_SCORING_BATCH = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBatch:
    """One batch of all ranks, and this rank's part of it."""

    examples: torch.Tensor
    rank: int
    size: int
    seed: int
    """Seed of random choices for this batch: drawn for the whole batch, then divided."""

    def mine(self, values: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a tensor with a row for each example."""
        return values[self.rank :: self.size]


class LearningTask(Protocol):
    """Examples to learn from."""

    def __len__(self) -> int: ...

    def loss_sum(self, model: nn.Module, batch: RankBatch) -> torch.Tensor:
        """Return the sum of the losses of this rank's part; never called for an empty one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningData:
    """Training and validation examples."""

    train: LearningTask
    validation: LearningTask


@dataclass(slots=True, kw_only=True)
class SequenceTrainingProgress:
    """The state of a training to resume from."""

    epoch: int = 0
    train: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    kept: int = 0
    best: dict[str, torch.Tensor] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    stepper: dict[str, Any] = field(default_factory=dict)

    def is_over(self, settings: TrainingArgs) -> bool:
        return self.epoch >= settings.epochs or self.epoch - self.kept > settings.patience


class ProgressStore(Protocol):
    """Stores the progress of a training that may be interrupted."""

    def recall(self) -> SequenceTrainingProgress | None: ...

    def keep(self, progress: SequenceTrainingProgress) -> None: ...


def unwatched(done: int, of: int, metrics: Mapping[str, float]) -> None:
    """Watch nothing."""


def train(  # noqa: PLR0913 - what is trained, on what, how, with whom; the rest may be left out
    model: nn.Module,
    data: LearningData,
    settings: TrainingArgs,
    world: World = SOLO,
    *,
    watch: Watch = unwatched,
    store: ProgressStore | None = None,
    name: str = "training",
) -> SequenceCurve:
    """Train until the validation loss has not fallen for `patience` epochs; the model then has its best weights.

    Only rank 0 stores its progress; every rank may read it. All ranks return together.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    stepper = Stepper(parameters, learning_rate=settings.lr, weight_decay=settings.weight_decay)
    progress = (store.recall() if store else None) or SequenceTrainingProgress()
    if progress.epoch:
        model.load_state_dict(progress.weights)
        stepper.resume(progress.stepper)
    _check_alike(world, parameters, data, progress)
    while not progress.is_over(settings):
        epoch = progress.epoch + 1
        seen = _learn(model, parameters, stepper, data.train, settings, world, epoch)
        unseen = score(model, data.validation, settings.seed, world)
        watch(epoch, settings.epochs, {"loss": unseen, "train_loss": seen})
        if not math.isfinite(unseen):
            raise ArithmeticError(f"the loss is {unseen} in epoch {epoch}")
        _note(progress, model, seen, unseen)
        if world.rank == 0 and store is not None:
            progress.weights, progress.stepper = _copied(model), stepper.state()
            store.keep(progress)
    model.load_state_dict(progress.best)
    world.barrier()
    return SequenceCurve(
        name=name,
        train=[significant(value) for value in progress.train],
        validation=[significant(value) for value in progress.validation],
        kept=progress.kept,
    )


def score(model: nn.Module, lessons: LearningTask, seed: int, world: World = SOLO) -> float:
    """Return the mean loss over all examples, computed by all ranks."""
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        order = torch.arange(len(lessons))
        for number, examples in enumerate(torch.split(order, _SCORING_BATCH)):
            batch = RankBatch(examples=examples, rank=world.rank, size=world.size, seed=_seed(seed, 0, number))
            share = len(batch.mine(examples))
            total += float(lessons.loss_sum(model, batch)) if share else 0.0
            count += share
    sums = torch.tensor([total, count], dtype=torch.float64, device=_device(model))
    world.all_reduce(sums)
    return float(sums[0] / sums[1])


def significant(value: float) -> float:
    """Round to six significant digits: further digits differ between machines and would change bytes."""
    return float(f"{value:.6g}")


def _learn(  # noqa: PLR0913, PLR0917 - the whole of what an epoch is made of
    model: nn.Module,
    parameters: list[nn.Parameter],
    stepper: Stepper,
    lessons: LearningTask,
    settings: TrainingArgs,
    world: World,
    epoch: int,
) -> float:
    """Train one epoch; return the mean loss."""
    model.train()
    total = 0.0
    for batch in _batches(lessons, settings, world, epoch):
        model.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=_device(model))
        if len(batch.mine(batch.examples)):
            loss = lessons.loss_sum(model, batch)
            loss.backward()
        # One tensor, one exchange: gradients, then the loss.
        flat = torch.cat([*(_gradient(parameter) for parameter in parameters), loss.detach().reshape(1)])
        world.all_reduce(flat)
        total += float(flat[-1])
        gradient = flat[:-1].div_(len(batch.examples))
        length = float(gradient.norm())
        if length > settings.clip:
            gradient.mul_(settings.clip / length)
        stepper.step(gradient)
    return total / len(lessons)


def _batches(lessons: LearningTask, settings: TrainingArgs, world: World, epoch: int) -> Iterator[RankBatch]:
    shuffle = torch.Generator().manual_seed(_seed(settings.seed, epoch, -1))
    order = torch.randperm(len(lessons), generator=shuffle)
    for number, examples in enumerate(torch.split(order, settings.batch)):
        yield RankBatch(examples=examples, rank=world.rank, size=world.size, seed=_seed(settings.seed, epoch, number))


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad
    return (torch.zeros_like(parameter) if gradient is None else gradient).reshape(-1)


def _note(progress: SequenceTrainingProgress, model: nn.Module, seen: float, unseen: float) -> None:
    progress.epoch += 1
    progress.train.append(seen)
    progress.validation.append(unseen)
    if unseen <= min(progress.validation[:-1], default=unseen):
        progress.kept, progress.best = progress.epoch, _copied(model)


def _check_alike(
    world: World, parameters: list[nn.Parameter], data: LearningData, progress: SequenceTrainingProgress
) -> None:
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
    """Mix a seed with its purpose, so that no two draws of a training are the same."""
    digest = sha256(f"{seed}/{epoch}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


# Learning tasks on windows: with targets, or self-supervised with a part of each window hidden.
#
# Windows overlap, so the series is in memory once, and batches are gathered from it.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWindows:
    """The windows of one part, on one device."""

    signals: torch.Tensor
    answers: torch.Tensor
    starts: torch.Tensor
    window: int
    horizon: int
    """0 for classification."""
    target: int
    """The channel of the target (regression)."""

    @classmethod
    def of(cls, windows: WindowArrays, name: PartName, device: Any = "cpu") -> PartWindows:
        facts = windows.facts
        series = facts["series"]
        is_quantity = series["problem"] == "regression"
        return cls(
            signals=torch.from_numpy(windows.signals).to(device),
            answers=torch.from_numpy(windows.answers).to(device),
            starts=torch.from_numpy(windows.starts[name]).to(device),
            window=facts["window"],
            horizon=facts["horizon"],
            target=series["channels"].index(series["target"]) if is_quantity else 0,
        )

    def __len__(self) -> int:
        return len(self.starts)

    def inputs(self, examples: torch.Tensor) -> torch.Tensor:
        """Return windows: examples by rows by channels."""
        rows = torch.arange(self.window, device=self.starts.device)
        return self.signals[self._starts(examples)[:, None] + rows]

    def last_values(self, examples: torch.Tensor) -> torch.Tensor:
        """Return the newest known value of the target, as a column."""
        return self.signals[self._starts(examples) + self.window - 1, self.target][:, None]

    def truth(self, examples: torch.Tensor) -> torch.Tensor:
        """Return the targets: the next values (examples by steps), or the class of each window's last row."""
        ends = self._starts(examples) + self.window
        if not self.horizon:
            return self.answers[ends - 1]
        return self.answers[ends[:, None] + torch.arange(self.horizon, device=ends.device)]

    def _starts(self, examples: torch.Tensor) -> torch.Tensor:
        return self.starts[examples.to(self.starts.device)]


@dataclass(frozen=True, slots=True)
class SupervisedTask:
    """Windows with their targets. For a quantity, a network predicts the difference from the last known value."""

    part: PartWindows

    def __len__(self) -> int:
        return len(self.part)

    def loss_sum(self, model: nn.Module, batch: RankBatch) -> torch.Tensor:
        """Return the squared error, mean over the steps ahead, or cross entropy; summed over windows."""
        mine = batch.mine(batch.examples)
        outputs, truth = model(self.part.inputs(mine)), self.part.truth(mine)
        if not self.part.horizon:
            return nn.functional.cross_entropy(outputs, truth, reduction="sum")
        error: torch.Tensor = outputs + self.part.last_values(mine) - truth
        return error.square().mean(dim=1).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedTask:
    """Windows without targets: spans of rows are hidden, and predicted from the rest."""

    part: PartWindows
    percent: int
    span: int

    def __len__(self) -> int:
        return len(self.part)

    def loss_sum(self, model: nn.Module, batch: RankBatch) -> torch.Tensor:
        """Return the squared error over the hidden part of each window, summed over windows."""
        inputs = self.part.inputs(batch.mine(batch.examples))
        hidden = batch.mine(self.hidden(len(batch.examples), batch.seed)).to(inputs.device)
        restored: torch.Tensor = model(inputs, hidden)
        error = (restored - inputs).square().mean(dim=2)
        return ((error * hidden).sum(dim=1) / hidden.sum(dim=1)).sum()

    def hidden(self, windows: int, seed: int) -> torch.Tensor:
        """Choose the hidden rows of each window: whole spans, as many as make up the share."""
        spans = -(-self.part.window // self.span)
        count = min(spans, max(1, round(spans * self.percent / 100)))
        draw = torch.rand(windows, spans, generator=torch.Generator().manual_seed(seed))
        chosen = torch.zeros(windows, spans, dtype=torch.bool).scatter_(1, draw.argsort(dim=1)[:, :count], value=True)
        return chosen.repeat_interleave(self.span, dim=1)[:, : self.part.window]


def with_answers(windows: WindowArrays, device: Any = "cpu") -> LearningData:
    """Return the training and the validation part of windows, with their targets."""
    return LearningData(
        train=SupervisedTask(PartWindows.of(windows, "train", device)),
        validation=SupervisedTask(PartWindows.of(windows, "validation", device)),
    )


def without_answers(windows: WindowArrays, *, percent: int, span: int, device: Any = "cpu") -> LearningData:
    """Return the same parts with hidden spans instead of targets."""
    return LearningData(
        train=MaskedTask(part=PartWindows.of(windows, "train", device), percent=percent, span=span),
        validation=MaskedTask(part=PartWindows.of(windows, "validation", device), percent=percent, span=span),
    )
