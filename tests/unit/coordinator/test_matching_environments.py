"""What an explanation says of a job's environment: ready, built first, impossible."""

from __future__ import annotations

from typing import Any

from stoker.coordinator.explained_case import Fleet, case_of_order
from stoker.coordinator.explained_verdict import Explainer
from stoker.core.frozen import changed
from stoker.core.job import EnvironmentChoice, JobSpec
from stoker.protocol.lease_messages import MachineInventory
from tests.unit.coordinator.fleets import Driven, box
from tests.unit.coordinator.test_matching_explaining import expected

NOW_S = 1_000_000.0
DIGEST = "d" * 64
NO_WHEEL = "no wheel of torch for aarch64 cp310"
ORDER = JobSpec(
    id="0" * 64,
    name="resnet",
    recipe="command",
    environment=(EnvironmentChoice(kind="uv.lock", path="uv.lock", digest=DIGEST),),
)


def held(**more: Any) -> MachineInventory:
    return MachineInventory(platform="linux-x86_64", pythons=("3.12.3",), **more)


def fleet(**holdings: MachineInventory) -> Fleet:
    return Fleet(offers=Driven(*[box(name) for name in holdings]).offers, holdings=holdings)


def test_a_machine_that_builds_first_says_so_and_how_long_others_took() -> None:
    case = changed(case_of_order(ORDER, now_s=NOW_S, ahead=0), forecast=expected("lab1"))
    found = Explainer(fleet(lab1=held(), gone=held(builds_s={DIGEST: 120.0})), now_s=NOW_S).explain(case)
    assert found.verdict == (
        "pending, queue position 1: starts with the next claim of lab1, and builds its environment first (about 2m00s)"
    )
    assert found.machines[0]["environment"] == {"standing": "builds", "about_s": 120.0, "why": ""}


def test_a_machine_that_has_it_needs_no_word() -> None:
    case = changed(case_of_order(ORDER, now_s=NOW_S, ahead=0), forecast=expected("desk"))
    found = Explainer(fleet(desk=held(environments=(DIGEST,))), now_s=NOW_S).explain(case)
    assert found.verdict == "pending, queue position 1: starts with the next claim of desk"
    assert found.machines[0]["environment"]["standing"] == "ready"


def test_where_it_can_not_be_the_reason_stands_and_nobody_is_told_to_change_a_list() -> None:
    case = case_of_order(ORDER, now_s=NOW_S, ahead=0)
    able = Explainer(fleet(jetson=held(impossible={DIGEST: NO_WHEEL}), desk=held()), now_s=NOW_S).explain(case)
    rows = {row["node"]: row for row in able.machines}
    assert [one["why"] for one in rows["jetson"]["obstacles"]] == [NO_WHEEL]
    assert rows["desk"]["fits"]
    never = Explainer(fleet(jetson=held(impossible={DIGEST: NO_WHEEL})), now_s=NOW_S).explain(case)
    assert never.verdict == f"never on this fleet: jetson: {NO_WHEEL}"
    assert not any("deny" in change for change in never.changes)
