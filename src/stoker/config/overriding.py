"""Overrides put over what there is: change, add, force, delete, and the edits of lists.

What is changed has to be there, what is added must not be; each is a fault that says what to write instead. What is
added beyond a closed schema becomes a note: it is kept and shown, and is no part of what is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.config.axis import Choice, Form
from stoker.config.layering import Layering
from stoker.config.origin import Origin
from stoker.config.override import Kind, Override
from stoker.config.trees import ABSENT, refers, replaced
from stoker.config.values import same, text_of
from stoker.config.vocabulary import check_value, value_of
from stoker.model.frozen import changed


class Overriding:
    """Applies overrides, in order, to a tree."""

    def __init__(self, layering: Layering, *, has_files: bool, swept: frozenset[str]) -> None:
        self.notes: dict[str, None] = {}
        """The leaves beyond a closed schema, in the order in which they came."""
        self._tree = layering
        self._words = layering.words
        # What a file only sweeps is there all the same.
        self._swept = swept
        # Without a file, whatever an open schema is given is what there is; with one, a misspelt key is a mistake.
        self._is_free = layering.words.is_open and not has_files

    def apply(self, override: Override) -> None:
        """Apply one override whose value is not swept."""
        origin = override.origin
        if override.kind is Kind.DELETE:
            self._delete(override, origin)
        elif override.kind in (Kind.APPEND, Kind.REMOVE):
            self._edit(override, origin)
        elif type(override.value) is Choice:
            self._set(override.kind, override.path, override.value, override, origin)

    def may_set(self, override: Override, path: str, origin: Origin) -> bool:
        """Say whether an override may set a leaf as its kind wants to; a fault says why not."""
        kind, tree = override.kind, self._tree
        if path in self._words.branches:
            tree.refuse_group(origin, path)
            return False
        is_there = tree.at(path) is not ABSENT
        if kind is Kind.ADD and is_there:
            hint = f"write {path}=… to change it"
            tree.refuse(_at_key(override), "is there already", hint, key=path, width=len(override.path) + 1)
            return False
        owner = tree.owner_of(path)
        is_known = is_there or path in self._swept or (owner == path and path in self._words.leaves)
        # In a map that is one declared leaf, such as a program's `env`, an open schema leaves every key free.
        is_open_map = self._words.is_open and owner in self._words.leaves and type(tree.at(owner)) is dict
        is_free = self._is_free if owner == path else is_open_map
        if kind is Kind.CHANGE and not is_known and not is_free:
            near = self._words.suggestion(path, tree.paths())
            adding = f"+{override.text} adds it" if self._words.is_open else f"+{override.text} keeps it as a note"
            hint = f"{near} {adding}" if near else adding
            tree.refuse(_at_key(override), "there is no such key", hint, key=path, width=len(override.path))
            return False
        return True

    def is_note(self, path: str) -> bool:
        """Say whether a leaf lies beyond a closed schema."""
        return not self._words.is_open and self._tree.owner_of(path) not in self._words.leaves

    def _set(self, kind: Kind, path: str, choice: Choice, override: Override, origin: Origin) -> None:
        existing = self._tree.at(path)
        if type(choice.value) is dict and self._spreads(path, existing) and (choice.value or type(existing) is dict):
            for key, item in choice.value.items():
                if not key or "." in key:
                    self._tree.refuse(origin, f"{key!r} is not a key", key=path)
                else:
                    self._set(kind, f"{path}.{key}", Choice(text_of(item), item, Form.VALUE), override, origin)
        elif self.may_set(changed(override, kind=kind), path, origin):
            owner = self._tree.owner_of(path)
            if owner != path:
                self._set_inside(owner, path, choice, origin)
                return
            if self.is_note(path):
                self.notes[path] = None
            self._tree.put_choice(path, choice, origin)

    def _spreads(self, path: str, existing: Any) -> bool:
        """Say whether a map given for a path is a branch of leaves and not the value of one leaf."""
        if self._tree.owner_of(path) != path or path in self._words.leaves:
            return False
        return existing is ABSENT or type(existing) is dict

    def _set_inside(self, owner: str, path: str, choice: Choice, origin: Origin) -> None:
        """Put a value into a list, or into a map that is one declared leaf."""
        tries = [choice.value, choice.text] if choice.form is Form.PLAIN else [choice.value]
        refused = ""
        for value in tries:
            whole = replaced(self._tree.at(owner), path[len(owner) + 1 :].split("."), value)
            if whole is ABSENT:
                refused = "there is no such item"
                break
            try:
                self._put_whole(owner, whole, origin)
            except ValueError as error:
                refused = refused or str(error)
            else:
                return
        self._tree.refuse(origin, refused, key=path, width=len(choice.text))

    def _delete(self, override: Override, origin: Origin) -> None:
        path, tree = override.path, self._tree
        existing = tree.at(path)
        if existing is ABSENT:
            if path in self._swept:
                return
            hint = self._words.suggestion(path, tree.paths())
            tree.refuse(_at_key(override), "there is no such key", hint, key=path, width=len(path))
            return
        if type(override.value) is Choice and not self._is(path, existing, override.value):
            tree.refuse(origin, f"is {_shown(existing)}, so it stays", f"write ~{path} to delete it anyway", key=path)
            return
        owner = tree.owner_of(path)
        if owner == path:
            for note in [note for note in self.notes if note == path or note.startswith(f"{path}.")]:
                del self.notes[note]
            tree.drop(path, origin)
            return
        whole = replaced(tree.at(owner), path[len(owner) + 1 :].split("."), ABSENT)
        try:
            self._put_whole(owner, whole, origin)
        except ValueError as error:
            tree.refuse(origin, str(error), key=owner)

    def _is(self, path: str, existing: Any, choice: Choice) -> bool:
        try:
            return same(value_of(choice, self._words.leaves.get(path)), existing)
        except ValueError:
            return False

    def _edit(self, override: Override, origin: Origin) -> None:
        """Append to a list, or remove from it."""
        path, tree, choice = override.path, self._tree, override.value
        existing = tree.at(path)
        if type(existing) not in (list, tuple) or type(choice) is not Choice:
            known = existing is not ABSENT or self._words.knows(path)
            message = "is not a list" if known else "there is no such key"
            hint = "" if known else self._words.suggestion(path, tree.paths())
            tree.refuse(_at_key(override), message, hint, key=path, width=len(path))
            return
        try:
            items = self._items(path, choice)
            whole = [*existing, *items] if override.kind is Kind.APPEND else _removed(existing, items)
            self._put_whole(path, whole, origin)
        except ValueError as error:
            tree.refuse(origin, str(error), key=path, width=len(choice.text))

    def _items(self, path: str, choice: Choice) -> list[Any]:
        value = choice.value
        if path in self._words.leaves and not choice.refers:
            value = value_of(choice, self._words.leaves[path])
        return list(value) if type(value) in (list, tuple) else [value]

    def _put_whole(self, owner: str, whole: Any, origin: Origin) -> None:
        """Put back a leaf that was changed inside; `ValueError` if it is no longer what it has to be."""
        if not refers(whole):
            whole = check_value(whole, self._words.leaves.get(owner))
        self._tree.put(owner, whole, origin)


def _removed(existing: Sequence[Any], items: Sequence[Any]) -> list[Any]:
    for item in items:
        if not any(same(item, other) for other in existing):
            message = f"there is no {_shown(item)} in it"
            raise ValueError(message)
    return [other for other in existing if not any(same(item, other) for item in items)]


def _at_key(override: Override) -> Origin:
    """Give the place of an override's key, behind its sign."""
    return override.origin._replace(column=override.text.find(override.path) + 1)


def _shown(value: Any) -> str:
    text = text_of(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
