"""Who may change a job, and what its events say about who did."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from stoker.coordinator.database.database_check import check_database
from stoker.coordinator.queue.commands import CancelJobs, PinJobs, RequeueJobs, SetPriority
from stoker.core.errors import Forbidden, InvalidInput
from stoker.core.frozen import changed
from stoker.core.jsontext import dumps, loads
from stoker.protocol.job_messages import HostPolicy, SubmissionOutcome
from stoker.protocol.lease_messages import Fail
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import finish, say, started

ANN: dict[str, Any] = {"submitter": "ann (ann@laptop)", "only_of": "ann"}
BEN: dict[str, Any] = {"submitter": "ben (ben@desk)", "only_of": "ben"}
OPERATOR: dict[str, Any] = {"submitter": "cat (cat@desk)", "only_of": None}


def authors(fleet: Driven, name: str = "") -> list[tuple[str, str]]:
    events = fleet.reader.events(0, 1000, name or None)
    return [(event["kind"], event.get("by", "")) for event in events]


def spec(fleet: Driven, name: str) -> dict[str, Any]:
    engine = engine_of(fleet)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT spec FROM jobs WHERE name = :name"), {"name": name}).scalar_one()
    engine.dispose()
    return dict(loads(found))


def engine_of(fleet: Driven) -> Engine:
    return create_engine(fleet.url.replace("postgresql://", "postgresql+psycopg://"))


def test_a_second_person_follows_the_first_ones_job_and_changes_nothing(fleet: Driven) -> None:
    fleet.submit(order("train", code={"train.py": "1"}), **ANN)
    before, events = spec(fleet, "train"), len(fleet.reader.events())
    other = order(
        "train", priority=9, requirements={"ram_bytes": 1}, code={"train.py": "2"}, secrets=("TOKEN",), after=()
    )
    shown = fleet.submit(other, dry_run=True, **BEN)
    (job,) = fleet.submit(other, **BEN).jobs
    assert shown.jobs == (job,)
    assert (job.outcome, job.state, job.changes) == (SubmissionOutcome.KNOWN, "pending", ())
    assert job.submitter == "ann (ann@laptop)"
    assert set(job.withheld) == {"priority", "requirements", "secrets", "code"}
    assert (spec(fleet, "train"), len(fleet.reader.events())) == (before, events)
    fleet.join("m1")
    (granted,) = fleet.claim()
    assert (granted.spec.secrets, granted.ram_bytes) == ((), 1 << 30)


def test_a_second_person_gets_the_job_under_the_name_that_it_has(fleet: Driven) -> None:
    first = order("train")
    fleet.submit(first, source="m.toml", **ANN)
    renamed = changed(first, name="mine")
    (job,) = fleet.submit(renamed, source="m.toml", **BEN).jobs
    assert (job.outcome, job.known_as, job.shown) == (SubmissionOutcome.KNOWN, "train", "train")
    assert [one.name for one in fleet.reader.page().jobs] == ["train"]


def test_a_second_persons_code_does_not_start_a_failed_or_completed_job_again(fleet: Driven) -> None:
    failed = started(fleet, "failed", code={"train.py": "1"})
    say(fleet, failed, Fail, cause="user")
    fleet.ask(finish(started(fleet, "completed", code={"train.py": "1"})))
    jobs = [order(name, code={"train.py": "2"}) for name in ("failed", "completed")]
    answer = fleet.submit(*jobs, on_changed_code="rerun", **BEN)
    assert [(one.outcome, one.state) for one in answer.jobs] == [
        (SubmissionOutcome.KNOWN, "failed"),
        (SubmissionOutcome.KNOWN, "completed"),
    ]
    assert ["code" in one.withheld for one in answer.jobs] == [True, True]
    answer = fleet.submit(*jobs, on_changed_code="rerun", **OPERATOR)
    assert [one.outcome for one in answer.jobs] == [SubmissionOutcome.REQUEUED, SubmissionOutcome.REQUEUED]
    assert ("job_requeued", "cat (cat@desk)") in authors(fleet, "failed")


def test_what_a_job_comes_after_is_its_submitters_to_say(fleet: Driven) -> None:
    fleet.submit(order("first"), order("second"), **ANN)
    (job,) = fleet.submit(order("second", after=("first",)), **BEN).jobs
    assert job.withheld == ("after",)
    fleet.join("m1")
    assert sorted(one.spec.name for one in fleet.claim(most=2)) == ["first", "second"]


@pytest.mark.parametrize("who", [ANN, OPERATOR], ids=["its submitter", "an operator"])
def test_its_submitter_and_operators_change_a_job_and_are_recorded(fleet: Driven, who: dict[str, Any]) -> None:
    fleet.submit(order("train"), **ANN)
    (job,) = fleet.submit(order("train", priority=9), **who).jobs
    assert (job.outcome, job.changes, job.submitter) == (SubmissionOutcome.CHANGED, ("priority",), "")
    assert authors(fleet, "train") == [("job_submitted", "ann (ann@laptop)"), ("job_changed", who["submitter"])]


def test_an_operator_who_changes_a_job_does_not_take_it_from_its_submitter(fleet: Driven) -> None:
    fleet.submit(order("train"), **ANN)
    fleet.submit(order("train", priority=9), **OPERATOR)
    (job,) = fleet.submit(order("train", priority=3), **ANN).jobs
    assert job.outcome is SubmissionOutcome.CHANGED


@pytest.mark.parametrize("claimed", ["ann", "ann (ann@laptop)", "ann@laptop", ""])
def test_only_a_verified_name_owns_a_job(fleet: Driven, claimed: str) -> None:
    """The operator's own program may call itself anything; no token of that name gets the job by it."""
    from stoker.coordinator.http.access import recorded
    from stoker.core.leases import Principal, Role

    fleet.submit(order("train"), submitter=recorded(Principal(name="", role=Role.ADMIN), claimed))
    (job,) = fleet.submit(order("train", priority=9), **ANN).jobs
    assert (job.outcome, job.withheld) == (SubmissionOutcome.KNOWN, ("priority",))


