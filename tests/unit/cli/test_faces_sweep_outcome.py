from __future__ import annotations

import math
from typing import Any

from stoker.cli.run_report import best_text, where_text
from stoker.core.digests import digest_value
from stoker.core.job import TrialNodes
from stoker.jobs.trials import TrialEnd
from tests.fakes.jobs import made_trial


def end(number: int, state: str = "completed", **metrics: Any) -> TrialEnd:
    nodes = TrialNodes(final="run", keep=(), nodes=("run",))
    trial = made_trial(
        number=number, label=f"lr={number}", point={}, args={}, job_id=digest_value("t", number), nodes=nodes
    )
    return TrialEnd(trial=trial, state=state, metrics=metrics)


def test_the_best_of_some_trials_is_named_with_what_it_is_best_by() -> None:
    assert best_text([end(1, loss=0.5), end(2, loss=0.412)], {}) == "Best lr=2 (loss 0.412)."
    assert best_text([end(1, accuracy=0.9), end(2, accuracy=0.8)], {}) == "Best lr=1 (accuracy 0.9)."


def test_what_the_recipe_names_goes_before_what_names_suggest() -> None:
    ends = [end(1, loss=0.1, f1=0.2), end(2, loss=0.3, f1=0.9)]
    assert best_text(ends, {"rank_by": "f1"}) == "Best lr=2 (f1 0.9)."


def test_where_there_is_nothing_to_compare_nothing_is_best() -> None:
    assert best_text([], {}) == ""
    assert best_text([end(1, loss=0.5)], {}) == ""
    assert best_text([end(1), end(2)], {}) == ""
    assert best_text([end(1, loss=0.5), end(2, "failed", loss=0.1)], {}) == ""
    assert best_text([end(1, epoch=2, lr=0.1), end(2, epoch=3, lr=0.2)], {}) == ""


def test_trials_that_all_diverged_have_no_best_and_are_not_ranked_by_their_epoch_or_speed() -> None:
    assert best_text([end(1, loss=math.nan), end(2, loss=math.inf)], {}) == "No best: no trial has a finite loss."
    ends = [end(n, epoch=2.0, grad_norm=1.0, samples_per_second=9.0, loss=1.0 * n) for n in (1, 2)]
    assert best_text(ends, {}) == "Best lr=1 (loss 1)."
    ends = [end(n, epoch=2.0, samples_per_second=9.0, loss=math.nan, val_loss=math.nan) for n in (1, 2)]
    assert best_text(ends, {}) == "No best: no trial has a finite val_loss."


def test_a_value_that_is_none_never_wins() -> None:
    assert best_text([end(1, loss=math.nan), end(2, loss=0.7), end(3)], {}) == "Best lr=2 (loss 0.7)."


def test_how_the_best_adapter_is_loaded_is_told_unless_there_is_no_base_to_load() -> None:
    assert where_text("out/best", {"org/name"}) == 'best: PeftModel.from_pretrained(base, "out/best")'
    assert where_text("out/best", {"tiny"}) == "best: out/best"
    assert where_text("out/best", ()) == "best: out/best"
