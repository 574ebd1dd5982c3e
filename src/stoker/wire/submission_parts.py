"""A large submission in parts: each is one request that a coordinator takes, and their answers are one answer.

A part is accepted as a whole or not at all. Parts are sent one after the other, those first that others come after;
what was accepted before one is refused stays, and the same submission again submits the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from stoker.model.errors import BadInput
from stoker.model.frozen import frozen
from stoker.wire.codec import to_json, values_in
from stoker.wire.orders import (
    MOST_JOBS_AT_ONCE,
    MOST_SUBMISSION_BYTES,
    MOST_SUBMISSION_VALUES,
    PREFIX,
    JobOrder,
    OrderOutcome,
    Submission,
    Submitted,
)


@frozen
class Part:
    """Some jobs of a submission, as they are sent."""

    positions: tuple[int, ...]
    """Where they stand in the submission."""
    body: bytes


def parts_of(submission: Submission) -> list[Part]:
    """Return a submission as it is sent: in one part, if it is within the limits of one request.

    Raises `BadInput` if jobs of several parts wait for each other in a circle.
    """
    total = len(submission.jobs)
    if total <= MOST_JOBS_AT_ONCE:
        body = to_json(submission)
        if total <= 1 or _fits(body):
            return [Part(positions=tuple(range(total)), body=body)]
    return list(_split(submission, _in_order(submission.jobs), MOST_JOBS_AT_ONCE))


def joined(parts: Sequence[Part], answers: Sequence[Submitted]) -> Submitted:
    """Return the answers to all parts as one, jobs in the order of the submission."""
    if len(parts) == 1:
        return answers[0]
    jobs: dict[int, OrderOutcome] = {}
    counts: Counter[str] = Counter()
    for part, answer in zip(parts, answers, strict=True):
        jobs.update(zip(part.positions, answer.jobs, strict=True))
        counts.update(answer.counts)
    return Submitted(
        jobs=tuple(jobs[at] for at in sorted(jobs)),
        counts=dict(counts),
        vanished=_vanished(answers),
        dry_run=answers[0].dry_run,
    )


def _split(submission: Submission, positions: Sequence[int], most_jobs: int) -> Iterator[Part]:
    for start in range(0, len(positions), most_jobs):
        some = tuple(positions[start : start + most_jobs])
        body = to_json(_part(submission, some))
        if len(some) == 1 or _fits(body):
            yield Part(positions=some, body=body)
        else:
            yield from _split(submission, some, (len(some) + 1) // 2)


def _part(submission: Submission, positions: tuple[int, ...]) -> Submission:
    here = set(positions)
    others = tuple(job.id[:PREFIX] for at, job in enumerate(submission.jobs) if at not in here)
    key = f"{submission.key}.{positions[0]}" if submission.key else ""
    # What the manifest says about machines is said once.
    hosts = submission.hosts if 0 in here else ()
    jobs = tuple(submission.jobs[at] for at in positions)
    return submission.model_copy(update={"key": key, "jobs": jobs, "hosts": hosts, "others": others})


def _fits(body: bytes) -> bool:
    return len(body) <= MOST_SUBMISSION_BYTES and values_in(body) <= MOST_SUBMISSION_VALUES


def _in_order(jobs: Sequence[JobOrder]) -> list[int]:
    """Return the positions of jobs, each behind those that it comes after, else as they stand."""
    if not any(job.after for job in jobs):
        return list(range(len(jobs)))
    by_name: dict[str, list[int]] = {}
    after: dict[str, set[str]] = {}
    for at, job in enumerate(jobs):
        by_name.setdefault(job.name, []).append(at)
        after.setdefault(job.name, set()).update(word.partition("/")[0] for word in job.after)
    # Points of one sweep may come after each other.
    graph = {name: [word for word in words if word != name and word in by_name] for name, words in after.items()}
    try:
        return [at for name in TopologicalSorter(graph).static_order() for at in by_name[name]]
    except CycleError as error:
        circle = " → ".join(error.args[1][::-1])
        raise BadInput(f"jobs would wait for themselves: {circle}", hint="nothing was submitted") from None


def _vanished(answers: Sequence[Submitted]) -> tuple[str, ...]:
    """Return what no part found: `name`, or `name as id` where a part calls another job so."""
    texts: dict[str, str] = {}
    found: Counter[str] = Counter()
    for text in (text for answer in answers for text in answer.vanished):
        name = text.partition(" ")[0]
        found[name] += 1
        texts[name] = max(texts.get(name, ""), text, key=len)
    return tuple(texts[name] for name, count in found.items() if count >= len(answers))
