"""Objectives over pairs: beside autograd, and beside TRL's own losses, tokens and gradients."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.cookbooks.language.examples import Cursor, ExampleSet
from stoker.cookbooks.language.reading import InvalidLines, read_texts
from tests.later import imported_later

with imported_later():
    import torch
    from torch.nn.functional import logsigmoid, relu

    from stoker.cookbooks.language.compute.base_weights import load_base
    from stoker.cookbooks.language.compute.objectives import AnswerInput, ReferenceLogps, weigh
    from stoker.cookbooks.language.compute.passes import AdapterSlotAnswers, PassResult
    from stoker.cookbooks.language.compute.slots import Slots
    from stoker.cookbooks.language.shared.pass_schedule import MultiAdapterPass
    from stoker.cookbooks.language.shared.step import lay_answers, lay_rows
    from stoker.cookbooks.language.tokens import ExampleTokeniser, TokeniseOptions, open_tokenizer
    from tests.unit.cookbooks.language.engine import trl_alone
    from tests.unit.cookbooks.language.engine.bases import made_base

OBJECTIVES = ("dpo-sigmoid", "dpo-ipo", "dpo-hinge", "orpo")


def some_input(objective: Any, **changes: Any) -> AnswerInput:
    """Return two members with two pairs in rows of six tokens; the second pair of the second one is not there."""
    places = torch.tensor([[[-1, answer, answer, answer, -1, -1] for answer in range(4)]] * 2)
    places[0, 1, 4] = 1
    places[1, 2:] = -1
    said: dict[str, Any] = {
        "objective": objective,
        "places": places,
        "reference": -torch.arange(8.0, dtype=torch.float64).view(2, 4),
        "pair_shares": torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64),
        "token_shares": torch.tensor([0.125, 0.25], dtype=torch.float64),
        "betas": torch.tensor([0.3, 0.7], dtype=torch.float64),
        **changes,
    }
    return AnswerInput(**said)


def some_losses(given: AnswerInput) -> Any:
    """Return token losses; of prompts only of chosen ones, and none of padding."""
    drawn = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    has_label = given.places >= 0
    has_label[:, ::2, 0] = True
    has_label[1, 2:] = False
    return torch.where(has_label, drawn, 0.0)


def defined(losses: Any, given: AnswerInput, member: int) -> Any:
    """Return a member's loss as the papers define it."""
    total, beta, places = torch.zeros((), dtype=torch.float64), given.betas[member], given.places[member]
    for pair in range(2 - member):
        logps = [-losses[member][places == answer] for answer in (2 * pair, 2 * pair + 1)]
        gains = [of.sum() - given.reference[member, 2 * pair + side] for side, of in enumerate(logps)]
        if given.objective == "orpo":
            odds = [of.mean() - torch.log(1 - of.mean().exp()) for of in logps]
            one = -beta * logsigmoid(odds[0] - odds[1])
        elif given.objective == "dpo-ipo":
            one = (gains[0] / len(logps[0]) - gains[1] / len(logps[1]) - 1 / (2 * beta)) ** 2
        else:
            gap = beta * (gains[0] - gains[1])
            one = relu(1 - gap) if given.objective == "dpo-hinge" else -logsigmoid(gap)
        total = total + one * given.pair_shares[member, pair]
    return total + (losses[member, ::2].sum() * given.token_shares[member] if given.objective == "orpo" else 0)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_losses_and_their_gradients_are_those_of_the_definitions(objective: str) -> None:
    given = some_input(objective)
    losses = some_losses(given).requires_grad_()
    found = weigh(losses, given)
    wanted = torch.stack([defined(losses, given, member) for member in range(2)])
    (gradient,) = torch.autograd.grad(wanted.sum(), losses)
    assert torch.allclose(found.scores[0], wanted, rtol=1e-9)
    has_loss = losses > 0
    assert torch.allclose(found.weights[has_loss], gradient[has_loss], rtol=1e-9)
    # Any other way to compute the losses of tokens gets the same gradient.
    (same,) = torch.autograd.grad((found.weights * losses).sum(), losses)
    assert torch.equal(same, found.weights)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_member_of_no_numbers_and_an_answer_that_is_certain_spoil_no_other(objective: str) -> None:
    given = some_input(objective)
    losses = some_losses(given)
    usual = weigh(losses, given)
    for value in (float("nan"), float("inf"), 0.0):
        spoiled = losses.clone()
        spoiled[0] = value
        found = weigh(spoiled, given)
        assert torch.equal(found.scores[:, 1], usual.scores[:, 1])
        assert torch.equal(found.weights[1], usual.weights[1])
        assert bool(found.scores[0, 0].isfinite()) is (value == 0.0)
        assert bool(found.weights[0].isfinite().all()) or value != 0.0


