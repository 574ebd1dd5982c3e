"""`stages.json` of a job's folder: the stages of its plan and what each needs, for those who show them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.engine.plan import Plan
from stoker.host.durable import read_regular
from stoker.jobs.job_folder import JobFolder

STAGES = "stages.json"
MOST_STAGES = 20_000
"""A sweep with more has no file: its trials are shown, not their stages."""
_MOST_NEEDS = 1000
_LARGEST_BYTES = 16 << 20


@frozen
class PlannedStage:
    """One node of a plan."""

    node: str
    stage: str = ""
    needs: tuple[str, ...] = ()
    """The nodes that feed it."""


def stages_paper(plan: Plan) -> dict[str, bytes]:
    """Return the file of a plan by its name; nothing if the plan is very large."""
    if len(plan.nodes) > MOST_STAGES:
        return {}
    stages = [{"node": node.id, "stage": node.stage.name, "needs": list(node.producers())} for node in plan.nodes]
    return {STAGES: dumps({"v": 1, "stages": stages}).encode()}


def read_stages(folder: JobFolder) -> list[PlannedStage]:
    """Return the stages of a job's plan in its order; none if the folder does not say. Never raises."""
    try:
        raw = loads(read_regular(os.path.join(folder.path, STAGES), _LARGEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    listed = raw.get("stages") if isinstance(raw, dict) else None
    return [_stage(one) for one in _listed(listed)[:MOST_STAGES] if isinstance(one, dict) and one.get("node")]


def _stage(raw: dict[str, Any]) -> PlannedStage:
    needs = _listed(raw.get("needs"))[:_MOST_NEEDS]
    return PlannedStage(node=str(raw["node"]), stage=str(raw.get("stage", "")), needs=tuple(map(str, needs)))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
