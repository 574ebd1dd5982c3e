"""Explanations of jobs and views of machines, from rows and the scheduler's state.

Starts of pending jobs are forecast with a copy of the scheduler (`SnapshotForecast`), in the caller's thread, never in
the writer's. A copy is reused for a while if it took long to make.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Any

from stoker.coordinator.explained_case import (
    Fleet,
    JobExplainContext,
    LeaseHolder,
    MachineDecline,
    Prerequisite,
    case_of_order,
    pinned_case,
    pinned_fleet,
)
from stoker.coordinator.explained_verdict import MACHINE_JOINS, Explainer
from stoker.coordinator.http.forecasts import HypotheticalJobs, chosen_text, numbered, quota
from stoker.coordinator.queue.commands import InspectLaunch, InspectMachines, MachineInspection
from stoker.coordinator.queue.read_jobs import JobExplainRow
from stoker.coordinator.queue.reader import LeaseView, MachineRow
from stoker.coordinator.queue.writer import Queue
from stoker.coordinator.storage.telemetry import MachineTelemetry
from stoker.core.clock import Clock
from stoker.core.errors import InternalError
from stoker.core.events import FleetKinds
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.job import JobState
from stoker.core.leases import FleetTimes, is_skewed
from stoker.core.machine import Demand, SchedulableJob
from stoker.core.text import format_duration
from stoker.protocol.job_messages import Submission, SubmissionOutcome, SubmissionResponse
from stoker.protocol.launch_messages import LaunchView
from stoker.protocol.view_messages import (
    JobDetails,
    JobExplanation,
    MachineHolder,
    MachineView,
    ScheduleView,
    SymptomView,
)
from stoker.scheduler.job_types import rounded_s
from stoker.scheduler.launching import explain_pools
from stoker.scheduler.leases import progress_end_s
from stoker.scheduler.offers import DeviceOffer, NodeOffer
from stoker.scheduler.simulation.forecast import JobForecast, SnapshotForecast
from stoker.scheduler.snapshot import ClassRecord, LeaseRecord, ReadyRecord, Snapshot, used_classes

# Views of machines: what each has, its leases, and its state. Pure.

GONE_S = 24 * 3600.0
"""A machine that was silent for so long is shown as gone."""


class MachineState(StrEnum):
    """The state of a machine. Silence comes first, then what operators decided, then its load."""

    READY = "ready"
    BUSY = "busy"
    """It holds its maximum number of jobs."""
    DRAINED = "drained"
    CORDONED = "cordoned"
    PAUSED = "paused"
    """Paused by its owner, or closed by its own worker."""
    LEFT = "left"
    """Its worker shut down in order."""
    SILENT = "silent"
    """No request of it for longer than a lease and the grace period."""
    GONE = "gone"


def machine_view(
    row: MachineRow,
    looked: MachineInspection,
    offer: NodeOffer | None,
    *,
    now_s: float,
    silent_s: float,
    measured: MachineTelemetry | None = None,
) -> MachineView:
    """Return the view of a machine; without a request for longer than `silent_s` it is silent.

    `offer` is what it offers to the scheduler, or would if it were back; None: its capability is unknown.
    `measured` has the present values of its devices; None: it does not report them.
    """
    found = [device for device in row.capability.get("devices", ()) if isinstance(device, dict)]
    slots = offer.slots if offer is not None else row.slots or max(1, len(found))
    state = state_of(row, offer, slots, now_s=now_s, silent_s=silent_s)
    is_closed = state in _CLOSED
    offered = {} if offer is None else {device.uuid: device for device in offer.devices}
    holdings = looked.holdings.get(row.name)
    values = {} if measured is None else {one.device: one.model_dump(mode="json") for one in measured.devices}
    return MachineView(
        name=row.name,
        state=str(state),
        why=(row.why or ("" if offer is None else offer.closed)) if is_closed else "",
        until_s=row.until_s if is_closed else None,
        ends_s=row.ends_s if row.left_s is None else None,
        incarnation=row.incarnation,
        version=row.version,
        last_seen_s=row.last_seen_s,
        slots=slots,
        held=len(row.held),
        jobs=tuple(lease.name for lease in row.held),
        holders=tuple(_holder(lease, looked.wanted.get(lease.class_id)) for lease in row.held),
        cores=None if offer is None else offer.cores,
        ram_bytes=None if offer is None else offer.ram_bytes,
        devices=tuple(_device(device, row, offered, values) for device in found),
        host=values.get("", {}),
        capability=row.capability,
        drift=looked.drift.get(row.name, ()),
        environments={} if holdings is None else holdings.model_dump(mode="json", exclude={"trees"}),
        trees=0 if holdings is None else len(holdings.trees),
    )


def state_of(row: MachineRow, offer: NodeOffer | None, slots: int, *, now_s: float, silent_s: float) -> MachineState:
    """Return the state of a machine."""
    if row.left_s is not None:
        return MachineState.LEFT
    quiet_s = now_s - row.last_seen_s
    if quiet_s > max(silent_s, GONE_S):
        return MachineState.GONE
    if quiet_s > silent_s:
        return MachineState.SILENT
    if row.closed:
        return MachineState(row.closed)
    if offer is not None and offer.closed:
        return MachineState.PAUSED
    return MachineState.BUSY if len(row.held) >= slots else MachineState.READY


_LEFT_OUT: Mapping[str, Any] = {"capability": {}, "environments": {}}
_CLOSED = frozenset({MachineState.DRAINED, MachineState.CORDONED, MachineState.PAUSED})


def _holder(lease: LeaseView, wanted: SchedulableJob | None) -> MachineHolder:
    needs = None if wanted is None else wanted.requirements
    return MachineHolder(
        job=lease.job,
        name=lease.name,
        devices=lease.devices,
        memory_bytes=None if needs is None or not lease.devices else needs.vram_bytes or None,
        ram_bytes=None if needs is None else needs.ram_bytes,
        is_shared=lease.is_shared,
        started_s=lease.started_s,
    )


def _device(
    found: dict[str, Any],
    row: MachineRow,
    offers: Mapping[str, DeviceOffer],
    values: Mapping[str, dict[str, Any]],
) -> dict[str, Any]:
    uuid = str(found.get("uuid", ""))
    offered = offers.get(uuid)
    shown = {
        **found,
        "jobs": [lease.name for lease in row.held if uuid in lease.devices],
        "closed": row.closed_devices.get(uuid, "") or ("" if offered is None else offered.closed),
    }
    if offered is not None:
        shown |= {"free_bytes": offered.free_bytes, "promised_bytes": offered.promised_bytes}
    if uuid in values:
        shown["telemetry"] = values[uuid]
    return shown


_MOST_FORECASTS = 50
_MOST_CLASSES = 100
_MOST_NAMES = 1000
_KEPT_S, _KEPT_TIMES = 1.0, (2.0, 10.0)
"""A copy of the scheduler is reused for a second, but for no less and no more than so many times as long as it took to
make: on a large fleet forecasts do not take all the time, and on a small one they are up to date.
"""


@frozen
class _Seen:
    """The fleet and the scheduler at one moment."""

    fleet: Fleet
    looked: MachineInspection
    forecast: SnapshotForecast
    leases: Mapping[int, LeaseRecord]
    """By the number of their job."""
    classes: Mapping[int, ClassRecord]
    ends: _Ends

    @property
    def snapshot(self) -> Snapshot:
        return self.forecast.snapshot


@frozen
class FleetOutlook:
    """What is expected of the whole queue."""

    done_s: float | None = None
    """When all jobs are done; None: unknown, or nothing is left."""
    never: Mapping[int, str] = fresh(factory=dict)
    """By class, why no machine of the fleet could run its jobs."""


class Explanations:
    """Explanations and views by the queue. Not thread-safe except `machines`."""

    def __init__(
        self,
        queue: Queue,
        clock: Clock,
        times: FleetTimes,
        version: str = "",
        *,
        is_reachable: bool = True,
        measured: Callable[[str], MachineTelemetry | None] = lambda _machine: None,
    ) -> None:
        """Without `is_reachable` only workers of this machine can join: the coordinator has no TLS.

        `measured` returns the last telemetry of a machine.
        """
        self._queue = queue
        self._measured = measured
        self._is_reachable = is_reachable
        self._clock = clock
        self._times = times
        self._version = version
        self._last: _Seen | None = None
        self._last_until_s = 0.0

    def explain(self, ref: str) -> JobExplanation:
        """Explain a job of the queue."""
        reader, now_s = self._queue.reader, self._clock.wall_s()
        first = reader.story(ref).job
        seen = self._see(now_s, reader.case(first.id), first.state)
        # Read after the inspection: a job that was granted in between must not wait for its own machine.
        row, story = reader.case(first.id), reader.story(first.id)
        explainer = Explainer(seen.fleet, now_s=now_s)
        case = self._case(row, story, seen, explainer, now_s)
        explained = explainer.explain(case)
        if story.job.state != JobState.PENDING or row.after:
            return explained
        return self._with_pools(explained, case.wanted, case.takes_s)

    def _with_pools(self, explained: JobExplanation, job: SchedulableJob, takes_s: float | None) -> JobExplanation:
        """Add what pools do for a ready job. One that only a pool could run does not wait for ever."""
        view = self._queue.ask(InspectLaunch())
        if not isinstance(view, LaunchView) or not view.pools:
            return explained
        since_s = explained.job.submitted_s
        waiting = Demand(job=job, count=1, since_s=since_s, names=(explained.job.name,), takes_s=takes_s)
        verdicts = explain_pools(
            waiting,
            view.pools,
            view.allocations,
            now_s=view.now_s,
            machines=view.machines,
            requests=view.requests,
            is_reachable=self._is_reachable,
        )
        changes: dict[str, Any] = {"pools": {one.pool: one.text for one in verdicts}}
        helping = min((one for one in verdicts if one.order is not None), key=attrgetter("order"), default=None)
        if explained.never and helping is not None:
            verdict = f"pending: no machine of the fleet fits; {helping.pool}: {helping.text}"
            by_hand = [one for one in explained.changes if one != MACHINE_JOINS]
            changes |= {"never": "", "verdict": verdict, "changes": tuple(by_hand)}
        return explained.model_copy(update=changes)

    def forecast(self, submission: Submission, submitted: SubmissionResponse) -> SubmissionResponse:
        """Return a dry run with forecasts of its first jobs, and when all are done."""
        coming = [
            at
            for at, one in enumerate(submitted.jobs)
            if one.outcome in (SubmissionOutcome.NEW, SubmissionOutcome.REQUEUED)
        ]
        wanted, now_s = coming[:_MOST_FORECASTS], self._clock.wall_s()
        seen = self._see(now_s)
        fleet = pinned_fleet(seen.fleet, seen.looked.accepts, (submission.jobs[at] for at in wanted))
        explainer = Explainer(fleet, now_s=now_s)
        newcomers = HypotheticalJobs(seen.snapshot, explainer, submission.submitter, seen.looked.stated_s)
        for at in coming:
            order = submission.jobs[at]
            newcomers.add(at, pinned_case(case_of_order(order, now_s=now_s), seen.looked.accepts, order), order)
        expected = SnapshotForecast(newcomers.snapshot())
        jobs = list(submitted.jobs)
        ahead = {
            priority: _in_the_way(_before_new(seen.snapshot, priority), seen, explainer)
            for priority in {one.priority for one in submission.jobs}
        }
        for at in wanted:
            order = submission.jobs[at]
            found = None if order.after else expected.of(newcomers.numbers[at])
            case = changed(
                newcomers.cases[at],
                ahead=ahead[order.priority],
                after=tuple(Prerequisite(name=name, state=str(JobState.PENDING)) for name in order.after),
                forecast=found,
                names=self._names(found),
            )
            explained = explainer.explain(case, tells_machines=False)
            expected_start = explained.expected
            jobs[at] = jobs[at].model_copy(
                update={
                    "forecast": explained.verdict,
                    "machine": expected_start.machine if expected_start is not None else "",
                    "starts_s": explained.starts_s,
                    "ends_s": expected_start.ends_s if expected_start is not None else None,
                }
            )
            if explained.never:
                continue
            # An earlier job goes before the others.
            ahead |= {priority: count + 1 for priority, count in ahead.items() if priority <= order.priority}
        ends_s = expected.ends_s(list(newcomers.numbers.values())) if coming else None
        is_whole = not any(submission.jobs[at].after for at in coming)
        done_s = now_s + ends_s if ends_s is not None and is_whole else None
        return submitted.model_copy(update={"jobs": tuple(jobs), "done_s": done_s})

    def schedule(self) -> ScheduleView:
        """Return the state of the scheduler, with the names of the first pending jobs."""
        snapshot = self._snapshot(self._look(schedule=True))
        first = sorted((-level.priority, number) for level in snapshot.ready for number in level.numbers())[
            :_MOST_NAMES
        ]
        names = self._queue.reader.names([number for _, number in first])
        pending = self._queue.reader.counts()[str(JobState.PENDING)]
        return ScheduleView(
            schedule=changed(snapshot, classes=used_classes(snapshot)).to_dict(),
            names={str(number): name for number, name in names.items()},
            blocked=max(0, pending - snapshot.ready_count),
        )

    def outlook(self) -> FleetOutlook:
        """Return when all jobs are expected to be done, and which classes of pending jobs no machine could run."""
        now_s = self._clock.wall_s()
        seen = self._see(now_s)
        snapshot, explainer = seen.snapshot, Explainer(seen.fleet, now_s=now_s)
        waiting = {level.class_id for level in snapshot.ready}
        reasons = {
            class_id: explainer.never(seen.looked.wanted[class_id])
            for class_id in sorted(waiting)[:_MOST_CLASSES]
            if class_id in seen.looked.wanted
        }
        never = {class_id: why for class_id, why in reasons.items() if why}
        return FleetOutlook(done_s=self._done_s(seen, now_s), never=never)

    def _done_s(self, seen: _Seen, now_s: float) -> float | None:
        """Return when all jobs are done; None: unknown, or there are none."""
        snapshot = seen.snapshot
        ends_s = [seen.ends.of(lease.job) for lease in snapshot.leases]
        blocked = self._queue.reader.counts()[str(JobState.PENDING)] - snapshot.ready_count
        if blocked > 0 or any(level.more for level in snapshot.ready):
            return None
        numbers = [number for level in snapshot.ready for number in level.numbers()]
        if numbers:
            last_s = seen.forecast.ends_s(numbers)
            ends_s.append(None if last_s is None else now_s + last_s)
        known = [one for one in ends_s if one is not None]
        return max(known) if known and len(known) == len(ends_s) else None

    def machines(
        self, name: str = "", *, among: Collection[str] | None = None, is_brief: bool = False
    ) -> tuple[MachineView, ...]:
        """Return all machines, or those of some names; none if they are unknown. Thread-safe. Blocks.

        The worker's report is included for a single machine only. `is_brief` leaves out what never changes while a
        machine runs: it is most of the bytes.
        """
        reader, now_s, silent_s = self._queue.reader, self._clock.wall_s(), self._silent_s()
        rows, looked, standing = reader.machines(name, among=among), self._look(), self._queue.standing()
        offers = {offer.node: offer for offer in (*looked.away, *looked.offers)}
        symptoms: dict[str, list[SymptomView]] = defaultdict(list)
        for one in reader.symptoms(name, among=among):
            symptoms[one.machine].append(one)
        return tuple(
            machine_view(
                row,
                looked,
                offers.get(row.name),
                now_s=now_s,
                silent_s=silent_s,
                measured=self._measured(row.name),
            ).model_copy(
                update={
                    "symptoms": tuple(symptoms.get(row.name, ())),
                    "report": row.report if name else {},
                    **(_LEFT_OUT if is_brief else {}),
                    "is_skewed": is_skewed(row.version, self._version),
                    "certificate_until_s": max(
                        (one.expires_s for one in standing.certificates_of(row.name, now_s)), default=None
                    ),
                }
            )
            for row in rows
        )

    def _look(self, *, schedule: bool = False) -> MachineInspection:
        looked = self._queue.ask(InspectMachines(schedule=schedule))
        if not isinstance(looked, MachineInspection):
            message = f"the queue answered an inspection with {type(looked).__name__}"
            raise InternalError(message)
        return looked

    def _silent_s(self) -> float:
        return self._queue.pace().lease_s + self._times.grace_s

    def _see(self, now_s: float, row: JobExplainRow | None = None, state: str = "") -> _Seen:
        """Return the fleet and the scheduler's state; recent ones are reused if they have the job in this state."""
        last, began_s = self._last, self._clock.monotonic_s()
        if last is not None and began_s < self._last_until_s and row is not None and _is_so(last, row, state):
            return last
        looked, machines = self._look(schedule=True), self._queue.reader.machines()
        snapshot = self._snapshot(looked)
        classes = {one.class_id: one for one in snapshot.classes}
        leases = {one.job: one for one in snapshot.leases}
        ends = _Ends(snapshot, machines)
        fleet = _fleet(looked, machines, ends, now_s=now_s, silent_s=self._silent_s())
        seen = _Seen(
            fleet=fleet, looked=looked, forecast=SnapshotForecast(snapshot), leases=leases, classes=classes, ends=ends
        )
        ended_s = self._clock.monotonic_s()
        least_s, most_s = ((ended_s - began_s) * times for times in _KEPT_TIMES)
        self._last, self._last_until_s = seen, ended_s + min(most_s, max(least_s, _KEPT_S))
        return seen

    def _snapshot(self, looked: MachineInspection) -> Snapshot:
        """Return the scheduler's state with the numbers of the first ready jobs."""
        if looked.schedule is None:
            message = "the queue answered an inspection without its schedule"
            raise InternalError(message)
        return numbered(looked.schedule, self._queue.reader.ready_numbers(quota(looked.schedule)))

    def _names(self, forecast: JobForecast | None) -> dict[int, str]:
        """Return the names of jobs that are ahead of one."""
        firsts = {one.first for one in forecast.held_back if one.first is not None} if forecast is not None else ()
        return self._queue.reader.names(list(firsts)[:_MOST_NAMES]) if firsts else {}

    def _case(
        self, row: JobExplainRow, story: JobDetails, seen: _Seen, explainer: Explainer, now_s: float
    ) -> JobExplainContext:
        job = story.job
        is_in_line = job.state == JobState.PENDING and not row.after
        counts, most = story.counts, {"user": row.attempts, "lost": self._queue.budgets.lost}
        ends = seen.ends
        after = tuple(Prerequisite(name=one.name, state=one.state, ends_s=ends.of(one.seq)) for one in row.after)
        found = _expected(row, job.priority, after, seen, now_s) if job.state == JobState.PENDING else None
        known = seen.classes.get(row.class_id)
        return JobExplainContext(
            job=job,
            wanted=changed(seen.looked.wanted[row.class_id], name=job.name, model=job.recipe, priority=job.priority),
            environment=row.environment,
            inputs=row.inputs,
            after=after,
            not_before_s=row.not_before_s,
            message=row.message,
            ahead=(
                _in_the_way(self._queue.reader.waiting_before(row.seq).by_class, seen, explainer)
                if is_in_line
                else None
            ),
            declines=tuple(
                MachineDecline(
                    machine=one.machine, reason=one.cause or "declined", message=one.message, at_s=one.ended_s
                )
                for one in reversed(story.attempts)
                if one.ending == "declined"
            ),
            spent={cause: (counts.get(cause, 0), limit) for cause, limit in most.items()},
            ends_s=ends.of(row.seq),
            takes_s=None if known is None else _unrounded_s(known.expected_s, row.expected_s),
            based_on=ends.based_on(row.seq) or (known.based_on if known is not None else ""),
            forecast=found,
            names=self._names(found),
            share=seen.forecast.shares.get(known.user) if known is not None else None,
            chosen=chosen_text(_granted(story.events)),
        )


