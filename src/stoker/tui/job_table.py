"""The rows of the list of jobs: active ones first, then pending ones, then those that have ended.

Pages come from a `Monitor` as far as somewhere near the end is shown, and changed rows are put where they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from stoker.api.monitor import JobQuery
from stoker.core.frozen import changed
from stoker.protocol.view_messages import JobPage, JobView
from stoker.tui.job_filter import matches

MOST_ROWS = 5000
"""Rows that are held; a filter reaches the others."""
PAGE_ROWS = 200

SortKey = tuple[float, float, str]


def _newest_start(view: JobView) -> SortKey:
    return (-(view.started_s or view.submitted_s), 0.0, view.id)


def _queue_order(view: JobView) -> SortKey:
    # Points of a sweep are submitted at the same time, and queued by their number.
    name, _, number = view.name.rpartition("/")
    point = f"{name}/{number:0>9}" if number.isdecimal() else view.name
    return (-float(view.priority), view.submitted_s, f"{point} {view.id}")


def _newest_end(view: JobView) -> SortKey:
    return (-(view.ended_s or view.changed_s), 0.0, view.id)


class _StateGroup:
    """Jobs in some states, in their order, as far as they are loaded."""

    def __init__(self, states: tuple[str, ...], sort: str, key: Callable[[JobView], SortKey]) -> None:
        self.states = states
        self.sort = sort
        self.key = key
        self.rows: dict[str, JobView] = {}
        self.cursor = ""
        self.is_complete = False
        self.total: int | None = None
        """Number of all jobs of the group, as its first page said."""
        self.last: SortKey | None = None
        """The end of what is loaded: rows behind it come with a later page."""

    def add(self, page: JobPage) -> None:
        self.rows.update((view.id, view) for view in page.jobs)
        self.cursor, self.is_complete = page.next, not page.next
        self.total = page.total if page.total is not None else self.total
        self.last = max(map(self.key, self.rows.values()), default=None)

    def takes(self, view: JobView) -> bool:
        """Return True if a row belongs to what is loaded."""
        if view.state not in self.states:
            return False
        return self.is_complete or view.id in self.rows or (self.last is not None and self.key(view) <= self.last)


class JobTable:
    """The jobs that match a query, as far as they are loaded. Not thread-safe."""

    def __init__(self, query: JobQuery) -> None:
        self.query = query
        chosen = query.state.split(",") if query.state else None
        groups = (
            _StateGroup(("claimed", "running"), "started", _newest_start),
            _StateGroup(("pending",), "-submitted", _queue_order),
            _StateGroup(("completed", "failed", "cancelled"), "ended", _newest_end),
        )
        for group in groups:
            group.states = tuple(state for state in group.states if chosen is None or state in chosen)
        self._groups = [group for group in groups if group.states]

    @property
    def is_complete(self) -> bool:
        return all(group.is_complete for group in self._groups)

    def __len__(self) -> int:
        return sum(len(group.rows) for group in self._groups)

    def next_query(self) -> JobQuery | None:
        """Return the query of the next page; None if everything is loaded, or as much as is held."""
        group = next((one for one in self._groups if not one.is_complete), None)
        if group is None or len(self) >= MOST_ROWS:
            return None
        return changed(self.query, state=",".join(group.states), sort=group.sort, after=group.cursor, limit=PAGE_ROWS)

    def add_page(self, page: JobPage) -> None:
        """Add the answer to `next_query`."""
        group = next(one for one in self._groups if not one.is_complete)
        group.add(page)

    def apply(self, jobs: Iterable[JobView], gone: Iterable[str] = ()) -> None:
        """Put changed rows where they belong now, and remove deleted ones."""
        for id_ in gone:
            for group in self._groups:
                group.rows.pop(id_, None)
        for view in jobs:
            is_match = matches(self.query, view)
            for group in self._groups:
                if is_match and group.takes(view):
                    group.rows[view.id] = view
                else:
                    group.rows.pop(view.id, None)

    def rows(self) -> tuple[JobView, ...]:
        """Return the rows in order."""
        return tuple(view for group in self._groups for view in sorted(group.rows.values(), key=group.key))

    def total(self, counts: Mapping[str, int]) -> int | None:
        """Return how many jobs match; None if that is unknown. `counts` are all jobs by state."""
        if self.is_complete:
            return len(self)
        if self.query == JobQuery(state=self.query.state):
            return max(len(self), sum(counts.get(state, 0) for group in self._groups for state in group.states))
        totals = [len(group.rows) if group.is_complete else group.total for group in self._groups]
        known = [total for total in totals if total is not None]
        return max(len(self), sum(known)) if len(known) == len(totals) else None
