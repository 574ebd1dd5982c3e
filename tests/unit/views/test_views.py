from __future__ import annotations

import shlex

import pytest

from stoker.jobs.job_history import NodeHistory
from stoker.views.stage_lines import finished_text
from stoker.views.text_tables import (
    ago,
    argument_rows,
    example_line,
    flat,
    limits_text,
    span,
    table,
    type_text,
    value_text,
)

SCHEMA = {
    "properties": {
        "data": {"type": "string", "format": "path", "description": "what to read"},
        "lr": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 0.1},
        "name": {"type": "string", "default": "it"},
        "jobs": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None, "x-runtime": True},
    },
    "required": ["data"],
}


def test_a_table_is_as_wide_as_it_has_to_be_and_wraps_its_last_column() -> None:
    rows = [["a", "one two three four five six seven"], ["longer", "x"]]
    assert table(rows, header=("k", "v")) == [
        "k       v",
        "a       one two three four five six seven",
        "longer  x",
    ]
    assert table(rows, columns=30) == ["a       one two three four", "        five six seven", "longer  x"]
    assert table([]) == []


def test_arguments_are_rows_with_type_default_limits_and_help() -> None:
    assert argument_rows(SCHEMA) == [
        ["data", "path", "required", "", "what to read"],
        ["lr", "float", "0.1", ">0 ≤1", ""],
        ["name", "text", "it", "", ""],
        ["jobs", "int or null", "null", "≥1", "(does not change the result)"],
    ]
    assert type_text({"enum": ["a", 2]}) == "a|2"
    assert type_text({"type": "array", "items": {"type": "integer"}}) == "list of int"
    assert limits_text({"minimum": 0, "maximum": 4294967295}) == "≥0 ≤4294967295"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), (True, "true"), ((1, 2), "[1,2]"), (["a", None], "[a,null]"), (0.5, "0.5")]
)
def test_a_value_is_written_as_it_is_typed(value: object, text: str) -> None:
    assert value_text(value) == text


def test_the_example_pastes_and_has_what_is_required_and_what_is_proposed() -> None:
    line = example_line("x/y", SCHEMA, {"data": "<path>", "lr": 0.1, "name": "two words", "jobs": None})
    assert line == "stoker run x/y data=PATH 'name=two words'"
    assert shlex.split(line)[3] == "data=PATH"


def test_arguments_in_a_record_have_dotted_names() -> None:
    shape = {
        "properties": {"depth": {"type": "integer", "default": 3}, "file": {"type": "string"}},
        "required": ["file"],
    }
    schema = {"properties": {"lr": {"type": "number", "default": 0.1}, "model": {**shape, "x-runtime": True}}}
    assert argument_rows(schema) == [
        ["lr", "float", "0.1", "", ""],
        ["model.depth", "int", "3", "", "(does not change the result)"],
        ["model.file", "text", "required", "", "(does not change the result)"],
    ]
    assert example_line("x/y", schema, {"model": {"depth": 3, "file": "<text>"}, "lr": 1}) == (
        "stoker run x/y lr=1 model.file=TEXT"
    )
    assert flat({"a": {"b": 1, "c": {"d": 2}}, "e": {}}) == {"a.b": 1, "a.c.d": 2, "e": {}}


def test_moments_and_spans_are_told_in_the_unit_that_fits() -> None:
    assert [ago(100.0, 100.0 + passed) for passed in (0.4, 5, 65, 7300, 90000)] == [
        "just now",
        "5 s ago",
        "1 min ago",
        "2 h ago",
        "1 d ago",
    ]
    assert [span(seconds) for seconds in (None, 0.004, 0.08, 0.5, 3.21, 61)] == [
        "",
        "4ms",
        "0.08s",
        "0.50s",
        "3.2s",
        "1m01s",
    ]


def test_colours_of_a_programs_last_words_do_not_colour_what_follows() -> None:
    node = NodeHistory(node="run", ending="failed", message="exit 1: \x1b[31mbad\x1b[2J thing")
    assert finished_text(node, 4).endswith("failed: exit 1: \\x1b[31mbad\\x1b[2J thing")