class _Ends:
    """Expected ends of live leases, and the source of each estimate."""

    def __init__(self, snapshot: Snapshot, machines: Sequence[MachineRow]) -> None:
        self._now_s = snapshot.now_s
        self._leases = {one.job: one for one in snapshot.leases}
        self._classes = {one.class_id: one for one in snapshot.classes}
        self._held = {held.seq: held for machine in machines for held in machine.held}

    def of(self, job: int) -> float | None:
        """Return when the lease of a job ends; None: it has none, or no estimate, or is overdue."""
        progress_s, lease = self._by_progress(job), self._leases.get(job)
        if progress_s is not None or lease is None:
            return progress_s
        return self._now_s + lease.until_s if lease.is_estimated and lease.until_s > 0 else None

    def based_on(self, job: int) -> str:
        """Return what the estimate is from; empty: there is none."""
        if self._by_progress(job) is not None:
            progress = self._held[job].progress
            return f"its own progress, {progress['step']} of {progress['of']}"
        lease = self._leases.get(job)
        known = None if lease is None else self._classes.get(lease.class_id)
        return "" if known is None else known.based_on

    def _by_progress(self, job: int) -> float | None:
        held = self._held.get(job)
        if held is None or held.started_s is None:
            return None
        return progress_end_s(held.started_s, held.progress.get("step"), held.progress.get("of"), self._now_s)


