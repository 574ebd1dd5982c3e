"""Every module of `src`, read and parsed once for all tests of this folder."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True, slots=True)
class SourceModule:
    """One module."""

    path: Path
    """Its path in `src`."""
    text: str
    tree: ast.Module

    def statements(self) -> Iterator[ast.AST]:
        """Return every statement, also those inside of others. Expressions contain none, so these are skipped."""
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            for part in ("body", "orelse", "finalbody", "handlers", "cases"):
                inner = getattr(node, part, ())
                # The body of an `if` expression or of a lambda is an expression.
                waiting += inner if isinstance(inner, list) else ()
            yield node


@pytest.fixture(scope="package")
def modules() -> Iterator[tuple[SourceModule, ...]]:
    """All modules, ordered by their paths."""
    # Millions of nodes are made, and none of them is garbage.
    gc.disable()
    found = []
    for path in sorted(_SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(SourceModule(path.relative_to(_SOURCE), text, ast.parse(text)))
    yield tuple(found)
    gc.enable()
