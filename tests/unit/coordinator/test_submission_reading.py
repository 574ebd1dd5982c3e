"""A submission is read order by order: as it would be in one piece, within limits, and without holding up threads."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from stoker.coordinator.http import submission_body
from stoker.coordinator.http.http_messages import read_message
from stoker.coordinator.http.submission_body import read_submission
from stoker.coordinator.queue.submission_check import draft
from stoker.core.errors import BadInput, InvalidInput, TooLarge
from stoker.core.job import job_id
from stoker.protocol.job_messages import (
    MOST_DEPTH,
    MOST_JOBS_AT_ONCE,
    MOST_KEY,
    MOST_ORDER_VALUES,
    MOST_TEXT,
    Submission,
)

RECIPE = "tabular/gbt"


def order(number: int = 0, **args: Any) -> dict[str, Any]:
    args = {"seed": number, **args}
    id = job_id(recipe=RECIPE, schema_version=1, args=args)
    return {"id": id, "name": f"job{number}", "recipe": RECIPE, "args": args, "identity": args}


def compact(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def read(body: bytes) -> Submission:
    return read_submission(io.BytesIO(body))


@pytest.fixture(params=[7, 64 * 1024])
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that end in the middle of everything, and usual ones."""
    monkeypatch.setattr(submission_body, "_PIECE_BYTES", request.param)
    monkeypatch.setattr(submission_body._Window._read_on, "__defaults__", (request.param,))


SAME = {
    "none": b'{"jobs":[]}',
    "some, between other fields": compact(source="a.toml", jobs=[order(at) for at in range(30)], dry_run=True),
    "in many lines": json.dumps({"jobs": [order(1), order(2)], "submitter": "me"}, indent=3).encode() + b"\n ",
    "texts of every kind": compact(jobs=[order(1, text='},{"id":" \\ü \U0001f600 ]}'), order(2)], key="k"),
    "objects with ids inside": compact(jobs=[order(at, layers=[{"id": "a"}, {"id": "b"}]) for at in range(5)]),
    "tagged numbers": compact(jobs=[{**order(1), "args": {"seed": 1, "lr": {"$float": "inf"}}}, order(2)]),
    "an escaped name of the field": b'{"j\\u006fbs":[],"dry_run":true}',
    "a field twice": b'{"jobs":[%b],"jobs":[]}' % compact(**order(1)),
    "numbers": compact(jobs=[order(1, n=12345678901234567890, f=1.5e300, z=-0.0)]),
}


@pytest.mark.usefixtures("piece_bytes")
@pytest.mark.parametrize("case", SAME)
def test_a_submission_is_read_as_in_one_piece(case: str):
    assert read(SAME[case]) == read_message(Submission, SAME[case])


NO_JSON = (
    b"x", b"[]", b"7", b"{", b'{"jobs"', b'{"jobs":', b'{"jobs":[', b'{"jobs":[]', b'{"jobs":[],}', b'{"jobs":[]}x',
    b'{"jobs":[]}{"jobs":[]}', b'{"jobs":[{]}', b'{"jobs":[{},]}', b'{"jobs":[,]}', b'{"jobs":[]"a":1}', b"{1:2}",
    b'{"jobs":[{"a":"\xff"}]}', b'{"jobs":[{"a":"\\ud800"}]}', b'{"jobs":[' + b"[" * 5000 + b"]" * 5000 + b"]}",
    b'{"jobs":[{"number":' + b"1" * 5000 + b"}]}",
)  # fmt: skip


@pytest.mark.usefixtures("piece_bytes")
@pytest.mark.parametrize("body", NO_JSON, ids=range(len(NO_JSON)))
def test_what_is_no_json_is_refused_as_such(body: bytes):
    with pytest.raises((BadInput, InvalidInput)):
        read(body)


