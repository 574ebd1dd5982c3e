"""The reading side of the queue: every question that people and programs ask, on connections of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from stoker.coordinator.database.opening import Database
from stoker.coordinator.database.snapshots import snapshot
from stoker.coordinator.queue.reading.cases import CaseRow, read_case, read_names, read_ready_numbers
from stoker.coordinator.queue.reading.finding import Found, Meant, find_job, find_jobs
from stoker.coordinator.queue.reading.fleet import (
    Before,
    MachineRow,
    read_before,
    read_counts,
    read_machines,
    read_meta,
    read_ready,
)
from stoker.coordinator.queue.reading.health import HookRow, read_hooks, read_symptoms
from stoker.coordinator.queue.reading.paging import read_page, states_of
from stoker.coordinator.queue.reading.results import read_bundles, read_leaderboard
from stoker.coordinator.queue.reading.shaping import Limits, job_view, no_limits
from stoker.coordinator.queue.reading.stories import read_attempts, read_events, read_newest_event, read_story
from stoker.model.clock import Clock
from stoker.wire.asking import Leaderboard
from stoker.wire.views import AttemptView, JobPage, JobStory, SymptomView


class Reader:
    """Answers from what was committed, for any thread.

    Where a job is wanted, `ref` is a name (the newest of it), `name/3`, the beginning of an id, or `last`; `NotFound`
    and `Ambiguous` say what was probably meant.
    """

    def __init__(self, database: Database, *, clock: Clock, limits: Limits = no_limits) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits

    def page(
        self, *, state: str = "", name: str = "", recipe: str = "", machine: str = "", after: str = "", limit: int = 100
    ) -> JobPage:
        """Give a page of jobs, newest first. `state` may be several: `claimed,running`.

        With several filters that hardly anything matches a page may be short, or empty: it goes on while it has `next`.
        """
        asked = {"state": state, "name": name, "recipe": recipe, "machine": machine}
        filters = {word: value for word, value in asked.items() if value}
        now_s = self._clock.wall_s()
        with snapshot(self._database) as connection:
            counts = read_counts(connection)
            found = read_page(connection, filters, after=after, limit=limit, counts=counts, clock=self._clock)
        has_total = filters.keys() <= {"state"}
        return JobPage(
            jobs=tuple(job_view(row, now_s=now_s, limits=self._limits) for row in found.rows),
            next=found.next,
            total=sum(counts[one] for one in states_of(state) or counts) if has_total else None,
        )

    @property
    def database(self) -> Database:
        """Where it reads."""
        return self._database

    def find(self, ref: str) -> Found:
        """Say which job is meant."""
        with snapshot(self._database) as connection:
            return find_job(connection, ref)

    def find_all(self, ref: str) -> tuple[Meant, ...]:
        """Say which jobs are meant: of a sweep's bare name, all its points."""
        with snapshot(self._database) as connection:
            return find_jobs(connection, ref)

    def story(self, ref: str) -> JobStory:
        """Give everything about one job."""
        with snapshot(self._database) as connection:
            return read_story(
                connection, find_job(connection, ref).seq, now_s=self._clock.wall_s(), limits=self._limits
            )

    def attempts_of(self, ref: str) -> tuple[AttemptView, ...]:
        """Give the tries at a job, oldest first."""
        with snapshot(self._database) as connection:
            return read_attempts(connection, find_job(connection, ref).seq)

    def events(self, after_id: int = 0, limit: int = 1000, ref: str | None = None) -> tuple[dict[str, Any], ...]:
        """Give what happened after an event, oldest first, in the envelope of every stream; `seq` is the event's id."""
        with snapshot(self._database) as connection:
            seq = None if ref is None else find_job(connection, ref).seq
            return read_events(connection, after_id, limit, seq)

    def newest_event(self) -> int:
        """Give the id of the newest event: whoever listens from now on begins behind it."""
        with snapshot(self._database) as connection:
            return read_newest_event(connection)

    def counts(self) -> dict[str, int]:
        """Give how many jobs are in each state."""
        with snapshot(self._database) as connection:
            return read_counts(connection)

    def ready_by_class(self) -> dict[int, int]:
        """Give how many jobs of each requirement class could start now."""
        with snapshot(self._database) as connection:
            return read_ready(connection)

    def waiting_before(self, seq: int) -> Before:
        """Say how many ready jobs stand before one in the line."""
        with snapshot(self._database) as connection:
            return read_before(connection, seq)

    def machines(self, name: str = "") -> tuple[MachineRow, ...]:
        """Give every machine with its live leases; or one, nothing if it is unknown."""
        with snapshot(self._database) as connection:
            return read_machines(connection, name)

    def symptoms(self, machine: str = "") -> tuple[SymptomView, ...]:
        """Give what is wrong now, of all machines or of one."""
        with snapshot(self._database) as connection:
            return read_symptoms(connection, machine)

    def hooks(self, *, is_open: bool = False) -> tuple[HookRow, ...]:
        """Give who is told of events, the closed ones too unless told otherwise."""
        with snapshot(self._database) as connection:
            return read_hooks(connection, is_open=is_open)

    def case(self, ref: str) -> CaseRow:
        """Give what an explanation needs of a job beside its story."""
        with snapshot(self._database) as connection:
            return read_case(connection, find_job(connection, ref).seq)

    def ready_numbers(self, levels: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], list[int]]:
        """Return the numbers of the first ready jobs of each class and priority, as many as asked for, in order."""
        with snapshot(self._database) as connection:
            return read_ready_numbers(connection, levels)

    def names(self, seqs: Collection[int]) -> dict[int, str]:
        """Return what jobs are called, by number."""
        with snapshot(self._database) as connection:
            return read_names(connection, seqs)

    def leaderboard(self, metric: str = "", *, recipe: str = "", name: str = "", limit: int = 20) -> Leaderboard:
        """Rank completed jobs by one of their metrics, best first."""
        with snapshot(self._database) as connection:
            return read_leaderboard(connection, metric, recipe=recipe, name=name, limit=limit)

    def bundles(self, *, ref: str | None = None, after_id: int = 0, limit: int = 1000) -> tuple[dict[str, Any], ...]:
        """Give rows of the index of results, in its order."""
        with snapshot(self._database) as connection:
            seq = None if ref is None else find_job(connection, ref).seq
            return read_bundles(connection, seq=seq, after_id=after_id, limit=limit)

    def meta(self) -> dict[str, str]:
        """Give what the database says of itself: its generation, its latest time."""
        with snapshot(self._database) as connection:
            return read_meta(connection)
