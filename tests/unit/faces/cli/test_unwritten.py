"""Checkpoints that were asked for, and that nobody wrote because the result was known."""

from __future__ import annotations

from pathlib import Path

from stoker.cookbooks.language.train_lora import train_lora
from stoker.faces.cli.unwritten import unwritten_text
from stoker.model.digests import digest_value
from stoker.plan.graph import Node, Plan
from stoker.plan.outcome import Ending, NodeResult
from stoker.plan.sweep_plan import TrialNodes
from stoker.worker.job_folder import JobSpec
from stoker.worker.ordering import Order
from stoker.worker.trials import Trial

WORDS = "no checkpoints where they were wanted; --rerun train_lora trains again and writes them"


def order(folder: Path, *labels: str) -> Order:
    """Order one training for each label, with a folder for checkpoints that is called like it."""
    spec = JobSpec(
        attempt="a", job_id=digest_value("t", 1), name="job", recipe="", args={}, folder="", started_s=0.0, stoker=""
    )
    nodes, trials = [], []
    for number, label in enumerate(labels, 1):
        node = f"{number}.train_lora"
        nodes.append(Node(id=node, stage=train_lora, args={"checkpoints": str(folder / label)}))
        parts = TrialNodes(final=node, keep=(), nodes=(node,))
        trials.append(Trial(number=number, label=label, point={}, args={}, job_id=spec.job_id, nodes=parts))
    return Order(plan=Plan(name="job", nodes=tuple(nodes), final=nodes[0].id), spec=spec, trials=tuple(trials))


def told(wanted: Order, ending: Ending) -> str:
    return unwritten_text(wanted, {node.id: NodeResult(ending=ending) for node in wanted.plan.nodes})


def test_what_was_known_and_has_no_checkpoints_is_named_in_a_sweep_and_alone(tmp_path: Path) -> None:
    assert told(order(tmp_path, "a", "b"), Ending.HIT) == f"a, b were known, and have {WORDS}"
    assert told(order(tmp_path, ""), Ending.HIT) == f"job was known, and has {WORDS}"
    (tmp_path / "a" / "best").mkdir(parents=True)
    assert told(order(tmp_path, "a", "b"), Ending.HIT) == f"b was known, and has {WORDS}"
    assert told(order(tmp_path, "a"), Ending.HIT) == ""


def test_what_ran_or_failed_is_none_that_was_known(tmp_path: Path) -> None:
    assert told(order(tmp_path, "a", "b"), Ending.RAN) == told(order(tmp_path, "a"), Ending.FAILED) == ""
