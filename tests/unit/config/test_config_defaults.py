"""Defaults lists and groups: which files count, in which order, under which path."""

from __future__ import annotations

import pytest

from tests.unit.config.composing import Desk, closed, text, whole


def test_a_file_is_merged_after_those_that_it_names(desk: Desk):
    desk.write(config="defaults: [base]\na: 1\n", base="a: 2\nb: 2\n")
    assert desk.values() == {"a": 1, "b": 2}


def test_self_says_where_the_file_itself_comes(desk: Desk):
    desk.write(config="defaults: [_self_, base]\na: 1\nc: 1\n", base="a: 2\n")
    assert desk.values() == {"a": 2, "c": 1}


def test_a_groups_option_is_put_under_the_groups_name(desk: Desk):
    desk.write(config="defaults:\n  - model: small\nlr: 1\n", model__small="depth: 3\n")
    assert desk.values() == {"model": {"depth": 3}, "lr": 1}


def test_a_list_in_toml_means_the_same(desk: Desk):
    desk.write(
        config_toml='defaults = ["base", {model = "small"}, {"optional data" = "none"}]\nlr = 1\n',
        base="lr: 2\nseed: 2\n",
        model__small_toml="depth = 3\n",
    )
    assert desk.values(files=["config.toml"]) == {"lr": 1, "seed": 2, "model": {"depth": 3}}


def test_an_override_without_dots_chooses_an_option(desk: Desk):
    desk.write(config="defaults:\n  - model: small\n", model__small="depth: 3\n", model__large="depth: 9\n")
    composed = desk.compose("model=large")
    assert composed.values == {"model": {"depth": 9}}
    assert composed.groups == {"model": ("large",)}


def test_maps_merge_and_lists_replace(desk: Desk):
    desk.write(config="defaults: [base]\nm: {y: 2}\nl: [3]\n", base="m: {x: 1, y: 1}\nl: [1, 2]\n")
    assert desk.values() == {"m": {"x": 1, "y": 2}, "l": [3]}


def test_a_group_put_elsewhere(desk: Desk):
    desk.write(config="defaults:\n  - db@source: my\n  - db@to.target: pg\n", db__my="x: 1\n", db__pg="x: 2\n")
    assert desk.values() == {"source": {"x": 1}, "to": {"target": {"x": 2}}}
    assert desk.values("db@source=pg")["source"] == {"x": 2}


def test_a_group_put_at_the_top_and_one_put_here(desk: Desk):
    desk.write(
        config="defaults:\n  - server: apache\n  - db@_global_: my\n",
        db__my="x: 1\n",
        server__apache="defaults:\n  - part@_here_: one\nport: 1\n",
        server__part__one="y: 1\n",
    )
    assert desk.values() == {"server": {"y": 1, "port": 1}, "x": 1}


def test_groups_in_a_groups_file_lie_beside_it_and_below_its_package(desk: Desk):
    desk.write(
        config="defaults:\n  - server: apache\n",
        server__apache="defaults:\n  - db: my\n  - /log: quiet\n  - shared\nport: 1\n",
        server__db__my="x: 1\n",
        server__db__pg="x: 2\n",
        server__shared="y: 1\n",
        log__quiet="level: 0\n",
    )
    assert desk.values() == {"server": {"db": {"x": 1}, "log": {"level": 0}, "y": 1, "port": 1}}
    assert desk.values("server/db=pg")["server"]["db"] == {"x": 2}


def test_an_override_in_a_list_replaces_an_option_and_the_outer_one_wins(desk: Desk):
    desk.write(
        config="defaults:\n  - db: a\n  - exp: e\n",
        db__a="x: a\n",
        db__b="x: b\n",
        db__c="x: c\n",
        exp__e="# @package _global_\ndefaults:\n  - override /db: b\nz: 1\n",
        outer="defaults:\n  - config\n  - override db: c\n",
    )
    assert desk.values() == {"db": {"x": "b"}, "z": 1}
    assert desk.values(files=["outer.yaml"])["db"] == {"x": "c"}
    assert desk.values("db=a", files=["outer.yaml"])["db"] == {"x": "a"}