def _unrounded_s(expected_s: float | None, stated_s: float | None) -> float | None:
    """Return an expected duration; if it is the rounded one that the submitter states, as stated."""
    return stated_s if stated_s is not None and rounded_s(stated_s) == expected_s else expected_s


def _expected(
    row: JobExplainRow, priority: int, after: Sequence[Prerequisite], seen: _Seen, now_s: float
) -> JobForecast | None:
    """Return the forecast of a pending job; None if it is unknown when it is ready."""
    if not after and row.not_before_s <= now_s:
        return seen.forecast.of(row.seq)
    ends_s = [before.ends_s for before in after]
    if any(end_s is None for end_s in ends_s):
        return None
    ready_s = max([row.not_before_s, *[end_s for end_s in ends_s if end_s is not None]])
    coming = ReadyRecord(
        class_id=row.class_id, priority=priority, runs=((row.seq, 1),), come_s=max(0.0, ready_s - seen.snapshot.now_s)
    )
    later = changed(seen.snapshot, ready=(*seen.snapshot.ready, coming))
    return SnapshotForecast(later).of(row.seq, tells=False)


def _is_so(seen: _Seen, row: JobExplainRow, state: str) -> bool:
    """Return True if a job was in this state at that moment."""
    if state in (JobState.CLAIMED, JobState.RUNNING):
        return row.seq in seen.leases
    if state == JobState.PENDING and not row.after:
        return seen.forecast.is_numbered(row.seq)
    return row.class_id in seen.looked.wanted


