"""Layers merged: one tree of values, and for each leaf the candidates of all layers.

Maps merge, everything else replaces. A leaf keeps its candidates in order, the winner last; a deleted one keeps them,
too, and the last of them is nothing. Each value is read or checked by its declared type when it is added, so a mistake
is reported whether or not a later layer wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from stoker.config.positions import (
    DEEPEST,
    ConfigLayer,
    FileLayer,
    LayerValue,
    LocatedValue,
    SourceFile,
    ValueOrigin,
    fault_at,
)
from stoker.config.sweep import AxisValue
from stoker.config.typed_values import Vocabulary, check_value, owner_of, quoting_hint, value_of
from stoker.config.value_grammar import read_value
from stoker.config.values import ABSENT, NOTHING, DeclaredLeaf, copied, found, merged, refers, step_into
from stoker.core.errors import Diagnostic

# Keys at the top of a file that are about the configuration, not in it.
_ABOUT = frozenset({"defaults", "sweep"})
# Types that may have references in them.
_HOLDING = (str, list, dict, tuple)


class LayeredTree:
    """The tree while layers are added."""

    def __init__(self, vocabulary: Vocabulary, faults: list[Diagnostic]) -> None:
        self.root: dict[str, Any] = {}
        self.stacks: dict[str, list[LayerValue]] = {}
        self.referring: dict[str, ValueOrigin] = {}
        """The leaves with references, each with its place."""
        self.refused: set[str] = set()
        """The leaves with an invalid value: they are not missing as well."""
        self.faults = faults
        self.words = vocabulary

    def put_defaults(self) -> None:
        """Add the declared defaults."""
        for path, declared in self.words.leaves.items():
            if declared.default is not NOTHING:
                self.put(path, copied(declared.default), ValueOrigin(layer=ConfigLayer.DEFAULT, where="default"))

    def put_file(self, layer: FileLayer) -> None:
        """Add a file."""
        entries = layer.tree.value
        top = {key: node for key, node in entries.items() if layer.package or key not in _ABOUT}
        if layer.package:
            top.pop("defaults", None)
        node = LocatedValue(top, 1, 1, 1, 1)
        for step in reversed(layer.package.split(".") if layer.package else []):
            node = LocatedValue({step: node}, 1, 1, 1, 1)
        self._put_map(layer.source, node, self.root, "")

    def copied(self) -> LayeredTree:
        """Return a tree of its own with the same values; later values and faults are separate."""
        other = LayeredTree(self.words, [])
        other.root = copied(self.root)
        other.stacks = {path: list(stack) for path, stack in self.stacks.items()}
        other.referring = dict(self.referring)
        return other

    def at(self, path: str) -> Any:
        """Return the value at a path, or `ABSENT`."""
        return found(self.root, path.split("."))

    def owner_of(self, path: str) -> str:
        """Return the leaf of a path: a declared one or a list on the way, otherwise the path itself."""
        return owner_of(path, self.root, self.words.leaves)

    def paths(self) -> list[str]:
        """Return the leaves, in the order in which they came."""
        return [path for path, stack in self.stacks.items() if stack[-1].value is not NOTHING]

    def put(self, path: str, value: Any, origin: ValueOrigin) -> None:
        """Set a leaf to a value in its normal form, or to text with references."""
        into = self.root
        *outer, last = path.split(".")
        at = ""
        for step in outer:
            at = f"{at}.{step}" if at else step
            into = self._branch(into, step, at, origin)
        self._put_leaf(into, last, path, value, origin)

    def put_choice(self, path: str, choice: AxisValue, origin: ValueOrigin) -> None:
        """Read a choice by the leaf's declared type and set it."""
        declared = self.words.leaves.get(path)
        if choice.refers:
            value: Any = choice.text if type(choice.value) is str else choice.value
            self.put(path, value, origin)
            return
        try:
            value = value_of(choice, declared)
        except ValueError as error:
            self.refused.add(path)
            self.refuse(origin, str(error), self.words.of_another(path, choice.text), key=path, width=len(choice.text))
            return
        self.put(path, value, origin)

    def drop(self, path: str, origin: ValueOrigin) -> None:
        """Delete a leaf or a whole branch. A declared leaf gets its default back."""
        self._bury(path, origin)
        *outer, last = path.split(".")
        around = self.at(".".join(outer)) if outer else self.root
        del around[last]
        if outer and not around:
            self._note(".".join(outer), {}, origin)
        for leaf, declared in self.words.leaves.items():
            if (leaf == path or leaf.startswith(f"{path}.")) and declared.default is not NOTHING:
                self.put(leaf, copied(declared.default), origin)

    def refuse(self, origin: ValueOrigin, message: str, hint: str = "", *, key: str = "", width: int = 1) -> None:
        """Note a fault at a place."""
        self.faults.append(fault_at(origin, message, hint=hint, key=key, width=width))

    def refuse_group(self, origin: ValueOrigin, path: str) -> None:
        """Note that a single value was given for a branch."""
        self.refuse(origin, "is a group of settings, not a single one", f"it holds {self.words.inside(path)}", key=path)

    def _put_map(self, source: SourceFile, node: LocatedValue, into: dict[str, Any], prefix: str) -> None:
        words = self.words
        for key, item in node.value.items():
            path = prefix + key
            if not key or "." in key:
                hint = "write one key inside the other" if key else ""
                self.refuse(source.key_of(item), f"{key!r} is not a key", hint, key=prefix.rstrip("."))
            elif path in words.leaves:
                self._put_located(source, item, into, key, path)
            elif not words.is_open and path not in words.branches:
                hint = words.suggestion(path, [])
                self.refuse(source.key_of(item), "there is no such key", hint, key=path, width=len(key))
            elif type(item.value) is dict and (item.value or _is_branch(into.get(key)) or path in words.branches):
                branch: Any = into.get(key)
                if not _is_branch(branch):
                    branch = self._branch(into, key, path, source.key_of(item))
                self._put_map(source, item, branch, f"{path}.")
            elif path not in words.branches:
                self._put_located(source, item, into, key, path)
            elif item.value is not None:
                self.refuse_group(source.value_of(item), path)

    def _put_located(self, source: SourceFile, item: LocatedValue, into: dict[str, Any], key: str, path: str) -> None:
        declared: DeclaredLeaf | None = self.words.leaves.get(path)
        origin = source.at(item.line, item.column)
        value = item.value if type(item.value) not in (dict, list) else item.plain()
        if type(value) not in _HOLDING or not refers(value):
            try:
                value = check_value(value, declared)
            except ValueError as error:
                self.refused.add(path)
                if declared is not None and declared.faults_in is not None:
                    self._refuse_parts(source, item, path, declared.faults_in(value))
                else:
                    self.refuse(origin, str(error), quoting_hint(value, declared), key=path)
                return
        if type(value) is dict and type(into.get(key)) is dict:
            value = merged(into[key], value)
        self._put_leaf(into, key, path, value, origin)
        if type(item.value) in (dict, list):
            stack = self.stacks[path]
            stack[-1] = stack[-1]._replace(part_of=partial(source.part_of, item))

    def _refuse_parts(self, source: SourceFile, item: LocatedValue, path: str, faults: Sequence[Diagnostic]) -> None:
        """Note the faults of a value's parts, each at the place of the part."""
        for fault in faults:
            steps = fault.where.strip(".").split(".") if fault.where.strip(".") else []
            self.refuse(source.part_of(item, steps), fault.message, fault.hint, key=".".join([path, *steps]))

    def _put_leaf(self, into: dict[str, Any], key: str, path: str, value: Any, origin: ValueOrigin) -> None:
        if type(into.get(key)) is dict and path not in self.words.leaves:
            self._bury(path, origin)
        into[key] = value
        self._note(path, value, origin)
        if type(value) in _HOLDING and refers(value):
            self.referring[path] = origin
        elif self.referring:
            self.referring.pop(path, None)

    def _branch(self, into: dict[str, Any], key: str, path: str, origin: ValueOrigin) -> dict[str, Any]:
        existing = into.get(key, ABSENT)
        if type(existing) is dict:
            if path in self.stacks and not existing:
                self._bury(path, origin)
            return existing
        if existing is not ABSENT:
            self._bury(path, origin)
        made: dict[str, Any] = {}
        into[key] = made
        return made

    def _bury(self, path: str, origin: ValueOrigin) -> None:
        """Note that a leaf, or every leaf below a branch, is deleted."""
        for leaf in list(self._leaves_at(path, self.at(path))):
            if self.stacks[leaf][-1].value is not NOTHING:
                self._note(leaf, NOTHING, origin)
            self.referring.pop(leaf, None)

    def _leaves_at(self, path: str, value: Any) -> Iterator[str]:
        if path in self.stacks:
            yield path
        if type(value) is dict:
            for key, item in value.items():
                yield from self._leaves_at(f"{path}.{key}", item)

    def _note(self, path: str, value: Any, origin: ValueOrigin) -> None:
        self.stacks.setdefault(path, []).append(LayerValue(origin, value))


