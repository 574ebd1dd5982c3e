"""What a submission does to an existing job."""

from __future__ import annotations

import pytest

from stoker.coordinator.queue.sql import JobRow
from stoker.coordinator.queue.submission_check import CheckedSpec, decide, draft
from stoker.core.frozen import defaults_of
from stoker.core.job import JobSpec, job_id
from stoker.core.jsontext import dumps, loads
from stoker.protocol.job_messages import OnChangedCode, Submission, SubmissionOutcome, checked_spec

ID = job_id(recipe="command", schema_version=1, args={})


def checked(**fields: object) -> CheckedSpec:
    spec = checked_spec(id=ID, name="one", recipe="command", **fields)
    return draft(Submission(jobs=(spec,))).all[0]


def stored(without: str) -> JobRow:
    """Return the row of a job that a version stored whose specs lacked a field."""
    spec = loads(checked().text)
    spec.pop(without, None)
    columns = dict.fromkeys(JobRow._fields, "") | {"id": ID, "name": "one", "number": 0, "state": "completed"}
    return JobRow(**{**columns, "spec": dumps(spec)})  # type: ignore[arg-type]  # the other columns do not matter here


@pytest.mark.parametrize("field", sorted(defaults_of(JobSpec)))
def test_a_job_that_was_stored_before_a_field_existed_is_not_changed_by_its_default(field: str) -> None:
    fate = decide(checked(), stored(without=field), OnChangedCode.KEEP)
    assert (fate.outcome, fate.changes) == (SubmissionOutcome.KNOWN, ())


def test_another_value_of_such_a_field_is_a_change() -> None:
    fate = decide(checked(expected_s=5.0), stored(without="expected_s"), OnChangedCode.KEEP)
    assert (fate.outcome, fate.changes) == (SubmissionOutcome.CHANGED, ("expected_s",))
