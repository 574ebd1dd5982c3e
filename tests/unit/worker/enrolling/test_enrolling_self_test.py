"""A machine is looked at before it joins: what is said, and what stops it."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.device import TriState, TriStateAnswer
from stoker.devices.checkup import Check, CheckStatus, ContainmentSurvey, MachineSurvey
from stoker.worker.enrolment import JoinCheckFacts, check_clock, self_test
from tests.unit.devices.machines import capability

YES = TriStateAnswer(verdict=TriState.YES)


def _tested(**more: Any) -> dict[str, Check]:
    facts = {
        "capability": capability(),
        "survey": MachineSurvey(clock=YES, ports={7717: YES}, containing=ContainmentSurvey(mechanism="cgroup2")),
        "store_trouble": "",
        "offset_s": 0.0,
        "version": "1.2",
        "coordinator_version": "1.2",
        **more,
    }
    return {check.name: check for check in self_test(JoinCheckFacts(**facts))}


def test_a_machine_that_is_well_has_nothing_against_it():
    checks = _tested()
    assert {"cpu", "memory", "store", "clock", "python", "containment"} <= set(checks)
    assert CheckStatus.BAD not in {check.verdict for check in checks.values()}
    # Only whoever serves needs the port.
    assert not [name for name in checks if name.startswith("port")]


def test_a_store_that_can_not_be_written_stops_it():
    check = _tested(store_trouble="read-only file system")["store"]
    assert (check.verdict, check.message) == (CheckStatus.BAD, "read-only file system")
    assert "STOKER_HOME" in check.hint


def test_another_version_is_told_and_stops_nothing():
    check = _tested(coordinator_version="1.3")["python"]
    assert check.verdict is CheckStatus.WARN
    assert "the coordinator has 1.3" in check.message


@pytest.mark.parametrize(
    ("offset_s", "verdict", "says"),
    [
        (0.2, CheckStatus.OK, "as the coordinator's"),
        (1.8, CheckStatus.WARN, "1.8 s ahead of the coordinator's (harmless)"),
        (-1.8, CheckStatus.WARN, "1.8 s behind the coordinator's (harmless)"),
        (-300.0, CheckStatus.WARN, "5m00s behind the coordinator's (harmless)"),
        (3600.0, CheckStatus.WARN, "certificates may not hold"),
        (-2 * 86400.0, CheckStatus.BAD, "2d00h behind"),
        (40 * 86400.0, CheckStatus.BAD, "ahead of"),
    ],
    ids=["true", "ahead", "behind", "minutes", "hour", "days_behind", "weeks_ahead"],
)
def test_the_clock_is_compared_with_the_coordinators(offset_s, verdict, says):
    check = check_clock(offset_s)
    assert check.verdict is verdict
    assert says in check.message
