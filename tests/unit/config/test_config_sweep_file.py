"""Sweeps as files say them: the algebra, and every fault with its place."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.config.positions import ConfigLayer, ValueOrigin
from stoker.config.sweep import Axis, Sweep, ValueForm, axes_of, points, size
from stoker.config.sweep_file import SweepPlace, read_sweep
from stoker.core.errors import Diagnostic


def origin_of(place: SweepPlace) -> ValueOrigin:
    return ValueOrigin(layer=ConfigLayer.FILE, where="s.yaml", line=1 + len(place), column=3, text="  lr: [1, 2]")


def read(tree: Any) -> Sweep:
    sweep, faults = read_sweep(tree, origin_of)
    assert not faults
    assert sweep is not None
    return sweep


def labels(tree: Any) -> list[str]:
    sweep = read(tree)
    found = [point.label for point in points(sweep)]
    assert size(sweep) == len(found)
    return found


def faults_of(tree: Any) -> list[Diagnostic]:
    sweep, faults = read_sweep(tree, origin_of)
    assert sweep is None
    return faults


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"lr": [0.1, 0.01]}, "lr=0.1 lr=0.01"),
        ({"lr": [0.1, 0.01], "d": [1, 2]}, "lr=0.1,d=1 lr=0.1,d=2 lr=0.01,d=1 lr=0.01,d=2"),
        ({"lr": "log:1e-4:1e-1:4"}, "lr=0.0001 lr=0.001 lr=0.01 lr=0.1"),
        ({"n": "range(1,6,2)"}, "n=1 n=3 n=5"),
        ({"o": "adam, sgd"}, "o=adam o=sgd"),
        ({"o": "choice(adam,sgd)"}, "o=adam o=sgd"),
        ({"o": "adam"}, "o=adam"),
        ({"x": 3}, "x=3"),
        ({"x": [None, True, "a"]}, "x=null x=true x=a"),
        ({"model": {"depth": [3, 5], "width": [1]}}, "model.depth=3,model.width=1 model.depth=5,model.width=1"),
        ({"model.depth": [3, 5]}, "model.depth=3 model.depth=5"),
        ({"db/engine": ["mysql", "sqlite"]}, "db+engine=mysql db+engine=sqlite"),
        ({"zip": {"a": [1, 2], "b": "x,y"}}, "a=1,b=x a=2,b=y"),
        ({"zip": {"m": {"a": [1, 2]}, "b": "range:2"}}, "m.a=1,b=0 m.a=2,b=1"),
        ({"zip": [{"a": [1, 2], "b": [3, 4]}, {"c": [5], "d": [6]}]}, "a=1,b=3,c=5,d=6 a=2,b=4,c=5,d=6"),
        ({"a": [1, 2], "repeat": 2}, "a=1,seed=0 a=1,seed=1 a=2,seed=0 a=2,seed=1"),
        ({"repeat": 2, "a": [1, 2]}, "seed=0,a=1 seed=0,a=2 seed=1,a=1 seed=1,a=2"),
        ({"repeat": {"n": 2, "path": "train.seed"}}, "train.seed=0 train.seed=1"),
        ({"concat": [{"a": [1, 2]}, {"b": [1], "c": [2]}]}, "a=1 a=2 b=1,c=2"),
        ({"d": [0, 1], "concat": [{"a": [1]}, {"a": [2]}]}, "d=0,a=1 d=0,a=2 d=1,a=1 d=1,a=2"),
        ({"concat": [{"a": [1, 2], "exclude": {"a": 1}}, {"b": [1, 2], "sample": 2}]}, "a=2 b=1 b=2"),
        ({"axes": {"zip": [1, 2], "repeat": "a,b"}}, "zip=1,repeat=a zip=1,repeat=b zip=2,repeat=a zip=2,repeat=b"),
        ({"exclude": [{"lr": 0.1, "d": 1}], "lr": [0.1, 0.01], "d": [1, 2]}, "lr=0.1,d=2 lr=0.01,d=1 lr=0.01,d=2"),
        ({"m": {"d": [1, 2]}, "e": [1], "exclude": [{"m": {"d": 1}}]}, "m.d=2,e=1"),
        ({"x": [{"a": 1}, 2], "exclude": {"x": {"a": 1}}}, "x=2"),
        ({"a": "range:3", "sample": {"n": 5}}, "a=0 a=1 a=2"),
    ],
)
def test_a_tree_says_which_points_there_are(tree: Any, expected: str) -> None:
    assert labels(tree) == expected.split()


def test_a_sample_keeps_the_order_and_its_count() -> None:
    tree = {"a": "range:100", "b": "range:100", "sample": {"n": 7, "seed": 2}}
    found = labels(tree)
    assert len(found) == 7
    assert found == labels(tree)
    assert found != labels({**tree, "sample": {"n": 7, "seed": 3}})


def test_values_of_a_file_are_values_and_its_expressions_are_text() -> None:
    (listed,) = axes_of(read({"x": [0.001, "007", [1, 2]]}))
    assert [(choice.text, choice.form) for choice in listed.choices] == [
        ("0.001", ValueForm.VALUE), ("007", ValueForm.VALUE), ("[1,2]", ValueForm.VALUE),
    ]  # fmt: skip
    (typed,) = axes_of(read({"x": "007,'1'"}))
    assert [(choice.text, choice.form) for choice in typed.choices] == [
        ("007", ValueForm.PLAIN),
        ("1", ValueForm.QUOTED),
    ]


def test_an_axis_knows_its_place() -> None:
    (axis,) = axes_of(read({"model": {"depth": [1, 2]}}))
    assert isinstance(axis, Axis)
    assert str(axis.origin) == "s.yaml:3:3"


@pytest.mark.parametrize(
    ("tree", "where", "says", "hint"),
    [
        ([1], "s.yaml:1:3: sweep", "a sweep is a map of paths and their values", ""),
        ({}, "s.yaml:1:3: sweep", "the sweep has no axis", "such as lr"),
        ({"sample": {"n": 3}}, "s.yaml:1:3: sweep", "the sweep has no axis", ""),
        ({"lr": []}, "s.yaml:2:3: sweep.lr", "lr has no values", "at least one"),
        ({"m": {"d": {}}}, "s.yaml:3:3: sweep.m.d", "m.d has no values", ""),
        ({"x y": [1]}, "s.yaml:2:3: sweep.x y", "'x y' is not a path", ""),
        ({7: [1]}, "s.yaml:2:3: sweep.7", "7 is not a path", ""),
        ({"lr": "log:0:1:3"}, "s.yaml:2:3: sweep.lr", "a logarithmic scale has no 0", "above 0"),
        ({"lr": "range:3:1"}, "s.yaml:2:3: sweep.lr", "has the wrong direction", ""),
        ({"lr": "[1,"}, "s.yaml:2:3: sweep.lr", "expected a value, found the end", ""),
        ({"zip": {"a": [1, 2], "b": [1]}}, "s.yaml:2:3: sweep.zip", "zip of unequal lengths: a has 2, b has 1", ""),
        ({"zip": 3}, "s.yaml:2:3: sweep.zip", "zip is a map", "swept under axes: {zip: …}"),
        ({"zip": [{"a": [1]}, 2]}, "s.yaml:3:3: sweep.zip.1", "zip is a map", ""),
        ({"repeat": 0}, "s.yaml:2:3: sweep.repeat", "repeat is a whole number from 1", "such as 3"),
        ({"repeat": True}, "s.yaml:2:3: sweep.repeat", "repeat is a whole number from 1", ""),
        ({"repeat": {"n": 2, "path": "a b"}}, "s.yaml:3:3: sweep.repeat.path", "'a b' is not a path", ""),
        ({"repeat": {"n": 2, "pth": "a"}}, "s.yaml:3:3: sweep.repeat.pth", "there is no 'pth' here", "'path'?"),
        ({"repeat": 10**19}, "s.yaml:2:3: sweep.repeat", "more than 10^18 points", ""),
        ({"concat": {}}, "s.yaml:2:3: sweep.concat", "concat is a list of sweeps", ""),
        ({"concat": []}, "s.yaml:2:3: sweep.concat", "concat is a list of sweeps", ""),
        ({"concat": [{"a": [1]}, {"b": []}]}, "s.yaml:4:3: sweep.concat.1.b", "b has no values", ""),
        ({"seed": [1], "repeat": 2}, "s.yaml:1:3: sweep", "seed is swept twice", ""),
        ({"a": [1], "zip": {"a": [1], "b": [2]}}, "s.yaml:1:3: sweep", "a is swept twice", ""),
        ({"a": [1, 2], "exclude": [{"b": 1}]}, "s.yaml:4:3: sweep.exclude.0.b", "b is not an axis", "axes: a"),
        ({"lr": [1, 2], "exclude": {"lrr": 1}}, "s.yaml:3:3: sweep.exclude.lrr", "lrr is not an axis", "mean 'lr'?"),
        ({"a": [1, 2], "exclude": [3]}, "s.yaml:3:3: sweep.exclude.0", "exclude is a list of maps", ""),
        ({"a": [1, 2], "exclude": [{"a": "1"}]}, "s.yaml:3:3: sweep.exclude.0", "no point of the sweep", "text"),
        ({"a": [1, 2], "exclude": [{}]}, "s.yaml:3:3: sweep.exclude.0", "no point of the sweep is like this", ""),
        ({"a": [1, 2], "exclude": [{"a": 1}, {"a": 2}]}, "s.yaml:2:3: sweep.exclude", "every point is left out", ""),
        ({"a": [1], "sample": {"n": 0}}, "s.yaml:2:3: sweep.sample", "sample has a whole number n from 1", ""),
        ({"a": [1], "sample": {"n": 1, "seed": 0.5}}, "s.yaml:2:3: sweep.sample", "sample has a whole number", ""),
        ({"a": [1], "sample": {"n": 1, "sed": 2}}, "s.yaml:3:3: sweep.sample.sed", "there is no 'sed' here", "'seed'"),
        ({"axes": [1]}, "s.yaml:2:3: sweep.axes", "axes is a map", ""),
    ],
)  # fmt: skip
def test_a_fault_has_its_place_and_a_hint(tree: Any, where: str, says: str, hint: str) -> None:
    (fault,) = faults_of(tree)
    assert fault.where == where
    assert says in fault.message
    assert hint in fault.hint
    assert fault.shown == "  lr: [1, 2]\n  ^"


def test_every_fault_of_a_sweep_comes_at_once() -> None:
    tree = {"lr": [], "zip": {"a": [1, 2], "b": [1]}, "repeat": 0, "concat": [{"c": "lin:1:2"}], "x y": [1]}
    assert [fault.where.rsplit(": ", 1)[1] for fault in faults_of(tree)] == [
        "sweep.lr", "sweep.zip", "sweep.repeat", "sweep.concat.0.c", "sweep.x y",
    ]  # fmt: skip


def test_sweeps_in_sweeps_are_bounded() -> None:
    tree: dict[str, Any] = {"a": [1]}
    for _ in range(40):
        tree = {"concat": [tree]}
    (fault,) = faults_of(tree)
    assert "nested deeper than 16 levels" in fault.message


def test_exclusions_that_can_not_be_counted_are_a_fault() -> None:
    tree: dict[str, Any] = {f"a{number}": [0, 1] for number in range(40)}
    tree["exclude"] = [{f"a{number}": 0} for number in range(40)]
    (fault,) = faults_of(tree)
    assert "overlap in too many ways" in fault.message
