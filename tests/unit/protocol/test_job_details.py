"""Details of a job: its spec beside the rest, as flat JSON that other versions read."""

from __future__ import annotations

import json

from stoker.core.job import InputKind, JobInput
from stoker.protocol.codec import from_json, to_json
from stoker.protocol.view_messages import JobDetails

VIEW = {
    "id": "ab" * 32,
    "name": "resnet/3",
    "label": "lr=0.1",
    "recipe": "command",
    "mode": "full",
    "state": "pending",
    "priority": 7,
    "epoch": 1,
    "attempt": 0,
    "submitted_s": 1.0,
    "changed_s": 1.0,
}
SENT = {
    "job": VIEW,
    "args": {"argv": ["true"], "odd": float("nan")},
    "requirements": {"ram_bytes": 5},
    "code": {"train.py": "sha256:0"},
    "folder": "/srv",
    "project": "p",
    "code_tree": "c" * 64,
    "commit": "f00+1",
    "inputs": [{"where": "env:DATA", "kind": "tree", "tree": "d" * 64}],
    "environment": [{"kind": "uv.lock", "path": "uv.lock"}],
    "after": ["prep"],
    "attempts": [],
}
"""As a coordinator sent it that knew these fields of a job alone."""


def read(sent: dict[str, object]) -> JobDetails:
    return JobDetails.model_validate(sent)


def test_the_spec_has_what_is_beside_it_and_what_the_view_shows() -> None:
    spec = read(SENT).spec
    assert (spec.id, spec.name, spec.number, spec.label) == ("ab" * 32, "resnet", 3, "lr=0.1")
    assert (spec.recipe, spec.mode, spec.priority, spec.requirements.ram_bytes) == ("command", "full", 7, 5)
    assert spec.inputs == (JobInput(where="env:DATA", kind=InputKind.TREE, tree="d" * 64),)
    assert (spec.after, spec.attempts, spec.timeout_s) == ((), 1, None)


def test_the_json_is_flat_and_read_back() -> None:
    details = read(SENT)
    sent = json.loads(to_json(details))
    assert sent.keys() >= SENT.keys()
    assert not sent.keys() & {"spec", "identity", "id", "name", "number"}
    assert (sent["after"], sent["attempts"], sent["code_tree"]) == (["prep"], [], "c" * 64)
    assert to_json(from_json(JobDetails, to_json(details))) == to_json(details)


def test_fields_of_a_newer_coordinator_are_ignored() -> None:
    inputs = [{"where": "env:DATA", "kind": "tree", "newer": 1}]
    newer = {**SENT, "newer": 1, "requirements": {"newer": 1}, "inputs": inputs}
    assert read(newer).spec.inputs == (JobInput(where="env:DATA", kind=InputKind.TREE),)
