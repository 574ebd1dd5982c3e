"""Train a network for a stage: on the rank and device that it finds itself on, watched, with checkpoints.

The seam to gangs: a stage that runs as one of N ranks finds torch.distributed initialised around it, trains its share,
and only rank 0 reports and writes.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from stoker.authoring import Kind, StageContext
from stoker.cookbooks.sequence.arrays import WindowArrays
from stoker.cookbooks.sequence.fitted import FittedNetwork, library_versions
from stoker.cookbooks.sequence.schemas import Family, SequenceCurve, SequenceModelFacts
from stoker.cookbooks.sequence.settings import TrainingArgs
from stoker.cookbooks.sequence.training import (
    LearningData,
    SequenceTrainingProgress,
    SequenceTrainingSettings,
    World,
    train,
    with_answers,
    world_here,
)
from stoker.host.durable import write_file

# How far a training is, in one file of its scratch folder: written whole or not at all, after every few epochs.

FILE = "progress.pt"


class FileProgressStore:
    """Keeps progress in a folder that survives the process. What can't be read again is told, and begun anew."""

    def __init__(self, folder: Path, *, every: int, say: Callable[[str], None], device: str = "cpu") -> None:
        self._path = folder / FILE
        self._every = every
        self._say = say
        self._device = device

    def recall(self) -> SequenceTrainingProgress | None:
        """Return what was kept, if anything was and it is whole."""
        if not self._path.is_file():
            return None
        try:
            raw = torch.load(self._path, map_location=self._device, weights_only=True)
            progress = SequenceTrainingProgress(**{one.name: raw[one.name] for one in fields(SequenceTrainingProgress)})
        except (OSError, RuntimeError, EOFError, KeyError, TypeError, ValueError, pickle.UnpicklingError) as error:
            self._say(f"{FILE} can't be used ({type(error).__name__}): training begins anew")
            return None
        self._say(f"goes on after epoch {progress.epoch}")
        return progress

    def keep(self, progress: SequenceTrainingProgress) -> None:
        """Write it down, every few epochs."""
        if progress.epoch % self._every == 0:
            text = io.BytesIO()
            torch.save({one.name: getattr(progress, one.name) for one in fields(SequenceTrainingProgress)}, text)
            write_file(str(self._path), text.getvalue())


K = TypeVar("K", bound=Kind[Any])


def produce_model(  # noqa: PLR0913 - which stage, which model, from what, how
    job: StageContext,
    family: Family,
    windows: WindowArrays,
    make: Callable[[], nn.Module],
    shape: Any,
    args: TrainingArgs,
    *,
    before: tuple[SequenceCurve, ...] = (),
) -> FittedNetwork:
    """Train a network on windows with answers, and write down what was learned about it."""
    network = seeded(args.seed, make)
    curve = trained(job, network, lambda device: with_answers(windows, device), args)
    notes = still_falling(curve, args.epochs)
    tell(job, notes)
    return FittedNetwork(
        network=network,
        facts=SequenceModelFacts(
            family=family,
            shape=asdict(shape),
            params=params_of(args),
            weights=sum(parameter.numel() for parameter in network.parameters()),
            data=windows.facts,
            curves=[*before, curve],
            notes=notes,
            versions=library_versions(),
        ),
    )


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Make a network whose first weights follow from the seed alone; the process's own draws stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def trained(
    job: StageContext,
    network: nn.Module,
    data: Callable[[str], LearningData],
    args: TrainingArgs,
    *,
    name: str = "training",
) -> SequenceCurve:
    """Train in place, on this rank's device, and give how it went; all ranks end together."""
    world = world_here()
    device = _device(job, world)
    settings = SequenceTrainingSettings(
        epochs=args.epochs,
        learning_rate=args.lr,
        weight_decay=args.weight_decay,
        batch=args.batch,
        patience=args.patience,
        clip=args.clip,
        seed=args.seed,
    )

    def watch(done: int, of: int, metrics: Mapping[str, float]) -> None:
        # Of a loss that is beyond all use every rank says so itself, in the same words: any may be the first to end.
        if world.rank == 0 or not math.isfinite(metrics["loss"]):
            job.step(done, of=of, **metrics)
        else:
            job.check()

    keeper = FileProgressStore(
        job.scratch, every=args.checkpoint_every, say=lambda text: tell(job, [text], world), device=device
    )
    with _settled(args.n_jobs or 1):
        network.to(device)
        curve = train(network, data(device), settings, world, watch=watch, keeper=keeper, name=name)
        network.to("cpu")
    return curve


def saved(job: StageContext, kind: type[K], value: Any) -> K:
    """Write what the training made, on rank 0; every rank gives the handle once it is written."""
    world = world_here()
    if world.rank == 0:
        job.save(kind, value)
    world.barrier()
    return job.made(kind)


def tell(job: StageContext, notes: list[str], world: World | None = None) -> None:
    """Put notes into the stage's log, once for all ranks."""
    if (world or world_here()).rank == 0:
        for note in notes:
            job.log(note)


def params_of(args: TrainingArgs) -> dict[str, Any]:
    """Return the settings that decide what is learned."""
    return {name: value for name, value in asdict(args).items() if name not in ("n_jobs", "checkpoint_every")}


def _device(job: StageContext, world: World) -> str:
    if not job.devices:
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    tell(job, ["A GPU was given, and this torch can't use it: trained on the CPU."], world)
    return "cpu"


def still_falling(curve: SequenceCurve, most: int) -> list[str]:
    """Say so if the limit ended the training, not the validation part."""
    if curve["kept"] != most or most == 1:
        return []
    return [f"The validation loss was still falling at {most} epochs: more may help."]


@contextmanager
def _settled(threads: int) -> Iterator[None]:
    """Hold torch to so many threads while open, and cuDNN to kernels that give the same result every time."""
    before, cudnn = torch.get_num_threads(), torch.backends.cudnn
    deterministic = cudnn.deterministic
    torch.set_num_threads(threads)
    cudnn.deterministic = True
    try:
        yield
    finally:
        torch.set_num_threads(before)
        cudnn.deterministic = deterministic
