"""Input of an explanation: the job, and the present fleet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stoker.core.frozen import changed, fresh, frozen
from stoker.core.job import EnvironmentChoice, JobInput, JobSpec, JobState
from stoker.core.machine import Requirements, SchedulableJob, code_word, environment_word
from stoker.core.text import format_duration, format_size, point_name
from stoker.protocol.environment_messages import (
    EnvironmentStatus,
    MachineEnvironmentStatus,
    environment_digest,
    outlooks,
)
from stoker.protocol.job_checks import code_of, why_not_accepted
from stoker.protocol.lease_messages import MachineInventory
from stoker.protocol.view_messages import JobView
from stoker.scheduler.explain import Explanation
from stoker.scheduler.leases import ShareView
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.simulation.forecast import JobForecast


@frozen
class Prerequisite:
    """A job that another one depends on."""

    name: str
    state: str
    ends_s: float | None = None
    """Expected end, if it runs and there is an estimate."""


@frozen
class MachineDecline:
    """A machine that declined the job."""

    machine: str
    reason: str
    message: str = ""
    at_s: float | None = None

    def to_dict(self) -> dict[str, object]:
        return {"machine": self.machine, "reason": self.reason, "message": self.message, "at_s": self.at_s}


@frozen
class JobExplainContext:
    """One job, with its state in the queue."""

    job: JobView
    wanted: SchedulableJob
    after: tuple[Prerequisite, ...] = ()
    """Uncompleted jobs that it depends on."""
    not_before_s: float = 0.0
    """Time of its retry after a failure, or after many declines; 0: none."""
    message: str = ""
    """The end of its last attempt, before a retry."""
    ahead: int | None = None
    """Number of ready jobs ahead of it; None: it is not ready."""
    declines: tuple[MachineDecline, ...] = ()
    """The newest first."""
    spent: Mapping[str, tuple[int, int]] = fresh(factory=dict)
    """Cause → number of attempts that ended by it, and the limit."""
    ends_s: float | None = None
    """Expected end of a running job."""
    takes_s: float | None = None
    """Its expected duration on a device of speed 1; None: unknown."""
    based_on: str = ""
    """Source of the estimate of its duration; empty: there is none."""
    forecast: JobForecast | None = None
    """Forecast of a pending job, if there is one."""
    names: Mapping[int, str] = fresh(factory=dict)
    """Names of jobs that start earlier somewhere, by number."""
    share: ShareView | None = None
    """The share of its submitter."""
    chosen: str = ""
    """Why it was granted to its machine, if it has one."""
    environment: tuple[EnvironmentChoice, ...] = ()
    inputs: tuple[JobInput, ...] = ()


@frozen
class LeaseHolder:
    """A live lease on a machine."""

    job: str
    """Its name."""
    wanted: SchedulableJob
    devices: tuple[str, ...] = ()
    is_shared: bool = False
    ends_s: float | None = None
    """Expected end; None: unknown."""
    based_on: str = ""

    def to_dict(self) -> dict[str, object]:
        return {
            "job": self.job,
            "devices": list(self.devices),
            "is_shared": self.is_shared,
            "until_s": self.ends_s,
            "based_on": self.based_on,
        }


@frozen
class Fleet:
    """Present machines with their leases, and absent ones."""

    offers: Sequence[NodeOffer] = ()
    holders: Mapping[str, Sequence[LeaseHolder]] = fresh(factory=dict)
    """By machine."""
    absent: Mapping[str, str] = fresh(factory=dict)
    """Machine → why it is absent: `silent for 12m03s`."""
    away: Sequence[NodeOffer] = ()
    """What absent machines would offer if they were back, as far as it is known."""
    closed_until_s: Mapping[str, float] = fresh(factory=dict)
    """Of machines that are closed for a time."""
    ends_s: Mapping[str, float] = fresh(factory=dict)
    """When machines with a time limit take no more jobs."""
    holdings: Mapping[str, MachineInventory] = fresh(factory=dict)
    """Inventories of machines."""


def case_of_order(order: JobSpec, *, now_s: float, ahead: int | None = None) -> JobExplainContext:
    """Return the context of a job that is not submitted yet, as if it were submitted now."""
    job = JobView(
        id=order.id,
        name=point_name(order.name, order.number),
        label=order.label,
        recipe=order.recipe,
        mode=order.mode,
        state="pending",
        priority=order.priority,
        epoch=0,
        attempt=0,
        submitted_s=now_s,
        changed_s=now_s,
    )
    wanted = changed(order.schedulable(), environment=environment_digest(order.environment))
    return JobExplainContext(job=job, wanted=wanted, ahead=ahead, environment=order.environment, inputs=order.inputs)


# A job's data on the machines of a fleet: present, or how much has to be copied. Pure, from inventories.


def data_row(inputs: Sequence[JobInput], machine: str, held: MachineInventory | None) -> dict[str, Any]:
    """Return the state of a job's data on a machine; empty if it has none, or the inventory is unknown."""
    if not inputs or held is None:
        return {}
    lacks = [one for one in inputs if not _is_there(one, machine, held)]
    missing_bytes = sum(one.size_bytes for one in lacks)
    rate = held.brings_bytes_per_s
    row: dict[str, Any] = {
        "size_bytes": sum(one.size_bytes for one in inputs),
        "missing_bytes": missing_bytes,
        "about_s": missing_bytes / rate if missing_bytes and rate else None,
    }
    row["text"] = _text(row)
    return row


