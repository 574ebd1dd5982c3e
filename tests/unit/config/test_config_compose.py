"""Layers: who wins, what is refused, and that everything wrong is told at once with its place."""

from __future__ import annotations

import math

import pytest

from stoker.config.positions import ConfigLayer
from stoker.config.sweep import points
from stoker.config.values import NOTHING, Schema
from stoker.core.errors import InvalidConfig
from tests.unit.config.composing import Desk, closed, real, reals, text, texts, whole

MODEL = closed(
    lr=real(0.1),
    model__depth=whole(3),
    model__width=whole(64),
    name=text("run"),
    tags=texts([]),
    opts=reals({"a": 1.0}),
)


def test_later_layers_win(desk: Desk):
    desk.write(config="lr: 2\nmodel: {depth: 2, width: 2}\nname: file\n", second="name: second\n")
    values = desk.values(
        "model.depth=5",
        files=["config.yaml", "second.yaml"],
        schema=MODEL,
        env={"STOKER__model__depth": "4", "STOKER__model__width": "4"},
    )
    assert values == {
        "lr": 2.0,
        "model": {"depth": 5, "width": 4},
        "name": "second",
        "tags": [],
        "opts": {"a": 1.0},
    }


def test_every_leaf_keeps_what_each_layer_said_the_winner_last(desk: Desk):
    desk.write(config="lr: 2\n")
    composed = desk.compose("lr=4", schema=MODEL, env={"STOKER__lr": "3"})
    stack = composed.origins["lr"]
    assert [one.value for one in stack] == [0.1, 2.0, 3.0, 4.0]
    assert [one.origin.layer for one in stack] == [
        ConfigLayer.DEFAULT,
        ConfigLayer.FILE,
        ConfigLayer.ENVIRONMENT,
        ConfigLayer.OVERRIDE,
    ]
    assert [str(one.origin) for one in stack] == ["default", "config.yaml:1:5", "STOKER__lr", "argument 1 (lr=4)"]


def test_the_declared_type_decides_how_text_is_read(desk: Desk):
    values = desk.values("lr=.5", "name=007", "tags=[007,on]", files=[], schema=MODEL)
    assert (values["lr"], values["name"], values["tags"]) == (0.5, "007", ["007", "on"])
    assert desk.values("lr=-inf", files=[], schema=MODEL)["lr"] == -math.inf


def test_without_a_type_the_fixed_rules_read(desk: Desk):
    values = desk.values("a=007", "b=1e-5", "c=on", "d=true", "e=null", "f=[1,x]", files=[])
    assert values == {"a": "007", "b": 1e-5, "c": "on", "d": True, "e": None, "f": [1, "x"]}


def test_text_in_quotes_is_text_where_text_may_stand(desk: Desk):
    values = desk.values("a='3'", 'b="null"', files=[])
    assert values == {"a": "3", "b": "null"}
    assert desk.values("lr='3'", "name='null'", files=[], schema=MODEL)["lr"] == 3.0


def test_a_file_with_six_mistakes_brings_six_faults(desk: Desk):
    desk.write(
        config="""\
        lr: fast
        depth: 3
        model:
          widht: 64
          depth: 2.5
        name: 007
        tags: ${nowhere.at.all}
        """
    )
    found = desk.faults(schema=MODEL)
    assert [fault.where for fault in found] == [
        "config.yaml:1:5: lr",
        "config.yaml:2:1: depth",
        "config.yaml:4:3: model.widht",
        "config.yaml:5:10: model.depth",
        "config.yaml:6:7: name",
        "config.yaml:7:7: tags",
    ]
    assert all("^" in fault.shown for fault in found)
    assert "'model.depth'" in found[1].hint
    assert "'model.width'" in found[2].hint
    assert "quotes" in found[4].hint


