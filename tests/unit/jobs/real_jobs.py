"""Jobs as they lie on disk after a run, written by the same code that writes them then, without running anything."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.core.clock import SystemClock
from stoker.core.digests import Tree, TreeEntry, digest_bytes, digest_value
from stoker.core.events import Event, Kinds
from stoker.core.job import JobState, TrialNodes
from stoker.core.jsontext import dumps
from stoker.engine.action import Action, StageFacts
from stoker.engine.journal import StatusWriter
from stoker.engine.metrics.metrics_file import ROWS_PER_FRAME, MetricRow, encode_frame
from stoker.host.durable import write_file
from stoker.host.identity import mine
from stoker.jobs.comparison import JobFacts
from stoker.jobs.job_folder import JobEnd, JobFolder, find_job
from stoker.jobs.trials import Trial, write_trials
from stoker.store.local_store import LocalStore
from stoker.store.records import Record
from tests.fakes.jobs import made_attempt, made_trial

CODE = {"(module)": "a" * 64, "train.losses": "b" * 64}


@dataclass(frozen=True, kw_only=True)
class Made:
    """One trial to write down: how it ended and what it reported."""

    point: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    curve: Sequence[float] = ()
    """Values of `loss`, a step each."""
    state: str = "completed"
    message: str = ""
    seconds: float = 1.5
    peak_bytes: int = 3 << 30
    is_hit: bool = False
    code: Mapping[str, str] = field(default_factory=lambda: CODE)
    data: str = "d" * 64
    env: Mapping[str, str] = field(default_factory=lambda: {"numpy": "2.0"})
    measured_on: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Of its result."""


