from __future__ import annotations

from stoker.engine.metrics.printed import NOTHING, PrintedMetrics
from stoker.engine.runners.program.trainer_lines import OutputSteps


def placed(*lines: bytes) -> list[int | None]:
    return [place if place is None else place[0] for place in places(*lines)]


def places(*lines: bytes) -> list[tuple[int, int | None] | None]:
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


def test_a_line_that_only_names_its_step_places_those_behind_it() -> None:
    assert placed(b"STEP: 10", b"loss: 1", b"test loss: 2", b"STEP: 20", b"loss: 1") == [10, 10, 10, 20, 20]
    assert placed(b"Epoch 3/24", b"loss: 1", b"Epoch 4/24", b"loss: 1") == [3, 3, 4, 4]


def test_epochs_that_are_named_in_lines_of_their_own_are_put_one_behind_the_other_too() -> None:
    assert placed(b"Epoch 1", b"step 100 loss 1", b"step 200 loss 1", b"Epoch 2", b"step 100 loss 1")[-1] == 300


def test_the_last_step_is_that_of_the_epoch_if_steps_restart_in_each() -> None:
    lines = [b"Epoch [%d/5], Step [%d/600], Loss: 0.4" % (epoch, step) for epoch in (1, 2) for step in (300, 600)]
    assert places(*lines) == [(300, 600), (600, 600), (900, 1200), (1200, 1200)]


def test_bars_of_epochs_follow_each_other_whatever_the_first_epoch_is_called() -> None:
    for first in (0, 1):
        lines = [
            b"Epoch %d: 50%%|##| %d/100 [loss=1]" % (epoch, at) for epoch in (first, first + 1) for at in (50, 100)
        ]
        assert placed(*lines) == [50, 100, 150, 200]
    assert places(b"Epoch 1/5", b"40/100 loss: 1") == [(1, 5), (40, 500)]


def test_a_bar_of_another_length_stands_at_the_last_step() -> None:
    train, check = b"50%|##| 50/100 [loss=1]", b"Evaluating: 10%|#| 1/10 [loss=2]"
    assert placed(train, check, train) == [50, 50, 50]
    # Without a word for its data, it would be taken for the training's.
    assert placed(b"Epoch 1/5", train, b"7/10 - loss: 1", b"Epoch 2/5", b"7/10 - loss: 1")[1:] == [50, None, 50, 17]


def test_bars_without_epochs_follow_each_other() -> None:
    lines = [b"50%|##| 50/100 [loss=1]", b"100%|####| 100/100 [loss=1]", b"10%|#| 10/100 [loss=1]"]
    assert places(*lines) == [(50, 100), (100, 100), (110, None)]


def test_a_bar_on_the_other_stream_places_what_is_printed_beside_it() -> None:
    done, shown = b"100%|####| 500/500 [00:01<00:00]", b" 1%|#| 10/1000 [00:01<00:00]"
    assert placed(done, shown, b"{'loss': 1}", shown.replace(b"10/", b"20/"), b"{'loss': 1}") == [
        None,
        None,
        10,
        20,
        20,
    ]
    # That of a download is over before anything is measured, and others have a title.
    assert placed(done, b"loss: 1", b"loss: 1") == [None, 0, 1]
    assert PrintedMetrics().read(b"Map: 50%|##| 50/100 [00:01<00:00]") is NOTHING
