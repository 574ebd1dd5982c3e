from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.program import fill, fill_some, places_in, required_in

VALUES = {"lr": "0.1", "model.depth": "3", "a-b": "dash"}


def spoken(word: str, values: dict[str, str], **later: str) -> str:
    """What a program hears of a word."""
    return fill(fill_some(word, values, later), later)


@pytest.mark.parametrize(
    ("word", "heard"),
    [
        ("--lr={lr}", "--lr=0.1"),
        ("{lr}{lr}", "0.10.1"),
        ("{model.depth}", "3"),
        ("{a-b}", "dash"),
        ("{{lr}}", "{lr}"),
        ("{{{lr}}}", "{{lr}}"),
        ("{{nothing}}", "{nothing}"),
        ("{}", "{}"),
        ("{ lr }", "{ lr }"),
        ("{0}", "{0}"),
        ('{"optim":{"lr":{lr}}}', '{"optim":{"lr":0.1}}'),
        ('{"a":{"b":{"c":1}}}', '{"a":{"b":{"c":1}}}'),
        ("{{}}", "{{}}"),
        ("awk '{ print $1 }'", "awk '{ print $1 }'"),
        ("{lr", "{lr"),
        ("lr}", "lr}"),
        ("{lr:.3f}", "{lr:.3f}"),
        ("${HOME}/x", "${HOME}/x"),
        ("${lr}", "$0.1"),
        ("${{lr}}", "${lr}"),
        ("{out}/x{out}", "/o/x/o"),
        ("${out}", "$/o"),
        ("{{out}}", "{out}"),
        ("{lr}{out}", "0.1/o"),
    ],
)
def test_places_are_filled_and_every_other_brace_stays(word: str, heard: str) -> None:
    assert spoken(word, VALUES, out="/o") == heard


def test_a_place_without_a_value_is_named() -> None:
    with pytest.raises(KeyError, match="nope"):
        fill_some("{nope}", {})
    with pytest.raises(KeyError, match="nope"):
        fill("{nope}", {})


def test_places_have_names() -> None:
    assert list(places_in("{a} {{b}} {c.d} {} {e ${f}")) == ["a", "c.d", "f"]
    assert list(required_in("{a} {{b}} {c.d} {} {e ${f}")) == ["a", "c.d"]


texts = st.text(alphabet="ab{}$ out", max_size=10)


@given(parts=st.lists(st.tuples(texts, st.sampled_from(["{x}", "{y}", "{out}"])), max_size=4), x=texts, y=texts)
def test_what_is_filled_in_is_never_taken_for_a_place(parts: list[tuple[str, str]], x: str, y: str) -> None:
    plain = [re.sub(r"[{}$]", "", text) for text, _ in parts]
    word = "".join(text + place for text, (_, place) in zip(plain, parts, strict=True))
    values = {"{x}": x, "{y}": y, "{out}": "{/o}"}
    expected = "".join(text + values[place] for text, (_, place) in zip(plain, parts, strict=True))
    assert spoken(word, {"x": x, "y": y}, out="{/o}") == expected


@given(st.recursive(st.integers(0, 9), lambda inner: st.dictionaries(st.text("k1", max_size=2), inner, max_size=3)))
def test_json_goes_through_unchanged(value: object) -> None:
    word = json.dumps(value, separators=(",", ":"))
    assert spoken(word, {}) == word
