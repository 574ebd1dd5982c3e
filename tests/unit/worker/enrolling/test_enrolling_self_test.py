"""A machine is looked at before it joins: what is said, and what stops it."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.hardware.checkup import Check, State
from stoker.hardware.survey import Containing, Survey
from stoker.model.devices import Answer, Verdict
from stoker.worker.enrolling.self_test import Facts, check_clock, self_test
from tests.unit.hardware.machines import capability

YES = Answer(verdict=Verdict.YES)


def _tested(**more: Any) -> dict[str, Check]:
    facts = {
        "capability": capability(),
        "survey": Survey(clock=YES, ports={7717: YES}, containing=Containing(mechanism="cgroup2")),
        "store_trouble": "",
        "offset_s": 0.0,
        "version": "1.2",
        "coordinator_version": "1.2",
        **more,
    }
    return {check.name: check for check in self_test(Facts(**facts))}


def test_a_machine_that_is_well_has_nothing_against_it():
    checks = _tested()
    assert {"cpu", "memory", "store", "clock", "python", "containment"} <= set(checks)
    assert State.BAD not in {check.verdict for check in checks.values()}
    # Only whoever serves needs the port.
    assert not [name for name in checks if name.startswith("port")]


def test_a_store_that_can_not_be_written_stops_it():
    check = _tested(store_trouble="read-only file system")["store"]
    assert (check.verdict, check.message) == (State.BAD, "read-only file system")
    assert "STOKER_HOME" in check.hint


def test_another_version_is_told_and_stops_nothing():
    check = _tested(coordinator_version="1.3")["python"]
    assert check.verdict is State.WARN
    assert "the coordinator has 1.3" in check.message


@pytest.mark.parametrize(
    ("offset_s", "verdict", "says"),
    [
        (0.2, State.OK, "as the coordinator's"),
        (1.8, State.WARN, "1.8 s ahead of the coordinator's (harmless)"),
        (-1.8, State.WARN, "1.8 s behind the coordinator's (harmless)"),
        (-300.0, State.WARN, "5m00s behind the coordinator's (harmless)"),
        (3600.0, State.WARN, "certificates may not hold"),
        (-2 * 86400.0, State.BAD, "2d00h behind"),
        (40 * 86400.0, State.BAD, "ahead of"),
    ],
    ids=["true", "ahead", "behind", "minutes", "hour", "days_behind", "weeks_ahead"],
)
def test_the_clock_is_compared_with_the_coordinators(offset_s, verdict, says):
    check = check_clock(offset_s)
    assert check.verdict is verdict
    assert says in check.message
