"""The grammar of overrides beside Hydra's: equal on every word, but for the differences that one page lists."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stoker.config.overrides import OverrideKind, read_overrides
from stoker.config.sweep import Axis
from stoker.config.values import scalar
from stoker.core.errors import InvalidConfig
from tests.fakes.overrides import parse_override

PAGE = Path(__file__).parents[2] / "docs" / "hydra-differences.md"
REFUSED = "refused"
MOST_LISTED = 50
KINDS = {
    "CHANGE": OverrideKind.CHANGE,
    "ADD": OverrideKind.ADD,
    "FORCE_ADD": OverrideKind.FORCE,
    "DEL": OverrideKind.DELETE,
}


class Reading(NamedTuple):
    """What a word means: the value is a list for an axis."""

    kind: OverrideKind
    key: str
    joint: str
    """` = `, ` over `, or nothing for a deletion without a value."""
    value: Any

    def __str__(self) -> str:
        return f"{self.kind} {self.key}{self.joint}{self.value!r}" if self.joint else f"{self.kind} {self.key}"


Read = Callable[[str], "Reading | None"]


@pytest.fixture(scope="module")
def hydra() -> Read:
    """Hydra's reading of a word; nothing if it refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from hydra.core.override_parser.overrides_parser import OverridesParser

        parser = OverridesParser.create()

    def read(word: str) -> Reading | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = parser.parse_override(word)
                value = found.value()
                if found.is_sweep_override():
                    swept: Any = found.sweep_iterator() if found.is_discrete_sweep() else [value]
                    value = [found._convert_value(item) for item in islice(swept, MOST_LISTED)]
        except Exception:  # noqa: BLE001 - its own, and whatever its functions let out
            return None
        key = found.key_or_group if found.package is None else f"{found.key_or_group}@{found.package}"
        joint = " over " if found.is_sweep_override() else " = " if found.value_type is not None else ""
        return Reading(KINDS[found.type.name], key, joint, value)

    return read


def stoker(word: str) -> Reading | None:
    """Our reading of a word; nothing if we refuse it."""
    try:
        found = parse_override(word)
    except InvalidConfig:
        return None
    key = found.path if found.package is None else f"{found.path}@{found.package}"
    if isinstance(found.value, Axis):
        listed = [choice.value for choice in islice(found.value.choices, MOST_LISTED)]
        return Reading(found.kind, key, " over ", listed)
    if found.value is None:
        return Reading(found.kind, key, "", None)
    return Reading(found.kind, key, " = ", found.value.value)


def rows() -> Iterator[tuple[str, str, str, str]]:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        found = re.fullmatch(r"\| ([\w'-]+) \| `(.+)` \| `(.+)` \| `(.+)` \|", line)
        if found is not None:
            yield found[1], found[2], found[3], found[4]


ROWS = list(rows())


@pytest.mark.parametrize(("name", "word", "theirs", "ours"), ROWS, ids=[f"{row[0]}: {row[1][:30]}" for row in ROWS])
def test_the_page_says_what_both_make_of_a_word(hydra: Read, name: str, word: str, theirs: str, ours: str) -> None:
    assert str(stoker(word) or REFUSED) == ours
    assert str(hydra(word) or REFUSED) == theirs
    assert name in explanations(word, hydra(word), stoker(word))


def test_the_page_lists_exactly_the_differences_that_are_allowed() -> None:
    assert {row[0] for row in ROWS} == {*CHANGED, *OURS_ONLY, *THEIRS_ONLY}


def explanations(word: str, theirs: Reading | None, ours: Reading | None) -> list[str]:
    """The listed differences that may be the reason for two readings."""
    if theirs is not None and ours is not None:
        return [name for name, is_it in CHANGED.items() if is_it(word, theirs, ours)]
    if ours is not None:
        return [name for name, is_it in OURS_ONLY.items() if is_it(unquoted(word))]
    _, faults = read_overrides([word])
    reasons = [[name for name, says in THEIRS_ONLY.items() if re.search(says, fault.message)] for fault in faults]
    return [name for names in reasons for name in names] if all(reasons) else []


