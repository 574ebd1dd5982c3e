from __future__ import annotations

import pytest

from stoker.core.digests import Digest
from stoker.core.errors import NotFound, Refused
from stoker.engine.action import Action
from stoker.engine.plan import Plan
from stoker.engine.result_cache import adopt
from stoker.store.local_store import RecordHit
from tests.unit.engine.lab import Lab, lines_of, plan_of
from tests.unit.engine.stages import NumberArgs, count, number, volatile


def plan(value: int, ledger: str = "") -> Plan:
    return plan_of(number, NumberArgs(value=value, ledger=ledger))


def action(lab: Lab, value: int) -> Action:
    return lab.cache.action(plan(value).nodes[0], {})


def bless(lab: Lab, old: Digest | None, new: Action) -> None:
    assert old is not None
    adopt(lab.cache, old=old, action=new, author="me", reason="only a comment", at_s=5.0)


def test_an_old_result_stands_under_a_new_key(lab: Lab, ledger: str) -> None:
    old = lab.run(plan(1, ledger))["number"].key
    bless(lab, old, action(lab, 2))
    ran = lab.run(plan(2, ledger))
    assert ran.endings == {"number": "hit"}
    assert lab.value(ran, "number") == 1
    assert lines_of(ledger) == ["number 1"]


def test_who_did_it_and_why_is_written_down(lab: Lab) -> None:
    old = lab.run(plan(1))["number"].key
    bless(lab, old, action(lab, 2))
    found = lab.store.lookup(action(lab, 2).key())
    assert isinstance(found, RecordHit)
    assert found.record.body["adopted"] == {"from": old, "by": "me", "why": "only a comment", "at": 5.0}
    assert Action.from_json(found.record.body["action"]).key() == action(lab, 2).key()


def test_what_is_not_there_cant_be_adopted(lab: Lab) -> None:
    with pytest.raises(NotFound, match="no result under 000000000000"):
        bless(lab, Digest("0" * 64), action(lab, 2))


def test_what_is_its_own_need_not_be_adopted(lab: Lab) -> None:
    old = lab.run(plan(1))["number"].key
    with pytest.raises(Refused, match="already the result of this"):
        bless(lab, old, action(lab, 1))


@pytest.mark.parametrize("other", [count, volatile])
def test_a_result_of_another_stage_or_kind_is_refused(lab: Lab, other: object) -> None:
    old = lab.run(plan(1))["number"].key
    new = lab.cache.action(plan_of(other).nodes[0], {})  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"is a test-number@1 of test/number, expected a test-number@1.* of test/"):
        bless(lab, old, new)


def test_a_result_that_is_there_already_is_not_replaced(lab: Lab) -> None:
    old = lab.run(plan(1))["number"].key
    lab.run(plan(2))
    with pytest.raises(Refused, match="already has another result"):
        bless(lab, old, action(lab, 2))
    assert lab.value(lab.run(plan(2)), "number") == 2


def test_a_pruned_result_may_be_adopted_and_is_a_hit_until_it_is_read(lab: Lab) -> None:
    old = lab.run(plan(1))["number"].key
    lab.prune(old)
    bless(lab, old, action(lab, 2))
    found = lab.store.lookup(action(lab, 2).key())
    assert isinstance(found, RecordHit)
    assert not found.has_bytes
    assert lab.run(plan(2)).endings == {"number": "ran"}
