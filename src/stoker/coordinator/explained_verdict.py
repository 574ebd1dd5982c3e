"""Explain a job: its state, when it is expected to start, and what would change that.

Every machine and device with its score or reason, its leases and until when; the queue position; where and when the
scheduler's forecast starts the job, and why not now on machines with free capacity. Pure: uses the placement rule
(`scheduler.explain`) and the forecast, for a job in the queue or one that is not submitted yet; decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.coordinator.explained_case import (
    EnvironmentViews,
    Fleet,
    JobExplainContext,
    MachineDecline,
    Prerequisite,
    data_row,
    first_builds,
    first_copies,
    shared_process_peers,
)
from stoker.core.frozen import changed, fields_of
from stoker.core.job import JobState
from stoker.core.machine import SchedulableJob, environment_word
from stoker.core.retry import LASTING_DECLINE_S
from stoker.core.text import format_duration
from stoker.protocol.environment_messages import MachineEnvironmentStatus
from stoker.protocol.view_messages import ExpectedView, HeldBackView, JobExplanation, ShareOfUser
from stoker.scheduler.changes import Change, why_never
from stoker.scheduler.explain import Explanation, NodeGroups, NodeVerdict, explain
from stoker.scheduler.fit import PlacementShape, choose, shape_of
from stoker.scheduler.job_types import least_time_s
from stoker.scheduler.launching import needed_time
from stoker.scheduler.leases import HoldReason
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.simulation.forecast import ExpectedStart, JobForecast, MachineHold

MACHINE_JOINS = "starts once a machine joins (stoker work --join URL)"
_MOST_CHANGES = 4
_MOST_MACHINES = 3
"""Number of machines named in one line; more are counted."""
_ROUNDED = 0.1
"""Job types round durations by less than this part."""
_BY_TIME = (HoldReason.FASTER, HoldReason.PREFERRED)
_HELD: Mapping[str, str] = {
    HoldReason.FASTER: "the job ends earlier on a faster machine",
    HoldReason.PREFERRED: "the job ends no later on a preferred machine",
    HoldReason.BETTER_FREE: "a better machine is free",
    HoldReason.SCARCE: "it is left to jobs that need it",
    HoldReason.KEPT: "it is reserved for another job",
    HoldReason.LIMIT: "the submitter has reached its limit of jobs or devices",
    HoldReason.ENDS: "it leaves before the job would end",
    HoldReason.DECLINED: "it declined the job",
    HoldReason.ORDER: "another job starts first there",
}
_ENDED: Mapping[str, str] = {JobState.FAILED: "failed", JobState.CANCELLED: "was cancelled"}


class Explainer:
    """Explains many jobs on one fleet: equal machines, and jobs with equal shapes, are evaluated once."""

    def __init__(self, fleet: Fleet, *, now_s: float) -> None:
        self._fleet = fleet
        self._now_s = now_s
        self._groups = NodeGroups()
        self._explanations: dict[PlacementShape, Explanation] = {}
        self._possible: dict[PlacementShape, bool] = {}
        self._away = {offer.node: offer for offer in (*fleet.offers, *fleet.away)}
        self._listed = {word for offer in fleet.offers for word in (*offer.allow_jobs, *offer.deny_jobs)}
        self._environments = EnvironmentViews(fleet)

    def explain(self, case: JobExplainContext, *, tells_machines: bool = True) -> JobExplanation:
        """Explain a job; on a large fleet the rows of machines are most of it, and may be left out."""
        fleet, now_s, explanation = self._fleet, self._now_s, self._place(case)
        views = self._environments.of(case)
        data = {name: data_row(case.inputs, name, held) for name, held in fleet.holdings.items()} if case.inputs else {}
        machine = _machine_of(case.forecast)
        first = first_builds(views.get(machine)) + first_copies(data.get(machine, {}))
        is_waiting = case.job.state == JobState.PENDING
        returning = self._returning(case.wanted) if is_waiting and explanation.best is None else {}
        never = "" if returning or not is_waiting else self._never(case.wanted, explanation)
        ahead = case.ahead if is_waiting and not explanation.never else None
        peers = shared_process_peers(case, fleet, explanation, machine)
        return JobExplanation(
            job=case.job,
            verdict=_verdict(case, explanation, fleet, now_s, never, (first if is_waiting else "") + peers.words()),
            together=peers.jobs,
            never=never,
            after={before.name: before.state for before in case.after} if is_waiting else {},
            place_in_line=None if ahead is None else ahead + 1,
            ahead=ahead,
            starts_s=_start_s(case, explanation, now_s),
            based_on=case.based_on,
            machines=tuple([_row(one, fleet, views.get(one.node), data.get(one.node)) for one in explanation.nodes])
            if tells_machines
            else (),
            changes=tuple(_changes(case, explanation, fleet, now_s, returning)) if is_waiting else (),
            declines=tuple(decline.to_dict() for decline in case.declines),
            expected=_expected_view(case.forecast, now_s) if is_waiting else None,
            held_back=tuple([_held_back_view(one, case, now_s) for one in _held_back(case)]) if is_waiting else (),
            share=None if case.share is None else ShareOfUser(**fields_of(case.share)),
            chosen="" if is_waiting else case.chosen,
        )

    def offers(self, case: JobExplainContext) -> Sequence[NodeOffer]:
        """Return all offers; machines that can't provide the job's environment deny it."""
        return self._environments.offers(case)

    def may_ever(self, wanted: SchedulableJob) -> bool:
        """Return True if any known machine, present or away, could run such a job when idle."""
        shape = shape_of(wanted, listed=self._listed)
        known = self._possible.get(shape)
        if known is None:
            alike = self._groups.of(self._fleet.offers, shape.allowed_hosts, shape.preferred_hosts)
            known = any(self._takes(shape, group.first) for group in alike) or bool(self._returning(wanted))
            self._possible[shape] = known
        return known

    def never(self, wanted: SchedulableJob) -> str:
        """Return why no known machine could run such a job even when idle; empty if one could."""
        if self.may_ever(wanted):
            return ""
        return why_never(shape_of(wanted, listed=self._listed), [*self._away.values()])

    def _takes(self, shape: PlacementShape, offer: NodeOffer) -> bool:
        return choose(shape, self._groups.at_best(offer)) is not None

    def _returning(self, wanted: SchedulableJob) -> dict[str, str]:
        """Return the absent machines that could run a job if they were back, or that are unknown."""
        shape = shape_of(wanted, listed=self._listed)
        unseen = {offer.node: "not seen since the coordinator started" for offer in self._fleet.away}
        return {
            name: why
            for name, why in {**unseen, **self._fleet.absent}.items()
            if name not in self._away or self._takes(shape, self._away[name])
        }

    def _never(self, wanted: SchedulableJob, explanation: Explanation) -> str:
        """Return why no machine could run a job; if none is present, by what absent ones have."""
        if self._fleet.offers or not self._fleet.away:
            return explanation.never
        return why_never(shape_of(wanted, listed=self._listed), [*self._away.values()])

    def _place(self, case: JobExplainContext) -> Explanation:
        offers = self._environments.offers(case)
        listed = self._listed
        if offers is not self._fleet.offers:
            listed = {*listed, environment_word(case.wanted.environment)}
        shape = shape_of(case.wanted, listed=listed)
        explanation = self._explanations.get(shape)
        if explanation is None:
            explanation = self._explanations[shape] = explain(case.wanted, offers, groups=self._groups)
        return explanation


def _row(
    verdict: NodeVerdict, fleet: Fleet, environment: MachineEnvironmentStatus | None, data: dict[str, Any] | None
) -> dict[str, Any]:
    row: dict[str, Any] = verdict.to_dict()
    if data:
        row["data"] = data
    if environment is not None:
        row["environment"] = environment.to_dict()
    holders = fleet.holders.get(verdict.node, ())
    if holders:
        held = [holder.to_dict() for holder in holders]
        row["held"] = held
        for device in row["devices"]:
            device["held"] = [one for one, of in zip(held, holders, strict=True) if device["uuid"] in of.devices]
    if verdict.node in fleet.closed_until_s:
        row["closed_until_s"] = fleet.closed_until_s[verdict.node]
    return row


def _start_s(case: JobExplainContext, explanation: Explanation, now_s: float) -> float | None:
    """Return the expected start; None if a job ahead has no estimate, or it is beyond the forecast's horizon."""
    start = _start(case)
    if case.job.state != JobState.PENDING or explanation.never or case.job.is_cancelling or start is None:
        return None
    if start.machine in _lately(case, now_s):
        return None
    return now_s + start.start_s if start.is_start_known else None


