"""The general path: adapters over transformers' own modules learn what PEFT's learn alone, whatever the family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.later import imported_later

with imported_later():
    import torch

    from stoker.cookbooks.language.compute.banks import fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import packed
    from stoker.cookbooks.language.compute.general_base import load_general
    from stoker.cookbooks.language.compute.passes import AdapterSlotRows
    from tests.unit.cookbooks.language.engine.general_bases import CONFIGS, loaded, slots_of, three_unlike
    from tests.unit.cookbooks.language.engine.peft_alone import peft_model, peft_trained, some_batches
    from tests.unit.cookbooks.language.engine.trained_together import cosine, same_bits, train

FAMILIES = (
    "gpt2", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "olmo2", "granite", "smollm3", "starcoder2", "gpt_neox",
    "mixtral", "qwen2_moe",
)  # fmt: skip
STEPS = 4
MANY_STEPS = 50


@pytest.mark.parametrize("name", FAMILIES)
def test_adapters_over_any_family_learn_what_they_learn_in_peft(name: str, tmp_path: Path) -> None:
    _check(tmp_path, name, STEPS, members=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_adapters_over_any_family_learn_what_they_learn_in_peft_for_fifty_steps(name: str, tmp_path: Path) -> None:
    _check(tmp_path, name, MANY_STEPS, members=3)


def _check(folder: Path, name: str, steps: int, members: int) -> None:
    base = loaded(folder, name)
    everyone = three_unlike(base, steps)[:members]
    references = [
        peft_trained(
            peft_model(folder, fresh_adapter(base.shape, one.spec)),
            one.batches, one.rates, one.optim, accumulate=one.accumulate,
        )
        for one in everyone
    ]  # fmt: skip
    slots = slots_of(base, everyone)
    train(slots, dict(enumerate(everyone)), range(steps))
    for slot, (losses, weights) in enumerate(references):
        assert everyone[slot].losses == pytest.approx(losses, rel=1e-5)
        assert weights.keys() == slots.weights(slot).keys()
        assert cosine(slots.weights(slot), weights) >= 0.99999


def test_families_and_their_configs_are_the_same_list() -> None:
    assert tuple(CONFIGS) == FAMILIES


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_members_learn_together_what_they_learn_alone(name: str, tmp_path: Path) -> None:
    base = loaded(tmp_path, name)
    crowd = three_unlike(base, STEPS)
    train(slots_of(base, crowd), dict(enumerate(crowd)), range(STEPS))
    for number, alone in enumerate(three_unlike(base, STEPS)):
        train(slots_of(base, [alone]), {0: alone}, range(STEPS))
        assert crowd[number].losses == pytest.approx(alone.losses, rel=1e-5)


def test_a_loss_in_chunks_teaches_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = loaded(tmp_path, "gemma2")
    whole, parts = three_unlike(base, STEPS), three_unlike(base, STEPS)
    train(slots_of(base, whole), dict(enumerate(whole)), range(STEPS))
    monkeypatch.setattr("stoker.cookbooks.language.compute.general_base.chunk_tokens", lambda _words, _tokens: 5)
    train(slots_of(base, parts), dict(enumerate(parts)), range(STEPS))
    for one, other in zip(whole, parts, strict=True):
        assert one.losses == pytest.approx(other.losses, rel=1e-6)


@pytest.mark.parametrize("base_dtype", ["nf4", "int8"])
@pytest.mark.parametrize("name", ["gpt2", "gemma"])
def test_adapters_over_few_bits_are_those_over_the_rounded_weights(name: str, base_dtype: Any, tmp_path: Path) -> None:
    whole = loaded(tmp_path / "base", name)
    few = load_general(tmp_path / "base", device="cpu", dtype="float32", base_dtype=base_dtype)
    for layer in whole._layers:
        rounded = torch.empty_like(layer.weight)
        whole.dequantise(packed(layer.weight, base_dtype), rounded)
        layer.weight.copy_(rounded)
    assert few.size_bytes < 0.8 * whole.size_bytes
    # The second has adapters on some matrices only.
    members, same = three_unlike(whole, STEPS)[:2], three_unlike(few, STEPS)[:2]
    for base, everyone in ((whole, members), (few, same)):
        train(slots_of(base, everyone), dict(enumerate(everyone)), range(STEPS))
        train(slots_of(base, everyone[1:]), {0: everyone[1]}, range(STEPS))
    for one, other in zip(members, same, strict=True):
        assert one.losses == pytest.approx(other.losses, rel=1e-6)


def test_a_poisoned_member_leaves_the_others_equal_to_the_bit(tmp_path: Path) -> None:
    base = loaded(tmp_path, "gemma")
    healthy, poisoned = three_unlike(base, STEPS), three_unlike(base, STEPS)
    slots, other = slots_of(base, healthy), slots_of(base, poisoned)
    train(slots, dict(enumerate(healthy)), range(STEPS))
    adapter = other.adapter(1)
    name, (a, b) = next(iter(adapter.weights.items()))
    adapter.weights[name] = (a * float("nan"), b)
    other.load(1, adapter, poisoned[1].optim)
    train(other, dict(enumerate(poisoned)), range(STEPS))
    assert poisoned[1].finite == [False] * STEPS
    assert all(same_bits(slots.adapter(slot), other.adapter(slot)) for slot in (0, 2))


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_sequences_lose_what_they_lose_one_by_one(name: str, tmp_path: Path) -> None:
    base = loaded(tmp_path, name)
    assert base.packs
    member = three_unlike(base, 1)[0]
    slots = slots_of(base, [member])
    batch = some_batches(9, 1, rows=4)[0]
    alone = 0.0
    tokens, labels, segments = [], [], []
    for number, (sequence, learned) in enumerate(zip(batch.sequences, batch.learned, strict=True)):
        after = torch.cat([torch.where(learned, sequence, -100)[1:], torch.tensor([-100])])
        tokens.append(sequence)
        labels.append(after)
        segments.append(torch.full_like(sequence, number))
        rows = AdapterSlotRows(slots=(0,), tokens=sequence[None, None], labels=after[None, None], denominators=[1])
        alone += slots.losses(rows).read[0][0]
    packed = AdapterSlotRows(
        slots=(0,), tokens=torch.cat(tokens)[None, None], labels=torch.cat(labels)[None, None],
        segments=torch.cat(segments)[None, None], denominators=[1],
    )  # fmt: skip
    assert slots.losses(packed).read[0][0] == pytest.approx(alone, rel=1e-5)
