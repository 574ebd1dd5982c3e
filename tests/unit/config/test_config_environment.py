"""The environment as a layer: names into paths, text by type."""

from __future__ import annotations

import pytest

from tests.unit.config.composing import Desk, closed, real, reals, text, whole

SCHEMA = closed(lr=real(0.1), model__depth=whole(3), name=text("x"), opts=reals({}))


def test_two_underscores_stand_for_a_dot(desk: Desk):
    values = desk.values(files=[], schema=SCHEMA, env={"STOKER__model__depth": "5", "STOKER__lr": "1e-3"})
    assert (values["model"]["depth"], values["lr"]) == (5, 1e-3)


@pytest.mark.parametrize("name", ["STOKER__MODEL__DEPTH", "STOKER__Model__depth", "STOKER__model__DEPTH"])
def test_a_step_that_is_not_known_as_written_is_looked_up_in_small_letters(desk: Desk, name: str):
    assert desk.values(files=[], schema=SCHEMA, env={name: "5"})["model"]["depth"] == 5


def test_the_exact_spelling_goes_first(desk: Desk):
    schema = closed(LR=real(1.0), lr=real(2.0))
    values = desk.values(files=[], schema=schema, env={"STOKER__LR": "9"})
    assert values == {"LR": 9.0, "lr": 2.0}


def test_only_names_with_two_underscores_are_ours(desk: Desk):
    assert desk.values(files=[], schema=SCHEMA, env={"STOKER_HOME": "/x", "PATH": "y", "STOKER_LR": "3"})["lr"] == 0.1


def test_the_declared_type_reads_the_text_and_quotes_are_part_of_it(desk: Desk):
    assert desk.values(files=[], schema=SCHEMA, env={"STOKER__name": "007"})["name"] == "007"
    assert desk.values(files=[], schema=SCHEMA, env={"STOKER__name": "'x', y"})["name"] == "'x', y"


@pytest.mark.parametrize(
    ("word", "value"),
    [("3", 3), ("1e-3", 1e-3), ("007", "007"), ("on", "on"), ("null", None), ("[1,2]", [1, 2]), ("a,b", "a,b"),
     ("range:1:3", "range:1:3"), ("'3'", "3"), ("(", "("), ("", "")],
)  # fmt: skip
def test_without_a_type_the_fixed_rules_read_and_the_rest_is_text(desk: Desk, word: str, value: object):
    assert desk.values(files=[], env={"STOKER__a": word}) == {"a": value}


def test_in_an_open_schema_capitals_mean_small_letters_unless_the_tree_has_them(desk: Desk):
    desk.write(config="LR: 1\nmodel: {Depth: 1}\n")
    env = {"STOKER__LR": "2", "STOKER__MODEL__Depth": "2", "STOKER__SEED": "3", "STOKER__newKey": "4"}
    assert desk.values(env=env) == {"LR": 2, "model": {"Depth": 2}, "seed": 3, "newKey": 4}


def test_a_name_that_a_closed_schema_does_not_know_is_a_fault_with_the_nearest(desk: Desk):
    fault = desk.fault(files=[], schema=SCHEMA, env={"STOKER__model__dpeth": "5"})
    assert fault.where == "STOKER__model__dpeth: model.dpeth"
    assert "'model.depth'" in fault.hint
    assert fault.shown == "STOKER__model__dpeth=5\n        ^^^^^^^^^^^^"


def test_a_value_that_does_not_fit_is_a_fault_under_the_value(desk: Desk):
    fault = desk.fault(files=[], schema=SCHEMA, env={"STOKER__lr": "fast"})
    assert fault.shown == "STOKER__lr=fast\n           ^^^^"


@pytest.mark.parametrize("name", ["STOKER__", "STOKER__a__", "STOKER____a"])
def test_a_name_without_a_key_is_a_fault(desk: Desk, name: str):
    assert "names no key" in desk.fault(files=[], env={name: "1"}).message


def test_two_names_for_one_key_are_a_fault(desk: Desk):
    fault = desk.fault(files=[], schema=SCHEMA, env={"STOKER__LR": "1", "STOKER__lr": "2"})
    assert "STOKER__LR sets it, too" in fault.message


def test_a_group_of_settings_takes_no_single_value(desk: Desk):
    assert "group of settings" in desk.fault(files=[], schema=SCHEMA, env={"STOKER__model": "1"}).message


def test_text_that_is_not_unicode_is_refused(desk: Desk):
    assert "Unicode" in desk.fault(files=[], env={"STOKER__a": "\udcff"}).message


def test_a_name_of_too_many_steps_is_a_fault(desk: Desk):
    name = "STOKER__a" + "__a" * 20_000
    fault = desk.fault(files=[], env={name: "1"})
    assert (fault.where, fault.message) == (name, "is nested deeper than 50 levels")
    assert desk.values(files=[], env={"STOKER__a" + "__a" * 49: "1"})
