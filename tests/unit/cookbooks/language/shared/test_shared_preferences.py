"""Adapters that learn from pairs, alone and together: beside PEFT with autograd, resumed, and beside other methods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.language.examples import Cursor, ExampleSet
from stoker.core.clock import FakeClock
from stoker.core.errors import Cancelled, StageDiverged
from tests.later import imported_later
from tests.unit.cookbooks.language.shared.companions import Gathering, Person, some_pairs

with imported_later():
    import torch
    from torch.nn.functional import logsigmoid, relu

    from stoker.cookbooks.language.compute.banks import AdapterSpec, fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import load_base
    from stoker.cookbooks.language.compute.slots import Slots
    from stoker.cookbooks.language.shared.loop import train_members

Chooser = Callable[..., Person]
DPO: dict[str, Any] = {"method": "dpo", "beta": 0.3, "batch": 3, "lr": 3e-2, "loss_type": "sigmoid"}
ORPO: dict[str, Any] = {"method": "orpo", "beta": 0.2, "batch": 2}


@pytest.fixture
def chooser(tmp_path: Path, base: Path) -> Chooser:
    """Make members that learn from pairs: `chooser(number, **settings)`; `world` tells apart those of one number."""

    def make(number: int, *, world: str = "w", train_on: str = "completion", **said: Any) -> Person:
        pairs = some_pairs(number, train_on=train_on)
        return Person(tmp_path / world, base, number, pairs, **said)

    return make


def train(*people: Person) -> None:
    train_members(Gathering(people), FakeClock())


def points(of: Person, name: str = "loss") -> list[Any]:
    found = [point.get(name) for point in of.training["curve"]["points"]]
    return [one for one in found if one is not None]


def by_autograd(base: Path, person: Person) -> list[float]:
    """Train with PEFT, autograd and the definitions of the losses; the reference is PEFT's model, its adapter off."""
    pytest.importorskip("peft")
    from tests.unit.cookbooks.language.engine.peft_alone import lora_pairs, peft_model

    args, examples = person.args, person.examples.load()
    spec = AdapterSpec(rank=args.rank, alpha=args.alpha, targets=args.targets, seed=args.seed)
    model = peft_model(base, fresh_adapter(load_base(base).shape, spec))
    trained = [one for pair in lora_pairs(model).values() for one in pair]
    adamw = torch.optim.AdamW(trained, lr=args.lr, weight_decay=0.0)
    cursor = Cursor(examples, row_tokens=args.max_seq_len, batch=args.batch, seed=args.seed)
    losses = []
    for _ in range(args.epochs * cursor.batches_per_epoch):
        texts = [int(one) for one in cursor.next().answers.texts if one >= 0]  # type: ignore[union-attr]  # of pairs
        loss = loss_of(model, examples, texts, args)
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(trained, args.clip)
        adamw.step()
        adamw.zero_grad()
    return losses


def loss_of(model: Any, examples: ExampleSet, texts: list[int], args: Any) -> Any:
    """Return the mean loss of pairs, text by text, from the definition in the paper of its method."""
    found, wholes, tokens = [], [], 0
    for text in texts:
        ids, learned = (torch.as_tensor(part.copy()) for part in examples.example(text))
        logps = token_logps(model, ids)
        with torch.no_grad(), model.disable_adapter():
            reference = token_logps(model, ids)
        is_learned = learned[1:]
        found.append((logps[is_learned], reference[is_learned]))
        if text % 2 == 0:
            likely = logps if examples.facts["train_on"] == "all" else logps[is_learned]
            wholes.append(-likely.sum())
            tokens += len(likely)
    losses = []
    for (chosen, chosen_base), (rejected, rejected_base) in zip(found[::2], found[1::2], strict=True):
        if args.method == "orpo":
            odds = [one.mean() - torch.log1p(-one.mean().exp()) for one in (chosen, rejected)]
            losses.append(-args.beta * logsigmoid(odds[0] - odds[1]))
            continue
        gains = [(chosen - chosen_base), (rejected - rejected_base)]
        if args.loss_type == "ipo":
            losses.append((gains[0].mean() - gains[1].mean() - 1 / (2 * args.beta)).square())
            continue
        gap = args.beta * (gains[0].sum() - gains[1].sum())
        losses.append(relu(1 - gap) if args.loss_type == "hinge" else -logsigmoid(gap))
    mean = torch.stack(losses).mean()
    return mean + sum(wholes) / tokens if args.method == "orpo" else mean


def token_logps(model: Any, ids: Any) -> Any:
    logits = model(input_ids=ids[None].long()).logits[0, :-1]
    return logits.log_softmax(-1).gather(-1, ids[1:, None].long()).squeeze(-1)


def test_members_that_learn_from_pairs_lose_what_autograd_and_peft_lose(chooser: Chooser, base: Path) -> None:
    said: dict[str, Any] = {"schedule": "constant", "warmup_percent": 0.0, "epochs": 1}
    members = [
        chooser(0, **DPO, **said),
        chooser(1, train_on="all", **ORPO, **said, clip=0.5),
    ]
    train(*members)
    for one in members:
        assert points(one) == pytest.approx(by_autograd(base, one), rel=1e-5, abs=3e-6)


