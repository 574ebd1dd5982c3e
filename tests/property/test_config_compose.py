"""Composing against a small model of itself, and files against whatever bytes they may hold."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.config.compose import ComposedConfig, TrialFingerprints, compose, identity_fingerprint, to_json, to_yaml
from stoker.config.config_file import read_config
from stoker.config.interpolation import parse
from stoker.config.positions import LocatedValue, SourceFile
from stoker.config.sweep import points
from stoker.config.toml_file import read_toml
from stoker.config.values import NOTHING, Schema, found, leaf_paths, merged, replaced, with_value, without
from stoker.config.yaml_file import read_yaml
from stoker.core.errors import Diagnostic, InvalidConfig
from stoker.core.jsontext import loads
from tests.fakes.overrides import identity_at, parse_overrides
from tests.lengths import examples

FREE = Schema(leaves={}, is_open=True)

KEYS = st.sampled_from(["a", "b", "c", "d e", "on", "ü", "1"])
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="$"), max_size=12)
SINGLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    TEXTS,
    st.sampled_from(
        ["null", "1", "007", "1e-5", "on", "-", "a: b", "# x", "<<", "=", "~", "0o7", "x ", "'", '"', "\x85"]
    ),
)
VALUES = st.recursive(
    SINGLE,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
TREES = st.dictionaries(KEYS, st.recursive(SINGLE, lambda inner: st.dictionaries(KEYS, inner, max_size=3)), max_size=4)


def same(one: Any, other: Any) -> bool:
    """Equal in value, type and order of keys, NaN included."""
    return repr(one) == repr(other)


def read_yaml_text(text: str) -> Any:
    faults: list[Diagnostic] = []
    tree = read_yaml(SourceFile(name="a.yaml", path="a.yaml", text=text, lines=tuple(text.split("\n"))), faults)
    assert not faults, (text, faults)
    assert tree is not None
    return tree.plain()


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
@example({"a": -0.0, "b": math.nan, "": {"": {}}, "\u2028": "\ufeff"})
def test_yaml_that_we_write_reads_back_as_the_same_values(values: dict[str, Any]) -> None:
    assert same(read_yaml_text(to_yaml(values)) or {}, values)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_json_that_we_write_reads_back_as_the_same_values(values: dict[str, Any]) -> None:
    assert same(loads(to_json(values)), values)


@settings(max_examples=examples(24, 60))
@given(st.lists(TREES, min_size=1, max_size=4))
def test_files_over_each_other_are_a_deep_merge_and_every_leaf_knows_its_file(trees: list[dict[str, Any]]) -> None:
    model: dict[str, Any] = {}
    for tree in trees:
        model = merged(model, tree)
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for number, tree in enumerate(trees):
            names.append(f"{number}.yaml")
            Path(folder, names[-1]).write_text(to_yaml(tree), encoding="utf-8")
        composed = compose(names, [], FREE, {}, folder)
    assert same(sorted_tree(composed.values), sorted_tree(model))
    assert {row.path for row in composed.rows()} == set(leaf_paths(model))
    for path, stack in composed.origins.items():
        winner = next(
            (number for number in reversed(range(len(trees))) if path in leaf_paths(trees[number])), len(trees)
        )
        if found(model, path.split(".")) is not NOTHING and path in leaf_paths(model):
            assert stack[-1].origin.where == f"{winner}.yaml"


def sorted_tree(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: sorted_tree(value[key]) for key in sorted(value)}
    return value


@settings(max_examples=examples(40, 150))
@given(st.binary(max_size=60), st.sampled_from(["a.yaml", "a.toml"]))
@example(b"a: &a [*a]", "a.yaml")
@example(b"\xef\xbb\xbfa: 1", "a.yaml")
@example(b"\xff\xfea\x00", "a.yaml")
@example(b"a: !!float .inf\n<<: {b: 1}\n", "a.yaml")
def test_whatever_bytes_a_file_holds_it_is_read_or_refused_with_a_place(data: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        faults: list[Diagnostic] = []
        _, tree = read_config(name, str(path), faults)
    assert faults or tree is not None
    assert all(fault.where.startswith(name) for fault in faults)


LINES = st.lists(
    st.sampled_from(
        ["a: 1", "b:", "  c: x", "  - y", "- z", "d: [1, {e: 2}]", "f: &x {g: 1}", "h: *x", "<<: *x", "\ti: 1", "j: 'k",
         "a: 2", "? [l]", ": m", "n: |", "   text", "---", "...", "o: !!str 1", "p: !q r", "%YAML 1.2", "# s",
         "t: ${a}", "u: {", "}"]
    ),
    max_size=8,
)  # fmt: skip


@settings(max_examples=examples(40, 150))
@given(LINES)
def test_whatever_lines_stand_together_every_place_is_one_of_the_file(lines: list[str]) -> None:
    text = "\n".join(lines)
    faults: list[Diagnostic] = []
    source = SourceFile(name="a.yaml", path="a.yaml", text=text, lines=tuple(text.split("\n")))
    tree = read_yaml(source, faults)
    assert faults or tree is not None
    for fault in faults:
        _, line, column = fault.where.split(":")
        assert 1 <= int(line) <= len(source.lines)
        assert 1 <= int(column) <= len(source.lines[int(line) - 1]) + 1
    if tree is not None:
        for node in nodes_in(tree):
            assert 1 <= node.line <= len(source.lines) + 1


def nodes_in(node: LocatedValue) -> list[LocatedValue]:
    inner = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    return [node, *(one for item in inner for one in nodes_in(item))]


TOML_KEYS = st.sampled_from(["a", "b", "c-d", '"e.f"', "'g h'", '"i\\tj"', "k . l", "m"])
TOML_VALUES = st.recursive(
    st.sampled_from(
        ["1", "0x1F", "-1.5e3", "true", '"x # y"', "'z]'", '"""\n[a]\n"""', "'''\nb = '''", "inf", '"\\""']
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ",\n # note ]\n ".join(items) + "]"),
        st.lists(st.tuples(TOML_KEYS, inner), max_size=2).map(
            lambda pairs: "{ " + ", ".join(f"{key} = {value}" for key, value in pairs) + " }"
        ),
    ),
    max_leaves=5,
)
TOML_LINES = st.one_of(
    st.tuples(TOML_KEYS, TOML_VALUES).map(lambda pair: f"{pair[0]} = {pair[1]}  # note"),
    TOML_KEYS.map(lambda key: f"[{key}]"),
    TOML_KEYS.map(lambda key: f"[[ {key} ]]"),
    st.just("# only a note = [1]"),
)


@settings(max_examples=examples(50, 200))
@given(st.lists(TOML_LINES, max_size=6))
def test_every_place_in_toml_is_where_the_key_and_the_value_stand(lines: list[str]) -> None:
    text = "\n".join(lines)
    source = SourceFile(name="a.toml", path="a.toml", text=text, lines=tuple(text.split("\n")))
    faults: list[Diagnostic] = []
    tree = read_toml(source, faults)
    if tree is None:
        assert len(faults) == 1
        return
    assert not faults
    for key, node in keyed_nodes(tree):
        at_key = source.lines[node.key_line - 1][node.key_column - 1 :]
        assert at_key.lstrip("\"'").startswith(key.partition("\t")[0])
        at_value = source.lines[node.line - 1][node.column - 1 :]
        if isinstance(node.value, bool):
            assert at_value.startswith(str(node.value).lower())
        elif isinstance(node.value, str):
            assert at_value[0] in "\"'"


def keyed_nodes(tree: LocatedValue) -> list[tuple[str, LocatedValue]]:
    if isinstance(tree.value, dict):
        return [pair for key, node in tree.value.items() for pair in ((key, node), *keyed_nodes(node))]
    return [pair for node in tree.value for pair in keyed_nodes(node)] if isinstance(tree.value, list) else []


@given(st.text(st.sampled_from("ab.${}\\:,[]0 env"), max_size=24))
def test_text_is_taken_apart_or_refused_and_literal_text_stays(text: str) -> None:
    try:
        parts = parse(text)
    except ValueError:
        assert "${" in text
        return
    if "${" not in text:
        assert "".join(map(str, parts)) == text


REFERRING = st.dictionaries(
    st.sampled_from("abcdef"),
    st.one_of(
        st.integers(0, 9),
        st.sampled_from(["${a}", "${b}", "x${c}", "${d}${e}", "${f}", "${g}", "\\${a}", "${env:N}", "${env:M,${b}}"]),
        st.lists(st.sampled_from(["${a}", "${b}", "y"]), max_size=2),
    ),
    min_size=1,
)


@settings(max_examples=examples(40, 150))
@given(REFERRING)
def test_references_always_end_in_values_or_in_faults_that_name_them(values: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.yaml").write_text(to_yaml(values), encoding="utf-8")
        composed = composed_or_faults(folder, [], {"N": "${a}"})
    if isinstance(composed, InvalidConfig):
        assert all(fault.where.startswith("a.yaml:") for fault in composed.faults)
        assert len(composed.faults) <= len(values)
        return
    assert set(composed.values) == set(values)
    for key, value in values.items():
        if not isinstance(value, list) and "${" not in str(value):
            assert composed.values[key] == value


def composed_or_faults(folder: str, words: list[str], environment: dict[str, str]) -> ComposedConfig | InvalidConfig:
    try:
        return compose(["a.yaml"], parse_overrides(words), FREE, environment, folder)
    except InvalidConfig as error:
        return error


CHOICES = st.lists(st.sampled_from(["1", "2.5", "x", "true", "[1,2]", "'3'", "null", "{p: 1}"]), min_size=2, max_size=3)
WORDS = st.dictionaries(st.sampled_from(["a", "b", "c.d", "c.e", "f.g.h"]), CHOICES, min_size=1, max_size=3)


@settings(max_examples=examples(24, 60))
@given(WORDS, st.booleans())
def test_a_trial_is_what_composing_its_choices_alone_gives(words: dict[str, list[str]], refers: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = "a: 0\nb: 0\nc: {d: 0, e: 0, k: 1}\nf: {g: {h: 0}}\nl: [1]\n"
        Path(folder, "a.yaml").write_text(base + ("m: ${a}\nn: ['${c.d}']\n" if refers else ""), encoding="utf-8")
        swept = [f"{path}={','.join(choices)}" for path, choices in words.items()]
        composed = compose(["a.yaml"], parse_overrides(swept), FREE, {}, folder)
        assert composed.sweep is not None
        names = TrialFingerprints(composed.values, FREE)
        for point in points(composed.sweep):
            given = [f"{path}={spelt(choice.text, choice.value)}" for path, choice in point.choices]
            alone = compose(["a.yaml"], parse_overrides(given), FREE, {}, folder)
            assert same(sorted_tree(composed.at(point)), sorted_tree(alone.values))
            assert identity_at(composed, point) == alone.identity() == names.identity(composed.at(point))


def spelt(text: str, value: Any) -> str:
    return f"'{text}'" if isinstance(value, str) else text


@given(TREES, st.lists(KEYS, min_size=1, max_size=3), SINGLE)
def test_a_value_put_into_a_tree_is_found_there_and_the_tree_stays(
    tree: dict[str, Any], steps: list[str], value: Any
) -> None:
    before = repr(tree)
    put = with_value(tree, steps, value)
    assert same(found(put, steps), value)
    assert same(found(replaced(put, steps, "new"), steps), "new")
    assert ".".join(steps) not in leaf_paths(without(put, steps))
    assert repr(tree) == before


@given(st.dictionaries(KEYS, SINGLE, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_keys_is_no_part_of_an_identity(values: dict[str, Any], random: Any) -> None:
    shuffled = list(values.items())
    random.shuffle(shuffled)
    assert identity_fingerprint(values, FREE) == identity_fingerprint(dict(shuffled), FREE)


ANY_WORDS = st.lists(
    st.sampled_from(
        ["a=1", "+a=2", "++a=3", "~a", "b.c=1", "+b.c=1", "~b", "b=1", "b={c: 2}", "+b={d: 2}", "l+=[1]", "l-=[1]",
         "l.0=5", "~l.0", "g=one", "+g=one", "~g", "g=two,one", "a=1,2", "h@x=one", "+h@x=one", "m=${a}", "+m=${a}",
         "a=${m}", "l=${l}", "b.c.d=1", "+b.c.d=1", "g.x=9", "sweep=1", "defaults=2"]
    ),
    max_size=5,
)  # fmt: skip


@settings(max_examples=examples(50, 200))
@given(ANY_WORDS)
def test_whatever_words_stand_together_they_compose_or_are_faults(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for group in ("g", "h"):
            Path(folder, group).mkdir()
            Path(folder, group, "one.yaml").write_text("x: 1\n")
            Path(folder, group, "two.yaml").write_text("x: 2\ny: ${a}\n")
        Path(folder, "a.yaml").write_text("defaults:\n  - g: two\na: 0\nb: {c: 0}\nl: [1, 2]\n")
        composed = composed_or_faults(folder, words, {})
        if isinstance(composed, InvalidConfig):
            return
        composed.record()
        composed.rows()
        assert read_yaml_text(composed.to_yaml()) == composed.values
        for point in points(composed.sweep) if composed.sweep is not None else ():
            assert identity_at(composed, point) == identity_fingerprint(composed.at(point), FREE)
