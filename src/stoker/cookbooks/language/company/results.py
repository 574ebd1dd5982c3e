"""What a member leaves behind: its adapter with `training.json`, and the folders that its user asked for."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from stoker.cookbooks.language.company.checkpoint_folders import epoch_folder, write_checkpoint
from stoker.cookbooks.language.company.member import Member
from stoker.cookbooks.language.engine.adapters import Pairs
from stoker.cookbooks.language.engine.bases import Base
from stoker.cookbooks.language.kinds import Adapter
from stoker.cookbooks.language.peft_layout import write_adapter
from stoker.cookbooks.language.records import BEST, BaseFacts, Curve, Metadata, Training, significant, write_training


def write_result(member: Member, weights: Pairs, base: Base) -> Adapter:
    """Write what was learned into the member's staging folder, and give the handle of it."""
    job, args = member.seat.job, member.args
    name = _base_name(member)
    write_adapter(job.out, member.spec, weights, base_name=name)
    is_best = args.keep == "best" and member.best is not None
    training = Training(
        method="lora",
        base=BaseFacts(name=name, family=base.shape.model.family, parameters=base.shape.model.parameters),
        data=dict(member.examples.facts),
        settings=member.settings,
        weights=_count(weights),
        curve=Curve(
            points=member.curve.points,
            kept=member.judged.best_update if is_best else member.update,
            before=None if member.before is None else significant(member.before),
        ),
        device=base.device.partition(":")[0],
        dtype=str(base.dtype).rpartition(".")[2],
        notes=list(member.notes),
        versions={library: version(library) for library in ("numpy", "safetensors", "torch")},
    )
    write_training(training, job.out)
    return job.made(Adapter)


def write_folder(member: Member, name: str, weights: Pairs) -> None:
    """Write one of the folders that outlive the run, if the user asked for them."""
    if member.args.checkpoints is None:
        return
    base = _base_name(member)
    write_checkpoint(
        Path(member.args.checkpoints).expanduser(),
        name,
        metadata_of(member),
        lambda folder: write_adapter(folder, member.spec, weights, base_name=base),
    )


def folders_due(member: Member, *, is_improved: bool) -> tuple[str, ...]:
    """Name the folders to write after an update: of an epoch that ended, and of what is the best so far."""
    if member.args.checkpoints is None:
        return ()
    epoch = (epoch_folder(member.epoch),) if member.is_at_epoch_end else ()
    # With nothing held out there is no evaluation: the newest counts as the best.
    is_best = is_improved or (member.is_at_epoch_end and not member.held_out)
    return (*epoch, BEST) if is_best else epoch


def metadata_of(member: Member) -> Metadata:
    """Say what a folder of this moment holds."""
    args, curve = member.args, member.curve
    return Metadata(
        mode="lora",
        adapter_index=args.adapter_index,
        epoch=member.epoch,
        train_loss=_rounded(curve.last_loss),
        val_loss=_rounded(member.judged.last),
        avg_loss=_rounded(curve.mean_loss),
        rank=args.rank,
        alpha=args.alpha,
        global_step=member.update,
        label=args.label or member.seat.job.node,
    )


def _base_name(member: Member) -> str:
    return member.args.base_name or Path(member.args.base).resolve().name


def _rounded(loss: float | None) -> float | None:
    return None if loss is None else significant(loss)


def _count(weights: Any) -> int:
    return sum(matrix.numel() for pair in weights.values() for matrix in pair)