def _start(case: JobExplainContext) -> ExpectedStart | None:
    return None if case.forecast is None else case.forecast.start


def _machine_of(forecast: JobForecast | None) -> str:
    return "" if forecast is None or forecast.start is None else forecast.start.machine


def _held_back(case: JobExplainContext) -> tuple[MachineHold, ...]:
    return () if case.forecast is None else case.forecast.held_back


def _expected_view(forecast: JobForecast | None, now_s: float) -> ExpectedView | None:
    if forecast is None:
        return None
    start, not_before_s = forecast.start, forecast.not_before_s
    if start is None:
        return None if not_before_s is None else ExpectedView(not_before_s=now_s + not_before_s)
    return ExpectedView(
        machine=start.machine,
        devices=start.devices,
        starts_s=now_s + start.start_s if start.is_start_known else None,
        ends_s=now_s + start.end_s if start.is_end_known else None,
        why=start.why,
    )


def _held_back_view(held: MachineHold, case: JobExplainContext, now_s: float) -> HeldBackView:
    return HeldBackView(
        machine=held.machine,
        reason=held.reason,
        text=_why_held(held, case),
        ends_s=None if held.end_s is None else now_s + held.end_s,
    )


def _why_held(held: MachineHold, case: JobExplainContext) -> str:
    if held.first is not None:
        return f"{case.names.get(held.first) or 'another job'} starts first there"
    if held.reason == HoldReason.ENDS and held.left_s is not None and held.end_s is not None:
        return _left_text(held.left_s, held.end_s, case)
    return _HELD.get(held.reason, held.reason)


