import json
import math
from enum import StrEnum

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.core.jsontext import dumps, loads
from tests.lengths import examples

# Text whose surrogates stand alone; two halves side by side would read back as the one character they make.
TEXT = st.text(max_size=8) | st.sampled_from(["$", "$$", "$float", "$$float", '"$', "nan", "\ud800", "a\udcff"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


def typed(value):
    """Make Python's `==` strict: it takes 1 for True and 0.0 for -0.0, and no NaN for another."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return (type(value), repr(value))


@settings(max_examples=examples(60, 150), deadline=None)
@given(value=VALUES, indent=st.sampled_from([None, 2]), sort_keys=st.booleans())
@example(value={"$float": "nan"}, indent=None, sort_keys=False)
@example(value={"$float": math.nan, "float": 1}, indent=None, sort_keys=False)
@example(value={"$": {"$$": {"$$$float": [-math.inf]}}}, indent=None, sort_keys=False)
@example(value=[-0.0, 1.0, 1, True, None, "", 2**70], indent=None, sort_keys=False)
def test_reading_gives_back_exactly_what_was_written(value, indent, sort_keys):
    text = dumps(value, indent=indent, sort_keys=sort_keys)
    assert typed(loads(text)) == typed(value)
    assert typed(loads(text.encode())) == typed(value)


@settings(max_examples=examples(60, 150), deadline=None)
@given(value=VALUES)
def test_what_is_written_is_json_to_the_strictest_reader(value):
    def refuse(name):
        pytest.fail(f"{name} is not JSON")

    json.loads(dumps(value), parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, '{"$float":"nan"}'),
        (math.inf, '{"$float":"inf"}'),
        (-math.inf, '{"$float":"-inf"}'),
        ("nan", '"nan"'),
        ({"$float": "nan"}, '{"$$float":"nan"}'),
        ({"$schema": 1, "a$": "$b"}, '{"$$schema":1,"a$":"$b"}'),
        ({"loss": [1.5, math.nan]}, '{"loss":[1.5,{"$float":"nan"}]}'),
        ((1, (2, math.inf)), '[1,[2,{"$float":"inf"}]]'),
        ("\u00e9 \U0001f525", '"\u00e9 \U0001f525"'),
        ("report-\udcff.csv", '"report-\\udcff.csv"'),
        ({}, "{}"),
        ("", '""'),
    ],
    ids=ascii,
)
def test_the_written_form_is_compact_and_tagged(value, text):
    assert dumps(value) == text


def test_every_text_that_is_written_has_utf_8_bytes():
    assert loads(dumps({"\udc80": ["\ud800", "\U0001f525"]}).encode()) == {"\udc80": ["\ud800", "\U0001f525"]}


def test_indented_text_says_the_same_in_more_room():
    assert dumps({"b": 1, "a": [math.inf]}, indent=2, sort_keys=True) == (
        '{\n  "a": [\n    {\n      "$float": "inf"\n    }\n  ],\n  "b": 1\n}'
    )


@settings(max_examples=examples(40, 100), deadline=None)
@given(value=st.dictionaries(st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.text(), max_size=6))
@example(value={})
@example(value={"a": "b,\n  c", "d": "}"})
def test_a_flat_map_is_indented_as_pythons_own_writer_does(value):
    if '"$' not in json.dumps(value):
        assert dumps(value, indent=2).encode() == json.dumps(value, indent=2, ensure_ascii=False).encode()


def test_a_key_that_is_a_number_or_an_enum_is_written_alike_with_and_without_tags_beside_it():
    class Colour(StrEnum):
        RED = "$red"

    assert dumps({1: 0.5}) == '{"1":0.5}'
    assert dumps({1: math.inf}) == '{"1":{"$float":"inf"}}'
    assert dumps({Colour.RED: 1}) == '{"$$red":1}'


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", {"a": 1j}], ids=["set", "object", "bytes", "complex"])
def test_what_json_has_no_form_for_is_refused(value):
    with pytest.raises(TypeError, match="not JSON serializable"):
        dumps(value)


def test_a_nan_as_a_key_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({math.nan: 1})


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        '{"loss":NaN}',
        '{"$$a":1,"loss":NaN}',
        '{"$float":"NaN"}',
        '{"$float":1}',
        '{"$float":["nan"]}',
        '{"$float":{"$float":"nan"}}',
        '{"$float":"nan","more":1}',
        '{"$a":1,"a":2}',
        "",
        "{",
        '{"a":1',
        '{"a":1}{"a":1}',
        "{'a':1}",
        "\ufeff{}",
        "[" * 100_000,
        '{"$$a":' + "[" * 100_000,
    ],
    ids=lambda text: ascii(text[:24]),
)
def test_anything_else_is_refused_as_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the class is the promise; the words are partly the library's
        loads(text)


@pytest.mark.parametrize("data", [b"\xff\xfe{", b'"\xff"', b'{"a":"\x80"}'], ids=repr)
def test_bytes_that_are_not_utf_8_are_refused_as_a_value_error(data):
    with pytest.raises(ValueError):  # noqa: PT011 - as above
        loads(data)
