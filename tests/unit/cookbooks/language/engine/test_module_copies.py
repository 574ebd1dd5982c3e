"""Embeddings and heads that are trained beside adapters (`modules_to_save`), as in PEFT, on both paths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stoker.core.errors import BadInput
from tests.later import imported_later
from tests.unit.cookbooks.language.engine.bases import made_base

with imported_later():
    import torch

    from stoker.cookbooks.language.compute.banks import fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import BaseWeights, FrozenBase, load_base
    from stoker.cookbooks.language.compute.general_base import GeneralBase
    from stoker.cookbooks.language.compute.module_copies import chosen_modules
    from stoker.cookbooks.language.compute.passes import AdapterSlotAnswers, AdapterSlotRows
    from stoker.cookbooks.language.compute.slots import Slots
    from stoker.cookbooks.language.sample import slot_logits
    from tests.unit.cookbooks.language.engine.general_bases import loaded, slots_of, three_unlike
    from tests.unit.cookbooks.language.engine.peft_alone import peft_model, peft_trained, some_batches
    from tests.unit.cookbooks.language.engine.test_engine_equals_peft import four_unlike
    from tests.unit.cookbooks.language.engine.trained_together import Member, cosine, room_for, same_bits, train

STEPS = 50
FEW_STEPS = 4
# PEFT tells that copies of a tied embedding and head go separate ways, as they do here.
pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")


def begun(base: FrozenBase, words: tuple[str, ...] = ("*",), steps: int = FEW_STEPS) -> tuple[Slots, list[Member]]:
    """Return three members in their slots, one of them with magnitudes, and all with copies of the same modules."""
    members = three_unlike(base, steps) if isinstance(base, GeneralBase) else four_unlike(steps)[:3]
    whole = tuple(one.name for one in chosen_modules(words, base.outer_modules(), "this"))
    for number, one in enumerate(members):
        one.spec = replace(one.spec, whole=whole, dora=number == 1)
    if isinstance(base, GeneralBase):
        return slots_of(base, members), members
    assert isinstance(base, BaseWeights)
    return room_for(base, members), members


def trained(slots: Slots, members: list[Member], steps: int = FEW_STEPS) -> Slots:
    train(slots, dict(enumerate(members)), range(steps))
    return slots


@pytest.mark.parametrize(
    ("name", "words", "steps"),
    [
        ("llama", ("*",), STEPS),
        ("llama", ("embed_tokens",), 10),
        ("qwen2, biases", ("lm_head",), 10),
        ("qwen3, norms of heads", ("*",), 10),
    ],
)
def test_copies_are_trained_as_in_peft(name: str, words: tuple[str, ...], steps: int, tmp_path: Path) -> None:
    _check(tmp_path, load_base(made_base(tmp_path, name)), words, steps)


# GPT-2's head is its embedding, Gemma 3 scales its embedding, Phi's head has a bias, Granite divides its logits.
@pytest.mark.parametrize(
    ("name", "words", "steps"),
    [
        ("gpt2", ("wte", "lm_head"), STEPS),
        ("gpt2", ("wte",), FEW_STEPS),
        ("gemma3_text", ("*",), FEW_STEPS),
        ("phi", ("*",), FEW_STEPS),
        ("granite", ("lm_head",), FEW_STEPS),
        ("gpt_neox", ("*",), FEW_STEPS),
    ],
)
def test_over_a_module_of_transformers_too(name: str, words: tuple[str, ...], steps: int, tmp_path: Path) -> None:
    _check(tmp_path, loaded(tmp_path, name), words, steps)


def _check(folder: Path, base: FrozenBase, words: tuple[str, ...], steps: int) -> None:
    slots, members = begun(base, words, steps)
    references = [
        peft_trained(
            peft_model(folder, fresh_adapter(base.shape, one.spec)),
            one.batches, one.rates, one.optim, accumulate=one.accumulate,
        )
        for one in members
    ]  # fmt: skip
    trained(slots, members, steps)
    originals = {one.name: one.parts for one in base.outer_modules()}
    for slot, (losses, weights) in enumerate(references):
        found = slots.weights(slot)
        assert members[slot].losses == pytest.approx(losses, rel=1e-5)
        assert found.keys() == weights.keys()
        assert cosine(found, weights) >= 0.99999
        for name in members[slot].spec.whole:
            for mine, theirs, original in zip(found[name], weights[name], originals[name], strict=True):
                assert torch.allclose(mine, theirs, atol=1e-4)
                assert not torch.allclose(mine, original.cpu(), atol=1e-3)


@pytest.mark.parametrize("is_general", [False, True])
def test_a_poisoned_copy_leaves_the_others_equal_to_the_bit(is_general: bool, tmp_path: Path) -> None:
    base = loaded(tmp_path, "gemma2") if is_general else load_base(made_base(tmp_path, "llama"))
    healthy = trained(*begun(base))
    slots, members = begun(base)
    adapter = slots.adapter(1)
    for name in members[1].spec.whole:
        adapter.weights[name] = tuple(part * float("nan") for part in adapter.weights[name])
    slots.load(1, adapter, members[1].optim)
    trained(slots, members)
    assert members[1].finite == [False] * FEW_STEPS
    assert all(same_bits(slots.adapter(slot), healthy.adapter(slot)) for slot in (0, 2))


@pytest.mark.parametrize("is_general", [False, True])
def test_members_learn_together_what_they_learn_alone_and_go_on_elsewhere(is_general: bool, tmp_path: Path) -> None:
    base = loaded(tmp_path, "gemma2") if is_general else load_base(made_base(tmp_path, "llama"))
    slots, members = begun(base)
    trained(slots, members)
    halves, again = begun(base)
    # Some of the slots in a pass.
    for number in (0, 2, 1):
        train(halves, {number: again[number]}, range(FEW_STEPS // 2))
    after, _ = begun(base)
    for slot, one in enumerate(again):
        after.load(slot, halves.adapter(slot), one.optim)
    train(after, dict(enumerate(again)), range(FEW_STEPS // 2, FEW_STEPS))
    for slot, one in enumerate(again):
        assert one.losses == pytest.approx(members[slot].losses, rel=1e-5)
        assert cosine(after.weights(slot), slots.weights(slot)) >= 0.99999


@pytest.mark.parametrize("is_general", [False, True])
def test_one_without_copies_answers_beside_others_as_it_does_alone(is_general: bool, tmp_path: Path) -> None:
    base = loaded(tmp_path, "gpt2") if is_general else load_base(made_base(tmp_path, "llama"))
    tokens = torch.randint(0, 256, (1, 12), generator=torch.Generator().manual_seed(0))
    slots, members = begun(base)
    targets = members[0].spec.targets
    plain = Slots(base, count=1, rank=1, targets=targets).logits(0, tokens)
    fresh = slots.logits(0, tokens)
    assert torch.allclose(fresh, plain, atol=1e-6)
    trained(slots, members)
    assert not torch.allclose(slots.logits(0, tokens), plain, atol=1e-4)
    logits = slot_logits(slots, 0)
    for length in (5, 6, 7, 12):
        assert (logits(tokens[:, :length]) - slots.logits(0, tokens[:, :length])).abs().max() <= 1e-5
    # The base alone, in a slot that was never loaded, and in one that was cleared.
    beside = Slots(base, count=2, rank=4, targets=targets, whole=members[0].spec.whole)
    beside.load(0, slots.adapter(0))
    assert torch.allclose(beside.logits(1, tokens), plain, atol=1e-6)
    beside.clear(0)
    assert torch.allclose(beside.logits(0, tokens), plain, atol=1e-6)


@pytest.mark.parametrize("is_general", [False, True])
def test_pairs_give_a_head_the_gradient_that_autograd_gives_it(is_general: bool, tmp_path: Path) -> None:
    base = loaded(tmp_path, "gpt2") if is_general else load_base(made_base(tmp_path, "llama"))
    batch = some_batches(5, 1, rows=2, shortest=8, longest=8)[0]
    tokens, same = batch.padded()
    labels = torch.cat([same[:, 1:], torch.full((2, 1), -100)], dim=1)
    places = torch.where(labels >= 0, torch.arange(2)[:, None], -1)

    def loss(slots: Slots, *, updates: bool, reference: bool = True) -> float:
        answers = AdapterSlotAnswers(
            objective="dpo-sigmoid", places=places[None], pair_shares=torch.ones(1, 1), token_shares=(0.0,),
            betas=(0.5,), reference=torch.tensor([[-30.0, -31.0]]) if reference else None,
        )  # fmt: skip
        rows = AdapterSlotRows(
            slots=(0,), tokens=tokens[None], labels=labels[None], denominators=(0.0,), answers=answers
        )
        return slots.step(rows, update=[updates], rates=[1e-3]).losses[0]

    slots, members = begun(base)
    one = Slots(base, count=1, rank=4, targets=members[0].spec.targets, whole=members[0].spec.whole)
    one.load(0, slots.adapter(0))
    losses = [loss(one, updates=True) for _ in range(6)]
    assert losses == sorted(losses, reverse=True)
    # By differences: a step along one weight of the head.
    name = members[0].spec.whole[-1]
    row = one._state.copies[-1].gathered[0]
    one.forget((0,))
    loss(one, updates=False)
    gradient = row.clone()
    at = int(gradient.abs().argmax())
    found = []
    for step in (-1e-2, 1e-2):
        adapter = one.adapter(0)
        adapter.weights[name][0].view(-1)[at] += step
        other = Slots(base, count=1, rank=4, targets=members[0].spec.targets, whole=members[0].spec.whole)
        other.load(0, adapter)
        found.append(loss(other, updates=False))
    assert (found[1] - found[0]) / 2e-2 == pytest.approx(float(gradient[at]), rel=2e-2)


def test_words_that_mean_neither_embedding_nor_head_are_told_with_what_there_is(tmp_path: Path) -> None:
    base = load_base(made_base(tmp_path, "llama"))
    modules = base.outer_modules()
    assert [one.name for one in chosen_modules(("lm_head", "model.embed_tokens"), modules, "llama")] == [
        "model.embed_tokens",
        "lm_head",
    ]
    for word in ("norm", "all-linear", "tokens"):
        with pytest.raises(BadInput, match=f"no module '{word}'") as refused:
            chosen_modules((word,), modules, "llama")
        assert refused.value.hint == "its embedding and its head are model.embed_tokens, lm_head"


def test_a_copy_with_other_parameters_than_the_base_s_is_refused(tmp_path: Path) -> None:
    slots, members = begun(load_base(made_base(tmp_path, "llama")), ("lm_head",))
    adapter = slots.adapter(0)
    (head,) = adapter.weights["lm_head"]
    adapter.weights["lm_head"] = (head, torch.zeros(len(head)))
    with pytest.raises(BadInput, match="an adapter's copy of lm_head has other parameters than the base"):
        slots.load(0, adapter, members[0].optim)
