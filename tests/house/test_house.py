"""The habits of the house that a linter can't see: sizes, names, what may be read where."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "stoker").rglob("*.py"))
MOST_CODE_LINES = 600
AVOIDED = re.compile(r"(?<![a-z])(manager|helper|util|utils|common|misc)s?(?![a-z])")


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


def test_a_module_is_one_subject(texts: dict[str, str]) -> None:
    long = {place: count for place, text in texts.items() if (count := _code_lines(text)) > MOST_CODE_LINES}
    assert not long, "what is the second subject in it?"


def _code_lines(text: str) -> int:
    """Return how many lines are neither blank nor a comment, a docstring or an import."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr | ast.Import | ast.ImportFrom) and not _is_code(node):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in lines if number not in left_out and re.match(r"\s*[^\s#]", line))


def _is_code(node: ast.Expr | ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.Expr) and not (
        isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )


def test_nothing_has_two_docstrings(texts: dict[str, str]) -> None:
    doubled = [place for place, text in texts.items() if re.search(r'^ +"""[^"\n]+"""\n +"""', text, re.MULTILINE)]
    twice = [
        f"{place}:{node.lineno}"
        for place in doubled
        for node in ast.walk(ast.parse(texts[place]))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and [*map(_is_text, node.body[:2])] == [True, True]
    ]
    assert not twice, "the second may stand in the place of a statement"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and not _is_code(node)


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
