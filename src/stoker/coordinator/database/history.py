"""The history checker: verifies the rules of the queue, job by job. Pure: rows in, violations out.

    one_lease            at most one live lease per job, at any time; a live job has one
    epochs_grow          epochs strictly grow with every grant and every requeue, and never return
    no_stale_write       nothing was accepted under an old epoch, attempt or generation
    terminal_is_final    a terminal state is only left by a requeue
    waits_with_reason    every job has ended, is held, or waits for something that can be named
    within_budgets       no job was granted again after its attempts were used up
    bundle_has_bytes     no result is recorded whose bytes are not there
    events_replay        the events alone lead to the state that the job's row shows
    one_event_per_move   every move is exactly one event, of the kind that makes it
    time_goes_on         stored time never goes back

`admin db check` and the fault tests use it. It checks stored rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.core.events import FleetKinds as Kinds
from stoker.core.frozen import fresh, frozen
from stoker.core.job import JobState
from stoker.core.jsontext import loads
from stoker.core.leases import Budgets
from stoker.core.retry import BudgetCharge, charge_of

Row = Mapping[str, Any]

_PENDING, _CLAIMED, _RUNNING = JobState.PENDING.value, JobState.CLAIMED.value, JobState.RUNNING.value
_COMPLETED, _FAILED, _CANCELLED = JobState.COMPLETED.value, JobState.FAILED.value, JobState.CANCELLED.value
LIVE = frozenset({_CLAIMED, _RUNNING})
TERMINAL = frozenset({_COMPLETED, _FAILED, _CANCELLED})

_BACK = {(state, _PENDING) for state in LIVE}
_MOVES: dict[str, set[tuple[str, str]]] = {
    Kinds.JOB_SUBMITTED: {("", _PENDING)},
    Kinds.JOB_GRANTED: {(_PENDING, _CLAIMED)},
    Kinds.JOB_STARTED: {(_CLAIMED, _RUNNING)},
    # From pending: its lease had expired, the job was not granted again, and its result arrived late.
    Kinds.JOB_FINISHED: {(_PENDING, _COMPLETED), (_CLAIMED, _COMPLETED), (_RUNNING, _COMPLETED)},
    Kinds.JOB_FAILED: {(_PENDING, _FAILED), (_CLAIMED, _FAILED), (_RUNNING, _FAILED)},
    Kinds.JOB_RETRYING: _BACK,
    Kinds.JOB_RELEASED: _BACK,
    Kinds.JOB_DECLINED: _BACK,
    Kinds.JOB_EXPIRED: _BACK,
    Kinds.JOB_CANCELLED: {(_PENDING, _CANCELLED), (_CLAIMED, _CANCELLED), (_RUNNING, _CANCELLED)},
    Kinds.JOB_REQUEUED: {(state, _PENDING) for state in TERMINAL},
}
_RAISING = frozenset({Kinds.JOB_GRANTED, Kinds.JOB_REQUEUED})
_WORDS = frozenset(
    {
        Kinds.JOB_STARTED,
        Kinds.JOB_CHECKPOINT,
        Kinds.JOB_FINISHED,
        Kinds.JOB_FAILED,
        Kinds.JOB_RETRYING,
        Kinds.JOB_RELEASED,
        Kinds.JOB_DECLINED,
    }
)
"""Reports of an attempt, under its token."""
_ABOUT_AN_ATTEMPT = _WORDS | {Kinds.JOB_EXPIRED, Kinds.JOB_CANCELLED, Kinds.JOB_CANCELLING}


@frozen
class Contradiction:
    """Events that contradict each other, and the violated rule."""

    rule: str
    message: str
    rows: tuple[Row, ...] = ()


@frozen
class ReplayResult:
    """The state that a job's events lead to."""

    state: str = ""
    epoch: int = 0
    attempt: int = 0
    since_requeue: int = 0
    """Number of attempts at its last requeue."""
    granted: Mapping[int, Row] = fresh(factory=dict)
    """Attempt → the event that granted it."""
    ended: Mapping[int, tuple[Row, ...]] = fresh(factory=dict)
    """Attempt → the events that ended it: one, or two of which the first is an expired lease."""
    contradictions: tuple[Contradiction, ...] = ()


