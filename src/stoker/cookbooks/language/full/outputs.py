"""Train a whole model for a stage, and write what came out as the hub lays models out."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from stoker.authoring import Alone, StageContext
from stoker.cookbooks.language.arguments import FullArgs, device_of
from stoker.cookbooks.language.compute.frozen_base import shape_of
from stoker.cookbooks.language.full.model_files import base_at, read_weights, write_model
from stoker.cookbooks.language.full.training import FullTraining
from stoker.cookbooks.language.kinds import Examples
from stoker.cookbooks.language.schemas import (
    BaseFacts,
    LanguageCurve,
    LanguageTrainingRecord,
    Metadata,
    significant,
    write_training,
)
from stoker.cookbooks.language.shared.outputs import own_folder, write_checkpoint
from stoker.cookbooks.language.shared.tenant import AdapterMember
from stoker.core.clock import Clock, SystemClock


def produce(job: StageContext, examples: Examples, args: FullArgs) -> None:
    """Train and write the model and `training.json` into the stage's folder."""
    clock = SystemClock()
    with own_folder(args.checkpoints, args.label or job.node, clock):
        _produce(job, examples, args, clock)


def _produce(job: StageContext, examples: Examples, args: FullArgs, clock: Clock) -> None:
    base = base_at(args.base, args.base_name)
    device, told = device_of(job.devices)
    if told:
        job.log(told)
    if args.threads is not None:
        torch.set_num_threads(min(args.threads, os.cpu_count() or 1))
    (seat,) = Alone(job, {"examples": examples}, args).arrivals(0.0)
    shape = shape_of(base.config)
    member = AdapterMember(seat, vocabulary=shape.vocabulary)
    weights = read_weights(base)
    width = _width(weights)
    count = sum(one.numel() for one in weights.values())

    def write_folder(name: str, now: dict[str, Tensor]) -> None:
        write_checkpoint(
            Path(args.checkpoints or ""),
            name,
            _metadata(member),
            lambda folder: write_model(folder, base, now, width),
        )

    training = FullTraining(member, shape, weights, device=device, dtype=args.dtype, clock=clock)
    trained = training.run(write_folder)
    write_model(job.out, base, trained.weights, width)
    write_training(
        LanguageTrainingRecord(
            method="full",
            base=BaseFacts(name=base.name, family=base.family, parameters=base.shape.parameters),
            data=dict(member.examples.facts),
            settings=member.settings,
            weights=count,
            curve=LanguageCurve(
                points=member.curve.points,
                kept=trained.kept,
                before=None if member.before is None else significant(member.before),
            ),
            device=device,
            dtype=args.dtype,
            notes=list(member.notes),
            versions={library: version(library) for library in ("numpy", "safetensors", "torch")},
        ),
        job.out,
    )


def _metadata(member: AdapterMember) -> Metadata:
    def rounded(loss: float | None) -> float | None:
        return None if loss is None else significant(loss)

    return Metadata(
        mode="full",
        adapter_index=0,
        epoch=member.epoch,
        train_loss=rounded(member.curve.last_loss),
        val_loss=rounded(member.judged.last),
        avg_loss=rounded(member.curve.mean_loss),
        rank=0,
        alpha=0.0,
        global_step=member.update,
        label=member.args.label or member.seat.job.node,
    )


def _width(weights: dict[str, Tensor]) -> torch.dtype:
    """Return what a base's weights are kept in: the result's are kept in the same."""
    return next(iter(weights.values())).dtype
