"""What the cockpit shows, kept up to date in a thread: counts, jobs and machines of a `Monitor`.

A snapshot is fetched once; changed rows follow. If the connection is lost, the last picture stays with its time, and a
new snapshot is fetched once it is back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter

from stoker.api.monitor import JobQuery, Monitor
from stoker.core.clock import Clock
from stoker.core.errors import StokerError
from stoker.core.frozen import changed, frozen
from stoker.protocol.screen_messages import ChangedRows, Overview
from stoker.protocol.view_messages import JobView, MachineView
from stoker.tui.job_filter import matches
from stoker.tui.job_table import JobTable
from stoker.tui.requests import RequestThreads, failure_text

_BETWEEN_S = 0.25
"""Shortest time between two requests for changes."""
_WAIT_S = 5.0
"""Longest time that a request for changes waits."""
_OVERVIEW_EVERY_S = 10.0
_FAILED_AFTER_S = 1.0
_MACHINES_EVERY_S = 5.0
"""While machines are shown: a heartbeat, a temperature and silence are no events."""
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 30.0
_CLOCK_CHANGED_S = 60.0
"""A larger difference is a clock that was set."""
_MOST_GONE = 10_000
_MOST_RECENT = 2000


@frozen
class ConnectionState:
    """Whether data arrives, and since when it does not."""

    is_live: bool = True
    lost_s: float = 0.0
    """Monotonic time of the first failure."""
    retry_s: float = 0.0
    """Monotonic time of the next attempt."""
    error: str = ""


@frozen
class ScreenData:
    """Everything that the lists show, at one time. Replaced, never changed."""

    version: int = 0
    overview: Overview | None = None
    counts: dict[str, int]
    rows: tuple[JobView, ...] = ()
    total: int | None = None
    """Number of jobs that match the filter; None: unknown."""
    is_loading: bool = True
    """The first page of this filter is under way."""
    machines: tuple[MachineView, ...] = ()
    trouble: str = ""
    """Why the last page of jobs could not be loaded."""
    connection: ConnectionState
    shown_s: float = 0.0
    """Wall-clock time of the newest data, by the clock of its source."""
    offset_s: float = 0.0
    """Clock of the source less ours."""


class CockpitFeed:
    """Keeps `data` up to date. `data`, `set_query` and `want_rows` are thread-safe."""

    def __init__(self, monitor: Monitor, clock: Clock, requests: RequestThreads, query: JobQuery) -> None:
        self.monitor = monitor
        self.requests = requests
        self._clock = clock
        self._lock = threading.Lock()
        self._table = JobTable(query)
        self._gone: set[str] = set()
        self._recent: dict[str, JobView] = {}
        """Rows that changed lately: a page that was requested before may be older."""
        self._seq: int | None = None
        self._frame = 0
        self._overview_s = self._machines_s = 0.0
        self._retry_in_s = _FIRST_RETRY_S
        self._stop = threading.Event()
        self.data = ScreenData(counts={}, connection=ConnectionState())

    def start(self) -> None:
        """Fetch in a thread until `close`."""
        threading.Thread(target=self._work, name="cockpit-feed", daemon=True).start()

    def close(self) -> None:
        """Stop. Does not wait: a request may be under way."""
        self._stop.set()

    def set_query(self, query: JobQuery) -> None:
        """Show the jobs that match: at once those that are held, the others as they arrive."""
        with self._lock:
            held = self._table.rows()
            self._table = JobTable(query)
            shown = tuple(view for view in held if matches(query, view))
            self._publish(rows=shown, total=None, is_loading=True)
        self.requests.put("jobs", self._load_first)

    def want_rows(self, count: int) -> None:
        """Load more rows if fewer than so many are held."""
        with self._lock:
            is_enough = len(self._table) >= count or self._table.next_query() is None
        if not is_enough and not self.data.is_loading and not self.requests.is_pending("jobs"):
            self.requests.put("jobs", self._load_next)

    def want_machines(self) -> None:
        """Fetch all machines if those that are held are old."""
        now_s = self._clock.monotonic_s()
        is_due = self._seq is not None and now_s - self._machines_s >= _MACHINES_EVERY_S
        if is_due and not self.requests.is_pending("machines"):
            self._machines_s = now_s
            self.requests.put("machines", self._load_machines)

    def is_gone(self, id_: str) -> bool:
        """Return True if a job was deleted while the cockpit was open."""
        with self._lock:
            return id_ in self._gone

    def fetch_all(self) -> None:
        """Fetch everything now. Raises the error of a lost connection."""
        self._sync()

    def step(self) -> float:
        """Fetch once; return after how many seconds to fetch again."""
        try:
            if self._seq is None:
                self._sync()
            else:
                self._follow(self._seq)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with an answer, the screen has to say so
            return self._lost(failure_text(error))
        self._retry_in_s = _FIRST_RETRY_S
        return _BETWEEN_S

    def _work(self) -> None:
        while not self._stop.is_set():
            self._stop.wait(self.step())

    def _sync(self) -> None:
        """Fetch everything."""
        overview, machines = self.monitor.overview(), self.monitor.machines()
        self._overview_s = self._machines_s = self._clock.monotonic_s()
        with self._lock:
            self._seq, self._frame = overview.seq, 0
            self._publish(
                overview=overview, counts=dict(overview.jobs), machines=machines, **self._at(overview.server_s)
            )
        self._load_first()

    def _follow(self, seq: int) -> None:
        """Fetch what changed, and the overview from time to time."""
        change = self.monitor.changes(seq, _WAIT_S, self._frame)
        overview = self.data.overview
        if self._clock.monotonic_s() - self._overview_s >= _OVERVIEW_EVERY_S:
            self._overview_s = self._clock.monotonic_s()
            overview = self.monitor.overview()
        with self._lock:
            self._seq, self._frame = None if change.resync else max(seq, change.seq), change.frame
            self._apply(change, overview)

    def _apply(self, change: ChangedRows, overview: Overview | None) -> None:
        if len(self._gone) < _MOST_GONE:
            self._gone.update(change.gone)
        counts = self.data.counts
        if change.counts:
            counts = dict(change.counts)
        elif overview is not None and overview is not self.data.overview:
            counts = dict(overview.jobs)
        fields = {"overview": overview, "counts": counts, **self._at(change.server_s)}
        if change.machines:
            held = {one.name: one for one in self.data.machines}
            held |= {one.name: _with_known(one, held.get(one.name)) for one in change.machines}
            fields["machines"] = tuple(held[name] for name in sorted(held))
        for view in change.jobs:
            self._recent.pop(view.id, None)
            self._recent[view.id] = view
        while len(self._recent) > _MOST_RECENT:
            del self._recent[next(iter(self._recent))]
        if any(view.state == "failed" for view in change.jobs):
            # The number of failed jobs of a day is in the overview alone.
            self._overview_s = min(self._overview_s, self._clock.monotonic_s() - _OVERVIEW_EVERY_S + _FAILED_AFTER_S)
        if change.jobs or change.gone:
            self._table.apply(change.jobs, change.gone)
            fields["rows"] = self._table.rows()
        self._publish(**fields, total=self._table.total(counts))

    def _load_machines(self) -> None:
        # The thread that follows changes reports a lost connection.
        with suppress(StokerError):
            machines = self.monitor.machines()
            with self._lock:
                self._publish(machines=tuple(sorted(machines, key=attrgetter("name"))))

    def _load_first(self) -> None:
        self._load(lambda: JobTable(self._table.query))

    def _load_next(self) -> None:
        self._load(lambda: self._table)

    def _load(self, table_of: Callable[[], JobTable]) -> None:
        """Load pages into a table until one has rows or all are loaded, and show it."""
        with self._lock:
            table = table_of()
            query = table.next_query()
        before = len(table)
        while query is not None:
            try:
                page = self.monitor.jobs(query)
            except StokerError as error:
                # The thread that follows changes reports a lost connection.
                with self._lock:
                    self._publish(is_loading=False, trouble=failure_text(error))
                return
            with self._lock:
                table.add_page(page)
                query = table.next_query() if len(table) < before + 100 else None
        with self._lock:
            if table.query == self._table.query:
                held = {view.id: view.changed_s for view in table.rows()}
                newer = [view for view in self._recent.values() if view.changed_s >= held.get(view.id, 0.0)]
                table.apply(newer, self._gone)
                self._table = table
                self._publish(rows=table.rows(), total=table.total(self.data.counts), is_loading=False, trouble="")

    def _lost(self, error: str) -> float:
        now_s, wait_s = self._clock.monotonic_s(), self._retry_in_s
        self._retry_in_s = min(2 * wait_s, _LONGEST_RETRY_S)
        with self._lock:
            before = self.data.connection
            self._seq = None
            lost_s = now_s if before.is_live else before.lost_s
            state = ConnectionState(is_live=False, lost_s=lost_s, retry_s=now_s + wait_s, error=error)
            self._publish(connection=state, is_loading=False)
        return wait_s

    def _at(self, server_s: float) -> dict[str, object]:
        """Return the fields that say when data was fetched."""
        offset_s, before_s = server_s - self._clock.wall_s(), self.data.offset_s
        # An answer is late by the time that it took: the earliest is nearest to the clock of its source.
        if self.data.shown_s and abs(offset_s - before_s) < _CLOCK_CHANGED_S:
            offset_s = max(offset_s, before_s)
        return {"shown_s": server_s, "offset_s": offset_s, "connection": ConnectionState()}

    def _publish(self, **fields: object) -> None:
        self.data = changed(self.data, version=self.data.version + 1, **fields)


def _with_known(machine: MachineView, before: MachineView | None) -> MachineView:
    """Return a changed row with what only whole lists have: what never changes while a machine runs."""
    if before is None or machine.capability:
        return machine
    known = {name: getattr(before, name) for name in ("capability", "environments", "report")}
    return machine.model_copy(update=known)
