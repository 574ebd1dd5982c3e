from __future__ import annotations

from stoker.engine.metrics.printed import PrintedMetrics
from stoker.engine.runners.program.trainer_lines import OutputSteps


def placed(*lines: bytes) -> list[int]:
    steps = OutputSteps()
    printed = PrintedMetrics()
    return [steps.place_plain(printed.read(line)) for line in lines]


def test_a_line_stands_where_it_says() -> None:
    assert placed(b"step=5 loss=1", b"step=7 loss=1") == [5, 7]


def test_a_line_that_does_not_say_stands_where_the_last_one_did() -> None:
    assert placed(b"step=5 loss=1", b"val_loss=2", b"step=6 loss=1") == [5, 5, 6]


def test_lines_are_counted_where_no_line_says() -> None:
    assert placed(b"loss=1", b"loss=2", b"loss=3") == [0, 1, 2]


def test_epochs_whose_steps_begin_anew_are_put_one_behind_the_other() -> None:
    lines = [b"epoch=%d step=%d loss=1" % (epoch, step) for epoch in range(3) for step in range(4)]
    assert placed(*lines) == list(range(12))


def test_the_same_for_those_who_count_from_one() -> None:
    lines = [b"epoch=%d step=%d loss=1" % (epoch, step) for epoch in (1, 2) for step in (1, 2, 3)]
    assert placed(*lines) == [1, 2, 3, 4, 5, 6]


def test_steps_that_go_on_through_the_epochs_stay_as_they_are() -> None:
    assert placed(b"epoch=0 step=0 l=1", b"epoch=0 step=9 l=1", b"epoch=1 step=10 l=1", b"epoch=1 step=19 l=1") == [
        0,
        9,
        10,
        19,
    ]


def test_a_line_at_the_end_of_an_epoch_stands_at_its_last_step() -> None:
    assert placed(
        b"epoch=0 step=0 l=1", b"epoch=0 step=9 l=1", b"epoch=0 acc=1", b"epoch=1 step=0 l=1", b"epoch=1 acc=1"
    ) == [0, 9, 9, 10, 10]


def test_epochs_are_steps_where_there_are_no_others() -> None:
    assert placed(b"epoch=1 acc=1", b"epoch=2 acc=1") == [1, 2]


def test_a_program_may_go_back_to_an_earlier_step() -> None:
    assert placed(b"step=5 loss=1", b"step=3 loss=1") == [5, 3]
