"""Measures of one position: against their definitions in plain Python, and on values that break naive formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.crossval.metrics import LogitsComparison, PositionRow, compare_top, relative_error

np = pytest.importorskip("numpy")

VECTORS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=30)


def compare_logits(pos: int, reference: Any, candidate: Any) -> PositionRow:
    return LogitsComparison(len(reference)).row(pos, reference, candidate)


def softmax(values: list[float]) -> list[float]:
    highest = max(values)
    weights = [math.exp(value - highest) for value in values]
    return [weight / math.fsum(weights) for weight in weights]


def divergence(r: list[float], c: list[float]) -> float:
    return math.fsum(p * (math.log(p) - math.log(q)) for p, q in zip(softmax(r), softmax(c), strict=True))


def divergence_of(r: list[float], c: list[float]) -> float:
    return math.fsum(p * math.log(p / q) for p, q in zip(r, c, strict=True))


@given(VECTORS, st.data())
def test_measures_are_those_of_their_definitions(r: list[float], data: st.DataObject):
    c = data.draw(st.lists(st.floats(-20, 20, width=32), min_size=len(r), max_size=len(r)))
    row = compare_logits(3, np.array(r, dtype=np.float32), np.array(c, dtype=np.float32))
    rm, cm = math.fsum(r) / len(r), math.fsum(c) / len(c)
    error = math.fsum(((b - cm) - (a - rm)) ** 2 for a, b in zip(r, c, strict=True))
    spread = math.fsum((a - rm) ** 2 for a in r)
    assert row.pos == 3
    assert row.kl is not None
    assert row.kl == pytest.approx(divergence(r, c), rel=1e-6, abs=1e-12)
    if spread > 1e-9:
        assert row.nmse == pytest.approx(error / spread, rel=1e-6, abs=1e-12)
    assert row.max_abs == pytest.approx(max(abs((b - cm) - (a - rm)) for a, b in zip(r, c, strict=True)), abs=1e-9)


@pytest.mark.parametrize("size", [5, 64, 639, 704, 1000, 32_001])
def test_the_first_tokens_of_a_large_vocabulary_are_those_of_a_sort(size: int):
    random = np.random.default_rng(size)
    r, c = (random.normal(size=size).astype("<f4") for _ in range(2))
    c[: size // 2] = r[: size // 2]
    # Beyond the last whole column.
    r[-1] = c[-1] = 9.0
    both = set(np.argsort(r)[-5:].tolist()) & set(np.argsort(c)[-5:].tolist())
    row = compare_logits(0, r, c)
    assert (row.top5, row.top1) == (len(both) / 5, int(r.argmax()) == int(c.argmax()))
    lengths = math.sqrt(float(r.astype(float) @ r)) * math.sqrt(float(c.astype(float) @ c))
    assert row.cosine == pytest.approx(float(r.astype(float) @ c) / lengths, abs=1e-12)


def test_a_shift_of_all_logits_is_no_difference():
    r = np.linspace(-3, 3, 100)
    row = compare_logits(0, r, r - 800.0)
    assert (row.top1, row.top5) == (True, 1.0)
    assert row.nmse is not None
    assert row.nmse < 1e-24
    assert row.kl is not None
    assert row.kl < 1e-24


def test_a_divergence_below_rounding_of_logarithms_is_still_measured():
    r = np.linspace(-3, 3, 1000)
    d = np.where(np.arange(1000) % 2, 1e-9, -1e-9)
    row = compare_logits(0, r, r + d)
    # For small differences the divergence is half the variance of the difference.
    p = np.exp(r) / np.exp(r).sum()
    assert row.kl == pytest.approx(0.5 * float(p @ (d - p @ d) ** 2), rel=1e-6)


def test_large_differences_do_not_overflow():
    row = compare_logits(0, np.array([0.0, 1000.0]), np.array([1000.0, 0.0]))
    assert row.kl == pytest.approx(1000.0)
    assert not row.top1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_over_every_limit(bad: float):
    row = compare_logits(1, np.array([0.0, 1.0]), np.array([0.0, bad]))
    assert (row.nmse, row.kl, row.top1) == (math.inf, math.inf, False)


def test_equal_constant_logits_agree_and_others_do_not():
    assert compare_logits(0, np.ones(4), np.ones(4)).nmse == 0.0
    assert compare_logits(0, np.ones(4), np.arange(4.0)).nmse == math.inf


@given(VECTORS, st.data())
def test_the_divergence_of_the_most_probable_tokens_is_a_lower_bound(r: list[float], data: st.DataObject):
    c = data.draw(st.lists(st.floats(-20, 20, width=32), min_size=len(r), max_size=len(r)))
    q = softmax(c)
    count = data.draw(st.integers(1, len(r)))
    top = {n: math.log(q[n]) for n in sorted(range(len(r)), key=lambda n: -q[n])[:count]}
    row = compare_top(0, np.array(r), top)
    assert row.is_bound
    assert row.kl is not None
    assert row.kl <= divergence(r, c) + 1e-9
    reverse = compare_top(0, np.array(r), top, is_top_reference=True)
    assert reverse.kl is not None
    assert reverse.kl <= divergence(c, r) + 1e-9


def test_a_side_whose_tokens_hold_all_probability_differs_from_one_that_leaves_some():
    # A server that cuts off what is improbable, and scales the rest up.
    r = np.log([0.5, 0.3, 0.2])
    top = {0: math.log(0.625), 1: math.log(0.375)}
    row = compare_top(0, r, top)
    assert row.kl == pytest.approx(0.8 * math.log(0.8) + 0.2 * math.log(0.2 / 1e-6))
    # As the reference it is compared in its own favour: it has no other token that the candidate could lack.
    assert compare_top(0, r, top, is_top_reference=True).kl == pytest.approx(-math.log(0.8))


def test_the_divergence_is_that_of_the_candidate_from_the_reference_whichever_side_is_partial():
    r, c = [0.5, 0.3, 0.2], [0.7, 0.2, 0.1]
    top = {n: math.log(p) for n, p in enumerate(c)}
    assert compare_top(0, np.log(r), top).kl == pytest.approx(divergence_of(r, c))
    assert compare_top(0, np.log(r), top, is_top_reference=True).kl == pytest.approx(divergence_of(c, r))


@pytest.mark.parametrize("rest", [0.0, 1e-9, 1e-7, 1e-5, 1e-2])
def test_log_probabilities_rounded_to_32_bits_are_no_difference(rest: float):
    random = np.random.default_rng(3)
    for _ in range(50):
        p = random.dirichlet(np.ones(40))
        p = np.append(p * (1.0 - rest), np.full(10, rest / 10) if rest else [])
        told = np.log(p).astype("<f4")
        row = compare_top(0, np.log(p), {n: float(told[n]) for n in range(40)})
        assert row.kl is not None
        assert row.kl < 1e-6


def test_most_probable_tokens_that_no_vocabulary_has_are_refused():
    assert compare_top(0, np.zeros(4), {9: -0.1}).kl == math.inf
    assert compare_top(0, np.zeros(4), {}).kl == math.inf


def test_the_error_of_a_layer_is_relative_to_its_output():
    assert relative_error(np.full(8, 2.0), np.full(8, 2.0)) == 0.0
    assert relative_error(np.full(8, 2.0), np.full(8, 2.2)) == pytest.approx(0.01)
    assert relative_error(np.zeros(8), np.ones(8)) == math.inf
    assert relative_error(np.ones(8), np.full(8, math.nan)) == math.inf
