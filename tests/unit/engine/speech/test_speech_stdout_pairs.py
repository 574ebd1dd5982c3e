from __future__ import annotations

import math

import pytest

from stoker.engine.runners.program.trainer_lines import PLAIN, pairs_in


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("loss=0.5", {"loss": 0.5}),
        ("[00:05<00:05, 99.5it/s, loss=0.5, acc=0.9]", {"loss": 0.5, "acc": 0.9}),
        ("INFO:root:loss=0.25", {"loss": 0.25}),
        ("2026-01-01 10:00:00 | train | loss=.5;lr=5.", {"loss": 0.5, "lr": 5.0}),
        ("val/loss=1e-3 top-5=2E+2 hits@10=3 a.b_c=-4", {"val/loss": 1e-3, "top-5": 200.0, "hits@10": 3, "a.b_c": -4}),
        ("acc=91.2% done.", {"acc": 91.2}),
        ("the loss=0.5.", {"loss": 0.5}),
        ("(loss=0.5) {acc=1}", {"loss": 0.5, "acc": 1.0}),
        ("x=inf y=-Infinity z=+INF", {"x": math.inf, "y": -math.inf, "z": math.inf}),
        ("x=1 x=2", {"x": 2.0}),
        ("\x1b[32mloss=0.5\x1b[0m", {"loss": 0.5}),
        ("größe=3", {"größe": 3.0}),
        ("a=1,b=2", {"a": 1.0, "b": 2.0}),
    ],
)
def test_pairs_are_found_wherever_they_stand(line: str, values: dict[str, float]) -> None:
    assert pairs_in(line.encode()).values == values


@pytest.mark.parametrize(
    "line",
    [
        "--lr=0.1 -x=3",
        "https://example.org/?page=2&size=10",
        "version=1.2.3",
        "time=3.2s size=10MB at=10:30",
        "n=1,000",
        "x=1,2,3",
        "path=/a/b=3",
        "ratio=1/2",
        "loss = 0.5",
        "loss: 0.5",
        'loss="0.5"',
        "a==1",
        "=1",
        "x=",
        "x=nano x=infra x=0x10 x=1e x=1_000 x=- x=.",
        "3x=1",
        "x=1e5.5",
        "key=value",
    ],
)
def test_what_only_looks_like_a_pair_is_none(line: str) -> None:
    assert pairs_in(line.encode()) is PLAIN


def test_nan_is_kept() -> None:
    assert math.isnan(pairs_in(b"loss=nan").values["loss"])
    assert math.isnan(pairs_in(b"loss=NaN,").values["loss"])


@pytest.mark.parametrize(
    ("line", "step", "of", "values"),
    [
        (b"step=12 loss=1", 12, None, {"loss": 1.0}),
        (b"step=12/50 loss=1", 12, 50, {"loss": 1.0}),
        (b"epoch=3 step=12 loss=1", 12, None, {"epoch": 3.0, "loss": 1.0}),
        (b"step=12 global_step=500", 500, None, {"step": 12.0}),
        (b"iter=7", 7, None, {}),
        (b"epoch=1.5 loss=1", None, None, {"epoch": 1.5, "loss": 1.0}),
        (b"step=1e3", 1000, None, {}),
        (b"step=9007199254740993", 9007199254740993, None, {}),
        (b"step=nan loss=1", None, None, {"loss": 1.0}),
        (b"step=99999999999999999999", None, None, {"step": 1e20}),
    ],
)
def test_the_step_is_the_most_telling_whole_number(
    line: bytes, step: int | None, of: int | None, values: dict[str, float]
) -> None:
    pairs = pairs_in(line)
    found = {name: value for name, value in pairs.values.items() if not math.isnan(value)}
    assert (pairs.step, pairs.of, found) == (step, of, values)


def test_a_step_that_is_only_an_epoch_says_so() -> None:
    assert pairs_in(b"epoch=3 loss=1").is_epoch
    assert not pairs_in(b"epoch=3 step=1").is_epoch
    assert not pairs_in(b"loss=1").is_epoch


def test_a_name_too_long_for_a_curve_is_none() -> None:
    assert pairs_in(b"a" * 101 + b"=1") is PLAIN
    assert pairs_in(b"a" * 100 + b"=1").values == {"a" * 100: 1.0}