@frozen
class DroppedHistoryState:
    """The state of a job when its earlier events were deleted (`queue.expiry`)."""

    state: str
    epoch: int
    attempt: int


def replay(events: Sequence[Row], after: DroppedHistoryState | None = None) -> ReplayResult:
    """Replay a job's events in order: the state that they lead to, and contradictions. Pure.

    `after` is the state after deleted ones. Every move of a job is one event, written with the move. So its events
    alone, in order, must lead to the state in its row, by valid moves, each under the epoch of its time.
    """
    replaying = _Replay(after)
    for event in events:
        replaying.apply(event)
    return replaying.result()


class _Replay:
    """The state of a job after the events so far."""

    def __init__(self, after: DroppedHistoryState | None) -> None:
        self.is_whole = after is None
        self.state = after.state if after is not None else ""
        self.epoch = after.epoch if after is not None else 0
        self.attempt = after.attempt if after is not None else 0
        self.generation = 0
        self.since_requeue = self.attempt
        self.last: Row | None = None
        self.granted: dict[int, Row] = {}
        self.started: set[int] = set()
        self.ended: dict[int, list[Row]] = {}
        self.found: list[Contradiction] = []

    def result(self) -> ReplayResult:
        return ReplayResult(
            state=self.state,
            epoch=self.epoch,
            attempt=self.attempt,
            since_requeue=self.since_requeue,
            granted=self.granted,
            ended={attempt: tuple(rows) for attempt, rows in self.ended.items()},
            contradictions=tuple(self.found),
        )

    def apply(self, event: Row) -> None:
        """Take the next event."""
        self._look_at_time(event)
        if event["kind"] in _RAISING:
            self._look_at_raise(event)
        else:
            self._look_at_epoch(event)
        if event["to_state"] and event["to_state"] != event["from_state"]:
            self._move(event)
        elif event["kind"] in _MOVES:
            self._say("one_event_per_move", f"a {event['kind']} that moves nothing", event)
        self.last = event

    def _look_at_time(self, event: Row) -> None:
        last = self.last
        if last is None:
            if self.is_whole and event["kind"] != Kinds.JOB_SUBMITTED:
                self._say("events_replay", f"its story begins with {event['kind']}", event)
            return
        if event["at_s"] < last["at_s"]:
            self._say("time_goes_on", f"it went back by {last['at_s'] - event['at_s']:.3f} s", last, event)
        if event["generation"] < last["generation"]:
            self._say("epochs_grow", f"generation {event['generation']} after {last['generation']}", last, event)

    def _look_at_raise(self, event: Row) -> None:
        epoch = event["epoch"]
        if epoch is None or epoch <= self.epoch:
            self._say("epochs_grow", f"{event['kind']} under epoch {epoch}, and {self.epoch} was given before", event)
        self.epoch = max(self.epoch, epoch or 0)
        if event["kind"] == Kinds.JOB_REQUEUED:
            self.since_requeue = self.attempt
            return
        attempt = event["attempt"]
        if attempt != self.attempt + 1:
            self._say("one_event_per_move", f"attempt {attempt} was granted after attempt {self.attempt}", event)
        if self.state in LIVE:
            self._say("one_lease", f"granted as attempt {attempt} while attempt {self.attempt} held it", event)
        self.attempt = attempt or self.attempt + 1
        self.generation = event["generation"]
        self.granted[self.attempt] = event

    def _look_at_epoch(self, event: Row) -> None:
        """Hold what an attempt said against the token that counted then."""
        epoch, attempt = event["epoch"], event["attempt"]
        if event["kind"] in _ABOUT_AN_ATTEMPT and epoch is not None and epoch != self.epoch:
            self._say("no_stale_write", f"{event['kind']} under epoch {epoch} when {self.epoch} counted", event)
        if event["kind"] not in _WORDS or attempt is None:
            return
        if attempt != self.attempt:
            self._say("no_stale_write", f"{event['kind']} of attempt {attempt} when {self.attempt} counted", event)
        elif event["generation"] != self.generation:
            self._say(
                "no_stale_write",
                f"{event['kind']} of a lease of generation {self.generation} under generation {event['generation']}",
                event,
            )

    def _move(self, event: Row) -> None:
        kind, before, after = event["kind"], event["from_state"], event["to_state"]
        if before != self.state:
            was = f"it was {self.state}" if self.state else "there was no such job"
            self._say("events_replay", f"{kind} from {before or 'nothing'} when {was}", *self._with_last(event))
        if self.state in TERMINAL and kind != Kinds.JOB_REQUEUED:
            self._say("terminal_is_final", f"{kind} when it was {self.state}", *self._with_last(event))
        if (before, after) not in _MOVES.get(kind, set()):
            self._say("one_event_per_move", f"{kind} can't lead from {before or 'nothing'} to {after}", event)
        if kind == Kinds.JOB_STARTED:
            if self.attempt in self.started:
                self._say("one_event_per_move", f"attempt {self.attempt} started twice", event)
            self.started.add(self.attempt)
        if self.state in LIVE and after not in LIVE:
            self.ended.setdefault(self.attempt, []).append(event)
        elif kind == Kinds.JOB_FINISHED:
            self._come_back(event)
        self.state = after

    def _come_back(self, event: Row) -> None:
        """A result under an expired lease: accepted only if the job was not granted again."""
        ends = self.ended.setdefault(self.attempt, [])
        if [end["kind"] for end in ends] != [Kinds.JOB_EXPIRED]:
            self._say("no_stale_write", f"finished by attempt {self.attempt}, which held no lease", *ends, event)
        ends.append(event)

    def _with_last(self, event: Row) -> tuple[Row, ...]:
        return (event,) if self.last is None else (self.last, event)

    def _say(self, rule: str, message: str, *rows: Row) -> None:
        self.found.append(Contradiction(rule=rule, message=message, rows=rows))


