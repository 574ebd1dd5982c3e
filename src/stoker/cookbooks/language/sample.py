"""The stages that let a trained model complete prompts. Their own, so that another prompt trains nothing again."""

from __future__ import annotations

from pathlib import Path

from stoker.authoring import StageContext, stage
from stoker.cookbooks.language.arguments import SampleArgs
from stoker.cookbooks.language.kinds import Adapter, Model, Samples

_USES = ("safetensors", "tokenizers", "torch", "transformers")


@stage("language/sample", version=1, uses=_USES, deterministic=False)
def sample(job: StageContext, adapter: Adapter, args: SampleArgs) -> Samples:
    """Complete prompts with a base and an adapter."""
    return _sampled(job, Path(args.base), adapter.path, args, has_adapter=True)


@stage("language/sample_model", version=1, uses=_USES, deterministic=False)
def sample_model(job: StageContext, model: Model, args: SampleArgs) -> Samples:
    """Complete prompts with a whole model."""
    return _sampled(job, model.path, model.path, args, has_adapter=False)


def _sampled(job: StageContext, base: Path, trained: Path, args: SampleArgs, *, has_adapter: bool) -> Samples:
    from stoker.cookbooks.language.arguments import device_of
    from stoker.cookbooks.language.compute.banks import AdapterSpec
    from stoker.cookbooks.language.compute.base_weights import load_base
    from stoker.cookbooks.language.compute.slots import Slots
    from stoker.cookbooks.language.data.tokens import open_tokenizer
    from stoker.cookbooks.language.peft import read_adapter
    from stoker.cookbooks.language.sampler import Sampler, completed
    from stoker.cookbooks.language.schemas import read_training

    device, told = device_of(job.devices)
    if told:
        job.log(told)
    held = load_base(base, device=device, dtype=args.dtype)
    adapter = read_adapter(trained) if has_adapter else None
    spec = adapter.spec if adapter is not None else AdapterSpec(rank=1, alpha=1.0, targets=("q_proj",))
    slots = Slots(held, count=1, rank=spec.rank, targets=spec.targets, compiles=False, records=False)
    if adapter is not None:
        slots.seat(0, adapter)
    sampler = Sampler(
        lambda tokens: slots.logits(0, tokens),
        open_tokenizer(base),
        longest=held.shape.positions,
        tokens=args.tokens,
        temperature=args.temperature,
        seed=args.seed,
    )
    forms = read_training(trained)["data"].get("forms")
    made = completed(sampler, args.prompts, forms, job.check)
    for one in made:
        job.log(f"{one['prompt']!r} → {one['completion']!r}")
    return job.save(Samples, made)
