from __future__ import annotations

from pathlib import Path

import pytest

from tests.later import imported_later

with imported_later():
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, Optim, fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import load_base
    from stoker.cookbooks.language.compute.slots import Slots
    from stoker.cookbooks.language.shared.device_memory import BankSize, ResizableSlots, room_for


ORDER = ("q_proj", "k_proj", "v_proj", "o_proj")


def spec(rank: int, *targets: str) -> AdapterSpec:
    return AdapterSpec(rank=rank, alpha=1.0, targets=targets or ("q_proj",), seed=rank)


def test_room_is_made_for_the_last_slot_the_largest_rank_and_all_targets() -> None:
    found = room_for([(0, spec(4, "v_proj")), (3, spec(2, "o_proj", "q_proj"))], ORDER)
    assert found == BankSize(count=4, rank=4, targets=("q_proj", "v_proj", "o_proj"))
    assert found.holds(room_for([(1, spec(3, "v_proj"))], ORDER))
    assert not found.holds(room_for([(1, spec(3, "k_proj"))], ORDER))
    assert room_for([], ORDER, least=5).count == 5


@pytest.fixture
def places(base: Path) -> ResizableSlots:
    made = ResizableSlots(load_base(base))
    made.load({slot: (fresh_adapter(made.base.shape, spec(3)), Optim()) for slot in range(3)})
    return made


def test_whoever_fits_is_seated_in_the_banks_that_are_there(places: ResizableSlots) -> None:
    before = places.slots
    places.clear(1)
    assert not places.load({1: (fresh_adapter(places.base.shape, spec(2)), Optim())})
    assert places.slots is before


def test_for_a_larger_one_the_banks_are_made_anew_with_everybody_and_every_slot(places: ResizableSlots) -> None:
    held = places.adapter(0)
    places.clear(2)
    assert places.load({1: (fresh_adapter(places.base.shape, spec(7, "down_proj")), Optim())})
    assert places.slots is not None
    assert places.slots.count == 3
    assert places.adapter(1).spec.rank == 7
    now = places.adapter(0)
    assert all(
        torch.equal(a, b) for name in held.weights for a, b in zip(held.weights[name], now.weights[name], strict=True)
    )


def test_where_there_is_no_memory_for_a_larger_one_the_others_stay(
    places: ResizableSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Slots.__init__

    def scarce(slots: Slots, *given: object, rank: int, **more: object) -> None:
        if rank > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        plain(slots, *given, rank=rank, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Slots, "__init__", scarce)
    with pytest.raises(torch.OutOfMemoryError):
        places.load({1: (fresh_adapter(places.base.shape, spec(7)), Optim())})
    assert [places.adapter(slot).spec.rank for slot in range(3)] == [3, 3, 3]
