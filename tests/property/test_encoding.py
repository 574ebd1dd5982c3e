"""The canonical encoding's promises, on values that Hypothesis makes.

Typed equality is what the encoding keeps apart and what it does not: 1, 1.0, True and "1" are four values; all NaNs
are one; -0.0 is not 0.0; a tuple is a list; the order of a map's keys is nothing.
"""

import math
import struct
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stoker.core.digests import encode
from tests.lengths import examples

# Values that careless encodings confuse, kept few so that two draws often meet.
CONFUSABLE = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 2**64, 0.0, -0.0, 1.0, 2.0**64, math.nan, math.inf, -math.inf),
        *("", "1", "1.0", "nan", "inf", "null", "True", "N", "i1:1", "l0:", b"", b"1", b"N"),
    ]
)
ANY_LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.integers(min_value=2**70, max_value=2**200)
)


def nested(leaves: st.SearchStrategy[object], keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(keys, inner, max_size=3)
        ),
        max_leaves=6,
    )


CONFUSABLE_VALUES = nested(CONFUSABLE, st.sampled_from(["", "a", "b", "ab", "s1:a"]))
VALUES = nested(ANY_LEAF | CONFUSABLE, st.text(max_size=4))

bounded = settings(
    max_examples=examples(60, 150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def same(one: object, other: object) -> bool:
    """Typed equality, written without a thought of bytes."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return one == other


READERS: dict[bytes, Callable[[bytes], object]] = {b"i": int, b"s": bytes.decode, b"b": bytes}


def decode(data: bytes, start: int = 0) -> tuple[object, int]:
    """Read one value by the grammar in the module's docstring; give it and where it ends."""
    tag = data[start : start + 1]
    if tag in {b"N", b"T", b"F"}:
        return {b"N": None, b"T": True, b"F": False}[tag], start + 1
    if tag == b"d":
        return struct.unpack(">d", data[start + 1 : start + 9])[0], start + 9
    colon = data.index(b":", start)
    count, at = int(data[start + 1 : colon]), colon + 1
    if tag == b"l":
        items = []
        for _ in range(count):
            item, at = decode(data, at)
            items.append(item)
        return items, at
    if tag == b"m":
        pairs = {}
        for _ in range(count):
            key, at = decode(data, at)
            pairs[key], at = decode(data, at)
        return pairs, at
    body = data[at : at + count]
    assert len(body) == count, "the value is cut short"
    return READERS[tag](body), at + count


def reordered(value: Any, draw: Any) -> Any:
    """Return an equal value whose maps, at every level, were filled in another order."""
    if isinstance(value, dict):
        return {key: reordered(value[key], draw) for key in draw(st.permutations(list(value)))}
    if isinstance(value, list):
        return [reordered(item, draw) for item in value]
    if isinstance(value, tuple):
        return tuple(reordered(item, draw) for item in value)
    return value


@bounded
@given(one=CONFUSABLE_VALUES, other=CONFUSABLE_VALUES)
@example(one=1, other=1.0)
@example(one=1, other=True)
@example(one=0.0, other=-0.0)
@example(one=math.nan, other=math.nan)
@example(one=math.nan, other="nan")
@example(one=[], other={})
@example(one=["a", "b"], other=["ab"])
@example(one=[["a"], "b"], other=[["a", "b"]])
@example(one=["a", 1], other={"a": 1})
@example(one=(1, (2,)), other=[1, [2]])
def test_two_values_share_their_bytes_exactly_when_they_are_the_same_typed_value(one, other):
    assert (encode(one) == encode(other)) == same(one, other)


@bounded
@given(value=VALUES)
def test_a_reader_that_knows_only_the_grammar_gets_the_value_back(value):
    # A left inverse exists, so no two different values can share their bytes.
    data = encode(value)
    found, end = decode(data)
    assert end == len(data)
    assert same(found, value)


@bounded
@given(value=VALUES, data=st.data())
def test_the_order_in_which_maps_were_filled_never_matters(value, data):
    assert encode(reordered(value, data.draw)) == encode(value)


@bounded
@given(one=CONFUSABLE_VALUES, other=CONFUSABLE_VALUES)
@example(one=1, other=10)
@example(one="", other="0")
@example(one=[], other=[[]])
def test_no_encoding_is_the_beginning_of_another(one, other):
    short, long = sorted((encode(one), encode(other)), key=len)
    assert short == long or not long.startswith(short)


@bounded
@given(value=VALUES, after=st.binary(max_size=12))
def test_what_follows_a_value_is_never_taken_for_a_part_of_it(value, after):
    data = encode(value)
    assert decode(data + after)[1] == len(data)


@bounded
@given(payload=st.integers(min_value=1, max_value=2**52 - 1), negative=st.booleans())
def test_every_nan_is_the_same_nan(payload, negative):
    (odd_nan,) = struct.unpack(">d", struct.pack(">Q", negative << 63 | 0x7FF << 52 | payload))
    assert math.isnan(odd_nan)
    assert encode(odd_nan) == encode(math.nan)
