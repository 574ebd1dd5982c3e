"""Trains eight adapters on the tiny base, on the CPU: by PEFT one after another, or in company. Times itself.

    python benchmarks/sides/adapters_tiny.py WAY TOKENS STEPS [MEMBER]

WAY is `peft`, `peft-tuned` (without oneDNN, whose small products are slow on Arm), `company`, or `general` (the same
over transformers' own module); TOKENS are those of one adapter in a step, in rows of 64; with MEMBER only that one is
trained. All begin with the same numbers and are shown the same tokens; the losses are printed, to be compared.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from adapters_cases import MEMBERS, RANK, TARGETS

ROW = 64
RATE = 1e-3


class Spent:
    """Time of the clock and of the processor, from each beginning to its end."""

    def __init__(self) -> None:
        self._begun = self._spent = (0.0, 0.0)

    def begin(self) -> None:
        self._begun = (time.perf_counter(), time.process_time())

    def end(self) -> None:
        now = (time.perf_counter(), time.process_time())
        clock, processor = (
            spent + end - begin for spent, end, begin in zip(self._spent, now, self._begun, strict=True)
        )
        self._spent = (clock, processor)

    def told(self) -> dict[str, float]:
        return {"seconds": self._spent[0], "cpu_seconds": self._spent[1]}


def main(way: str, tokens: int, steps: int, members: list[int]) -> None:
    import torch

    from stoker.cookbooks.language.bundled import bundled_base
    from stoker.cookbooks.language.compute.banks import AdapterSpec, fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import load_base
    from stoker.cookbooks.language.compute.general_base import load_general

    torch.set_num_threads(2)
    if way == "peft-tuned":
        torch.backends.mkldnn.enabled = False
    folder = bundled_base("tiny")
    base = load_general(folder, device="cpu", dtype="float32") if way == "general" else load_base(folder)
    shown = {
        member: torch.randint(0, 256, (steps, tokens // ROW, ROW), generator=torch.Generator().manual_seed(member))
        for member in members
    }
    specs = {member: AdapterSpec(rank=RANK, alpha=2.0 * RANK, targets=TARGETS, seed=member) for member in members}
    fresh = {member: fresh_adapter(base.shape, spec) for member, spec in specs.items()}
    train = _in_company if way in {"company", "general"} else _by_peft
    told = train(folder, base, fresh, shown, steps)
    print(json.dumps({**told, "process_cpu_seconds": time.process_time()}))


def _by_peft(folder: Path, _base: Any, fresh: dict[int, Any], shown: dict[int, Any], steps: int) -> dict[str, Any]:
    """One model after another, each with the settings that are quickest here; building it is not counted."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    spent, losses, executed = Spent(), [], 0
    for member, adapter in fresh.items():
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        loaded.config.use_cache = False
        lora = LoraConfig(
            r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, target_modules=list(TARGETS), task_type="CAUSAL_LM"
        )
        model = get_peft_model(loaded, lora)
        with torch.no_grad():
            for name, module in model.named_modules():
                if hasattr(module, "lora_A"):
                    module.lora_A.default.weight.copy_(adapter.weights[name.removeprefix("base_model.model.")][0])
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimiser = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0, fused=True)
        loss = torch.zeros(())
        for number in range(-2, steps):
            if number == 0:
                spent.begin()
            # Two steps to warm up, which change nothing.
            tokens = shown[member][max(number, 0)]
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            if number >= 0:
                optimiser.step()
                executed += 1
            optimiser.zero_grad(set_to_none=True)
        spent.end()
        losses.append(loss.item())
    return {**spent.told(), "executed": executed, "losses": losses}


def _in_company(_folder: Path, base: Any, fresh: dict[int, Any], shown: dict[int, Any], steps: int) -> dict[str, Any]:
    import torch

    from stoker.cookbooks.language.compute.passes import AdapterSlotRows
    from stoker.cookbooks.language.compute.slots import Slots

    slots = Slots(base, count=len(fresh), rank=RANK, targets=TARGETS)
    for slot, adapter in enumerate(fresh.values()):
        slots.load(slot, adapter)
    tokens = torch.stack(list(shown.values()))
    labels = torch.nn.functional.pad(tokens[..., 1:], (0, 1), value=-100)
    learned = [float((labels[0, 0] != -100).sum())] * len(fresh)
    everyone, losses = tuple(range(len(fresh))), [0.0] * len(fresh)
    spent = Spent()
    for number in range(-2, steps):
        if number == 0:
            slots.forget(everyone)
            spent.begin()
        at = max(number, 0)
        rows = AdapterSlotRows(slots=everyone, tokens=tokens[:, at], labels=labels[:, at], denominators=learned)
        result = slots.step(rows, update=[number >= 0] * len(fresh), rates=[RATE] * len(fresh))
        losses = result.losses
    spent.end()
    return {**spent.told(), "executed": steps * len(fresh), "losses": losses}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [int(sys.argv[4])] if sys.argv[4:] else list(range(MEMBERS)))
