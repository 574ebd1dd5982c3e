"""Trainings whose results were known, so that nobody wrote the checkpoints that were asked for."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.plan.graph import Node
from stoker.plan.outcome import Ending, NodeResult
from stoker.worker.ordering import Order

_COOKBOOK = "language"
_NAMED = 5


def unwritten_text(order: Order, nodes: Mapping[str, NodeResult]) -> str:
    """Name those of a run that were known and have no checkpoints in their folders; nothing if there are none."""
    wanting = [node for node in order.plan.nodes if _is_unwritten(node, nodes)]
    if not wanting:
        return ""
    titles = {one: trial.label for trial in order.trials for one in trial.nodes.nodes}
    missing = list(dict.fromkeys(titles.get(node.id) or order.spec.name for node in wanting))
    those = ", ".join(missing[:_NAMED]) + (" …" if len(missing) > _NAMED else "")
    known = "was known, and has" if len(missing) == 1 else "were known, and have"
    stage = wanting[0].stage.name.rpartition("/")[2]
    return f"{those} {known} no checkpoints where they were wanted; --rerun {stage} trains again and writes them"


def _is_unwritten(node: Node, nodes: Mapping[str, NodeResult]) -> bool:
    folder, result = node.args.get("checkpoints"), nodes.get(node.id)
    is_known = result is not None and result.ending is Ending.HIT
    if not folder or not is_known or not node.stage.name.startswith(f"{_COOKBOOK}/"):
        return False
    from pathlib import Path

    from stoker.cookbooks.language.records import best_folder

    try:
        return not best_folder(Path(folder)).is_dir()
    except OSError:
        # What we may not look into, we did not write into.
        return True
