"""On a machine with a GPU: adapters over bases that transformers computes, eight at once and one by one in PEFT.

    PYTHONPATH=src python benchmarks/sides/adapters_general.py OUT.json [--only PART,PART] [--limit SECONDS] [--tiny]

    gemma-together, gpt2-together   eight members at once
    gemma-peft, gpt2-peft           one adapter in PEFT without a compiler: what eight have one after another

Of each family a base with random weights in bf16, adapters of rank 16 on all linear layers, rows of 512, 2,048 tokens
of each adapter in a step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]
import gpu_parts  # noqa: E402 - found by the line above, from wherever this is started
from adapters_cases import MEMBERS, RANK  # noqa: E402 - the same
from adapters_cases import SEQUENCE as ROW  # noqa: E402 - the same
from gpu_parts import Say  # noqa: E402 - the same

TOKENS = 2048
BASES: dict[str, dict[str, Any]] = {
    "gemma": {"hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8,
              "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 256000},
    "gpt2": {"n_embd": 1600, "n_layer": 48, "n_head": 25, "vocab_size": 50257, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
             "resid_pdrop": 0.0},
}  # fmt: skip
"""Sizes of Gemma 2B and GPT-2 XL."""
SMALL: dict[str, dict[str, Any]] = {
    "gemma": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
             "resid_pdrop": 0.0},
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = gpu_parts.parse(parser)
    parts: dict[str, gpu_parts.Part] = {
        f"{family}-{way}": partial(measure, family, made, tiny=given.tiny)
        for family in BASES
        for way, made in (("together", _together), ("peft", _by_peft))
    }
    return gpu_parts.run_parts("general", parts, given.only or list(parts), given)


def measure(family: str, made: Callable[[Any, str], tuple[Callable[[], Any], int]], say: Say, *, tiny: bool) -> None:
    device = "cpu" if tiny else "cuda"
    step, tokens = made(_module(family, tiny=tiny), device)
    for name, value in gpu_parts.rate(step, tokens, device=device, warm=3, window_s=0.2 if tiny else 2.0).items():
        say(name, value)


def _module(family: str, *, tiny: bool) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device("cpu" if tiny else "cuda"):
        config = AutoConfig.for_model(family, **(SMALL if tiny else BASES)[family])
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32 if tiny else torch.bfloat16).eval()


def _together(module: Any, device: str) -> tuple[Callable[[], Any], int]:
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, fresh_adapter
    from stoker.cookbooks.language.compute.general_base import GeneralBase
    from stoker.cookbooks.language.compute.general_shape import general_shape
    from stoker.cookbooks.language.compute.matrices import adaptable, settled_targets
    from stoker.cookbooks.language.compute.passes import AdapterSlotRows
    from stoker.cookbooks.language.compute.slots import Slots

    sizes = {name: tuple(one.shape) for name, one in module.named_parameters()}
    shape = general_shape(module.config.to_dict(), sizes)
    base = GeneralBase(module.requires_grad_(requires_grad=False), shape, device=device, dtype=module.dtype)
    targets = settled_targets(["all-linear"], [one.name for one in adaptable(base.shape)])
    slots = Slots(base, count=MEMBERS, rank=RANK, targets=targets)
    for slot in range(MEMBERS):
        spec = AdapterSpec(rank=RANK, alpha=2.0 * RANK, targets=targets, seed=slot)
        slots.load(slot, fresh_adapter(base.shape, spec))
    tokens = torch.randint(0, shape.vocabulary, (MEMBERS, TOKENS // ROW, ROW))
    labels = torch.nn.functional.pad(tokens[..., 1:], (0, 1), value=-100)
    everyone, learned = tuple(range(MEMBERS)), [float(TOKENS - TOKENS // ROW)] * MEMBERS
    rows = AdapterSlotRows(slots=everyone, tokens=tokens, labels=labels, denominators=learned)
    return lambda: slots.step(rows, update=[True] * MEMBERS, rates=[1e-4] * MEMBERS).losses, MEMBERS * TOKENS


def _by_peft(module: Any, device: str) -> tuple[Callable[[], Any], int]:
    import torch
    from peft import LoraConfig, get_peft_model

    module.config.use_cache = False
    lora = LoraConfig(
        r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM",
        fan_in_fan_out=module.config.model_type == "gpt2",
    )  # fmt: skip
    model = get_peft_model(module, lora)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0, fused=True)
    tokens = torch.randint(0, module.config.vocab_size, (TOKENS // ROW, ROW), device=device)

    def step() -> float:
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step, TOKENS


if __name__ == "__main__":
    sys.exit(main())
