"""A stage that needs nothing but Stoker, and what a process imports to do it."""

from __future__ import annotations

import sys

BEFORE = frozenset(sys.modules)

from collections.abc import Callable  # noqa: E402 - everything from here on counts
from typing import Any  # noqa: E402

from stoker.authoring import JsonKind, StageContext, stage  # noqa: E402
from stoker.engine.runners.stage_runner import answer_of, do_work  # noqa: E402


class Small(JsonKind):
    """A small JSON object."""

    name = "test-small"
    version = 1


@stage("test/small")
def small(job: StageContext) -> Small:
    return job.save(Small, {"value": 1})


def run_work(request: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Do the stage and send what was imported for it."""
    work = {"entry": f"{__name__}:small", "node": "small", "args": {}, "inputs": {}, "devices": [], "attempt": 1}
    outcome = do_work({**work, "out": request["out"], "scratch": ""}, emit, lambda: False)
    imported = sorted(name for name in sys.modules.keys() - BEFORE if name != __name__)
    emit({**answer_of(outcome), "imported": imported})
