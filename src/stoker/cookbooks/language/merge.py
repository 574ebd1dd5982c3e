"""The stage that merges an adapter into its base."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.authoring import BadInput, StageContext, arg, stage
from stoker.cookbooks.language.arguments import AdapterOverBaseArgs, Dtype
from stoker.cookbooks.language.compute.frozen_base import EMBEDDING, HEAD
from stoker.cookbooks.language.kinds import LanguageModel
from stoker.core.frozen import changed

if TYPE_CHECKING:
    from stoker.cookbooks.language.bases import TrainableBase


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeArgs(AdapterOverBaseArgs):
    """The adapter, and the precision of the result."""

    dtype: Dtype = arg("auto", help="precision of the weights; auto: that of the base")


def warn_of_another_base(args: AdapterOverBaseArgs) -> str | None:
    """Return a warning if the adapter was trained over another base."""
    from stoker.cookbooks.language.bases import read_base
    from stoker.cookbooks.language.checks import is_another_base
    from stoker.cookbooks.language.peft import read_config
    from stoker.store.weight_files.headers import shown

    trained_over = read_config(Path(args.adapter)).get("base_model_name_or_path")
    if not is_another_base(trained_over, read_base(Path(args.base), name=args.base_name, use="merged")):
        return None
    return f"the adapter was trained over {shown(str(trained_over))}, this is {args.base_name}"


@stage("language/merge_weights", version=1, uses=("safetensors", "torch", "transformers"), foresee=warn_of_another_base)
def merge_weights(job: StageContext, args: MergeArgs) -> LanguageModel:
    """Add an adapter to its matrices; the result needs no adapter."""
    import torch

    from stoker.cookbooks.language.bases import read_base, read_weights, save_transformers, stored_dtype, write_model
    from stoker.cookbooks.language.peft import over_base, read_adapter

    base = read_base(Path(args.base), name=args.base_name, use="merged")
    if note := warn_of_another_base(args):
        job.tell(note)
    adapter = read_adapter(Path(args.adapter))
    width = stored_dtype(base) if args.dtype == "auto" else getattr(torch, args.dtype)
    # Of a family of the fast path the files have the names of modules; of others only the module knows its matrices.
    model = _module(base) if base.differs else None
    weights = read_weights(base) if model is None else dict(model.state_dict())
    if adapter.spec.whole and base.shape.is_tied:
        base = _untied(base, model, weights)
    adapter = over_base(adapter, [name.removesuffix(".weight") for name in weights])
    for number, (module, (a, *rest)) in enumerate(adapter.weights.items(), 1):
        name = f"{module}.weight"
        if module in adapter.spec.whole:
            made = {name: a.to(width), **{f"{module}.bias": bias.to(width) for bias in rest}}
        else:
            b, *magnitudes = rest
            is_transposed = model is not None and not isinstance(model.get_submodule(module), torch.nn.Linear)
            # Added in 32 bits, rounded once.
            merged = (weights[name].T if is_transposed else weights[name]).float() + adapter.spec.scale * (b @ a)
            for wanted in magnitudes:
                merged *= (wanted / torch.linalg.vector_norm(merged, dim=1))[:, None]
            made = {name: (merged.T if is_transposed else merged).contiguous().to(width)}
        weights |= made
        if not all(one.isfinite().all() for one in made.values()):
            kept = str(width).removeprefix("torch.")
            message = f"with {args.adapter} added, {name} is not finite in {kept}"
            raise BadInput(message, hint="the adapter did not train well: merge another; or a wider dtype=")
        job.step(number, of=len(adapter.weights))
    if model is None:
        write_model(job.out, base, weights, width)
    else:
        save_transformers(model, weights, width, base, job.out)
    job.log(f"{len(adapter.weights)} matrices of {base.name} changed; kept in {str(width).removeprefix('torch.')}")
    return job.made(LanguageModel)


def _untied(base: TrainableBase, model: Any, weights: dict[str, Any]) -> TrainableBase:
    """Return a base with a head beside its embedding: an adapter's copies of the two are separate."""
    if model is None:
        weights.setdefault(HEAD, weights[EMBEDDING].clone())
    else:
        model.config.tie_word_embeddings = False
    return changed(base, config={**base.config, "tie_word_embeddings": False})


def _module(base: TrainableBase) -> Any:
    from stoker.cookbooks.language.bases import stored_dtype
    from stoker.cookbooks.language.compute.transformers_base import load_transformers

    return load_transformers(base.folder, dtype=str(stored_dtype(base)).removeprefix("torch."))
