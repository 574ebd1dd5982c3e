"""The reference: PEFT training one adapter alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stoker.cookbooks.language.compute.banks import AdapterState, Optim, Pairs
from stoker.cookbooks.language.compute.blocks import PassDropout, keys_of

IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one pass shows one adapter: whole sequences, and which of their tokens are learned."""

    sequences: list[Any]
    learned: list[Any]

    @property
    def supervised(self) -> int:
        """How many tokens are learned: the first of a sequence follows nothing."""
        return int(sum(one[1:].sum() for one in self.learned))

    def padded(self, length: int = 0) -> tuple[Any, Any]:
        """Return tokens and the labels of those same tokens, `[rows, T]`, filled up at the end."""
        length = max(length, *(len(one) for one in self.sequences))
        tokens = torch.zeros(len(self.sequences), length, dtype=torch.int64)
        labels = torch.full_like(tokens, IGNORED)
        for row, (sequence, learned) in enumerate(zip(self.sequences, self.learned, strict=True)):
            tokens[row, : len(sequence)] = sequence
            labels[row, : len(sequence)] = torch.where(learned, sequence, IGNORED)
        return tokens, labels


def some_batches(seed: int, count: int, *, rows: int = 2, shortest: int = 4, longest: int = 16) -> list[Batch]:
    """Draw batches of sequences of unequal length; the beginning of each is a prompt."""
    draws = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        lengths = torch.randint(shortest, longest + 1, (rows,), generator=draws).tolist()
        sequences = [torch.randint(0, 256, (length,), generator=draws) for length in lengths]
        learned = [torch.arange(length) >= length // 3 for length in lengths]
        made.append(Batch(sequences=sequences, learned=learned))
    return made


def peft_model(base: Path, adapter: AdapterState, *, dtype: Any = torch.float32, device: str = "cpu") -> Any:
    """Return PEFT's model of a base, with an adapter's numbers in it."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    spec = adapter.spec
    loaded = AutoModelForCausalLM.from_pretrained(base, dtype=dtype).to(device)
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,
        target_modules=list(spec.targets),
        use_rslora=spec.rslora,
        use_dora=spec.dora,
        modules_to_save=list(spec.whole) or None,
        task_type="CAUSAL_LM",
        fan_in_fan_out=loaded.config.model_type == "gpt2",
    )
    model = get_peft_model(loaded, config)
    with torch.no_grad():
        for name, pair in lora_pairs(model).items():
            # Fresh magnitudes and modules are PEFT's own.
            for mine, theirs in zip(pair, adapter.weights.get(name, ()), strict=False):
                mine.copy_(theirs)
    return model


def lora_pairs(model: Any) -> dict[str, tuple[Any, ...]]:
    """Return PEFT's own parameters by our names: A, B, and magnitudes if there are any."""
    kinds = ("lora_A", "lora_B", "lora_magnitude_vector")
    found = {
        name: tuple(one["default"].weight for one in (getattr(module, kind) for kind in kinds) if "default" in one)
        for name, module in model.named_modules()
        if hasattr(module, "lora_A")
    }
    whole = {
        name: tuple(module.modules_to_save["default"].parameters())
        for name, module in model.named_modules()
        if isinstance(getattr(module, "modules_to_save", None), torch.nn.ModuleDict)
    }
    return {name.removeprefix("base_model.model."): parts for name, parts in {**found, **whole}.items()}


def peft_trained(
    model: Any, batches: Sequence[Batch], rates: Sequence[float], optim: Optim, *, accumulate: int = 1
) -> tuple[list[float], Pairs]:
    """Train as PEFT's users do, with torch's AdamW and the model's own loss; one rate and loss of each update."""
    pairs = lora_pairs(model)
    trained = [one for pair in pairs.values() for one in pair]
    adamw = _optimizer(model, trained, optim)
    losses = []
    for number, rate in enumerate(rates):
        passes = batches[number * accumulate : (number + 1) * accumulate]
        items = sum(one.supervised for one in passes)
        losses.append(0.0)
        for one in passes:
            tokens, labels = (part.to(trained[0].device) for part in one.padded())
            loss = model(input_ids=tokens, labels=labels, num_items_in_batch=items).loss
            loss.backward()
            losses[-1] += loss.item()
        torch.nn.utils.clip_grad_norm_(trained, optim.clip)
        for group in adamw.param_groups:
            group["lr"] = rate * group.get("factor", 1.0)
        adamw.step()
        adamw.zero_grad()
    return losses, {name: tuple(one.detach().cpu().clone() for one in pair) for name, pair in pairs.items()}


def _optimizer(model: Any, trained: list[Any], optim: Optim) -> Any:
    """Return torch's AdamW; with another rate for B as PEFT makes it for LoRA+."""
    said = {"betas": optim.betas, "eps": optim.eps, "weight_decay": optim.weight_decay}
    if optim.b_rate == 1.0:
        return torch.optim.AdamW(trained, lr=0.0, **said)
    from peft.optimizers import create_loraplus_optimizer

    made = create_loraplus_optimizer(
        model, torch.optim.AdamW, lr=1.0, loraplus_lr_ratio=optim.b_rate, loraplus_weight_decay=0.0, **said
    )
    for group in made.param_groups:
        group["factor"] = group["lr"]
    assert {group["factor"] for group in made.param_groups if group["params"]} == {1.0, optim.b_rate}
    return made


class SameDropout(torch.nn.Module):
    """Drops of a matrix's input what the engine drops in the passes of one member."""

    def __init__(self, share: float, seed: int, place: int) -> None:
        super().__init__()
        self._share, self._seed, self._place = share, seed, place
        self._update = 0

    def forward(self, x: Any) -> Any:
        seed, update, first = (torch.tensor([one]) for one in (self._seed, self._update, 0))
        keys = keys_of(seed, update, first)
        dropping = PassDropout(shares=torch.tensor([self._share]), keys=keys, length=x.shape[1])
        self._update += 1
        return dropping.applied(x.reshape(1, -1, x.shape[-1]), self._place).view(x.shape)
