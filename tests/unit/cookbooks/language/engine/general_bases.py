"""Tiny bases of families that only transformers computes, with the tokenizer of a bundled one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from stoker.cookbooks.language.bundled import TinyShape, write_base
from stoker.cookbooks.language.compute.banks import AdapterSpec, Optim, fresh_adapter
from stoker.cookbooks.language.compute.general_base import GeneralBase, load_general
from stoker.cookbooks.language.compute.matrices import adaptable, settled_targets
from stoker.cookbooks.language.compute.slots import Slots
from tests.unit.cookbooks.language.engine.peft_alone import some_batches
from tests.unit.cookbooks.language.engine.trained_together import Member

_LLAMA_LIKE: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _of(name: str, **said: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, f"{name}Config")(**{**_LLAMA_LIKE, **said})


def with_images() -> Any:
    """Return the config of a base that reads images, too."""
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.Gemma3Config(
        text_config={**_LLAMA_LIKE, "head_dim": 8, "sliding_window": 6},
        vision_config={**small, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    )


_EXPERTS = {"num_experts_per_tok": 2, "output_router_logits": False}
CONFIGS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=264, n_embd=32, n_layer=2, n_head=4, n_positions=64, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0,
        bos_token_id=1, eos_token_id=2,
    ),
    "gemma": _of("Gemma", head_dim=8),
    "gemma2": _of("Gemma2", head_dim=8, sliding_window=6, query_pre_attn_scalar=8),
    "gemma3_text": _of("Gemma3Text", head_dim=8, sliding_window=6, query_pre_attn_scalar=8),
    "phi": _of("Phi"),
    "phi3": _of("Phi3"),
    "olmo2": _of("Olmo2"),
    "granite": _of("Granite", logits_scaling=3.0, attention_multiplier=0.3, residual_multiplier=0.7),
    "smollm3": _of("SmolLM3"),
    "starcoder2": _of("Starcoder2", sliding_window=6, residual_dropout=0.0, embedding_dropout=0.0),
    "gpt_neox": _of("GPTNeoX"),
    "mixtral": _of("Mixtral", num_local_experts=4, **_EXPERTS),
    "qwen2_moe": _of(
        "Qwen2Moe", num_experts=4, moe_intermediate_size=24, shared_expert_intermediate_size=24, **_EXPERTS
    ),
}  # fmt: skip
"""Every family that is tested: norms, positions, gates and heads of every sort."""
MIXING: dict[str, Callable[[], Any]] = {
    "bloom": lambda: transformers.BloomConfig(vocab_size=264, hidden_size=32, n_layer=2, n_head=4),
}
"""Families that do not keep the sequences of a row apart."""


def general_base(folder: Path, name: str) -> Path:
    """Write a base of one of these with random weights."""
    write_base(folder, TinyShape(hidden=32, inner=48))
    (folder / "config.json").unlink()
    (folder / "model.safetensors").unlink()
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config({**CONFIGS, **MIXING, "gemma3": with_images}[name]())
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger than families begin with, so that every part of a block matters.
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    made = folder / "model"
    model.save_pretrained(made)
    for file in made.iterdir():
        shutil.move(file, folder / file.name)
    made.rmdir()
    return folder


def loaded(folder: Path, name: str, *, device: str = "cpu", dtype: str = "float32") -> GeneralBase:
    return load_general(general_base(folder, name), device=device, dtype=dtype)


def targets(base: GeneralBase, *words: str) -> tuple[str, ...]:
    return settled_targets(words or ("all-linear",), [one.name for one in adaptable(base.shape)])


def three_unlike(base: GeneralBase, steps: int, *, dora: bool = False) -> list[Member]:
    """Members that differ; with `dora` two of them have magnitudes."""
    return [
        Member(
            spec=AdapterSpec(rank=4, alpha=8.0, targets=targets(base), seed=1, dora=dora),
            batches=some_batches(1, steps),
            rates=[3e-3] * steps,
        ),
        Member(
            spec=AdapterSpec(rank=2, alpha=3.0, targets=targets(base, "attention"), rslora=True, seed=2, dora=dora),
            batches=some_batches(2, steps, longest=9),
            rates=[1e-2] * steps,
            optim=Optim(clip=0.05, weight_decay=0.1),
        ),
        Member(
            spec=AdapterSpec(rank=3, alpha=7.0, targets=targets(base), seed=3),
            batches=some_batches(3, steps),
            rates=[3e-3] * (steps // 2),
            optim=Optim(betas=(0.8, 0.95), eps=1e-6, clip=1.0),
            accumulate=2,
        ),
    ]


def slots_of(base: GeneralBase, members: list[Member]) -> Slots:
    wanted = tuple(dict.fromkeys(target for one in members for target in one.spec.targets))
    dora = any(one.spec.dora for one in members)
    rank, whole = max(one.spec.rank for one in members), members[0].spec.whole
    slots = Slots(base, count=len(members), rank=rank, targets=wanted, dora=dora, whole=whole)
    for slot, member in enumerate(members):
        slots.load(slot, fresh_adapter(base.shape, member.spec), member.optim)
    return slots
