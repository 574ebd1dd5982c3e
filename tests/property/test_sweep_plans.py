"""Joining the plans of trials: nothing is lost, nothing is there twice, and each trial is still itself."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stoker.authoring import PlanBuilder
from stoker.engine.plan import Plan, PlanNode, SweepPlan, join_plans
from tests.unit.engine.stages import NumberArgs, add, number

# A trial: values of its first stages, and for each of its later ones a value and what it reads.
shapes = st.tuples(
    st.lists(st.integers(0, 2), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.sets(st.integers(0, 5), min_size=1, max_size=3)), max_size=3),
)


def plan_of(shape: tuple[list[int], list[tuple[int, set[int]]]]) -> Plan:
    firsts, laters = shape
    builder = PlanBuilder("trial")
    tips = [builder.start(number, NumberArgs(value=value)) for value in firsts]
    for value, reads in laters:
        feeds = [(None, tips[one % len(tips)]) for one in sorted(reads)]
        tips.append(builder.add(add, NumberArgs(value=value), feeds=list(dict.fromkeys(feeds))))
    # Everything that nothing reads is an end.
    return builder.finish(tips[-1], keep=tuple(tips[:-1]))


def meaning(nodes: dict[str, PlanNode], name: str) -> tuple[Any, ...]:
    """What a node is, down to its roots, whatever anything is called."""
    node = nodes[name]
    inputs = tuple((port, *(meaning(nodes, one) for one in feeding)) for port, feeding in sorted(node.inputs.items()))
    return node.stage.name, tuple(sorted(node.args.items())), inputs


def meanings(plan: Plan) -> dict[str, tuple[Any, ...]]:
    nodes = {node.id: node for node in plan.nodes}
    return {name: meaning(nodes, name) for name in nodes}


def check(plans: list[Plan], joint: SweepPlan) -> None:
    together = meanings(joint.plan)
    if len(plans) > 1:
        assert len(set(together.values())) == len(together), "the same work stands there twice"
    assert set(together.values()) == {one for plan in plans for one in meanings(plan).values()}
    for plan, trial in zip(plans, joint.trials, strict=True):
        alone = meanings(plan)
        assert together[trial.final] == alone[plan.final]
        assert [together[one] for one in trial.keep] == [alone[one] for one in plan.keep]
        assert {together[one] for one in trial.nodes} == set(alone.values())
    seen: set[str] = set()
    for node in joint.plan.nodes:
        assert seen.issuperset(node.producers()), "a node stands before what it needs"
        seen.add(node.id)
    assert len(seen) == len(joint.plan.nodes)


@given(st.lists(shapes, min_size=1, max_size=5))
def test_trials_are_joined_without_loss_and_without_repetition(drawn: list[Any]) -> None:
    plans = [plan_of(shape) for shape in drawn]
    check(plans, join_plans("sweep", plans))
