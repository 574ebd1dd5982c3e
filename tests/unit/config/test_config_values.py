"""The fixed rules for plain text, and writing values so that they read back."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stoker.config.value_grammar import read_value
from stoker.config.values import fill_text, quoted, same, scalar, text_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None), ("NULL", None),
        ("true", True), ("False", False), ("tRuE", True),
        ("0", 0), ("-0", 0), ("42", 42), ("-7", -7), ("+3", 3), ("1_000", 1000),
        (".5", 0.5), ("5.", 5.0), ("-.5", -0.5), ("1e-5", 1e-5), ("1E+5", 1e5), ("1_0.2_5", 10.25), ("2.5e1_0", 2.5e10),
        ("inf", math.inf), ("-inf", -math.inf), ("+INF", math.inf), ("0e0", 0.0), ("0.0e5", 0.0), ("-0.0", -0.0),
    ],
)  # fmt: skip
def test_these_are_more_than_text(text: str, value: Any) -> None:
    found = scalar(text)
    assert repr(found) == repr(value)


def test_not_a_number_is_read() -> None:
    assert math.isnan(scalar("nan"))
    assert math.isnan(scalar("NaN"))


@pytest.mark.parametrize(
    "text",
    [
        "", "on", "off", "yes", "no", "None", "none", "nil", "infinity", "adam", "007", "00", "-01", "0_1", "1__0",
        "_1", "1_", "0x10", "0b1", "0o7", "1.2.3", "1e", "e5", "1e5.0", ".", "+", "-", "--1", "+-1", "1-2",
        "2024-01-31", "12:30", "1 2", "1e999", "-1e999", "1e-999", "٣", "\N{FULLWIDTH DIGIT ONE}", "9" * 2001,
        "1" + "0" * 400 + ".5",
    ],
)  # fmt: skip
def test_everything_else_is_text(text: str) -> None:
    assert scalar(text) is text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"), (True, "true"), (False, "false"), (3, "3"), (0.1, "0.1"), (1e-5, "1e-05"), (1.0, "1.0"),
        (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan"),
        ("adam", "adam"), ("a b", "a b"), ("", '""'), ("1", '"1"'), ("true", '"true"'), ("007", "007"), (" a", '" a"'),
        ("a,b", '"a,b"'), ("a:b", '"a:b"'), ('say "hi"', "'say \"hi\"'"), ("range:1:2", '"range:1:2"'),
        ([1, "a", [None]], "[1,a,[null]]"), ({"a": 1, "b c": {"d": []}}, "{a:1,b c:{d:[]}}"), ((1, 2), "[1,2]"),
    ],
)  # fmt: skip
def test_a_value_is_written_in_one_way(value: Any, text: str) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(
    "text", ["", "'", '"', "it's", 'a"b', "\\", "a\\", "\\'", '\\"', "\\\\'\\", "'\"", "a'\"b\\", "${a}", "a\\,b", "\n"]
)
def test_quotes_keep_any_text(text: str) -> None:
    assert read_value(quoted(text)).value == text
    assert read_value(text_of(text)).value == text


def test_a_program_gets_text_as_it_is_and_the_rest_in_its_shortest_form() -> None:
    assert fill_text("a b, 'c'") == "a b, 'c'"
    assert fill_text(1e-3) == "0.001"
    assert fill_text([1, "a,b"]) == '[1,"a,b"]'
    assert fill_text(None) == "null"


def test_what_is_not_plain_can_not_be_written() -> None:
    with pytest.raises(TypeError, match="bytes is not a plain value"):
        text_of(b"x")


@pytest.mark.parametrize(
    ("one", "other", "are"),
    [
        (1, 1.0, True), (1, True, False), (0, False, False), (True, True, True), (math.nan, math.nan, True),
        ("1", 1, False), ([1, 2.0], (1.0, 2), True), ([1], [1, 2], False), ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"b": 1}, False), (None, None, True), (None, 0, False), ("a", "a", True), ([True], [1], False),
    ],
)  # fmt: skip
def test_values_are_the_same_by_meaning_not_by_type(one: Any, other: Any, are: bool) -> None:
    assert same(one, other) is are
    assert same(other, one) is are
