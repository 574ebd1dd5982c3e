"""What is wrong with which machine or device: decided purely from facts, each with a reason and the command that helps.

What is told here is seen by people and, for a failing device, acted upon: so every rule compares. What fails or is slow
everywhere is the work, not the machine.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from stoker.coordinator.health.facts import Ending, Facts, MachineFacts
from stoker.model.retry import Cause
from stoker.model.symptoms import Ailment, Symptom
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
FAILED_JOBS = 3
"""Different jobs that failed on one device."""

_BAD = frozenset({"failed", "declined"})
# As drivers and runtimes say it. Memory that runs out is not among them: that is the job's size.
_DEVICE_LIKE = re.compile(
    r"cuda error|cuda(?:_|\s)?(?:driver|runtime) error|cudnn_status|cublas_status|hip error|hipErr|\bXid\b|\bECC\b"
    r"|uncorrectable|illegal memory access|unspecified launch failure|device-side assert|misaligned address"
    r"|fallen off the bus|device (?:is )?(?:lost|unavailable|not ready)|no cuda-capable device|nvml|nccl.*(?:unhandled|"
    r"internal) error|mps backend.*(?:failed|error)|gpu is lost|bus error",
    re.IGNORECASE,
)


def symptoms_of(facts: Facts) -> list[Symptom]:
    """Say everything that is wrong, machine by machine."""
    by_machine: dict[str, list[Ending]] = defaultdict(list)
    for ending in facts.endings:
        by_machine[ending.machine].append(ending)
    found: list[Symptom] = []
    for machine in facts.machines:
        if facts.now_s - machine.last_seen_s > KNOWN_S:
            continue
        for rule in _RULES:
            found += rule(facts, machine, by_machine[machine.name])
    return found


def is_device_like(ending: Ending) -> bool:
    """Say whether an attempt failed as on broken hardware."""
    if ending.ending != "failed" or ending.cause in (Cause.OOM_DEVICE, Cause.OOM_HOST, Cause.CANCELLED):
        return False
    return _DEVICE_LIKE.search(ending.message) is not None


def _silent(facts: Facts, machine: MachineFacts, _: Sequence[Ending]) -> Iterator[Symptom]:
    quiet_s = facts.now_s - machine.last_seen_s
    if quiet_s > QUIET_S and not machine.has_left:
        yield Symptom(
            machine=machine.name,
            ailment=Ailment.SILENT,
            message=f"nothing was heard of it for {format_duration(quiet_s)}",
            hint=f"is it on? `stoker work` there; `stoker machines forget {machine.name}` if it is gone for good",
        )


def _flapping(facts: Facts, machine: MachineFacts, _: Sequence[Ending]) -> Iterator[Symptom]:
    mine = [coming for coming in facts.comings if coming.machine == machine.name]
    starts = sum(coming.is_new_start for coming in mine)
    silences = len(mine) - starts
    # A crash is often both, a silence and then a start: they are not added up.
    if max(starts, silences) >= FLAPS:
        yield Symptom(
            machine=machine.name,
            ailment=Ailment.FLAPPING,
            message=f"within an hour its worker started {starts} times and fell silent {silences} times",
            hint=f"`stoker doctor` there; `stoker machines cordon {machine.name}` until it is found",
        )


def _slow(facts: Facts, machine: MachineFacts, mine: Sequence[Ending]) -> Iterator[Symptom]:
    own, others = _durations(mine), _durations(one for one in facts.endings if one.machine != machine.name)
    for work, durations in own.items():
        if len(durations) < LEAST_RUNS or len(others.get(work, ())) < LEAST_RUNS:
            continue
        its, theirs = median(durations), median(others[work])
        if its >= SLOWER * theirs and its - theirs >= SLOWER_S:
            yield Symptom(
                machine=machine.name,
                ailment=Ailment.SLOW,
                message=(
                    f"{work} takes {format_duration(its)} there and {format_duration(theirs)} elsewhere "
                    f"(medians of {len(durations)} and {len(others[work])} jobs)"
                ),
                hint=f"`stoker machines show {machine.name}`: is something else running there, is it throttled?",
            )
            return


def _fatal_only(facts: Facts, machine: MachineFacts, mine: Sequence[Ending]) -> Iterator[Symptom]:
    # A job that was given back or cancelled says nothing about the machine.
    told = [one for one in mine if one.ending in _BAD or one.ending == "completed"][-FATAL:]
    if len(told) < FATAL or any(one.ending == "completed" for one in told):
        return
    kinds = {one.work for one in told}
    well = {one.work for one in facts.endings if one.ending == "completed" and one.machine != machine.name}
    if kinds & well:
        last = told[-1]
        why = last.message.strip().splitlines()[-1][:200] if last.message.strip() else last.cause or last.ending
        yield Symptom(
            machine=machine.name,
            ailment=Ailment.FATAL_ONLY,
            message=f"its last {len(told)} attempts all failed or were declined, others complete the same: {why}",
            hint=f"`stoker doctor` there; `stoker machines cordon {machine.name}` keeps jobs away until it is found",
        )


def _skewed(facts: Facts, machine: MachineFacts, _: Sequence[Ending]) -> Iterator[Symptom]:
    if machine.version == facts.version or machine.has_left:
        return
    its = f"its program is {machine.version}" if machine.version else "its program says no version"
    yield Symptom(
        machine=machine.name,
        ailment=Ailment.SKEWED,
        message=f"{its}, the coordinator's is {facts.version}",
        hint=f"install {facts.version} there, then start its worker again",
    )


def _disk(_: Facts, machine: MachineFacts, __: Sequence[Ending]) -> Iterator[Symptom]:
    free = machine.disk_free_bytes
    if free is not None and free < LEAST_DISK_BYTES and not machine.has_left:
        yield Symptom(
            machine=machine.name,
            ailment=Ailment.DISK,
            message=f"{format_size(free)} are free on its disk",
            hint="`stoker store prune` there",
        )


def _failing(facts: Facts, machine: MachineFacts, mine: Sequence[Ending]) -> Iterator[Symptom]:
    """Find devices on which different jobs failed since one last ended well there; a job on several proves nothing."""
    for device in sorted({one.devices[0] for one in mine if len(one.devices) == 1}):
        failed = _since_success([one for one in mine if one.devices == (device,)])
        jobs = {one.seq for one in failed}
        well = {one.work for one in facts.endings if one.ending == "completed" and one.devices != (device,)}
        if len(jobs) < FAILED_JOBS or not any(one.work in well for one in failed):
            continue
        last = failed[-1].message.strip().splitlines()[-1][:200]
        yield Symptom(
            machine=machine.name,
            device=device,
            ailment=Ailment.FAILING,
            message=f"{len(jobs)} different jobs failed on it, and jobs succeed elsewhere: {last}",
            hint=f"`stoker doctor --smoke` there, then `stoker machines open {machine.name} --device {device}`",
        )


def _since_success(on_device: Sequence[Ending]) -> list[Ending]:
    failed: list[Ending] = []
    for one in on_device:
        if one.ending == "completed":
            failed.clear()
        elif is_device_like(one):
            failed.append(one)
    return failed


def _durations(endings: Iterable[Ending]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for one in endings:
        if one.ending == "completed" and one.seconds is not None:
            found[one.work].append(one.seconds)
    return found


_RULES: tuple[Callable[[Facts, MachineFacts, Sequence[Ending]], Iterator[Symptom]], ...] = (
    _silent,
    _flapping,
    _slow,
    _fatal_only,
    _skewed,
    _disk,
    _failing,
)
