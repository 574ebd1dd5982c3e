"""Two people with a token each, the role submit: what one may do to the other's jobs, over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import Forbidden, InvalidInput
from stoker.core.frozen import changed
from stoker.core.job import JobSpec
from stoker.core.leases import Role
from stoker.protocol.client import FleetClient
from stoker.protocol.enrolment_messages import TokenRequest
from stoker.protocol.job_messages import JobSubmissionResult, Submission, SubmissionOutcome
from stoker.protocol.view_messages import ChangeRequest, PriorityRequest
from tests.contract.queue_driving import order
from tests.servers.coordinator import Fleet, change_job, coordinator
from tests.servers.unix_http import UnixConnection


@pytest.fixture
def fleet(queue_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with coordinator(queue_url, tmp_path) as fleet:
        yield fleet


def person(fleet: Fleet, name: str, role: Role = Role.SUBMIT) -> FleetClient:
    return fleet.client(token=fleet.client().make_token(TokenRequest(name=name, role=role)).token)


def submit(client: FleetClient, job: JobSpec, claimed: str = "") -> JobSubmissionResult:
    (outcome,) = client.submit(Submission(jobs=(job,), submitter=claimed)).jobs
    return outcome


def authors(fleet: Fleet) -> list[tuple[str, Any]]:
    return [(event["kind"], event.get("by")) for event in fleet.queue.reader.events(0, 100, "train")]


def test_a_submitter_can_not_rewrite_anothers_pending_job(fleet: Fleet) -> None:
    ann, ben = person(fleet, "ann"), person(fleet, "ben")
    assert submit(ann, order("train"), "ann@laptop").outcome is SubmissionOutcome.NEW
    before = fleet.client().job("train")
    # The same identity with other arguments: what the id is not made from is refused, whoever sends it.
    with pytest.raises(InvalidInput, match="jobs are invalid"):
        submit(ben, order("train", args={"name": "evil", "number": 0}))
    with pytest.raises(InvalidInput, match="jobs are invalid"):
        submit(ben, changed(order("train"), id="0" * 64))
    # What is no part of the identity is the submitter's to change. Calling oneself ann helps nobody.
    forged = order("train", priority=9, secrets=("API_KEY",), code_tree="e" * 64)
    followed = submit(ben, forged, "ann (ann@laptop)")
    assert (followed.outcome, followed.submitter) == (SubmissionOutcome.KNOWN, "ann (ann@laptop)")
    assert {"priority", "secrets", "code_tree"} <= set(followed.withheld)
    assert fleet.client().job("train") == before
    assert authors(fleet) == [("job_submitted", "ann (ann@laptop)")]


def test_people_cancel_and_requeue_their_own_jobs_and_operators_all(fleet: Fleet) -> None:
    ann, ben, cat = person(fleet, "ann"), person(fleet, "ben"), person(fleet, "cat", Role.OPERATE)
    reader = person(fleet, "dan", Role.READ)
    submit(ann, order("train"))
    ids = [fleet.client().job("train").job.id]
    for client in (ben, reader):
        verbs: tuple[Callable[[], object], ...] = (
            partial(change_job, client, "train", "cancel", ChangeRequest(by="ann")),
            partial(change_job, client, "train", "requeue", ChangeRequest(by="ann")),
            partial(change_job, client, "train", "priority", PriorityRequest(priority=5)),
            partial(client.cancel_jobs, ids),
            partial(client.requeue_jobs, ids),
            partial(client.set_priority_of_jobs, ids, 5),
        )
        for verb in verbs:
            with pytest.raises(Forbidden):
                verb()
    change_job(ann, "train", "cancel", ChangeRequest(by="ann@laptop"))
    change_job(cat, "train", "requeue")
    assert authors(fleet) == [("job_submitted", "ann"), ("job_cancelled", "ann (ann@laptop)"), ("job_requeued", "cat")]


def test_what_the_local_user_changes_without_saying_who_it_is_has_an_author(fleet: Fleet) -> None:
    """The kernel has said who is at the other end of the socket: no record of a change is anonymous."""
    asked = (
        ("/v1/jobs/train/priority", '{"priority": 5}'),
        ("/v1/jobs/train/cancel", ""),
        ("/v1/jobs/train/requeue", ""),
    )
    submit(fleet.client(), order("train"))
    for path, body in asked:
        connection = UnixConnection(fleet.socket)
        connection.request("POST", path, body=body or None, headers={"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        connection.close()
    assert [by for _, by in authors(fleet)] == ["local user"] * 4


def test_a_token_that_the_local_user_made_says_so_in_the_list_and_in_the_event(fleet: Fleet) -> None:
    made = fleet.client().make_token(TokenRequest(name="zed", role=Role.READ))
    assert made.view.by == "local user"
    assert [one.by for one in fleet.client().tokens()] == ["local user"]
    told = [event.get("by") for event in fleet.queue.reader.events(0, 100) if event["kind"] == "token_made"]
    assert told == ["local user"]
