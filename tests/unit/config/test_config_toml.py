"""TOML files: read by the standard library, located by us."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable

import pytest

from stoker.config.positions import LocatedValue, SourceFile
from stoker.config.toml_file import find_places, read_toml
from stoker.core.errors import Diagnostic
from stoker.core.frozen import changed

EVERY_FORM = """\
# a comment with [brackets] and = signs
plain = 1
dotted.key."with.dot" = "x" # after
'literal' = 'it\\s'
text = '''
[not] a = table
'''
basic = \"\"\"a "quoted" \\\" one\"\"\"

[table]
list = [1, [2, 3], { k = 1, j.z = [ # comment ] here
  4, 5,
] }]
when = true

[ table . sub ]
deep = { a = { b = 1 } }

[[items]]
name = "one"
[items.inner]
x = 1
[[items.more]]
y = 2
[[items.more]]
y = 3

[[items]]
name = "two"
"""


def source_of(text: str) -> SourceFile:
    return SourceFile(name="a.toml", path="/x/a.toml", text=text, lines=tuple(text.split("\n")))


def read(text: str) -> tuple[LocatedValue | None, list[Diagnostic]]:
    faults: list[Diagnostic] = []
    return read_toml(source_of(text), faults), faults


def fault(text: str) -> Diagnostic:
    _, faults = read(text)
    assert len(faults) == 1, faults
    return faults[0]


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        (("plain",), (2, 1), (2, 9)),
        (("dotted",), (3, 1), (3, 1)),
        (("dotted", "key"), (3, 8), (3, 8)),
        (("dotted", "key", "with.dot"), (3, 12), (3, 25)),
        (("literal",), (4, 1), (4, 13)),
        (("text",), (5, 1), (5, 8)),
        (("basic",), (8, 1), (8, 9)),
        (("table",), (10, 2), (10, 2)),
        (("table", "list"), (11, 1), (11, 8)),
        (("table", "list", 0), (11, 9), (11, 9)),
        (("table", "list", 1, 1), (11, 16), (11, 16)),
        (("table", "list", 2, "k"), (11, 22), (11, 26)),
        (("table", "list", 2, "j", "z"), (11, 31), (11, 35)),
        (("table", "list", 2, "j", "z", 1), (12, 6), (12, 6)),
        (("table", "when"), (14, 1), (14, 8)),
        (("table", "sub"), (16, 11), (16, 11)),
        (("table", "sub", "deep", "a", "b"), (17, 16), (17, 20)),
        (("items",), (19, 3), (19, 3)),
        (("items", 0, "name"), (20, 1), (20, 8)),
        (("items", 0, "inner", "x"), (22, 1), (22, 5)),
        (("items", 0, "more", 0, "y"), (24, 1), (24, 5)),
        (("items", 0, "more", 1, "y"), (26, 1), (26, 5)),
        (("items", 1), (28, 3), (28, 3)),
        (("items", 1, "name"), (29, 1), (29, 8)),
    ],
)
def test_every_key_and_value_has_its_line_and_column(path, key, value):
    spot = find_places(source_of(EVERY_FORM))[path]
    assert (spot.key, spot.value) == (key, value)


def test_values_and_places_are_joined():
    tree, faults = read(EVERY_FORM)
    assert not faults
    assert tree is not None
    assert tree.plain()["table"]["list"][2] == {"k": 1, "j": {"z": [4, 5]}}
    second = tree.value["items"].value[1].value["name"]
    assert (second.value, second.line, second.column) == ("two", 29, 8)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a = \n", "a.toml:1:5"),
        ("a = 1\nb = yes\n", "a.toml:2:5"),
        ('a = 1\nb = "open', "a.toml:2:10"),
        ("a = 1\na = 2\n", "a.toml:2:6"),
        ("[t]\n[t]\n", "a.toml:2:3"),
        ("a = 08\n", "a.toml:1:6"),
    ],
)
def test_a_syntax_fault_has_its_place_and_its_line(text, where):
    found = fault(text)
    assert found.where == where
    assert found.message.startswith("is not TOML: ")
    assert "^" in found.shown


def test_text_without_quotes_brings_the_hint_to_quote_it():
    assert fault("a = fast\n").hint == "put text in quotes"


@pytest.mark.parametrize("date", ["1979-05-27", "1979-05-27 07:32:00", "1979-05-27T07:32:00Z", "07:32:00"])
def test_a_date_is_refused_where_it_stands(date):
    found = fault(f"[t]\nwhen = {date}\n")
    assert found.where == "a.toml:2:8: t.when"
    assert "quotes" in found.hint


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 2_000 + "]" * 2_000, "a = " + "[" * 60 + "]" * 60, "a = " + "{a = " * 60 + "1" + "}" * 60,
     ".".join("a" * 80) + " = 1", "[" + ".".join("a" * 80) + "]\nb = 1"],
)  # fmt: skip
def test_nesting_is_bounded_by_a_fault(text):
    assert "deeper" in fault(text).message


@pytest.mark.parametrize("number", ["9" * 5_000, "0x" + "f" * 5_000])
def test_a_number_that_can_not_be_held_is_refused(number):
    fault(f"a = {number}\n")


def test_a_key_with_an_escape_is_found_under_its_own_name():
    tree, _ = read('"a\\tb" = 1\n')
    assert tree is not None
    assert tree.value["a\tb"].column == 10


def test_an_empty_file_is_an_empty_map():
    tree, faults = read("")
    assert not faults
    assert tree is not None
    assert tree.plain() == {}


@pytest.mark.parametrize(
    "text",
    [
        "b = 1\na" + ".a" * 40_000 + " = 1",
        "b = 1\n" + " . ".join(["'a'"] * 40_000) + " = 1",
        'b = 1\n"a"' + '."\\"."' * 60 + " = 1",
    ],
)
def test_a_dotted_key_of_too_many_steps_is_refused_where_it_begins_before_it_is_read(text):
    found = fault(text)
    assert found.where == "a.toml:2:1"
    assert found.message == "is nested deeper than 50 levels"


@pytest.mark.parametrize(
    "text",
    ["a = '''\n" + "a." * 80 + "a = 1'''", 'a = """' + "a." * 80 + '"""',
     "a = 1 # " + "a." * 80 + "a", "a = '" + "a." * 80 + "'"],
)  # fmt: skip
def test_dots_in_texts_and_comments_are_not_levels(text):
    tree, faults = read(text)
    assert tree is not None
    assert not faults


def test_quotes_that_never_end_are_looked_at_once():
    text = '"""x" ' + '\\""" x" ' * 200_000 + "." * 60
    assert fault(text).message.startswith("is not TOML")


