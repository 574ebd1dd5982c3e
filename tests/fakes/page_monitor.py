"""A fleet in memory with something on every web page: names with markup, curves, a graph, a long log."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from stoker.api.monitor import JobQuery, SeriesQuery
from stoker.core.errors import NotFound
from stoker.protocol.screen_messages import (
    CodeDiff,
    ComparisonView,
    LogLineView,
    LogPage,
    LogRequest,
    Overview,
    PendingReason,
    Series,
    SeriesView,
    SettingView,
    StageGraph,
    StageNode,
    SweepList,
    SweepView,
)
from stoker.protocol.screen_messages import ConfigView as Config
from stoker.protocol.view_messages import (
    AttemptView,
    FileList,
    FileView,
    JobDetails,
    JobPage,
    SymptomView,
)
from tests.fakes.monitor import NOON_S, MemoryMonitor, job, machine
from tests.fakes.page_machines import PageMachines, holders
from tests.fakes.page_sent import PageSent
from tests.fakes.page_sweep import MARKUP, page_comparison, page_sweep, page_sweeps

MEASURED = {
    "utilisation_percent": 97.0,
    "memory_total_bytes": 24 << 30,
    "memory_used_bytes": 19 << 30,
    "temperature_c": 71.0,
    "power_w": 388.0,
    "power_limit_w": 450.0,
    "throttle": (),
}
HOST = {"utilisation_percent": 31.0, "memory_used_bytes": 40 << 30, "memory_total_bytes": 128 << 30}


def page_monitor(now_s: float = NOON_S + 7200) -> PageMonitor:
    """Return a fleet with jobs in every state."""
    chance = random.Random(7)
    at = now_s - NOON_S
    jobs = [
        job(
            n,
            "running",
            changed_s=now_s - 5,
            submitted_s=now_s - 3000 - n,
            started_s=now_s - 600 * n,
            step=63 * n % 100,
            of=100,
            metrics={"loss": 0.41 + n / 100, "accuracy": 0.8},
            machine=f"lab{n % 3 + 1}",
        )
        for n in range(1, 7)
    ]
    jobs += [
        job(n, "pending", submitted_s=now_s - 100 - n, why="needs 30.0 GiB of device memory, largest has 24.0")
        for n in range(10, 40)
    ]
    failed = {"started_s": now_s - 4000, "machine": "lab1"}
    jobs += [
        job(50, "failed", ended_s=now_s - 720, why="user: ValueError: loss is nan", name="lora/3", **failed),
        job(51, "failed", ended_s=now_s - 9000, why=f"user: {MARKUP}", name=f"x{MARKUP}", label=MARKUP, **failed),
        job(52, "cancelled", ended_s=now_s - 100, name="ablation/attention-heads-without-dropout-and-a-long-name/12"),
    ]
    jobs += [
        job(n, "completed", submitted_s=now_s - at / 2 - 60 * n, metrics={"loss": chance.random()})
        for n in range(100, 180)
    ]
    card = {"name": "NVIDIA RTX 4090", "total_bytes": 24 << 30, "promised_bytes": 20 << 30, "telemetry": MEASURED}
    devices = tuple({"uuid": f"GPU-8f1c{n}-4d", "jobs": ["resnet/3"] * (1 - n), **card} for n in range(2))
    held = holders({"resnet/3": 14.2, "lora/2": 5.8}, "GPU-8f1c0-4d")
    sick = SymptomView(
        machine="lab2", symptom="device_hot", since_s=now_s - 300, message="device 1 at 91 °C", hint="clean the fans"
    )
    machines = [
        machine(
            "lab1",
            devices=devices,
            cores=32,
            ram_bytes=128 << 30,
            last_seen_s=now_s - 4,
            jobs=("resnet/3",),
            holders=held,
            host=HOST,
        ),
        machine("lab2", devices=devices, cores=32, ram_bytes=128 << 30, last_seen_s=now_s - 9, symptoms=(sick,)),
        machine("desk", "cordoned", why=f"ECC errors {MARKUP}", devices=(), last_seen_s=now_s - 30, held=0, jobs=()),
    ]
    made = PageMonitor(jobs, machines)
    made.now_s = now_s
    made.longest_wait_s = 1.0
    made.log_lines = [f"step {n} loss={2 / (n + 1):.4f}" for n in range(900)] + [MARKUP, "\u202eleft to right"]
    return made


class PageMonitor(PageMachines, PageSent, MemoryMonitor):
    """Answers every question of the pages."""

    metric_names: tuple[str, ...] = ("loss", "val_loss", MARKUP)
    trials = 48
    """Of its sweep."""

    def overview(self) -> Overview:
        self._enter("overview")
        with self._lock:
            rows, counts = list(self._rows.values()), self._counts()
            failed = sorted((one for one in rows if one.state == "failed"), key=lambda one: -(one.ended_s or 0))
            waiting = Counter(one.why for one in rows if one.state == "pending")
            return Overview(
                name="lab",
                is_fleet=True,
                server_s=self.now_s,
                seq=len(self._changes),
                version="0.2",
                role="admin",
                jobs=counts,
                machines=dict(Counter(one.state for one in self._machines.values())),
                devices=8,
                idle_devices=2,
                running=tuple(one for one in rows if one.state == "running"),
                pending=tuple(
                    PendingReason(reason=why, count=count, jobs=("resnet/10", "resnet/11"))
                    for why, count in waiting.most_common()
                ),
                failed=tuple(failed),
                failed_count=len(failed),
                symptoms=tuple(one for each in self._machines.values() for one in each.symptoms),
                # On another day, at whatever time the tests run: that text is the longest.
                done_s=self.now_s + 100_000,
            )

    def jobs(self, query: JobQuery) -> JobPage:
        self._enter("jobs")
        states = set(filter(None, query.state.split(",")))
        with self._lock:
            rows = [one for one in self._rows.values() if query.name.lower() in f"{one.name} {one.label}".lower()]
        rows.sort(key=lambda one: one.name if query.sort == "name" else -one.submitted_s)
        counts = dict(Counter(one.state for one in rows))
        rows = [one for one in rows if not states or one.state in states]
        start = int(query.after or 0)
        more = str(start + query.limit) if start + query.limit < len(rows) else ""
        return JobPage(jobs=tuple(rows[start : start + query.limit]), next=more, total=len(rows), counts=counts)

    def job(self, ref: str) -> JobDetails:
        self._enter("job")
        view = self._find(ref)
        attempt = AttemptView(
            number=1, epoch=1, generation=1, machine=view.machine, incarnation="i", granted_s=view.submitted_s
        )
        return JobDetails.model_validate({"job": view, "args": {"lr": 0.1}, "attempts": (attempt,)})

    def series(self, ref: str, query: SeriesQuery) -> SeriesView:
        self._enter("series")
        view, chance = self._find(ref), random.Random(3)
        first, last = query.first or 0, 1000 if query.last is None else query.last
        steps = tuple(range(first, last + 1, max(1, (last - first) // 250)))

        def one(name: str, start: float) -> Series:
            values = tuple(start * math.exp(-step / 300) + 0.2 * chance.random() for step in steps)
            times = tuple(self.now_s - 1200 + step for step in steps)
            best = min(values)
            return Series(
                name=name,
                steps=steps,
                values=values,
                times_s=times,
                total=1000,
                is_lower_better=True,
                best=best,
                best_step=steps[values.index(best)],
                last=values[-1],
                last_step=steps[-1],
            )

        names = self.metric_names
        asked = query.names or names
        return SeriesView(
            job=view.name,
            names=names,
            series=tuple(one(name, 2.0 if name == "loss" else 2.4) for name in names if name in asked),
            attempts={"2": 500},
            started_s=self.now_s - 1200,
        )

    def stages(self, ref: str) -> StageGraph:
        self._enter("stages")
        nodes = (
            StageNode(name="load", title="load data", ending="hit", seconds=0.2, layer=0, why="same input"),
            StageNode(name="split", ending="ran", seconds=1.4, layer=1),
            StageNode(name="train", ending="running", step=63, of=100, layer=2, place=0),
            StageNode(name="baseline", ending="failed", message=MARKUP, layer=2, place=1),
            StageNode(name="score", instances=8, layer=3),
        )
        edges = ((0, 1), (1, 2), (1, 3), (2, 4), (3, 4))
        return StageGraph(job=self._find(ref).name, nodes=nodes, edges=edges)

    def log(self, ref: str, query: LogRequest) -> LogPage:
        page = super().log(ref, query)
        nodes = ("train", "baseline")
        lines = tuple(LogLineView(number=one.number, text=one.text, node="train") for one in page.lines)
        return LogPage(**{**dict(page), "lines": lines, "nodes": nodes})

    def config(self, ref: str) -> Config:
        self._enter("config")
        settings = (
            SettingView(path="lr", value=0.1, origin="command line", layers=(("default", 0.01), ("command line", 0.1))),
            SettingView(path="model.depth", value=4, origin="default"),
            SettingView(path="note", value=MARKUP, origin="manifest.toml:3"),
        )
        return Config(job=self._find(ref).name, settings=settings)

    def code_diff(self, ref: str, parent: str = "") -> CodeDiff:
        text = f"--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n-lr = 0.1\n+lr = 0.2  # {MARKUP}\n same\n"
        return CodeDiff(job=self._find(ref).name, parent="resnet/1", files=("train.py",), text=text)

    def sweeps(self, limit: int = 50) -> SweepList:
        return page_sweeps(self.now_s)

    def sweep(self, name: str, metric: str = "", better: str = "") -> SweepView:
        self._enter("sweep")
        if name != "resnet":
            raise NotFound(f"there is no job {name!r}")
        return page_sweep(metric, better, self.trials)

    def compare(self, refs: Sequence[str], metric: str = "", better: str = "") -> ComparisonView:
        self._enter("compare")
        return page_comparison([self._find(ref) for ref in refs], metric)

    opened: Path | None = None

    def open_file(self, ref: str, path: str) -> BinaryIO:
        if self.opened is None:
            return super().open_file(ref, path)
        return self.opened.open("rb")

    def files(self, ref: str) -> FileList:
        self._find(ref)
        return FileList(attempt=1, files=(FileView(path="logs/train.log", size_bytes=12345),))
