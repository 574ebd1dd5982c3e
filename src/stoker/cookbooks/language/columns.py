"""Columns: which of a row's values is the prompt, the completion, the text or the conversation.

Rows of every sort of file (a line of JSON, a line of a table) are maps from a name to a value. A form is a set of names
that belong together; other names may be mapped to them (`columns={prompt: question, completion: answer}`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from stoker.authoring import Diagnostic
from stoker.core.text import did_you_mean

FORMS: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text",),
    "completion": ("prompt", "completion"),
    "messages": ("messages",),
    "pair": ("prompt", "chosen", "rejected"),
    "chat_pair": ("chosen", "rejected"),
}
"""The names that each form has."""
NAMES: Final[tuple[str, ...]] = tuple(dict.fromkeys(name for names in FORMS.values() for name in names))

_USUAL_PAIRS = (
    ("question", "answer"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("prompt", "response"),
    ("input", "output"),
)
"""Names for a prompt and its completion that many data sets have."""
_MOST_SHOWN = 12


def column_faults(columns: Mapping[str, str], where: str) -> list[Diagnostic]:
    """Return what is wrong with a mapping by itself: unknown names, names that make no form."""
    faults = []
    for name, column in columns.items():
        if name not in NAMES:
            hint = did_you_mean(name, NAMES) or f"known: {', '.join(NAMES)}"
            faults.append(Diagnostic(f"{where}.{name}", "unknown part of an example", hint))
        elif not column:
            faults.append(Diagnostic(f"{where}.{name}", "is empty", "the name of a column"))
    if columns and not faults and not any(set(columns) == set(names) for names in FORMS.values()):
        forms = "; ".join(" and ".join(names) for names in FORMS.values())
        faults.append(Diagnostic(where, f"{' and '.join(columns)} are not the parts of one example", f"name {forms}"))
    return faults


def found_columns(names: Iterable[str]) -> dict[str, str] | None:
    """Return the columns of the one form that is among some names; None if there is none, or several.

    The names of the forms go before the usual names for a prompt and its completion.
    """
    known = set(names)
    whole = [form for form in FORMS.values() if known.issuperset(form)]
    forms = [form for form in whole if not any(set(form) < set(other) for other in whole)]
    if forms:
        return {name: name for name in forms[0]} if len(forms) == 1 else None
    # An instruction beside an input has three parts: two of them would lose one.
    if {"instruction", "input", "output"} <= known:
        return None
    pairs = [pair for pair in _USUAL_PAIRS if known.issuperset(pair)]
    if not pairs and "conversations" in known:
        return {"messages": "conversations"}
    return dict(zip(FORMS["completion"], pairs[0], strict=True)) if len(pairs) == 1 else None


def mapped(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the parts of an example in a row. Raises `ValueError` naming the columns that the row lacks."""
    lacking = [column for column in columns.values() if column not in row]
    if lacking:
        message = f"it has no {' and no '.join(repr(one[:40]) for one in lacking)}; it has {shown_names(row)}"
        raise ValueError(message)
    return {name: row[column] for name, column in columns.items()}


def shown_names(names: Iterable[str]) -> str:
    """Return names for a message, the first of many."""
    listed = list(names)
    more = "" if len(listed) <= _MOST_SHOWN else f" and {len(listed) - _MOST_SHOWN:,} more"
    return (", ".join(repr(one[:40]) for one in listed[:_MOST_SHOWN]) or "no columns") + more


def example_of_columns(names: Sequence[str]) -> str:
    """Return a mapping to type for a table whose columns have other names."""
    shown = [name[:40] if name.isprintable() else "COLUMN" for name in names[:2]]
    if len(names) == 1:
        return f"columns='{{text: {shown[0]}}}'"
    prompt, completion = [*shown, "COLUMN", "COLUMN"][:2]
    return f"columns='{{prompt: {prompt}, completion: {completion}}}'"
