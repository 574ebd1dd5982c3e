"""Words of a command line: what they change, and what is said about those that change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.config.overrides import Override, OverrideKind, read_overrides
from stoker.config.positions import ConfigLayer
from stoker.config.sweep import Axis, AxisValue, ValueForm
from stoker.core.errors import Diagnostic, InvalidConfig
from tests.fakes.overrides import parse_override, parse_overrides


def value_of(word: str) -> Any:
    value = parse_override(word).value
    assert isinstance(value, AxisValue)
    return value.value


def swept(word: str) -> list[Any]:
    value = parse_override(word).value
    assert isinstance(value, Axis)
    return [choice.value for choice in value.choices]


def fault_of(word: str) -> Diagnostic:
    overrides, faults = read_overrides([word])
    assert not overrides
    assert len(faults) == 1
    return faults[0]


# --- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "kind", "path", "package"),
    [
        ("lr=1", OverrideKind.CHANGE, "lr", None),
        ("model.depth=1", OverrideKind.CHANGE, "model.depth", None),
        ("+note=x", OverrideKind.ADD, "note", None),
        ("++a.b=x", OverrideKind.FORCE, "a.b", None),
        ("~a.b", OverrideKind.DELETE, "a.b", None),
        ("~a.b=1", OverrideKind.DELETE, "a.b", None),
        ("a+=[1]", OverrideKind.APPEND, "a", None),
        ("a.b-=[1]", OverrideKind.REMOVE, "a.b", None),
        ("model=gbt", OverrideKind.CHANGE, "model", None),
        ("db/engine=mysql", OverrideKind.CHANGE, "db/engine", None),
        ("db@src=mysql", OverrideKind.CHANGE, "db", "src"),
        ("+db/engine@a.b=mysql", OverrideKind.ADD, "db/engine", "a.b"),
        ("db@=mysql", OverrideKind.CHANGE, "db", ""),
        ("~db@src", OverrideKind.DELETE, "db", "src"),
        ("a.0.b=1", OverrideKind.CHANGE, "a.0.b", None),
        ("a-b=1", OverrideKind.CHANGE, "a-b", None),
        ("$a.b$=1", OverrideKind.CHANGE, "$a.b$", None),
        ("größe=1", OverrideKind.CHANGE, "größe", None),
    ],
)
def test_a_key_says_what_is_done_to_what(word: str, kind: OverrideKind, path: str, package: str | None) -> None:
    found = parse_override(word)
    assert (found.kind, found.path, found.package) == (kind, path, package)
    assert found.text == word


@pytest.mark.parametrize(("word", "is_group"), [("a=b", False), ("a.b=c", False), ("a/b=c", True), ("a@b=c", True)])
def test_only_slashes_and_packages_make_a_group_for_certain(word: str, is_group: bool) -> None:
    assert parse_override(word).names_group is is_group


def test_a_deletion_may_have_no_value_and_an_empty_one() -> None:
    assert parse_override("~a").value is None
    assert value_of("~a=") == ""


def test_an_override_knows_its_place() -> None:
    first, second = parse_overrides(["lr=1", "++model.depth=3,4"])
    assert str(first.origin) == "argument 1 (lr=1)"
    assert (first.column, second.column) == (4, 15)
    assert first.origin.layer is ConfigLayer.OVERRIDE
    assert second.origin.layer is ConfigLayer.SWEEP
    assert isinstance(second.value, Axis)
    assert second.value.origin == second.origin


def test_a_swept_group_carries_its_package_in_the_path() -> None:
    found = parse_override("db@src=mysql,sqlite").value
    assert isinstance(found, Axis)
    assert found.path == "db@src"


@pytest.mark.parametrize(
    ("word", "column", "says", "hint"),
    [
        ("lr", 3, "expected '=' and a value", "lr=VALUE; ~lr deletes it"),
        ("", 1, "expected a key such as lr or model.depth, found nothing", ""),
        ("+", 2, "expected a key", ""),
        ("~", 2, "expected a key", ""),
        ("=1", 1, "found '='", ""),
        ("--lr=1", 1, "found '-'", "an override has no leading dashes: lr"),
        ("lr =1", 3, "found ' '", "remove the space before the ="),
        ("a[0]=1", 2, "found '['", "a.0=VALUE"),
        ("a..b=1", 2, "found '.'", "a step is missing"),
        ("a.=1", 2, "found '.'", "a step is missing"),
        ("a/b.c=1", 4, "found '.'", "a group has slashes"),
        ("a/=1", 2, "found '/'", "a group has slashes"),
        ("a@b/c=1", 4, "expected a package such as model or db.main, found '/'", ""),
        ("1a=3", 1, "found '1'", ""),
        ("a b=3", 2, "found ' '", ""),
        ("+++a=3", 3, "found '+'", ""),
        ("+a+=[1]", 1, "+ in front and += don't go together", "drop one"),
        ("~a-=[1]", 1, "~ in front and -= don't go together", "drop one"),
        ("a+=1,2", 4, "an appended value can't be swept", "for several write a+=[1,2]"),
        ("a-=1,2", 4, "a removed value can't be swept", "for several write a-=[1,2]"),
        ("~a=1,2", 4, "a deletion can't be swept", ""),
        ("x=\udc80", 1, "is not valid Unicode text", ""),
    ],
)  # fmt: skip
def test_a_bad_key_is_pointed_at(word: str, column: int, says: str, hint: str) -> None:
    fault = fault_of(word)
    assert fault.where == "argument 1"
    assert says in fault.message
    assert hint in fault.hint
    if word:
        assert fault.shown.split("\n")[1].index("^") == column - 1


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("x=", ""),
        ("x=  ", ""),
        ("x=1", 1),
        ("x= 1 ", 1),
        ("x=on", "on"),
        ("x=007", "007"),
        ("x=hello world", "hello world"),
        ("x=null", None),
        ("x='null'", "null"),
        ("x='1'", "1"),
        ('x="a, b"', "a, b"),
        ("x='it\\'s'", "it's"),
        ("x='a\\b'", "a\\b"),
        ("x='a\\\\'", "a\\"),
        ("x=it\\'s", "it's"),
        ("x=a\\,b", "a,b"),
        ("x=a\\ ", "a "),
        ("x=\\1", "\\1"),
        ("x=C:\\dir", "C:\\dir"),
        ("x=1\\ ", "1 "),
        ("x=/data/a.csv", "/data/a.csv"),
        ("x=http://h/?a=1&b=~c", "http://h/?a=1&b=~c"),
        ("x=[]", []),
        ("x=[a,b]", ["a", "b"]),
        ("x=[ 1 , 'b c' , [null] ]", [1, "b c", [None]]),
        ("x={}", {}),
        ("x={a:1,b:{c: [2]}}", {"a": 1, "b": {"c": [2]}}),
        ("x={1:a,'b c':d:e}", {"1": "a", "b c": "d:e"}),
        ("x=${a.b}", "${a.b}"),
        ("x=${env:HOME,/tmp}/x", "${env:HOME,/tmp}/x"),
        ("x=[${a},${b}]", ["${a}", "${b}"]),
        ("x=\\${a}", "\\${a}"),
        ("x=$HOME", "$HOME"),
        ("x=lint:a", "lint:a"),
    ],
)
def test_a_value_is_read_by_the_fixed_rules(word: str, value: Any) -> None:
    assert repr(value_of(word)) == repr(value)


@pytest.mark.parametrize(
    ("word", "text", "form"),
    [
        ("x=1e-3", "1e-3", ValueForm.PLAIN),
        ("x='1e-3'", "1e-3", ValueForm.QUOTED),
        ("x= a\\,b ", "a,b", ValueForm.PLAIN),
        ("x=[1, 'b c']", "[1, 'b c']", ValueForm.PLAIN),
        ("x={a:1} ", "{a:1}", ValueForm.PLAIN),
    ],
)
def test_the_text_is_kept_for_the_declared_type(word: str, text: str, form: ValueForm) -> None:
    value = parse_override(word).value
    assert isinstance(value, AxisValue)
    assert (value.text, value.form) == (text, form)


@pytest.mark.parametrize(
    ("word", "refers"), [("x=${a}", True), ("x=[1,'${a}']", True), ("x=$a", False), ("x=a", False)]
)
def test_a_reference_is_noticed(word: str, refers: bool) -> None:
    value = parse_override(word).value
    assert isinstance(value, AxisValue)
    assert value.refers is refers


# --- sweeps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("lr=1e-3,1e-4", [1e-3, 1e-4]),
        ("lr=1e-3 , 'a,b', [c,d]", [1e-3, "a,b", ["c", "d"]]),
        ("x=a,b,a", ["a", "b", "a"]),
        ("x=${a},${b,c}", ["${a}", "${b,c}"]),
        ("x=choice(a,b)", ["a", "b"]),
        ("x=choice( a )", ["a"]),
        ("x=choice (a,'b)',{c:1})", ["a", "b)", {"c": 1}]),
        ("n=range:1:10:2", [1, 3, 5, 7, 9]),
        ("n=range:3", [0, 1, 2]),
        ("n=range:2:5", [2, 3, 4]),
        ("n=range:5:0:-2", [5, 3, 1]),
        ("n=range(1,10,2)", [1, 3, 5, 7, 9]),
        ("n=range( 3 )", [0, 1, 2]),
        ("x=range:0:1:0.25", [0.0, 0.25, 0.5, 0.75]),
        ("x=lin:0:1:5", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("x=linspace(1,0,3)", [1.0, 0.5, 0.0]),
        ("lr=log:1e-4:1e-1:4", [0.0001, 0.001, 0.01, 0.1]),
        ("lr=logspace(1e-4,1e-1,4)", [0.0001, 0.001, 0.01, 0.1]),
    ],
)
def test_a_comma_or_a_range_makes_an_axis(word: str, values: list[Any]) -> None:
    assert repr(swept(word)) == repr(values)


def test_quotes_keep_a_comma_and_a_range_from_making_an_axis() -> None:
    assert value_of("x='a,b'") == "a,b"
    assert value_of("x='log:1e-4:1e-1:4'") == "log:1e-4:1e-1:4"
    assert value_of("x=[range:1:2,a]") == ["range:1:2", "a"]


@pytest.mark.parametrize(
    ("word", "column", "says", "hint"),
    [
        ("x=[1,2", 3, "'[' is never closed", "close it with ]"),
        ("x={a:1", 3, "'{' is never closed", ""),
        ("x=[1,2}", 7, "expected a comma or ']', found '}'", ""),
        ("x=[1,,2]", 6, "expected a value before ','", "'' is the empty text"),
        ("x=[1,]", 6, "expected a value before ']'", ""),
        ("x=a,", 5, "expected a value, found the end", ""),
        ("x=,a", 3, "expected a value before ','", ""),
        ("x=a]", 4, "']' closes nothing", "write \\] for the character itself; if it is text: 'x=\"a]\"'"),
        ("x=data[0]", 7, "'[' inside text", "if it is text: 'x=\"data[0]\"'"),
        ("x=it's", 5, "a quote inside text", "write \\'"),
        ("x='a'b", 6, "expected a comma, found 'b'", ""),
        ("x='abc", 3, "the quote is never closed", "close it with '"),
        ("x=[1,2]3", 8, "expected a comma, found '3'", ""),
        ("x={a}", 5, "expected a colon and a value, found '}'", ""),
        ("x={a=1}", 5, "expected a colon between key and value", ""),
        ("x={a:1,a:2}", 8, "'a' is twice in one map", ""),
        ("x={:1}", 4, "expected a key before ':'", ""),
        ("x={${a}:1}", 4, "a key can't refer to a value", ""),
        ("x==1", 3, "there is a second =", "one is enough"),
        ("x=${a", 3, "'${' is never closed", "close it with }"),
        ("x=${}", 3, "the reference is empty", "such as ${model.depth}"),
        ("x=a\nb", 4, "a control character ('\\n')", ""),
        ("x=foo(1)", 3, "there is no function 'foo'", "there are choice, range, linspace, logspace"),
        ("x=chioce(a,b)", 3, "there is no function 'chioce'", "did you mean 'choice'?"),
        ("x=int(3)", 3, "there is no function 'int'", "the declared type of a field decides"),
        ("x=[choice(a)]", 10, "'(' inside text", ""),
        ("x=choice()", 3, "choice() has no values", "such as choice(a,b)"),
        ("x=choice(a,b)c", 14, "nothing may follow here, found 'c'", ""),
        ("x=a,range:1:3", 5, "a range can't be among choices", "concat"),
        ("x=range:1:3,5", 12, "a range can't be among choices", "concat"),
        ("x=range:1:x", 11, "'x' is not a number", ""),
        ("x=range:1::2", 11, "a number is missing", ""),
        ("x=range:1:2:3:4", 3, "range takes START, STOP and STEP, here are 4 numbers", "such as range:1:10:2"),
        ("x=lin:0:1", 3, "lin takes FIRST, LAST and COUNT, here are 2 numbers", "such as lin:0:1:5"),
        ("n=range:1:10:0", 14, "a step of 0 never reaches the end", ""),
        ("n=range(1,10, 0)", 15, "a step of 0 never reaches the end", ""),
        ("n=range:10:1", 3, "has the wrong direction", "step by -1"),
        ("n=range:1:1", 3, "is empty", "the end itself is left out"),
        ("x=lin:0:1:0", 11, "the count of points is a whole number from 1, not 0", ""),
        ("x=lin:0:1:2.5", 11, "the count of points is a whole number from 1, not 2.5", ""),
        ("x=log:0:1:3", 7, "a logarithmic scale has no 0", "both ends are above 0"),
        ("x=log:1:-1:3", 9, "a logarithmic scale has no -1", ""),
        ("x=lin:nan:1:3", 7, "nan is not a finite number", ""),
        ("x=lin:0:inf:3", 9, "inf is not a finite number", ""),
        ("x=range:0:1e999", 11, "'1e999' is not a number that a float can hold", ""),
        ("x=range:0:1e18:1e-1", 3, "more than 10^18 points", ""),
        ("x=range:0:1:1e-500", 13, "is not a number that a float can hold", ""),
        ("x=" + "[" * 40, 35, "nested deeper than 32 levels", "put it into a file"),
    ],
)
def test_a_bad_value_is_pointed_at(word: str, column: int, says: str, hint: str) -> None:
    fault = fault_of(word)
    assert says in fault.message
    assert hint in fault.hint
    assert fault.shown.split("\n")[1].index("^") == column - 1


def test_a_fault_is_shown_with_carets_and_a_fix() -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_override("lr=log:1e-4:0:4", 3)
    assert caught.value.exit_code == 21
    assert str(caught.value) == (
        "argument 3: a logarithmic scale has no 0 "
        "(both ends are above 0; lin takes any; if it is text: 'lr=\"log:1e-4:0:4\"')"
    )
    assert caught.value.faults[0].shown == "lr=log:1e-4:0:4\n            ^"


def test_every_fault_of_every_word_comes_at_once() -> None:
    words = ["lr=0.1", "--a=[1", "b=1", "c={x", "d", "e=1,2", "+f+=it's"]
    with pytest.raises(InvalidConfig, match="6 errors in the overrides") as caught:
        parse_overrides(words)
    assert [fault.where for fault in caught.value.faults] == [
        "argument 2", "argument 2", "argument 4", "argument 5", "argument 7", "argument 7",
    ]  # fmt: skip
    overrides, faults = read_overrides(words)
    assert [found.path for found in overrides] == ["lr", "b", "e"]
    assert tuple(faults) == caught.value.faults


def test_nesting_up_to_the_bound_is_read() -> None:
    assert value_of("x=" + "[" * 32 + "]" * 32) is not None


def test_what_is_said_about_a_huge_word_is_short() -> None:
    for word in ("x=range:" + "9" * 100_000 + "x", "x=a[" + "b" * 100_000, "é" * 100_000, "a+=" + "b," * 50_000 + "c"):
        fault = fault_of(word)
        assert len(fault.message) <= 300
        assert len(fault.hint) <= 300
        assert len(fault.shown) <= 300


def test_words_without_a_fault_are_plain_nouns() -> None:
    assert parse_override("+a=1", 2) == Override(
        kind=OverrideKind.ADD, path="a", value=AxisValue("1", 1), text="+a=1", position=2, column=4
    )


@pytest.mark.parametrize(
    "word",
    ["a" + ".a" * 60_000 + "=1", "~a" + ".a" * 60_000,
     "a" + "/a" * 60_000 + "=x", "g@a" + ".a" * 60_000 + "=x", "a" + ".a" * 50 + "=1"],
)  # fmt: skip
def test_a_key_of_too_many_steps_is_a_fault(word: str):
    fault = fault_of(word)
    assert fault.message == "is nested deeper than 50 levels"
    assert len(fault.shown) < 300


def test_fifty_steps_are_not_too_many_and_dots_in_a_value_are_not_steps():
    assert parse_override("a" + ".a" * 49 + "=1").path.count(".") == 49
    assert value_of("a='" + "b." * 200 + "'") == "b." * 200