def first_copies(row: dict[str, Any]) -> str:
    """Return the data to copy before the start, as the end of a sentence; empty: none."""
    return f", and {row['text']} first" if row.get("missing_bytes") else ""


def _is_there(one: JobInput, machine: str, held: MachineInventory) -> bool:
    # On the machine that it was submitted from it is read in place.
    return one.tree in held.trees or (bool(one.host) and one.host == machine)


def _text(row: dict[str, Any]) -> str:
    if not row["missing_bytes"]:
        return f"has its data, {format_size(row['size_bytes'])}"
    about = f" (about {format_duration(row['about_s'])})" if row["about_s"] is not None else ""
    return f"copies {format_size(row['missing_bytes'])} of data{about}"


class EnvironmentViews:
    """The environments of jobs on one fleet: present, to be built, or impossible. Each is evaluated once. Pure.

    In the queue, machines deny the environments of its jobs; this does the same for a job that is not submitted yet.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[str, dict[str, MachineEnvironmentStatus]] = {}
        self._offers: dict[str, Sequence[NodeOffer]] = {}

    def of(self, case: JobExplainContext) -> dict[str, MachineEnvironmentStatus]:
        """Return the status of a job's environment by machine; empty if it has none."""
        digest = case.wanted.environment
        if not digest or not case.environment:
            return {}
        if digest not in self._known:
            found = outlooks(case.environment, self._fleet.holdings)
            self._known[digest] = {one.machine: one for one in found}
        return self._known[digest]

    def offers(self, case: JobExplainContext) -> Sequence[NodeOffer]:
        """Return all offers; machines that can't provide the job's environment deny it."""
        found = self.of(case)
        if not any(one.standing is EnvironmentStatus.IMPOSSIBLE for one in found.values()):
            return self._fleet.offers
        digest = case.wanted.environment
        if digest not in self._offers:
            self._offers[digest] = [_denying(offer, digest, found.get(offer.node)) for offer in self._fleet.offers]
        return self._offers[digest]


def first_builds(outlook: MachineEnvironmentStatus | None) -> str:
    """Return the build before the start, as the end of a sentence; empty: none."""
    if outlook is None or outlook.standing is not EnvironmentStatus.BUILDS:
        return ""
    about = f" (about {format_duration(outlook.about_s)})" if outlook.about_s is not None else ""
    return f", and builds its environment first{about}"


def _denying(offer: NodeOffer, digest: str, outlook: MachineEnvironmentStatus | None) -> NodeOffer:
    word = environment_word(digest)
    if outlook is None or outlook.standing is not EnvironmentStatus.IMPOSSIBLE or word in offer.deny_jobs:
        return offer
    return changed(offer, deny_jobs=(*offer.deny_jobs, word), denied_for=(*offer.denied_for, (word, outlook.why)))


