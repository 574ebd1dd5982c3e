from __future__ import annotations

from pathlib import Path

import pytest

from tests.later import imported_later
from tests.unit.cookbooks.language.engine.bases import made_base

with imported_later():
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, AdapterState, Optim
    from stoker.cookbooks.language.compute.base_weights import BaseWeights, load_base
    from stoker.cookbooks.language.compute.passes import AdapterSlotRows
    from stoker.cookbooks.language.compute.slots import Slots
    from tests.unit.cookbooks.language.engine.peft_alone import some_batches
    from tests.unit.cookbooks.language.engine.trained_together import ALL, Member, room_for, same_bits, train


STEPS = 8


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseWeights:
    return load_base(made_base(tmp_path_factory.mktemp("base"), "llama"))


def member(seed: int, *, rank: int = 4, dropout: float = 0.0, longest: int = 16, accumulate: int = 1) -> Member:
    return Member(
        spec=AdapterSpec(rank=rank, alpha=2.0 * rank, targets=ALL, seed=seed, dropout=dropout),
        batches=some_batches(seed, STEPS, longest=longest),
        rates=[1e-2] * STEPS,
        optim=Optim(clip=1.0),
        accumulate=accumulate,
    )


def adapters(slots: Slots) -> list[AdapterState]:
    return [slots.adapter(slot) for slot in range(slots.count)]


def trained(base: BaseWeights, members: list[Member]) -> list[AdapterState]:
    slots = room_for(base, members)
    train(slots, dict(enumerate(members)), range(STEPS), length=16)
    return adapters(slots)


def poison(slots: Slots, slot: int) -> None:
    sick = slots.adapter(slot)
    name = next(iter(sick.weights))
    sick.weights[name][1].fill_(float("nan"))
    slots.load(slot, sick)


def test_a_poisoned_member_is_told_and_left_alone_and_the_others_stay_equal_to_the_bit(base: BaseWeights) -> None:
    healthy = trained(base, [member(1), member(2), member(3)])
    members = [member(1), member(2), member(3)]
    slots = room_for(base, members)
    kept: list[AdapterState] = []

    def between(number: int) -> None:
        if number == 3:
            poison(slots, 1)
            kept.append(slots.adapter(1))

    train(slots, dict(enumerate(members)), range(STEPS), length=16, between=between)
    assert members[1].finite == [True] * 3 + [False] * (STEPS - 3)
    assert all(one.finite == [True] * STEPS for one in (members[0], members[2]))
    assert same_bits(slots.adapter(0), healthy[0])
    assert same_bits(slots.adapter(2), healthy[2])
    sick = slots.adapter(1)
    name = list(sick.weights)[-1]
    assert sick.steps == kept[0].steps == 3
    assert torch.equal(sick.weights[name][1], kept[0].weights[name][1])
    assert torch.equal(sick.second[name][1], kept[0].second[name][1])


def test_a_gradient_that_is_no_number_does_not_outlive_its_update(base: BaseWeights) -> None:
    members = [member(1, accumulate=2), member(2, accumulate=2)]
    slots = room_for(base, members)
    well = slots.adapter(0)
    poison(slots, 0)
    train(slots, dict(enumerate(members)), range(2))
    slots.load(0, well)
    train(slots, dict(enumerate(members)), range(2, 4))
    assert members[0].finite == [False, False, True, True]


def test_other_data_of_one_member_change_no_bit_of_the_others(base: BaseWeights) -> None:
    one = trained(base, [member(1), member(2), member(3)])
    other = trained(base, [member(1), member(7), member(3)])
    assert same_bits(one[0], other[0])
    assert same_bits(one[2], other[2])
    assert not same_bits(one[1], other[1])


def test_one_who_leaves_and_one_who_comes_change_no_bit_of_the_others_while_slots_stay(base: BaseWeights) -> None:
    healthy = trained(base, [member(1), member(2), member(3)])
    members = [member(1), member(2), member(3)]
    slots = room_for(base, members)
    newcomer = member(9)

    def between(number: int) -> None:
        if number == 3:
            slots.clear(1)
        if number == 5:
            slots.load(1, newcomer.fresh(base), newcomer.optim)
        if number in {3, 5}:
            members[1].batches = newcomer.batches

    train(slots, dict(enumerate(members)), range(STEPS), length=16, between=between)
    assert same_bits(slots.adapter(0), healthy[0])
    assert same_bits(slots.adapter(2), healthy[2])
    assert slots.adapter(1).steps == STEPS - 5


def test_an_empty_slot_without_labels_does_no_harm_and_stays_empty(base: BaseWeights) -> None:
    slots = Slots(base, count=2, rank=4, targets=ALL)
    slots.load(0, member(1).fresh(base))
    tokens = torch.zeros(2, 1, 8, dtype=torch.int64)
    labels = torch.full_like(tokens, -100)
    labels[0] = 5
    result = slots.step(
        AdapterSlotRows(slots=(0, 1), tokens=tokens, labels=labels, denominators=[8, 0]),
        update=[True, False],
        rates=[1e-2, 0.0],
    )
    assert result.finite == [True, True]
    assert result.losses[1] == result.norms[1] == 0.0
    with pytest.raises(IndexError):
        slots.adapter(1)


