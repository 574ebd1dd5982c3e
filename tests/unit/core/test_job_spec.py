"""A job's spec: as JSON for Stoker itself, and what each of its fields is for."""

from __future__ import annotations

import pytest

from stoker.core.frozen import field_names
from stoker.core.job import (
    FOR_PEOPLE,
    JOB_VARIABLES,
    OF_THE_CODE,
    OF_THE_QUEUE,
    EnvironmentChoice,
    InputKind,
    JobInput,
    JobSpec,
    variables_of,
)
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import Partition
from stoker.core.machine import DevicePreference, Requirements

SPEC = JobSpec(
    id="ab" * 32,
    name="resnet",
    number=3,
    recipe="command",
    args={"argv": ["true"], "odd": float("inf")},
    train_hosts=("a", "b"),
    inputs=(JobInput(where="env:DATA", kind=InputKind.TREE, tree="c" * 64),),
    environment=(EnvironmentChoice(kind="uv.lock", path="uv.lock", extras=("gpu",)),),
    requirements=Requirements(wish=DevicePreference.REQUIRE, device_count=2),
    timeout_s=5.0,
    on_partition=Partition.KEEP,
)


def test_a_spec_is_read_back_whole() -> None:
    assert JobSpec.from_json(loads(dumps(SPEC.to_json()))) == SPEC


def test_defaults_are_not_written() -> None:
    spec = JobSpec(id="x", name="one", recipe="command")
    assert spec.to_json() == {"id": "x", "name": "one", "recipe": "command"}
    assert JobSpec.from_json(spec.to_json()) == spec


def test_fields_of_a_newer_version_are_skipped() -> None:
    newer = loads(dumps(SPEC.to_json()))
    for nested in (newer, newer["requirements"], newer["inputs"][0], newer["environment"][0]):
        nested["invented"] = 1
    assert JobSpec.from_json(newer) == SPEC


@pytest.mark.parametrize(
    "odd", [{"number": "3"}, {"inputs": [3]}, {"inputs": [{}]}, {"args": 5}, {"requirements": "many"}, {"name": None}]
)
def test_what_is_no_spec_is_refused(odd: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        JobSpec.from_json({"id": "x", "name": "one", "recipe": "command", **odd})


def test_programs_get_the_fields_that_are_set() -> None:
    assert variables_of(SPEC) == {"STOKER_JOB": "ab" * 32, "STOKER_JOB_NAME": "resnet"}
    assert variables_of(JobSpec(id="x", name="one", recipe="command", seed=0))["STOKER_SEED"] == "0"
    assert set(JOB_VARIABLES.values()) <= set(field_names(JobSpec))


def test_it_is_known_what_each_field_is_for() -> None:
    of_the_run = {"id", "recipe", "schema_version", "mode", "args", "identity", "seed", "split_recipe", "train_hosts"}
    of_the_run |= {"inputs", "environment", "secrets", "timeout_s", "on_partition"}
    new = set(field_names(JobSpec)) - FOR_PEOPLE - OF_THE_QUEUE - OF_THE_CODE - of_the_run
    assert not new, (
        f"new fields of a job: {', '.join(sorted(new))}. Put each into FOR_PEOPLE if no machine has to know it, "
        "into OF_THE_QUEUE if only the scheduler does, else into this test"
    )
