"""What a job's folder and the store know of its trials, gathered: how each stands, its metrics, where its curves lie.

A result that was known before has its metrics in its record, and its curves in the folder of the job that made it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from stoker.host.durable import open_regular
from stoker.model.digests import Digest
from stoker.model.errors import StokerError
from stoker.model.frozen import changed, frozen
from stoker.model.json_text import loads
from stoker.model.lifecycle import JobState
from stoker.plan.metrics.file import SUFFIX
from stoker.plan.run_folders import safe_name
from stoker.plan.status import read_status
from stoker.plan.sweep_plan import TrialNodes
from stoker.store.local import LocalStore
from stoker.store.records import Record
from stoker.worker.job_folder import JobFolder
from stoker.worker.settings import Setting, settings_of
from stoker.worker.story import NodeStory, Story, tell
from stoker.worker.trials import Trial, TrialEnd, end_of, read_trials, shared_nodes

_LARGEST_BYTES = 256 * 1024 * 1024
# What a trial is called that has not ended though its job has.
_LEFT = {"pending": "not run", "running": "stopped"}


@frozen
class Gathered:
    """One trial with all that is known of it."""

    end: TrialEnd
    curve_files: tuple[str, ...]


class Gathering:
    """Everything known of one job; read once."""

    def __init__(self, folder: JobFolder, store: LocalStore) -> None:
        self.folder = folder
        self.spec = folder.spec()
        self.story = _whole_story(folder)
        self._store = store
        self._records: dict[str, Record | None] = {}
        self._listed: dict[str, frozenset[str]] = {}
        self._config = _object_in(os.path.join(folder.path, "config.json"))

    def trials(self) -> list[Gathered]:
        """Give every trial in the order of the sweep; a job without one is a single trial."""
        trials = self.wanted()
        shared = shared_nodes(trials)
        is_running = self.folder.state()[0] is JobState.RUNNING
        return [self._gathered(trial, shared, is_running=is_running) for trial in trials]

    def wanted(self) -> list[Trial]:
        """Give the trials as they were wanted."""
        return read_trials(_bytes_of(os.path.join(self.folder.path, "trials.jsonl"))) or [self._only_trial()]

    def settings(self, trial: Trial | None = None) -> dict[str, Setting]:
        """Give every parameter by dotted name: as the job has it, or as one of its trials does."""
        return settings_of(self.spec, self._config, trial)

    def program_files(self, trial: Trial) -> dict[str, str]:
        """Return the digest of each file of its program: as it was ordered, or edited when this trial began."""
        ordered = {str(name): str(digest) for name, digest in _mapping(self._config.get("code")).items()}
        edited = self.story.edited.get(trial.number, {})
        return {**ordered, **{str(name): str(digest) or "gone" for name, digest in edited.items()}}

    def records(self, trial: Trial | None = None) -> dict[str, Record]:
        """Give the record of each node that has a result, of the whole job or of one trial."""
        names = list(self.story.nodes) if trial is None else list(trial.nodes.nodes)
        found = {name: self._record(self.story.nodes[name]) for name in names if name in self.story.nodes}
        return {name: record for name, record in found.items() if record is not None}

    def _only_trial(self) -> Trial:
        ended = self.folder.ended()
        names = tuple(self.story.nodes)
        final = ended.parts[0] if ended is not None and ended.parts else names[-1] if names else ""
        nodes = TrialNodes(final=final, keep=(), nodes=names)
        return Trial(number=1, label="", point={}, args=self.spec.args, job_id=self.spec.job_id, nodes=nodes)

    def _gathered(self, trial: Trial, shared: frozenset[str], *, is_running: bool) -> Gathered:
        end = end_of(trial, self.story, shared)
        metrics: dict[str, float] = {}
        files: dict[str, None] = {}
        seconds = [] if end.seconds is None else [end.seconds]
        peaks = [] if end.peak_bytes is None else [end.peak_bytes]
        gpu_peaks = [] if end.peak_gpu_bytes is None else [end.peak_gpu_bytes]
        for node in (self.story.nodes[name] for name in trial.nodes.nodes if name in self.story.nodes):
            is_known = node.ending == "hit" or (node.ending == "ran" and not node.metrics)
            body = _body(self._record(node)) if is_known else {}
            told = node.metrics or body.get("metrics")
            metrics |= {name: float(value) for name, value in _mapping(told).items() if type(value) in (int, float)}
            made_by, made_as = str(body.get("attempt", self.folder.attempt)), str(body.get("node", node.node))
            files |= dict.fromkeys(self._curve_files(made_by, made_as))
            if node.node not in shared and node.ending == "hit":
                seconds += [body["seconds"]] if type(body.get("seconds")) in (int, float) else []
                peaks += [body["peak_rss_bytes"]] if type(body.get("peak_rss_bytes")) is int else []
                gpu_peaks += [body["peak_gpu_bytes"]] if type(body.get("peak_gpu_bytes")) is int else []
        end = changed(
            end,
            state=end.state if is_running else _LEFT.get(end.state, end.state),
            metrics=metrics,
            # Also of what was known before: it says what a trial costs, not what this job spent.
            seconds=sum(seconds) if seconds else None,
            peak_bytes=max(peaks, default=None),
            peak_gpu_bytes=max(gpu_peaks, default=None),
        )
        return Gathered(end=end, curve_files=tuple(files))

    def _curve_files(self, attempt: str, node: str) -> list[str]:
        if os.path.basename(attempt) != attempt:
            return []
        folder = os.path.join(os.path.dirname(self.folder.path), attempt, "metrics")
        if folder not in self._listed:
            names: list[str] = []
            with suppress(OSError):
                names = os.listdir(folder)
            self._listed[folder] = frozenset(names)
        stem = safe_name(node)
        known = (f"{stem}{SUFFIX}", f"{stem}.program{SUFFIX}")
        return [os.path.join(folder, name) for name in known if name in self._listed[folder]]

    def _record(self, node: NodeStory) -> Record | None:
        if node.node not in self._records:
            self._records[node.node] = None
            if node.key and node.ending in ("hit", "ran"):
                with suppress(StokerError):
                    found = self._store.peek(Digest(node.key))
                    self._records[node.node] = found if isinstance(found, Record) else None
        return self._records[node.node]


def _whole_story(folder: JobFolder) -> Story:
    """Read the journal; of a node that only its lost beginning told of, the end still knows the result."""
    story = tell(read_status(folder.status_path))
    ended = folder.ended()
    for name, key in ended.keys.items() if ended is not None else ():
        node = story.nodes.setdefault(name, NodeStory(node=name, ending="hit"))
        node.key = node.key or key
    return story


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _body(record: Record | None) -> Mapping[str, Any]:
    return record.body if record is not None else {}


def _object_in(path: str) -> dict[str, Any]:
    try:
        raw = loads(_bytes_of(path))
    except ValueError:
        return {}
    return raw if isinstance(raw, dict) else {}


def _bytes_of(path: str) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(_LARGEST_BYTES)
    except OSError:
        return b""
