"""Every job that ends leaves a receipt: of what it made, from what, or that it failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.core.digests import digest_bytes
from stoker.core.errors import Cancelled, NotFound
from stoker.core.events import Event, Kinds
from stoker.crossval.receipt_check import ReceiptRules, check_receipt_bytes
from stoker.host.identity import Liveness, mine
from stoker.jobs.execution import abandon
from stoker.jobs.job_folder import JobEnd, JobFolder
from stoker.jobs.job_receipt import (
    MOST_FILES,
    RECEIPT,
    JobReceipts,
    named_digest,
    read_job_receipt,
    receipt_digest,
    trial_of,
)
from stoker.jobs.request import JobRequest
from stoker.store.statements import Statement, parse_statement
from tests.unit.jobs.conftest import Office

RULES = ReceiptRules(now_s=0.0)


def receipt(folder: JobFolder, trial: int | None = None) -> Statement:
    data = read_job_receipt(folder, trial)
    found = check_receipt_bytes(data, folder.path, RULES)
    assert found.differs == ()
    return parse_statement(data, RECEIPT)


def names(statement: Statement) -> list[str]:
    return [one["name"] for one in statement.predicate["buildDefinition"]["resolvedDependencies"]]


def test_a_receipt_names_what_was_made_from_what_and_where(office: Office):
    done = office.run("test/sum", values="[1,2]", plus="4", name="mine")
    found = receipt(done.folder)
    sha256 = digest_bytes((office.folder / "stoker-out" / "mine" / "value.json").read_bytes())
    subjects = {one.name: dict(one.digest) for one in found.subject}
    assert subjects["value.json"] == {"sha256": sha256}
    assert subjects["."] == {"stokerTree": done.result.nodes["add"].products[0].ref.digest}  # type: ignore[union-attr]
    assert "number/value.json" in subjects
    predicate = found.predicate
    assert (predicate["stoker_state"], predicate["stoker_out"]) == ("completed", str(office.folder / "stoker-out/mine"))
    build, run = predicate["buildDefinition"], predicate["runDetails"]
    assert build["externalParameters"]["args"]["values"] == [1, 2]
    assert build["internalParameters"]["job"] == done.folder.spec().id
    assert {"code: test/add", "code: test/number"} <= set(names(found))
    assert run["builder"]["version"]["stoker"] == "1.2.3"
    assert run["metadata"]["invocationId"] == done.folder.attempt
    assert predicate["stoker_hardware"]["cpus"]
    assert [one["ending"] for one in predicate["stoker_nodes"]] == ["ran"] * 3


def test_a_known_result_has_the_facts_of_the_run_that_made_it(office: Office):
    first = receipt(office.run("test/sum").folder)
    again = receipt(office.run("test/sum").folder)
    assert again.subject == first.subject
    assert {one["ending"] for one in again.predicate["stoker_nodes"]} == {"hit"}
    assert (
        again.predicate["buildDefinition"]["resolvedDependencies"]
        == (first.predicate["buildDefinition"]["resolvedDependencies"])
    )


def test_a_failed_job_has_one_that_says_so(office: Office):
    done = office.run("test/go", how="raise")
    found = receipt(done.folder)
    assert found.predicate["stoker_state"] == "failed"
    assert found.predicate["stoker_error"]["error"] == "stage_failed"
    assert [dict(one.digest) for one in found.subject] == [{"stokerJob": done.folder.spec().id}]


def test_it_is_written_before_the_end_and_the_end_before_the_event(office: Office):
    seen: list[tuple[bool, bool]] = []

    def hear(event: Event, _at_s: float, _seq: int) -> None:
        folder = office.only_job().path
        if event.kind == Kinds.RUN_END:
            seen.append((Path(folder, RECEIPT).exists(), Path(folder, "end.json").exists()))

    office.execution(office.order("test/sum"), listeners=(hear,)).run()
    assert seen == [(True, True)]


def test_a_job_whose_receipt_cannot_be_written_completes_with_a_warning(
    office: Office, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_args: Any, **_more: Any) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(JobReceipts, "write", refuse)
    warnings: list[Event] = []
    execution = office.execution(office.order("test/sum"), listeners=(lambda event, _at, _seq: warnings.append(event),))
    done = execution.run()
    assert done.error is None
    messages = [one.fields["message"] for one in warnings if one.kind == Kinds.WARNING]
    assert messages == ["no receipt could be written: [Errno 28] no space left"]
    with pytest.raises(NotFound, match="has no receipt"):
        read_job_receipt(done.folder)


def test_a_job_that_had_to_exit_at_once_has_one_too(office: Office):
    order = office.order("test/sum")
    attempt = office.builder.new_attempt(order.spec, {})
    folder = JobFolder.begin(office.runs, attempt, mine())
    with pytest.raises(NotFound, match="has no receipt") as error:
        read_job_receipt(folder)
    assert error.value.hint == "it is written when the job ends"
    abandon(office.tools, attempt, Cancelled("interrupted twice"))
    assert receipt(folder).predicate["stoker_state"] == "cancelled"


def test_each_trial_has_one_and_that_of_the_sweep_names_them(office: Office):
    build = office.builder.build(JobRequest(target="test/sum", overrides=("plus=1,2,3",), name="swept"))
    done = office.execution(build).run()
    found = receipt(done.folder)
    lines = (Path(done.folder.path) / "receipts.jsonl").read_bytes()
    (listed,) = found.predicate["runDetails"]["byproducts"]
    assert listed == {"name": "receipts.jsonl", "digest": {"sha256": digest_bytes(lines)}}
    assert [one.name for one in found.subject] == [end.trial.spec.label for end in done.trials]
    assert len(lines.splitlines()) == 3
    third = receipt(done.folder, 3)
    parameters = third.predicate["buildDefinition"]["externalParameters"]
    assert (parameters["name"], parameters["point"]) == ("swept/3", {"plus": 3})
    assert trial_of(third) == 3
    out = office.folder / "stoker-out" / "swept" / parameters["label"]
    assert third.predicate["stoker_out"] == str(out)
    made = {one.name: dict(one.digest) for one in third.subject}
    assert made["value.json"] == {"sha256": digest_bytes((out / "value.json").read_bytes())}
    with pytest.raises(NotFound, match="trial swept/4"):
        read_job_receipt(done.folder, 4)


def test_values_of_a_programs_variables_are_left_out(office: Office):
    build = office.builder.build(
        JobRequest(overrides=("env.TOKEN=hunter2", "lr=0.5"), program=("true",), name="secretive")
    )
    done = office.execution(build).run()
    text = read_job_receipt(done.folder)
    assert b"hunter2" not in text
    assert b"TOKEN" in text


def test_the_digest_of_a_receipt_is_of_its_bytes(office: Office):
    done = office.run("test/sum")
    assert receipt_digest(done.folder) == digest_bytes(read_job_receipt(done.folder))
    assert receipt_digest(JobFolder(str(office.folder))) == ""


def test_a_receipt_lists_a_bounded_number_of_files_and_says_how_many_more(office: Office):
    done = office.run("test/sum")
    attempt, end = done.folder.begun(), done.folder.ended()
    assert isinstance(end, JobEnd)
    record = done.result.nodes["add"].products[0].record  # type: ignore[union-attr]
    entry = record.tree.entries[0]

    class Many:
        digest = record.digest
        body = record.body
        tree = type("Tree", (), {"entries": (entry,) * (MOST_FILES + 5)})

    receipts = JobReceipts(done.folder, attempt, office.lab.store, papers={})
    receipts._known[end.keys["add"]] = Many  # type: ignore[assignment]
    receipts.hear(Event(Kinds.STAGE_END, {"node": "add", "key": end.keys["add"], "digest": record.digest}), 0.0, 1)
    receipts.write(end)
    body = json.loads((Path(done.folder.path) / RECEIPT).read_bytes())
    assert len(body["subject"]) == MOST_FILES + 1
    assert body["predicate"]["stoker_omitted"] == {"subject": 5}


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        ("sha256:ab", {"sha256": "ab"}),
        ("tree:ab", {"stokerTree": "ab"}),
        ("ab", {"stokerContent": "ab"}),
        ("repo:ab", {"stokerRepository": "ab"}),
    ],
)
def test_only_plain_sha256_is_called_so(text: str, digest: dict[str, str]):
    assert named_digest(text) == digest


def test_a_job_that_was_killed_before_its_end_has_none(office: Office, monkeypatch: pytest.MonkeyPatch):
    done = office.run("test/sum")
    Path(done.folder.path, "end.json").unlink()
    monkeypatch.setattr("stoker.jobs.job_folder.is_alive", lambda _owner: Liveness.GONE)
    with pytest.raises(NotFound, match="has no receipt") as error:
        read_job_receipt(done.folder)
    assert error.value.hint == "its process is gone: it could not write one"
