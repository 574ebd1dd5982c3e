from __future__ import annotations

import math
from pathlib import Path

import pytest

from stoker.cookbooks.language.peft import write_adapter
from tests.later import imported_later
from tests.unit.cookbooks.language.engine.bases import BASES, made_base

with imported_later():
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, Optim
    from stoker.cookbooks.language.compute.base_weights import load_base
    from stoker.cookbooks.language.compute.passes import AdapterSlotRows
    from stoker.cookbooks.language.compute.slots import Slots
    from tests.unit.cookbooks.language.engine.peft_alone import peft_model, peft_trained, some_batches
    from tests.unit.cookbooks.language.engine.trained_together import ALL, Member, cosine, room_for, train


STEPS = 50
FEW_STEPS = 20


def cosine_schedule(highest: float, count: int) -> list[float]:
    """A warm-up over a tenth, then half a cosine, as transformers has it."""
    warm = count // 10
    return [
        highest * (step / warm if step < warm else 0.5 * (1 + math.cos(math.pi * (step - warm) / (count - warm))))
        for step in range(count)
    ]


def four_unlike(steps: int = STEPS) -> list[Member]:
    """Members that differ in all that may differ."""
    return [
        Member(
            spec=AdapterSpec(rank=4, alpha=8.0, targets=ALL, seed=1),
            batches=some_batches(1, steps),
            rates=[1e-3] * steps,
            optim=Optim(b_rate=4.0),
        ),
        Member(
            spec=AdapterSpec(rank=2, alpha=3.0, targets=("q_proj", "v_proj"), rslora=True, seed=2),
            batches=some_batches(2, steps, longest=9),
            rates=cosine_schedule(1e-2, steps),
            optim=Optim(clip=0.05, weight_decay=0.1),
        ),
        Member(
            spec=AdapterSpec(rank=7, alpha=7.0, targets=("o_proj", "gate_proj", "down_proj"), seed=3),
            batches=some_batches(3, steps),
            rates=cosine_schedule(3e-3, steps // 2),
            optim=Optim(betas=(0.8, 0.95), eps=1e-6, clip=1.0),
            accumulate=2,
        ),
        Member(
            spec=AdapterSpec(rank=1, alpha=16.0, targets=("up_proj", "k_proj"), seed=4),
            batches=some_batches(4, steps, shortest=2, longest=4),
            rates=[3e-3] * (steps // 5),
            optim=Optim(weight_decay=0.01),
            accumulate=5,
        ),
    ]


@pytest.mark.parametrize("name", BASES)
def test_steps_in_shared_process_lose_what_peft_loses_alone(name: str, tmp_path: Path) -> None:
    folder = made_base(tmp_path, name)
    base = load_base(folder)
    # On the first base all of them and fifty steps, on the others one that has everything, and company for it.
    members = four_unlike() if name == "llama" else four_unlike(FEW_STEPS)[:2]
    checked = members if name == "llama" else members[:1]
    references = [
        peft_trained(peft_model(folder, one.fresh(base)), one.batches, one.rates, one.optim, accumulate=one.accumulate)
        for one in checked
    ]
    slots = room_for(base, members)
    train(slots, dict(enumerate(members)), range(STEPS if name == "llama" else FEW_STEPS))
    for slot, (losses, weights) in enumerate(references):
        assert members[slot].losses == pytest.approx(losses, rel=1e-5)
        assert cosine(slots.adapter(slot).weights, weights) >= 0.99999


def test_what_is_exported_gives_the_same_logits_in_peft(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = made_base(tmp_path / "base", "qwen3, norms of heads")
    members = four_unlike()[:2]
    base = load_base(folder)
    slots = room_for(base, members)
    train(slots, dict(enumerate(members)), range(5))
    tokens = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))
    for slot, member in enumerate(members):
        out = tmp_path / f"adapter-{slot}"
        out.mkdir()
        write_adapter(out, member.spec, slots.adapter(slot).weights, base_name=str(folder))
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), out)
        theirs = model(input_ids=tokens).logits[:, -1]
        plain = slots.logits(slot, tokens)
        assert (plain - theirs).abs().max() <= 1e-5
        with model.disable_adapter():
            assert (plain - model(input_ids=tokens).logits[:, -1]).abs().max() > 1e-4


@pytest.mark.parametrize(
    "said",
    [
        {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}},
        {"rope_theta": 500.0, "attention_bias": False, "rms_norm_eps": 1e-3},
    ],
    ids=["linear rope", "yarn rope", "theta and eps"],
)
def test_a_base_says_what_transformers_says(said: dict[str, object], tmp_path: Path) -> None:
    import json

    from transformers import AutoModelForCausalLM

    folder = made_base(tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | said))
    tokens = torch.randint(0, 256, (2, 40), generator=torch.Generator().manual_seed(0))
    theirs = AutoModelForCausalLM.from_pretrained(folder)(input_ids=tokens).logits[:, -1]
    ours = Slots(load_base(folder), count=1, rank=1, targets=("q_proj",)).logits(0, tokens)
    assert (ours - theirs).abs().max() <= 1e-5


def test_packed_sequences_lose_what_they_lose_one_by_one(tmp_path: Path) -> None:
    folder = made_base(tmp_path, "mistral, window")
    base = load_base(folder)
    member = four_unlike()[0]
    batch = some_batches(9, 1, rows=5)[0]
    slots = room_for(base, [member])
    alone, denominator = 0.0, batch.supervised
    tokens, labels, segments = [], [], []
    for number, (sequence, learned) in enumerate(zip(batch.sequences, batch.learned, strict=True)):
        after = torch.cat([torch.where(learned, sequence, -100)[1:], torch.tensor([-100])])
        tokens.append(sequence)
        labels.append(after)
        segments.append(torch.full_like(sequence, number))
        sums = slots.losses(
            AdapterSlotRows(slots=(0,), tokens=sequence[None, None], labels=after[None, None], denominators=[1])
        )
        alone += sums.read[0][0]
    packed = AdapterSlotRows(
        slots=(0,),
        tokens=torch.cat(tokens)[None, None],
        labels=torch.cat(labels)[None, None],
        segments=torch.cat(segments)[None, None],
        denominators=[denominator],
    )
    model = peft_model(folder, member.fresh(base))
    reference, weights = peft_trained(model, [batch], [1e-3], member.optim)
    assert slots.step(packed, update=[True], rates=[1e-3]).losses == pytest.approx([alone / denominator], rel=1e-6)
    assert reference == pytest.approx([alone / denominator], rel=1e-5)
    assert cosine(slots.adapter(0).weights, weights) >= 0.99999
