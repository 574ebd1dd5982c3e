"""A file's sweep and a command line's together."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.config.file_set import combined
from stoker.config.positions import ConfigLayer, ValueOrigin
from stoker.config.sweep import Axis, Sweep, points, size
from stoker.config.sweep_file import read_sweep
from stoker.core.errors import Diagnostic
from tests.fakes.overrides import parse_overrides


def both(tree: Any, *words: str) -> tuple[Sweep | None, list[Diagnostic]]:
    sweep, faults = (
        read_sweep(tree, lambda _: ValueOrigin(layer=ConfigLayer.FILE, where="s.yaml")) if tree else (None, [])
    )
    assert not faults
    said = {
        found.value.path if isinstance(found.value, Axis) else found.path: found.value
        for found in parse_overrides(words)
    }
    return combined(sweep, said)


def labels(tree: Any, *words: str) -> list[str]:
    sweep, faults = both(tree, *words)
    assert not faults
    if sweep is None:
        return []
    found = [point.label for point in points(sweep)]
    assert size(sweep) == len(found)
    return found


TREE = {"lr": [0.1, 0.01], "zip": {"a": [1, 2], "b": ["x", "y"]}}


@pytest.mark.parametrize(
    ("tree", "words", "expected"),
    [
        (None, "", ""),
        (None, "lr=0.1", ""),
        (None, "lr=1,2 d=3,4", "lr=1,d=3 lr=1,d=4 lr=2,d=3 lr=2,d=4"),
        ({"lr": [1, 2]}, "d=3,4", "lr=1,d=3 lr=1,d=4 lr=2,d=3 lr=2,d=4"),
        ({"lr": [1, 2]}, "lr=5,6,7", "lr=5 lr=6 lr=7"),
        ({"lr": [1, 2], "d": [3, 4]}, "lr=5,6", "lr=5,d=3 lr=5,d=4 lr=6,d=3 lr=6,d=4"),
        ({"lr": [1, 2], "d": [3, 4]}, "lr=5", "d=3 d=4"),
        ({"lr": [1, 2], "d": [3, 4]}, "~lr", "d=3 d=4"),
        ({"lr": [1, 2]}, "lr=5", ""),
        ({"lr": [1, 2]}, "other=5", "lr=1 lr=2"),
        (TREE, "a=7,8", "lr=0.1,a=7,b=x lr=0.1,a=8,b=y lr=0.01,a=7,b=x lr=0.01,a=8,b=y"),
        (TREE, "a=7 lr=1", "b=x b=y"),
        (TREE, "a=7 b=8 lr=1,2", "lr=1 lr=2"),
        ({"lr": [1, 2], "sample": 1}, "lr=5", ""),
        ({"concat": [{"a": [1, 2]}, {"b": [1]}]}, "a=7,8", "a=7 a=8 b=1,a=7 b=1,a=8"),
        ({"concat": [{"a": [1, 2]}, {"b": [1]}]}, "c=7,8", "a=1,c=7 a=1,c=8 a=2,c=7 a=2,c=8 b=1,c=7 b=1,c=8"),
        ({"concat": [{"a": [1, 2], "b": [3]}, {"b": [1]}]}, "a=7", "b=3 b=1"),
    ],
)
def test_words_win_and_new_axes_multiply(tree: Any, words: str, expected: str) -> None:
    assert labels(tree, *words.split()) == expected.split()


def test_what_a_file_leaves_out_is_left_out_of_the_whole() -> None:
    tree = {"lr": [1, 2], "d": [3, 4], "exclude": [{"lr": 1, "d": 3}]}
    assert labels(tree, "s=0,1") == [
        "lr=1,d=4,s=0", "lr=1,d=4,s=1", "lr=2,d=3,s=0", "lr=2,d=3,s=1", "lr=2,d=4,s=0", "lr=2,d=4,s=1",
    ]  # fmt: skip
    assert labels(tree, "lr=1,5") == ["lr=1,d=4", "lr=5,d=3", "lr=5,d=4"]


def test_a_single_value_still_counts_for_what_is_left_out() -> None:
    tree = {"lr": [1, 2], "d": [3, 4], "exclude": [{"lr": 1, "d": 3}]}
    assert labels(tree, "lr=1") == ["d=4,lr=1"]
    assert labels(tree, "lr=2") == ["d=3,lr=2", "d=4,lr=2"]


def test_a_sample_is_taken_of_the_whole() -> None:
    tree = {"lr": "range:50", "sample": {"n": 4, "seed": 1}}
    assert len(labels(tree, "d=range:50")) == 4


def test_a_zipped_axis_is_replaced_only_by_one_of_its_length() -> None:
    _, (fault,) = both(TREE, "lr=1,2", "a=7,8,9")
    assert fault.where == "argument 2"
    assert fault.message == "zip of unequal lengths: a has 3, b has 2"
    assert fault.shown == "a=7,8,9\n  ^"


def test_leaving_out_everything_is_a_fault() -> None:
    _, (fault,) = both({"lr": [1, 2], "exclude": [{"lr": 1}]}, "lr=1")
    assert fault.message == "every point is left out"