def _left_text(left_s: float, takes_s: float, case: JobExplainContext) -> str:
    """Return that a machine leaves too early. `takes_s` may be rounded: then the job's own time is shown."""
    if case.takes_s is not None and abs(takes_s - case.takes_s) < _ROUNDED * case.takes_s:
        takes_s = case.takes_s
    return f"{format_duration(max(0.0, left_s))} left, needs {needed_time(takes_s, case.wanted)}"


def _verdict(
    case: JobExplainContext, explanation: Explanation, fleet: Fleet, now_s: float, never: str, more: str
) -> str:
    job = case.job
    if job.state == JobState.PENDING:
        return _waiting(case, explanation, fleet, now_s, never, more)
    if job.is_cancelling:
        return f"is being cancelled; {job.machine} has not confirmed the stop yet"
    if job.state == JobState.RUNNING:
        return f"runs on {job.machine}{_for(case.ends_s, now_s)}{more}"
    if job.state == JobState.CLAIMED:
        return f"granted to {job.machine}, which {job.says or 'has not started it yet'}"
    on = f" on {job.machine}" if job.machine else ""
    return f"{job.state}{on}{f': {job.why}' if job.why else ''}"


def _waiting(
    case: JobExplainContext, explanation: Explanation, fleet: Fleet, now_s: float, never: str, more: str
) -> str:
    if case.after:
        return f"waits for {_listed([f'{one.name} ({one.state})' for one in case.after])}"
    if case.not_before_s > now_s:
        why = f": {case.message}" if case.message else ""
        return f"retry in {format_duration(case.not_before_s - now_s)}{_spent(case)}{why}"
    if never and (fleet.offers or fleet.away):
        return f"never on this fleet: {never}"
    if explanation.never and fleet.offers:
        return f"waits for a machine that is away: on present machines, {explanation.never}"
    line = "pending" if case.ahead is None else f"pending, queue position {case.ahead + 1:,}"
    if not fleet.offers:
        absent = [f"{name} is {why}" for name, why in fleet.absent.items()]
        return f"{line}: no machine is available{f' ({_listed(absent)})' if absent else ''}"
    return f"{line}{_place(case, explanation, fleet, now_s, more)}"


