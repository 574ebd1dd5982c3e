"""Models that answer take what answers need, and that is counted for each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cookbooks.language.answer_memory import answer_memory
from stoker.cookbooks.language.bundled import TinyShape, bundled_base, write_base
from stoker.cookbooks.language.chat import ChatModel, ChatSetup, chat_load, chat_needs
from stoker.cookbooks.language.checks import find_base
from stoker.core.device import GIB, Needs
from stoker.core.errors import InsufficientDeviceMemory
from stoker.core.frozen import changed
from stoker.engine.recipe import MachineContext, surrounded_by
from tests.later import imported_later
from tests.unit.cookbooks.language.walked_language import compiled

with imported_later("torch"):
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import load_base
    from stoker.cookbooks.language.compute.slots import Slots
    from tests.unit.cookbooks.language.engine.trained_together import noised


def card_of(size_bytes: int) -> MachineContext:
    return changed(MachineContext(), count_gpus=lambda: 1, rooms=lambda: {"A Card": size_bytes})


def test_slots_for_answers_hold_no_moments_and_no_gradients_and_answer_the_same(tmp_path: Path) -> None:
    base = load_base(bundled_base("tiny"))
    targets = ("q_proj", "down_proj")
    specs = [AdapterSpec(rank=2, alpha=4.0, targets=targets, seed=seed, dora=seed == 1) for seed in range(3)]
    adapters = [noised(fresh_adapter(base.shape, spec), spec.seed, 0.2) for spec in specs]
    trains, answers = (
        Slots(base, count=4, rank=2, targets=targets, dora=True, trains=trains) for trains in (True, False)
    )
    for slots in (trains, answers):
        for slot, adapter in enumerate(adapters):
            slots.load(slot, adapter)
    tokens = torch.tensor([list(b"what do they say?")])
    for slot in range(4):
        assert torch.equal(answers.logits(slot, tokens), trains.logits(slot, tokens))
    alone = Slots(base, count=1, rank=2, targets=targets, trains=False)
    assert torch.allclose(answers.logits(3, tokens), alone.logits(0, tokens), atol=1e-5)
    with pytest.raises(TypeError, match="no memory for training"):
        answers.adapter(0)

    def held_bytes(slots: Slots) -> int:
        parts = {
            one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
            for part in slots._state.trained
            for one in (part.weights, part.first, part.second, part.used, part.gathered)
        }
        return sum(parts.values())

    row = sum(part.used[0].nbytes for part in answers._state.trained)
    assert held_bytes(trains) == 4 * 5 * row
    assert held_bytes(answers) == 4 * row + row


def test_memory_is_counted_for_every_model_and_for_the_whole_conversation(tmp_path: Path) -> None:
    base = find_base(str(write_base(tmp_path / "base", TinyShape(positions=65_536))))
    models = [ChatModel(name=str(number), adapter=None) for number in range(3)]

    def needed(count: int, tokens: int, gpus: int = 0) -> int:
        load = chat_load(base, models[:count], tokens, dtype="float32", base_dtype="auto", path="auto")
        return answer_memory(base, load, count, gpus=gpus).total_bytes

    layers, kv_width = base.shape.layers, base.shape.kv_width
    for gpus in (0, 1):
        one, two, three = (needed(count, 65_536, gpus) for count in (1, 2, 3))
        assert three - two == two - one >= layers * 2 * kv_width * 4 * 65_536
        assert one - needed(1, 512, gpus) >= layers * 2 * kv_width * 4 * (65_536 - 512)
    asked = compiled("sample", base=str(base.folder), prompts=("x" * 1_000,), tokens=30_000, gpus=0)
    many = compiled("sample", base=str(base.folder), prompts=("x",) * 2, tokens=30_000, gpus=0, conversation=True)
    short = compiled("sample", base=str(base.folder), prompts=("x",), tokens=16, gpus=0)
    asks = [plan.node("answer").asks or Needs() for plan in (short, asked, many)]
    sizes = [(one.memory_gib or 0.0) * GIB for one in asks]
    assert sizes == sorted(sizes)
    assert sizes[0] == pytest.approx(needed(1, 1 + 256 + 16))
    assert sizes[1] == pytest.approx(needed(1, 1_000 + 256 + 30_000))


def test_what_fits_no_device_is_refused_with_what_would(tmp_path: Path) -> None:
    base = find_base(str(write_base(tmp_path / "base", TinyShape(positions=65_536))))
    setup = ChatSetup(
        base=base,
        models=tuple(ChatModel(name=name, adapter=None) for name in ("one", "two", "three")),
        on_gpu=True,
        dtype="float32",
        base_dtype="auto",
        path="auto",
        tokens=16,
        temperature=0.0,
        seed=0,
        context=65_536,
        is_plain=None,
    )
    load = chat_load(base, setup.models, 65_536, dtype="float32", base_dtype="auto", path="auto")
    sizes = [answer_memory(base, load, count, gpus=1).total_bytes for count in (2, 3)]
    room = sum(sizes) // 2
    with (
        surrounded_by(card_of(room)),
        pytest.raises(InsufficientDeviceMemory, match="3 models over base take") as caught,
    ):
        chat_needs(setup)
    assert "2 at once (instead of 3)" in caught.value.hint
    assert "--context " in caught.value.hint
    with surrounded_by(card_of(sizes[1])):
        assert chat_needs(setup).vram_gib == pytest.approx(sizes[1] / GIB)
