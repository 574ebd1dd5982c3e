"""Common parts of recipes: the argument `data`, refused arguments, arguments of stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from stoker.authoring import Diagnostic, InvalidArgs
from stoker.core.text import nearest

A = TypeVar("A")


def stage_args(of: type[A], recipe_args: Any, **given: Any) -> A:
    """Return a stage's arguments: the given ones, and the others from a recipe's arguments of the same names."""
    taken = {one.name: getattr(recipe_args, one.name) for one in fields(of) if one.name not in given}  # type: ignore[arg-type]  # a dataclass
    return of(**taken, **given)


def find_table(where: str, text: str, bundled: Sequence[str], *, one: str, several: str) -> Path | Diagnostic | None:
    """Return the CSV or Parquet file of an argument, None for a bundled name, or the fault."""
    usual = f"a CSV or Parquet file, or one of {', '.join(bundled)}"
    if text in bundled:
        return None
    if not text.strip():
        return Diagnostic(where, "is empty", usual)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        return Diagnostic(where, f"{text} is a folder", "use one CSV or Parquet file")
    if path.suffix or path.parent != Path():
        return Diagnostic(where, f"file not found: {text}", f"{several} are {', '.join(bundled)}")
    candidate = nearest(text, bundled)
    hint = f"did you mean {candidate!r}?" if candidate else usual
    return Diagnostic(where, f"{text!r} is neither a file nor a {one}", hint)


def refuse(recipe: str, faults: Sequence[Diagnostic]) -> None:
    """Raise `InvalidArgs` if there are faults in a recipe's arguments."""
    if faults:
        message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} errors in the arguments of {recipe}"
        raise InvalidArgs(message, faults=tuple(faults), hint=f"stoker recipes show {recipe}")
