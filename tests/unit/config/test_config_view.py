"""Configurations as text that reads back as the same values."""

from __future__ import annotations

import math

import pytest

from stoker.config.compose import scalar_text, to_json, to_yaml
from stoker.core.jsontext import loads
from tests.unit.config.composing import Desk

VALUES = {
    "lr": 1e-05,
    "big": math.inf,
    "small": -math.inf,
    "zero": -0.0,
    "none": None,
    "yes": True,
    "count": 12,
    "text": "plain words",
    "number_text": "007",
    "word_text": "null",
    "odd": "a: b #c 'd' \"e\"\n\tü \\ \u2028 \x85",
    "empty": "",
    "spaces": "  x ",
    "dash": "- a",
    "reference": "${a}",
    "list": [1, "x", None, 2.5],
    "none_in_it": [],
    "no_keys": {},
    "nested": {"a": {"b": [{"c": 1, "d": [1, [2]]}, "e"]}, "on": "off"},
    "odd: key": {"": 1},
}


def test_yaml_reads_back_as_the_same_values(desk: Desk):
    from stoker.config.config_file import read_config

    path = desk.folder / "out.yaml"
    path.write_text(to_yaml(VALUES), encoding="utf-8")
    faults: list = []
    _, tree = read_config("out.yaml", str(path), faults)
    assert not faults
    assert tree is not None
    assert tree.plain() == VALUES
    assert repr(tree.plain()) == repr(VALUES)


def test_yaml_of_nothing_is_an_empty_map():
    assert to_yaml({}) == "{}\n"


def test_yaml_looks_as_a_person_would_write_it(desk: Desk):
    composed = desk.compose("model.depth=3", "lr=1e-3", "tags=[a,b]", "name='007'", files=[])
    assert composed.to_yaml() == 'model:\n  depth: 3\nlr: 0.001\ntags: [a, b]\nname: "007"\n'


def test_json_reads_back_as_the_same_values():
    assert repr(loads(to_json(VALUES))) == repr(VALUES)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (3, "3"), (1e-5, "1e-05"), (math.nan, ".nan"), (-math.inf, "-.inf"),
     ("a b", "a b"), ("3", '"3"'), ("yes", "yes"), ("", '""'), ("a:", '"a:"'), ("#", '"#"'), ("x ", '"x "')],
)  # fmt: skip
def test_single_values(value, text):
    assert scalar_text(value) == text
