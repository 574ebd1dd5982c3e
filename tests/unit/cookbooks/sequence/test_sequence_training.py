from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from stoker.cookbooks.sequence.schemas import TrainingArgs
from tests.later import imported_later

with imported_later("torch"):
    import torch

    from stoker.cookbooks.sequence.attention import Restorer, TransformerShape
    from stoker.cookbooks.sequence.networks import NetworkSizes
    from stoker.cookbooks.sequence.produce import (
        FILE,
        FileProgressStore,
        seeded,
    )
    from stoker.cookbooks.sequence.recurrent import RecurrentNetwork, RecurrentShape
    from stoker.cookbooks.sequence.training import (
        MaskedTask,
        PartWindows,
        Stepper,
        score,
        train,
        with_answers,
        without_answers,
    )
    from tests.unit.cookbooks.sequence.walked_series import small_windows


SETTINGS = TrainingArgs(epochs=6, lr=1e-2, weight_decay=1e-2, batch=16, patience=6, clip=1.0, seed=1)


class Stopped(Exception):
    pass


def network() -> Any:
    ends = NetworkSizes.of(small_windows().facts)
    return seeded(1, lambda: RecurrentNetwork(ends, RecurrentShape(width=8, layers=1), "lstm"))


def learned(settings: TrainingArgs = SETTINGS, **more: Any) -> tuple[dict[str, Any], Any]:
    model = network()
    curve = train(model, with_answers(small_windows()), settings, **more)
    return model.state_dict(), curve


def stop_after(epoch: int) -> Any:
    def watch(done: int, _of: int, _metrics: Any) -> None:
        if done == epoch:
            raise Stopped

    return watch


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_a_training_gives_the_same_bits_every_time():
    (first, curve), (second, again) = learned(), learned()
    assert same(first, second)
    assert curve == again
    assert curve["validation"][-1] < curve["validation"][0] / 2


def test_another_seed_gives_another_model():
    other, _ = learned(replace(SETTINGS, seed=2))
    assert not same(learned()[0], other)


def test_an_interrupted_training_ends_where_an_uninterrupted_one_does(tmp_path):
    said: list[str] = []
    store = FileProgressStore(tmp_path, every=1, say=said.append)
    with pytest.raises(Stopped):
        learned(store=store, watch=stop_after(4))
    weights, curve = learned(store=store)
    assert said == ["resumes after epoch 3"]
    assert same(weights, learned()[0])
    assert curve == learned()[1]


def test_a_training_that_was_over_is_not_taken_further(tmp_path):
    store = FileProgressStore(tmp_path, every=1, say=lambda _text: None)
    weights, curve = learned(store=store)
    again, same_curve = learned(store=store, watch=stop_after(7))
    assert same(weights, again)
    assert curve == same_curve


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_a_damaged_checkpoint_is_told_and_not_used(tmp_path, damage):
    said: list[str] = []
    store = FileProgressStore(tmp_path, every=1, say=said.append)
    learned(replace(SETTINGS, epochs=1), store=store)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    weights, _ = learned(store=store)
    assert "training restarts from epoch 0" in said[0]
    assert same(weights, learned()[0])


def test_checkpoints_are_as_rare_as_asked_for(tmp_path):
    store = FileProgressStore(tmp_path, every=4, say=lambda _text: None)
    learned(replace(SETTINGS, epochs=3), store=store)
    assert store.recall() is None
    learned(store=store)
    kept = store.recall()
    assert kept is not None
    assert kept.epoch == 4


def test_training_stops_when_the_validation_part_gets_no_better_and_the_best_epoch_is_kept():
    windows = small_windows()
    model = network()
    settings = replace(SETTINGS, epochs=60, lr=0.3, patience=2)
    curve = train(model, with_answers(windows), settings)
    losses = curve["validation"]
    assert len(losses) < 60
    assert curve["kept"] == losses.index(min(losses)) + 1 == len(losses) - 3
    assert score(model, with_answers(windows).validation, 1) == pytest.approx(min(losses), rel=1e-5)


def test_a_training_that_explodes_hands_the_loss_to_its_watcher_and_ends():
    seen: list[float] = []
    broken = with_answers(small_windows())
    broken.train.part.signals[:] = math.nan  # type: ignore[attr-defined]
    with pytest.raises(ArithmeticError, match="the loss is nan in epoch 1"):
        train(network(), broken, SETTINGS, watch=lambda _done, _of, metrics: seen.append(metrics["loss"]))
    assert math.isnan(seen[0])


def test_a_share_of_every_window_is_hidden_in_whole_spans():
    masked = MaskedTask(part=PartWindows.of(small_windows(), "train"), percent=50, span=2)
    hidden = masked.hidden(50, seed=4)
    assert hidden.sum(dim=1).tolist() == [4] * 50
    assert torch.equal(hidden[:, 0::2], hidden[:, 1::2])
    assert not torch.equal(hidden, masked.hidden(50, seed=5))
    assert torch.equal(hidden, masked.hidden(50, seed=4))


def test_what_is_hidden_is_not_looked_at():
    windows = small_windows()
    model = seeded(0, lambda: Restorer(NetworkSizes.of(windows.facts), TransformerShape(width=8, layers=1, heads=2)))
    inputs = PartWindows.of(windows, "train").inputs(torch.arange(4))
    hidden = torch.zeros(4, 8, dtype=torch.bool)
    hidden[:, 2:4] = True
    other = inputs.clone()
    other[:, 2:4] = 99.0
    assert torch.equal(model(inputs, hidden), model(other, hidden))
    assert not torch.equal(model(inputs, hidden), model(inputs, ~hidden))


def test_hidden_rows_can_be_told_from_the_rest():
    windows = small_windows()
    model = seeded(0, lambda: Restorer(NetworkSizes.of(windows.facts), TransformerShape(width=8, layers=1, heads=2)))
    curve = train(model, without_answers(windows, percent=30, span=2), replace(SETTINGS, epochs=8))
    assert curve["validation"][-1] < curve["validation"][0]


@pytest.mark.slow
def test_a_step_is_the_one_that_torch_would_take():
    mine, theirs = network(), network()
    parameters = list(mine.parameters())
    stepper = Stepper(parameters, learning_rate=1e-2, weight_decay=0.1)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1)
    random = torch.Generator().manual_seed(0)
    for _ in range(5):
        gradients = [torch.randn(parameter.shape, generator=random) for parameter in parameters]
        stepper.step(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        for parameter, gradient in zip(theirs.parameters(), gradients, strict=True):
            parameter.grad = gradient
        reference.step()
    for first, second in zip(parameters, theirs.parameters(), strict=True):
        assert torch.allclose(first, second, rtol=1e-5, atol=1e-7)
