"""Keys: golden ones are checked in, so that a change of the format can't go unnoticed."""

from __future__ import annotations

import copy
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import InputPath
from stoker.core.digests import ArtifactRef, Digest, KindRef
from stoker.core.jsontext import dumps, loads
from stoker.engine.action import Action, StageFacts, differences
from tests.unit.engine.lab import Lab, plan_of
from tests.unit.engine.stages import FileArgs, NumberArgs, number, read

GOLDEN = Path(__file__).parents[2] / "golden" / "keys.json"

BODY: dict[str, Any] = {
    "format": 1,
    "stage": "tabular/train_gbt",
    "version": 2,
    "output": "model@1",
    "code": {"(module)": "a" * 64, "pkg.trees": "b" * 64},
    "env": {"scikit-learn": "1.7.0"},
    "inputs": [["data", [["split@1", "c" * 64]]], ["others", [["model@1", "d" * 64], ["model@1", "e" * 64]]]],
    "args": {"lr": 0.1, "depth": None, "names": ["x", "y"], "limits": {"low": 1, "high": 2.0}},
    "partition": "",
}


def changed(**changes: Any) -> Action:
    return Action.from_json({**copy.deepcopy(BODY), **changes})


def test_keys_are_what_they_always_were() -> None:
    golden = loads(GOLDEN.read_text())
    assert len(golden) >= 8
    for entry in golden:
        assert Action.from_json(entry["action"]).key() == entry["key"], entry["why"]


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("stage", {"stage": "tabular/train_knn"}),
        ("version", {"version": 3}),
        ("output", {"output": "model@2"}),
        ("output", {"output": "model@1[]"}),
        ("code pkg.trees", {"code": {"(module)": "a" * 64, "pkg.trees": "f" * 64}}),
        ("code pkg.trees", {"code": {"(module)": "a" * 64}}),
        ("code pkg.more", {"code": {**BODY["code"], "pkg.more": "f" * 64}}),
        ("env scikit-learn", {"env": {"scikit-learn": "1.7.1"}}),
        ("env scikit-learn", {"env": {}}),
        ("input data", {"inputs": [["data", [["split@1", "f" * 64]]], BODY["inputs"][1]]}),
        ("input data", {"inputs": [["data", [["split@2", "c" * 64]]], BODY["inputs"][1]]}),
        ("input others[0]", {"inputs": [BODY["inputs"][0], ["others", BODY["inputs"][1][1][::-1]]]}),
        ("input others", {"inputs": [BODY["inputs"][0], ["others", []]]}),
        ("input others[0]", {"inputs": [BODY["inputs"][0]]}),
        ("args.lr", {"args": {**BODY["args"], "lr": 0.2}}),
        ("args.lr", {"args": {**BODY["args"], "lr": math.nan}}),
        ("args.depth", {"args": {**BODY["args"], "depth": 0}}),
        ("args.depth", {"args": {name: value for name, value in BODY["args"].items() if name != "depth"}}),
        ("args.names", {"args": {**BODY["args"], "names": ["y", "x"]}}),
        ("args.limits.low", {"args": {**BODY["args"], "limits": {"low": 1.0, "high": 2.0}}}),
        ("partition", {"partition": "mine"}),
    ],
)
def test_every_field_changes_the_key_and_is_named(field: str, changes: dict[str, Any]) -> None:
    before, after = changed(), changed(**changes)
    assert before.key() != after.key()
    assert field in [one.field for one in differences(before, after)]


@pytest.mark.parametrize("one", [1, 1.0, True, "1", None, math.nan, math.inf, -math.inf, "nan", 0.0, -0.0])
def test_values_that_look_alike_have_keys_of_their_own(one: Any) -> None:
    values = [1, 1.0, True, "1", None, math.nan, math.inf, -math.inf, "nan", 0.0, -0.0]
    keys = [changed(args={"x": value}).key() for value in values]
    assert keys.count(changed(args={"x": one}).key()) == 1


def test_the_order_of_names_is_nothing() -> None:
    shuffled = changed(
        args=dict(reversed(BODY["args"].items())), code=dict(reversed(BODY["code"].items())), env=dict(BODY["env"])
    )
    assert shuffled.key() == changed().key()
    assert differences(changed(), shuffled) == []


def test_an_empty_partition_changes_nothing() -> None:
    assert changed(partition="").key() == changed().key()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 2**70, {"$float": "nan"}, [None, True], "\x00"])
def test_the_stored_pre_image_has_the_same_key(value: Any) -> None:
    action = changed(args={"x": value})
    assert Action.from_json(loads(dumps(action.to_json()))).key() == action.key()


def test_a_pre_image_of_another_format_is_not_read() -> None:
    with pytest.raises(ValueError, match="format 2"):
        changed(format=2)
    with pytest.raises(KeyError):
        Action.from_json({})


