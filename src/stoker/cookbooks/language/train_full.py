"""The stage that trains all weights of a base."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.authoring import RetryOn, RetryPolicy, SoloContext, StageContext, stage
from stoker.cookbooks.language.arguments import FullArgs, device_of
from stoker.cookbooks.language.kinds import Examples, LanguageModel
from stoker.cookbooks.language.schemas import BaseFacts, write_training
from stoker.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    from torch import Tensor

    from stoker.cookbooks.language.full_module import TrainingRanks


_LIBRARIES = ("numpy", "safetensors", "torch", "transformers")
_RETRY = RetryPolicy(attempts=3, on=RetryOn.INTERRUPTED)


@stage("language/train_full", version=2, uses=_LIBRARIES, diverges_on=("loss",), retry=_RETRY)
def train_full(job: StageContext, examples: Examples, args: FullArgs) -> LanguageModel:
    """Train all weights, update by update."""
    return _trained(job, examples, args)


@stage(
    "language/train_full_8bit",
    version=1,
    uses=("bitsandbytes", *_LIBRARIES),
    diverges_on=("loss",),
    retry=_RETRY,
)
def train_full_8bit(job: StageContext, examples: Examples, args: FullArgs) -> LanguageModel:
    """Train all weights as `train_full` does, with an optimiser that only bitsandbytes has."""
    return _trained(job, examples, args)


def _trained(job: StageContext, examples: Examples, args: FullArgs) -> LanguageModel:
    from stoker.cookbooks.language.full_module import TrainingRanks
    from stoker.cookbooks.language.shared.outputs import own_folder

    device, note = device_of(job.devices)
    ranks, clock = TrainingRanks.here(device), SystemClock()
    if note and ranks.is_first:
        job.log(note)
    with own_folder(args.checkpoints, args.label or job.node, clock) if ranks.is_first else nullcontext():
        _train(job, examples, args, ranks, clock)
    ranks.barrier()
    return job.made(LanguageModel)


def _train(job: StageContext, examples: Examples, args: FullArgs, ranks: TrainingRanks, clock: Clock) -> None:
    """Train; write the model in the hub's layout, and `training.json`, into the stage's folder."""
    import torch

    from stoker.cookbooks.language.bases import read_base, save_transformers, stored_dtype
    from stoker.cookbooks.language.full_module import TrainedModule
    from stoker.cookbooks.language.full_training import FullTraining
    from stoker.cookbooks.language.shared.members import TrainedMember
    from stoker.cookbooks.language.shared.outputs import metadata_of, training_record, write_checkpoint

    base = read_base(Path(args.base), name=args.base_name)
    # The result has the precision of the base.
    width = stored_dtype(base)
    if args.threads is not None:
        torch.set_num_threads(min(args.threads, os.cpu_count() or 1))
    module = TrainedModule(Path(args.base), args, ranks)
    (attempt,) = SoloContext(job, {"examples": examples}, args).new_members(0.0)
    mixes = "" if module.takes_packed_rows else base.family
    member: TrainedMember[FullArgs] = TrainedMember(attempt, vocabulary=base.vocabulary, mixes=mixes)

    def write_folder(name: str, now: dict[str, Tensor]) -> None:
        write_checkpoint(
            Path(args.checkpoints or ""),
            name,
            metadata_of(member),
            lambda folder: save_transformers(module.model, now, width, base, folder),
        )

    trained = FullTraining(member, module, ranks, clock=clock).run(write_folder)
    if not ranks.is_first:
        return
    save_transformers(module.model, trained.weights, width, base, job.out)
    record = training_record(
        member,
        method="full",
        base=BaseFacts(name=base.name, family=base.family, parameters=base.shape.parameters),
        weights=module.size,
        kept=trained.kept,
        device=ranks.device,
        dtype=args.dtype,
    )
    write_training(record, job.out)
