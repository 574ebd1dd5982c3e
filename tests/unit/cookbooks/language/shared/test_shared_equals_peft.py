from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.language.examples import Cursor
from tests.later import imported_later
from tests.unit.cookbooks.language.shared.companions import Gathering, Person

with imported_later():
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import load_base
    from stoker.cookbooks.language.shared.loop import train_members


def by_peft(base: Path, person: Person) -> list[float]:
    """Train as one would by hand: PEFT, torch's AdamW, transformers' schedule; the loss of each update."""
    pytest.importorskip("peft")
    from transformers import get_scheduler

    from tests.unit.cookbooks.language.engine.peft_alone import lora_pairs, peft_model

    args = person.args
    spec = AdapterSpec(rank=args.rank, alpha=args.alpha, targets=args.targets, seed=args.seed)
    model = peft_model(base, fresh_adapter(load_base(base).shape, spec))
    trained = [one for pair in lora_pairs(model).values() for one in pair]
    adamw = torch.optim.AdamW(trained, lr=args.lr, weight_decay=args.weight_decay)
    cursor = Cursor(person.examples.load(), row_tokens=args.max_seq_len, batch=args.batch, seed=args.seed)
    per_epoch = -(-cursor.batches_per_epoch // args.accumulate)
    updates = args.epochs * per_epoch
    warmup = -(-updates * args.warmup_percent // 100)
    name = {"constant": "constant_with_warmup"}.get(args.schedule, args.schedule)
    schedule: Any = get_scheduler(name, adamw, num_warmup_steps=int(warmup), num_training_steps=updates)
    losses = []
    for update in range(updates):
        left = cursor.batches_per_epoch - update % per_epoch * args.accumulate
        batches = [cursor.next() for _ in range(min(args.accumulate, left))]
        items = sum(batch.supervised for batch in batches)
        losses.append(0.0)
        for batch in batches:
            logits = model(input_ids=torch.as_tensor(batch.tokens).long()).logits
            labels = torch.as_tensor(batch.labels).long().flatten()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels, reduction="sum") / items
            loss.backward()
            losses[-1] += loss.item()
        torch.nn.utils.clip_grad_norm_(trained, args.clip)
        adamw.step()
        schedule.step()
        adamw.zero_grad()
    return losses


def test_members_of_a_shared_process_lose_what_peft_loses_on_their_data_alone(
    person: Callable[..., Person], base: Path
) -> None:
    members = [
        person(0, lr=3e-3, schedule="cosine", warmup_percent=20.0, epochs=3),
        person(1, rank=2, accumulate=2, clip=0.1, schedule="linear", weight_decay=0.1, batch=3),
        person(2, rank=6, targets=("o_proj", "gate_proj", "k_proj"), schedule="constant", batch=1, seed=5),
    ]
    train_members(Gathering(members))
    for one in members:
        losses = [point["loss"] for point in one.training["curve"]["points"]]
        assert losses == pytest.approx(by_peft(base, one), rel=1e-5)
