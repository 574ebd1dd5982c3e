"""Composing beside Hydra: equal on the same files and words, but for the differences that one page lists."""

from __future__ import annotations

import itertools
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stoker.config.compose import compose
from stoker.config.values import Schema
from stoker.core.errors import StokerError
from tests.fakes.overrides import parse_overrides

FREE = Schema(leaves={}, is_open=True)
PAGE = Path(__file__).parents[2] / "docs" / "hydra-differences.md"
REFUSED = "refused"

Files = dict[str, str]
Composer = Callable[[str, list[str]], Any]


@pytest.fixture(scope="module")
def hydra() -> Composer:
    """What Hydra makes of a folder and words; `REFUSED` if it refuses them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import hydra
        from omegaconf import OmegaConf

    def read(folder: str, words: list[str]) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with hydra.initialize_config_dir(folder, version_base="1.3"):
                    return OmegaConf.to_container(hydra.compose("config", overrides=words), resolve=True)
        except Exception:  # noqa: BLE001 - its own, OmegaConf's, and whatever lies below
            return REFUSED

    return read


def stoker(folder: str, words: list[str]) -> Any:
    try:
        return compose(["config.yaml"], parse_overrides(words), FREE, {}, folder).values
    except StokerError:
        return REFUSED


def both(hydra: Composer, files: Files, words: list[str]) -> tuple[Any, Any]:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder, f"{name}.yaml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return hydra(folder, words), stoker(folder, words)


LEAVES = st.sampled_from(["a: 2", "b: y", "c: {d: 2}", "c: {e: 2}", "l: [1, 2]", "n: null", "r: ${a}", "s: 'v${b}'"])
CONTENT = st.lists(LEAVES, max_size=3, unique_by=lambda line: line[0]).map(
    lambda lines: "".join(f"{one}\n" for one in lines)
)
ALWAYS = "a: 1\nb: x\nc: {d: 1}\nl: [0]\n"
TOP_ENTRIES = st.sampled_from(
    ["_self_", "g: one", "g: two", "h: one", "g: null", "h@p.q: two", "h@_global_: one", "h@_global_.t: one", "other",
     "optional g: none", "g: [one, two]", "other@p", "g/one", "k: deep", "k: deep"]
)  # fmt: skip
OVERRIDES = st.sampled_from(["", "", "", "override g: two", "override h: two", "override k/h: two", "override k: deep"])
GROUP_ENTRIES = st.sampled_from(
    ["_self_", "h: one", "/h: two", "h@x: one", "h@_global_: two", "h@_here_: one", "optional h: none", "/other"]
)
NESTED_OVERRIDES = st.sampled_from(["", "", "override /g: one", "override h: two"])
HEADERS = st.sampled_from(["", "", "", "# @package _global_\n", "# @package z.y\n"])


def file_of(header: str, entries: list[str], override: str, content: str) -> str:
    # Hydra wants an override last; we take it anywhere.
    listed = [*entries, override] if override else entries
    return header + ("defaults:\n" + "".join(f"  - {entry}\n" for entry in listed) if listed else "") + content


def group_of(entry: str) -> str:
    return entry.removeprefix("optional ").partition(":")[0]


def files_with(**made: str) -> Files:
    return {name.replace("__", "/"): text for name, text in made.items()}


OPTION = st.builds(file_of, HEADERS, st.just([]), st.just(""), CONTENT)
FOLDERS = st.builds(
    files_with,
    config=st.builds(
        file_of,
        st.just(""),
        st.lists(TOP_ENTRIES, max_size=4, unique_by=group_of).map(lambda entries: ["base", *entries]),
        OVERRIDES,
        CONTENT,
    ),
    base=CONTENT.map(lambda content: "defaults:\n  - always\n" + content),
    always=st.just(ALWAYS),
    other=OPTION,
    g__one=OPTION,
    g__two=OPTION,
    h__one=OPTION,
    h__two=OPTION,
    k__deep=st.builds(
        file_of, HEADERS, st.lists(GROUP_ENTRIES, max_size=3, unique_by=group_of), NESTED_OVERRIDES, CONTENT
    ),
    k__h__one=OPTION,
    k__h__two=OPTION,
)
WORDS = st.lists(
    st.sampled_from(
        ["g=one", "g=two", "+g=one", "~g", "h=two", "+h=two", "~h", "h@p.q=one", "k/h=two", "k=deep", "+k=deep", "a=5",
         "c.d=5", "+c.f=5", "++c.d=7", "~a", "~c.d", "+new.x=1", "b=y", "l=[3]", "c={d: 9}", "r=${b}", "g.a=4",
         "~g=one", "+h@w=one", "a=null", "++c={f: 1}", "~c", "l.0=7", "+r=${c}", "h@_global_=two"]
    ),
    max_size=3,
    unique_by=lambda word: word.lstrip("+~").partition("=")[0],
)  # fmt: skip


def rows() -> Iterator[tuple[str, str, list[str], str, str]]:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        found = re.fullmatch(r"\| `([\w.-]+)` \| `(.+?)` \| (?:`(.+?)` )?\| `(.+?)` \| `(.+?)` \|", line)
        if found is not None:
            yield found[1], found[2], [found[3]] if found[3] else [], found[4], found[5]


ROWS = list(rows())
GROUPS = {"g/one": "x: 1\n", "g/two": "x: 2\n", "h/one": "y: 1\n"}


@pytest.mark.parametrize(
    ("name", "config", "words", "theirs", "ours"), ROWS, ids=[f"{row[0]}: {row[1]}" for row in ROWS]
)
def test_the_page_says_what_both_make_of_a_file(
    hydra: Composer, name: str, config: str, words: list[str], theirs: str, ours: str
) -> None:
    made = both(hydra, {"config": config, **GROUPS}, words)
    assert tuple(map(str, made)) == (theirs, ours)
    assert theirs != ours


def test_the_page_has_rows() -> None:
    assert len(ROWS) >= 15


def reaches() -> Iterator[Any]:
    """Yield entries, words and an override: all in `make soak`, a third of them in `make test`."""
    entries = ["k: deep, g: null", "k: deep, g: one", "g: null, k: deep", "g: one, k: deep"]
    words = [[], ["g=two"], ["~g"]]
    for place in itertools.product(range(4), range(3), range(2)):
        one = (entries[place[0]], words[place[1]], ["", "override g: two"][place[2]])
        yield pytest.param(*one, marks=[pytest.mark.slow] if sum(place) % 3 else [], id=" ".join(map(str, one)))


@pytest.mark.parametrize(("entries", "words", "override"), list(reaches()))
def test_an_override_in_a_groups_file_reaches_the_groups_that_hydra_lets_it_reach(
    hydra: Composer, entries: str, words: list[str], override: str
) -> None:
    files = {
        "config": file_of("", ["base", *entries.split(", "), "other@p", "h: one"], override, ""),
        "base": "defaults:\n  - always\n",
        "always": ALWAYS,
        "other": "a: 3\n",
        "k/deep": "# @package _global_\ndefaults:\n  - override /g: one\n",
        **GROUPS,
    }
    theirs, ours = both(hydra, files, words)
    assert ours == theirs
    if entries.startswith("k") and not override and words != ["g=two"]:
        assert theirs == REFUSED


def is_listed(files: Files, words: list[str], theirs: Any) -> bool:
    """Return whether a difference that the page lists may be the reason for another one."""
    leaf = theirs == REFUSED and any(word.startswith(("~g", "~h")) for word in words)
    # Also an `override /g: …` of another group's file reaches several options; for Hydra there is no match.
    chosen = [*(word.lstrip("+~") for word in words), *("g" for text in files.values() if "override /g:" in text)]
    several = "g: [one, two]" in files["config"] and any(word.startswith("g") for word in chosen)
    # Hydra looks at what the command line adds before it looks at overrides, and we at all entries alike.
    added = any(word.startswith("+") for word in words) and any("override" in text for text in files.values())
    return several or added or leaf


@pytest.mark.parametrize(
    "count",
    [pytest.param(25, id="few"), pytest.param(500, id="many", marks=pytest.mark.slow)],
)
def test_hydra_and_we_make_the_same_of_the_same_files(hydra: Composer, count: int) -> None:
    composed = 0

    # No shrinking: each try takes tens of milliseconds, and a folder is read easily enough.
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(FOLDERS, WORDS)
    def compare(files: Files, words: list[str]) -> None:
        nonlocal composed
        theirs, ours = both(hydra, files, words)
        if not is_listed(files, words, theirs):
            assert ours == theirs
            composed += theirs != REFUSED

    compare()
    assert composed >= count // 10, "nearly everything was refused, so nearly nothing was compared"
