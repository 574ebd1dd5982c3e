"""A job's events told again: where they lead, and where they can't be true. Pure.

Every move of a job is one event, written with the move. So its events alone, in their order, must lead from nothing to
the state that its row shows, by moves that there are, each under the epoch that counted then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.model.fleet_events import FleetKinds as Kinds
from stoker.model.frozen import fresh, frozen
from stoker.model.lifecycle import JobState

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
    # From pending: its lease had ended, nobody else was given the job, and its result came back.
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
"""What an attempt says itself, under its token."""
_ABOUT_AN_ATTEMPT = _WORDS | {Kinds.JOB_EXPIRED, Kinds.JOB_CANCELLED, Kinds.JOB_CANCELLING}


@frozen
class Contradiction:
    """Events that can't be true together, and which promise they break."""

    rule: str
    message: str
    rows: tuple[Row, ...] = ()


@frozen
class Replayed:
    """Where a job's events lead."""

    state: str = ""
    epoch: int = 0
    attempt: int = 0
    since_requeue: int = 0
    """How many attempts there had been when it was last requeued."""
    granted: Mapping[int, Row] = fresh(factory=dict)
    """Attempt → the event that granted it."""
    ended: Mapping[int, tuple[Row, ...]] = fresh(factory=dict)
    """Attempt → the events that ended it: one, or two of which the first says that its lease ran out."""
    contradictions: tuple[Contradiction, ...] = ()


@frozen
class Untold:
    """Where a job stood when the story until then was dropped (`queue.dropping`)."""

    state: str
    epoch: int
    attempt: int


def replay(events: Sequence[Row], after: Untold | None = None) -> Replayed:
    """Tell a job's events again, in their order; `after` what of them is no longer kept."""
    telling = _Telling(after)
    for event in events:
        telling.hear(event)
    return telling.result()


class _Telling:
    """What is true of the job after the events so far."""

    def __init__(self, after: Untold | None) -> None:
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

    def result(self) -> Replayed:
        return Replayed(
            state=self.state,
            epoch=self.epoch,
            attempt=self.attempt,
            since_requeue=self.since_requeue,
            granted=self.granted,
            ended={attempt: tuple(rows) for attempt, rows in self.ended.items()},
            contradictions=tuple(self.found),
        )

    def hear(self, event: Row) -> None:
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
        """A result under a lease that had run out: taken only if nobody else was given the job."""
        ends = self.ended.setdefault(self.attempt, [])
        if [end["kind"] for end in ends] != [Kinds.JOB_EXPIRED]:
            self._say("no_stale_write", f"finished by attempt {self.attempt}, which held no lease", *ends, event)
        ends.append(event)

    def _with_last(self, event: Row) -> tuple[Row, ...]:
        return (event,) if self.last is None else (self.last, event)

    def _say(self, rule: str, message: str, *rows: Row) -> None:
        self.found.append(Contradiction(rule=rule, message=message, rows=rows))
