"""Fingerprints: golden ones are checked in, so that a change of what names a trial can't go unnoticed."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.config.compose import TrialFingerprints, full_fingerprint, identity_fingerprint
from stoker.config.sweep import points
from stoker.config.values import Schema
from stoker.core.digests import is_digest
from stoker.core.jsontext import loads
from tests.fakes.overrides import identity_at
from tests.unit.config.composing import FREE, Desk, closed, real, whole

GOLDEN = Path(__file__).parents[2] / "golden" / "config_fingerprints.json"
RUNTIME = closed(lr=real(1.0), threads=whole(1, runtime=True), log__level=whole(1, runtime=True), log__keep=whole(1))


@pytest.mark.parametrize("entry", loads(GOLDEN.read_text("utf-8")), ids=lambda entry: entry["why"])
def test_a_golden_configuration_has_its_golden_fingerprints(entry):
    assert identity_fingerprint(entry["values"], FREE) == entry["identity"]
    assert full_fingerprint(entry["values"], entry["notes"]) == entry["full"]


def test_no_two_golden_configurations_share_a_fingerprint():
    golden = loads(GOLDEN.read_text("utf-8"))
    assert len(golden) >= 10
    assert len({entry["full"] for entry in golden}) == len(golden)


DIFFERENT = [
    math.nan, math.inf, -math.inf, "inf", "-inf", "nan", ".inf", None, "null", "", 0, False, "0", 0.0, -0.0, 1, "1",
    True, 1.0, "1.0", "true", [], {}, [1], ["1"], [True], [[]], {"a": 1}, {"a": "1"}, [1, 2], [2, 1],
]  # fmt: skip


def test_values_that_differ_in_any_way_have_different_fingerprints():
    prints = [(value, identity_fingerprint({"x": value}, FREE)) for value in DIFFERENT]
    pairs = itertools.combinations(prints, 2)
    assert not [(one, other) for (one, its), (other, others) in pairs if its == others]


def test_the_order_of_keys_does_not_matter():
    one, other = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert identity_fingerprint(one, FREE) == identity_fingerprint(other, FREE)
    assert full_fingerprint(one, {"n": 1, "m": 2}) == full_fingerprint(other, {"m": 2, "n": 1})


def test_every_spelling_of_a_typed_value_has_one_fingerprint(desk: Desk):
    schema = closed(lr=real(0.0))
    desk.write(config="lr: 1\n", other_toml="lr = 1.0\n")
    names = {
        desk.compose(schema=schema).identity(),
        desk.compose(files=["other.toml"], schema=schema).identity(),
        desk.compose("lr=1e0", files=[], schema=schema).identity(),
        desk.compose("lr='1'", files=[], schema=schema).identity(),
        desk.compose(files=[], schema=schema, env={"STOKER__LR": "1."}).identity(),
    }
    assert len(names) == 1


def test_what_is_about_running_and_what_is_noted_is_no_part_of_the_identity(desk: Desk):
    base = desk.compose(files=[], schema=RUNTIME)
    other = desk.compose("threads=8", "log.level=3", "+note=x", files=[], schema=RUNTIME)
    assert base.identity() == other.identity()
    assert base.full() != other.full()
    assert desk.compose("log.keep=2", files=[], schema=RUNTIME).identity() != base.identity()


def test_a_branch_with_nothing_wanted_in_it_leaves_no_trace():
    schema = closed(lr=real(1.0), run__threads=whole(1, runtime=True))
    with_branch = identity_fingerprint({"lr": 1.0, "run": {"threads": 3}}, schema)
    assert with_branch == identity_fingerprint({"lr": 1.0}, schema)


def test_fingerprints_are_digests_and_the_two_never_meet(desk: Desk):
    composed = desk.compose("a=1", files=[])
    assert is_digest(composed.identity())
    assert is_digest(composed.full())
    assert composed.identity() != composed.full()


def test_names_of_trials_are_those_of_the_same_values_composed_alone(desk: Desk):
    composed = desk.compose("lr=1,2", "threads=1,2", "log.level=5,6", "log.keep=1,2", files=[], schema=RUNTIME)
    assert composed.sweep is not None
    for point in points(composed.sweep):
        words = [f"{path}={choice.text}" for path, choice in point.choices]
        alone = desk.compose(*words, files=[], schema=RUNTIME)
        assert identity_at(composed, point) == alone.identity()
        assert full_fingerprint(composed.at(point), composed.notes) == alone.full()


def test_trials_walked_together_have_the_same_names(desk: Desk):
    composed = desk.compose("lr=1,2", files=[], schema=RUNTIME)
    assert composed.sweep is not None
    walked = list(composed.trials(points(composed.sweep)))
    assert [name for _, _, name in walked] == [identity_at(composed, point) for point, _, _ in walked]
    assert [values["lr"] for _, values, _ in walked] == [1.0, 2.0]


def test_a_trial_with_other_keys_than_the_base_is_named_rightly():
    names = TrialFingerprints({"b": 1, "c": {"x": 1}}, FREE)
    for values in ({"a": 1, "b": 1}, {"b": 1, "c": {"x": 2}, "é": 0}, {}, {"b": 1, "c": {"x": 1}}):
        assert names.identity(values) == identity_fingerprint(values, FREE)


def test_another_process_with_another_hash_seed_gives_the_same(desk: Desk):
    script = (
        "from stoker.config.compose import *\n"
        "from stoker.config.values import Schema\n"
        "free = Schema(leaves={}, is_open=True)\n"
        "print(identity_fingerprint({'b': {'y': 1, 'x': float('nan')}, 'a': [1, 'é']}, free))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout.strip()
        for seed in ("0", "1", "77")
    }
    expected = identity_fingerprint({"a": [1, "é"], "b": {"x": math.nan, "y": 1}}, Schema(leaves={}, is_open=True))
    assert found == {expected}
