from __future__ import annotations

import math

import pytest

from stoker.cookbooks.language.shared.pass_schedule import AdapterProgress, is_checkpoint_due, is_report_due, whose_turn
from tests.later import imported_later

with imported_later():
    from stoker.cookbooks.language.shared.curves import (
        MOST_POINTS,
        PATIENCE,
        CurveRecorder,
        MemberDivergence,
        MemberEvaluations,
        SkippedUpdates,
        after_evaluation,
        after_update,
        is_evaluation_due,
        judge,
        rate_at,
        should_stop,
        warmup_of,
    )


def rates(schedule: str, warmup: int, updates: int) -> list[float]:
    return [
        rate_at(update, peak=2.0, schedule=schedule, warmup=warmup, updates=updates)  # type: ignore[arg-type]
        for update in range(updates)
    ]


def test_a_rate_rises_over_the_warm_up_and_then_follows_its_schedule() -> None:
    assert rates("constant", 2, 4) == [0.0, 1.0, 2.0, 2.0]
    assert rates("linear", 1, 5) == [0.0, 2.0, 1.5, 1.0, 0.5]
    assert rates("cosine", 0, 4) == pytest.approx([2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5)])
    assert rates("cosine", 0, 1) == [2.0]


def test_a_rate_is_never_below_zero_beyond_the_end() -> None:
    assert rate_at(9, peak=1.0, schedule="linear", warmup=0, updates=5) == 0.0


def test_a_share_of_updates_to_warm_up_over_is_rounded_up() -> None:
    assert [warmup_of(100, 3.0), warmup_of(10, 3.0), warmup_of(10, 0.0)] == [3, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "theirs"), [("constant", "constant_with_warmup"), ("linear",) * 2, ("cosine",) * 2])
def test_rates_are_those_of_transformers(ours: str, theirs: str) -> None:
    torch = pytest.importorskip("torch")
    optimization = pytest.importorskip("transformers.optimization")
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = optimization.get_scheduler(theirs, optimiser, num_warmup_steps=7, num_training_steps=50)
    expected = []
    for _ in range(50):
        expected.append(schedule.get_last_lr()[0])
        optimiser.step()
        schedule.step()
    assert rates(ours, 7, 50) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def standing(
    slot: int, turns: str = "synchronized", updates: int = 0, eval_loss: float | None = None
) -> AdapterProgress:
    return AdapterProgress(slot=slot, turns=turns, updates=updates, eval_loss=eval_loss)  # type: ignore[arg-type]


def test_synchronized_members_all_train_in_every_step() -> None:
    assert [whose_turn(step, [standing(2), standing(0)]) for step in range(2)] == [(0, 2)] * 2


def test_members_in_round_robin_train_one_after_the_other() -> None:
    members = [standing(slot, "round_robin") for slot in (0, 1, 4)]
    assert [whose_turn(step, members) for step in range(4)] == [(0,), (1,), (4,), (0,)]


def test_of_members_by_priority_the_worst_trains_and_one_that_was_never_evaluated_before_it() -> None:
    seen = [standing(0, "priority", 5, 1.0), standing(1, "priority", 5, 3.0)]
    assert whose_turn(0, seen) == (1,)
    assert whose_turn(0, [*seen, standing(2, "priority", 4), standing(3, "priority", 1)]) == (3,)


def test_ways_to_take_turns_go_together() -> None:
    members = [standing(0), standing(1, "round_robin"), standing(2, "round_robin"), standing(3, "priority", 0, 1.0)]
    assert [whose_turn(step, members) for step in range(2)] == [(0, 1, 3), (0, 2, 3)]


def test_a_shared_process_of_nobody_has_no_turn() -> None:
    assert whose_turn(3, []) == ()


def test_an_evaluation_is_due_every_so_many_updates_or_every_epoch_and_at_the_end() -> None:
    def due(every: int | None) -> list[int]:
        return [u for u in range(1, 12) if is_evaluation_due(u, updates=11, per_epoch=4, every=every)]

    assert due(None) == [4, 8, 11]
    assert due(5) == [5, 10, 11]


def test_the_best_evaluation_is_the_earliest_of_the_lowest() -> None:
    judged = MemberEvaluations()
    for update, loss in enumerate([3.0, 2.0, 2.0, 2.5], start=1):
        judged = judge(judged, loss, update=update)
    assert (judged.best, judged.best_update, judged.last, judged.worse_in_a_row) == (2.0, 2, 2.5, 2)
    assert should_stop(judged, 2)
    assert not should_stop(judged, 3)
    assert not should_stop(judged, None)


