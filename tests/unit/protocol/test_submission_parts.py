"""A large submission goes in parts, each within the limits of one request, and is answered as one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.core.device import Backend
from stoker.core.errors import BadInput
from stoker.core.job import JobSpec, job_id
from stoker.core.machine import Requirements
from stoker.protocol import job_messages
from stoker.protocol.codec import from_json, to_json, values_in
from stoker.protocol.job_messages import (
    PREFIX,
    HostPolicy,
    JobSubmissionResult,
    Submission,
    SubmissionOutcome,
    SubmissionPart,
    SubmissionResponse,
    joined,
    parts_of,
)


def order(name: str, number: int = 0, **fields: Any) -> JobSpec:
    args = {"name": name, "number": number}
    id = job_id(recipe="toy", schema_version=1, args=args)
    return JobSpec(id=id, name=name, number=number, recipe="toy", args=args, identity=args, **fields)


def sent(part: SubmissionPart) -> Submission:
    return from_json(Submission, part.body)


def names(parts: list[SubmissionPart]) -> list[list[str]]:
    return [[job.name for job in sent(part).jobs] for part in parts]


@pytest.fixture(autouse=True)
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_messages, "MOST_JOBS_AT_ONCE", 2)


def test_a_small_submission_is_sent_as_it_is():
    submission = Submission(key="k", jobs=(order("a"), order("b")), source="m.toml")
    (part,) = parts_of(submission)
    assert part.body == to_json(submission)
    assert part.positions == (0, 1)


def test_parts_have_every_job_once_and_know_of_the_others():
    jobs = tuple(map(order, "abcde"))
    submission = Submission(key="k", jobs=jobs, source="m.toml", submitter="me", hosts=(HostPolicy(name="desk"),))
    parts = parts_of(submission)
    assert names(parts) == [["a", "b"], ["c", "d"], ["e"]]
    read = [sent(part) for part in parts]
    assert [one.key for one in read] == ["k.0", "k.2", "k.4"]
    assert {one.source for one in read} == {"m.toml"}
    assert [len(one.hosts) for one in read] == [1, 0, 0]
    for one in read:
        mine = {job.id[:PREFIX] for job in one.jobs}
        assert set(one.others) == {job.id[:PREFIX] for job in jobs} - mine


def test_jobs_come_behind_those_that_they_wait_for():
    jobs = (
        order("end", after=("sweep", "start/1")),
        order("sweep", 1, after=("start",)),
        order("sweep", 2),
        order("start", 1),
    )
    assert names(parts_of(Submission(jobs=jobs))) == [["start", "sweep"], ["sweep", "end"]]


def test_jobs_of_several_parts_that_wait_for_each_other_are_refused_before_any_is_sent():
    jobs = (order("a", after=("c",)), order("b"), order("c", after=("a",)))
    with pytest.raises(BadInput, match="depend on each other in a cycle"):
        parts_of(Submission(jobs=jobs))


@pytest.mark.parametrize("limit", ["MOST_SUBMISSION_BYTES", "MOST_SUBMISSION_VALUES"])
def test_parts_stay_below_the_other_limits_too(limit: str, monkeypatch: pytest.MonkeyPatch):
    jobs = tuple(order(f"j{at}") for at in range(5))
    monkeypatch.setattr(job_messages, "MOST_JOBS_AT_ONCE", 100)
    whole = to_json(Submission(jobs=jobs))
    size = len(whole) if limit.endswith("BYTES") else values_in(whole)
    monkeypatch.setattr(job_messages, limit, size * 3 // 4)
    assert names(parts_of(Submission(jobs=jobs))) == [["j0", "j1", "j2"], ["j3", "j4"]]
    monkeypatch.setattr(job_messages, limit, 1)
    # One job alone is the coordinator's to refuse.
    assert [len(part.positions) for part in parts_of(Submission(jobs=jobs))] == [1] * 5


def test_answers_become_one_in_the_order_of_the_submission():
    jobs = (order("b", after=("a",)), order("c"), order("a"))
    parts = parts_of(Submission(jobs=jobs, source="m.toml"))

    def answer(part: SubmissionPart, *vanished: str) -> SubmissionResponse:
        outcomes = tuple(
            JobSubmissionResult(id=job.id, name=job.name, number=0, outcome=SubmissionOutcome.NEW, state="pending")
            for job in sent(part).jobs
        )
        return SubmissionResponse(jobs=outcomes, counts={"new": len(outcomes)}, vanished=vanished)

    answers = [answer(parts[0], "old/1", "old/2"), answer(parts[1], "old/2 as 0123456789ab")]
    whole = joined(parts, answers)
    assert [job.name for job in whole.jobs] == ["b", "c", "a"]
    assert whole.counts == {"new": 3}
    # The other one is what a new job of the second part stands for.
    assert whole.vanished == ("old/2 as 0123456789ab",)
    assert json.loads(to_json(whole))["dry_run"] is False


def test_a_backend_is_sent_only_if_it_is_not_the_default() -> None:
    default, rocm = Requirements(), Requirements(backend=Backend.ROCM)
    jobs = order("a", requirements=default), order("b", requirements=rocm)
    first, second = json.loads(to_json(Submission(key="k", jobs=jobs)))["jobs"]
    assert ("requirements" in first, second["requirements"]) == (False, {"backend": "rocm"})
    assert "backend" not in job_messages.JOB_BODY.dump_python(jobs[0], mode="json")["requirements"]
    for job in jobs:
        again = job_messages.JOB_BODY.validate_json(job_messages.JOB_BODY.dump_json(job))
        assert again.requirements == job.requirements
    for wrong in (b'"vulkan"', b'"webgpu"'):
        with pytest.raises(ValueError, match=r"requirements\.backend"):
            from_json(Submission, to_json(Submission(key="k", jobs=jobs)).replace(b'"rocm"', wrong))
