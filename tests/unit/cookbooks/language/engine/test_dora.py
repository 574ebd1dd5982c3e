"""DoRA: outputs of adapted matrices have trained magnitudes, which are those of PEFT on both paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import BadInput
from tests.later import imported_later
from tests.unit.cookbooks.language.engine.bases import made_base

with imported_later():
    import torch

    from stoker.cookbooks.language.compute.banks import fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import BaseWeights, FrozenBase, load_base, packed
    from stoker.cookbooks.language.compute.general_base import GeneralBase, load_general
    from stoker.cookbooks.language.compute.slots import Slots
    from stoker.cookbooks.language.sample import slot_logits
    from tests.unit.cookbooks.language.engine.general_bases import loaded, slots_of, three_unlike
    from tests.unit.cookbooks.language.engine.peft_alone import SameDropout, peft_model, peft_trained
    from tests.unit.cookbooks.language.engine.test_engine_equals_peft import four_unlike
    from tests.unit.cookbooks.language.engine.test_four_bit_base import rounded
    from tests.unit.cookbooks.language.engine.trained_together import ALL, Member, cosine, room_for, same_bits, train

STEPS = 50
FEW_STEPS = 4
FAST = ("llama", "qwen2, biases", "qwen3, norms of heads")
GENERAL = ("gpt2", "gemma2", "phi")


def weighed(members: list[Member], *but: int) -> list[Member]:
    """Give all members magnitudes, but some."""
    for number, one in enumerate(members):
        one.spec = replace(one.spec, dora=number not in but)
    return members


def begun(base: FrozenBase, *but: int) -> tuple[Slots, list[Member]]:
    """Return three members in their slots, with magnitudes except for some."""
    if isinstance(base, GeneralBase):
        members = weighed(three_unlike(base, FEW_STEPS), *but)
        return slots_of(base, members), members
    assert isinstance(base, BaseWeights)
    members = weighed(four_unlike(FEW_STEPS)[:3], *but)
    return room_for(base, members), members


def trained(slots: Slots, members: list[Member]) -> Slots:
    train(slots, dict(enumerate(members)), range(FEW_STEPS))
    return slots


def check(folder: Path, base: FrozenBase, slots: Slots, members: list[Member], steps: int) -> None:
    """Train members together, and each alone in PEFT."""
    references = [
        peft_trained(
            peft_model(folder, fresh_adapter(base.shape, one.spec)),
            one.batches, one.rates, one.optim, accumulate=one.accumulate,
        )
        for one in members
    ]  # fmt: skip
    before = [slots.weights(slot) for slot in range(len(members))]
    train(slots, dict(enumerate(members)), range(steps))
    for slot, (losses, weights) in enumerate(references):
        found = slots.weights(slot)
        assert members[slot].losses == pytest.approx(losses, rel=1e-5)
        assert found.keys() == weights.keys()
        assert cosine(found, weights) >= 0.99999
        for name, (_, _, *magnitudes) in found.items():
            assert len(magnitudes) == members[slot].spec.dora
            for mine in magnitudes:
                assert torch.allclose(mine, weights[name][2], rtol=1e-5, atol=1e-5)
                assert not torch.allclose(mine, before[slot][name][2], rtol=1e-4)


@pytest.mark.parametrize("name", FAST)
def test_magnitudes_are_learned_as_in_peft_beside_members_without_any(name: str, tmp_path: Path) -> None:
    folder, steps = made_base(tmp_path, name), STEPS if name == FAST[0] else STEPS // 5
    base, members = load_base(folder), weighed(four_unlike(steps), 2)
    # LoRA+ for a member with magnitudes, which PEFT trains at the rate of B.
    assert members[0].optim.b_rate > 1
    check(folder, base, room_for(base, members), members, steps)


@pytest.mark.parametrize("name", GENERAL)
def test_over_a_module_of_transformers_too(name: str, tmp_path: Path) -> None:
    base, steps = loaded(tmp_path, name), STEPS if name == GENERAL[0] else FEW_STEPS
    members = weighed(three_unlike(base, steps), 2)
    check(tmp_path, base, slots_of(base, members), members, steps)


def fast_place(name: str) -> int:
    """Return the place of a matrix in our own blocks, by which its dropout is drawn."""
    groups = ("q_proj k_proj v_proj", "o_proj", "gate_proj up_proj", "down_proj")
    group = next(number for number, names in enumerate(groups) if name.rpartition(".")[2] in names.split())
    return int(name.split(".")[2]) * len(groups) + group


@pytest.mark.parametrize("is_general", [False, True])
def test_dropout_reaches_the_frozen_product_too_as_in_peft(is_general: bool, tmp_path: Path) -> None:
    base: Any
    if is_general:
        base = loaded(tmp_path, "gemma2")
        members = weighed(three_unlike(base, FEW_STEPS), 2)
        names = [one.name for one in base.shape.matrices]
        place: Callable[[str], int] = names.index
    else:
        base = load_base(made_base(tmp_path, "qwen2, biases"))
        members, place = weighed(four_unlike(FEW_STEPS)[:3], 2), fast_place
    for one, share in zip(members, (0.3, 0.0, 0.2), strict=True):
        one.spec, one.accumulate = replace(one.spec, dropout=share), 1
        one.rates = [3e-3] * FEW_STEPS
        # The engine draws for a row's place in its pass: without padding of others PEFT sees the same.
        one.batches = [replace(two, sequences=[s[:4] for s in two.sequences], learned=[torch.ones(4) > 0] * 2)
                       for two in one.batches]  # fmt: skip
    references = []
    for one in members:
        model = peft_model(tmp_path, fresh_adapter(base.shape, one.spec)).train()
        for name, module in model.named_modules():
            if hasattr(module, "lora_A") and one.spec.dropout:
                at = place(name.removeprefix("base_model.model."))
                module.lora_dropout["default"] = SameDropout(one.spec.dropout, one.spec.seed, at)
        references.append(peft_trained(model, one.batches, one.rates, one.optim))
    slots = slots_of(base, members) if is_general else room_for(base, members)
    train(slots, dict(enumerate(members)), range(FEW_STEPS))
    for slot, (losses, weights) in enumerate(references):
        assert members[slot].losses == pytest.approx(losses, rel=1e-5)
        assert cosine(slots.weights(slot), weights) >= 0.99999


def test_magnitudes_that_are_no_numbers_leave_the_others_equal_to_the_bit(tmp_path: Path) -> None:
    for base in (load_base(made_base(tmp_path / "fast", "llama")), loaded(tmp_path / "general", "gpt2")):
        healthy = trained(*begun(base, 2))
        slots, members = begun(base, 2)
        adapter = slots.adapter(1)
        name, (a, b, m) = next(iter(adapter.weights.items()))
        adapter.weights[name] = (a, b, m * float("nan"))
        slots.load(1, adapter, members[1].optim)
        trained(slots, members)
        assert members[1].finite == [False] * FEW_STEPS
        assert all(same_bits(slots.adapter(slot), healthy.adapter(slot)) for slot in (0, 2))


@pytest.mark.parametrize("base_dtype", ["nf4", "int8"])
def test_norms_are_those_of_the_dequantised_weights(base_dtype: Any, tmp_path: Path) -> None:
    folder = made_base(tmp_path / "fast", "llama")
    pairs: list[tuple[FrozenBase, FrozenBase]] = []
    if base_dtype == "nf4":
        whole = load_base(rounded(folder, tmp_path / "rounded"))
        pairs.append((load_base(folder, base_dtype="nf4"), whole))
    general = loaded(tmp_path / "general", "gpt2")
    few = load_general(tmp_path / "general", device="cpu", dtype="float32", base_dtype=base_dtype)
    for layer in general._layers:
        exact = torch.empty_like(layer.weight)
        general.dequantise(packed(layer.weight, base_dtype), exact)
        layer.weight.copy_(exact)
    pairs.append((few, general))
    for one, other in pairs:
        mine, theirs = trained(*begun(one)), trained(*begun(other))
        for slot in range(mine.count):
            assert cosine(mine.weights(slot), theirs.weights(slot)) >= 0.999999


def test_a_fresh_one_changes_nothing_and_one_token_at_a_time_gives_the_same_logits(tmp_path: Path) -> None:
    tokens = torch.randint(0, 256, (1, 12), generator=torch.Generator().manual_seed(0))
    for base in (load_base(made_base(tmp_path / "fast", "llama")), loaded(tmp_path / "general", "gpt2")):
        slots, members = begun(base)
        plain = Slots(base, count=1, rank=1, targets=members[0].spec.targets).logits(0, tokens)
        assert torch.allclose(slots.logits(0, tokens), plain, atol=1e-6)
        trained(slots, members)
        assert not torch.allclose(slots.logits(0, tokens), plain, atol=1e-4)
        logits = slot_logits(slots, 0)
        for length in (5, 6, 7, 12):
            assert (logits(tokens[:, :length]) - slots.logits(0, tokens[:, :length])).abs().max() <= 1e-5


def test_it_goes_on_elsewhere_to_the_bit(tmp_path: Path) -> None:
    base = load_base(made_base(tmp_path, "llama"))
    whole, halves = weighed(four_unlike(FEW_STEPS)[:2]), weighed(four_unlike(FEW_STEPS)[:2])
    slots, before, after = (room_for(base, one) for one in (whole, halves, halves))
    train(slots, dict(enumerate(whole)), range(FEW_STEPS))
    train(before, dict(enumerate(halves)), range(FEW_STEPS // 2))
    for slot, one in enumerate(halves):
        after.load(slot, before.adapter(slot), one.optim)
    train(after, dict(enumerate(halves)), range(FEW_STEPS // 2, FEW_STEPS))
    assert [one.losses for one in halves] == [one.losses for one in whole]
    assert all(same_bits(slots.adapter(slot), after.adapter(slot)) for slot in range(2))


def test_an_output_without_a_direction_is_refused(tmp_path: Path) -> None:
    base = load_base(made_base(tmp_path, "llama"))
    base.layers[1].o[3] = 0
    slots = Slots(base, count=1, rank=7, targets=ALL, dora=True)
    weighed_all = weighed(four_unlike(FEW_STEPS))
    with pytest.raises(BadInput, match="an output whose weights are all zero"):
        slots.load(0, weighed_all[2].fresh(base))
    # Another matrix of the same group may have one.
    slots.load(0, weighed_all[1].fresh(base))
