"""Whatever a program prints, reading it neither fails nor depends on how the bytes were cut into chunks."""

from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.core.clock import FakeClock
from stoker.core.jsontext import dumps
from stoker.engine.metrics.printed import NOTHING, PrintedLine, PrintedMetrics, may_say
from stoker.engine.runners.program.output import OutputLines
from stoker.engine.runners.program.trainer_lines import (
    LINE_BYTES,
    Eval,
    MalformedTrainerLine,
    TrainerLine,
    TrainerParser,
    TrainerStep,
    parse_control,
    parse_line,
)
from tests.lengths import examples

# Pieces of what programs print, so that draws often come near to something that means something.
PIECES = st.sampled_from(
    [
        *[
            b'{"kind":"step"',
            b',"step":',
            b'"metrics":{',
            b'"kind"',
            b"{",
            b"}",
            b'"',
            b"[",
            b"NaN",
            b'{"$float":"nan"}',
        ],
        *[
            b"stoker-metric:",
            b"step=",
            b"loss=",
            b"=",
            b"0.5",
            b"1e",
            b"-",
            b"nan",
            b"inf",
            b"%",
            b"/",
            b",",
            b".",
            b" ",
        ],
        *[
            b"\n",
            b"\r",
            b"\x1b[1m",
            b"\xff",
            b"\x00",
            "é".encode(),
            b"done",
            b'"done"',
            b'"saved"',
            b"a" * 120,
            b"9" * 400,
        ],
    ]
)
OUTPUT = st.lists(PIECES | st.binary(max_size=6), max_size=40).map(b"".join)
NAMES = st.text(min_size=1, max_size=20)


@settings(max_examples=examples(60, 150), deadline=None)
@given(OUTPUT)
@example(b'{"kind":"step","step":1,"metrics":{"a":1e999}}')
def test_any_line_is_read_as_something_and_can_be_heard(line: bytes) -> None:
    talk = TrainerParser()
    for said in (parse_line(line, PrintedMetrics()), parse_control(line)):
        fault = talk.hear(said)
        assert fault is None or isinstance(fault, str)
        if isinstance(said, MalformedTrainerLine):
            assert len(said.shown) <= 200


@settings(max_examples=examples(32, 80), deadline=None)
@given(OUTPUT, st.lists(st.integers(1, 50), min_size=1, max_size=10))
def test_where_chunks_end_changes_nothing(output: bytes, sizes: list[int]) -> None:
    whole = OutputLines(FakeClock())
    expected = [*whole.feed(output), *whole.finish()]
    parts = OutputLines(FakeClock())
    given_lines, at, turn = [], 0, 0
    while at < len(output):
        size = sizes[turn % len(sizes)]
        given_lines += parts.feed(output[at : at + size])
        at, turn = at + size, turn + 1
    given_lines += parts.finish()
    assert given_lines == expected
    lines = output.replace(b"\r", b"\n").split(b"\n")
    assert expected == [line for line in lines if b"{" in line or may_say(line)]
    # What is not given says nothing.
    assert all(PrintedMetrics().read(line) is NOTHING for line in lines if line not in expected)


@settings(max_examples=examples(32, 80), deadline=None)
@given(st.integers(-(2**63) + 1, 2**63 - 1), st.dictionaries(NAMES, st.floats(), max_size=5))
def test_what_is_written_as_json_is_read_back(step: int, metrics: dict[str, float]) -> None:
    line = {"kind": "step", "step": step, "metrics": metrics}
    for text in (json.dumps(line), dumps(line)):
        if "$" in "".join(metrics):
            continue
        said = parse_line(text.encode("utf-8", "surrogatepass"), PrintedMetrics())
        assert isinstance(said, TrainerStep)
        assert said.step == step
        assert sorted(map(repr, said.metrics.values())) == sorted(map(repr, metrics.values()))


@settings(max_examples=examples(40, 100), deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"q[a-z_]{0,8}([/.@-][a-z0-9_]{1,5})?", fullmatch=True), st.floats(), min_size=1, max_size=5
    ),
    st.sampled_from([" ", ", ", "; ", " | ", ",", "\t"]),
)
def test_pairs_that_a_program_prints_are_found(metrics: dict[str, float], separator: str) -> None:
    line = separator.join(["step=3", *(f"{name}={value!r}" for name, value in metrics.items())])
    pairs = PrintedMetrics().read(line.encode())
    found = dict(pairs.values)
    assert pairs.step == 3
    assert found.keys() == metrics.keys()
    for name, value in metrics.items():
        assert found[name] == value or (math.isnan(found[name]) and math.isnan(value))


@pytest.mark.timing
@pytest.mark.parametrize(
    "unit",
    [
        b"a",
        b"a=",
        b"=",
        b"1",
        b"a=1",
        b"a=1/",
        b"a,",
        b"a=" + b"1" * 300 + b"x ",
        b"{",
        b'{"kind":',
        b"[",
        b'"',
        b"\xff",
        b"x=1e",
    ],
)
def test_time_is_linear_in_a_hostile_line(unit: bytes) -> None:
    def seconds(size: int) -> float:
        line = (unit * (size // len(unit) + 1))[:size]
        best = math.inf
        for _ in range(3):
            started = time.thread_time()
            parse_line(line, PrintedMetrics())
            parse_line(b'{"kind":' + line, PrintedMetrics())
            best = min(best, time.thread_time() - started)
        return best

    # Quadratic time would be 64 times as much, and 64 KiB of it would take seconds.
    assert seconds(LINE_BYTES - 16) < 20 * seconds(LINE_BYTES // 8) + 0.01


@settings(max_examples=examples(40, 100), deadline=None)
@given(st.lists(OUTPUT, max_size=6))
def test_the_last_word_stands_whatever_follows(lines: list[bytes]) -> None:
    talk = TrainerParser()
    talk.hear(parse_line(b'{"kind":"done"}', PrintedMetrics()))
    word = talk.last_word
    for line in lines:
        said: TrainerLine = parse_line(line, PrintedMetrics())
        fault = talk.hear(said)
        assert not (isinstance(said, TrainerStep | Eval) and fault is None)
        assert isinstance(said, PrintedLine) or talk.speaks
    assert talk.last_word is word
