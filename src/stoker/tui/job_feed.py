"""What the cockpit shows of one job: fetched for the tab that is open, and again while the job may change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from stoker.api.monitor import Monitor, SeriesQuery
from stoker.core.clock import Clock
from stoker.core.errors import NotFound
from stoker.core.frozen import changed, frozen
from stoker.protocol.screen_messages import ConfigView, LogLineView, LogPage, LogRequest, SeriesView, StageGraph
from stoker.protocol.view_messages import JobExplanation, JobView
from stoker.tui.requests import RequestThreads, failure_text

MOST_LOG_LINES = 5000
_LOG_LINES = 500
_FOLLOWED_LINES = 2000
_POINTS = 400
_EVERY_S = {"curves": 2.0, "logs": 1.0, "stages": 2.0, "explain": 5.0, "config": 60.0}
_ENDED_EVERY_S = 60.0
_MOST_TOGETHER = 24
"""Curves of one metric."""
_VIEW_EVERY_S = 2.0


def metric_groups(names: Sequence[str]) -> list[list[str]]:
    """Return names by metric: `1.run: loss` and `2.run: loss` are the same of several stages."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(metric_of(name), []).append(name)
    return list(groups.values())


def metric_of(name: str) -> str:
    """Return the metric of a name, without the stage before it."""
    return name.partition(": ")[2] or name


@frozen
class LogTail:
    """The lines of a log that are held."""

    lines: tuple[LogLineView, ...] = ()
    first: int = 0
    """Number of the first line that exists."""
    total: int = 0
    next: str = ""
    """`after` of the request for what follows."""
    unfinished: tuple[LogLineView, ...] = ()
    """Lines that have no end yet; others have their numbers once they have."""
    is_over: bool = False
    search: str = ""
    matches: int | None = None
    note: str = ""
    """What a search left out."""

    def with_page(self, page: LogPage) -> LogTail:
        """Return this with newer or older lines."""
        held = {line.number: line for line in (*self.lines, *page.lines)}
        numbers = sorted(held)
        is_older = bool(page.lines and self.lines and page.lines[0].number < self.lines[0].number)
        kept = numbers[:MOST_LOG_LINES] if is_older else numbers[-MOST_LOG_LINES:]
        return changed(
            self,
            lines=tuple(held[number] for number in kept),
            first=page.first,
            total=page.total,
            next=self.next if is_older else page.next,
            unfinished=page.unfinished,
            is_over=page.is_over,
            matches=page.matches,
            note=page.note,
        )


@frozen
class JobData:
    """Everything that is known of the open job. Replaced, never changed."""

    version: int = 0
    ref: str = ""
    view: JobView | None = None
    series: SeriesView | None = None
    stages: StageGraph | None = None
    explanation: JobExplanation | None = None
    config: ConfigView | None = None
    log: LogTail | None = None
    errors: dict[str, str]
    """By tab: why it can't be shown."""
    is_missing: bool = False
    """There is no such job, or no longer."""


