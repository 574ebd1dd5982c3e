"""The canonical encoding against vectors that never change, and what it refuses."""

import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from fractions import Fraction
from pathlib import Path

import pytest

from stoker.core.digests import MAX_DEPTH, NotEncodable, digest_value, encode, encode_list

VECTORS = json.loads(Path(__file__, "../../../golden/encoding.json").resolve().read_text("utf-8"))
NAMED = {vector["name"]: vector for vector in VECTORS}


def plain(tagged):
    """Make the value that a vector describes: `[type, content]`, floats by their bits, bytes in hex."""
    name, *content = tagged
    return READERS[name](*content)


READERS: dict[str, Callable[..., object]] = {
    "null": lambda: None,
    "bool": bool,
    "int": int,
    "float": lambda bits: struct.unpack(">d", bytes.fromhex(bits))[0],
    "str": str,
    "bytes": bytes.fromhex,
    "list": lambda items: [plain(item) for item in items],
    "tuple": lambda items: tuple(plain(item) for item in items),
    "map": lambda pairs: {key: plain(item) for key, item in pairs},
}


def test_every_golden_value_has_its_golden_bytes_and_key_digest():
    for name, vector in NAMED.items():
        assert encode(plain(vector["value"])).hex() == vector["hex"], name
        assert digest_value("key", plain(vector["value"])) == vector["sha256"], name


def test_only_spellings_of_one_value_share_golden_bytes():
    together: dict[str, set[str]] = {}
    for vector in VECTORS:
        together.setdefault(vector["hex"], set()).add(vector["name"])
    shared = [names for names in together.values() if len(names) > 1]
    assert sorted(shared, key=min) == [
        {name for name in NAMED if name.startswith("float nan")},
        {"list empty", "tuple empty"},
        {"list of 1", "tuple of 1"},
        {"map a: 1, b: 2", "map b: 2, a: 1"},
        {name for name in NAMED if name.startswith("map of keys that only UTF-16")},
    ]
    assert len(NAMED) == len(VECTORS)
    assert len({vector["sha256"] for vector in VECTORS}) == len(together)


def test_the_values_that_json_confuses_each_have_their_own_bytes():
    confused = [math.nan, math.inf, -math.inf, None, "nan", 1, 1.0, "1", True]
    assert len({encode(value) for value in confused}) == len(confused)


class Colour(IntEnum):
    RED = 1


class Mode(StrEnum):
    FAST = "fast"


class LikeNumpyFloat(float):
    """As `numpy.float64` is: a float to `isinstance`, another to `repr`."""


class LikeNumpyInt:
    """As `numpy.int64` is: no int, but usable as one."""

    def __index__(self):
        return 1


class Text(str):
    __slots__ = ()


Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - the untyped kind, as libraries return it


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        frozenset({1}),
        bytearray(b"a"),
        memoryview(b"a"),
        range(3),
        iter([1]),
        1j,
        Decimal(1),
        Fraction(1, 2),
        datetime(2026, 1, 1, tzinfo=UTC),
        Path("a"),
        object(),
        int,
        ...,
        Colour.RED,
        Mode.FAST,
        LikeNumpyFloat(1.0),
        LikeNumpyInt(),
        Text("a"),
        Pair(1, 2),
        OrderedDict(a=1),
        defaultdict(int),
        Counter("a"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_of_any_other_type_is_refused_by_name(value):
    with pytest.raises(NotEncodable, match=rf"{type(value).__qualname__} has no canonical form"):
        encode(value)


@pytest.mark.parametrize("key", [7, 1.5, True, None, b"a", ("a",), Mode.FAST, Text("a")], ids=repr)
def test_a_map_key_that_is_not_a_plain_string_is_refused(key):
    with pytest.raises(NotEncodable, match="is not a string"):
        encode({key: 1})


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "name-\udc80"], ids=ascii)
def test_a_lone_surrogate_is_refused_as_text_and_as_key(text):
    with pytest.raises(NotEncodable, match="text is not valid Unicode"):
        encode([text])
    with pytest.raises(NotEncodable, match="map key is not valid Unicode"):
        encode({text: 1})


def test_cycles_are_refused():
    ring: list[object] = []
    ring.append(ring)
    loop: dict[str, object] = {}
    loop["again"] = [loop]
    for value in (ring, loop):
        with pytest.raises(NotEncodable, match="in a cycle"):
            encode(value)


def test_nesting_has_a_limit_that_values_may_reach_but_not_pass():
    value: object = None
    for _ in range(MAX_DEPTH):
        value = [value]
    assert encode(value).endswith(b"N")
    with pytest.raises(NotEncodable, match=f"deeper than {MAX_DEPTH} levels"):
        encode({"one more": value})


def test_the_same_part_used_twice_is_no_cycle():
    part = [1]
    assert encode([part, part]) == encode([[1], [1]])


def test_an_integer_beyond_what_python_writes_out_is_refused_like_every_other_value():
    assert encode(10**4000).startswith(b"i4001:1000")
    with pytest.raises(NotEncodable, match="too many digits"):
        encode(10**5000)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (set(), ""),
        ([1, set()], "[1]"),
        ({"args": {"weights": (0.5, set())}}, "['args']['weights'][1]"),
        ({"a": [{2: 3}]}, "['a'][0]"),
        ({"a": "\ud800"}, "['a']"),
    ],
)
def test_a_refusal_names_the_place(value, path):
    with pytest.raises(NotEncodable) as caught:
        encode(value)
    assert caught.value.path == path
    assert str(caught.value) == (f"{path}: {caught.value.reason}" if path else caught.value.reason)


def test_a_refusal_is_a_value_error_for_callers_that_know_no_more():
    with pytest.raises(ValueError, match="canonical form"):
        encode(object())


def test_a_list_can_be_put_together_from_its_encoded_items():
    items = [1, "two", [], {"three": [3.0, None]}]
    assert encode_list(*map(encode, items)) == encode(items)
    assert encode_list() == encode([])