class Shelf:
    """A store and a folder of jobs. `home` is laid out as STOKER_HOME is."""

    def __init__(self, home: Path) -> None:
        self.runs = str(home / "runs")
        self.store = LocalStore(str(home / "store"), clock=SystemClock())
        self.store.open()
        self._seconds = itertools.count(10)

    def add(
        self,
        name: str,
        trials: Sequence[Made],
        *,
        args: Mapping[str, Any] | None = None,
        origins: Mapping[str, str] | None = None,
        is_ended: bool = True,
        stoker: str = "0.1.0",
    ) -> str:
        """Write a job down; gives its attempt."""
        attempt = (
            f"20261115-0315{next(self._seconds)}-{len(os.listdir(self.runs)) if os.path.isdir(self.runs) else 0:04x}"
        )
        values = dict(args or {})
        spec = made_attempt(
            attempt=attempt,
            job_id=digest_value("job", [name, dumps(values)]),
            name=name,
            recipe="test/train",
            args=values,
            folder="/somewhere",
            started_s=1_700_000_000.0,
            stoker=stoker,
        )
        folder = JobFolder.begin(self.runs, spec, mine())
        wanted = [self._trial(number, one, values) for number, one in enumerate(trials, 1)]
        if any(one.point for one in trials):
            write_file(os.path.join(folder.path, "trials.jsonl"), write_trials(wanted))
        if origins is not None:
            body = {"v": 1, "values": values, "origins": {k: [{"from": v, "value": 0}] for k, v in origins.items()}}
            write_file(os.path.join(folder.path, "config.json"), dumps({**body, "notes": {}}).encode())
        status = StatusWriter(folder.status_path, source=attempt, clock=SystemClock())
        keys = {}
        for trial, one in zip(wanted, trials, strict=True):
            key = self._tell(status, folder, trial, one)
            if one.state == "completed":
                keys[trial.nodes.final] = key
        status.close()
        if is_ended:
            folder.end(self._end(keys, wanted, trials))
        return attempt

    def gathering(self, name: str) -> JobFacts:
        return JobFacts(find_job(self.runs, name), self.store)

    def _trial(self, number: int, one: Made, values: Mapping[str, Any]) -> Trial:
        label = ",".join(f"{path}={value}" for path, value in one.point.items())
        node = f"{number}.train" if one.point else "train"
        return made_trial(
            number=number,
            label=label,
            point=one.point,
            args={**values, **one.point},
            job_id=digest_value("job", label),
            nodes=TrialNodes(final=node, keep=(), nodes=(node,)),
            measured_on=one.measured_on,
        )

    def _tell(self, status: StatusWriter, folder: JobFolder, trial: Trial, one: Made) -> str:
        node = trial.nodes.final
        about = {"node": node, "stage": "test/train"}
        action = Action.from_json(self._action(trial, one))
        key = action.key()
        if one.state == "pending":
            return key
        if one.is_hit:
            status.emit(Event(Kinds.STAGE_SKIPPED, {**about, "key": key, "digest": "0" * 64}))
            return key
        status.emit(Event(Kinds.STAGE_BEGIN, {**about, "key": key, "attempt": 1, "why": "it has not run before"}))
        if one.curve:
            write_curve(os.path.join(folder.metrics_folder, f"{node}.skm"), one.curve)
        if one.state == "failed":
            fields = {"attempt": 1, "cause": "user", "message": one.message, "hint": "", "seconds": one.seconds}
            status.emit(Event(Kinds.STAGE_FAILED, {**about, **fields}))
            return key
        if one.state == "running":
            status.emit(Event(Kinds.STAGE_STEP, {"node": node, "step": 3, "of": 9, "metrics": dict(one.metrics)}))
            return key
        cost = {"seconds": one.seconds, "peak_rss_bytes": one.peak_bytes}
        body = {"action": action.to_json(), "made_at": 1.0, **cost, "kind": "it@1", "stage": "test/train"}
        told = {"metrics": dict(one.metrics), "attempt": folder.attempt, "node": node} if one.metrics else {}
        tree = Tree(tuple(TreeEntry(name, len(data), digest_bytes(data)) for name, data in sorted(one.files.items())))
        self.store.publish(Record.of(key=key, tree=tree, inline=dict(one.files), body={**body, **told}))
        end = {**about, "key": key, "digest": tree.digest(), **cost, "metrics": dict(one.metrics)}
        status.emit(Event(Kinds.STAGE_END, end))
        return key

    def _action(self, trial: Trial, one: Made) -> dict[str, Any]:
        facts = StageFacts(stage="test/train", version=1, output="it@1", code=one.code, env=one.env)
        args = {**trial.spec.args, "file": {"content": one.data}}
        return Action(facts=facts, facts_digest=facts.digest(), inputs=(), args=args).to_json()

    def _end(self, keys: Mapping[str, str], wanted: Sequence[Trial], trials: Sequence[Made]) -> JobEnd:
        failed = sum(one.state == "failed" for one in trials)
        return JobEnd(
            state=JobState.FAILED if failed else JobState.COMPLETED,
            ended_s=1_700_000_060.0,
            hits=0,
            ran=len(keys),
            failed=failed,
            elapsed_s=60.0,
            exit_code=1 if failed else 0,
            error=None,
            keys=dict(keys),
            out=None,
            parts=tuple(trial.nodes.final for trial in wanted),
        )


def write_curve(path: str, values: Sequence[float], name: str = "loss") -> None:
    """Write a curve as the metrics of a stage lie on disk."""
    rows = [MetricRow(step, 1.0 + step, name, value) for step, value in enumerate(values)]
    with open(path, "wb") as file:
        file.writelines(
            encode_frame(rows[start : start + ROWS_PER_FRAME]) for start in range(0, len(rows), ROWS_PER_FRAME)
        )


def falling(rate: float, count: int = 50) -> list[float]:
    """A loss that falls."""
    return [math.exp(-rate * step) + 0.1 for step in range(count)]


def sweep_of_six() -> list[Made]:
    """Two parameters, one of them on a log scale; one trial diverged, one gave NaN."""
    trials = []
    for lr, depth in itertools.product((1e-1, 1e-2, 1e-3), (2, 4)):
        loss = abs(math.log10(lr) + 2) + 1 / depth
        trials.append(
            Made(
                point={"lr": lr, "model.depth": depth},
                metrics={"loss": loss, "val_loss": loss + 0.1, "accuracy": 1 - loss / 4},
                curve=falling(1 / (1 + loss)),
                seconds=loss * 10,
            )
        )
    failed = {"state": "failed", "message": "exit 1: ValueError: loss is nan (train.py:88)", "metrics": {}}
    trials[0] = Made(point=trials[0].point, **failed)  # type: ignore[arg-type]
    trials[1] = Made(point=trials[1].point, metrics={"loss": math.nan, "val_loss": math.nan, "accuracy": math.nan})
    return trials
