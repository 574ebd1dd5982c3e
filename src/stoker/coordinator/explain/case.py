"""Nouns of an explanation: the job that is asked about, and the fleet as it stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stoker.core.frozen import changed, fresh, frozen
from stoker.core.job import EnvironmentChoice, JobInput, JobSpec, JobState
from stoker.core.machine import Requirements, SchedulableJob, code_word, environment_word
from stoker.core.text import format_duration, format_size, point_name
from stoker.protocol.code_messages import code_of, why_not_accepted
from stoker.protocol.environment_messages import (
    EnvironmentStatus,
    MachineEnvironmentStatus,
    environment_digest,
    outlooks,
)
from stoker.protocol.lease_messages import MachineInventory
from stoker.protocol.view_messages import JobView
from stoker.scheduler.explain import Explanation
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.shares import ShareView
from stoker.scheduler.simulation.forecast import JobForecast


@frozen
class Prerequisite:
    """A job that another one comes after."""

    name: str
    state: str
    ends_s: float | None = None
    """When it may end, if it runs and anybody knows."""


@frozen
class MachineDecline:
    """A machine that was given the job, looked again, and would not start it."""

    machine: str
    reason: str
    message: str = ""
    at_s: float | None = None

    def to_dict(self) -> dict[str, object]:
        return {"machine": self.machine, "reason": self.reason, "message": self.message, "at_s": self.at_s}


@frozen
class JobExplainContext:
    """One job, and what the queue knows of it."""

    job: JobView
    wanted: SchedulableJob
    after: tuple[Prerequisite, ...] = ()
    """Those it comes after that have not completed."""
    not_before_s: float = 0.0
    """It waits a while after a failure, or after many declines; 0: it does not."""
    message: str = ""
    """What its last attempt ended with, if it waits after one."""
    ahead: int | None = None
    """How many ready jobs go before it; nothing: it is not in the line."""
    declines: tuple[MachineDecline, ...] = ()
    """The newest first."""
    spent: Mapping[str, tuple[int, int]] = fresh(factory=dict)
    """Cause → how many attempts ended for it, and how many may."""
    ends_s: float | None = None
    """Of a job that runs, when it may end."""
    based_on: str = ""
    """What the estimate of its duration is from; empty: there is none."""
    forecast: JobForecast | None = None
    """What is expected of it, if it waits and that is known."""
    names: Mapping[int, str] = fresh(factory=dict)
    """Names of jobs that go first somewhere, by number."""
    share: ShareView | None = None
    """How its submitter stands beside others."""
    chosen: str = ""
    """Why its machine was granted it, if it has one."""
    environment: tuple[EnvironmentChoice, ...] = ()
    """What its interpreter is made from."""
    inputs: tuple[JobInput, ...] = ()
    """What it reads."""


@frozen
class LeaseHolder:
    """A live lease on a machine."""

    job: str
    """Its name."""
    wanted: SchedulableJob
    devices: tuple[str, ...] = ()
    is_shared: bool = False
    ends_s: float | None = None
    """When it may end; nothing: nobody knows."""
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
    """All machines that may be given work, what they hold, and those that nobody hears from."""

    offers: Sequence[NodeOffer] = ()
    holders: Mapping[str, Sequence[LeaseHolder]] = fresh(factory=dict)
    """By machine."""
    absent: Mapping[str, str] = fresh(factory=dict)
    """Machine → since when, or why, it does not count: `silent for 12m03s`."""
    away: Sequence[NodeOffer] = ()
    """What those would offer, were they back; of one that is not here, nobody knows."""
    closed_until_s: Mapping[str, float] = fresh(factory=dict)
    """Of machines that are closed for a time."""
    holdings: Mapping[str, MachineInventory] = fresh(factory=dict)
    """What machines' workers said that they have."""


def case_of_order(order: JobSpec, *, now_s: float, ahead: int | None = None) -> JobExplainContext:
    """Return a job that is not in the queue yet, as it would stand there if it were handed in now."""
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


# A job's code and data and the machines of a fleet, for whoever explains: who has it, who copies how much first.
#
# Pure, from what workers said that they have.


def data_row(inputs: Sequence[JobInput], machine: str, held: MachineInventory | None) -> dict[str, Any]:
    """Return how a job's data stands on a machine; nothing if it reads none, or nobody knows."""
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
    """Return what a machine has to copy before it can start, as the end of a sentence; empty: nothing."""
    return f", and {row['text']} first" if row.get("missing_bytes") else ""


def _is_there(one: JobInput, machine: str, held: MachineInventory) -> bool:
    # On the machine that it was submitted from it is read where it lies.
    return one.tree in held.trees or (bool(one.host) and one.host == machine)


def _text(row: dict[str, Any]) -> str:
    if not row["missing_bytes"]:
        return f"has its data, {format_size(row['size_bytes'])}"
    about = f" (about {format_duration(row['about_s'])})" if row["about_s"] is not None else ""
    return f"copies {format_size(row['missing_bytes'])} of data{about}"


