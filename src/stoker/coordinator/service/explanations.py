"""Why a job is where it is, and how machines are: rows and what matching sees, brought together for pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.coordinator.matching.cases import Case, Decline, Fleet, Holder, Prerequisite, case_of_order
from stoker.coordinator.matching.durations import Durations, Estimate, Run, Running
from stoker.coordinator.matching.explaining import Explainer
from stoker.coordinator.matching.pinned import pinned_case, pinned_fleet
from stoker.coordinator.matching.roster import Lease, MachineFacts, machine_view
from stoker.coordinator.queue.commands import Look, Looked
from stoker.coordinator.queue.queue import Queue
from stoker.coordinator.queue.reading.cases import CaseRow
from stoker.coordinator.queue.reading.fleet import Held, MachineRow
from stoker.model.clock import Clock
from stoker.model.errors import Bug
from stoker.model.frozen import changed, frozen
from stoker.model.leases import Budgets, FleetTimes
from stoker.model.lifecycle import JobState
from stoker.model.requirements import WantedJob
from stoker.model.units import format_duration
from stoker.wire.orders import Outcome, Submission, Submitted
from stoker.wire.views import JobExplanation, JobStory, MachineView

_PROGRAM = "command"
_MOST_FORECASTS = 50
_MOST_RECIPES = 20
"""Of which it is looked up how long their runs took."""


@frozen
class _Seen:
    """The fleet at one moment, and what is known of durations."""

    fleet: Fleet
    wanted: Mapping[int, WantedJob]
    durations: Durations
    ends: Mapping[str, Estimate | None]
    """Of live leases, by their job's id."""
    accepts: Mapping[str, Sequence[str]]
    """Machine → the code that it runs, of those that run only some."""


class Explanations:
    """Asks the queue. From any thread."""

    def __init__(self, queue: Queue, clock: Clock, times: FleetTimes, budgets: Budgets) -> None:
        self._queue = queue
        self._clock = clock
        self._times = times
        self._budgets = budgets

    def explain(self, ref: str) -> JobExplanation:
        """Explain a job of the queue."""
        reader, now_s = self._queue.reader, self._clock.wall_s()
        first = reader.story(ref).job
        seen = self._see([first.recipe], now_s)
        # Read behind the look: a job that was granted in between does not wait for the machine that it has.
        row, story = reader.case(first.id), reader.story(first.id)
        explainer = Explainer(seen.fleet, now_s=now_s)
        case = self._case(row, story, seen, explainer)
        return explainer.explain(_estimated(case, row, seen))

    def forecast(self, submission: Submission, submitted: Submitted) -> Submitted:
        """Say of the first jobs of a dry run what would become of them, if they were handed in now."""
        coming = (Outcome.NEW, Outcome.REQUEUED)
        wanted = [at for at, one in enumerate(submitted.jobs) if one.outcome in coming][:_MOST_FORECASTS]
        now_s = self._clock.wall_s()
        seen = self._see([submission.jobs[at].recipe for at in wanted], now_s)
        fleet = pinned_fleet(seen.fleet, seen.accepts, (submission.jobs[at] for at in wanted))
        jobs, explainer = list(submitted.jobs), Explainer(fleet, now_s=now_s)
        ahead = {
            priority: _in_the_way(self._queue.reader.ahead(priority), seen, explainer)
            for priority in {one.priority for one in submission.jobs}
        }
        for at in wanted:
            order = submission.jobs[at]
            whole = seen.durations.whole(_like(order.recipe, order.name))
            case = changed(
                case_of_order(order, now_s=now_s, ahead=ahead[order.priority]),
                after=tuple(Prerequisite(name=name, state=str(JobState.PENDING)) for name in order.after),
                lasts_s=None if whole is None else whole.seconds,
            )
            told = explainer.explain(pinned_case(case, seen.accepts, order), tells_machines=False)
            jobs[at] = jobs[at].model_copy(update={"forecast": told.verdict})
            if told.never:
                continue
            # Whoever comes first goes before the others.
            ahead |= {priority: count + 1 for priority, count in ahead.items() if priority <= order.priority}
        return submitted.model_copy(update={"jobs": tuple(jobs)})

    def machines(self, name: str = "") -> tuple[MachineView, ...]:
        """Give every machine, or the one of a name; nothing if it is unknown."""
        rows, now_s, silent_s = self._queue.reader.machines(name), self._clock.wall_s(), self._silent_s()
        looked = self._look()
        offers = {offer.node: offer for offer in (*looked.away, *looked.offers)}
        return tuple(
            machine_view(
                MachineFacts(
                    name=row.name,
                    incarnation=row.incarnation,
                    version=row.version,
                    last_seen_s=row.last_seen_s,
                    left_s=row.left_s,
                    closed=row.closed,
                    why=row.why,
                    until_s=row.until_s,
                    closed_devices=row.closed_devices,
                    slots=row.slots,
                    leases=tuple(Lease(job=held.name, devices=held.devices) for held in row.held),
                    capability=row.capability,
                    drift=looked.drift.get(row.name, ()),
                    offer=offers.get(row.name),
                    holdings=looked.holdings.get(row.name),
                ),
                now_s=now_s,
                silent_s=silent_s,
            )
            for row in rows
        )

    def _look(self) -> Looked:
        looked = self._queue.ask(Look())
        if not isinstance(looked, Looked):
            message = f"the queue answers a look with {type(looked).__name__}"
            raise Bug(message)
        return looked

    def _silent_s(self) -> float:
        return self._queue.pace().lease_s + self._times.grace_s

    def _see(self, recipes: Sequence[str], now_s: float) -> _Seen:
        """Look at the whole fleet, and at how long runs of these recipes and of what runs now took."""
        looked, machines = self._look(), self._queue.reader.machines()
        recipes = [*recipes, *[held.recipe for machine in machines for held in machine.held]]
        types = {device.uuid: device.type for offer in looked.offers for device in offer.devices}
        runs = self._queue.reader.runs(list(dict.fromkeys(recipes))[:_MOST_RECIPES])
        durations = Durations(
            [
                Run(
                    like=_like(run.recipe, run.name),
                    seconds=run.seconds,
                    class_id=run.class_id,
                    device_type=_type(run.devices, types),
                )
                for run in runs
            ]
        )
        ends = {
            held.job: durations.ends_s(_running(held, types), now_s) for machine in machines for held in machine.held
        }
        fleet = _fleet(looked, machines, ends, now_s=now_s, silent_s=self._silent_s())
        return _Seen(fleet=fleet, wanted=looked.wanted, durations=durations, ends=ends, accepts=looked.accepts)

    def _case(self, row: CaseRow, story: JobStory, seen: _Seen, explainer: Explainer) -> Case:
        job = story.job
        is_in_line = job.state == JobState.PENDING and not row.after
        counts, most = story.counts, {"user": row.attempts, "lost": self._budgets.lost}
        return Case(
            job=job,
            wanted=changed(seen.wanted[row.class_id], name=job.name, model=job.recipe, priority=job.priority),
            environment=row.environment,
            inputs=row.inputs,
            after=tuple(
                Prerequisite(name=one.name, state=one.state, ends_s=_at_s(seen.ends.get(one.job))) for one in row.after
            ),
            not_before_s=row.not_before_s,
            message=row.message,
            ahead=(
                _in_the_way(self._queue.reader.waiting_before(row.seq).by_class, seen, explainer)
                if is_in_line
                else None
            ),
            declines=tuple(
                Decline(machine=one.machine, reason=one.cause or "declined", message=one.message, at_s=one.ended_s)
                for one in reversed(story.attempts)
                if one.ending == "declined"
            ),
            spent={cause: (counts.get(cause, 0), limit) for cause, limit in most.items()},
        )


