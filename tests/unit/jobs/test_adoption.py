from __future__ import annotations

import pytest

from stoker.authoring import PlanBuilder
from stoker.core.digests import Digest
from stoker.core.errors import NotFound, Refused
from stoker.engine.plan import Plan
from stoker.jobs.rerun import AdoptionApproval, adopt_stage
from tests.unit.engine.lab import Lab, Ran
from tests.unit.engine.stages import CountArgs, NumberArgs, add, count, double, number
from tests.unit.jobs.conftest import Office

ME = AdoptionApproval(author="me", reason="only a comment", at_s=1.0)


@pytest.fixture
def lab(office: Office) -> Lab:
    return office.lab


def chain(first: int, last: int) -> Plan:
    return PlanBuilder("chain").start(number, NumberArgs(value=first)).then(double, NumberArgs(value=last)).finish()


def fan(value: int, n: int = 3) -> Plan:
    return PlanBuilder("fan").start(count, CountArgs(n=n)).each(double, NumberArgs(value=value)).merge(add).finish()


def keys(ran: Ran) -> dict[str, Digest]:
    return {name: node.key for name, node in ran.result.nodes.items() if node.key}


def test_a_stage_is_adopted_where_everything_before_it_is_known(lab: Lab) -> None:
    old = keys(lab.run(chain(1, 1)))
    (adopted,) = adopt_stage(lab.cache, chain(1, 2), "double", old=old, blessing=ME)
    assert (adopted.node, adopted.old) == ("double", old["double"])
    ran = lab.run(chain(1, 2))
    assert ran.endings == {"number": "hit", "double": "hit"}
    assert keys(ran)["double"] == adopted.new


def test_what_comes_before_has_to_be_known(lab: Lab) -> None:
    old = keys(lab.run(chain(1, 1)))
    with pytest.raises(Refused, match="number comes before double and is not known either"):
        adopt_stage(lab.cache, chain(2, 1), "double", old=old, blessing=ME)
    adopt_stage(lab.cache, chain(2, 1), "number", old=old, blessing=ME)
    assert lab.run(chain(2, 1)).endings == {"number": "hit", "double": "hit"}


@pytest.mark.parametrize("n", [1, 3])
def test_a_fan_out_is_adopted_item_by_item(lab: Lab, n: int) -> None:
    old = keys(lab.run(fan(1, n)))
    adopted = adopt_stage(lab.cache, fan(2, n), "double", old=old, blessing=ME)
    assert [one.node for one in adopted] == [f"double[{index}]" for index in range(n)]
    assert lab.run(fan(2, n)).result.ran == 0


def test_a_stage_after_a_fan_out_is_adopted_too(lab: Lab) -> None:
    first = fan(1)
    old = keys(lab.run(first))
    items = PlanBuilder("fan").start(count, CountArgs(n=3))
    other = items.each(double, NumberArgs(value=1)).merge(add, NumberArgs(value=7)).finish()
    adopt_stage(lab.cache, other, "add", old=old, blessing=ME)
    assert lab.run(other).result.ran == 0


def test_what_the_job_does_not_have_cant_be_adopted(lab: Lab) -> None:
    lab.run(chain(1, 1))
    with pytest.raises(NotFound, match="no result of double to adopt"):
        adopt_stage(lab.cache, chain(1, 2), "double", old={}, blessing=ME)


def test_a_stage_that_the_plan_does_not_have_is_answered_with_the_nearest(lab: Lab) -> None:
    with pytest.raises(NotFound) as raised:
        adopt_stage(lab.cache, chain(1, 1), "duble", old={}, blessing=ME)
    assert raised.value.hint == "did you mean 'double'?"
