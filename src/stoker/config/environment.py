"""The layer of the environment: `STOKER__model__depth=3` sets `model.depth`.

Two underscores stand for a dot. Each step is looked up as it is written and then in small letters, so `STOKER__LR` sets
`lr`. The declared type reads the text; without one, the fixed rules do (`values`), and what they can't read is text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stoker.config.axis import Choice
from stoker.config.layering import Layering
from stoker.config.located import DEEPEST
from stoker.config.origin import Layer, Origin
from stoker.config.trees import ABSENT, step_into
from stoker.config.value_grammar import read_value

PREFIX: Final = "STOKER__"


def put_environment(layering: Layering, environment: Mapping[str, str]) -> None:
    """Put every variable of ours over what there is."""
    taken: dict[str, str] = {}
    for name in sorted(name for name in environment if name.startswith(PREFIX)):
        text = environment[name]
        origin = Origin(layer=Layer.ENVIRONMENT, where=name, column=len(name) + 2, text=f"{name}={text}")
        steps = name.removeprefix(PREFIX).split("__")
        if len(steps) > DEEPEST:
            layering.refuse(origin._replace(column=1), f"is nested deeper than {DEEPEST} levels")
            continue
        path = _path_of(layering, steps)
        if path is None:
            layering.refuse(origin, "names no key", "write STOKER__model__depth for model.depth")
        elif path in taken:
            layering.refuse(origin, f"{taken[path]} sets it, too", "unset one of them", key=path)
        else:
            taken[path] = name
            _put(layering, path, text, origin)


def _put(layering: Layering, path: str, text: str, origin: Origin) -> None:
    words = layering.words
    if path in words.branches:
        layering.refuse_group(origin, path)
    elif path in words.leaves or (words.is_open and layering.owner_of(path) == path):
        layering.put_choice(path, _choice(text), origin)
    else:
        hint = words.suggestion(path, layering.paths())
        named = origin._replace(column=len(PREFIX) + 1)
        layering.refuse(named, "there is no such key", hint, key=path, width=len(origin.where) - len(PREFIX))


def _path_of(layering: Layering, steps: list[str]) -> str | None:
    """Give the path that a name stands for, the spelling of each step being the one that is known."""
    if not all(steps):
        return None
    words = layering.words
    value: Any = layering.root
    path = ""
    for step in steps:
        prefix = f"{path}." if path else ""
        spelt = next(
            (one for one in (step, step.lower()) if step_into(value, one) is not ABSENT or words.knows(prefix + one)),
            step.lower() if step.isupper() else step,
        )
        path = prefix + spelt
        value = step_into(value, spelt)
    return path


def _choice(text: str) -> Choice:
    try:
        choice = read_value(text)
    except ValueError:
        return Choice(text, text)
    # The text as it stands: the environment has no quotes and no escapes of ours, so a declared type reads all of it.
    return Choice(text, choice.value)
