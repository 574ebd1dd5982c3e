from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from stoker.core.clock import FakeClock
from stoker.core.text import is_metric_source
from stoker.engine.metrics.metric_names import MEASURES, NOT_MEASURES, SPLITS, normal_name
from stoker.engine.metrics.printed import NOTHING, PrintedLine, PrintedMetrics
from stoker.engine.runners.program.output import ProgramOutput

RECORDED = Path(__file__).parents[3] / "recordings" / "printed_metrics.txt"
"""What well-known trainers print, with a line `→ @STEP name=value …` behind each that becomes a row of curves."""
TRAINERS = dict(re.findall(r"^# (.+)\n((?:.+\n)+)", RECORDED.read_text(encoding="utf-8"), re.MULTILINE))


def read(line: str | bytes) -> PrintedLine:
    return PrintedMetrics().read(line if isinstance(line, bytes) else line.encode())


def recorded_rows(trainer: str, lines: Sequence[str]) -> str:
    """Return lines as a recording has them: with the rows that are reported for each."""
    shown = ""
    reports: list[dict[str, Any]] = []
    output = ProgramOutput(reports.append, FakeClock(), Mock())
    for line in lines:
        if line.startswith("→ "):
            continue
        if trainer == "each line alone":
            output = ProgramOutput(reports.append, FakeClock(), Mock())
        # Progress bars are on standard error.
        output.hear(f"{line}\n".encode(), is_out="%|" not in line)
        rows = [one for one in reports if "row" in one]
        reports.clear()
        shown += f"{line}\n"
        for row in rows:
            values = " ".join(f"{name}={value!r}" for name, value in row["metrics"].items())
            shown += f"→ @{row['row']} {values}\n"
    return shown


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_trainers_print_becomes_rows_of_curves(trainer: str) -> None:
    assert recorded_rows(trainer, TRAINERS[trainer].splitlines()) == TRAINERS[trainer]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_each_value_comes_with_its_spelling(trainer: str) -> None:
    printed = PrintedMetrics()
    for line in TRAINERS[trainer].splitlines():
        found = printed.read(line.encode())
        assert found.spelt.keys() >= found.values.keys() - {"epoch"}


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("loss=0.5", {"loss": 0.5}),
        ("[00:05<00:05, 99.5it/s, loss=0.5, acc=0.9]", {"loss": 0.5, "acc": 0.9}),
        ("INFO:root:loss=0.25", {"loss": 0.25}),
        ("2026-01-01 10:00:00 | train | loss=.5;lr=5.", {"train_loss": 0.5, "lr": 5.0}),
        ("lr=5. loss=1", {"loss": 1.0, "lr": 5.0}),
        ("val/loss=1e-3 top-5=2E+2 hits@10=3 a.b_c=-4", {"val_loss": 1e-3, "top-5": 200.0, "hits@10": 3, "a.b_c": -4}),
        ("acc=91.2% done.", {"acc": 91.2}),
        ("the loss=0.5.", {"loss": 0.5}),
        ("(loss=0.5) {acc=1}", {"loss": 0.5, "acc": 1.0}),
        ("loss=inf y=-Infinity z=+INF", {"loss": math.inf, "y": -math.inf, "z": math.inf}),
        ("loss=1 loss=2", {"loss": 2.0}),
        ("\x1b[32mloss=0.5\x1b[0m", {"loss": 0.5}),
        ("step=1 größe=3", {"größe": 3.0}),
        ("step=1,a=1,b=2", {"a": 1.0, "b": 2.0}),
    ],
)
def test_pairs_are_found_wherever_they_stand(line: str, values: dict[str, float]) -> None:
    assert read(line).values == values


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
        "a==1",
        "=1",
        "x=",
        "x=nano x=infra x=0x10 x=1e x=1_000 x=- x=.",
        "x=1e5.5",
        "key=value",
        "Overriding model.yaml nc=80 with nc=1",
        "optimizer: SGD(lr=0.01, momentum=0.937)",
        "trainer: amp=True, angle=1.0, batch=8, iou=0.7, cfg=None, half=False",
        "/lib/rnn.py:109: UserWarning: non-zero dropout expects num_layers greater than 1, but got dropout=0.2",
        "hidden=128, dropout=0.5",
        "--loss 3",
    ],
)
def test_what_only_looks_like_a_pair_is_none(line: str) -> None:
    assert read(line) is NOTHING


def test_a_pair_in_a_sentence_counts_where_the_line_has_a_step_or_a_measure() -> None:
    assert read("epoch 3 ended with quality=0.7").values == {"quality": 0.7}
    assert read("loss=0.5 with quality=0.7").values == {"loss": 0.5, "quality": 0.7}


def test_a_row_without_a_number_below_the_step_is_of_another_table() -> None:
    printed = PrintedMetrics()
    printed.read(b"epoch   loss   acc")
    assert printed.read(b"1       0.5    0.9").values == {"loss": 0.5, "acc": 0.9}
    assert printed.read(b"all     16     0.9") is NOTHING


def test_nan_is_kept() -> None:
    assert math.isnan(read(b"loss=nan").values["loss"])
    assert math.isnan(read(b"loss=NaN,").values["loss"])


