from __future__ import annotations

from stoker.authoring import PlanBuilder
from stoker.core.retry import RetryPolicy
from stoker.engine.plan import Plan, join_plans
from tests.unit.engine.stages import NumberArgs, add, double, number


def trial(base: int, plus: int, *, attempts: int = 1) -> Plan:
    """Two stages that all of one base share, and one of its own."""
    start = PlanBuilder("sum").start(number, NumberArgs(value=base))
    doubled = start.then(double, retry=RetryPolicy(attempts=attempts) if attempts > 1 else None)
    return doubled.then(add, NumberArgs(value=plus)).finish(keep=(doubled,))


def test_what_trials_share_stands_in_the_joint_plan_once() -> None:
    joint = join_plans("sum", [trial(1, 1), trial(1, 2), trial(1, 3)])
    assert [node.id for node in joint.plan.nodes] == ["number", "double", "1.add", "2.add", "3.add"]
    assert [one.final for one in joint.trials] == ["1.add", "2.add", "3.add"]
    assert [one.keep for one in joint.trials] == [("double",)] * 3
    assert joint.trials[1].nodes == ("number", "double", "2.add")


def test_everything_that_a_trial_is_for_is_an_end_of_the_joint_plan() -> None:
    joint = join_plans("sum", [trial(1, 1), trial(1, 2)])
    assert {joint.plan.final, *joint.plan.keep} == {"double", "1.add", "2.add"}
    assert joint.plan.final not in joint.plan.keep


def test_inputs_lead_to_the_nodes_as_they_are_called_now() -> None:
    joint = join_plans("sum", [trial(1, 1), trial(2, 1)])
    inputs = {node.id: node.producers() for node in joint.plan.nodes}
    assert inputs == {
        "1.number": (),
        "1.double": ("1.number",),
        "1.add": ("1.double",),
        "2.number": (),
        "2.double": ("2.number",),
        "2.add": ("2.double",),
    }


def test_groups_of_trials_that_share_among_themselves_keep_names_apart() -> None:
    joint = join_plans("sum", [trial(1, 1), trial(1, 2), trial(2, 1), trial(2, 2)])
    assert [node.id for node in joint.plan.nodes if node.stage is number] == ["number", "number-2"]
    assert joint.trials[0].nodes[0] != joint.trials[2].nodes[0]


def test_stages_that_run_differently_are_not_shared() -> None:
    joint = join_plans("sum", [trial(1, 1), trial(1, 2, attempts=3)])
    assert [node.id for node in joint.plan.nodes] == ["number", "1.double", "1.add", "2.double", "2.add"]


def test_the_plan_of_a_single_trial_stays_as_it_is() -> None:
    plan = trial(1, 1)
    joint = join_plans("sum", [plan])
    assert joint.plan is plan
    assert joint.trials[0].nodes == ("number", "double", "add")


def test_trials_that_do_the_same_share_everything() -> None:
    joint = join_plans("sum", [trial(1, 1), trial(1, 1)])
    assert len(joint.plan.nodes) == 3
    assert joint.trials[0] == joint.trials[1]


def test_trials_may_have_numbers_of_their_own() -> None:
    joint = join_plans("sum", [trial(1, 1), trial(1, 2)], [4, 7])
    assert [one.final for one in joint.trials] == ["4.add", "7.add"]


def test_values_of_different_types_are_different() -> None:
    def one(value: object) -> Plan:
        node = PlanBuilder("one").start(number, NumberArgs()).finish()
        return Plan(
            name="one",
            nodes=tuple(type(n)(id=n.id, stage=n.stage, args={"value": value}) for n in node.nodes),
            final="number",
        )

    joint = join_plans("one", [one(1), one(1.0), one(True), one("1")])
    assert len(joint.plan.nodes) == 4
