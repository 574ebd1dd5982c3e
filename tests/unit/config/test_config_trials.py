"""The values of each trial: only what a point touches changes, and a mistake is found before any point is made."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from stoker.config.sweep import AxisValue, SweepPoint, points, size
from stoker.core.errors import InvalidConfig
from tests.fakes.overrides import identity_at
from tests.unit.config.composing import Desk, closed, real, reals, text, texts, whole

SCHEMA = closed(
    lr=real(0.1),
    model__depth=whole(3),
    model__width=whole(64),
    name=text("run"),
    tags=texts(["a"]),
    opts=reals({"a": 1.0}),
)


def trials(composed) -> list[dict]:
    return [composed.at(point) for point in points(composed.sweep)]


def test_a_trial_has_its_choices_read_by_type_and_everything_else_as_it_is(desk: Desk):
    composed = desk.compose("lr=1,.5", "name=007,x", "model.width=8", files=[], schema=SCHEMA)
    assert [(one["lr"], one["name"], one["model"]) for one in trials(composed)] == [
        (1.0, "007", {"depth": 3, "width": 8}),
        (1.0, "x", {"depth": 3, "width": 8}),
        (0.5, "007", {"depth": 3, "width": 8}),
        (0.5, "x", {"depth": 3, "width": 8}),
    ]


def test_trials_do_not_change_each_other_or_what_they_share(desk: Desk):
    composed = desk.compose("model.depth=1,2", "model.width=7,8", files=[], schema=SCHEMA)
    before = composed.to_json()
    made = trials(composed)
    assert [one["model"] for one in made] == [
        {"depth": 1, "width": 7},
        {"depth": 1, "width": 8},
        {"depth": 2, "width": 7},
        {"depth": 2, "width": 8},
    ]
    assert composed.to_json() == before
    assert made[0]["opts"] is made[1]["opts"]


def test_references_follow_the_point(desk: Desk):
    desk.write(config="lr: 1\nname: lr-${lr}\nout: ${name}/x\n")
    composed = desk.compose("lr=2,3")
    assert [one["out"] for one in trials(composed)] == ["lr-2/x", "lr-3/x"]
    assert composed.values["out"] == "lr-1/x"


def test_a_choice_may_itself_refer(desk: Desk):
    desk.write(config="a: 1\nb: 2\nc: 0\n")
    composed = desk.compose("c=${a},x${b},5")
    assert [one["c"] for one in trials(composed)] == [1, "x2", 5]


def test_variables_that_choices_ask_for_are_recorded(desk: Desk):
    composed = desk.compose("c=${env:A},${env:B}", files=[], env={"A": "1", "B": "2"})
    assert set(composed.read_from_environment) == {"A", "B"}
    assert [one["c"] for one in trials(composed)] == ["1", "2"]


def test_what_only_the_sweep_sets_may_be_referred_to(desk: Desk):
    desk.write(config="name: lr-${lr}\n")
    composed = desk.compose("+lr=1,2")
    assert [one["name"] for one in trials(composed)] == ["lr-1", "lr-2"]
    assert "lr" not in composed.values


def test_a_required_leaf_may_be_swept(desk: Desk):
    composed = desk.compose("data=a,b", files=[], schema=closed(data=text(), lr=real(1.0)))
    assert [one["data"] for one in trials(composed)] == ["a", "b"]


def test_a_point_that_leaves_a_required_leaf_out_is_refused(desk: Desk):
    desk.write(config="sweep:\n  concat: [{data: [a]}, {lr: [2]}]\n")
    composed = desk.compose(schema=closed(data=text(), lr=real(1.0)))
    assert composed.sweep is not None
    first, second = points(composed.sweep)
    assert composed.at(first)["data"] == "a"
    with pytest.raises(InvalidConfig, match="data: is required"):
        composed.at(second)


def test_every_wrong_choice_of_every_axis_is_told_without_expanding(desk: Desk):
    words = ["lr=1,fast,3", "model.depth=1,2,deep", "name=" + "a," * 9_999 + "b"]
    found = desk.faults(*words, files=[], schema=SCHEMA)
    assert [fault.where for fault in found] == ["argument 1: lr", "argument 2: model.depth"]
    assert found[0].shown == "lr=1,fast,3\n     ^^^^"


def test_a_wrong_value_inside_a_declared_leaf_is_told_before_anything_runs(desk: Desk):
    assert "expected a number" in desk.fault("opts.a=1,x", files=[], schema=SCHEMA).message
    composed = desk.compose("opts.a=1,2", "tags.0=x,y", files=[], schema=SCHEMA)
    assert [(one["opts"], one["tags"]) for one in trials(composed)][-1] == ({"a": 2.0}, ["y"])


def test_a_choice_that_breaks_a_reference_is_told_before_anything_runs(desk: Desk):
    schema = closed(lr=real(1.0), base=text("1"), other=text("x"))
    desk.write(config="lr: ${base}\nbase: '1'\n")
    fault = desk.fault("base=1,two", "other=p,q", schema=schema)
    assert fault.where == "config.yaml:1:5: lr"
    assert "two" in fault.message


def test_a_swept_group_composes_each_option(desk: Desk):
    desk.write(
        config="defaults:\n  - model: small\nlr: 1\nname: ${model.kind}-${lr}\n",
        model__small="kind: s\ndepth: 3\n",
        model__large="kind: l\ndepth: 9\nheads: 4\n",
    )
    composed = desk.compose("model=large,small", "lr=1,2")
    assert composed.values["model"] == {"kind": "l", "depth": 9, "heads": 4}
    assert [(one["model"]["depth"], one["name"]) for one in trials(composed)] == [
        (9, "l-1"),
        (9, "l-2"),
        (3, "s-1"),
        (3, "s-2"),
    ]
    assert composed.sweep is not None
    last = list(points(composed.sweep))[-1]
    assert str(composed.explain("model.depth", last)["model.depth"][-1].origin) == "model/small.yaml:2:8"


def test_a_group_swept_by_a_file(desk: Desk):
    desk.write(
        config="defaults:\n  - model: small\nsweep:\n  model: [small, large]\n",
        model__small="depth: 3\n",
        model__large="depth: 9\n",
    )
    assert [one["model"]["depth"] for one in trials(desk.compose())] == [3, 9]


def test_a_fault_in_an_option_that_is_swept_says_with_which(desk: Desk):
    desk.write(
        config="defaults:\n  - model: small\n", model__small="depth: 3\n", model__large="depth: deep\nx: ${nowhere}\n"
    )
    schema = closed(model__depth=whole(1), model__x=text(""))
    found = desk.faults("model=small,large", schema=schema)
    assert [fault.where for fault in found] == ["model/large.yaml:1:8: model.depth", "model/large.yaml:2:4: model.x"]
    assert all("with model=large" in fault.message for fault in found)


def test_an_option_that_is_not_there_is_told_before_anything_runs(desk: Desk):
    desk.write(config="defaults:\n  - model: small\n", model__small="depth: 3\n")
    assert "'huge'" in desk.fault("model=small,huge").message


def test_the_sweep_of_a_file_is_not_a_leaf(desk: Desk):
    desk.write(config="lr: 1\nsweep:\n  lr: [2, 3]\n  seed: [0, 1]\n")
    composed = desk.compose()
    assert composed.values == {"lr": 1}
    assert [(one["lr"], one["seed"]) for one in trials(composed)] == [(2, 0), (2, 1), (3, 0), (3, 1)]


def test_a_files_sweep_and_the_command_lines_are_combined(desk: Desk):
    desk.write(config="lr: 1\nname: x\nsweep:\n  lr: [2, 3]\n  seed: [0, 1]\n")
    assert [one["lr"] for one in trials(desk.compose("seed=7"))] == [2, 3]
    assert [one["lr"] for one in trials(desk.compose("seed=7", "lr=5,6,7"))] == [5, 6, 7]
    assert len(trials(desk.compose("name=a,b"))) == 8
    assert trials(desk.compose("~seed")) == [{"lr": 2, "name": "x"}, {"lr": 3, "name": "x"}]


def test_the_last_files_sweep_counts(desk: Desk):
    desk.write(config="sweep: {a: [1, 2]}\n", second="sweep: {b: [1, 2, 3]}\n")
    assert trials(desk.compose(files=["config.yaml", "second.yaml"])) == [{"b": 1}, {"b": 2}, {"b": 3}]


def test_a_files_sweep_of_an_unknown_key_is_a_fault_with_its_place(desk: Desk):
    desk.write(config="sweep:\n  modle.depth: [1, 2]\n")
    fault = desk.fault(schema=SCHEMA)
    assert fault.where.startswith("config.yaml:2:")
    assert "'model.depth'" in fault.hint


def test_a_files_sweep_is_read_by_type(desk: Desk):
    desk.write(config="sweep:\n  model: {depth: [1, two]}\n  lr: 'log:1:100:3'\n")
    fault = desk.fault(schema=SCHEMA)
    assert fault.where.startswith("config.yaml:2:")
    assert "model.depth" in fault.where


def test_a_note_can_not_be_swept(desk: Desk):
    assert "can't be swept" in desk.fault("+note=a,b", files=[], schema=SCHEMA).message


def test_an_axis_is_held_to_the_rules_of_its_kind(desk: Desk):
    desk.write(config="lr: 1\n")
    assert "no such key" in desk.fault("lrr=1,2").message
    assert "already" in desk.fault("+lr=1,2").message
    assert len(trials(desk.compose("++new=1,2"))) == 2
    assert len(trials(desk.compose("+new=1,2"))) == 2


def test_the_last_word_on_a_path_counts(desk: Desk):
    assert desk.compose("a=1,2", "a=5", files=[]).sweep is None
    assert [one["a"] for one in trials(desk.compose("a=5", "a=1,2", files=[]))] == [1, 2]


def test_a_map_as_a_choice_merges_into_its_branch(desk: Desk):
    desk.write(config="model: {depth: 1, width: 2}\n")
    composed = desk.compose("model={depth: 5},{width: 6}")
    assert [one["model"] for one in trials(composed)] == [{"depth": 5, "width": 2}, {"depth": 1, "width": 6}]


def test_a_point_without_choices_is_the_configuration_itself(desk: Desk):
    composed = desk.compose("lr=2", files=[], schema=SCHEMA)
    assert composed.at(SweepPoint(())) == composed.values
    assert identity_at(composed, SweepPoint(())) == composed.identity()


def test_a_choice_from_elsewhere_is_read_and_refused_as_well(desk: Desk):
    composed = desk.compose(files=[], schema=SCHEMA)
    assert composed.at(SweepPoint((("lr", AxisValue("2", 2)),)))["lr"] == 2.0
    with pytest.raises(InvalidConfig, match="lr=fast"):
        composed.at(SweepPoint((("lr", AxisValue("fast", "fast")),)))


def test_a_sweep_of_a_billion_points_is_composed_at_once_with_flat_memory(desk: Desk):
    tracemalloc.start()
    composed = desk.compose("lr=lin:0:1:100000", "model.depth=range:0:10000", files=[], schema=SCHEMA)
    assert composed.sweep is not None
    assert size(composed.sweep) == 10**9
    walk = points(composed.sweep)
    for _ in range(2_000):
        identity_at(composed, next(walk))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30 * 2**20


def test_ten_thousand_trials_are_expanded_composed_and_named_in_two_seconds(desk: Desk):
    desk.write(config="".join(f"k{n}: {{a: {n}, b: [1, 2], c: text}}\n" for n in range(10)) + "lr: 1\nm: {d: 1}\n")
    best, names = 99.0, set[str]()
    for _ in range(3):
        started = time.process_time()
        composed = desk.compose("lr=lin:0:1:100", "m.d=range:0:100")
        assert composed.sweep is not None
        names = {identity_at(composed, point) for point in points(composed.sweep)}
        best = min(best, time.process_time() - started)
    assert len(names) == 10_000
    assert best < 2.0
