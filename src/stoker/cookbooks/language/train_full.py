"""The stage that trains all weights of a base."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.authoring import RetryOn, RetryPolicy, SoloContext, StageContext, stage
from stoker.cookbooks.language.arguments import FullArgs, device_of
from stoker.cookbooks.language.kinds import Examples, LanguageModel
from stoker.cookbooks.language.schemas import (
    BaseFacts,
    write_training,
)
from stoker.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    from torch import Tensor


@stage(
    "language/train_full",
    version=1,
    uses=("numpy", "safetensors", "torch"),
    diverges_on=("loss",),
    retry=RetryPolicy(attempts=3, on=RetryOn.INTERRUPTED),
)
def train_full(job: StageContext, examples: Examples, args: FullArgs) -> LanguageModel:
    """Train all weights, update by update."""
    from stoker.cookbooks.language.shared.outputs import own_folder

    clock = SystemClock()
    with own_folder(args.checkpoints, args.label or job.node, clock):
        _train(job, examples, args, clock)
    return job.made(LanguageModel)


def _train(job: StageContext, examples: Examples, args: FullArgs, clock: Clock) -> None:
    """Train; write the model in the hub's layout, and `training.json`, into the stage's folder."""
    import torch

    from stoker.cookbooks.language.bases import read_base, read_weights, write_model
    from stoker.cookbooks.language.compute.frozen_base import shape_of
    from stoker.cookbooks.language.full_training import FullTraining
    from stoker.cookbooks.language.shared.outputs import metadata_of, training_record, write_checkpoint
    from stoker.cookbooks.language.shared.tenant import AdapterMember

    base = read_base(Path(args.base), name=args.base_name)
    device, note = device_of(job.devices)
    if note:
        job.log(note)
    if args.threads is not None:
        torch.set_num_threads(min(args.threads, os.cpu_count() or 1))
    (attempt,) = SoloContext(job, {"examples": examples}, args).new_members(0.0)
    shape = shape_of(base.config)
    member = AdapterMember(attempt, vocabulary=shape.vocabulary)
    weights = read_weights(base)
    # The result has the precision of the base.
    width = next(iter(weights.values())).dtype
    count = sum(one.numel() for one in weights.values())

    def write_folder(name: str, now: dict[str, Tensor]) -> None:
        write_checkpoint(
            Path(args.checkpoints or ""),
            name,
            metadata_of(member, "full"),
            lambda folder: write_model(folder, base, now, width),
        )

    training = FullTraining(member, shape, weights, device=device, dtype=args.dtype, clock=clock)
    trained = training.run(write_folder)
    write_model(job.out, base, trained.weights, width)
    record = training_record(
        member,
        method="full",
        base=BaseFacts(name=base.name, family=base.family, parameters=base.shape.parameters),
        weights=count,
        kept=trained.kept,
        device=device,
        dtype=args.dtype,
    )
    write_training(record, job.out)
