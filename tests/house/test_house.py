"""The habits of the house that a linter can't see: sizes, names, what may be read where."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "stoker").rglob("*.py"))
LONGEST_FILE = 450
AVOIDED = re.compile(r"(?<![a-z])(task|manager|handler|helper|util|utils|common|misc)s?(?![a-z])")


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """What stands in every file, by its place."""
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in SOURCES}


@pytest.fixture(scope="module")
def parts(texts: dict[str, str]) -> dict[str, tuple[list[str], bool]]:
    """What every file defines, and whether it says what it is for."""
    return {place: _parts(ast.parse(text)) for place, text in texts.items()}


def _parts(tree: ast.Module) -> tuple[list[str], bool]:
    defined = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return defined, bool(ast.get_docstring(tree))


def test_a_file_holds_one_idea(texts: dict[str, str]) -> None:
    lines = {place: text.count("\n") for place, text in texts.items()}
    long = {place: count for place, count in lines.items() if count > LONGEST_FILE}
    assert not long, "what is the second idea in it?"


def test_names_are_from_the_glossary(parts: dict[str, tuple[list[str], bool]]) -> None:
    avoided = {place: found for place, (defined, _) in parts.items() if (found := _avoided(place, defined))}
    assert not avoided, "these words say nothing about the thing"


def _avoided(place: str, defined: list[str]) -> list[str]:
    names = [Path(place).stem, *(re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in defined)]
    return [name for name in names if AVOIDED.search(name.replace("_", " "))]


def test_every_module_says_what_it_is_for(parts: dict[str, tuple[list[str], bool]]) -> None:
    assert not [place for place, (_, says) in parts.items() if not says]


def test_no_file_is_left_unfinished(texts: dict[str, str]) -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b")
    assert not [place for place, text in texts.items() if marks.search(text)]