HasObject = Callable[[str], int | None]

_CHARGED = frozenset({"failed", "expired"})
_ENDINGS: dict[str, frozenset[str]] = {
    Kinds.JOB_FINISHED: frozenset({"completed"}),
    Kinds.JOB_FAILED: frozenset({"failed", "expired"}),
    Kinds.JOB_RETRYING: frozenset({"failed", "expired"}),
    Kinds.JOB_RELEASED: frozenset({"released"}),
    Kinds.JOB_DECLINED: frozenset({"declined"}),
    Kinds.JOB_EXPIRED: frozenset({"expired"}),
    Kinds.JOB_CANCELLED: frozenset({"cancelled", "expired"}),
}


@frozen
class Violation:
    """A promise that was broken, and the rows that show it."""

    rule: str
    job: str
    """Its id; empty if it is about no single one."""
    message: str
    rows: tuple[Row, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "job": self.job,
            "message": self.message,
            "rows": [{name: value for name, value in row.items() if name != "spec"} for row in self.rows],
        }


@frozen
class JobHistory:
    """Everything that is written down about one job: rows by column name, each sort in its order."""

    job: Row
    attempts: tuple[Row, ...] = ()
    leases: tuple[Row, ...] = ()
    events: tuple[Row, ...] = ()
    bundles: tuple[Row, ...] = ()
    before: tuple[str, ...] = ()
    """The states of the jobs that it comes after."""
    told_from_s: float = 0.0
    """Events of jobs that ended before this may have been deleted."""


def check_job(
    history: JobHistory, *, budgets: Budgets | None = None, has_object: HasObject | None = None
) -> tuple[Violation, ...]:
    """Return all violations of one job. Without `has_object` the bytes of results are not checked."""
    return _Checking(history, budgets or Budgets(), has_object).violations()


