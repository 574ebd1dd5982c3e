"""The quick way through TOML gives what `tomllib` gives, or leaves it to `tomllib`."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.config.toml_file import read_plain

PLAIN = [
    "",
    "# nothing\n\n  # at all",
    'name = "é – ü" # said',
    'a = "#" # b\nc = "{[,]}"',
    "a = 1\nb = -0\nc = +7\nd = 1.5\ne = -2.5E+3\nf = 1e05\ng = true\nh = false",
    'a = [1, 2.5, "x", true,]\nb = []\nc = [ ]',
    'a = { b = 1, c = "}" }\nd = {}\ne = { }',
    "[[jobs]]\nname = 1\n[jobs.hyper]\nlr = 0.1\n[[jobs]]\n[ jobs . hyper ]\nlr = 0.2\n[[hosts]]\nname = 2",
]
LEFT = [
    "a = 'x'",
    'a = "\\n"',
    "a = 1_000",
    "a = 0x10",
    "a = inf",
    "a = 2026-11-15",
    "a.b = 1",
    '"a" = 1',
    "[a]\nb = 1",
    "a = [[1]]",
    "a = [\n1]",
    'a = """x"""',
    "a = 99999999999999999999",
]
WRONG = [
    "a = 1\na = 2",
    "a = 01",
    "a = 1.",
    "a = .5",
    "a = 1 2",
    "a = tru",
    "a = [1 2]",
    "a = [,]",
    "a = { b = 1, }",
    "a = { b = 1, b = 2 }",
    "a = 1\n[[a]]",
    "[[a]]\nb = 1\n[a.b]",
    "[[a]]\n[a.b]\n[a.b]",
    "é = 1",
    'a = "\x00"',
    "= 1",
    "[[a]",
]


@pytest.mark.parametrize("text", PLAIN, ids=range(len(PLAIN)))
def test_plain_text_is_read_as_tomllib_reads_it(text: str) -> None:
    assert repr(read_plain(text.split("\n"))) == repr(tomllib.loads(text))


@pytest.mark.parametrize("text", LEFT, ids=range(len(LEFT)))
def test_what_is_not_plain_is_left_alone(text: str) -> None:
    assert read_plain(text.split("\n")) is None
    assert tomllib.loads(text)


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_left_to_whoever_can_say_why(text: str) -> None:
    assert read_plain(text.split("\n")) is None
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(text)


KEYS = st.sampled_from(["a", "b", "lr", "x-1", "_"])
TOKENS = st.sampled_from(
    [*'"[]{},=#.\n \t-+_e0159', "true", "false", '"x"', "[[a]]\n", "[a.b]\n", "a = ", "b = ", "1.5", "{ a = 1 }", "é"]
)


@given(st.lists(TOKENS, max_size=14).map("".join))
def test_no_text_is_read_in_two_ways(text: str) -> None:
    quick = read_plain(text.split("\n"))
    if quick is not None:
        assert repr(quick) == repr(tomllib.loads(text))


@st.composite
def lines(draw: st.DrawFn) -> str:
    def scalar() -> str:
        number = st.floats(allow_nan=False, allow_infinity=False).map(repr)
        text = st.text(st.characters(exclude_characters='"\\', exclude_categories=["C"]), max_size=5)
        return draw(st.one_of(st.integers(-(10**17), 10**17).map(str), number, text.map('"{}"'.format)))

    kind = draw(st.integers(0, 4))
    if kind == 0:
        return draw(st.sampled_from(["[[a]]", "[a.b]", "[[lr]]", "", "# x"]))
    if kind == 1:
        return f"{draw(KEYS)} = [{', '.join(scalar() for _ in range(draw(st.integers(0, 3))))}]"
    if kind == 2:
        return f"{draw(KEYS)} = {{{', '.join(f'{draw(KEYS)} = {scalar()}' for _ in range(draw(st.integers(0, 3))))}}}"
    return f"{draw(KEYS)} = {scalar()}"


@given(st.lists(lines(), max_size=8).map("\n".join))
def test_lines_of_values_are_read_as_tomllib_reads_them(text: str) -> None:
    quick = read_plain(text.split("\n"))
    expected: Any = None
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assert quick is None
        return
    assert quick is None or repr(quick) == repr(expected)
