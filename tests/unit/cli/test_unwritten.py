"""Checkpoints that were asked for, and that nobody wrote because the result was known."""

from __future__ import annotations

from pathlib import Path

from stoker.cli.local_run import unwritten_text
from stoker.cookbooks.language.train_lora import train_lora
from stoker.core.digests import digest_value
from stoker.core.job import JobSpec, TrialNodes
from stoker.engine.plan import Plan, PlanNode
from stoker.engine.types import NodeEnding, NodeResult
from stoker.jobs.builder import JobBuild
from tests.fakes.jobs import made_trial

WORDS = "no checkpoints in the requested folder; train again with --rerun train_lora"


def order(folder: Path, *labels: str) -> JobBuild:
    """Order one training for each label, with a folder for checkpoints that is called like it."""
    spec = JobSpec(id=digest_value("t", 1), name="job", recipe="")
    nodes, trials = [], []
    for number, label in enumerate(labels, 1):
        node = f"{number}.train_lora"
        nodes.append(PlanNode(id=node, stage=train_lora, args={"checkpoints": str(folder / label)}))
        parts = TrialNodes(final=node, keep=(), nodes=(node,))
        trials.append(made_trial(number=number, label=label, point={}, args={}, job_id=spec.id, nodes=parts))
    return JobBuild(plan=Plan(name="job", nodes=tuple(nodes), final=nodes[0].id), spec=spec, trials=tuple(trials))


def told(wanted: JobBuild, ending: NodeEnding) -> str:
    return unwritten_text(wanted, {node.id: NodeResult(ending=ending) for node in wanted.plan.nodes})


def test_what_was_known_and_has_no_checkpoints_is_named_in_a_sweep_and_alone(tmp_path: Path) -> None:
    assert told(order(tmp_path, "a", "b"), NodeEnding.HIT) == f"a, b have cached results and {WORDS}"
    assert told(order(tmp_path, ""), NodeEnding.HIT) == f"job has a cached result and {WORDS}"
    (tmp_path / "a" / "best").mkdir(parents=True)
    assert told(order(tmp_path, "a", "b"), NodeEnding.HIT) == f"b has a cached result and {WORDS}"
    assert told(order(tmp_path, "a"), NodeEnding.HIT) == ""


def test_what_ran_or_failed_is_none_that_was_known(tmp_path: Path) -> None:
    assert told(order(tmp_path, "a", "b"), NodeEnding.RAN) == told(order(tmp_path, "a"), NodeEnding.FAILED) == ""
