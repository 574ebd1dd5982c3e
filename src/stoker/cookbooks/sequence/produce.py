"""Training of a network in a stage: on its rank and device, with progress reports and checkpoints.

For gangs: a stage that runs as one of N ranks finds torch.distributed initialised, trains its share, and only rank 0
reports and writes.
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
from stoker.cookbooks.sequence.kinds import SequenceModel, Windows
from stoker.cookbooks.sequence.networks import FittedNetwork, NetworkSizes, library_versions
from stoker.cookbooks.sequence.schemas import Family, SequenceCurve, SequenceModelFacts, TrainingArgs
from stoker.cookbooks.sequence.training import (
    LearningData,
    SequenceTrainingProgress,
    train,
    with_answers,
    world_here,
)
from stoker.host.durable import write_file

# Checkpoints of a training, in one file of its scratch folder: written atomically, every few epochs.

FILE = "progress.pt"


class FileProgressStore:
    """Stores progress in a folder that survives the process. If it can't be read, training restarts with a message."""

    def __init__(self, folder: Path, *, every: int, say: Callable[[str], None], device: str = "cpu") -> None:
        self._path = folder / FILE
        self._every = every
        self._say = say
        self._device = device

    def recall(self) -> SequenceTrainingProgress | None:
        """Return the stored progress, if it is valid."""
        if not self._path.is_file():
            return None
        try:
            raw = torch.load(self._path, map_location=self._device, weights_only=True)
            progress = SequenceTrainingProgress(**{one.name: raw[one.name] for one in fields(SequenceTrainingProgress)})
        except (OSError, RuntimeError, EOFError, KeyError, TypeError, ValueError, pickle.UnpicklingError) as error:
            self._say(f"{FILE} can't be used ({type(error).__name__}): training restarts from epoch 0")
            return None
        self._say(f"resumes after epoch {progress.epoch}")
        return progress

    def keep(self, progress: SequenceTrainingProgress) -> None:
        """Store it, every few epochs."""
        if progress.epoch % self._every == 0:
            text = io.BytesIO()
            torch.save({one.name: getattr(progress, one.name) for one in fields(SequenceTrainingProgress)}, text)
            write_file(str(self._path), text.getvalue())


K = TypeVar("K", bound=Kind[Any])


def produce_model(  # noqa: PLR0913 - which stage, which model, from what, how
    job: StageContext,
    family: Family,
    data: Windows,
    make: Callable[[NetworkSizes], nn.Module],
    shape: Any,
    args: TrainingArgs,
    *,
    before: tuple[SequenceCurve, ...] = (),
) -> SequenceModel:
    """Train a network on windows with targets, and store it with its facts."""
    windows = data.load()
    network = seeded(args.seed, lambda: make(NetworkSizes.of(windows.facts)))
    curve, notes = train_network(job, network, lambda device: with_answers(windows, device), args)
    facts = SequenceModelFacts(
        family=family,
        shape=asdict(shape),
        params=params_of(args),
        weights=sum(parameter.numel() for parameter in network.parameters()),
        data=windows.facts,
        curves=[*before, curve],
        notes=notes,
        versions=library_versions(),
    )
    return saved(job, SequenceModel, FittedNetwork(network=network, facts=facts))


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Make a network whose initial weights depend on the seed only; the process's random state is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def train_network(
    job: StageContext,
    network: nn.Module,
    data: Callable[[str], LearningData],
    args: TrainingArgs,
    *,
    name: str = "training",
) -> tuple[SequenceCurve, list[str]]:
    """Train in place, on this rank's device; return the curve and notes. All ranks return together."""
    world = world_here()

    def log(text: str) -> None:
        if world.rank == 0:
            job.log(text)

    def watch(done: int, of: int, metrics: Mapping[str, float]) -> None:
        # Every rank reports a non-finite loss in the same words: any of them may end first.
        if world.rank == 0 or not math.isfinite(metrics["loss"]):
            job.step(done, of=of, **metrics)
        else:
            job.check()

    device = "cuda" if job.devices and torch.cuda.is_available() else "cpu"
    if job.devices and device == "cpu":
        log("This torch can't use the assigned GPU: trained on the CPU.")
    store = FileProgressStore(job.scratch, every=args.checkpoint_every, say=log, device=device)
    with _settled(args.n_jobs or 1):
        network.to(device)
        curve = train(network, data(device), args, world, watch=watch, store=store, name=name)
        network.to("cpu")
    notes = []
    if curve["kept"] == args.epochs > 1:
        notes.append(f"The validation loss was still falling at {args.epochs} epochs: more may help.")
        log(notes[0])
    return curve, notes


def saved(job: StageContext, kind: type[K], value: Any) -> K:
    """Write the result, on rank 0; every rank returns the handle once it is written."""
    world = world_here()
    if world.rank == 0:
        job.save(kind, value)
    world.barrier()
    return job.made(kind)


def params_of(args: TrainingArgs) -> dict[str, Any]:
    """Return the settings that decide what is learned."""
    return {name: value for name, value in asdict(args).items() if name not in ("n_jobs", "checkpoint_every")}


@contextmanager
def _settled(threads: int) -> Iterator[None]:
    """Limit torch's threads during a block, and cuDNN to deterministic kernels."""
    before, cudnn = torch.get_num_threads(), torch.backends.cudnn
    deterministic = cudnn.deterministic
    torch.set_num_threads(threads)
    cudnn.deterministic = True
    try:
        yield
    finally:
        torch.set_num_threads(before)
        cudnn.deterministic = deterministic
