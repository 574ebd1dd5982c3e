from __future__ import annotations

import json
import math

import pytest

from stoker.engine.metrics.printed import PrintedLine, PrintedMetrics
from stoker.engine.runners.program.trainer_lines import (
    LINE_BYTES,
    Contract,
    Eval,
    Heartbeat,
    MalformedTrainerLine,
    Metrics,
    TrainerCheckpoint,
    TrainerCompletion,
    TrainerFailure,
    TrainerLine,
    TrainerStep,
    UnknownTrainerLine,
    parse_control,
    parse_line,
)


def parsed(line: bytes) -> TrainerLine:
    return parse_line(line, PrintedMetrics())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"kind":"contract","version":1}', Contract(version=1)),
        (b'{"kind":"step","step":12}', TrainerStep(step=12)),
        (
            b'{"kind":"step","step":12,"of":100,"metrics":{"loss":0.5}}',
            TrainerStep(step=12, of=100, metrics={"loss": 0.5}),
        ),
        (b'{"kind":"step","step":3,"lost":7}', TrainerStep(step=3, lost=7)),
        (b'{"kind":"eval","metrics":{"acc":1}}', Eval(metrics={"acc": 1.0})),
        (b'{"kind":"saved","path":"ckpt.pt","step":4}', TrainerCheckpoint(path="ckpt.pt", step=4)),
        (b'{"kind":"done"}', TrainerCompletion()),
        (b'{"kind":"failed","message":"no data"}', TrainerFailure(message="no data")),
        (b'{"kind":"failed"}', TrainerFailure(message="")),
        (b'{"kind":"heartbeat","quiet_s":2.5}', Heartbeat(quiet_s=2.5)),
        (b'  { "step" : 1.0 , "kind" : "step" }\r\n', TrainerStep(step=1)),
    ],
)
def test_every_kind_of_the_contract_is_read(line: bytes, said: TrainerLine) -> None:
    assert parsed(line) == said
    assert parse_control(line) == said


@pytest.mark.parametrize("text", ["NaN", '{"$float":"nan"}'])
def test_nan_is_kept_whoever_wrote_it(text: str) -> None:
    said = parsed(f'{{"kind":"step","step":1,"metrics":{{"loss":{text}}}}}'.encode())
    assert isinstance(said, TrainerStep)
    assert math.isnan(said.metrics["loss"])


@pytest.mark.parametrize(
    ("text", "value"), [("-Infinity", -math.inf), ('{"$float":"inf"}', math.inf), ("1e999", math.inf)]
)
def test_infinities_are_kept(text: str, value: float) -> None:
    assert parsed(f'{{"kind":"done","metrics":{{"x":{text}}}}}'.encode()) == TrainerCompletion(metrics={"x": value})


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"kind":"step"}', "step: step is missing"),
        (b'{"kind":"step","step":true}', "step: step is a whole number"),
        (b'{"kind":"step","step":1.5}', "step: step is a whole number"),
        (b'{"kind":"step","step":"3"}', "step: step is a whole number"),
        (b'{"kind":"step","step":9223372036854775808}', "step: step is a whole number"),
        (b'{"kind":"step","step":1,"metrics":[1]}', "step: metrics is an object of numbers by name"),
        (b'{"kind":"step","step":1,"metrics":{"a":"1"}}', "step: metrics.a is not a number"),
        (b'{"kind":"step","step":1,"metrics":{"a":false}}', "step: metrics.a is not a number"),
        (b'{"kind":"step","step":1,"metrics":{"a":{"$float":"NaN"}}}', "step: metrics.a is not a number"),
        (b'{"kind":"saved"}', "saved: path is a file's name"),
        (b'{"kind":"saved","path":"a\\u0000b"}', "saved: path is a file's name"),
        (b'{"kind":"failed","message":3}', "failed: message is text"),
        (b'{"kind":["step"]}', "not a JSON object with a kind"),
        (b'{"kind":"st', "not JSON"),
        (b'{"kind":"step","step":1} trailing', "not JSON"),
        (b'{"kind":' + b"[" * 5000, "not JSON"),
        (b'{"kind":"step","step":' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_a_malformed_line_says_what_is_wrong_with_it(line: bytes, why: str) -> None:
    said = parsed(line)
    assert isinstance(said, MalformedTrainerLine)
    assert said.why == why
    assert line.decode().startswith(said.shown)


def test_a_kind_that_the_contract_does_not_have_is_named() -> None:
    assert parsed(b'{"kind":"finished"}') == UnknownTrainerLine(kind="finished")


@pytest.mark.parametrize(
    "line",
    [b"", b"hello", b"{}", b'[{"kind":"done"}]', b"\xff\xfe\x00", b"kind: step"],
)
def test_other_lines_are_plain_output(line: bytes) -> None:
    assert parsed(line) == PrintedLine()


def test_pairs_of_a_plain_line_come_with_it() -> None:
    assert parsed(b"step=12/100 loss=0.5 acc=91.2%\n") == PrintedLine(
        step=12, of=100, values={"loss": 0.5, "acc": 91.2}, spelt={"loss": "loss", "acc": "acc"}
    )


def test_a_metric_line_holds_numbers_and_nothing_else() -> None:
    assert parsed(b"stoker-metric: step=3 loss=0.5, val/acc=-1e-3") == Metrics(
        step=3, values={"loss": 0.5, "val/acc": -0.001}
    )


@pytest.mark.parametrize("rest", [b"", b" loss", b" loss=", b" loss=high", b" loss=0.5 done", b" =3", b" loss=1_000"])
def test_a_metric_line_with_anything_else_is_malformed(rest: bytes) -> None:
    said = parsed(b"stoker-metric:" + rest)
    assert isinstance(said, MalformedTrainerLine)
    assert said.is_metric_line


def test_a_metric_line_controls_nothing() -> None:
    assert parsed(b"stoker-metric: done=1 failed=0") == Metrics(step=None, values={"done": 1.0, "failed": 0.0})


def test_a_long_line_is_plain_output_and_no_number_is_cut_in_two() -> None:
    line = b"loss=1 " + b"a" * (LINE_BYTES - 8) + b" y=123456"
    assert parsed(line) == PrintedLine(values={"loss": 1.0}, spelt={"loss": "loss"})


def test_a_long_line_of_the_control_file_is_malformed() -> None:
    said = parse_control(json.dumps({"kind": "failed", "message": "x" * LINE_BYTES}).encode())
    assert isinstance(said, MalformedTrainerLine)


def test_invalid_text_in_a_message_is_no_fault() -> None:
    assert parsed(b'{"kind":"failed","message":"caf\xe9"}') == TrainerFailure(message="caf\ufffd")


def test_of_the_ranks_of_a_gang_the_first_speaks_for_all():
    for line in (b"step=3 loss=0.5\n", b'{"kind": "step", "step": 3}', b"stoker-metric: loss=1"):
        assert parsed(b"[rank 0] " + line) == parsed(line)
        assert parsed(b"[rank 12] " + line) == PrintedLine()