def test_members_of_all_methods_learn_together_what_they_learn_alone(
    chooser: Chooser, person: Callable[..., Person]
) -> None:
    def everybody(world: str) -> list[Person]:
        return [
            chooser(0, world=world, **DPO, accumulate=2),
            chooser(1, world=world, **{**DPO, "batch": 2, "rank": 2, "beta": 0.05}, dropout=0.1),
            chooser(2, world=world, **ORPO),
            person(3, world=world),
        ]

    together = everybody("together")
    train(*together)
    for one, alone in zip(together, everybody("alone"), strict=True):
        train(alone)
        for name in ("loss", "eval_loss", "margin", "eval_accuracy"):
            assert points(one, name) == pytest.approx(points(alone, name), rel=1e-4, abs=1e-5)
        for name, pair in alone.weights.items():
            for mine, theirs in zip(pair, one.weights[name], strict=True):
                assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def test_an_adapter_learns_which_answers_are_preferred_and_tells_it_beside_the_loss(chooser: Chooser) -> None:
    one = chooser(0, **DPO, epochs=6)
    train(one)
    accuracies, margins = points(one, "accuracy"), points(one, "margin")
    assert accuracies[-1] == 1.0
    assert margins[-1] > margins[0] + 1
    assert one.training["curve"]["before"] == pytest.approx(0.693147, rel=1e-5)
    assert {"loss", "accuracy", "margin", "eval_loss", "eval_accuracy", "eval_margin"} <= one.steps[-1].keys()
    assert "accuracy" in one.log


def test_what_the_base_makes_of_answers_is_computed_once_for_all_with_the_same_data(
    chooser: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    compute = Slots.reference

    def counted(slots: Slots, rows: Any) -> Any:
        passes.append(len(rows.slots))
        return compute(slots, rows)

    monkeypatch.setattr(Slots, "reference", counted)
    one, other, third = chooser(0, **DPO), chooser(1, **DPO), chooser(2, **{**DPO, "loss_type": "hinge"})
    other.examples = third.examples = one.examples
    train(one, other, third)
    # One batch of held-out ones, which one evaluates for the others before training, and ten pairs in batches of three.
    assert len(passes) == 5
    before = [of.training["curve"]["before"] for of in (one, other, third)]
    assert before == pytest.approx([0.693147, 0.693147, 1.0], rel=1e-5)


def test_a_member_that_is_stopped_goes_on_with_the_same_bits(chooser: Chooser) -> None:
    whole = chooser(0, world="whole", **DPO)
    train(whole)
    first = chooser(0, world="parts", **DPO)

    def stop(told: dict[str, Any]) -> None:
        first.is_cancelled = first.is_cancelled or told.get("step") == 4

    first.on_report = stop
    train(first)
    assert isinstance(first.ended, Cancelled)
    first.out.rmdir()
    again = chooser(0, world="parts", **DPO)
    train(again)
    assert points(again) == points(whole)
    assert points(again, "eval_margin") == points(whole, "eval_margin")
    for name, pair in whole.weights.items():
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(pair, again.weights[name], strict=True))


def test_a_member_whose_loss_is_no_number_leaves_the_others_as_they_are(chooser: Chooser) -> None:
    healthy = [chooser(number, world="healthy", **DPO) for number in range(3)]
    train(*healthy)
    beside = [chooser(number, **DPO) for number in range(3)]
    beside[1] = chooser(1, **{**DPO, "lr": 1e38, "schedule": "constant"})
    train(*beside)
    assert isinstance(beside[1].ended, StageDiverged)
    for number in (0, 2):
        for name, pair in healthy[number].weights.items():
            assert all(torch.equal(one, other) for one, other in zip(pair, beside[number].weights[name], strict=True))


def test_pairs_in_one_row_and_pairs_in_divided_passes_lose_what_pairs_in_rows_lose(
    chooser: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(world: str) -> list[Person]:
        return [chooser(0, world=world, **DPO), chooser(1, world=world, train_on="all", **ORPO)]

    usual, divided, close = (both(world) for world in ("usual", "divided", "close"))
    train(*usual)
    step = Slots.step

    def short(slots: Slots, rows: Any, **how: Any) -> Any:
        if rows.tokens.size > 2 * 24:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried")
        return step(slots, rows, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Slots, "step", short)
        train(*divided)
    assert "did not fit into memory" in divided[0].log
    with monkeypatch.context() as patch:
        patch.setattr("stoker.cookbooks.language.shared.loop._closes_up", lambda _: True)
        train(*close)
    for others in (divided, close):
        for one, other in zip(usual, others, strict=True):
            for name in ("loss", "eval_loss", "margin", "eval_margin"):
                assert points(other, name) == pytest.approx(points(one, name), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("said", [DPO, ORPO], ids=["dpo", "orpo"])
def test_pairs_are_learned_alike_by_blocks_of_our_own_and_by_transformers_module(
    chooser: Chooser, said: dict[str, Any]
) -> None:
    fast, general = (chooser(0, world=path, path=path, **said) for path in ("fast", "general"))
    train(fast)
    train(general)
    for name in ("loss", "eval_loss", "margin"):
        assert points(general, name) == pytest.approx(points(fast, name), rel=1e-4, abs=1e-5)