def test_an_override_of_what_no_list_has_is_a_fault(desk: Desk):
    desk.write(config="defaults:\n  - model: a\n  - override modle: b\n", model__a="x: 1\n")
    fault = desk.fault()
    assert fault.where == "config.yaml:3:5"
    assert "'model'" in fault.hint


def test_an_override_of_a_group_that_is_listed_after_its_file_is_a_fault(desk: Desk):
    desk.write(
        config="defaults:\n  - exp: e\n  - db: a\n",
        db__a="x: 1\n",
        exp__e="# @package _global_\ndefaults:\n  - override /db: b\n",
    )
    (fault,) = desk.faults()
    assert fault.message == "the group db is already chosen at config.yaml:3:5, so it can't be overridden"
    assert fault.hint == "list the group db before the entry that names this file"
    assert fault.where.startswith("exp/e.yaml:3")
    assert desk.values("db=a")["db"] == {"x": 1}


def test_a_group_without_an_option_waits_for_one(desk: Desk):
    desk.write(config="defaults:\n  - db: null\na: 1\n", db__my="x: 1\n")
    assert desk.values() == {"a": 1}
    assert desk.values("db=my") == {"db": {"x": 1}, "a": 1}


def test_several_options_of_a_group_are_merged_in_order(desk: Desk):
    desk.write(config="defaults:\n  - db: [my, pg]\n", db__my="x: 1\ny: 1\n", db__pg="x: 2\n")
    assert desk.values() == {"db": {"x": 2, "y": 1}}
    assert desk.values("db=[pg,my]") == {"db": {"x": 1, "y": 1}}


def test_a_group_is_added_changed_by_force_and_deleted(desk: Desk):
    desk.write(config="a: 1\n", db__my="x: 1\n", db__pg="x: 2\n", listed="defaults:\n  - db: my\na: 1\n")
    assert desk.values("+db=my") == {"a": 1, "db": {"x": 1}}
    assert desk.values("++db=my") == {"a": 1, "db": {"x": 1}}
    assert desk.values("++db=pg", files=["listed.yaml"]) == {"db": {"x": 2}, "a": 1}
    assert desk.values("~db", files=["listed.yaml"]) == {"a": 1}
    assert desk.values("~db=my", files=["listed.yaml"]) == {"a": 1}


def test_a_group_that_no_list_has_is_only_added_with_a_plus(desk: Desk):
    desk.write(config="a: 1\n", db__my="x: 1\n")
    fault = desk.fault("db=my")
    assert fault.where == "argument 1"
    assert "+db=my" in fault.hint


def test_a_map_for_a_group_sets_its_leaves(desk: Desk):
    desk.write(config="defaults:\n  - db: my\n", db__my="x: 1\ny: 1\n")
    assert desk.values("db={x: 5}") == {"db": {"x": 5, "y": 1}}


def test_a_deletion_of_a_leaf_that_is_called_like_a_group(desk: Desk):
    desk.write(config="db: 1\na: 1\n", db__my="x: 1\n")
    assert desk.values("~db") == {"a": 1}


def test_an_option_that_is_not_there_is_a_fault_with_the_nearest_one(desk: Desk):
    desk.write(config="defaults:\n  - model: smal\n", model__small="x: 1\n", model__large="x: 2\n")
    fault = desk.fault()
    assert fault.where == "config.yaml:2:5"
    assert fault.message == "there is no option 'smal' of the group model"
    assert "'small'" in fault.hint
    chosen = desk.fault("model=lrage")
    assert chosen.where == "argument 1"
    assert "'large'" in chosen.hint


def test_a_missing_file_in_a_list_says_which_there_are(desk: Desk):
    desk.write(config="defaults: [elsewhere]\n")
    assert desk.fault().message == "there is no file elsewhere.yaml"


def test_an_optional_option_may_be_missing(desk: Desk):
    desk.write(config="defaults:\n  - optional model: none\n  - optional local\na: 1\n")
    assert desk.values() == {"a": 1}


def test_a_circle_of_lists_names_the_whole_chain(desk: Desk):
    desk.write(config="defaults: [one]\n", one="defaults: [two]\n", two="defaults: [config]\n")
    fault = desk.fault()
    assert "config.yaml → one.yaml → two.yaml → config.yaml" in fault.message
    assert fault.where.startswith("two.yaml:1:")