@pytest.mark.parametrize("number", ["1" * 10_001, "-" + "1" * 10_001, "1_" * 10_000 + "1"])
def test_a_number_of_too_many_digits_is_a_fault_at_its_place(number):
    found = fault(f"x = '''{'9' * 10_001}'''\n{'8' * 10_001} = 1.5\ny = [1, {number}]\n")
    assert found.where == "a.toml:3:9"
    assert found.message == "a whole number of 10001 digits is too large"
    assert "sys." not in found.hint


def test_every_step_of_a_header_has_its_place():
    tree, _ = read("[a.bc . 'd'.e-f]\nx.yy = 1\n[ g.h ]\n")
    assert tree is not None
    assert (tree.value["a"].key_column, tree.value["a"].value["bc"].key_column) == (2, 4)
    last = tree.value["a"].value["bc"].value["d"].value["e-f"]
    assert (last.key_column, last.value["x"].value["yy"].key_column) == (13, 3)
    assert tree.value["g"].value["h"].key_column == 5


def test_headers_that_make_too_many_tables_are_refused():
    text = "\n".join(f"[x{at}{'.a' * 49}]" for at in range(410))
    faults: list[Diagnostic] = []
    read_toml(changed(source_of(text), most_values=20_000), faults)
    assert ["more than 20000 values" in one.message for one in faults] == [True]
    assert source_of(text).most_values == 200_000


@pytest.mark.timing
def test_finding_the_places_of_many_long_headers_takes_about_as_long_as_reading_them():
    text = "\n".join(f"[a{'.a' * 38}.x{at}]" for at in range(1_000))
    assert best_s(lambda: find_places(source_of(text))) < 3 * best_s(lambda: tomllib.loads(text))


def best_s(work: Callable[[], object]) -> float:
    """Return how much processor time something takes when nothing disturbs it: the best of a few."""
    times_s = []
    for _ in range(3):
        start = time.process_time()
        work()
        times_s.append(time.process_time() - start)
    return min(times_s)
