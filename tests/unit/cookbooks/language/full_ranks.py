"""What a rank of a gang does in tests: a whole training of every weight, in the folder that all ranks have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.cookbooks.language.kinds import Examples
from stoker.cookbooks.language.schemas import read_training
from stoker.core.errors import Cancelled
from stoker.engine.stage import perform
from tests.unit.cookbooks.language.walked_language import compiled, context

SETTINGS: dict[str, Any] = {"epochs": 2, "batch": 5, "lr": 3e-3, "max_seq_len": 64, "threads": 1, "eval_every": 3}


class StopsAt(list[dict[str, Any]]):
    """Events of a stage that is cancelled at a step."""

    def __init__(self, step: int | None) -> None:
        super().__init__()
        self._step = step

    def append(self, event: dict[str, Any]) -> None:
        if self._step is not None and event.get("step") == self._step:
            raise Cancelled("enough")
        super().append(event)


def train_in(folder: Path, name: str, given: dict[str, Any], stops_at: int | None = None) -> dict[str, Any]:
    """Train as one of the ranks, or alone; return what this one reported, and the curve that was written."""
    node = compiled("full", **{**SETTINGS, **given}).node("train_full")
    out, said = folder / name, StopsAt(stops_at)
    out.mkdir(exist_ok=True)
    job = context("train_full", out, said=said, scratch=folder / "scratch", diverges_on=("loss",))
    inputs = {"examples": Examples.at(str(folder / "examples"))}
    try:
        made = perform(node.stage, job, inputs, node.stage.args.make(node.args))
    except Cancelled:
        return {"said": list(said), "points": []}
    return {"said": list(said), "points": read_training(made.path)["curve"]["points"]}


def train_all(folder: Path, trainings: dict[str, tuple[dict[str, Any], int | None]]) -> dict[str, dict[str, Any]]:
    """Train several times, one after the other; `NAME again` resumes what NAME began."""
    return {name: train_in(folder / name.removesuffix(" again"), "out", *one) for name, one in trainings.items()}