def _is_branch(value: Any) -> bool:
    return type(value) is dict and bool(value)


PREFIX: Final = "STOKER__"


def put_environment(layering: LayeredTree, environment: Mapping[str, str]) -> None:
    """Add the variables of the environment: `STOKER__model__depth=3` sets `model.depth`.

    Two underscores mean a dot. Each step is looked up as it is written and then in lower case, so `STOKER__LR` sets
    `lr`. The declared type reads the text; without one, the fixed rules do (`values`), and everything else is text.
    """
    taken: dict[str, str] = {}
    for name in sorted(name for name in environment if name.startswith(PREFIX)):
        text = environment[name]
        origin = ValueOrigin(layer=ConfigLayer.ENVIRONMENT, where=name, column=len(name) + 2, text=f"{name}={text}")
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


def _put(layering: LayeredTree, path: str, text: str, origin: ValueOrigin) -> None:
    words = layering.words
    if path in words.branches:
        layering.refuse_group(origin, path)
    elif path in words.leaves or (words.is_open and layering.owner_of(path) == path):
        layering.put_choice(path, _choice(text), origin)
    else:
        hint = words.suggestion(path, layering.paths())
        named = origin._replace(column=len(PREFIX) + 1)
        layering.refuse(named, "there is no such key", hint, key=path, width=len(origin.where) - len(PREFIX))


def _path_of(layering: LayeredTree, steps: list[str]) -> str | None:
    """Return the path of a variable's name, with the known spelling of each step."""
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


def _choice(text: str) -> AxisValue:
    try:
        choice = read_value(text)
    except ValueError:
        return AxisValue(text, text)
    # The text as it is: the environment has no quotes and no escapes of ours, so a declared type reads all of it.
    return AxisValue(text, choice.value)
