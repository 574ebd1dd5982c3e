"""What `.stokerignore` leaves out, against git itself: the same patterns, the same files, the same answer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stoker.jobs.pack.ignore import IgnorePatterns
from tests.lengths import examples

NAMES = ("a", "b", "ab", "a.log", "[x]", "!b", "#c", "a b", "-", "é", "a]")
FILES = tuple(
    sorted(
        {
            *NAMES,
            *(
                f"{folder}/{name}"
                for folder in ("d", "d/e", "a b", "e/d/e")
                for name in ("a", "ab", "a.log", "!b", "é", "a]")
            ),
            "d/f/g/h/a.log",
            "build/out/x",
            "src/build/y",
        }
        - {"a b"}
    )
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", folder], check=True)
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def left_out_by_git(repository: Path, text: str) -> set[str]:
    patterns = repository / ".git" / "patterns"
    patterns.write_bytes(text.encode())
    words = ["git", "-C", str(repository), "ls-files", "-z", "-o", f"--exclude-from={patterns}"]
    kept = subprocess.run(words, check=True, capture_output=True).stdout
    return set(FILES) - {os.fsdecode(name) for name in kept.split(b"\0")}


PIECES = st.sampled_from(
    [
        *"ab*?/!-^ #\\[]",
        "**",
        "/**/",
        "**/",
        "/**",
        "d",
        "e",
        "*.log",
        "[a-c]",
        "[!a]",
        "[]a]",
        "[[:alpha:]]",
        "é",
        "***",
    ]
)
LINES = st.lists(PIECES, min_size=1, max_size=5).map("".join)


@example(["build/", "!src/build"])
@example(["/d", "!d/a"])
@example(["*", "!*/", "!*.log"])
@example(["d/**", "!d/e/", "!d/e/a"])
@example(["a\\ b\\ ", "a b  "])
@example(["\\!b", "\\#c", "#c", "!b"])
@example(["[x]", "\\[x]", "[x", "a\\"])
@example(["d/*/a", "**/g/**", "e/**/e"])
@example(["/", "!", "//", "/*"])
@example(["[b-a]", "[a-]", "[--a]", "[!]a]", "[[:digit]", "[[:nothing:]]"])
@given(st.lists(LINES, min_size=1, max_size=4))
@settings(max_examples=examples(24, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_files_are_left_out_as_by_git(repository: Path, lines: list[str]) -> None:
    text = "\n".join(lines)
    patterns = IgnorePatterns(text)
    assert {name for name in FILES if patterns.leaves_out(name)} == left_out_by_git(repository, text)


def test_line_ends_and_byte_order_marks_of_other_systems_mean_nothing(repository: Path) -> None:
    text = "\ufeffbuild/\r\n*.log\r\n"
    patterns = IgnorePatterns(text)
    left_out = {name for name in FILES if patterns.leaves_out(name)}
    assert {"build/out/x", "d/a.log"} <= left_out == left_out_by_git(repository, text)


def test_an_empty_file_leaves_nothing_out() -> None:
    assert not IgnorePatterns("\n# only words\n\n")


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 25 + "b", "a" * 255),
        ("**/a/" * 25 + "b", "a/" * 100 + "c"),
        ("**/*a*a*a/" * 9 + "z", "aaaaaaa/" * 40 + "b"),
    ],
    ids=["stars", "folders", "both"],
)
def test_no_pattern_takes_long(pattern: str, path: str) -> None:
    # Tried in every way there is, each would take longer than the world has stood.
    assert not IgnorePatterns(pattern).leaves_out(path)
