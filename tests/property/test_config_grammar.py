"""The grammar of overrides: any text is read or refused with its place, in linear time; any value reads back."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.config.overrides import read_overrides
from stoker.config.sweep import Axis, AxisValue
from stoker.config.value_grammar import Unreadable, read_value, split_items, split_pairs
from stoker.config.values import same, text_of
from stoker.core.digests import encode
from tests.fakes.overrides import parse_override
from tests.lengths import examples

bounded = settings(max_examples=examples(32, 120), deadline=None)

SIGNS = st.text(alphabet="ab01.,:=[]{}()'\"\\$ \t+-~@/_eé\n", max_size=30)
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | TEXT
    | st.text(alphabet="01e.-_inftrue\\'\",", max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@bounded
@given(PLAIN)
def test_a_value_that_is_written_reads_back_exactly(value: Any) -> None:
    found = read_value(text_of(value))
    assert encode(found.value) == encode(value)


@bounded
@given(st.lists(PLAIN, min_size=2, max_size=4))
def test_an_axis_of_any_values_is_read_value_by_value(values: list[Any]) -> None:
    found = parse_override(f"x={','.join(map(text_of, values))}").value
    assert isinstance(found, Axis)
    assert encode([choice.value for choice in found.choices]) == encode(values)


@bounded
@given(st.lists(PLAIN, max_size=4), st.dictionaries(TEXT, PLAIN, max_size=4))
def test_a_list_and_a_map_come_apart_as_they_were_put_together(items: list[Any], pairs: dict[str, Any]) -> None:
    assert encode([read_value(text_of(item)).value for item in items]) == encode(items)
    assert encode([choice.value for choice in split_items(text_of(items))]) == encode(items)
    assert encode({key: choice.value for key, choice in split_pairs(text_of(pairs)).items()}) == encode(pairs)


@bounded
@given(st.one_of(SIGNS, SIGNS.map(lambda text: f"x={text}"), st.text(max_size=20)))
def test_any_word_is_understood_or_pointed_at(word: str) -> None:
    overrides, faults = read_overrides([word])
    assert bool(overrides) != bool(faults)
    for fault in faults:
        assert fault.where == "argument 1"
        assert fault.message
        line, carets = fault.shown.split("\n") if word else ("", "^")
        assert carets.strip(" ").strip("^") == ""
        assert carets.count("^") >= 1
        assert "\n" not in line


@bounded
@given(SIGNS)
def test_the_text_of_a_choice_is_what_its_value_was_read_from(text: str) -> None:
    found = read_or_refuse(text)
    if isinstance(found, Unreadable):
        assert 0 <= found.at <= len(text)
    elif isinstance(found.value, str):
        assert found.value == found.text
    elif isinstance(found.value, list | dict):
        assert same(read_value(found.text).value, found.value)


def read_or_refuse(text: str) -> AxisValue | Unreadable:
    try:
        return read_value(text)
    except Unreadable as error:
        return error


PIECES = r"""
$ \ [ ] [], a, ' '' \' ${ ${a} {a: a:1, 1_ 1 a. a- a/ é, @ = + ~ - ( a( range( 1: 9 " é { } :
"""
FRAMES = ["{}=1", "{}", "x={}", "x='{}", "x=[{}", "x={{{}", "x=range:{}", "x=log:1:{}:3", "x=range({}", "x=1e{}"]


@pytest.mark.timing
@pytest.mark.parametrize("piece", [*PIECES.split(), " ", " a", "\\ ", "\x01"])
def test_hostile_words_take_time_in_proportion_to_their_length(piece: str) -> None:
    large_s = cpu_seconds(piece, 8_000, enough_s=0.2)
    # Four times the length is four times the time, or sixteen times for a way that looks at everything again and again.
    assert large_s < 0.2 or large_s < 10 * cpu_seconds(piece, 2_000)


def cpu_seconds(piece: str, count: int, *, enough_s: float = 0.0) -> float:
    words = [frame.format(piece * count) for frame in FRAMES]
    best_s = math.inf
    # The best of some: a collector that passes by belongs to nobody.
    for _ in range(3):
        started_s = time.process_time()
        _, faults = read_overrides(words)
        best_s = min(best_s, time.process_time() - started_s)
        assert all(len(str(fault)) < 1000 for fault in faults)
        if best_s < enough_s:
            break
    return best_s
