"""Names of points: fit for a shell and a folder, readable, and never shared by two."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stoker.config.sweep import label_of, read_label

ODD: list[Any] = [
    "", " ", "a b", "a/b", "$HOME", "`x`", "a'b", 'a"b', "*", "~", "a=b", "a,b", "größe", "\n", "1", "true", "null",
    "[]", "x" * 41, "1.0", [1, 2], [1, "2"], {"a": 1}, {"a": "1"}, [], {}, [""], "nan", "a@b", "!x", "#x", ";", "&",
]  # fmt: skip
PLAIN: list[Any] = [
    0,
    1,
    -1,
    1.0,
    0.1,
    1e-5,
    1e300,
    True,
    False,
    None,
    float("inf"),
    float("nan"),
    "adam",
    "a-b_c.d",
    "007",
    "..",
    "-",
    "x" * 40,
]


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ([("lr", 0.001), ("model.depth", 3)], "lr=0.001,model.depth=3"),
        ([("lr", 1e-3)], "lr=0.001"),
        ([("opt", "adam"), ("flag", True), ("x", None)], "opt=adam,flag=true,x=null"),
        ([("version", "007")], "version=007"),
        ([("db/engine", "mysql"), ("db@src", "a")], "db+engine=mysql,db@src=a"),
        ([], ""),
    ],
)
def test_a_label_reads_like_the_words_that_made_it(values: list[tuple[str, Any]], label: str) -> None:
    assert label_of(values) == label


def test_no_two_values_share_a_label() -> None:
    labels = [label_of([("x", value)]) for value in [*ODD, *PLAIN]]
    assert len(set(labels)) == len(labels)


def test_plain_values_stand_as_they_are_and_odd_ones_end_in_a_digest() -> None:
    assert all("@" not in label_of([("x", value)]) for value in PLAIN)
    assert all("@" in label_of([("x", value)]) for value in ODD)
    assert label_of([("x", "a b/c")]).startswith("x=a_b_c@")


def test_a_label_is_one_word_in_a_shell_and_one_folder(tmp_path: Path) -> None:
    labels = [label_of([("a.b", value), ("db/x", value), ("$y", value)]) for value in [*ODD, *PLAIN]]
    assert [shlex.split(label) for label in labels] == [[label] for label in labels]
    said = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {' '.join(labels)}"], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == labels
    for label in labels:
        (tmp_path / label).mkdir()
    assert len(list(tmp_path.iterdir())) == len(labels)


def test_a_long_label_is_cut_and_stays_its_own() -> None:
    many = [[(f"parameter_{number}", value) for number in range(50)] for value in (1, 2)]
    one, other = (label_of(values) for values in many)
    assert one != other
    assert len(one.encode()) < 150
    assert label_of([("größe" * 100, 1)]).encode()


def test_labels_stay_what_they_are() -> None:
    assert label_of([("x", "a b")]) == "x=a_b@56048bf4a3a5"
    assert label_of([("x", [1, 2])]) == "x=1_2@acb324538e0b"


@pytest.mark.parametrize(
    "values",
    [{"lr": 0.001}, {"model.depth": 3, "name": "x", "flag": True}, {"optim/kind": "adam", "n": None}],
    ids=str,
)
def test_the_values_of_a_point_are_read_from_its_label(values: dict[str, Any]) -> None:
    assert read_label(label_of(values.items())) == values


@pytest.mark.parametrize("label", ["", "my best", "lr=1.0e-3", label_of([("text", "1")]), label_of([("a", "x" * 90)])])
def test_a_label_that_does_not_name_its_values_exactly_names_none(label: str) -> None:
    assert read_label(label) == {}
