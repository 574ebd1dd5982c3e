"""The habits of the house that a linter can't see: sizes, names, what may be read where."""

from __future__ import annotations

import ast
import re

from tests.house.conftest import SourceModule

MOST_CODE_LINES = 600
AVOIDED = re.compile(r"(?<![a-z])(manager|helper|util|utils|common|misc)s?(?![a-z])")


def test_a_module_is_one_subject(modules: tuple[SourceModule, ...]) -> None:
    long = {str(module.path): count for module in modules if (count := _code_lines(module)) > MOST_CODE_LINES}
    assert not long, "what is the second subject in it?"


def _code_lines(module: SourceModule) -> int:
    """Return how many lines are neither blank nor a comment, a docstring or an import."""
    left_out: set[int] = set()
    for node in module.statements():
        if isinstance(node, ast.Expr | ast.Import | ast.ImportFrom) and not _is_code(node):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(module.text.splitlines(), 1)
    return sum(1 for number, line in lines if number not in left_out and re.match(r"\s*[^\s#]", line))


def _is_code(node: ast.Expr | ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.Expr) and not (
        isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )


def test_nothing_has_two_docstrings(modules: tuple[SourceModule, ...]) -> None:
    twice = [
        f"{module.path}:{node.lineno}"
        for module in modules
        for node in module.statements()
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and [*map(_is_text, node.body[:2])] == [True, True]
    ]
    assert not twice, "the second may stand in the place of a statement"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and not _is_code(node)


def test_names_are_from_the_glossary(modules: tuple[SourceModule, ...]) -> None:
    avoided = {str(module.path): found for module in modules if (found := _avoided(module))}
    assert not avoided, "these words say nothing about the thing"


def _avoided(module: SourceModule) -> list[str]:
    defined = [node.name for node in module.statements() if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    names = [module.path.stem, *(re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in defined)]
    return [name for name in names if AVOIDED.search(name.replace("_", " "))]


def test_every_module_says_what_it_is_for(modules: tuple[SourceModule, ...]) -> None:
    assert not [str(module.path) for module in modules if not ast.get_docstring(module.tree)]


def test_no_file_is_left_unfinished(modules: tuple[SourceModule, ...]) -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b")
    assert not [str(module.path) for module in modules if marks.search(module.text)]