_MOST_NAMED = 3
_LONGEST_BASE = 12
_SHOWN_OF_BASE = 8


@frozen
class SharedProcessPeers:
    """The other jobs in a job's shared process, or in the one that it would join: same machine, base and device. Pure.

    The machine itself forms the process (`engine.runners.shared.shared_runner`); here it is derived from the leases.
    """

    jobs: tuple[str, ...] = ()
    base: str = ""

    def words(self) -> str:
        """Return them as the end of a sentence; empty if there are none."""
        if not self.jobs:
            return ""
        more = len(self.jobs) - _MOST_NAMED
        named = ", ".join(self.jobs[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f", in one process with {named}: same base {_short(self.base)}"


def shared_process_peers(
    case: JobExplainContext, fleet: Fleet, explanation: Explanation, machine: str | None
) -> SharedProcessPeers:
    """Return the jobs that share a job's process, or would if it started now on its expected machine."""
    job, needs = case.job, case.wanted.requirements
    if not _is_shared(needs):
        return SharedProcessPeers()
    if job.state == JobState.PENDING:
        place = next((one for one in explanation.nodes if one.node == machine and one.fits), None)
        if place is None:
            return SharedProcessPeers()
        return _beside(needs, fleet.holders.get(place.node, ()), place.on, job.name)
    if job.state not in (JobState.CLAIMED, JobState.RUNNING):
        return SharedProcessPeers()
    holders = fleet.holders.get(job.machine or "", ())
    own = next((one for one in holders if one.job == job.name), None)
    return SharedProcessPeers() if own is None else _beside(needs, holders, own.devices, job.name)


def _beside(
    needs: Requirements, holders: Sequence[LeaseHolder], devices: tuple[str, ...], name: str
) -> SharedProcessPeers:
    return SharedProcessPeers(
        jobs=tuple(
            one.job
            for one in holders
            if one.job != name
            and one.devices == devices
            and (one.is_shared or not devices)
            and _is_shared(one.wanted.requirements)
            and one.wanted.requirements.base == needs.base
        ),
        base=needs.base,
    )


def _is_shared(needs: Requirements) -> bool:
    # Without `base_ram_bytes` jobs with a common base run in separate processes.
    return bool(needs.base) and needs.base_ram_bytes > 0


def _short(base: str) -> str:
    return base if len(base) <= _LONGEST_BASE else f"{base[:_SHOWN_OF_BASE]}…"


_PROGRAM = "command"


def pinned_fleet(fleet: Fleet, accepts: Mapping[str, Sequence[str]], orders: Iterable[JobSpec]) -> Fleet:
    """Return the fleet with machines denying the code of these jobs that they do not run. Pure.

    The queue adds code words as jobs are submitted. A dry run gets them from here.
    """
    if not accepts:
        return fleet
    codes = {code_of(one) for one in orders if one.recipe == _PROGRAM}
    return changed(
        fleet,
        offers=[_pinned(one, accepts.get(one.node, ()), codes) for one in fleet.offers],
        away=[_pinned(one, accepts.get(one.node, ()), codes) for one in fleet.away],
    )


def pinned_case(case: JobExplainContext, accepts: Mapping[str, Sequence[str]], order: JobSpec) -> JobExplainContext:
    """Return a job with its code word, if some machine runs only certain code."""
    if not accepts or order.recipe != _PROGRAM:
        return case
    return changed(case, wanted=changed(case.wanted, code=code_word(*code_of(order))))


def _pinned(offer: NodeOffer, pins: Sequence[str], codes: Iterable[tuple[str, str]]) -> NodeOffer:
    denied = {code_word(*code): why for code in codes if (why := why_not_accepted(pins, *code))}
    if not denied:
        return offer
    return changed(
        offer,
        deny_jobs=tuple(dict.fromkeys((*offer.deny_jobs, *denied))),
        denied_for=tuple({**dict(offer.denied_for), **denied}.items()),
    )
