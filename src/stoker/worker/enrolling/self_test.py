"""What a machine is looked at for before it joins a fleet: what it has, its disk, its clock, whether it can write.

Pure: facts in, checks out. One that is bad stops the join, before anybody hears of the machine.
"""

from __future__ import annotations

from stoker.hardware.checkup import Check, State, check_machine, check_surroundings
from stoker.hardware.device_checkup import check_devices
from stoker.hardware.survey import Survey
from stoker.model.capability import Capability
from stoker.model.frozen import frozen
from stoker.model.units import format_duration

_TRUE_S = 1.0
_HARMLESS_S = 600.0
_TOO_FAR_S = 12 * 3600.0
"""Certificates hold from a day before they are made; nearer to that, none may be relied on."""
_OF_SURVEY = frozenset({"disk", "containment"})


@frozen
class Facts:
    """What was found."""

    capability: Capability
    survey: Survey
    store_trouble: str
    """What keeps this machine from keeping anything; empty: nothing does."""
    offset_s: float
    """How far its clock is ahead of the coordinator's."""
    version: str
    """Of this program."""
    coordinator_version: str


def self_test(facts: Facts) -> tuple[Check, ...]:
    """Judge a machine that wants to join."""
    return (
        *check_machine(facts.capability),
        *check_devices(facts.capability),
        *(check for check in check_surroundings(facts.survey) if check.name in _OF_SURVEY),
        _store(facts.store_trouble),
        check_clock(facts.offset_s),
        _python(facts),
    )


def check_clock(offset_s: float) -> Check:
    """Judge how far this machine's clock is ahead of the coordinator's."""
    away_s = abs(offset_s)
    if away_s < _TRUE_S:
        return Check(name="clock", verdict=State.OK, message="as the coordinator's")
    way = "ahead of" if offset_s > 0 else "behind"
    span = f"{away_s:.1f} s" if away_s < 60 else format_duration(away_s)
    message = f"{span} {way} the coordinator's"
    if away_s <= _HARMLESS_S:
        return Check(name="clock", verdict=State.WARN, message=f"{message} (harmless)")
    hint = "`timedatectl set-ntp true` keeps it right"
    verdict = State.WARN if away_s <= _TOO_FAR_S else State.BAD
    return Check(name="clock", verdict=verdict, message=f"{message}: certificates may not hold here", hint=hint)


def _store(trouble: str) -> Check:
    if not trouble:
        return Check(name="store", verdict=State.OK, message="can be written")
    return Check(name="store", verdict=State.BAD, message=trouble, hint="STOKER_HOME names another place")


def _python(facts: Facts) -> Check:
    told = f"{facts.capability.python_version}, Stoker {facts.version}"
    if facts.coordinator_version in ("", facts.version):
        return Check(name="python", verdict=State.OK, message=told)
    message = f"{told}; the coordinator has {facts.coordinator_version}"
    hint = "fine within one version; `pip install --upgrade stoker` brings both to the same"
    return Check(name="python", verdict=State.WARN, message=message, hint=hint)