def test_lists_that_multiply_are_bounded(desk: Desk):
    for n in range(12):
        desk.write(**{f"f{n}": f"defaults: [f{n + 1}, f{n + 1}]\n"})
    desk.write(f12="a: 1\n")
    assert "more than" in desk.faults(files=["f0.yaml"])[0].message


def test_a_group_chosen_twice_is_a_fault_where_it_is_chosen_again(desk: Desk):
    desk.write(config="defaults:\n  - db: my\n  - db: pg\n", db__my="x: 1\n", db__pg="x: 2\n")
    fault = desk.fault()
    assert fault.where == "config.yaml:3:5"
    assert "override" in fault.hint


def test_a_group_that_a_word_adds_although_it_is_chosen_is_a_fault_that_says_how_to_change_it(desk: Desk):
    desk.write(config="defaults:\n  - db: my\n", db__my="x: 1\n", db__pg="x: 2\n")
    assert desk.fault("+db=pg").hint == "write db=OPTION, without +"


@pytest.mark.parametrize(
    "entry",
    ["3", "{a: b, c: d}", "[a]", "override db", "model: 3", "model: {a: b}", "model: ${x}", "a b c: d", "db@a@b: x",
     "null"],
)  # fmt: skip
def test_an_entry_that_is_none_is_a_fault_with_its_place(desk: Desk, entry: str):
    desk.write(config=f"a: 1\ndefaults:\n  - {entry}\n", db__my="x: 1\n")
    assert desk.fault().where.startswith("config.yaml:3:")


def test_a_list_that_is_none_is_a_fault(desk: Desk):
    desk.write(config="defaults: base\n")
    assert desk.fault().where == "config.yaml:1:11: defaults"


def test_the_header_of_hydras_files_says_where_a_file_is_put(desk: Desk):
    desk.write(
        config="defaults:\n  - exp: a\n  - exp2: b\n",
        exp__a="# a comment\n\n# @package _global_\nlr: 1\n",
        exp2__b="# @package some.where\nx: 1\n",
    )
    assert desk.values() == {"lr": 1, "some": {"where": {"x": 1}}}


def test_groups_lie_beside_the_file_that_is_named(desk: Desk):
    desk.write(
        conf__config="defaults:\n  - model: a\n", conf__model__a="x: 1\n", conf__model__b="x: 2\n", model__b="x: 9"
    )
    assert desk.values("model=b", files=["conf/config.yaml"]) == {"model": {"x": 2}}


def test_each_of_several_files_has_its_own_groups_and_the_later_wins(desk: Desk):
    desk.write(
        one="defaults:\n  - model: a\nlr: 1\nseed: 1\n",
        model__a="x: 1\ny: 1\n",
        two="model: {x: 2}\nlr: 2\n",
    )
    values = desk.values(files=["one.yaml", "two.yaml"])
    assert values == {"model": {"x": 2, "y": 1}, "lr": 2, "seed": 1}


def test_a_declared_leaf_is_not_taken_for_a_group_by_a_folder_of_its_name(desk: Desk):
    desk.write(config="lr: 1\n", data__stray="x: 1\n")
    schema = closed(lr=whole(0), data=text("none"))
    assert desk.values("data=train.csv", schema=schema)["data"] == "train.csv"


def test_a_folder_without_configuration_files_is_no_group(desk: Desk):
    desk.write(config="data: a\n")
    (desk.folder / "data").mkdir()
    (desk.folder / "data" / "train.csv").write_text("x")
    assert desk.values("data=b") == {"data": "b"}


def test_a_word_that_can_only_be_a_group_needs_one(desk: Desk):
    desk.write(config="a: 1\n")
    assert desk.fault("db/my=x").message == "there is no group db/my"
    assert desk.fault("db@here=x").message == "there is no group db"
    assert desk.fault("db/my=x", files=[]).message == "there is no group db/my"


def test_a_groups_fault_has_the_place_in_its_own_file(desk: Desk):
    desk.write(config="defaults:\n  - model: a\n", model__a="depth: deep\nwidht: 1\n")
    found = desk.faults(schema=closed(model__depth=whole(1), model__width=whole(1)))
    assert [fault.where for fault in found] == ["model/a.yaml:1:8: model.depth", "model/a.yaml:2:1: model.widht"]
    assert "'model.width'" in found[1].hint
