"""What a job's folder says, gathered for listing, showing and following."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from stoker.core.errors import NotFound
from stoker.core.frozen import changed
from stoker.core.text import one_line
from stoker.engine.journal import read_status
from stoker.jobs.job_folder import JobFolder, job_folders
from stoker.jobs.job_history import NodeHistory, RunHistory, tell
from stoker.jobs.trials import Trial, TrialEnd, end_of, is_sweep, shared_nodes
from stoker.views.text_tables import ago, span, table

_LONGEST_WHY = 200


def job_facts(folder: JobFolder) -> dict[str, Any]:
    """Return a job as plain data: what was wanted and how it stands."""
    spec, end = folder.spec(), folder.ended()
    state, why = folder.state()
    error = end.error if end else None
    return {
        "name": spec.name,
        "attempt": spec.attempt,
        "job_id": spec.job_id,
        "recipe": spec.recipe,
        "state": str(state),
        "why": why or (str(error.get("message", "")) if error else ""),
        "started_s": spec.started_s,
        "ended_s": end.ended_s if end else None,
        "elapsed_s": end.elapsed_s if end else None,
        "hits": end.hits if end else None,
        "ran": end.ran if end else None,
        "failed": end.failed if end else None,
        "exit_code": end.exit_code if end else None,
        "out": end.out if end else None,
        "fleet": spec.options.get("fleet"),
    }


def newest_jobs(runs: str, limit: int) -> list[dict[str, Any]]:
    """Return the newest jobs; a folder that can't be read is listed as that."""
    return [facts_or_why_not(folder) for folder in itertools.islice(job_folders(runs), limit)]


def job_table(jobs: list[dict[str, Any]], *, now_s: float, columns: int) -> list[str]:
    """Lay jobs out, one a line."""
    rows = [
        [
            job["name"],
            job["state"],
            ago(job["started_s"], now_s) if job["started_s"] else "",
            span(job["elapsed_s"]),
            _counts(job),
            job["attempt"],
            job["recipe"] + (f"  {one_line(job['why'], _LONGEST_WHY)}" if job["why"] else ""),
        ]
        for job in jobs
    ]
    return table(rows, header=("job", "state", "started", "took", "known+ran", "id", "recipe"), columns=columns)


def job_story(folder: JobFolder) -> RunHistory:
    """Read what the journal says of a job; where its beginning is lost, the end still knows what has a result."""
    story, end = tell(read_status(folder.status_path)), folder.ended()
    for name, key in end.keys.items() if end is not None else ():
        node = story.nodes.setdefault(name, NodeHistory(node=name, ending="ran"))
        node.key = node.key or key
    return story


def split_target(target: str) -> tuple[str, str]:
    """Take `NAME/STAGE` apart; the stage is empty if none was given."""
    name, _, stage = target.partition("/")
    return name, stage


def nodes_named(story: RunHistory, target: str, job: str, trials: Sequence[Trial] = ()) -> list[NodeHistory]:
    """Return the nodes that a name means: a node, a fan-out's instances, all of a stage, or those of one trial.

    `sweep/3` and `sweep/lr=0.1` are a trial, `sweep/3/train` one of its stages.
    """
    whose, _, inner = target.partition("/")
    chosen = next((one for one in trials if is_sweep(trials) and whose in (str(one.number), one.label)), None)
    if chosen is None:
        found = [node for node in story.nodes.values() if _is_meant(node, (target,))]
    else:
        own = [node for node in story.nodes.values() if node.node.partition("[")[0] in chosen.nodes.nodes]
        found = [node for node in own if not inner or _is_meant(node, (inner, f"{chosen.number}.{inner}"))]
        if not own:
            raise NotFound(f"trial {chosen.number} of {job} ({chosen.label}) has not run", hint=f"stoker explain {job}")
    if not found:
        from stoker.core.text import did_you_mean

        known = ", ".join(list(story.nodes)[:12]) or "none yet"
        raise NotFound(
            f"job {job} has no stage {target!r}", hint=did_you_mean(target, story.nodes) or f"its stages: {known}"
        )
    return found


def trial_ends(trials: Sequence[Trial], story: RunHistory, *, is_running: bool) -> list[TrialEnd]:
    """Return how the trials of a job stand; of a job that is over, what did not begin will not."""
    shared = shared_nodes(trials)
    ends = [end_of(trial, story, shared) for trial in trials]
    left = {} if is_running else {"pending": "not run", "running": "stopped"}
    return [changed(end, state=left.get(end.state, end.state)) for end in ends]


def _is_meant(node: NodeHistory, names: tuple[str, ...]) -> bool:
    return any(name in (node.node, node.stage) or node.node.startswith(f"{name}[") for name in names)


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


def _counts(job: dict[str, Any]) -> str:
    return "" if job["hits"] is None else f"{job['hits']}+{job['ran']}"
