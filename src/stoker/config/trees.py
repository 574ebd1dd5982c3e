"""Nested plain maps and lists, walked and changed by path. Whatever is changed is copied; the rest is shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

ABSENT: Final[Any] = object()
"""What a path leads to where there is nothing."""


def step_into(value: Any, step: str) -> Any:
    """Give what one step of a path leads to: a key of a map, an index of a list, or `ABSENT`."""
    if type(value) is dict:
        return value.get(step, ABSENT)
    if type(value) in (list, tuple) and step.isdecimal() and len(step) < 10 and int(step) < len(value):
        return value[int(step)]
    return ABSENT


def found(value: Any, steps: Sequence[str]) -> Any:
    """Give what a path leads to, or `ABSENT`."""
    for step in steps:
        value = step_into(value, step)
        if value is ABSENT:
            break
    return value


def with_value(tree: Any, steps: Sequence[str], value: Any) -> Any:
    """Give a tree with one value put into it; what stands in the way of a branch is replaced by one."""
    if not steps:
        return value
    copied = dict(tree) if type(tree) is dict else {}
    copied[steps[0]] = with_value(copied.get(steps[0]), steps[1:], value)
    return copied


def without(tree: dict[str, Any], steps: Sequence[str]) -> dict[str, Any]:
    """Give a tree without one leaf or branch; a branch that held nothing else goes with it."""
    step = steps[0]
    if step not in tree:
        return tree
    left: Any = ABSENT
    if len(steps) > 1:
        inner = tree[step]
        left = without(inner, steps[1:]) if type(inner) is dict else inner
        if left is inner:
            return tree
        left = left or ABSENT
    return {key: left if key == step else value for key, value in tree.items() if key != step or left is not ABSENT}


def replaced(value: Any, steps: Sequence[str], new: Any) -> Any:
    """Give a value with one item inside it replaced, or taken out (`ABSENT`).

    A map may get a new key; a list keeps its length unless an item is taken out. `ABSENT` if there is no such place.
    """
    if not steps:
        return new
    inner = step_into(value, steps[0])
    if inner is ABSENT and (type(value) is not dict or len(steps) > 1):
        return ABSENT
    item = replaced(inner, steps[1:], new)
    if item is ABSENT and len(steps) > 1:
        return ABSENT
    if type(value) is dict:
        return {key: one for key, one in {**value, steps[0]: item}.items() if one is not ABSENT}
    index = int(steps[0])
    return [one for one in (*value[:index], item, *value[index + 1 :]) if one is not ABSENT]


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two maps, the second winning; lists and single values replace each other."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if type(value) is dict and type(inner) is dict else value
    return result


def refers(value: object) -> bool:
    """Say whether there is a reference, or an escaped one, anywhere in a value."""
    if type(value) is str:
        return "${" in value
    if type(value) is dict:
        return any(map(refers, value.values()))
    return type(value) in (list, tuple) and any(map(refers, value))  # type: ignore[call-overload]  # it is one of them


def leaf_paths(tree: dict[str, Any], prefix: str = "") -> list[str]:
    """Give the dotted paths of everything that is not a map with something in it."""
    paths = []
    for key, value in tree.items():
        paths += leaf_paths(value, f"{prefix}{key}.") if type(value) is dict and value else [prefix + key]
    return paths


def extent(value: Any) -> tuple[int, int]:
    """Count the values in a tree, and its levels."""
    if type(value) is dict:
        items = list(value.values())
    elif type(value) in (list, tuple):
        items = list(value)
    else:
        return 1, 0
    extents = [extent(item) for item in items]
    return 1 + sum(weight for weight, _ in extents), 1 + max((depth for _, depth in extents), default=0)


def copied(value: Any) -> Any:
    """Give a copy that shares no map and no list with the original."""
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if type(value) is list else value