# A job's environment and the machines of a fleet, for whoever explains: who has it, who builds it, who can't.
#
# Pure. The queue lets machines deny environments that it has met; of a job that is not there yet, this does the same.


class EnvironmentViews:
    """What jobs' environments are to one fleet; each is looked at once."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[str, dict[str, MachineEnvironmentStatus]] = {}
        self._offers: dict[str, Sequence[NodeOffer]] = {}

    def of(self, case: JobExplainContext) -> dict[str, MachineEnvironmentStatus]:
        """Return by machine how a job's environment stands there; nothing if it has none."""
        digest = case.wanted.environment
        if not digest or not case.environment:
            return {}
        if digest not in self._known:
            told = outlooks(case.environment, self._fleet.holdings)
            self._known[digest] = {one.machine: one for one in told}
        return self._known[digest]

    def offers(self, case: JobExplainContext) -> Sequence[NodeOffer]:
        """Return all machines, with those that can't have the job's environment denying it."""
        found = self.of(case)
        if not any(one.standing is EnvironmentStatus.IMPOSSIBLE for one in found.values()):
            return self._fleet.offers
        digest = case.wanted.environment
        if digest not in self._offers:
            self._offers[digest] = [_denying(offer, digest, found.get(offer.node)) for offer in self._fleet.offers]
        return self._offers[digest]


def first_builds(outlook: MachineEnvironmentStatus | None) -> str:
    """Return what a machine has to do before it can start, as the end of a sentence; empty: nothing."""
    if outlook is None or outlook.standing is not EnvironmentStatus.BUILDS:
        return ""
    about = f" (about {format_duration(outlook.about_s)})" if outlook.about_s is not None else ""
    return f", and builds its environment first{about}"


def _denying(offer: NodeOffer, digest: str, outlook: MachineEnvironmentStatus | None) -> NodeOffer:
    word = environment_word(digest)
    if outlook is None or outlook.standing is not EnvironmentStatus.IMPOSSIBLE or word in offer.deny_jobs:
        return offer
    return changed(offer, deny_jobs=(*offer.deny_jobs, word), denied_for=(*offer.denied_for, (word, outlook.why)))


# Jobs that run in one process: those of one machine whose base is the same, on the same device or on the CPU. Pure.
#
# Which process that is, the machine finds out by itself (`engine.runners.shared.shared_runner`); here is only what the
# fleet can know of it: who was given which place, and what each of them shares.

_MOST_NAMED = 3
_LONGEST_BASE = 12
_SHOWN_OF_BASE = 8


@frozen
class SharedProcessPeers:
    """The others in a job's process, or in the one that it would join."""

    jobs: tuple[str, ...] = ()
    base: str = ""

    def words(self) -> str:
        """Return it as the end of a sentence; nothing if nobody is there."""
        if not self.jobs:
            return ""
        more = len(self.jobs) - _MOST_NAMED
        named = ", ".join(self.jobs[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f", in one process with {named}: same base {_short(self.base)}"


def peers_of(case: JobExplainContext, fleet: Fleet, told: Explanation, machine: str | None) -> SharedProcessPeers:
    """Return with which jobs a job runs in one process, or would run if it started now on the machine it is to get."""
    job, asked = case.job, case.wanted.requirements
    if not _is_shared(asked):
        return SharedProcessPeers()
    if job.state == JobState.PENDING:
        place = next((one for one in told.nodes if one.node == machine and one.fits), None)
        return (
            SharedProcessPeers()
            if place is None
            else _beside(asked, fleet.holders.get(place.node, ()), place.on, job.name)
        )
    if job.state not in (JobState.CLAIMED, JobState.RUNNING):
        return SharedProcessPeers()
    holders = fleet.holders.get(job.machine or "", ())
    own = next((one for one in holders if one.job == job.name), None)
    return SharedProcessPeers() if own is None else _beside(asked, holders, own.devices, job.name)


def _beside(
    asked: Requirements, holders: Sequence[LeaseHolder], devices: tuple[str, ...], name: str
) -> SharedProcessPeers:
    return SharedProcessPeers(
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


# Programs that are not submitted yet against machines that run only certain code. Pure.
#
# The queue learns the words for code as jobs come in. Who asks what would become of a job gets them from here.

_PROGRAM = "command"


def pinned_fleet(fleet: Fleet, accepts: Mapping[str, Sequence[str]], orders: Iterable[JobSpec]) -> Fleet:
    """Return the fleet as it is once its machines have said which code of these orders they do not run."""
    if not accepts:
        return fleet
    codes = {code_of(one) for one in orders if one.recipe == _PROGRAM}
    return changed(
        fleet,
        offers=[_pinned(one, accepts.get(one.node, ()), codes) for one in fleet.offers],
        away=[_pinned(one, accepts.get(one.node, ()), codes) for one in fleet.away],
    )


def pinned_case(case: JobExplainContext, accepts: Mapping[str, Sequence[str]], order: JobSpec) -> JobExplainContext:
    """Return a job with the word for its code, where some machine asks about that."""
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