def _place(case: JobExplainContext, explanation: Explanation, fleet: Fleet, now_s: float, more: str) -> str:
    """Return where it starts next and when; or why not, and the leases on the machines that it waits for."""
    start, declined = _start(case), _lately(case, now_s)
    if start is None or start.machine in declined:
        if declined and explanation.best is not None:
            return ". " + _listed([_declined_text(one, now_s) for one in declined.values()], "; ")
        not_before_s = None if case.forecast is None else case.forecast.not_before_s
        after = "" if not_before_s is None else f": starts in more than {format_duration(not_before_s)}"
        return after or _room_text(case) or _taken(case, explanation, fleet, now_s)
    if start.start_s <= 0:
        return f": starts with the next claim of {start.machine}{more}"
    held = [one for one in _held_back(case) if one.reason != HoldReason.ORDER]
    if held:
        return _compared(case, start, held[0]) + more
    return f": expected on {start.machine}{_in(start)}{more}{_taken(case, explanation, fleet, now_s)}"


def _room_text(case: JobExplainContext) -> str:
    """Return why it does not start on a machine with free capacity; empty: there is none, or only the order matters."""
    held = next((one for one in _held_back(case) if one.reason != HoldReason.ORDER), None)
    return "" if held is None else f": {_free_but(held, case)}"


def _free_but(held: MachineHold, case: JobExplainContext) -> str:
    """Return a machine with free capacity and why the job does not start there: `a100-7f3a2c: 38m left, needs 2h`."""
    is_short = held.reason == HoldReason.ENDS and held.left_s is not None
    return f"{held.machine}{':' if is_short else ' is free, but'} {_why_held(held, case)}"


def _in(start: ExpectedStart) -> str:
    return f" in about {format_duration(start.start_s)}" if start.is_start_known else ""


def _compared(case: JobExplainContext, start: ExpectedStart, held: MachineHold) -> str:
    """Return why it waits for a machine though another one has free capacity."""
    if held.reason in _BY_TIME and start.is_end_known and held.end_s is not None:
        there, here = format_duration(start.end_s), format_duration(held.end_s)
        return f", for {start.machine}: done there in about {there}, on {held.machine}, which is free, in {here}"
    return f": expected on {start.machine}{_in(start)}; {_free_but(held, case)}"


def _taken(case: JobExplainContext, explanation: Explanation, fleet: Fleet, now_s: float) -> str:
    """Return the jobs on the machines that it waits for, and which of these leave too early."""
    found = []
    least_s = least_time_s(case.takes_s, has_checkpoint=case.wanted.has_checkpoint)
    for node in explanation.waits_for:
        holders = fleet.holders.get(node, ())
        end_s = fleet.ends_s.get(node)
        if case.takes_s is not None and end_s is not None and end_s - now_s < least_s:
            found.append(f"{node}: {_left_text(end_s - now_s, case.takes_s, case)}")
        elif holders:
            until = [holder.ends_s for holder in holders if holder.ends_s is not None]
            end_s = max(until) if len(until) == len(holders) else None
            found.append(f"{node}: taken by {_listed([holder.job for holder in holders])}{_for(end_s, now_s)}")
    return f". {_listed(found, '; ')}" if found else ""


def _lately(case: JobExplainContext, now_s: float) -> dict[str, MachineDecline]:
    """Return the newest decline of each machine that declined the job lately."""
    found = {one.machine: one for one in reversed(case.declines)}
    return {name: one for name, one in found.items() if one.at_s is None or now_s - one.at_s < LASTING_DECLINE_S}


