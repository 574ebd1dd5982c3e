"""Input of forecasts besides the scheduler's state: numbers of ready jobs, jobs that are not submitted yet. Pure.

And the reason of a grant as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.coordinator.explained_case import JobExplainContext
from stoker.coordinator.explained_verdict import Explainer
from stoker.coordinator.queue.classes import like_of, user_of
from stoker.coordinator.queue.queue_state import JobKind
from stoker.core.frozen import changed
from stoker.core.job import JobSpec
from stoker.core.machine import environment_word
from stoker.scheduler.fit import PlacementShape, shape_of
from stoker.scheduler.job_types import STATED, rounded_s
from stoker.scheduler.leases import StartReason
from stoker.scheduler.snapshot import MOST_NUMBERED, ClassRecord, MachineRecord, ReadyRecord, Snapshot, runs_of

Level = tuple[int, int]
"""Class and priority."""
Estimate = tuple[float | None, str]
"""A duration on a device of speed 1, and what it is from."""
_WHY: Mapping[str, str] = {
    StartReason.OLDEST: "first in the queue of the jobs that could start there",
    StartReason.WIDE: "it needs many resources at once, which were free there",
    StartReason.RESIDENT: "its base model was loaded there",
    StartReason.LONGEST: "the longest job starts first near the end of the queue",
    StartReason.KEPT: "the machine was reserved for it",
}
_RANK = ("", "preferred host", "host priority")
"""The first places of a rank (`scheduler.score.PlacementRank`)."""


def quota(snapshot: Snapshot, most: int = MOST_NUMBERED) -> dict[Level, int]:
    """Return how many ready jobs of each level get numbers: all of short levels, equally many of long ones."""
    counts = {(level.class_id, level.priority): level.count for level in snapshot.ready}
    found: dict[Level, int] = {}
    for place, (key, count) in enumerate(sorted(counts.items(), key=lambda item: item[1])):
        found[key] = min(count, max(1, most // (len(counts) - place)))
        most -= found[key]
    return found


def numbered(snapshot: Snapshot, numbers: Mapping[Level, Sequence[int]]) -> Snapshot:
    """Return a snapshot with the numbers of its first ready jobs. Jobs that have started since are left out."""
    ready = []
    for level in snapshot.ready:
        known = numbers.get((level.class_id, level.priority), ())
        if known:
            ready.append(changed(level, runs=runs_of(known), more=max(0, level.count - len(known))))
    return changed(snapshot, ready=tuple(ready))


class HypotheticalJobs:
    """Jobs that are not in the queue, as they would be if they were submitted now, in order."""

    def __init__(
        self, snapshot: Snapshot, explainer: Explainer, submitter: str, stated_s: Mapping[int, float] | None = None
    ) -> None:
        self._before = snapshot
        self._explainer = explainer
        self._user = user_of(submitter)
        self._likes = dict(snapshot.likes)
        self._listed = {word for one in snapshot.machines for word in (*one.offer.allow_jobs, *one.offer.deny_jobs)}
        self._offers = {one.offer.node: one.offer for one in snapshot.machines}
        self._alike: dict[tuple[str, PlacementShape], Estimate] = {}
        """Of any user, whatever was stated."""
        self._same: dict[tuple[str, PlacementShape, float | None], Estimate] = {}
        """Of this user, with the same stated duration: the classes that the jobs would belong to."""
        for one in snapshot.classes:
            like, shape = one.like, shape_of(one.wanted, listed=self._listed)
            self._alike[like, shape] = one.expected_s, one.based_on
            if one.user == self._user:
                self._same[like, shape, (stated_s or {}).get(one.class_id)] = one.expected_s, one.based_on
        self._classes: dict[tuple[str, PlacementShape, float | None], ClassRecord] = {}
        self._next_class = max((one.class_id for one in snapshot.classes), default=0) + 1
        busy = [lease.job for lease in snapshot.leases]
        waiting = [sum(run) + level.more for level in snapshot.ready for run in level.runs[-1:]]
        self._next = max([0, *busy, *waiting]) + 1
        self._ready: dict[Level, list[int]] = {}
        self._denied: dict[str, dict[str, str]] = {}
        self._asked: set[tuple[str, str]] = set()
        self.cases: dict[int, JobExplainContext] = {}
        """By their place in the submission, as what they are explained."""
        self.numbers: dict[int, int] = {}
        """The numbers of those that would be ready at once."""

    def add(self, at: int, case: JobExplainContext, order: JobSpec) -> None:
        """Add the job at a place of the submission."""
        words = case.wanted.environment, case.wanted.code
        if any(words) and words not in self._asked:
            self._asked.add(words)
            self._note_denials(case)
        known = self._class_of(case, order)
        self.cases[at] = changed(case, based_on=known.based_on)
        if not order.after:
            self.numbers[at] = self._next
            self._ready.setdefault((known.class_id, order.priority), []).append(self._next)
            self._next += 1

    def snapshot(self) -> Snapshot:
        """Return the scheduler's state with these jobs in the queue."""
        before = self._before
        added = [
            ReadyRecord(class_id=class_id, priority=priority, runs=runs_of(numbers), is_new=True)
            for (class_id, priority), numbers in self._ready.items()
        ]
        has_new_type = any((like, shape) not in self._alike for like, shape, _ in self._classes)
        return changed(
            before,
            # The scheduler computes prices again for a new type of job.
            prices=() if has_new_type else before.prices,
            machines=tuple([self._denying(one) for one in before.machines]),
            classes=(*before.classes, *self._classes.values()),
            ready=(*before.ready, *added),
        )

    def _class_of(self, case: JobExplainContext, order: JobSpec) -> ClassRecord:
        like = like_of(order.recipe, order.name)
        stated_s = None if order.expected_s is None else rounded_s(order.expected_s)
        key = like, shape_of(case.wanted, listed={*self._listed, *_words(case)}), stated_s
        found = self._classes.get(key)
        if found is None:
            expected_s, based_on = self._estimate(JobKind(case.wanted, like, self._user, stated_s))
            found = self._classes[key] = ClassRecord(
                class_id=self._next_class,
                wanted=case.wanted,
                user=self._user,
                like=like,
                expected_s=expected_s,
                based_on=based_on,
            )
            self._next_class += 1
        return found

    def _estimate(self, kind: JobKind) -> Estimate:
        """Return the expected duration of such a job, from the first source of `scheduler.job_types` that has one."""
        shape = shape_of(kind.wanted, listed=self._listed)
        same = self._same.get((kind.like, shape, kind.stated_s))
        if same is not None and same[0] is not None:
            return same
        expected_s = kind.expected_s(self._offers.get(kind.only_host))
        if expected_s is not None:
            return expected_s, STATED
        alike = self._alike.get((kind.like, shape), (None, ""))
        if alike[0] is None and kind.like in self._likes:
            return self._likes[kind.like], f"runs of {kind.like}"
        return alike

    def _note_denials(self, case: JobExplainContext) -> None:
        """Store which machines can't provide the job's environment, or do not run its code."""
        for offer in self._explainer.offers(case):
            why = dict(offer.denied_for)
            for word in offer.deny_jobs:
                if word in why:
                    self._denied.setdefault(offer.node, {})[word] = why[word]

    def _denying(self, record: MachineRecord) -> MachineRecord:
        denied = self._denied.get(record.offer.node)
        if not denied:
            return record
        offer = changed(
            record.offer,
            deny_jobs=tuple(dict.fromkeys((*record.offer.deny_jobs, *denied))),
            denied_for=tuple({**dict(record.offer.denied_for), **denied}.items()),
        )
        return changed(record, offer=offer)


def chosen_text(granted: Mapping[str, Any]) -> str:
    """Return why a job was granted to its machine, from the event of the grant; empty: not recorded."""
    chosen = granted.get("chosen")
    if not isinstance(chosen, Mapping):
        return ""
    rank = chosen.get("rank")
    fitting = "its base model is loaded there" if granted.get("devices") else "a machine without devices"
    pairs = zip((*_RANK, fitting), rank, strict=False) if rank else ()
    terms = [name if value is True else f"{name} {value}" for name, value in pairs if name and value]
    score = chosen.get("score")
    if isinstance(score, int | float):
        terms.append(f"score {score:.3g}")
    why = str(chosen.get("why", ""))
    return f"{_WHY.get(why, why)}; best of the free machines: {', '.join(terms)}" if terms else _WHY.get(why, why)


def _words(case: JobExplainContext) -> list[str]:
    """Return the words by which machines deny a job that no list names."""
    environment = environment_word(case.wanted.environment) if case.wanted.environment else ""
    return [word for word in (environment, case.wanted.code) if word]