def test_cancel_requeue_and_priority_are_refused_for_somebody_elses_job(fleet: Driven) -> None:
    ids = {job.name: job.id for job in fleet.submit(order("anns"), **ANN).jobs}
    ids |= {job.name: job.id for job in fleet.submit(order("bens"), **BEN).jobs}
    both = (ids["bens"], ids["anns"])
    events = len(fleet.reader.events())
    for asked in (
        CancelJobs(jobs=both, by="ben", only_of="ben"),
        RequeueJobs(jobs=both, by="ben", only_of="ben"),
        SetPriority(jobs=both, priority=5, by="ben", only_of="ben"),
    ):
        with pytest.raises(Forbidden, match="anns was submitted by ann"):
            fleet.ask(asked)
    assert len(fleet.reader.events()) == events
    own = (ids["bens"],)
    fleet.ask(SetPriority(jobs=own, priority=5, by="ben", only_of="ben"))
    fleet.ask(CancelJobs(jobs=own, by="ben", only_of="ben"))
    fleet.ask(RequeueJobs(jobs=own, by="ben", only_of="ben"))
    fleet.ask(CancelJobs(jobs=(ids["anns"],), by="cat"))
    assert authors(fleet, "bens")[1:] == [("job_changed", "ben"), ("job_cancelled", "ben"), ("job_requeued", "ben")]
    assert authors(fleet, "anns")[1:] == [("job_cancelled", "cat")]


def test_every_other_change_of_a_job_or_a_policy_names_who_made_it(fleet: Driven) -> None:
    fleet.submit(hosts=(HostPolicy(name="desk", priority=3),), **OPERATOR)
    grant = started(fleet, "done")
    fleet.ask(finish(grant))
    fleet.ask(PinJobs(jobs=(grant.job,), by="cat"))
    told = authors(fleet)
    assert ("policy_reloaded", "cat (cat@desk)") in told
    assert ("job_changed", "cat") in told


FORGED = [
    {"args": {"name": "train", "number": 1}},
    {"args": {"name": "train", "number": 0.0}},
    {"args": {"name": "train", "number": False}},
    {"args": {"name": "train"}},
    {"args": {"name": "train", "number": [0]}},
    {"inputs": ({"where": "env:LD_PRELOAD", "kind": "tree", "tree": "e" * 64},)},
    {"inputs": ({"where": "arg:name", "kind": "tree", "tree": "e" * 64},)},
]


@pytest.mark.parametrize("forged", FORGED, ids=str)
def test_arguments_that_the_id_is_not_made_from_are_refused(fleet: Driven, forged: dict[str, Any]) -> None:
    for who in (ANN, BEN, OPERATOR):
        with pytest.raises(InvalidInput, match="1 of 1 jobs") as caught:
            fleet.submit(order("train", **forged), **who)
        assert "the id" in str(caught.value.faults[0])
    assert fleet.reader.page().jobs == ()


def test_an_edited_row_is_found_by_the_check_of_the_database(queue_url: str) -> None:
    fleet = Driven(queue_url)
    fleet.submit(order("train"), **ANN)
    edited = spec(fleet, "train") | {"args": {"name": "evil", "number": 0}}
    engine = engine_of(fleet)
    with engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET spec = :spec"), {"spec": dumps(edited)})
    engine.dispose()
    broken = list(check_database(fleet.database, has_object=fleet.objects.get))
    fleet.close()
    assert any("argument name differs from the one in the id" in one.message for one in broken)