def _before_new(snapshot: Snapshot, priority: int) -> dict[int, int]:
    """Return the number of ready jobs ahead of a new one of a priority, by class."""
    counts: dict[int, int] = {}
    for level in snapshot.ready:
        if level.priority >= priority:
            counts[level.class_id] = counts.get(level.class_id, 0) + level.count
    return counts


def _granted(events: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the last event that granted a job to a machine."""
    found = [event for event in events if event.get("kind") == FleetKinds.JOB_GRANTED]
    return found[-1] if found else {}


def _fleet(
    looked: MachineInspection, machines: Sequence[MachineRow], ends: _Ends, *, now_s: float, silent_s: float
) -> Fleet:
    return Fleet(
        offers=looked.offers,
        holders={
            machine.name: [
                LeaseHolder(
                    job=held.name,
                    wanted=looked.wanted[held.class_id],
                    devices=held.devices,
                    is_shared=held.is_shared,
                    ends_s=ends.of(held.seq),
                    based_on=ends.based_on(held.seq),
                )
                for held in machine.held
                if held.class_id in looked.wanted
            ]
            for machine in machines
            if machine.held
        },
        absent={machine.name: why for machine in machines if (why := _why_away(machine, now_s, silent_s))},
        away=looked.away,
        closed_until_s={
            machine.name: machine.until_s for machine in machines if machine.closed and machine.until_s is not None
        },
        ends_s={machine.name: machine.ends_s for machine in machines if machine.ends_s is not None},
        holdings=looked.holdings,
    )


def _why_away(machine: MachineRow, now_s: float, silent_s: float) -> str:
    if machine.left_s is not None:
        return f"away: its worker left {format_duration(max(0.0, now_s - machine.left_s))} ago"
    quiet_s = now_s - machine.last_seen_s
    return f"silent for {format_duration(quiet_s)}" if quiet_s > silent_s else ""


def _in_the_way(before: Mapping[int, int], seen: _Seen, explainer: Explainer) -> int:
    """Return the number of jobs ahead that some machine could ever run: the others delay nothing."""
    wanted = seen.looked.wanted
    return sum(
        count for class_id, count in before.items() if class_id not in wanted or explainer.may_ever(wanted[class_id])
    )
