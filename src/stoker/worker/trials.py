"""Trials: the points of a job's sweep, each with its arguments and its part of the job's plan. One, if nothing varies.

Written down before the first one starts (`trials.jsonl`), so that whoever looks at the job later, also at one that was
killed, knows what was wanted. How each ended is read from the journal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.model.digests import Digest
from stoker.model.errors import NotFound
from stoker.model.frozen import changed, fresh, frozen
from stoker.model.json_text import dumps, loads
from stoker.plan.sweep_plan import TrialNodes
from stoker.store.local import LocalStore
from stoker.store.records import Record
from stoker.worker.story import NodeStory, Story

if TYPE_CHECKING:
    from stoker.config.sweep import Point

TRIALS = "trials.jsonl"
_GOOD = ("ran", "hit")


@frozen
class Trial:
    """One point of a sweep."""

    number: int
    """From 1: `last/3` is the third."""
    label: str
    """`lr=0.001,model.depth=3`: what its folder is called. Empty if nothing varies."""
    point: Mapping[str, Any]
    """What varies, by path."""
    args: dict[str, Any]
    """Checked and default-filled."""
    job_id: Digest
    nodes: TrialNodes
    measured_on: Mapping[str, Any] = fresh(factory=dict)
    """Those of its arguments that decide what its metrics are taken from."""

    def to_json(self) -> dict[str, Any]:
        return {
            "v": 1,
            "n": self.number,
            "label": self.label,
            "point": dict(self.point),
            "job_id": self.job_id,
            "final": self.nodes.final,
            "keep": list(self.nodes.keep),
            "nodes": list(self.nodes.nodes),
            "args": self.args,
            **({"measured_on": dict(self.measured_on)} if self.measured_on else {}),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Trial:
        """Read one back. Raises `KeyError`, `TypeError` or `ValueError` if it is not one."""
        nodes = TrialNodes(
            final=str(raw["final"]),
            keep=tuple(map(str, raw["keep"])),
            nodes=tuple(map(str, raw["nodes"])),
        )
        return cls(
            number=int(raw["n"]),
            label=str(raw["label"]),
            point=dict(raw["point"]),
            args=dict(raw["args"]),
            job_id=Digest(str(raw["job_id"])),
            nodes=nodes,
            measured_on=dict(raw.get("measured_on", {})),
        )


def varied_by(point: Point, values: Mapping[str, Any]) -> dict[str, Any]:
    """Give what varies at a point of a sweep, by path; of a group, the option that was chosen."""
    varied = {}
    for path, choice in point.choices:
        value: Any = values
        for step in path.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        varied[path] = choice.text if value is None or isinstance(value, Mapping) else value
    return varied


def write_trials(trials: Iterable[Trial]) -> bytes:
    """Give trials as lines."""
    return "".join(f"{dumps(trial.to_json())}\n" for trial in trials).encode()


def read_trials(lines: bytes) -> list[Trial]:
    """Read trials back; a line that is not one is passed over."""
    trials = []
    for line in lines.splitlines():
        try:
            trials.append(Trial.from_json(loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return trials


@frozen
class TrialEnd:
    """How a trial stands."""

    trial: Trial
    state: str
    """completed, failed, cancelled, running or pending."""
    is_kept: bool = False
    """Its result was there already: nothing of it ran in this job."""
    seconds: float | None = None
    """How long what is its own ran; what it shares with others counts for nobody."""
    cause: str = ""
    message: str = ""
    hint: str = ""
    metrics: Mapping[str, float] = fresh(factory=dict)
    """The last value of each."""
    peak_bytes: int | None = None
    """Of the machine's memory."""
    peak_gpu_bytes: int | None = None
    """On the fullest device."""
    keys: Mapping[str, str] = fresh(factory=dict)
    """Of its result and of what its plan keeps, by node."""
    digest: str = ""
    """Of its result."""
    out: str | None = None
    """Where its result lies as plain files."""
    known: tuple[str, ...] = ()
    """Keys of those of its nodes whose results were known: what was measured then stands in their records."""


