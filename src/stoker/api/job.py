"""`Job`, the handle that all faces use, and what a job's folder says: facts and history.

The folder is this machine's own, or an attempt's folder that was copied from a coordinator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stoker.core.errors import NotFound
from stoker.core.frozen import changed, frozen
from stoker.engine.journal import read_status
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import NodeHistory, RunHistory, tell
from stoker.jobs.trials import Trial, TrialEnd, end_of, is_sweep, shared_nodes

if TYPE_CHECKING:
    from stoker.jobs.comparison import JobFacts, TrialFacts


class Job(ABC):
    """A job of this machine (`LocalJob`) or of a fleet (`FleetJob`), found by a name."""

    @abstractmethod
    def logs(
        self, stage: str = "", *, attempt: int | None = None, follow: bool = False
    ) -> Iterator[StageLogLine | str]:
        """Return what its stages printed, and as plain texts what else is to be known; with `follow` until it ends."""

    @abstractmethod
    def gather(self) -> tuple[JobFacts, list[TrialFacts]]:
        """Return what is known of the job, and of each of its trials, for a comparison."""


@frozen
class StageLogLine:
    """A line that a stage printed, or that was printed beside the stages."""

    node: str
    text: str
    heading: str = ""
    """Whose lines these are, where they are another's than the line before."""
    has_gap: bool = False
    """Whether a blank line belongs before the heading."""


def job_facts(folder: JobFolder) -> dict[str, Any]:
    """Return a job as plain data: what was requested and its state."""
    attempt, end = folder.begun(), folder.ended()
    state, why = folder.state()
    error = end.error if end else None
    of_end = ("ended_s", "elapsed_s", "hits", "ran", "failed", "exit_code", "out")
    return {
        "name": attempt.spec.name,
        "attempt": attempt.id,
        "job_id": attempt.spec.id,
        "recipe": attempt.spec.recipe,
        "state": str(state),
        "why": why or (str(error.get("message", "")) if error else ""),
        "started_s": attempt.started_s,
        **{name: getattr(end, name) if end else None for name in of_end},
        "fleet": attempt.options.get("fleet"),
    }


def facts_or_why_not(folder: JobFolder) -> dict[str, Any]:
    """Return a job as plain data, or what is wrong with its folder."""
    try:
        return job_facts(folder)
    except NotFound as error:
        blank: dict[str, Any] = dict.fromkeys(
            ("job_id", "started_s", "ended_s", "elapsed_s", "hits", "ran", "failed", "exit_code", "out", "fleet")
        )
        why = error.hint or str(error)
        return {"name": "?", "attempt": folder.attempt, "recipe": "?", "state": "unreadable", "why": why, **blank}


def job_story(folder: JobFolder) -> RunHistory:
    """Read what the journal says of a job; where its beginning is lost, the end still knows what has a result."""
    story, end = tell(read_status(folder.status_path)), folder.ended()
    for name, key in end.keys.items() if end is not None else ():
        node = story.nodes.setdefault(name, NodeHistory(node=name, ending="ran"))
        node.key = node.key or key
    return story


def nodes_named(story: RunHistory, target: str, job: str, trials: Sequence[Trial] = ()) -> list[NodeHistory]:
    """Return the nodes that a name means: a node, a fan-out's instances, all of a stage, or those of one trial.

    `sweep/3` and `sweep/lr=0.1` are a trial, `sweep/3/train` one of its stages.
    """

    def is_meant(node: NodeHistory, *names: str) -> bool:
        return any(name in (node.node, node.stage) or node.node.startswith(f"{name}[") for name in names)

    whose, _, inner = target.partition("/")
    chosen = next((one for one in trials if is_sweep(trials) and whose in (str(one.spec.number), one.spec.label)), None)
    if chosen is None:
        found = [node for node in story.nodes.values() if is_meant(node, target)]
    else:
        own = [node for node in story.nodes.values() if node.node.partition("[")[0] in chosen.nodes.nodes]
        found = [node for node in own if not inner or is_meant(node, inner, f"{chosen.spec.number}.{inner}")]
        if not own:
            raise NotFound(
                f"trial {chosen.spec.number} of {job} ({chosen.spec.label}) has not run", hint=f"stoker explain {job}"
            )
    if not found:
        from stoker.core.text import did_you_mean

        known = ", ".join(list(story.nodes)[:12]) or "none yet"
        raise NotFound(
            f"job {job} has no stage {target!r}", hint=did_you_mean(target, story.nodes) or f"its stages: {known}"
        )
    return found


def trial_ends(trials: Sequence[Trial], story: RunHistory, *, is_running: bool) -> list[TrialEnd]:
    """Return the state of each trial of a job; in a job that has ended, what did not begin will not."""
    shared = shared_nodes(trials)
    ends = [end_of(trial, story, shared) for trial in trials]
    left = {} if is_running else {"pending": "not run", "running": "stopped"}
    return [changed(end, state=left.get(end.state, end.state)) for end in ends]
