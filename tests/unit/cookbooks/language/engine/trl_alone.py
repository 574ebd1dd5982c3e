"""TRL's own losses over a fixed batch of pairs, and what it tokenises: run as a module, it records them in a file."""

from __future__ import annotations

import json
import tempfile
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from stoker.cookbooks.language.compute.banks import AdapterSpec, AdapterState, fresh_adapter
from stoker.cookbooks.language.compute.base_weights import load_base
from tests.unit.cookbooks.language.engine.bases import made_base
from tests.unit.cookbooks.language.engine.peft_alone import lora_pairs, peft_model

RECORDED = Path("tests/recordings/trl/losses.json")
BASE = "llama"
SPEC = AdapterSpec(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "down_proj"), seed=3)
BETA = 0.2
SETS: dict[str, list[dict[str, Any]]] = {
    "plain": [
        {"prompt": "2 plus 2 is ", "chosen": "4.", "rejected": "5, or so."},
        {"prompt": "Say: ", "chosen": "hello there", "rejected": "bye"},
    ],
    "no prompt": [{"chosen": "The sky is blue", "rejected": "The sky is a lemon"}],
    "chats": [
        {
            "prompt": [{"role": "user", "content": "Hi?"}],
            "chosen": [{"role": "assistant", "content": "Hello."}],
            "rejected": [{"role": "assistant", "content": "No."}],
        }
    ],
    "chats, no prompt": [
        {
            "chosen": [{"role": "user", "content": "And?"}, {"role": "assistant", "content": "Yes, that."}],
            "rejected": [{"role": "user", "content": "And?"}, {"role": "assistant", "content": "So what"}],
        }
    ],
}
OBJECTIVES = ("dpo-sigmoid", "dpo-ipo", "dpo-hinge", "orpo")


def objectives_of(name: str) -> tuple[str, ...]:
    """Return the objectives to compare on a set: TRL's ORPO ends a conversation twice, its DPO once, as we do."""
    return OBJECTIVES[:-1] if name.startswith("chats") else OBJECTIVES


def drawn_adapter(base: Path) -> AdapterState:
    """Return an adapter that changes the base: B is drawn, too."""
    adapter = fresh_adapter(load_base(base).shape, SPEC)
    draws = torch.Generator().manual_seed(5)
    adapter.weights = {
        name: (a, torch.empty_like(b).uniform_(-0.2, 0.2, generator=draws)) for name, (a, b) in adapter.weights.items()
    }
    return adapter


def trl_scores(base: Path, objective: str, pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return TRL's tokens of pairs, and of an adapter over a base its loss, its ranking and its gradient's norm."""
    from transformers import AutoTokenizer

    rows: Any = import_module("datasets").Dataset.from_list(pairs)
    model = peft_model(base, fresh_adapter(load_base(base).shape, SPEC))
    tokenizer = AutoTokenizer.from_pretrained(base)
    method, _, loss_type = objective.partition("-")
    said: dict[str, Any] = {
        "output_dir": tempfile.mkdtemp(), "report_to": [], "use_cpu": True, "bf16": False, "beta": BETA,
        "per_device_train_batch_size": len(pairs), "remove_unused_columns": False, "gradient_checkpointing": False,
        "disable_dropout": False,
    }  # fmt: skip
    # It is in no environment of ours, so nothing is known of its types.
    trl: Any = import_module("trl.experimental.orpo" if method == "orpo" else "trl")
    make, settings = (getattr(trl, f"{method.upper()}{what}") for what in ("Trainer", "Config"))
    how = settings(**said, **({"max_length": 256} if method == "orpo" else {"loss_type": [loss_type]}))
    trainer: Any = make(model=model, args=how, processing_class=tokenizer, train_dataset=rows)
    # Only now: what the trainer was made with is its reference.
    with torch.no_grad():
        for name, (a, b) in lora_pairs(model).items():
            for mine, drawn in zip((a, b), drawn_adapter(base).weights[name], strict=True):
                mine.copy_(drawn)
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.model.train()
    if method == "orpo":
        loss, metrics = trainer.get_batch_loss_metrics(trainer.model, batch)
        ranking = {name: metrics[f"rewards/{name}"] for name in ("accuracies", "margins")}
        texts = [batch[f"{side}_input_ids"][row] for row in range(len(pairs)) for side in ("chosen", "rejected")]
        kept = [batch[f"{side}_attention_mask"][row] for row in range(len(pairs)) for side in ("chosen", "rejected")]
    else:
        loss = trainer.compute_loss(trainer.model, batch)
        found = trainer._metrics["train"]
        ranking = {name: found[f"rewards/{name}"][-1] for name in ("accuracies", "margins")}
        order = [side * len(pairs) + row for row in range(len(pairs)) for side in (0, 1)]
        texts, kept = ([batch[name][row] for row in order] for name in ("input_ids", "attention_mask"))
    loss.backward()
    norm = sum(float(one.grad.double().square().sum()) for pair in lora_pairs(model).values() for one in pair) ** 0.5
    tokens = [one[is_kept.bool()].tolist() for one, is_kept in zip(texts, kept, strict=True)]
    # Its loader draws an order.
    return {"tokens": sorted(zip(tokens[::2], tokens[1::2], strict=True)), "loss": loss.item(), "norm": norm, **ranking}


def record() -> None:
    """Write the file."""
    base = made_base(Path(tempfile.mkdtemp()) / "base", BASE)
    found = {
        name: {objective: trl_scores(base, objective, pairs) for objective in objectives_of(name)}
        for name, pairs in SETS.items()
    }
    versions = {name: version(name) for name in ("trl", "transformers", "peft", "torch")}
    RECORDED.write_text(json.dumps({"versions": versions, **found}) + "\n")


if __name__ == "__main__":
    record()
