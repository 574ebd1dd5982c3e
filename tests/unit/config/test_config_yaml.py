"""YAML files: the 1.2 core schema, places, bounds, and every mistake with its line."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.config import yaml_file
from stoker.config.positions import DEEPEST, MOST_VALUES, LocatedValue, SourceFile
from stoker.config.yaml_file import read_plain, read_yaml
from stoker.core.errors import Diagnostic


def source_of(text: str) -> SourceFile:
    return SourceFile(name="a.yaml", path="/x/a.yaml", text=text, lines=tuple(text.split("\n")))


def read(text: str) -> tuple[LocatedValue | None, list[Diagnostic]]:
    faults: list[Diagnostic] = []
    return read_yaml(source_of(text), faults), faults


def plain(text: str):
    tree, faults = read(text)
    assert not faults
    assert tree is not None
    return tree.plain()


def fault(text: str) -> Diagnostic:
    _, faults = read(text)
    assert len(faults) == 1, faults
    return faults[0]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("on", "on"), ("off", "off"), ("yes", "yes"), ("no", "no"), ("y", "y"),
        ("true", True), ("True", True), ("TRUE", True), ("tRUE", "tRUE"), ("false", False),
        ("null", None), ("Null", None), ("~", None), ("", None), ("nil", "nil"),
        ("0", 0), ("-7", -7), ("+3", 3), ("017", 17), ("0o17", 15), ("0x1F", 31), ("-0o7", "-0o7"), ("0b11", "0b11"),
        ("1_000", "1_000"), ("12:30:45", "12:30:45"), ("2024-01-31", "2024-01-31"),
        ("1e-5", 1e-5), ("1E5", 1e5), (".5", 0.5), ("5.", 5.0), ("-.5e+3", -500.0), ("1.2.3", "1.2.3"), (".", "."),
        (".inf", math.inf), ("-.INF", -math.inf), ("+.Inf", math.inf), ("inf", "inf"), ("nan", "nan"), ("-", "-"),
        ("<<", "<<"), ("=", "="),
    ],
)  # fmt: skip
def test_a_plain_word_means_what_the_core_schema_says(word, value):
    read = read_plain(word)
    assert read == value
    assert type(read) is type(value)


def test_nan_is_a_number():
    assert math.isnan(read_plain(".nan"))
    assert math.isnan(read_plain(".NaN"))


def test_a_map_a_list_and_their_values_are_read():
    assert plain("a: 1\nb: [x, 'y', \"z\"]\nc:\n  d: null\n  e: {f: 0.5}\n") == {
        "a": 1,
        "b": ["x", "y", "z"],
        "c": {"d": None, "e": {"f": 0.5}},
    }


def test_whatever_is_in_quotes_is_text():
    assert plain("a: '1'\nb: \"true\"\nc: |\n  3\nd: >-\n  null\n") == {"a": "1", "b": "true", "c": "3\n", "d": "null"}


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "{}"])
def test_a_file_without_anything_is_an_empty_map(text):
    tree, faults = read(text)
    assert not faults
    assert tree is not None
    assert tree.plain() in ({}, None)


def test_every_key_and_value_has_its_line_and_column():
    tree, _ = read("a: 1\nb:\n  - x\n  - {c: 2}\nlong key:   'v'\n")
    assert tree is not None
    a, b, spaced = tree.value["a"], tree.value["b"], tree.value["long key"]
    assert (a.key_line, a.key_column, a.line, a.column) == (1, 1, 1, 4)
    assert (b.key_line, b.key_column, b.line, b.column) == (2, 1, 3, 3)
    assert (b.value[1].value["c"].key_line, b.value[1].value["c"].key_column) == (4, 6)
    assert (b.value[1].value["c"].line, b.value[1].value["c"].column) == (4, 9)
    assert (spaced.key_line, spaced.key_column, spaced.line, spaced.column) == (5, 1, 5, 13)


def test_columns_count_characters_not_bytes():
    tree, _ = read("größe: {é: ü}\n")
    assert tree is not None
    inner = tree.value["größe"].value["é"]
    assert (inner.key_column, inner.column) == (9, 12)


def test_an_alias_stands_for_its_anchor_under_its_own_key():
    tree, faults = read("a: &x {b: 1}\nc: *x\n")
    assert not faults
    assert tree is not None
    assert tree.plain() == {"a": {"b": 1}, "c": {"b": 1}}
    assert tree.value["c"].key_line == 2


def test_a_merge_key_adds_what_is_not_there_and_the_first_map_wins():
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  x: 3\nd:\n  x: 4\n  <<: *b\n"
    read = plain(text)
    assert read["c"] == {"x": 3, "y": 1, "z": 2}
    assert read["d"] == {"x": 4, "y": 2, "z": 2}


def test_a_quoted_merge_key_is_an_ordinary_one():
    assert plain('a: {"<<": 1}') == {"a": {"<<": 1}}


def test_a_merge_of_something_else_is_refused():
    assert fault("a:\n  <<: 3\n").where == "a.yaml:2:7"


def test_a_key_given_twice_is_refused_where_it_stands_again():
    found = fault("a: 1\nb: 2\na: 3\n")
    assert found.where == "a.yaml:3:1"
    assert found.message == "'a' is given twice"
    assert found.hint == "first on line 1"
    assert found.shown == "a: 3\n^"


@pytest.mark.parametrize("key", ["1", "true", "~", "1.5", "[a]", "{a: b}"])
def test_a_key_that_is_not_text_is_refused(key):
    assert fault(f"? {key}\n: x\nb: 1\n").where == "a.yaml:1:3"


def test_words_of_other_yaml_versions_may_be_keys():
    assert plain("on: 1\noff: 2\nno: 3\n") == {"on": 1, "off": 2, "no": 3}


@pytest.mark.parametrize(
    "text",
    ["a: !!python/object:os.system x", "a: !mine x", "a: !!binary aGk=", "a: !!timestamp 2020-01-01", "a: !!set {b}",
     "a: !!omap [b: 1]", "a: !!map [1]"],
)  # fmt: skip
def test_a_tag_beyond_the_core_is_refused(text):
    assert "tag" in fault(text).message


@pytest.mark.parametrize(
    ("text", "value"),
    [("!!str 3", "3"), ("!!int '3'", 3), ("!!float 3", 3.0), ("!!bool true", True), ("!!null ''", None), ("! 3", "3"),
     ("!!seq [1]", [1]), ("!!map {b: 1}", {"b": 1})],
)  # fmt: skip
def test_a_core_tag_decides(text, value):
    read = plain(f"a: {text}\n")["a"]
    assert read == value
    assert type(read) is type(value)


def test_a_core_tag_that_does_not_fit_is_refused():
    assert fault("a: !!int x\n").where == "a.yaml:1:4"


def test_all_faults_of_a_file_are_told_together():
    _, faults = read("a: 1\na: 2\n3: x\nb: !x y\nc: *nope\nd: 1e999\n")
    assert [found.where for found in faults] == [f"a.yaml:{line}" for line in ("2:1", "3:1", "4:4", "5:4", "6:4")]


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        ("a: 1\nb:\n\tc: 2\n", "a.yaml:3:1", "spaces"),
        ("a: [1, 2\nb: 3\n", "a.yaml:2:2", "bracket"),
        ("a: b: c\n", "a.yaml:1:5", "quotes"),
        ("a: 'open\n\n", "a.yaml:1:4", ""),
        ("a: 1\n b: 2\n", "a.yaml:2:3", ""),
        ("a: @x\n", "a.yaml:1:4", "quotes"),
    ],
)
def test_a_syntax_fault_has_its_place_its_line_and_a_hint(text, where, hint):
    found = fault(text)
    assert found.where == where
    assert found.message.startswith("is not YAML: ")
    assert hint in found.hint
    assert "^" in found.shown


@pytest.mark.parametrize("character", ["\x00", "\x07", "\x1b", "\ufffe", "\x7f"])
def test_a_control_character_is_refused_where_it_stands(character):
    assert fault(f"a: 1\nb: x{character}y\n").where == "a.yaml:2:5"


def test_several_documents_are_refused():
    assert fault("a: 1\n---\nb: 2\n").where == "a.yaml:2:1"


def test_an_alias_inside_its_own_anchor_is_refused():
    assert "contains itself" in fault("a: &a [1, *a]\n").message


def test_a_small_file_can_not_become_a_large_tree():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert str(MOST_VALUES) in fault("\n".join(lines)).message


def test_aliases_within_the_bound_are_counted_once_each():
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 14)]
    assert len(plain("\n".join(lines))) == 14


def test_nesting_is_bounded_by_a_fault():
    assert "deeper" in fault("a: " + "[" * 10_000 + "]" * 10_000).message
    assert "deeper" in fault("a: " + "{a: " * 1_000 + "1" + "}" * 1_000).message
    assert plain("a: " + "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1))


def test_nesting_through_aliases_is_bounded_too():
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 100)]
    assert "deeper" in fault("\n".join(lines)).message


@pytest.mark.parametrize("number", ["9" * 5_000, "0x" + "f" * 5_000, "1e400", "-1e400"])
def test_a_number_that_can_not_be_held_is_refused(number):
    assert fault(f"a: {number}\n").where == "a.yaml:1:4"


def test_the_parser_written_in_python_reads_the_same(monkeypatch):
    text = "a: &x {b: 1, c: [1e-5, on, .inf]}\nd: {<<: *x, e: 'ü'}\nf: |\n  text\n"
    by_c = read(text)[0]
    monkeypatch.setitem(sys.modules, "yaml.cyaml", None)
    by_python = read(text)[0]
    assert by_c is not None
    assert by_python is not None
    assert by_python == by_c
    assert type(yaml_file._parser("")).__name__ == "SafeLoader"


def test_yaml_is_imported_only_when_a_yaml_file_is_read(tmp_path: Path):
    (tmp_path / "a.toml").write_text("a = 1\n")
    (tmp_path / "a.yaml").write_text("a: 1\n")
    script = (
        "import sys\n"
        "from stoker.config.compose import compose\n"
        "from stoker.config.values import Schema\n"
        "free = Schema(leaves={}, is_open=True)\n"
        "loaded = []\n"
        "for files in ([], ['a.toml'], ['a.yaml']):\n"
        "    compose(files, [], free, {}, sys.argv[1])\n"
        "    loaded.append(('yaml' in sys.modules, 'tomllib' in sys.modules))\n"
        "print(loaded)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[(False, False), (False, True), (True, True)]"