@pytest.mark.parametrize(
    ("line", "step", "of", "values"),
    [
        (b"step=12 loss=1", 12, None, {"loss": 1.0}),
        (b"step=12/50 loss=1", 12, 50, {"loss": 1.0}),
        (b"epoch=3 step=12 loss=1", 12, None, {"epoch": 3.0, "loss": 1.0}),
        (b"step=12 global_step=500", 500, None, {}),
        (b"iter=7", 7, None, {}),
        (b"epoch=1.5 loss=1", None, None, {"epoch": 1.5, "loss": 1.0}),
        (b"step=9007199254740993", 9007199254740993, None, {}),
        (b"step=nan loss=1", None, None, {"loss": 1.0}),
        (b"step=99999999999999999999 loss=1", None, None, {"loss": 1.0}),
    ],
)
def test_the_step_is_the_most_telling_whole_number(
    line: bytes, step: int | None, of: int | None, values: dict[str, float]
) -> None:
    pairs = read(line)
    found = {name: value for name, value in pairs.values.items() if not math.isnan(value)}
    assert (pairs.step, pairs.of, found) == (step, of, values)


def test_a_step_that_is_only_an_epoch_says_so() -> None:
    assert read(b"epoch=3 loss=1").is_epoch
    assert not read(b"epoch=3 step=1").is_epoch
    assert not read(b"loss=1").is_epoch


def test_a_name_too_long_for_a_curve_is_none() -> None:
    assert read(b"loss=1 " + b"a" * 101 + b"=1").values == {"loss": 1.0}
    assert read(b"loss=1 " + b"a" * 100 + b"=1").values == {"loss": 1.0, "a" * 100: 1.0}


def test_the_guide_lists_every_word() -> None:
    guide = (Path(__file__).parents[4] / "docs" / "guides" / "trainer.md").read_text(encoding="utf-8")
    rows = [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in guide.splitlines() if row.startswith("| `")]
    assert set(MEASURES) in rows
    assert set(NOT_MEASURES) in rows
    for name in set(SPLITS.values()):
        assert {word for word, meant in SPLITS.items() if meant == name} in rows


@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("val loss", "val_loss"),
        ("validation_loss", "val_loss"),
        ("valid loss", "val_loss"),
        ("eval/loss", "val_loss"),
        ("Loss/val", "val_loss"),
        ("valLoss", "val_loss"),
        ("dev_acc", "val_acc"),
        ("training loss", "train_loss"),
        ("test_accuracy", "test_accuracy"),
        ("metrics/mAP50-95(B)", "val_map50_95_b"),
        ("metrics/accuracy_top1", "val_accuracy_top1"),
        ("metrics/loss", "metrics_loss"),
        ("average loss", "avg_loss"),
        ("gamma", "gamma"),
    ],
)
def test_one_measure_has_one_name(spelt: str, name: str) -> None:
    assert normal_name(spelt) == name


def test_a_pattern_of_the_user_adds_to_what_is_read() -> None:
    printed = PrintedMetrics([r"loss_(\w+): (\S+)", r"quality (\S+)"])
    assert printed.read(b"step 3 loss_gen: 0.5 quality 7").values == {"loss_gen": 0.5, "gen": 0.5, "value": 7.0}
    assert printed.read(b"quality high").values == {}


def test_a_named_group_of_a_pattern_names_the_curve() -> None:
    printed = PrintedMetrics([r"quality is (?P<quality>\S+)", r"(?P<depth>\d+) deep, (?P<width>\d+) wide"])
    assert printed.read(b"quality is 7").values == {"quality": 7.0}
    assert printed.read(b"3 deep, 4 wide").values == {"depth": 3.0, "width": 4.0}


def test_a_pattern_that_may_take_for_ever_is_not_used() -> None:
    for text in (r"((a+)+)", r"((?:ab|cd)+)x", "(", "()(", r"(x*)*", "(a{2,}){3,}", r"(\w*)(\w*)(\w*)(\w*)y"):
        assert not is_metric_source(text), text
        assert PrintedMetrics([text]).read(b"a" * 60 + b" loss=1").values == {"loss": 1.0}
    for text in (r"loss_(\w+): (\S+)", r"^(?:step|iter) \d+ (\d+)", r"x=(\d+|nan)", "off", "runs/"):
        assert is_metric_source(text), text
    assert PrintedMetrics(["off"]).read(b"loss=1") is NOTHING


class _ThreadTime:
    """Advances by a quarter of a second with each look at it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.25
        return self.now_s


def test_a_pattern_that_took_long_for_one_line_is_not_used_further_and_that_is_logged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logged: list[str] = []
    printed = PrintedMetrics([r"quality (\S+)"], logged.append)
    assert printed.read(b"quality 6").values == {"value": 6.0}
    monkeypatch.setattr(time, "thread_time", _ThreadTime())
    assert printed.read(b"quality 7").values == {"value": 7.0}
    assert printed.read(b"quality 8").values == {}
    assert logged == [r"--metrics 'quality (\S+)' is not used further: it took more than 0.05 s for one line"]


@pytest.mark.timing
@pytest.mark.parametrize(
    "unit",
    [
        b"1 ",
        b"loss: ",
        b"loss 1 ",
        b"a=1 ",
        b"1/",
        b"  x",
        b"|",
        b"loss 1/2 (",
        b"nan ",
        b"-",
        b"    text with  two spaces",
        b"| a | b | c |",
    ],
)
def test_time_is_linear_in_the_line(unit: bytes) -> None:
    def spent_s(size: int) -> float:
        line = (unit * size)[:size]
        begun = time.process_time()
        for _ in range(20):
            PrintedMetrics().read(line)
        return time.process_time() - begun

    spent_s(1000)
    # 8 times if it is linear, 64 times if it is quadratic.
    assert min(spent_s(8000) for _ in range(3)) < 24 * max(min(spent_s(1000) for _ in range(3)), 0.0005)