class JobFeed:
    """Fetches what a tab shows of a job. `data` may be read from any thread."""

    def __init__(self, monitor: Monitor, clock: Clock, requests: RequestThreads) -> None:
        self._monitor = monitor
        self._clock = clock
        self._requests = requests
        self._lock = threading.Lock()
        self._fetched_s: dict[str, float] = {}
        self._search = ""
        self._has_row = False
        self.data = JobData(errors={})

    def open(self, ref: str, view: JobView | None) -> None:
        """Show another job, or a newer row of the same one; without a row it is fetched by itself."""
        with self._lock:
            self._has_row = view is not None
            if ref != self.data.ref:
                self.data = JobData(version=self.data.version + 1, ref=ref, view=view, errors={})
                self._fetched_s.clear()
                self._search = ""
            elif view is not None and view is not self.data.view:
                if self.data.view is not None and view.state != self.data.view.state:
                    self._fetched_s.clear()
                self._publish(view=view, is_missing=False)

    def mark_missing(self) -> None:
        """Show that the job was deleted."""
        with self._lock:
            if not self.data.is_missing:
                self._publish(is_missing=True)

    def search(self, text: str) -> None:
        """Show only lines of the log that hold a text; "" shows all."""
        with self._lock:
            self._search = text
            self._fetched_s.pop("logs", None)
            self._publish(log=None)

    def refresh(self, tab: str) -> None:
        """Fetch what a tab shows, if that is due."""
        data, now_s = self.data, self._clock.monotonic_s()
        if not data.ref:
            return
        if not self._has_row and now_s - self._fetched_s.get("view", -_VIEW_EVERY_S) >= _VIEW_EVERY_S:
            self._fetched_s["view"] = now_s
            self._put("view", data.ref, self._fetch_view)
        is_active = data.view is None or data.view.state in ("claimed", "running", "pending")
        every_s = _EVERY_S[tab] if is_active else _ENDED_EVERY_S
        if now_s - self._fetched_s.get(tab, -_ENDED_EVERY_S) >= every_s and not self._requests.is_pending(f"job-{tab}"):
            self._fetched_s[tab] = now_s
            self._put(tab, data.ref, getattr(self, f"_fetch_{tab}"))

    def older_lines(self) -> None:
        """Fetch lines of the log before those that are held, if there are any."""
        log = self.data.log
        if log is None or log.search or not log.lines or log.lines[0].number <= log.first:
            return
        start = max(log.first, log.lines[0].number - _LOG_LINES)
        query = LogRequest(start=start, limit=log.lines[0].number - start)
        if not self._requests.is_pending("job-older"):
            self._put("older", self.data.ref, lambda ref: self._add_lines(ref, query))

    def _put(self, what: str, ref: str, fetch: Callable[[str], dict[str, Any]]) -> None:
        def act() -> None:
            tab = "logs" if what == "older" else what
            try:
                fields = fetch(ref)
            except NotFound as error:
                fields = {"is_missing": what in ("view", "explain")} if self._is_known(ref) else {"is_missing": True}
                self._store(ref, tab, fields, error.message)
            except Exception as error:  # noqa: BLE001 - the tab shows what is wrong, the others still work
                self._store(ref, tab, {}, failure_text(error))
            else:
                self._store(ref, tab, fields, "")

        self._requests.put(f"job-{what}", act)

    def _is_known(self, ref: str) -> bool:
        return self.data.ref == ref and self.data.view is not None

    def _store(self, ref: str, tab: str, fields: dict[str, Any], error: str) -> None:
        with self._lock:
            # Another job may have been opened in the meantime.
            if self.data.ref == ref:
                self._publish(errors={**self.data.errors, tab: error}, **fields)

    def _publish(self, **fields: Any) -> None:
        self.data = changed(self.data, version=self.data.version + 1, **fields)

    def _fetch_view(self, ref: str) -> dict[str, Any]:
        return {"view": self._monitor.job(ref).job, "is_missing": False}

    def _fetch_curves(self, ref: str) -> dict[str, Any]:
        view = self._monitor.series(ref, SeriesQuery(points=_POINTS))
        names = [name for group in metric_groups(view.names) if len(group) > 1 for name in group[:_MOST_TOGETHER]]
        if names and len(view.names) > len(view.series):
            # Several stages report the same metric: they are drawn over each other.
            view = self._monitor.series(ref, SeriesQuery(names=tuple(names[: 2 * _MOST_TOGETHER]), points=_POINTS))
        return {"series": view}

    def _fetch_stages(self, ref: str) -> dict[str, Any]:
        return {"stages": self._monitor.stages(ref)}

    def _fetch_explain(self, ref: str) -> dict[str, Any]:
        return {"explanation": self._monitor.explain(ref)}

    def _fetch_config(self, ref: str) -> dict[str, Any]:
        return {"config": self._monitor.config(ref)}

    def _fetch_logs(self, ref: str) -> dict[str, Any]:
        log, search = self.data.log, self._search
        if log is None or log.search != search:
            page = self._monitor.log(ref, LogRequest(limit=_LOG_LINES, search=search))
            return {"log": LogTail(search=search).with_page(page)}
        if search:
            return {"log": LogTail(search=search).with_page(self._monitor.log(ref, LogRequest(search=search)))}
        # A coordinator before this one knows numbers only.
        return self._add_lines(ref, LogRequest(start=log.total, after=log.next, limit=_FOLLOWED_LINES))

    def _add_lines(self, ref: str, query: LogRequest) -> dict[str, Any]:
        page = self._monitor.log(ref, query)
        with self._lock:
            log = self.data.log or LogTail()
        # A log that got shorter is that of a new attempt.
        is_same = page.total >= log.total and not page.is_anew
        return {"log": log.with_page(page) if is_same else LogTail().with_page(page)}
