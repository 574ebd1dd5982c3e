from __future__ import annotations

from typing import Any

from stoker.authoring import PlanBuilder
from stoker.cli.local_run import at_once
from stoker.core.device import Capacity, Needs
from stoker.core.digests import digest_value
from stoker.engine.plan import join_plans
from stoker.jobs.trials import Trial
from stoker.views.stage_lines import few_metrics
from stoker.views.trial_lines import Titles, titles_of, trial_text
from tests.fakes.jobs import made_trial
from tests.unit.engine.lab import card
from tests.unit.engine.stages import NumberArgs, add, double, number

GIB = 2**30


def sweep(values: list[int], *, base: int | None = 0) -> tuple[Any, list[Trial]]:
    plans = []
    for value in values:
        start = PlanBuilder("sum").start(number, NumberArgs(value=base if base is not None else value))
        plans.append(start.then(double).then(add, NumberArgs(value=value)).finish())
    joint = join_plans("sum", plans)
    trials = [
        made_trial(number=n, label=f"x={value}", point={}, args={}, job_id=digest_value("t", n), nodes=nodes)
        for n, (value, nodes) in enumerate(zip(values, joint.trials, strict=True), 1)
    ]
    return joint.plan, trials


def test_a_trial_with_one_stage_of_its_own_is_called_by_what_varies() -> None:
    plan, trials = sweep([1, 20])
    titles = titles_of(plan, trials, job="mine")
    assert titles.names == {"1.add": "x=1", "2.add": "x=20"}
    assert titles.of_trials == {"1.add", "2.add"}
    assert (titles.width, titles.job) == (4, "mine")


def test_a_trial_with_several_says_which() -> None:
    plan, trials = sweep([1, 2], base=None)
    assert titles_of(plan, trials).names["2.double"] == "x=2 double"


def test_a_sweep_of_one_point_is_called_by_it_too() -> None:
    plan, trials = sweep([7])
    assert titles_of(plan, trials).names["add"] == "x=7 add"


def test_without_a_sweep_stages_keep_their_names() -> None:
    plan, _ = sweep([7])
    assert titles_of(plan, []) == Titles(width=6)


def text(**fields: Any) -> str:
    return trial_text({"trial": 3, "label": "x=1", **fields}, Titles(width=5, job="mine"), "/somewhere")


def test_the_end_of_a_trial_is_told_with_what_is_worth_knowing() -> None:
    said = text(
        state="completed",
        seconds=112.4,
        metrics={"loss": 0.41234, "acc": 0.9, "f1": 1.0, "more": 3},
        peak_bytes=3 * GIB,
        out="/somewhere/stoker-out/mine/x=1",
    )
    assert said == "x=1     1m52s  loss 0.4123  acc 0.9  f1 1  peak 3.0 GiB  → stoker-out/mine/x=1"
    assert text(state="completed", is_kept=True, metrics={"loss": 1}).endswith("loss 1  kept")
    assert text(state="completed", out="/elsewhere/x").endswith("→ /elsewhere/x")


def test_a_trial_on_a_device_tells_what_it_took_of_it_first() -> None:
    said = text(state="completed", seconds=112.4, peak_bytes=int(4.2 * GIB), peak_gpu_bytes=int(6.1 * GIB))
    assert said == "x=1     1m52s  peak 6.1 GiB GPU, 4.2 GiB RAM"
    assert text(state="completed", peak_gpu_bytes=GIB).endswith("  peak 1.0 GiB GPU")
    assert text(state="completed", peak_bytes=GIB, peak_gpu_bytes=None).endswith("  peak 1.0 GiB")


def test_a_failure_says_why_and_where_its_log_is() -> None:
    said = text(state="failed", seconds=41.0, message="exit 1: ValueError: loss is nan (train.py:88)")
    assert said == "x=1       41s  exit 1: ValueError: loss is nan (train.py:88)  hint: stoker logs mine/3"


def test_a_trial_that_was_stopped_says_so() -> None:
    assert text(state="cancelled").split() == ["x=1", "cancelled"]


def test_how_many_run_at_once_is_what_there_is_room_for() -> None:
    machine, cards = Capacity(cpu=8, memory_bytes=32 * GIB), (card("a"), card("b"))
    assert at_once(Needs(cpu=8), machine, cards, 4) == 1
    assert at_once(Needs(cpu=2), machine, cards, 3) == 3
    assert at_once(Needs(cpu=2), machine, cards, 16) == 4
    assert at_once(Needs(cpu=1, gpu=1), machine, cards, 8) == 2
    assert at_once(Needs(cpu=1, gpu=1, vram_gib=6), machine, cards, 8) == 2
    assert at_once(Needs(cpu=1, gpu=1, vram_gib=6, shares=True), machine, cards, 8) == 6
    assert at_once(Needs(cpu=1, memory_gib=12), machine, cards, 8) == 2
    assert at_once(Needs(cpu=16, gpu=4), machine, cards, 8) == 1


def test_of_many_metrics_few_are_shown_and_what_trials_are_ranked_by_is_one_of_them() -> None:
    many = {"loss": 1.5, "lr": 0.1, "tokens_per_s": 9.0, "eval_loss": 1.25}
    assert list(few_metrics(many)) == ["loss", "tokens_per_s", "eval_loss"]
    assert list(few_metrics(many, is_over=False)) == ["loss", "lr", "eval_loss"]
    assert list(few_metrics({"a": 1, "b": 2, "c": 3, "d": 4})) == ["a", "b", "c"]
    assert few_metrics({}) == {}
    fields = {"label": "a=1", "state": "completed", "seconds": 1.0, "metrics": many}
    assert "eval_loss 1.25" in trial_text(fields, Titles(), "/")
