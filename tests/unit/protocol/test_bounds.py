"""Messages whose faults stay few, however much is wrong with them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import stoker.protocol
from stoker.coordinator.http.http_messages import read_message
from stoker.coordinator.http.system_a import HeartbeatA
from stoker.core.errors import InvalidInput, TooLarge
from stoker.protocol.codec import MOST_ENTRIES, build_messages
from stoker.protocol.job_messages import JOB_BODY, Submission
from stoker.protocol.lease_messages import Renewal

WORKER = '"worker": "desk", "incarnation": "0123456789"'


def every_model() -> list[type[BaseModel]]:
    for module in pkgutil.iter_modules(stoker.protocol.__path__):
        importlib.import_module(f"stoker.protocol.{module.name}")
    build_messages()
    found, todo = [], list(BaseModel.__subclasses__())
    while todo:
        one = todo.pop()
        todo += one.__subclasses__()
        if one.__module__.startswith("stoker.protocol.") or issubclass(HeartbeatA, one):
            found.append(one)
    return found


def schemas_in(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
        for key, inner in part.items():
            if key not in ("metadata", "default", "cls"):
                yield from schemas_in(inner)
    elif isinstance(part, list | tuple):
        for inner in part:
            yield from schemas_in(inner)


def test_every_sequence_of_every_message_is_refused_at_its_first_bad_element():
    models, count = every_model(), 0
    assert {Renewal, Submission, HeartbeatA} <= set(models)
    for model in models:
        for schema in schemas_in(model.__pydantic_core_schema__):
            if schema.get("type") in ("tuple", "list", "set", "frozenset") and "items_schema" in schema:
                assert schema.get("fail_fast"), model
                count += 1
            # One fault for each unknown field would be made.
            assert schema.get("extra_behavior") != "forbid", model
    assert count > 50


@pytest.mark.parametrize(
    "said",
    [
        '"leases": [{}]'.format(",".join(["[]"] * 10_000)),
        '"measured": {{"closed": {{{}}}}}'.format(",".join(f'"{at}": []' for at in range(MOST_ENTRIES + 1))),
        '"leases": [{{"metrics": {{{}}}}}]'.format(",".join(f'"{at}": []' for at in range(MOST_ENTRIES + 1))),
    ],
    ids=["leases", "closed", "metrics"],
)
def test_a_message_with_thousands_of_faults_names_few(said: str):
    with pytest.raises(ValidationError) as refused:
        Renewal.model_validate_json(f"{{{WORKER}, {said}}}")
    assert refused.value.error_count() < 10


def test_of_thousands_of_unknown_fields_some_are_named():
    text = '{{"jobs": [], {}}}'.format(",".join(f'"x{at}": 1' for at in range(10_000)))
    with pytest.raises(ValidationError) as refused:
        Submission.model_validate_json(text)
    assert refused.value.error_count() == 100
    with pytest.raises(ValidationError) as refused:
        Submission.model_validate_json('{"jobs": [{"id": "%s", "name": "a", "recipe": "b", "prio": 1}]}' % ("0" * 64))
    (one,) = refused.value.errors()
    assert (one["loc"], one["type"]) == (("jobs", 0, "prio"), "extra_forbidden")
    with pytest.raises(ValidationError):
        JOB_BODY.validate_python({"id": "0" * 64, "name": "a", "recipe": "b", "prio": 1})


def test_a_message_of_many_small_values_is_refused_before_it_is_read():
    body = b'{%b, "x": [%b]}' % (WORKER.encode(), b",".join([b"[]"] * 100_000))
    with pytest.raises(TooLarge, match="too many values"):
        read_message(Renewal, body)
    # Spread out they are fewer for their size.
    read_message(Renewal, body.replace(b"[]", b"[        ]"))
    with pytest.raises(InvalidInput) as refused:
        read_message(
            Renewal,
            b'{%b, "measured": {"closed": {%b}}}' % (WORKER.encode(), b",".join(b'"%d":[]' % at for at in range(2000))),
        )
    assert refused.value.data["count"] == 2000
