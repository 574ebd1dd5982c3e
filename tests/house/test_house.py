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


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_file_holds_one_idea(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST_FILE, f"{lines} lines: what is the second idea in it?"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_names_are_from_the_glossary(path: Path) -> None:
    syntax = ast.parse(path.read_text(encoding="utf-8"))
    defined = [node.name for node in ast.walk(syntax) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    names = [path.stem, *(re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in defined)]
    avoided = [name for name in names if AVOIDED.search(name.replace("_", " "))]
    assert not avoided, "these words say nothing about the thing"


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT)) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert not silent


def test_no_file_is_left_unfinished() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b")
    assert not [str(path.relative_to(ROOT)) for path in SOURCES if marks.search(path.read_text("utf-8"))]