def test_whoever_is_not_shown_is_not_moved(base: BaseWeights) -> None:
    members = [member(1), member(2), member(3)]
    slots = room_for(base, members)
    before = slots.adapter(1)
    train(slots, {0: members[0], 2: members[2]}, range(3))
    assert same_bits(slots.adapter(1), before)
    assert slots.adapter(0).steps == slots.adapter(2).steps == 3


def test_in_other_slots_and_other_shared_process_the_losses_are_the_same_within_a_hundred_thousandth(
    base: BaseWeights,
) -> None:
    alone = member(1)
    train(room_for(base, [alone]), {0: alone}, range(STEPS))
    crowd = [member(5, rank=9), member(6), member(1), member(7, rank=1)]
    train(room_for(base, crowd), dict(enumerate(crowd)), range(STEPS), length=21)
    assert crowd[2].losses == pytest.approx(alone.losses, rel=1e-5)


def test_dropout_hides_the_same_in_any_shared_process(base: BaseWeights) -> None:
    alone, again, plain = member(1, dropout=0.3, longest=9), member(1, dropout=0.3, longest=9), member(1, longest=9)
    train(room_for(base, [alone]), {0: alone}, range(STEPS))
    train(room_for(base, [plain]), {0: plain}, range(STEPS))
    # Others' longer rows lengthen its own.
    crowd = [member(5, dropout=0.5), again]
    train(room_for(base, crowd), dict(enumerate(crowd)), range(STEPS), length=16)
    assert again.losses == pytest.approx(alone.losses, rel=1e-5)
    assert plain.losses != pytest.approx(alone.losses, rel=1e-3)


def test_a_share_of_features_is_hidden_and_the_rest_is_scaled_up_on_average(base: BaseWeights) -> None:
    from stoker.cookbooks.language.compute.blocks import PassDropout, keys_of

    seeds = torch.tensor([1, 2])
    keys = keys_of(seeds, torch.zeros_like(seeds), seeds)
    dropping = PassDropout(shares=torch.tensor([0.25, 0.0]), keys=keys, length=32)
    shown = torch.ones(2, 64, 64)
    hidden = dropping.applied(shown, 3)
    assert float((hidden[0] == 0).float().mean()) == pytest.approx(0.25, abs=0.03)
    assert float(hidden[0].mean()) == pytest.approx(1.0, abs=0.03)
    assert torch.equal(hidden[1], shown[1])
    assert torch.equal(hidden, dropping.applied(shown, 3))
    assert not torch.equal(hidden, dropping.applied(shown, 4))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_an_adapter_taken_out_and_seated_again_elsewhere_goes_on_to_the_bit(base: BaseWeights, dropout: float) -> None:
    whole = [member(seed, dropout=dropout) for seed in (1, 2)]
    first = room_for(base, whole)
    train(first, dict(enumerate(whole)), range(STEPS), length=16)

    halves = [member(seed, dropout=dropout) for seed in (1, 2)]
    before = room_for(base, halves)
    train(before, dict(enumerate(halves)), range(STEPS // 2), length=16)
    after = room_for(base, halves)
    for slot, one in enumerate(halves):
        after.load(slot, before.adapter(slot), one.optim)
    train(after, dict(enumerate(halves)), range(STEPS // 2, STEPS), length=16)
    assert [one.losses for one in halves] == [one.losses for one in whole]
    assert all(same_bits(one, other) for one, other in zip(adapters(after), adapters(first), strict=True))


def test_what_was_gathered_can_be_forgotten_and_the_update_begun_anew(base: BaseWeights) -> None:
    members, again = [member(1, accumulate=2)], [member(1, accumulate=2)]
    slots, other = room_for(base, members), room_for(base, again)
    train(slots, {0: members[0]}, range(2))
    train(other, {0: again[0]}, range(1))
    other.forget((0,))
    again[0].losses.clear()
    train(other, {0: again[0]}, range(2))
    assert again[0].losses == members[0].losses
    assert same_bits(slots.adapter(0), other.adapter(0))


def test_several_small_passes_make_the_same_update_as_a_large_one(base: BaseWeights) -> None:
    large, small = member(1), member(1)
    small.batches = [
        type(batch)(sequences=[sequence], learned=[learned])
        for batch in large.batches
        for sequence, learned in zip(batch.sequences, batch.learned, strict=True)
    ]
    small.accumulate = 2
    train(room_for(base, [large]), {0: large}, range(STEPS))
    train(room_for(base, [small]), {0: small}, range(2 * STEPS))
    assert small.losses == pytest.approx(large.losses, rel=1e-5)


def test_evaluation_changes_nothing(base: BaseWeights) -> None:
    slots = room_for(base, [member(1, dropout=0.5)])
    before = slots.adapter(0)
    tokens = torch.arange(16).view(1, 2, 8)
    rows = AdapterSlotRows(slots=(0,), tokens=tokens, labels=tokens, denominators=[1])
    assert slots.losses(rows).read == slots.losses(rows).read
    assert [count for _, count in slots.losses(rows).read] == [16]
    assert same_bits(slots.adapter(0), before)


def test_a_damaged_base_is_named(tmp_path: Path) -> None:
    from stoker.core.errors import Damaged

    folder = made_base(tmp_path, "llama")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(Damaged, match="can't be read"):
        load_base(folder)
