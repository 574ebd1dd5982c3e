"""A sweep and a comparison for the pages: parameters of each sort, trials in every state, names with markup."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

from stoker.core.errors import NotFound
from stoker.protocol.screen_messages import (
    ComparedBest,
    ComparedValue,
    ComparisonView,
    SweepList,
    SweepParameter,
    SweepSummary,
    SweepTrial,
    SweepView,
)
from stoker.protocol.view_messages import JobView

MARKUP = "<img src=x onerror=alert(1)>"
FIRST = 100
"""Jobs of these numbers are in `page_monitor`, too."""
SCHEDULES = ("cosine", "linear", MARKUP)


def page_sweep(metric: str = "", better: str = "", count: int = 48) -> SweepView:
    """Return trials that are best at lr = 0.01, larger depth and the first schedule."""
    metric = metric or "val_loss"
    if metric not in ("val_loss", "accuracy", MARKUP):
        raise NotFound(f"no trial has a metric {metric!r}", hint="there are: accuracy, val_loss")
    chance = random.Random(5)
    trials = []
    for number in range(FIRST, FIRST + count):
        rate = 10 ** (-4 + 3 * chance.random())
        depth, schedule = chance.choice((2, 4, 8)), chance.choice(SCHEDULES)
        loss = 0.3 + abs(math.log10(rate) + 2) / 2 + 0.5 / depth + SCHEDULES.index(schedule) / 10
        state = {0: "failed", 1: "pending", 2: "running", 3: "pending"}.get(number % 16, "completed")
        has_value = state in ("completed", "running")
        trials.append(
            SweepTrial(
                job=f"resnet/{number}",
                number=number,
                label=f"lr={rate:.4g},depth={depth}",
                state=state,
                parameters={"lr": rate, "depth": depth, "schedule": schedule, "warm up": number % 2 == 0},
                metrics={"val_loss": loss, "accuracy": 1 / (1 + loss), MARKUP: loss**4} if has_value else {},
                best_step=100 * number if has_value else None,
                seconds=60.0 * number if has_value else None,
            )
        )
    is_lower = better != "larger" and (metric != "accuracy" or better == "smaller")
    ranked = sorted(
        (one for one in trials if one.metrics), key=lambda one: one.metrics[metric] * (1 if is_lower else -1)
    )
    placed = [one.model_copy(update={"place": place}) for place, one in enumerate(ranked, 1)]
    rates = [float(one.parameters["lr"]) for one in trials]
    return SweepView(
        name="resnet",
        metric=metric,
        is_lower_better=is_lower,
        metrics=("val_loss", "accuracy", MARKUP),
        jobs=dict(Counter(one.state for one in trials)),
        parameters=(
            SweepParameter(name="lr", is_number=True, is_log=True, low=min(rates), high=max(rates), importance=0.6),
            SweepParameter(name="depth", is_number=True, low=2, high=8, importance=0.3),
            SweepParameter(name="schedule", is_number=False, values=SCHEDULES, importance=0.1),
            SweepParameter(name="warm up", is_number=False, values=("false", "true"), importance=0.0),
        ),
        trials=(*placed, *(one for one in trials if not one.metrics)),
        total=count,
        importance_by="random forest",
        note="ranked by val_loss: guessed by its name",
    )


def page_sweeps(now_s: float) -> SweepList:
    """Return two sweeps, one of them with markup for a name."""
    jobs = page_sweep().jobs
    newest = SweepSummary(
        name="resnet",
        recipe="tabular/gbt",
        submitter="anna",
        jobs=jobs,
        total=48,
        submitted_s=now_s - 7200,
        changed_s=now_s - 60,
    )
    other = newest.model_copy(update={"name": MARKUP, "jobs": {"completed": 3}, "total": 3})
    return SweepList(sweeps=(newest, other), total=2)


def page_comparison(jobs: Sequence[JobView], metric: str = "") -> ComparisonView:
    """Return jobs that differ in their rate and in a setting with markup."""
    count = len(jobs)
    facts = {
        ("config", "lr"): [f"{10**-n}" for n in range(count)],
        ("config", MARKUP): [MARKUP, *[""] * (count - 1)],
        ("code", "train.py"): ["ab"[n % 2] * 12 for n in range(count)],
        ("metrics", "seconds"): [f"{n}m00s" for n in range(count)],
        ("config", "model.depth"): ["4"] * count,
    }
    return ComparisonView(
        jobs=tuple(jobs),
        facts=tuple(
            ComparedValue(section=section, name=name, values=tuple(values), differs=len(set(values)) > 1)
            for (section, name), values in facts.items()
        ),
        metrics=("loss", "val_loss"),
        metric=metric or "val_loss",
        bests=tuple(ComparedBest(step=900 - n, metrics={"val_loss": 0.5 + n / 10, "loss": 0.25}) for n in range(count)),
    )
