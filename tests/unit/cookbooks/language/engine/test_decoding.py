"""Token after token with kept keys and values gives the logits of the whole sequence."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cookbooks.language.sample import slot_logits
from tests.later import imported_later
from tests.unit.cookbooks.language.engine.bases import BASES, made_base

with imported_later():
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, AdapterState, fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import FrozenBase, load_base
    from stoker.cookbooks.language.compute.general_base import load_general
    from stoker.cookbooks.language.compute.slots import Slots
    from tests.unit.cookbooks.language.engine.general_bases import general_base
    from tests.unit.cookbooks.language.engine.trained_together import noised

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def noise(base: FrozenBase, seed: int, targets: tuple[str, ...] = ALL) -> AdapterState:
    return noised(fresh_adapter(base.shape, AdapterSpec(rank=2, alpha=4.0, targets=targets, seed=seed)), seed, 0.2)


def over(folder: Path, *, count: int = 2) -> Slots:
    base = load_base(folder)
    slots = Slots(base, count=count + 1, rank=2, targets=ALL)
    for slot in range(count):
        slots.load(slot, noise(base, slot))
    return slots


@pytest.mark.parametrize("name", BASES)
def test_tokens_one_at_a_time_give_the_logits_of_all_at_once(name: str, tmp_path: Path) -> None:
    slots = over(made_base(tmp_path, name))
    tokens = torch.randint(0, 256, (1, 20), generator=torch.Generator().manual_seed(0))
    for slot in range(3):
        logits = slot_logits(slots, slot)
        for length in (7, 8, 9, 15, 16, 20):
            assert (logits(tokens[:, :length]) - slots.logits(slot, tokens[:, :length])).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "mixtral"])
def test_a_module_of_transformers_keeps_what_it_has_seen(name: str, tmp_path: Path) -> None:
    base = load_general(general_base(tmp_path, name), device="cpu", dtype="float32")
    targets = tuple({one.name.rpartition(".")[2]: None for one in base.shape.matrices})
    slots = Slots(base, count=2, rank=2, targets=targets)
    slots.load(0, noise(base, 0, targets))
    tokens = torch.randint(0, 256, (1, 20), generator=torch.Generator().manual_seed(0))
    other = tokens.flip(1)
    for slot in range(2):
        logits = slot_logits(slots, slot)
        for text in (tokens[:, :7], tokens[:, :8], tokens[:, :9], tokens, other[:, :12], other):
            assert (logits(text) - slots.logits(slot, text)).abs().max() <= 1e-5


def test_a_sequence_that_differs_or_is_shorter_is_computed_again_from_there(tmp_path: Path) -> None:
    slots = over(made_base(tmp_path, "llama"), count=1)
    logits = slot_logits(slots, 0)
    for text in (b"what was said first", b"what was said later", b"what", b"something else, longer than that before"):
        tokens = torch.tensor([list(text)])
        assert (logits(tokens) - slots.logits(0, tokens)).abs().max() <= 1e-5


def test_a_call_that_was_interrupted_leaves_nothing_wrong_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = over(made_base(tmp_path, "llama"), count=1)
    logits, calls = slot_logits(slots, 0), 0
    first, other = torch.tensor([list(b"the same beginning")]), torch.tensor([list(b"the same end")])
    logits(first)
    real = torch.nn.functional.scaled_dot_product_attention

    def interrupted(*given: object, **more: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return real(*given, **more)

    monkeypatch.setattr("stoker.cookbooks.language.compute.decoding.scaled_dot_product_attention", interrupted)
    with pytest.raises(KeyboardInterrupt):
        logits(other)
    assert (logits(first) - slots.logits(0, first)).abs().max() <= 1e-5


def test_room_grows_with_the_sequence(tmp_path: Path) -> None:
    slots = over(made_base(tmp_path, "llama"), count=1)
    tokens = torch.randint(0, 256, (1, 600), generator=torch.Generator().manual_seed(0))
    logits = slot_logits(slots, 0)
    for length in (10, 255, 256, 257, 599):
        logits(tokens[:, :length])
    assert (logits(tokens) - slots.logits(0, tokens)).abs().max() <= 1e-5