def test_faults_of_all_layers_come_together(desk: Desk):
    desk.write(config="lr: x\n")
    found = desk.faults("lr=y", "model.dpeth=1", schema=MODEL, env={"STOKER__lr": "z", "STOKER__nmae": "q"})
    assert [fault.where for fault in found] == [
        "config.yaml:1:5: lr",
        "STOKER__lr: lr",
        "STOKER__nmae: nmae",
        "argument 1: lr",
        "argument 2: model.dpeth",
    ]


def test_a_value_that_a_later_layer_replaces_is_checked_all_the_same(desk: Desk):
    desk.write(config="lr: fast\n")
    assert desk.fault("lr=1", schema=MODEL).where == "config.yaml:1:5: lr"


def test_the_error_of_one_fault_says_it_and_of_several_counts_them(desk: Desk):
    desk.write(config="lr: x\n")
    with pytest.raises(InvalidConfig, match="expected a number"):
        desk.compose(schema=MODEL)
    with pytest.raises(InvalidConfig, match="2 errors in the configuration"):
        desk.compose("lr=y", schema=MODEL)


def test_a_single_value_for_a_group_of_settings_is_a_fault_and_nothing_is_none(desk: Desk):
    desk.write(config="model: 3\n", empty="model:\nlr: 1\n")
    fault = desk.fault(schema=MODEL)
    assert fault.where == "config.yaml:1:8: model"
    assert fault.hint == "it holds depth, width"
    assert desk.values(files=["empty.yaml"], schema=MODEL)["model"] == {"depth": 3, "width": 64}
    assert desk.fault("model=3", files=[], schema=MODEL).where == "argument 1: model"


def test_an_unknown_group_of_settings_is_one_fault(desk: Desk):
    desk.write(config="optimizer: {a: 1, b: 2, c: {d: 1}}\n")
    assert desk.fault(schema=MODEL).where == "config.yaml:1:1: optimizer"


@pytest.mark.parametrize("line", ["a.b: 1", "'': 1", "m: {x.y: 1}"])
def test_a_key_with_a_dot_in_it_is_refused(desk: Desk, line: str):
    desk.write(config=f"{line}\n")
    assert "is not a key" in desk.fault().message


def test_keys_inside_a_declared_map_are_free(desk: Desk):
    desk.write(config="opts: {x.y: 1, a: 2}\n")
    assert desk.values(schema=MODEL)["opts"] == {"a": 2.0, "x.y": 1.0}


def test_a_required_leaf_that_nobody_gives_is_a_fault(desk: Desk):
    schema = closed(data=text(), lr=real(1.0))
    fault = desk.fault(files=[], schema=schema)
    assert (fault.where, fault.message) == ("data", "is required (text)")
    assert desk.values("data=x", files=[], schema=schema)["data"] == "x"
    assert desk.values("+data=x", files=[], schema=schema)["data"] == "x"


def test_a_required_leaf_that_was_given_wrongly_is_one_fault(desk: Desk):
    desk.write(config="data: 3\n")
    assert desk.fault(schema=closed(data=text())).where == "config.yaml:1:7: data"


def test_what_an_unread_file_may_have_given_is_not_missed(desk: Desk):
    desk.write(config="a: [\n")
    assert "is not YAML" in desk.fault(schema=closed(data=text())).message


def test_a_leaf_over_a_branch_buries_what_was_below_and_the_other_way_round(desk: Desk):
    desk.write(config="a: {b: 1, c: {d: 2}}\n", leaf="a: 3\n", branch="a: {e: 4}\n")
    composed = desk.compose(files=["config.yaml", "leaf.yaml", "branch.yaml"])
    assert composed.values == {"a": {"e": 4}}
    assert composed.origins["a.b"][-1].value is NOTHING
    assert composed.origins["a.c.d"][-1].value is NOTHING
    assert composed.origins["a"][-1].value is NOTHING
    assert str(composed.origins["a.b"][-1].origin) == "leaf.yaml:1:4"
    assert [row.path for row in composed.rows()] == ["a.e"]


