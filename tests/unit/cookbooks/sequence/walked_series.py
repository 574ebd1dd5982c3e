"""Run recipes of the cookbook, stage by stage, in this process; and small windows for tests of what lies below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stoker.authoring import Plan, StageContext
from stoker.cookbooks.sequence import recipes
from stoker.cookbooks.sequence.arrays import SeriesArrays, WindowArrays, cut
from stoker.cookbooks.sequence.columns import settle
from stoker.cookbooks.sequence.schemas import SeriesLoadArgs, WindowArgs
from stoker.engine.stage import perform

SMALL: dict[str, Any] = {"window": 8, "stride": 6, "epochs": 2, "width": 8, "batch": 16}


def compiled(name: str, **given: Any) -> Plan:
    recipe = getattr(recipes, name)
    plan: Plan = recipe.compile(recipe.args.build(given, owner=recipe.name))
    return plan


def walk(plan: Plan, folder: Path, known: dict[str, Any] | None = None, *, until: str = "report") -> dict[str, Any]:
    """Return what every node made; nodes that are known already are not run again."""
    made: dict[str, Any] = dict(known or {})
    for node in plan.nodes:
        if node.id in made:
            continue
        out = folder / node.id
        out.mkdir(parents=True)
        inputs = {port.name: made[node.inputs[port.name][0]] for port in node.stage.ports}
        job = context(node.id, out, diverges_on=node.stage.diverges_on)
        made[node.id] = perform(node.stage, job, inputs, node.stage.args.make(node.args))
        node.stage.output.check_folder(str(out))
        if node.id == until:
            break
    return made


def context(node: str, out: Path, *, said: list[dict[str, Any]] | None = None, **more: Any) -> StageContext:
    emit = (said if said is not None else []).append
    scratch = str(out.parent / f"{out.name}.scratch")
    return StageContext(node=node, out=str(out), emit=emit, is_cancelled=lambda: False, scratch=scratch, **more)


def settled(frame: pd.DataFrame, **choice: Any) -> SeriesArrays:
    return settle(frame, SeriesLoadArgs(**choice), form="csv", sha256=None, notes=())


def small_windows(rows: int = 160, *, classes: bool = False, horizon: int = 2) -> WindowArrays:
    """A noisy wave, or one that is now slow and now quick."""
    random = np.random.default_rng(3)
    quick = (np.arange(rows) // 16) % 2
    turns = np.cumsum(np.where(quick, 1.5, 0.4)) if classes else 0.5 * np.arange(rows)
    frame = pd.DataFrame({"a": np.sin(turns) + random.normal(0, 0.1, rows), "b": random.normal(0, 1, rows)})
    if classes:
        frame["pace"] = np.where(quick, "quick", "slow")
    how = WindowArgs(window=8, stride=1, horizon=horizon, validation_percent=20, test_percent=20)
    return cut(settled(frame, target="pace" if classes else "a"), how)
