"""The verdict over the steps of a comparison, limits by tier, and expected failures."""

from __future__ import annotations

import math
from datetime import date

import pytest

from stoker.core.errors import InvalidArgs, Usage
from stoker.crossval.ladder import (
    LayerRow,
    Outcome,
    Step,
    failed,
    judge,
    judge_layers,
    judge_positions,
    judge_tokens,
    passed,
    skipped,
    summary_of,
)
from stoker.crossval.limits import TIERS, limits_for, tier_of, with_changes
from stoker.crossval.metrics import PositionRow
from stoker.crossval.xfail import accept, accept_failed_run, parse_xfail

F32 = TIERS["f32"]
TODAY = date(2026, 11, 18)


def row(pos: int, **changes: object) -> PositionRow:
    values = {"nmse": 1e-12, "max_abs": 1e-6, "max_abs_sd": 1e-6, "kl": 1e-12, "top1": True, "top5": 1.0, "cosine": 1.0}
    return PositionRow(pos=pos, **{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("measure", ["nmse", "max_abs_sd", "kl"])
def test_each_measure_decides_by_itself(measure: str):
    step = judge_positions("logits", [row(0), row(1, **{measure: 1.0}), row(2, **{measure: 2.0})], F32)
    assert step.outcome is Outcome.FAILED
    assert step.divergence is not None
    assert step.divergence.pos == 1
    assert measure in step.reason


def test_cosine_alone_decides_nothing():
    assert judge_positions("logits", [row(0, cosine=0.1)], F32).outcome is Outcome.PASSED


def test_a_flipped_first_token_decides_by_its_share():
    rows = [row(n, top1=n != 7) for n in range(40)]
    assert judge_positions("logits", rows, TIERS["f16"]).outcome is Outcome.PASSED
    step = judge_positions("logits", rows, F32)
    assert step.outcome is Outcome.FAILED
    assert step.divergence is not None
    assert step.divergence.pos == 7


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_measure_that_is_not_a_number_never_passes(bad: float):
    assert judge_positions("logits", [row(0, nmse=bad)], TIERS["quant"]).outcome is Outcome.FAILED
    assert judge_layers("layers", [LayerRow(layer=0, name="l", error=bad)], TIERS["quant"]).outcome is Outcome.FAILED


def test_nothing_compared_is_undecided_not_passed():
    empty = judge_positions("logits", [], F32)
    assert empty.outcome is Outcome.UNDECIDED
    assert judge([passed("files"), empty], F32).outcome is Outcome.UNDECIDED
    assert judge([passed("files"), skipped("logits", "no logits")], F32).outcome is Outcome.UNDECIDED


def test_the_first_failing_step_names_the_difference_and_the_logits_where_it_shows():
    logits = judge_positions("logits", [row(n, kl=float(n >= 11)) for n in range(20)], F32)
    weights = failed("weights", "blk.1.attn_q.weight differs", tensor="blk.1.attn_q.weight")
    parity = judge([passed("files"), weights, logits], F32)
    assert parity.outcome is Outcome.FAILED
    assert parity.first is not None
    assert (parity.first.step, parity.first.tensor, parity.first.pos) == ("weights", "blk.1.attn_q.weight", 11)


def test_the_first_layer_over_the_limit_is_the_location():
    rows = [LayerRow(layer=n, name=f"layer-{n}", error=error) for n, error in enumerate((1e-13, 1e-3, 1e-2))]
    step = judge_layers("layers", rows, F32)
    assert step.divergence is not None
    assert step.divergence.layer == 1


def test_tokenizers_that_disagree_are_named_at_the_first_token():
    assert judge_tokens(["a b"], [[1, 2]], [[1, 2]]).outcome is Outcome.PASSED
    step = judge_tokens(["a b", "c"], [[1, 2], [3, 4]], [[1, 2], [3]])
    assert step.outcome is Outcome.FAILED
    assert step.divergence is not None
    assert step.divergence.pos == 1
    assert "candidate the end" in step.reason


def test_a_mean_is_only_told_of_a_measure_that_every_row_has():
    found = summary_of([row(0), row(1, kl=None)])
    assert "mean_kl" not in found
    assert found["mean_nmse"] == pytest.approx(1e-12)


@pytest.mark.parametrize(
    ("name", "tier"),
    [
        ("F32", "f32"), ("torch.float32", "f32"), ("float16", "f16"), ("F16", "f16"), ("bfloat16", "bf16"),
        ("BF16", "bf16"), ("Q8_0", "quant"), ("Q4_K", "quant"), ("nf4", "quant"), ("int8", "quant"),
    ],
)  # fmt: skip
def test_the_tier_follows_the_recorded_precision(name: str, tier: str):
    assert tier_of(name) == tier


def test_the_coarsest_of_all_precisions_sets_the_limits():
    assert limits_for("F32", "F16", "").tier == "f16"
    assert limits_for("Q8_0", "bf16").tier == "quant"
    assert limits_for("").tier == "f32"


def test_limits_can_be_changed_and_all_wrong_ones_are_named():
    assert with_changes(F32, {"kl": 1e-3}).kl == 1e-3
    with pytest.raises(InvalidArgs) as error:
        with_changes(F32, {"top1": 2.0, "nsme": 1.0, "nmse": math.nan})
    assert len(error.value.faults) == 3


def test_an_expected_failure_needs_a_reason_and_a_date_and_ends_with_it():
    parity = judge([failed("logits", "x")], F32)
    expected = parse_xfail("rope differs in 0.6 until 2026-12-01", TODAY)
    assert accept(parity, expected, TODAY).is_pass
    assert accept(parity, expected, date(2026, 12, 1)).is_pass
    assert not accept(parity, expected, date(2026, 12, 2)).is_pass
    assert not accept(parity, None, TODAY).is_pass
    assert accept_failed_run(1, expected, TODAY).is_pass
    assert not accept_failed_run(1, expected, date(2026, 12, 2)).is_pass
    assert not accept_failed_run(1, None, TODAY).is_pass
    assert not accept_failed_run(10, expected, TODAY).is_pass
    for text in ("", "a reason", " until 2026-12-01", "x until soon", "x until 2029-01-01"):
        with pytest.raises(Usage):
            parse_xfail(text, TODAY)


def test_a_pass_or_an_open_question_is_never_an_expected_failure():
    good = judge([Step(name="logits", outcome=Outcome.PASSED)], F32)
    expected = parse_xfail("x until 2026-12-01", TODAY)
    assert "remove --xfail" in accept(good, expected, TODAY).note
    assert not accept(judge([], F32), expected, TODAY).is_pass