@pytest.mark.usefixtures("piece_bytes")
def test_a_fault_names_the_order_and_its_field():
    with pytest.raises(InvalidInput) as refused:
        read(compact(jobs=[order(1), order(2), {**order(3), "priority": "high"}, order(4)]))
    assert [fault.where for fault in refused.value.faults] == ["jobs.2.priority"]
    with pytest.raises(InvalidInput) as refused:
        read(compact(dry_run=True))
    assert [fault.where for fault in refused.value.faults] == ["jobs"]
    with pytest.raises(InvalidInput):
        read(b"")


def test_more_jobs_than_one_request_may_have_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(submission_body, "MOST_JOBS_AT_ONCE", 3)
    assert len(read(compact(jobs=[order(at) for at in range(3)])).jobs) == 3
    with pytest.raises(TooLarge, match="more than 3 jobs"):
        read(compact(jobs=[order(at) for at in range(4)]))


@pytest.mark.parametrize(
    "body",
    [
        b'{"jobs":[{"args":{"a":[' + b"[]," * 80_000 + b"[]]}}]}",
        b'{"jobs":[{' + b'"a":1,' * 60_000 + b'"b":1}]}',
        b'{"jobs":[{"args":{"a":"' + b"x" * 400_000 + b'"}}]}',
        b'{"source":[' + b"[]," * 150_000 + b"[]]}",
        b'{"jobs":[' + b'{"args":{"a":[[],[],[],[],[]]}},' * 90_000 + b"{}]}",
    ],
    ids=["many lists", "many fields", "one long text", "many lists elsewhere", "many orders"],
)
def test_more_values_than_fit_into_memory_are_refused(body: bytes):
    with pytest.raises((TooLarge, InvalidInput)):
        read(body)


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"k" * (MOST_KEY + 1): 1}, "args: key 'kkk"),
        ({"deep": nested(MOST_DEPTH)}, "args.deep.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0"),
        ({"layers": {"notes": "x" * (MOST_TEXT + 1)}}, "args.layers.notes has 65,537 characters"),
        ({"sizes": [1] * (MOST_ORDER_VALUES // 2 + 10)}, "more than 10,000 values, at "),
    ],
    ids=["a long key", "deep", "a long text", "many values"],
)
def test_a_job_beyond_its_own_limits_is_refused_by_its_name_and_key(args: dict[str, Any], said: str):
    submission = read(compact(jobs=[order(1), {**order(2, **args), "name": "huge"}]))
    with pytest.raises(InvalidInput) as refused:
        draft(submission)
    (fault,) = refused.value.faults
    assert fault.where == "jobs[1] huge"
    assert said in fault.message


def test_a_job_that_is_large_as_a_whole_is_refused_by_its_name():
    # As the coordinator's own manifest may have it: it does not come in a request.
    huge = {**order(2), "name": "huge", "secrets": ["SECRET" * 1000] * 44}
    with pytest.raises(InvalidInput) as refused:
        draft(Submission.model_validate({"jobs": [order(1), huge]}))
    assert [fault.where for fault in refused.value.faults] == ["jobs[1] huge"]
    assert "the limit is 262,144" in refused.value.faults[0].message


def test_the_parsers_get_a_small_part_of_the_largest_submission_at_a_time(monkeypatch: pytest.MonkeyPatch):
    # They hold Python's lock until they are done: this is how long other threads are held up, on any machine.
    values: dict[str, list[int]] = {f"k{at}": [] for at in range(15)}
    body = compact(jobs=[order(at, text="x" * 300, **values) for at in range(MOST_JOBS_AT_ONCE)])
    parsed: list[int] = []
    for name in ("_read_run", "_read_order", "read_message"):
        parse = getattr(submission_body, name)

        def noted(*given: Any, parse: Callable[..., Any] = parse) -> Any:
            parsed.extend(len(one) for one in given if isinstance(one, str | bytes))
            return parse(*given)

        monkeypatch.setattr(submission_body, name, noted)
    assert len(draft(read(body)).all) == MOST_JOBS_AT_ONCE
    assert sum(parsed) > 0.9 * len(body)
    assert max(parsed) <= 2 * submission_body._PIECE_BYTES