def test_an_empty_map_adds_nothing_and_takes_nothing(desk: Desk):
    desk.write(config="a: {b: 1}\nc: {}\n", second="a: {}\nc: {d: 1}\n")
    assert desk.values() == {"a": {"b": 1}, "c": {}}
    assert desk.values(files=["config.yaml", "second.yaml"]) == {"a": {"b": 1}, "c": {"d": 1}}


def test_notes_are_kept_beside_the_values(desk: Desk):
    composed = desk.compose("+note=x", "+model.extra=${lr}", "++why=1", "note=y", files=[], schema=MODEL)
    assert composed.notes == {"note": "y", "model.extra": 0.1, "why": 1}
    assert "note" not in composed.values
    assert composed.values["model"] == {"depth": 3, "width": 64}
    assert composed.identity() == desk.compose(files=[], schema=MODEL).identity()
    assert composed.full() != desk.compose(files=[], schema=MODEL).full()


def test_an_open_schema_with_declared_leaves_types_those_and_takes_the_rest(desk: Desk):
    schema = Schema(leaves=closed(threads=whole(1, runtime=True)).leaves, is_open=True)
    assert desk.values("lr=0.5", "threads=2", files=[], schema=schema) == {"lr": 0.5, "threads": 2}
    assert desk.fault("threads=many", files=[], schema=schema).where == "argument 1: threads"


def test_a_default_is_not_shared_between_configurations(desk: Desk):
    first = desk.compose(files=[], schema=MODEL)
    first.values["opts"]["b"] = 2.0
    assert desk.values(files=[], schema=MODEL)["opts"] == {"a": 1.0}


def test_explain_tells_the_stack_of_a_leaf_and_of_all_below_a_branch(desk: Desk):
    desk.write(config="model: {depth: 2}\n")
    composed = desk.compose("model.depth=5", schema=MODEL)
    assert [one.value for one in composed.explain("model.depth")["model.depth"]] == [3, 2, 5]
    assert set(composed.explain("model")) == {"model.depth", "model.width"}
    assert composed.explain("nothing") == {}
    assert "opts" in composed.explain("opts.a")


def test_explain_of_a_trial_ends_with_its_choice(desk: Desk):
    composed = desk.compose("lr=1,2", files=[], schema=MODEL)
    assert composed.sweep is not None
    second = list(points(composed.sweep))[1]
    last = composed.explain("lr", second)["lr"][-1]
    assert (last.value, last.origin.layer, str(last.origin)) == (2.0, ConfigLayer.SWEEP, "lr=2")


def test_rows_give_value_and_winner_of_each_leaf(desk: Desk):
    desk.write(config="lr: 2\n")
    rows = {row.path: row for row in desk.compose("+note=x", schema=MODEL).rows()}
    assert (rows["lr"].value, str(rows["lr"].origin)) == (2.0, "config.yaml:1:5")
    assert (rows["model.depth"].value, str(rows["model.depth"].origin)) == (3, "default")
    assert rows["note"].is_note
    assert not rows["lr"].is_note


def test_the_record_is_plain_data_and_says_what_was_deleted(desk: Desk):
    from stoker.core.jsontext import dumps, loads

    desk.write(config="a: {b: .nan}\nc: 1\n")
    record = desk.compose("~c").record()
    assert record["origins"]["c"][-1] == {"layer": "override", "from": "argument 1 (~c)", "deletes": True}
    read = loads(dumps(record))
    assert math.isnan(read["values"]["a"]["b"])
    assert read["origins"]["a.b"][0]["from"] == "config.yaml:1:8"


def test_thirty_thousand_leaves_replaced_by_others_take_seconds_at_most(desk: Desk):
    many = 10_000
    desk.write(
        config="".join(f"k{n}: {{a: 1, b: 2}}\n" for n in range(many)),
        second="".join(f"k{n}: 1\n" for n in range(many)),
    )
    assert desk.values(files=["config.yaml", "second.yaml"])["k77"] == 1
