from __future__ import annotations

import tracemalloc

import pytest

from stoker.core.clock import FakeClock
from stoker.engine.runners.program.output import CONTROLS_PER_WINDOW, WINDOW_S, OutputLines
from stoker.engine.runners.program.trainer_lines import LINE_BYTES


def test_lines_without_a_number_are_given_if_they_may_name_columns_or_are_not_finite() -> None:
    lines = OutputLines(FakeClock())
    output = b"epoch  loss\n1  0.5\n| val_acc | time |\nloss: nan\n2  0.4\n"
    others = b"hello\n\na  line of\ttext | without a measure\nINFO: a loss\nbye\n"
    assert lines.feed(others + output + others) == output.splitlines()
    assert lines.lost == 0


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_it_does_not_matter_where_chunks_end(size: int) -> None:
    output = b"step=1 loss=2\r\nnothing\rloss=3\n\n" + b"x" * 20 + b"=4\nlast=5"
    lines = OutputLines(FakeClock())
    given = [line for at in range(0, len(output), size) for line in lines.feed(output[at : at + size])]
    assert given == [b"step=1 loss=2", b"loss=3", b"x" * 20 + b"=4"]
    assert lines.finish() == [b"last=5"]
    assert lines.lost == 0


def test_a_line_without_an_end_is_cut_and_takes_no_memory() -> None:
    lines = OutputLines(FakeClock())
    chunk = b"a=1 " * 25_000
    lines.feed(chunk)
    tracemalloc.start()
    for _ in range(200):
        assert lines.feed(chunk) == []
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 * LINE_BYTES + len(chunk)
    (line,) = lines.feed(b"\n")
    assert len(line) == LINE_BYTES + 1
    assert lines.feed(b"b=2\n") == [b"b=2"]


def test_too_many_lines_are_counted_and_the_last_is_given_when_there_is_time() -> None:
    clock = FakeClock()
    lines = OutputLines(clock, lines_per_window=3)
    assert lines.feed(b"".join(b"x=%d\n" % number for number in range(10))) == [b"x=0", b"x=1", b"x=2"]
    assert lines.feed(b"x=10\nplain\n") == []
    assert lines.lost == 8
    clock.advance(WINDOW_S)
    assert lines.feed(b"") == [b"x=10"]
    assert lines.lost == 7
    assert lines.feed(b"x=11\nx=12\nx=13\nx=14\n") == [b"x=11", b"x=12"]
    assert lines.lost == 9
    assert lines.finish() == [b"x=14"]
    assert lines.lost == 8


def test_long_lines_use_up_more_of_what_may_be_read() -> None:
    lines = OutputLines(FakeClock(), lines_per_window=100)
    given = lines.feed((b"x=1 " * 10_000 + b"\n") * 5)
    assert len(given) == 1


def test_what_controls_something_is_given_when_nothing_else_is() -> None:
    lines = OutputLines(FakeClock(), lines_per_window=1)
    flood = b'{"kind":"step","step":1}\n' * 5
    assert lines.feed(flood + b'{"kind":"saved","path":"a"}\n' + flood + b'{"kind":"done"}\n') == [
        b'{"kind":"step","step":1}',
        b'{"kind":"saved","path":"a"}',
        b'{"kind":"done"}',
    ]
    assert lines.lost == 9
    assert lines.finish() == []


def test_a_flood_of_last_words_is_bounded_too() -> None:
    lines = OutputLines(FakeClock(), lines_per_window=1)
    given = lines.feed(b'{"kind":"done"}\n' * (3 * CONTROLS_PER_WINDOW))
    assert len(given) == 1 + CONTROLS_PER_WINDOW
    assert lines.feed(b'{"kind":"done"}\n') == []


def test_fewer_lines_are_read_if_reading_takes_long() -> None:
    clock = FakeClock()
    lines = OutputLines(clock)
    assert lines.feed(b"loss 1\nloss 2\n") == [b"loss 1", b"loss 2"]
    lines.spent(0.01)
    assert lines.feed(b"loss 3\n" * 97) == [b"loss 3"] * 97
    lines.spent(0.2)
    clock.advance(2.0)
    assert lines.feed(b"loss 4\nloss 5\nloss 6\n") == [b"loss 4"], "the hundredth"
    clock.advance(0.2)
    assert lines.feed(b"loss 7\n") == [b"loss 6", b"loss 7"], "the last one is not lost"
    assert lines.lost == 1


def test_a_line_per_epoch_is_read_however_long_reading_takes() -> None:
    clock = FakeClock()
    lines = OutputLines(clock)
    for epoch in range(5):
        line = f"epoch={epoch} val_loss=0.01".encode()
        assert lines.feed(line + b"\n") == [line]
        lines.spent(0.3)
        clock.advance(0.3)
    assert lines.finish() == []
    assert lines.lost == 0