def test_a_better_evaluation_begins_the_count_anew() -> None:
    judged = MemberEvaluations(last=2.0, best=1.0, best_update=1, worse_in_a_row=4)
    assert judge(judged, 0.5, update=9).worse_in_a_row == 0


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_a_member_at_once(loss: float) -> None:
    verdict = after_update(0, loss=loss, is_finite=False)
    assert isinstance(verdict, MemberDivergence)
    assert verdict.metric == "loss"
    assert str(loss) in verdict.why


def test_a_gradient_that_is_not_finite_is_left_out_and_the_third_in_a_row_ends_it() -> None:
    left_out = 0
    for expected in range(1, PATIENCE):
        verdict = after_update(left_out, loss=1.0, is_finite=False)
        assert verdict == SkippedUpdates(left_out=expected)
        left_out = expected
    assert after_update(left_out, loss=1.0, is_finite=True) == SkippedUpdates(left_out=0)
    verdict = after_update(left_out, loss=1.0, is_finite=False)
    assert isinstance(verdict, MemberDivergence)
    assert verdict.metric == "gradient"


def test_an_evaluation_that_is_not_finite_ends_a_member() -> None:
    assert after_evaluation(2.0) is None
    assert isinstance(after_evaluation(math.nan), MemberDivergence)


def test_a_checkpoint_is_due_by_number_or_by_time_but_never_without_an_update() -> None:
    def due(updates: int, every: int | None, since_s: float, cost_s: float = 0.0) -> bool:
        return is_checkpoint_due(updates, every=every, since_s=since_s, cost_s=cost_s)

    assert due(5, 5, 0.0)
    assert not due(4, 5, 1e6)
    assert due(1, None, 61.0)
    assert not due(1, None, 59.0)
    assert not due(0, None, 1e6)
    assert not due(1, None, 100.0, cost_s=4.0)
    assert due(1, None, 201.0, cost_s=4.0)


def test_ordinary_updates_are_told_not_too_often_and_special_ones_always() -> None:
    assert is_report_due(0.0, is_special=True)
    assert not is_report_due(0.01, is_special=False)
    assert is_report_due(0.06, is_special=False)


def test_a_curve_has_a_point_for_every_update_of_a_short_training() -> None:
    book = CurveRecorder(updates=4, per_epoch=2)
    for update in range(1, 5):
        book.note_update(update, loss=float(update), tokens=10, lr=0.5)
        if update == 2:
            book.note_evaluation(update, loss=7.0, lr=0.5)
    assert [(one["step"], one["epoch"], one["loss"], one["eval_loss"]) for one in book.points] == [
        (1, 0.5, 1.0, None),
        (2, 1.0, 2.0, 7.0),
        (3, 1.5, 3.0, None),
        (4, 2.0, 4.0, None),
    ]
    assert book.mean_loss == 2.5


def test_a_curve_of_a_long_training_is_bounded_and_its_points_are_means_over_tokens() -> None:
    book = CurveRecorder(updates=3 * MOST_POINTS, per_epoch=3 * MOST_POINTS)
    for update, (loss, tokens) in enumerate([(1.0, 1), (2.0, 1), (5.0, 2)], start=1):
        book.note_update(update, loss=loss, tokens=tokens, lr=0.0)
    assert [one["loss"] for one in book.points] == [3.25]
    book.note_update(4, loss=1.0, tokens=1, lr=0.0)
    book.note_evaluation(4, loss=9.0, lr=0.0)
    assert [(one["step"], one["loss"], one["eval_loss"]) for one in book.points] == [(3, 3.25, None), (4, 1.0, 9.0)]


def test_a_curve_goes_on_from_its_state() -> None:
    def noted(book: CurveRecorder, updates: range) -> CurveRecorder:
        for update in updates:
            book.note_update(update, loss=1 / update, tokens=update, lr=0.1)
        return book

    whole = noted(CurveRecorder(updates=2500, per_epoch=9), range(1, 12))
    resumed = CurveRecorder(updates=2500, per_epoch=9)
    resumed.resume(noted(CurveRecorder(updates=2500, per_epoch=9), range(1, 6)).state())
    noted(resumed, range(6, 12))
    assert resumed.state() == whole.state()