def _fleet(
    looked: Looked,
    machines: Sequence[MachineRow],
    ends: Mapping[str, Estimate | None],
    *,
    now_s: float,
    silent_s: float,
) -> Fleet:
    return Fleet(
        offers=looked.offers,
        holders={
            machine.name: [
                Holder(
                    job=held.name,
                    wanted=looked.wanted[held.class_id],
                    devices=held.devices,
                    is_shared=held.is_shared,
                    ends_s=_at_s(ends[held.job]),
                    based_on=_based_on(ends[held.job]),
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
        holdings=looked.holdings,
    )


def _why_away(machine: MachineRow, now_s: float, silent_s: float) -> str:
    if machine.left_s is not None:
        return f"away, its worker left {format_duration(max(0.0, now_s - machine.left_s))} ago"
    quiet_s = now_s - machine.last_seen_s
    return f"silent for {format_duration(quiet_s)}" if quiet_s > silent_s else ""


def _in_the_way(before: Mapping[int, int], seen: _Seen, explainer: Explainer) -> int:
    """Count those who stand before somebody, by class, that some machine could ever take: the others hold nobody up."""
    return sum(
        count
        for class_id, count in before.items()
        if class_id not in seen.wanted or explainer.may_ever(seen.wanted[class_id])
    )


def _estimated(case: Case, row: CaseRow, seen: _Seen) -> Case:
    """Lay beside a case how long its like took, and when it ends if it runs."""
    whole, end = seen.durations.whole(_like(case.job.recipe, case.job.name), row.class_id), seen.ends.get(case.job.id)
    return changed(
        case,
        ends_s=_at_s(end),
        lasts_s=None if whole is None else whole.seconds,
        based_on=_based_on(end or whole),
    )


def _running(held: Held, types: Mapping[str, str]) -> Running:
    progress = held.progress
    return Running(
        like=_like(held.recipe, held.name),
        class_id=held.class_id,
        device_type=_type(held.devices, types),
        started_s=held.started_s,
        step=progress.get("step"),
        of=progress.get("of"),
    )


def _like(recipe: str, name: str) -> str:
    """Say by what runs are alike: every program has one recipe, and says nothing about another program."""
    return name.partition("/")[0] if recipe == _PROGRAM else recipe


def _type(devices: Sequence[str], types: Mapping[str, str]) -> str:
    return types.get(devices[0], "") if devices else ""


def _at_s(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.seconds


def _based_on(estimate: Estimate | None) -> str:
    return "" if estimate is None else estimate.based_on