def test_what_is_known_of_the_base_survives_a_checkpoint() -> None:
    table = ReferenceLogps(5, "cpu")
    texts = np.array([3, 1, -1, -1])
    assert not table.has(texts)
    table.put(texts, torch.tensor([-3.0, -1.0, 9.0, 9.0]))
    again = ReferenceLogps(5, "cpu")
    again.resume(table.state())
    assert again.has(texts)
    assert not again.has(np.array([1, 2]))
    assert again.at(torch.as_tensor(texts))[:2].tolist() == [-3.0, -1.0]


def by_us(base: Path, objective: Any, pairs: list[dict[str, Any]]) -> tuple[ExampleSet, PassResult]:
    """Return pairs as our tokens, and what a step makes of them."""
    # TRL's ORPO learns prompts, too.
    train_on: Any = "all" if objective == "orpo" else "completion"
    said = TokeniseOptions(max_seq_len=256, train_on=train_on, holdout_percent=5.0, vocabulary=None, is_paired=True)
    faults, folder = InvalidLines("pairs"), Path(tempfile.mkdtemp())
    with ExampleTokeniser(open_tokenizer(base), said, folder) as tokeniser:
        for _ in tokeniser.take(read_texts(map(json.dumps, pairs)), faults):
            pass
        faults.refuse()
        examples = tokeniser.made("pairs")
    # Nothing is held out here.
    examples = ExampleSet(
        tokens=examples.tokens, trained=examples.trained, starts=examples.starts, held_out=examples.held_out[:0],
        facts=examples.facts,
    )  # fmt: skip
    batch = Cursor(examples, row_tokens=256, batch=len(pairs), seed=0).next()
    assert batch.answers is not None
    rows, length = batch.tokens.shape
    one = MultiAdapterPass(slots=(0,), first=0, rows=rows, length=length, objective=objective)
    places, texts = lay_answers(one, {0: batch})
    laid = lay_rows(one, {0: batch}, [1.0])
    spec = trl_alone.SPEC
    slots = Slots(load_base(base), count=1, rank=spec.rank, targets=spec.targets)
    slots.load(0, trl_alone.drawn_adapter(base))
    answers: dict[str, Any] = {
        "objective": objective,
        "places": places,
        "pair_shares": (texts[:, ::2] >= 0) / len(pairs),
        "token_shares": [1.0 / batch.answers.chosen_tokens],
        "betas": [trl_alone.BETA],
    }
    reference = slots.reference(replace(laid, answers=AdapterSlotAnswers(**answers)))
    laid = replace(laid, answers=AdapterSlotAnswers(**answers, reference=reference))
    return examples, slots.step(laid, update=[False], rates=[0.0])


@pytest.mark.parametrize("name", ["plain", "no prompt", "chats", "chats, no prompt"])
def test_tokens_losses_rankings_and_gradients_are_those_of_trl(name: str, tmp_path: Path) -> None:
    base, pairs = made_base(tmp_path / "base", trl_alone.BASE), trl_alone.SETS[name]
    recorded = json.loads(trl_alone.RECORDED.read_text())[name]
    for objective in trl_alone.objectives_of(name):
        examples, result = by_us(base, objective, pairs)
        theirs = recorded[objective]
        if find_spec("trl") is not None:
            theirs = trl_alone.trl_scores(base, objective, pairs)
        texts = [examples.example(text)[0].tolist() for text in range(2 * len(pairs))]
        sides = [list(pair) for pair in zip(texts[::2], texts[1::2], strict=True)]
        assert sorted(sides) == [list(pair) for pair in theirs["tokens"]]
        found = [result.losses[0], result.norms[0], *(row[0] for row in result.ranking)]
        wanted = [theirs[name] for name in ("loss", "norm", "accuracies", "margins")]
        assert found == pytest.approx(wanted, rel=2e-5, abs=1e-6)