def test_two_different_lists_are_told_item_by_item() -> None:
    told = [str(one) for one in differences(changed(), changed(inputs=[BODY["inputs"][0]]))]
    assert told == [
        f"input others[0]: was model@1 {'d' * 12}, now gone",
        f"input others[1]: was model@1 {'e' * 12}, now gone",
    ]


def test_differences_are_told_shortly() -> None:
    before = changed(args={"lr": 0.1, "data": {"content": f"sha256:{'a' * 64}"}})
    after = changed(args={"lr": 0.2, "data": {"content": f"sha256:{'b' * 64}"}, "more": 1})
    assert [str(one) for one in differences(before, after)] == [
        f"args.data: content sha256:{'a' * 10} → content sha256:{'b' * 10}",
        "args.lr: 0.1 → 0.2",
        "args.more: now 1",
    ]


def test_no_path_host_time_or_user_is_in_a_pre_image(lab: Lab, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("1,2")
    plan = plan_of(read, FileArgs(path=InputPath(str(rows)), ledger=str(tmp_path / "ledger")))
    text = dumps(lab.cache.action(plan.nodes[0], {}).to_json())
    for secret in (str(tmp_path), "rows.csv", str(Path.home())):
        assert secret not in text
    # The letters of a short name and the digits of a number stand in many a digest by chance: only a whole word tells.
    for word in (os.uname().nodename, str(os.getpid())):
        assert not re.search(rf"(?<![0-9A-Za-z]){re.escape(word)}(?![0-9A-Za-z])", text)


def test_the_same_bytes_at_another_place_are_the_same_input(lab: Lab, tmp_path: Path) -> None:
    def key(name: str, text: str) -> Digest:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return lab.cache.action(plan_of(read, FileArgs(path=InputPath(str(path)))).nodes[0], {}).key()

    keys = {key(name, "1,2") for name in ("a.csv", "b.csv", "deep/c.csv")}
    assert len(keys) == 1
    assert key("a.csv", "1,3") not in keys


def test_a_folder_is_an_input_by_its_files(lab: Lab, tmp_path: Path) -> None:
    def key() -> Digest:
        return lab.cache.action(plan_of(read, FileArgs(path=InputPath(str(tmp_path)))).nodes[0], {}).key()

    (tmp_path / "a").write_text("1")
    before = key()
    (tmp_path / "a").write_text("2")
    assert key() != before
    (tmp_path / "a").write_text("1")
    assert key() == before
    (tmp_path / "b").write_text("1")
    assert key() != before


def test_the_facts_of_a_stage_are_part_of_its_key(lab: Lab) -> None:
    action = lab.cache.action(plan_of(number, NumberArgs(value=1)).nodes[0], {})
    assert action.facts.stage == "test/number"
    assert action.facts.output == "test-number@1"
    assert action.facts_digest == action.facts.digest()
    assert "(module)" in action.facts.code
    other = StageFacts(stage="x", version=1, output="y@1", code={}, env={})
    assert other.digest() != action.facts_digest


def test_the_order_of_ports_is_nothing() -> None:
    one, two = (ArtifactRef(KindRef("k", 1), Digest(letter * 64)) for letter in "ab")
    with_b_first = changed(inputs=[["b", [["k@1", one.digest]]], ["a", [["k@1", two.digest]]]])
    with_a_first = changed(inputs=[["a", [["k@1", two.digest]]], ["b", [["k@1", one.digest]]]])
    assert differences(with_a_first, with_b_first) == []
    assert with_a_first.key() == with_b_first.key()


def test_what_a_variable_of_a_program_holds_is_no_part_of_what_is_told() -> None:
    before = changed(stage="command/run_known", args={"env": {"A": "old-pw", "B": "gone-pw"}, "x": 1})
    after = changed(stage="command/run_known", args={"env": {"A": "new-pw", "C": "come-pw"}, "x": 2})
    told = [str(one) for one in differences(before, after)]
    assert [one.partition(":")[0] for one in told] == ["args.env.A", "args.env.B", "args.env.C", "args.x"]
    assert "pw" not in " ".join(told)
    assert "another" in told[0]
    other = [str(one) for one in differences(changed(args={"env": {"A": 1}}), changed(args={"env": {"A": 2}}))]
    assert other == ["args.env.A: 1 → 2"]


def test_of_many_files_it_is_told_how_many_have_changed() -> None:
    old, new, same = ({"content": f"sha256:{letter * 64}"} for letter in "abc")
    (told,) = differences(changed(args={"files": [old, same]}), changed(args={"files": [new, same]}))
    assert str(told) == "args.files: 1 of 2 files has changed"
    (told,) = differences(changed(args={}), changed(args={"files": [new, same]}))
    assert str(told) == "args.files: now 2 files"
