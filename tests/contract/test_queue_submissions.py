"""Submissions: taken together or not at all, the same again changes nothing, and who comes after whom."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text

from stoker.coordinator.http.reload import manifest_changes
from stoker.coordinator.queue.commands import Sweep
from stoker.core.errors import Conflict, InvalidInput
from stoker.core.frozen import changed
from stoker.core.job import JobSpec, job_id
from stoker.protocol.job_messages import SubmissionOutcome, SubmissionResponse
from stoker.protocol.lease_messages import Fail, Release
from stoker.views.fleet_lines import origin_lines
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import finish, kinds, say, started, state


def outcomes(answer: SubmissionResponse) -> list[str]:
    return [one.outcome.value for one in answer.jobs]


def test_a_submission_with_one_bad_job_changes_nothing(fleet: Driven) -> None:
    with pytest.raises(InvalidInput, match="1 of 2"):
        fleet.submit(order("good"), order("bad", seed=7))
    assert fleet.reader.page().jobs == ()


def test_the_same_submission_again_changes_nothing(fleet: Driven) -> None:
    jobs = [order("sweep", number) for number in range(1, 4)]
    assert outcomes(fleet.submit(*jobs)) == ["new"] * 3
    told = len(fleet.reader.events())
    assert outcomes(fleet.submit(*jobs)) == ["known"] * 3
    assert len(fleet.reader.events()) == told


def test_the_same_key_gives_the_same_answer_and_stands_for_nothing_else(fleet: Driven) -> None:
    first = fleet.submit(order("one"), key="monday")
    assert fleet.submit(order("one"), key="monday") == first
    with pytest.raises(Conflict):
        fleet.submit(order("two"), key="monday")


def test_a_dry_run_says_what_would_change_and_changes_nothing(fleet: Driven) -> None:
    fleet.submit(order("one"))
    answer = fleet.submit(order("one", priority=3), order("two"), dry_run=True, key="dry")
    assert outcomes(answer) == ["changed", "new"]
    assert answer.jobs[0].changes == ("priority",)
    assert [job.name for job in fleet.reader.page().jobs] == ["one"]
    assert fleet.submit(order("three"), key="dry").counts == {"new": 1}


def test_another_priority_or_requirement_changes_a_job_and_keeps_its_state(fleet: Driven) -> None:
    grant = started(fleet, "runs")
    fleet.submit(order("waits"))
    answer = fleet.submit(order("runs", priority=2), order("waits", requirements={"ram_bytes": 1}))
    assert [(one.outcome, one.state, one.changes) for one in answer.jobs] == [
        (SubmissionOutcome.CHANGED, "running", ("priority",)),
        (SubmissionOutcome.CHANGED, "pending", ("requirements",)),
    ]
    fleet.ask(finish(grant))
    assert [one.ram_bytes for one in fleet.claim()] == [1]


def test_changed_code_requeues_what_failed_and_keeps_what_completed(fleet: Driven) -> None:
    failed = started(fleet, "failed", code={"train.py": "1"})
    say(fleet, failed, Fail, cause="user")
    completed = started(fleet, "completed", code={"train.py": "1"})
    fleet.ask(finish(completed))
    jobs = [order(name, code={"train.py": "2"}) for name in ("failed", "completed")]
    assert outcomes(fleet.submit(*jobs)) == ["requeued", "kept"]
    assert outcomes(fleet.submit(*jobs)) == ["known", "kept"]
    assert (state(fleet, "failed"), state(fleet, "completed")) == ("pending", "completed")
    assert outcomes(fleet.submit(*jobs, on_changed_code="rerun")) == ["known", "requeued"]
    epochs = {grant.spec.name: grant.epoch for grant in fleet.claim(most=2)}
    assert epochs == {"failed": 3, "completed": 3}


def test_a_job_whose_data_or_values_are_others_has_changed_and_the_one_before_stays(fleet: Driven) -> None:
    def train(data: str) -> JobSpec:
        trees = {"DATA": data * 64, "MORE": "2" * 64}
        identity = {"lr": 1, "(data)": {name: f"tree:{tree}" for name, tree in trees.items()}}
        id = job_id(recipe="command", schema_version=1, args=identity)
        inputs = [{"where": f"env:{name}", "kind": "tree", "tree": tree} for name, tree in trees.items()]
        return order("train", recipe="command", identity=identity, id=id, args={"lr": 1}, inputs=inputs)

    (old,) = fleet.submit(train("1"), source="m.toml").jobs
    shown = fleet.submit(train("3"), source="m.toml", dry_run=True)
    answer = fleet.submit(train("3"), source="m.toml")
    (job,) = answer.jobs
    assert shown.jobs == answer.jobs
    assert (job.outcome, job.shown_outcome) == (SubmissionOutcome.NEW, SubmissionOutcome.CHANGED)
    assert (job.instead_of, job.changes, answer.vanished) == (old.id, ("data.DATA",), ())
    assert sorted(one.id for one in fleet.reader.page().jobs) == sorted((old.id, job.id))
    again = fleet.submit(train("3"), source="m.toml")
    assert (outcomes(again), again.vanished) == (["known"], (f"train as {old.id[:12]}",))
    _, lines = manifest_changes(answer)
    assert lines == [f"train: changed (data.DATA); the one before, {old.id[:12]}, stays until cancelled"]


def test_what_was_ordered_is_told_before_anything_runs(fleet: Driven) -> None:
    data = {"where": "env:DATA", "kind": "tree", "tree": "d" * 64, "size_bytes": 7, "files": 1}
    uv = {"kind": "uv.lock", "path": "uv.lock", "digest": "e" * 64}
    identity = {"argv": ["true"], "(data)": {"DATA": "tree:" + "d" * 64}}
    fleet.submit(
        order(
            "train",
            recipe="command",
            id=job_id(recipe="command", schema_version=1, args=identity),
            identity=identity,
            args={"argv": ["true"]},
            code_tree="c" * 64,
            commit="f" * 40,
            inputs=(data,),
            environment=(uv,),
        )
    )
    story = fleet.reader.story("train")
    assert (story.spec.code_tree, story.spec.commit) == ("c" * 64, "f" * 40)
    assert [(one.where, one.tree) for one in story.spec.inputs] == [("env:DATA", "d" * 64)]
    assert [(one.path, one.digest) for one in story.spec.environment] == [("uv.lock", "e" * 64)]
    assert origin_lines(story) == [
        f"code    tree {'c' * 12}  commit {'f' * 12}",
        f"data    DATA tree {'d' * 12}",
        f"env     uv.lock {'e' * 12}",
    ]


def test_pending_jobs_that_their_source_no_longer_names_are_told_and_stay(fleet: Driven) -> None:
    fleet.submit(order("kept"), order("gone", 1), source="m.toml")
    fleet.submit(order("other"), source="other.toml")
    answer = fleet.submit(order("kept"), source="m.toml")
    assert answer.vanished == ("gone/1",)
    assert state(fleet, "gone/1") == "pending"


def test_two_orders_for_one_job_are_one_job(fleet: Driven) -> None:
    twin = changed(order("one"), name="two")
    answer = fleet.submit(order("one"), twin)
    assert outcomes(answer) == ["new", "known"]
    assert answer.jobs[1].changes == ("the same job as one",)
    assert len(fleet.reader.page().jobs) == 1


def test_a_job_waits_for_those_it_comes_after(fleet: Driven) -> None:
    fleet.submit(order("final", after=("sweep", "one")), order("sweep", 1), order("sweep", 2), order("one"))
    fleet.join("m1")
    grants = fleet.claim(most=4)
    assert sorted(grant.spec.name for grant in grants) == ["one", "sweep", "sweep"]
    for grant in grants[:2]:
        fleet.ask(finish(grant))
    assert fleet.claim() == ()
    fleet.ask(finish(grants[2]))
    assert kinds(fleet, "final")[-1] == "job_ready"
    assert [grant.spec.name for grant in fleet.claim()] == ["final"]


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_who_comes_after_a_job_that_did_not_complete_waits_until_it_is_requeued(fleet: Driven, how: str) -> None:
    fleet.submit(order("final", after=("first",)), order("first"))
    fleet.join("m1")
    (grant,) = fleet.claim(most=2)
    if how == "failed":
        say(fleet, grant, Fail, cause="user")
    else:
        say(fleet, grant, Release)
        fleet.cancel(grant.job)
    assert state(fleet, "first") == how
    assert fleet.claim() == ()
    assert fleet.reader.story("final").after == ("first",)
    fleet.requeue(grant.job)
    (again,) = fleet.claim()
    fleet.ask(finish(again))
    assert [one.spec.name for one in fleet.claim()] == ["final"]


def test_who_comes_after_a_job_that_is_run_again_waits_again(fleet: Driven) -> None:
    grant = started(fleet, "first")
    fleet.ask(finish(grant))
    fleet.submit(order("final", after=("first",)))
    fleet.requeue(grant.job)
    assert [one.spec.name for one in fleet.claim(most=2)] == ["first"]


def test_a_job_may_come_after_one_that_completed_long_ago(fleet: Driven) -> None:
    fleet.ask(finish(started(fleet, "first")))
    fleet.submit(order("final", after=("first",)))
    assert [one.spec.name for one in fleet.claim()] == ["final"]


def test_another_order_of_jobs_is_a_change(fleet: Driven) -> None:
    fleet.submit(order("one"), order("two", after=("one",)), order("three"))
    assert fleet.submit(order("two", after=("three",))).jobs[0].changes == ("after",)
    fleet.join("m1")
    grants = {grant.spec.name: grant for grant in fleet.claim(most=3)}
    assert sorted(grants) == ["one", "three"]
    fleet.ask(finish(grants["one"]))
    assert fleet.claim() == ()
    fleet.ask(finish(grants["three"]))
    assert [one.spec.name for one in fleet.claim()] == ["two"]


def test_a_name_that_nothing_goes_by_is_refused(fleet: Driven) -> None:
    with pytest.raises(InvalidInput, match="after"):
        fleet.submit(order("one"), order("two", after=("onee",)))
    assert fleet.reader.page().jobs == ()


def test_many_jobs_are_taken_and_granted_in_their_order(fleet: Driven) -> None:
    fleet.submit(*(order("sweep", number, requirements={"ram_bytes": 0}) for number in range(1, 701)))
    assert fleet.reader.counts()["pending"] == 700
    fleet.join("m1", slots=1000)
    numbers = [grant.spec.number for _ in range(4) for grant in fleet.claim(most=200)]
    assert numbers == list(range(1, 701))


def test_jobs_that_would_wait_for_themselves_through_known_ones_are_refused(fleet: Driven) -> None:
    fleet.submit(order("one"), order("two", after=("one",)), order("three", after=("two",)))
    with pytest.raises(InvalidInput) as refused:
        fleet.submit(order("one", after=("four",)), order("four", after=("three",)))
    (fault,) = refused.value.faults
    *names, again = fault.message.removeprefix("waits for itself: ").split(" → ")
    at = names.index("one")
    assert again == names[0]
    assert names[at:] + names[:at] == ["one", "four", "three", "two"]
    assert fleet.reader.story("one").after == ()
    assert fleet.submit(order("one", after=("four",)), order("four")).jobs[0].changes == ("after",)


def test_a_known_job_under_another_name_keeps_the_name_it_has(fleet: Driven) -> None:
    fleet.submit(order("one"), source="/here/m.toml")
    again = changed(order("one"), name="two", number=3, label="lr=1", point={"lr": 1})
    for source, dry_run in (("", True), ("", False), ("/there/m.toml", False), ("/there/m.toml", False)):
        (job,) = fleet.submit(again, source=source, dry_run=dry_run).jobs
        assert (job.outcome, job.known_as, job.shown, job.changes) == (SubmissionOutcome.KNOWN, "one", "one", ())
    (job,) = fleet.submit(changed(again, priority=4), source="/there/m.toml").jobs
    assert (job.outcome, job.shown, job.changes) == (SubmissionOutcome.CHANGED, "one", ("priority",))
    (view,) = fleet.reader.page().jobs
    assert (view.name, view.label, view.priority) == ("one", "", 4)
    # Not even now does it belong to the other manifest.
    assert fleet.submit(again, source="/there/m.toml").jobs[0].shown == "one"


def test_the_manifest_that_brought_a_job_gives_it_another_name(fleet: Driven) -> None:
    fleet.submit(order("one"), source="/here/m.toml")
    again = changed(order("one"), name="two")
    for dry_run in (True, False):
        (job,) = fleet.submit(again, source="/here/m.toml", dry_run=dry_run).jobs
        assert (job.outcome, job.known_as, job.shown, job.changes) == (
            SubmissionOutcome.CHANGED,
            "one",
            "two",
            ("name",),
        )
    assert fleet.submit(again, source="/here/m.toml").jobs[0].known_as == ""
    assert [job.name for job in fleet.reader.page().jobs] == ["two"]


def test_a_job_that_runs_again_with_other_code_is_otherwise_as_it_is_asked_for_now(fleet: Driven) -> None:
    source = "/here/m.toml"
    fleet.submit(order("one", code={"train.py": "a" * 64}), order("two", priority=3), source=source)
    fleet.join("m1")
    (two, one) = fleet.claim(most=2)
    fleet.fail(one)
    fleet.finish(two)
    fleet.submit(order("waits", priority=5))
    again = changed(order("one", code={"train.py": "b" * 64}, priority=9), name="anew")
    (job,) = fleet.submit(again, source=source).jobs
    assert (job.outcome, job.shown) == (SubmissionOutcome.REQUEUED, "anew")
    assert [grant.spec.name for grant in fleet.claim(most=2)] == ["anew", "waits"]
    assert fleet.reader.story("anew").job.priority == 9


def test_who_comes_after_a_job_under_another_name_comes_after_it(fleet: Driven) -> None:
    fleet.submit(order("one"))
    fleet.submit(changed(order("one"), name="two"), order("last-of-all", after=("two",)))
    assert fleet.reader.story("last-of-all").after == ("one",)


def test_answers_under_keys_are_forgotten_after_a_week(fleet: Driven) -> None:
    def kept() -> int:
        engine = create_engine(fleet.url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.connect() as connection:
            count = connection.execute(text("SELECT count(*) FROM submissions")).scalar_one()
        engine.dispose()
        return int(count)

    fleet.submit(order("one"), key="first-key")
    fleet.ask(Sweep())
    fleet.clock.advance(6 * 24 * 3600.0)
    fleet.submit(order("two"), key="second-key")
    fleet.ask(Sweep())
    assert kept() == 2
    fleet.clock.advance(2 * 24 * 3600.0)
    fleet.ask(Sweep())
    assert kept() == 1