class _Checking:
    """The check of one job."""

    def __init__(self, history: JobHistory, budgets: Budgets, has_object: HasObject | None) -> None:
        self.history = history
        self.job = history.job
        self.budgets = budgets
        self.has_object = has_object
        self.untold = _untold(history)
        self.replayed: ReplayResult = replay(history.events, self.untold)
        self.found: list[Violation] = []

    def violations(self) -> tuple[Violation, ...]:
        for one in self.replayed.contradictions:
            self.say(one.rule, one.message, *one.rows)
        self._events_lead_here()
        self._check_attempts()
        self._attempts_do_not_overlap()
        self._lease_is_the_newest()
        self._waits_with_reason()
        self._within_budgets()
        self._results_are_there()
        return tuple(self.found)

    def say(self, rule: str, message: str, *rows: Row) -> None:
        self.found.append(Violation(rule=rule, job=self.job["id"], message=message, rows=rows))

    def _events_lead_here(self) -> None:
        replayed, job = self.replayed, self.job
        if not self.history.events and self.untold is None:
            self.say("events_replay", "job without events", job)
            return
        for name, value in (("state", replayed.state), ("epoch", replayed.epoch), ("attempt", replayed.attempt)):
            if job[name] != value:
                rule = "epochs_grow" if name == "epoch" and job[name] < value else "events_replay"
                self.say(rule, f"row has {name} {job[name]}, events lead to {value}", job)

    def _check_attempts(self) -> None:
        """Compare attempts' rows with the events that granted and ended them."""
        numbers = [attempt["attempt"] for attempt in self.history.attempts]
        if numbers != list(range(1, self.job["attempt"] + 1)):
            self.say("one_event_per_move", f"attempts {numbers} for {self.job['attempt']} grants", self.job)
        last_epoch = 0
        for attempt in self.history.attempts:
            number, epoch = attempt["attempt"], attempt["epoch"]
            if epoch <= last_epoch:
                self.say("epochs_grow", f"attempt {number} has epoch {epoch} after {last_epoch}", attempt)
            last_epoch = max(last_epoch, epoch)
            if self.untold is not None and number <= self.untold.attempt:
                continue
            granted = self.replayed.granted.get(number)
            if granted is None:
                self.say("one_event_per_move", f"no event for the grant of attempt {number}", attempt)
            elif (granted["epoch"], granted["generation"]) != (epoch, attempt["generation"]):
                self.say("events_replay", f"attempt {number} was granted under another token", granted, attempt)
            self._check_ending(attempt)
        if last_epoch > self.job["epoch"]:
            self.say("epochs_grow", f"epoch {self.job['epoch']} is behind that of its attempts", self.job)

    def _check_ending(self, attempt: Row) -> None:
        ends = self.replayed.ended.get(attempt["attempt"], ())
        ending, number = attempt["ending"], attempt["attempt"]
        if not ends:
            if ending:
                self.say("one_event_per_move", f"no event for the end of attempt {number}", attempt)
            return
        if ending not in _ENDINGS.get(ends[-1]["kind"], frozenset()):
            stored = ending or "no end"
            message = f"attempt {number} has {stored}, but {ends[-1]['kind']} ended it"
            self.say("events_replay", message, ends[-1], attempt)

    def _attempts_do_not_overlap(self) -> None:
        last: Row | None = None
        for attempt in self.history.attempts:
            if last is not None:
                if last["ended_s"] is None:
                    self.say("one_lease", f"attempt {last['attempt']} had not ended", last, attempt)
                elif attempt["granted_s"] < last["ended_s"]:
                    self.say("one_lease", f"attempts {last['attempt']} and {attempt['attempt']} overlap", last, attempt)
            if bool(attempt["ending"]) != (attempt["ended_s"] is not None):
                self.say(
                    "events_replay",
                    f"attempt {attempt['attempt']} has an end or a time, not both",
                    attempt,
                )
            last = attempt

    def _lease_is_the_newest(self) -> None:
        job, leases = self.job, self.history.leases
        is_live = job["state"] in LIVE
        if len(leases) != int(is_live):
            self.say("one_lease", f"a {job['state']} job with {len(leases)} leases", job, *leases)
        for lease in leases:
            held = (lease["epoch"], lease["attempt"])
            if held != (job["epoch"], job["attempt"]):
                self.say("no_stale_write", f"its lease is of epoch {held[0]}, attempt {held[1]}", job, lease)
        open_ones = [attempt for attempt in self.history.attempts if not attempt["ending"]]
        if len(open_ones) != int(is_live) or (is_live and open_ones[0]["attempt"] != job["attempt"]):
            self.say("one_lease", f"a {job['state']} job with {len(open_ones)} open attempts", job, *open_ones)

    def _waits_with_reason(self) -> None:
        job = self.job
        missing = sum(state != JobState.COMPLETED for state in self.history.before)
        if job["state"] != JobState.PENDING:
            if job["is_ready"]:
                self.say("waits_with_reason", f"a {job['state']} job is marked as ready", job)
            return
        if job["blockers"] != missing:
            self.say("waits_with_reason", f"waits for {job['blockers']} jobs, and {missing} have not completed", job)
        if job["is_ready"] and job["blockers"]:
            self.say("waits_with_reason", f"marked as ready although it waits for {job['blockers']} jobs", job)
        if not job["is_ready"] and not job["blockers"] and not job["not_before_s"]:
            self.say("waits_with_reason", "not marked as ready, and it waits for nothing", job)

    def _within_budgets(self) -> None:
        """Count failures since the last requeue; after the last allowed attempt nothing may be granted."""
        allowed = max(self.budgets.user, _spec(self.job).get("attempts", 1))
        failures = lost = 0
        workers: set[str] = set()
        for attempt in self.history.attempts:
            if attempt["attempt"] <= self.replayed.since_requeue:
                continue
            if failures >= allowed or lost >= self.budgets.lost or len(workers) >= self.budgets.poisoned:
                used_up = f"{failures} failures, {lost} lost, {len(workers)} workers went down"
                self.say("within_budgets", f"attempt {attempt['attempt']} was granted after {used_up}", attempt)
                return
            if attempt["ending"] not in _CHARGED:
                continue
            charge = charge_of(attempt["cause"]) if attempt["cause"] else BudgetCharge.NONE
            failures += charge is BudgetCharge.USER
            lost += charge is BudgetCharge.LOST
            if charge is BudgetCharge.LOST and attempt["ending"] == "expired" and attempt["started_s"] is not None:
                workers.add(attempt["machine"])

    def _results_are_there(self) -> None:
        job, bundles = self.job, self.history.bundles
        if job["state"] == JobState.COMPLETED:
            newest = bundles[-1] if bundles else None
            recorded = (job["tree"], job["archive_sha256"], job["attempt"])
            if newest is None or (newest["tree"], newest["archive_sha256"], newest["attempt"]) != recorded:
                self.say("bundle_has_bytes", "completed, but its result is not in the index", job, *bundles)
        if self.has_object is None:
            return
        for bundle in bundles:
            if bundle["pruned_s"] is None:
                self._bytes_are_there(bundle, "its result", bundle)
        checkpoint = loads(job["checkpoint"]) if job["checkpoint"] else {}
        # Of a job that has ended it may be pruned.
        if checkpoint and not JobState(job["state"]).is_terminal:
            self._bytes_are_there(checkpoint, "its checkpoint", job)

    def _bytes_are_there(self, recorded: Row, what: str, row: Row) -> None:
        digest, size_bytes = recorded["archive_sha256"] or recorded["tree"], recorded["size_bytes"]
        has = self.has_object(digest) if self.has_object is not None else size_bytes
        if has is None:
            self.say("bundle_has_bytes", f"{what} {digest[:12]} is recorded, but its bytes are missing", row)
        elif has != size_bytes:
            self.say("bundle_has_bytes", f"{what} {digest[:12]} has {has} bytes instead of {size_bytes}", row)


def _untold(history: JobHistory) -> DroppedHistoryState | None:
    """Return the state of a job when its earlier events were deleted; None if they were not.

    They are deleted together, and only once the job has ended. So the remaining ones begin with an ended job.
    """
    job, events = history.job, history.events
    is_whole = bool(events) and events[0]["kind"] == Kinds.JOB_SUBMITTED
    if is_whole or not history.told_from_s or job["submitted_s"] >= history.told_from_s:
        return None
    again = next((event for event in events if event["kind"] == Kinds.JOB_REQUEUED), None)
    if again is None:
        is_over = JobState(job["state"]).is_terminal
        return DroppedHistoryState(state=job["state"], epoch=job["epoch"], attempt=job["attempt"]) if is_over else None
    epoch = (again["epoch"] or 0) - 1
    attempt = sum(attempt["epoch"] <= epoch for attempt in history.attempts)
    return DroppedHistoryState(state=again["from_state"], epoch=epoch, attempt=attempt)


def _spec(job: Row) -> dict[str, Any]:
    spec = job.get("spec")
    return loads(spec) if spec else {}