def end_of(trial: Trial, story: Story, shared: frozenset[str]) -> TrialEnd:
    """Say how a trial stands, from what the journal tells of its nodes. `shared` are nodes of several trials."""
    nodes = [story.nodes[name] for name in trial.nodes.nodes if name in story.nodes]
    # A trial that shares all it has with others is none the less itself.
    is_all_shared = shared.issuperset(trial.nodes.nodes)
    own = [node for node in nodes if is_all_shared or node.node not in shared]
    final = story.nodes.get(trial.nodes.final)
    failed = next((node for node in nodes if node.ending in ("failed", "diverged")), None)
    seconds = [node.seconds for node in own if node.seconds is not None]
    peaks = [node.peak_rss_bytes for node in own if node.peak_rss_bytes is not None]
    gpu_peaks = [node.peak_gpu_bytes for node in own if node.peak_gpu_bytes is not None]
    ends = [story.nodes.get(name) for name in (trial.nodes.final, *trial.nodes.keep)]
    is_whole = all(node is not None and node.ending in _GOOD for node in ends)
    state = "completed" if is_whole else "failed" if failed is not None else _unfinished(own)
    metrics: dict[str, float] = {}
    for node in nodes:
        metrics.update(node.metrics)
    return TrialEnd(
        trial=trial,
        state=state,
        is_kept=is_whole and all(node.ending == "hit" for node in own),
        seconds=sum(seconds) if seconds else None,
        cause=failed.cause if failed else "",
        message=failed.message if failed else "",
        hint=failed.hint if failed else "",
        metrics=metrics,
        peak_bytes=max(peaks, default=None),
        peak_gpu_bytes=max(gpu_peaks, default=None),
        keys=_keys(trial, story) if is_whole else {},
        digest=final.digest if is_whole and final is not None else "",
        known=tuple(node.key for node in nodes if node.ending == "hit" and node.key),
    )


def _keys(trial: Trial, story: Story) -> dict[str, str]:
    """Give the keys of what a trial made, those of a fan-out by instance."""
    wanted = (trial.nodes.final, *trial.nodes.keep)
    found: dict[str, str] = {}
    for name in wanted:
        node = story.nodes.get(name)
        instances = [f"{name}[{index}]" for index in range(node.instances or 0)] if node else []
        for one in instances or [name]:
            told = story.nodes.get(one)
            if told is not None and told.key and told.ending in _GOOD:
                found[one] = told.key
    return found


class KnownMetrics:
    """What records say was measured when results were made. Trials share nodes, so each record is read once."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._read: dict[str, Mapping[str, float]] = {}

    def added_to(self, end: TrialEnd) -> TrialEnd:
        """Add what is known of those of a trial's nodes that did not run."""
        metrics: dict[str, float] = {}
        for key in end.known:
            metrics.update(self._of(key))
        return changed(end, metrics={**metrics, **end.metrics}) if metrics else end

    def _of(self, key: str) -> Mapping[str, float]:
        if key not in self._read:
            record = self._store.peek(Digest(key))
            kept = record.body.get("metrics") if isinstance(record, Record) else None
            self._read[key] = kept if isinstance(kept, dict) else {}
        return self._read[key]


def trial_numbered(trials: Sequence[Trial], text: str, job: str) -> Trial:
    """Give the trial that `NAME/3` means, or `NAME/LABEL`; `NotFound` if there is none."""
    found = next((trial for trial in trials if text in (str(trial.number), trial.label)), None)
    if found is None or not is_sweep(trials):
        hint = f"it has {len(trials)}; such as {job}/1" if is_sweep(trials) else "it is no sweep"
        raise NotFound(f"job {job} has no trial {text!r}", hint=hint)
    return found


def is_sweep(trials: Sequence[Trial]) -> bool:
    """Say whether trials are points of a sweep, which may have only one."""
    return len(trials) > 1 or any(trial.label for trial in trials)


def shared_nodes(trials: Iterable[Trial]) -> frozenset[str]:
    """Name the nodes that belong to more than one trial."""
    seen: set[str] = set()
    shared: set[str] = set()
    for trial in trials:
        shared.update(seen.intersection(trial.nodes.nodes))
        seen.update(trial.nodes.nodes)
    return frozenset(shared)


def _unfinished(own: list[NodeStory]) -> str:
    """Return the state of a trial that neither has its result nor failed.

    What never began is pending, also after the whole run was cancelled; a trial that was cancelled by itself is
    cancelled. While one of its nodes still runs, so does the trial.
    """
    if any(node.ending == "running" for node in own):
        return "running"
    cancelled = [node for node in own if node.ending == "cancelled"]
    if not any(node.attempts for node in own) and not any(node.cause for node in cancelled):
        return "pending"
    return "cancelled" if cancelled else "running"


def nodes_to_cancel(trials: Sequence[Trial], numbers: Collection[int]) -> frozenset[str]:
    """Return the nodes that only these trials need: those that stop if the trials are cancelled."""
    unwanted: set[str] = set()
    needed: set[str] = set()
    for trial in trials:
        (unwanted if trial.number in numbers else needed).update(trial.nodes.nodes)
    return frozenset(unwanted - needed)
