"""A fleet in memory, as a `Monitor`: rows that tests change, and the changes that follow."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from stoker.api.monitor import JobQuery, Monitor, SeriesQuery, SpanQuery
from stoker.core.errors import NotFound, StokerError
from stoker.protocol.screen_messages import (
    ChangedRows,
    CodeDiff,
    ComparisonView,
    ConfigView,
    LogLineView,
    LogPage,
    LogRequest,
    Overview,
    Series,
    SeriesView,
    SettingView,
    StageGraph,
    StageNode,
    SweepView,
)
from stoker.protocol.telemetry_messages import (
    AlertView,
    DeviceTelemetry,
    DeviceTelemetryView,
    TelemetrySeries,
    TelemetryView,
)
from stoker.protocol.view_messages import (
    DoneView,
    FileList,
    JobDetails,
    JobExplanation,
    JobPage,
    JobView,
    MachineView,
)
from stoker.tui.job_filter import matches
from stoker.views.explanation_view import with_texts

NOON_S = 1_700_000_000.0


def job(number: int, state: str = "running", **fields: Any) -> JobView:
    """Return the row of a job that was submitted `number` seconds after noon."""
    usual: dict[str, Any] = {
        "id": f"{number:064x}",
        "name": f"resnet/{number}",
        "recipe": "tabular/gbt",
        "state": state,
        "priority": 0,
        "epoch": 1,
        "attempt": 1 if state != "pending" else 0,
        "submitted_s": NOON_S + number,
        "changed_s": NOON_S + number,
        "submitter": "anna",
    }
    if state != "pending":
        usual |= {"machine": "desk", "started_s": NOON_S + number + 1}
    if state in ("completed", "failed", "cancelled"):
        usual["ended_s"] = NOON_S + number + 61
    return JobView(**{**usual, **fields})


def machine(name: str, state: str = "busy", **fields: Any) -> MachineView:
    """Return a machine with one device."""
    usual: dict[str, Any] = {
        "name": name,
        "state": state,
        "last_seen_s": NOON_S,
        "slots": 2,
        "held": 1,
        "jobs": ("resnet/1",),
        "devices": (
            {
                "name": "RTX 4090",
                "uuid": "GPU-1",
                "total_bytes": 24 << 30,
                "telemetry": {"utilisation_percent": 97.0, "temperature_c": 71.0},
            },
        ),
    }
    return MachineView(**{**usual, **fields})


class MemoryMonitor(Monitor):
    """Answers from dictionaries; `trouble` is raised instead if it is set. Thread-safe."""

    name = "lab"
    is_fleet = True

    def __init__(self, jobs: Sequence[JobView] = (), machines: Sequence[MachineView] = ()) -> None:
        self._lock = threading.Condition()
        self._rows = {view.id: view for view in jobs}
        self._machines = {one.name: one for one in machines}
        self._changes: list[tuple[str, str]] = []
        self.trouble: StokerError | None = None
        self.now_s = NOON_S + 1000
        self.done: list[tuple[Any, ...]] = []
        self.log_lines: list[str] = []
        self.log_unfinished: list[str] = []
        self.log_order = "first"
        """Another one: the lines were numbered anew."""
        self.series_names: tuple[str, ...] = ("loss", "lr")
        self.longest_wait_s = 0.0
        self.calls: Counter[str] = Counter()

    def change(self, *jobs: JobView, gone: Sequence[str] = ()) -> None:
        """Change rows, and report it as events."""
        with self._lock:
            for view in jobs:
                self._rows[view.id] = view
                self._changes.append(("job", view.id))
            for id_ in gone:
                self._rows.pop(id_, None)
                self._changes.append(("gone", id_))
            self._lock.notify_all()

    def change_machine(self, machine: MachineView, *, is_event: bool = True) -> None:
        """Change a machine; its row in changes has no capability, as a coordinator sends it."""
        with self._lock:
            self._machines[machine.name] = machine
            if is_event:
                self._changes.append(("machine", machine.name))

    def _enter(self, what: str) -> None:
        self.calls[what] += 1
        if self.trouble is not None:
            raise self.trouble

    def _find(self, ref: str) -> JobView:
        for view in self._rows.values():
            if ref in (view.id, view.name):
                return view
        raise NotFound(f"job {ref} not found")

    def _counts(self) -> dict[str, int]:
        return dict(Counter(view.state for view in self._rows.values()))

    def overview(self) -> Overview:
        self._enter("overview")
        with self._lock:
            counts = self._counts()
            return Overview(
                name=self.name,
                is_fleet=self.is_fleet,
                server_s=self.now_s,
                seq=len(self._changes),
                jobs=counts,
                devices=8,
                idle_devices=2,
                failed_count=counts.get("failed", 0),
                done_s=self.now_s + 600 if counts else None,
            )

    def jobs(self, query: JobQuery) -> JobPage:
        self._enter("jobs")
        keys = {
            "started": lambda view: (-(view.started_s or view.submitted_s), view.id),
            "-submitted": lambda view: (view.submitted_s, view.id),
            "ended": lambda view: (-(view.ended_s or view.changed_s), view.id),
        }
        with self._lock:
            found = sorted((view for view in self._rows.values() if matches(query, view)), key=keys[query.sort])
        start = int(query.after or 0)
        page = found[start : start + query.limit]
        more = str(start + query.limit) if start + query.limit < len(found) else ""
        return JobPage(jobs=tuple(page), next=more)

    def job(self, ref: str) -> JobDetails:
        self._enter("job")
        raise NotFound(f"job {ref} not found")

    def explain(self, ref: str) -> JobExplanation:
        self._enter("explain")
        told = JobExplanation(
            job=self._find(ref),
            verdict="pending, queue position 1",
            changes=("lab1 is opened",),
            machines=({"node": "lab1", "fits": False, "obstacles": [{"code": "closed", "why": "lab1 is cordoned"}]},),
        )
        return with_texts(told, self.now_s)

    def series(self, ref: str, query: SeriesQuery) -> SeriesView:
        self._enter("series")
        view = self._find(ref)
        steps = tuple(range(0, 1000, 5))
        shown = query.names or self.series_names[:1]
        curves = [
            Series(
                name=name,
                steps=steps,
                values=tuple(2 * math.exp(-step / (300 + 200 * at)) + 0.05 for step in steps),
                total=1000,
                last=0.13,
                last_step=999,
                best=0.12 + at,
                best_step=990,
            )
            for at, name in enumerate(shown)
        ]
        return SeriesView(job=view.name, names=self.series_names, series=tuple(curves), attempts={"2": 500})

    def stages(self, ref: str) -> StageGraph:
        self._enter("stages")
        nodes = (
            StageNode(name="load", ending="hit", layer=0),
            StageNode(name="train", ending="running", step=63, of=100, layer=1),
            StageNode(name="score", layer=2),
        )
        return StageGraph(job=self._find(ref).name, nodes=nodes, edges=((0, 1), (1, 2)))

    def log(self, ref: str, query: LogRequest) -> LogPage:
        self._enter("log")
        lines = [LogLineView(number=at, text=text) for at, text in enumerate(self.log_lines)]
        total = len(lines)
        if query.search:
            lines = [line for line in lines if query.search.casefold() in line.text.casefold()]
        count = len(lines)
        order, _, number = query.after.partition("-")
        is_anew = bool(query.after) and order != self.log_order
        start = int(number) if query.after and not is_anew else None if is_anew else query.start
        lines = lines[-query.limit :] if start is None else lines[start : start + query.limit]
        return LogPage(
            job=self._find(ref).name,
            lines=tuple(lines),
            total=total,
            unfinished=tuple(LogLineView(number=total, text=text) for text in self.log_unfinished),
            next="" if query.search else f"{self.log_order}-{lines[-1].number + 1 if lines else start or total}",
            is_anew=is_anew,
            matches=count if query.search else None,
        )

    def config(self, ref: str) -> ConfigView:
        self._enter("config")
        settings = (SettingView(path="lr", value=0.1, origin="command line"), SettingView(path="model.depth", value=4))
        return ConfigView(job=self._find(ref).name, settings=settings)

    def machines(self) -> tuple[MachineView, ...]:
        self._enter("machines")
        return tuple(self._machines[name] for name in sorted(self._machines))

    def telemetry(self, name: str, query: SpanQuery | None = None) -> TelemetryView:
        self._enter("telemetry")
        if name not in self._machines:
            raise NotFound(f"machine {name} not found")
        times = tuple(self.now_s - 3600 + 60 * at for at in range(60))
        celsius = tuple(60.0 + at / 5 for at in range(60))
        hot = TelemetrySeries(device="GPU-1", channel="temperature", unit="°C", low=celsius, mean=celsius, high=celsius)
        now = DeviceTelemetry(
            device="GPU-1",
            utilisation_percent=97.0,
            memory_used_bytes=20 << 30,
            memory_total_bytes=24 << 30,
            power_w=388.0,
            power_limit_w=450.0,
            temperature_c=71.8,
            throttle=("power limit",),
        )
        host = DeviceTelemetry(utilisation_percent=41.0, memory_used_bytes=12 << 30, memory_total_bytes=64 << 30)
        return TelemetryView(
            machine=name,
            server_s=self.now_s,
            from_s=self.now_s - 3600,
            to_s=self.now_s,
            period_s=60,
            devices=(
                DeviceTelemetryView(now=host),
                DeviceTelemetryView(device="GPU-1", name="RTX 4090", now=now, times_s=times, series=(hot,)),
            ),
            alerts=(AlertView(device="GPU-1", kind="power", severity=20, message="388 W of 450 W"),),
        )

    def changes(self, after: int, wait_s: float, frame: int = 0) -> ChangedRows:
        self._enter("changes")
        with self._lock:
            if len(self._changes) <= after and self.longest_wait_s:
                self._lock.wait(min(wait_s, self.longest_wait_s))
            touched = dict.fromkeys(self._changes[after:])
            jobs = [self._rows[id_] for kind, id_ in touched if kind == "job" and id_ in self._rows]
            gone = [id_ for kind, id_ in touched if kind == "gone"]
            machines = [self._machines[name] for kind, name in touched if kind == "machine"]
            return ChangedRows(
                seq=len(self._changes),
                server_s=self.now_s,
                jobs=tuple(jobs),
                gone=tuple(gone),
                machines=tuple(one.model_copy(update={"capability": {}}) for one in machines),
                counts=self._counts(),
                resync=len(touched) > 4096,
            )

    def cancel(self, ref: str) -> DoneView:
        return self._act("cancel", ref)

    def requeue(self, ref: str) -> DoneView:
        return self._act("requeue", ref)

    def set_priority(self, ref: str, priority: int) -> DoneView:
        return self._act("priority", ref, priority)

    def set_machine(self, name: str, verb: str, *, why: str = "", for_s: float | None = None) -> DoneView:
        return self._act(verb, name, for_s)

    def _act(self, *what: Any) -> DoneView:
        self._enter(what[0])
        self.done.append(what)
        return DoneView(changed=(str(what[1]),))

    def code_diff(self, ref: str, parent: str = "") -> CodeDiff:
        raise NotImplementedError

    def files(self, ref: str) -> FileList:
        raise NotImplementedError

    def sweep(self, name: str, metric: str = "", better: str = "") -> SweepView:
        raise NotImplementedError

    def compare(self, refs: Sequence[str], metric: str = "", better: str = "") -> ComparisonView:
        raise NotImplementedError