def _declined_text(one: MachineDecline, now_s: float) -> str:
    ago = "" if one.at_s is None else f" {format_duration(max(0.0, now_s - one.at_s))} ago"
    why = one.message.removeprefix(f"{one.machine}: ") or one.reason
    return f"{one.machine} declined it{ago}: {why}"


def _changes(
    case: JobExplainContext, explanation: Explanation, fleet: Fleet, now_s: float, returning: Mapping[str, str]
) -> Iterator[str]:
    """Return changes that would let it start, the nearest first."""
    if case.after or case.not_before_s > now_s:
        yield from (_of_prerequisite(before, now_s) for before in case.after)
        return
    start = _start(case)
    # If it is held back for another machine, a higher priority changes nothing.
    held = _held_back(case)
    is_passed = not held or any(one.reason == HoldReason.ORDER for one in held)
    if explanation.best is not None and case.ahead and is_passed and (start is None or start.start_s > 0):
        ahead = "the job" if case.ahead == 1 else f"the {case.ahead:,} jobs"
        yield f"starts now if its priority is above that of {ahead} ahead (stoker jobs priority {case.job.name})"
    if explanation.best is None:
        yield from _of_placement(explanation)
        yield from _of_closed(case, fleet, now_s)
        for machine, why in list(returning.items())[:_MOST_MACHINES]:
            yield f"may start if {machine} comes back ({why})"
    if not fleet.offers and not fleet.absent:
        yield MACHINE_JOINS


def _of_placement(explanation: Explanation) -> Iterator[str]:
    first = [explanation.nearest] if explanation.nearest is not None else []
    now: list[Change] = [*first, *[one for one in explanation.changes if one not in first]][:_MOST_CHANGES]
    yield from (f"starts now if {change.text}" for change in now)
    if explanation.never:
        said = {(change.what, change.relative) for change in now}
        ever = [change for change in explanation.ever if (change.what, change.relative) not in said]
        yield from (f"possible if {change.text}" for change in ever[:_MOST_CHANGES])


def _of_closed(case: JobExplainContext, fleet: Fleet, now_s: float) -> Iterator[str]:
    """Return closed machines and devices that could run it now."""
    shape = shape_of(case.wanted)
    closed = [offer for offer in fleet.offers if offer.closed or any(device.closed for device in offer.devices)]
    able = [offer for offer in closed if choose(shape, _opened(offer)) is not None]
    for offer in able[:_MOST_MACHINES]:
        yield f"starts now if {_closed(offer)}{_for(fleet.closed_until_s.get(offer.node), now_s)} is opened"
    if len(able) > _MOST_MACHINES:
        yield f"starts now if one of {len(able) - _MOST_MACHINES} more closed machines is opened"


def _opened(offer: NodeOffer) -> NodeOffer:
    return changed(offer, closed="", devices=tuple(changed(device, closed="") for device in offer.devices))


def _closed(offer: NodeOffer) -> str:
    if offer.closed:
        return f"machine {offer.node}, which is {offer.closed}"
    devices = [f"{device.uuid} of {offer.node} ({device.closed})" for device in offer.devices if device.closed]
    return _listed(devices)


def _of_prerequisite(before: Prerequisite, now_s: float) -> str:
    ended = _ENDED.get(before.state)
    if ended is not None:
        return f"starts once {before.name}, which {ended}, is requeued and completes"
    return f"starts once {before.name} has completed ({before.state}{_for(before.ends_s, now_s)})"


def _spent(case: JobExplainContext) -> str:
    spent = [f"{cause} {count} of {most}" for cause, (count, most) in case.spent.items() if count]
    return f" ({', '.join(spent)})" if spent else ""


def _listed(texts: Sequence[str], between: str = ", ") -> str:
    shown = between.join(texts[:_MOST_MACHINES])
    more = len(texts) - _MOST_MACHINES
    return f"{shown} and {more} more" if more > 0 else shown


def _for(until_s: float | None, now_s: float) -> str:
    return "" if until_s is None or until_s <= now_s else f" for about {format_duration(until_s - now_s)}"