def unquoted(word: str) -> str:
    """The word without what stands in quotes, so that a rule sees only what has a meaning."""
    return re.sub(r"""(?<=[=,:\[{(\s])(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", "''", word)


def reread(value: Any) -> Any:
    """Our value as Hydra would have it: keys of maps and numbers that can't be held read by their looks."""
    if isinstance(value, dict):
        return {reread(scalar(key)) if isinstance(key, str) else key: reread(item) for key, item in value.items()}
    if isinstance(value, list):
        return [reread(item) for item in value]
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9._]+[eE][+-]?[0-9_]+", value):
        return float(value)
    return value


def stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {stripped(key): stripped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [stripped(item) for item in value]
    return value.strip() if isinstance(value, str) else value


def alike(theirs: Any, ours: Any) -> bool:
    return repr(stripped(theirs)) == repr(stripped(reread(ours)))


def close(theirs: Reading, ours: Reading) -> bool:
    return len(theirs.value) == len(ours.value) and all(
        math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
        for one, other in zip(theirs.value, ours.value, strict=True)
    )


# What may make two readings differ.
CHANGED: dict[str, Callable[[str, Reading, Reading], bool]] = {
    "too-large-or-small": lambda word, theirs, ours: (
        alike(theirs.value, ours.value) and re.search("inf|0.0", str(theirs)) is not None
    ),
    "map-keys-are-text": lambda word, theirs, ours: "{" in word and alike(theirs.value, ours.value),
    "spaces-around-are-dropped": lambda word, theirs, ours: (
        re.search(r":[ \t]|[ \t]:", word) is not None and alike(theirs.value, ours.value)
    ),
    "shell-safe-ranges": lambda word, theirs, ours: (
        re.match(r"[ \t]*(range|lin|log):", word.partition("=")[2]) is not None and ours.joint == " over "
    ),
    "exact-ranges": lambda word, theirs, ours: (
        re.match(r"[^=]*=[ \t]*range[ \t]*\(", word) is not None and close(theirs, ours)
    ),
    "list-edits": lambda word, theirs, ours: (
        str(ours) == str(Reading(OverrideKind.REMOVE, theirs.key[:-1], *theirs[2:]))
    ),
}
# What may make us read a word that Hydra refuses; each looks at the word without what stands in quotes.
OURS_ONLY: dict[str, Callable[[str], bool]] = {
    "list-edits": lambda word: word.partition("=")[0].endswith(("+", "-")),
    "more-characters-in-text": lambda word: (
        re.search(r"[^A-Za-z0-9_ \t/\-\\+.$%*@?|:()\[\]{},'\"]", word.partition("=")[2]) is not None
    ),
    "escaped-quotes": lambda word: re.search(r"\\['\"]", word) is not None,
    "unicode-keys": lambda word: not word.partition("=")[0].isascii(),
    "quoted-map-keys": lambda word: re.search(r"[{,][ \t]*''[ \t]*:", word) is not None,
    "spaces-after-quotes": lambda word: re.search(r"''[ \t]", word) is not None,
    "references-in-references": lambda word: re.search(r"\$\{[^}]*\$\{", word) is not None,
    "spacing-functions": lambda word: re.search(r"(lin|log)space[ \t]*\(", word) is not None,
}
# What we may say to refuse a word that Hydra reads.
THEIRS_ONLY: dict[str, str] = {
    "shell-safe-ranges": "takes (FIRST|START), |is not a number that|a number is missing|among choices",
    "references-in-references": r"'\$\{' is never closed|the reference is empty",
    "no-empty-key": "expected a key such as lr or model.depth, found ('[=@]'|nothing)",
    "no-dash-at-a-key's-end": "such as .*, found '-'|don't go together",
    "no-map-key-twice": "is twice in one map",
    "no-empty-axis": "is empty|has the wrong direction",
    "no-other-functions": "there is no function",
    "no-functions-inside": r"'\(' inside text that is not in quotes",
    "no-names-in-functions": "'.*=.*' is not a number",
    "no-swept-deletion": "a deletion can't be swept|(a removed|an appended) value can't be swept",
    "no-range-among-choices": "a range can't be among choices",
    "bounded-nesting": "nested deeper than",
}

SIGNS = st.sampled_from(["", "", "", "+", "++", "~"])
STEPS = st.sampled_from(["a", "lr", "b_1", "c-d", "$e", "_", "a", "lr", "0", "12", "f-", "é", "-x", "1a", ""])
KEYS = st.one_of(
    st.sampled_from(["x", "lr", "model.depth", "db/mysql", "db@", "db@src", "db/x@a.b", "a.0.b", "a+", "a-", "a +"]),
    st.tuples(STEPS, st.sampled_from("./@"), STEPS).map("".join),
)
GOOD = r"""
0 1 -1 +3 007 1_000 1__0 0_1 .5 5. 1e-5 1E+5 1_0e1_0 1e999 -1e-999 nan -inf +INF infinity true False nUll None on yes
adam a-b _x 0x10 1.2.3 2024-01-31 /data/x.csv C:\dir a:b :a a@b %d 50% $HOME ${a.b} x${a}y * ? |
\, \\ \[ \= \: \( \d a\,b 'a,b' "a-b" 'it\'s' '\\' '' '[1,2]' "1"
"""
ODD = r"""${a.${b}} ${} ${a \' range:1:6:2 lin:0:1:3 log:x range( choice( é a=b ~ # \ 'a "b [ }"""
SPACED = ["a b", "a\\ ", " a", "a ", "a\tb", "\\ "]
SCALARS = st.sampled_from([*GOOD.split(), *SPACED])
ODDITIES = st.sampled_from([*ODD.split(), "a: ", "'a' ", "", " ", ",", ":", "=", "(", ")", "]", "'", "\t", ", "])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        st.lists(inner, max_size=3).map(lambda items: f"[ {' , '.join(items)} ]"),
        st.lists(st.tuples(SCALARS, inner), max_size=3).map(
            lambda pairs: f"{{{','.join(f'{key}:{item}' for key, item in pairs)}}}"
        ),
    ),
    max_leaves=6,
)
NUMBERS = st.sampled_from(["0", "1", "2", "5", "-3", "10", "0.5", "-.25", "1e1", "x"])
FUNCTIONS = st.tuples(
    st.sampled_from(["range", "choice", "range ", "linspace", "logspace", "int", "sort", "shuffle", "glob", "foo"]),
    st.lists(st.one_of(NUMBERS, VALUES), max_size=4),
).map(lambda call: f"{call[0]}({','.join(call[1])})")
SWEPT = st.lists(VALUES, min_size=2, max_size=4).map(",".join)
SOUP = st.lists(st.one_of(SCALARS, ODDITIES), max_size=6).map("".join)
ANY_VALUE = st.one_of(VALUES, SWEPT, FUNCTIONS, SOUP, st.tuples(VALUES, ODDITIES, VALUES).map("".join))
WORDS = st.one_of(
    st.tuples(SIGNS, KEYS, st.sampled_from(["=", "=", "= ", "=="]), SCALARS).map("".join),
    st.tuples(SIGNS, KEYS).map("".join),
    st.tuples(st.sampled_from(["x=", "x=", "+a.b=", "~x="]), ANY_VALUE).map("".join),
)


def assert_alike(hydra: Read, word: str) -> None:
    theirs, ours = hydra(word), stoker(word)
    # By their texts: NaN is NaN, and 1 is not 1.0.
    is_same = str(theirs) == str(ours)
    assert is_same or explanations(word, theirs, ours), f"{word!r}\n  Hydra:  {theirs}\n  Stoker: {ours}"


def fuzzed(count: int) -> settings:
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzzed(400)
@given(WORDS)
@example("x=a,'b,c',[d,{e:f}]")
@example("++a.0.b@c.d={x:[1, 2.5 ,null],y:'}'}")
def test_a_word_is_read_as_hydra_reads_it(hydra: Read, word: str) -> None:
    assert_alike(hydra, word)


@pytest.mark.slow
@fuzzed(20_000)
@given(WORDS)
def test_many_words_are_read_as_hydra_reads_them(hydra: Read, word: str) -> None:
    assert_alike(hydra, word)
