"""The stage that puts an adapter into its base."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.cookbooks.language.kinds import Model
from stoker.cookbooks.language.settings import BaseArgs, Dtype
from stoker.plan.authoring import InputPath, StageContext, arg, stage


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeArgs(BaseArgs):
    """Which adapter, and how the sum is kept."""

    adapter: InputPath = arg(help="the folder of the adapter", runtime=True)
    adapter_files: tuple[InputPath, ...] = arg(help="the files of the adapter that decide what comes out")
    dtype: Dtype = arg("auto", help="what the weights are kept in; auto: as in the base")


@stage("language/merge_weights", version=1, uses=("safetensors", "torch"))
def merge_weights(job: StageContext, args: MergeArgs) -> Model:
    """Add an adapter to the matrices it stands beside; the result needs no adapter any more."""
    from pathlib import Path

    import torch

    from stoker.cookbooks.language.full.files import base_at, read_weights, write_model
    from stoker.cookbooks.language.peft_layout import read_adapter

    base = base_at(args.base, args.base_name)
    adapter = read_adapter(Path(args.adapter))
    weights = read_weights(base)
    width = next(iter(weights.values())).dtype if args.dtype == "auto" else getattr(torch, args.dtype)
    for number, (module, (a, b)) in enumerate(adapter.weights.items(), 1):
        name = f"{module}.weight"
        # Added in 32 bits, rounded once.
        weights[name] = (weights[name].float() + adapter.spec.scale * (b @ a)).to(width)
        job.step(number, of=len(adapter.weights))
    write_model(job.out, base, weights, width)
    job.log(f"{len(adapter.weights)} matrices of {base.name} changed; kept in {str(width).removeprefix('torch.')}")
    return job.made(Model)
