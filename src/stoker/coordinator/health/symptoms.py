"""What is wrong with which machine or device: decided purely from facts, each with a reason and the command that helps.

What is told here is seen by people and, for a failing device, acted upon: so every rule compares. What fails or is slow
everywhere is the work, not the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from statistics import median

from stoker.coordinator.health.facts import Coming, Ending, Facts, MachineFacts
from stoker.coordinator.health.failing_devices import devices_at_fault
from stoker.model.symptoms import Ailment, Symptom, is_skewed
from stoker.model.units import format_duration, format_size

KNOWN_S = 24 * 3600.0
"""Whoever was silent for longer is gone, and no news."""
QUIET_S = 30 * 60.0
FLAPS = 4
"""Starts, or silences, within an hour."""
SLOWER = 2.0
"""So many times the others' median."""
SLOWER_S = 1.0
"""And by at least so much: what takes no time takes twice as long by chance."""
LEAST_RUNS = 3
FATAL = 5
"""Attempts in a row that did not end well."""
LEAST_DISK_BYTES = 5 * 1024**3

_BAD = frozenset({"failed", "declined"})


def symptoms_of(facts: Facts) -> list[Symptom]:
    """Say everything that is wrong: machine by machine, and then of devices."""
    gone = {machine.name for machine in facts.machines if facts.now_s - machine.last_seen_s > KNOWN_S}
    among = _Among(facts)
    found: list[Symptom] = []
    for machine in facts.machines:
        if machine.name not in gone:
            for rule in _RULES:
                found += rule(among, machine)
    return found + [one for one in failing_devices(facts) if one.machine not in gone]


def failing_devices(facts: Facts) -> list[Symptom]:
    """Say which devices of known machines are at fault."""
    known = {machine.name for machine in facts.machines}
    return [
        Symptom(
            machine=machine,
            device=device,
            ailment=Ailment.FAILING,
            message=why,
            hint=f"`stoker doctor --smoke` there, then `stoker machines open {machine} --device {device}`",
        )
        for (machine, device), why in sorted(devices_at_fault(facts.endings).items())
        if machine in known
    ]


class _Among:
    """Facts, laid out so that one machine is compared with all others at no great cost."""

    def __init__(self, facts: Facts) -> None:
        self.now_s, self.version = facts.now_s, facts.version
        self.comings: dict[str, list[Coming]] = defaultdict(list)
        self.endings: dict[str, list[Ending]] = defaultdict(list)
        """By machine, as all of these."""
        self.done_by: dict[str, set[str]] = defaultdict(set)
        """Work → the machines that completed it."""
        self.durations: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        """Work → machine → how long it took there."""
        for coming in facts.comings:
            self.comings[coming.machine].append(coming)
        for one in facts.endings:
            self.endings[one.machine].append(one)
            if one.ending == "completed":
                self.done_by[one.work].add(one.machine)
                if one.seconds is not None:
                    self.durations[one.work][one.machine].append(one.seconds)

    def durations_elsewhere(self, work: str, machine: str) -> list[float]:
        return [one for name, some in self.durations[work].items() if name != machine for one in some]

    @cached_property
    def usual_s(self) -> dict[str, float]:
        """Work → how long it takes, over all machines."""
        return {
            work: median([one for some in by_machine.values() for one in some])
            for work, by_machine in self.durations.items()
        }


def _silent(among: _Among, machine: MachineFacts) -> Iterator[Symptom]:
    quiet_s = among.now_s - machine.last_seen_s
    if quiet_s > QUIET_S and not machine.has_left:
        yield Symptom(
            machine=machine.name,
            ailment=Ailment.SILENT,
            message=f"nothing was heard of it for {format_duration(quiet_s)}",
            hint=f"is it on? `stoker work` there; `stoker machines forget {machine.name}` if it is gone for good",
        )


def _flapping(among: _Among, machine: MachineFacts) -> Iterator[Symptom]:
    mine = among.comings[machine.name]
    starts = sum(coming.is_new_start for coming in mine)
    silences = len(mine) - starts
    # A crash is often both, a silence and then a start: they are not added up.
    if max(starts, silences) >= FLAPS:
        fell = f" and fell silent {silences} times" if silences else ""
        yield Symptom(
            machine=machine.name,
            ailment=Ailment.FLAPPING,
            message=f"within an hour its worker started {starts} times" + fell,
            hint=f"`stoker doctor` there; `stoker machines cordon {machine.name}` until it is found",
        )


def _slow(among: _Among, machine: MachineFacts) -> Iterator[Symptom]:
    for work in dict.fromkeys(one.work for one in among.endings[machine.name]):
        durations = among.durations.get(work, {}).get(machine.name, [])
        # What is twice the others' median is not below that of all: most are done with here.
        if len(durations) < LEAST_RUNS or (its := median(durations)) < among.usual_s[work]:
            continue
        others = among.durations_elsewhere(work, machine.name)
        if len(others) < LEAST_RUNS:
            continue
        theirs = median(others)
        if its >= SLOWER * theirs and its - theirs >= SLOWER_S:
            yield Symptom(
                machine=machine.name,
                ailment=Ailment.SLOW,
                message=(
                    f"{work} takes {format_duration(its)} there and {format_duration(theirs)} elsewhere "
                    f"(medians of {len(durations)} and {len(others)} jobs)"
                ),
                hint=f"`stoker machines show {machine.name}`: is something else running there, is it throttled?",
            )
            return


def _fatal_only(among: _Among, machine: MachineFacts) -> Iterator[Symptom]:
    # A job that was given back or cancelled says nothing about the machine.
    told = [one for one in among.endings[machine.name] if one.ending in _BAD or one.ending == "completed"][-FATAL:]
    if len(told) < FATAL or any(one.ending == "completed" for one in told):
        return
    if any(among.done_by.get(one.work, set()) - {machine.name} for one in told):
        last = told[-1]
        why = last.message.strip().splitlines()[-1][:200] if last.message.strip() else last.cause or last.ending
        yield Symptom(
            machine=machine.name,
            ailment=Ailment.FATAL_ONLY,
            message=f"its last {len(told)} attempts all failed or were declined, others complete the same: {why}",
            hint=f"`stoker doctor` there; `stoker machines cordon {machine.name}` keeps jobs away until it is found",
        )


def _skewed(among: _Among, machine: MachineFacts) -> Iterator[Symptom]:
    if not is_skewed(machine.version, among.version) or machine.has_left:
        return
    its = f"its program is {machine.version}" if machine.version else "its program says no version"
    yield Symptom(
        machine=machine.name,
        ailment=Ailment.SKEWED,
        message=f"{its}, the coordinator's is {among.version}",
        hint=f"install {among.version} there, then start its worker again",
    )


def _disk(_: _Among, machine: MachineFacts) -> Iterator[Symptom]:
    free = machine.disk_free_bytes
    if free is not None and free < LEAST_DISK_BYTES and not machine.has_left:
        yield Symptom(
            machine=machine.name,
            ailment=Ailment.DISK,
            message=f"{format_size(free)} are free on its disk",
            hint="`stoker store prune` there",
        )


_RULES: tuple[Callable[[_Among, MachineFacts], Iterator[Symptom]], ...] = (
    _silent,
    _flapping,
    _slow,
    _fatal_only,
    _skewed,
    _disk,
)
