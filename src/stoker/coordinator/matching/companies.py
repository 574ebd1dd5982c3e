"""Jobs that run in one process: those of one machine whose base is the same, on the same device or on the CPU. Pure.

Which process that is, the machine finds out by itself (`plan.company.runner`); here is only what the fleet can know of
it: who was given which place, and what each of them shares.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.coordinator.matching.cases import Case, Fleet, Holder
from stoker.model.frozen import frozen
from stoker.model.lifecycle import JobState
from stoker.model.requirements import Requirements
from stoker.scheduler.explain import Explanation

_MOST_NAMED = 3
_LONGEST_BASE = 12
_SHOWN_OF_BASE = 8


@frozen
class CompanyOf:
    """The others in a job's process, or in the one that it would join."""

    jobs: tuple[str, ...] = ()
    base: str = ""

    def words(self) -> str:
        """Give it as the end of a sentence; nothing if nobody is there."""
        if not self.jobs:
            return ""
        more = len(self.jobs) - _MOST_NAMED
        named = ", ".join(self.jobs[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f", in one process with {named}: same base {_short(self.base)}"


def company_of(case: Case, fleet: Fleet, told: Explanation, machine: str | None) -> CompanyOf:
    """Return with which jobs a job runs in one process, or would run if it started now on the machine it is to get."""
    job, asked = case.job, case.wanted.requirements
    if not _is_shared(asked):
        return CompanyOf()
    if job.state == JobState.PENDING:
        place = next((one for one in told.nodes if one.node == machine and one.fits), None)
        return CompanyOf() if place is None else _beside(asked, fleet.holders.get(place.node, ()), place.on, job.name)
    if job.state not in (JobState.CLAIMED, JobState.RUNNING):
        return CompanyOf()
    holders = fleet.holders.get(job.machine or "", ())
    own = next((one for one in holders if one.job == job.name), None)
    return CompanyOf() if own is None else _beside(asked, holders, own.devices, job.name)


def _beside(asked: Requirements, holders: Sequence[Holder], devices: tuple[str, ...], name: str) -> CompanyOf:
    return CompanyOf(
        jobs=tuple(
            one.job
            for one in holders
            if one.job != name
            and one.devices == devices
            and (one.is_shared or not devices)
            and _is_shared(one.wanted.requirements)
            and one.wanted.requirements.base == asked.base
        ),
        base=asked.base,
    )


def _is_shared(asked: Requirements) -> bool:
    # Others say that they have a base in common, and yet each runs in a process of its own.
    return bool(asked.base) and asked.base_ram_bytes > 0


def _short(base: str) -> str:
    return base if len(base) <= _LONGEST_BASE else f"{base[:_SHOWN_OF_BASE]}…"
