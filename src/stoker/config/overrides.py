"""Overrides: what one word of a command line changes in a configuration.

    a.b=v        change what is there               a.b+=v         append to a list; of a list, every item
    +a.b=v       add what is not there              a.b-=v         remove from a list; of a list, every item
    ++a.b=v      one or the other                   group=option   choose; group@package=option puts it elsewhere
    ~a.b         delete; ~a.b=v only if it is v

Steps of a path are names (letters, digits, `_`, `$`, inner `-`) or indexes. A comma or a range in the value makes an
axis of a sweep (`value_grammar`). Whether a word names a group or a leaf is decided where the files are known. The text
of a value is kept, because the declared type of a leaf decides how it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from stoker.config.layers import LayeredTree
from stoker.config.positions import DEEPEST, ConfigLayer, ValueOrigin, fault_at
from stoker.config.sweep import Axis, AxisValue, AxisValues, ValueForm
from stoker.config.typed_values import check_value, value_of
from stoker.config.value_grammar import Unreadable, read_value_or_axis
from stoker.config.values import ABSENT, quoted, refers, replaced, same, scalar, text_of
from stoker.core.errors import Diagnostic
from stoker.core.frozen import changed, frozen
from stoker.core.text import lazy_pattern

# Most words match one of these, and are parsed without looking at each character.
_SIMPLE = lazy_pattern(r"(\+{0,2})([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)=([A-Za-z0-9_./+-]+)", re.ASCII)
_STEP = r"(?:[^\W\d]|\$)(?:[\w$-]*[\w$])?"
_PATH = lazy_pattern(rf"(?:{_STEP}|[0-9]+(?=\.))(?:\.(?:{_STEP}|[0-9]+))*")
_NAME = r"[^\W\d](?:[\w-]*\w)?"
_GROUP = lazy_pattern(rf"{_NAME}(?:/{_NAME})+")
_KEY = lazy_pattern(rf"(\+\+|\+|~|)({_GROUP.pattern}|{_PATH.pattern})(@({_PATH.pattern})?)?(?:([+-])?=)?")


class OverrideKind(StrEnum):
    """What an override does."""

    CHANGE = "change"
    ADD = "add"
    FORCE = "force"
    DELETE = "delete"
    APPEND = "append"
    REMOVE = "remove"


_KINDS = {"": OverrideKind.CHANGE, "+": OverrideKind.ADD, "++": OverrideKind.FORCE, "~": OverrideKind.DELETE}
_LONGEST_SAID = 300
_EDITS = {"+": OverrideKind.APPEND, "-": OverrideKind.REMOVE}
_UNSWEPT = {
    OverrideKind.DELETE: "a deletion can't be swept",
    OverrideKind.APPEND: "an appended value can't be swept",
    OverrideKind.REMOVE: "a removed value can't be swept",
}


@frozen
class Override:
    """One parsed word."""

    kind: OverrideKind
    path: str
    """Dotted, or a group such as `model` or `db/mysql`."""
    package: str | None = None
    """Where a group's option is put (`group@package=option`)."""
    value: AxisValue | Axis | None = None
    """An axis if it is swept; nothing only for `~path`."""
    text: str
    """The whole word."""
    position: int
    """Which word it was, from 1."""
    column: int
    """Where the value begins in the word, from 1; just after the word if it has none."""

    @property
    def names_group(self) -> bool:
        """True if it can only mean a group: a leaf has neither slashes nor a package."""
        return self.package is not None or "/" in self.path

    @property
    def origin(self) -> ValueOrigin:
        """The place of its value."""
        layer = ConfigLayer.SWEEP if type(self.value) is Axis else ConfigLayer.OVERRIDE
        return ValueOrigin(layer=layer, where=f"argument {self.position}", column=self.column, text=self.text)


def read_overrides(words: Iterable[str]) -> tuple[list[Override], list[Diagnostic]]:
    """Parse words; return the valid ones, and the faults of all others. Positions count from 1."""
    overrides: list[Override] = []
    faults: list[Diagnostic] = []
    for position, word in enumerate(words, start=1):
        override, found = _read(word, position)
        faults += found
        if override is not None:
            overrides.append(override)
    return overrides, faults


def is_key(text: str) -> bool:
    """Return True if this may be before the `=`: a dotted path, or a group."""
    return _PATH.fullmatch(text) is not None or _GROUP.fullmatch(text) is not None


def _read(text: str, position: int) -> tuple[Override | None, Sequence[Diagnostic]]:
    if len(text) > 2 * DEEPEST and _is_too_deep(text.partition("=")[0]):
        return None, _Faulty(text, position).too_deep()
    simple = _SIMPLE.fullmatch(text)
    if simple is not None:
        sign, path, value = simple.groups()
        choice, column = AxisValue(value, scalar(value)), len(text) - len(value) + 1
        return Override(kind=_KINDS[sign], path=path, value=choice, text=text, position=position, column=column), ()
    understood = _understand(text, position) if _is_unicode(text) else None
    return (None, _Faulty(text, position).all()) if understood is None else (understood, ())


def _is_too_deep(key: str) -> bool:
    return any(part.count(".") + part.count("/") >= DEEPEST for part in key.split("@"))


def _understand(text: str, position: int) -> Override | None:
    """Parse any word without a fault; the faults of another one are found separately."""
    key = _KEY.match(text)
    if key is None:
        return None
    sign, path, at, package, edit = key.groups()
    kind = _KINDS[sign] if edit is None else _EDITS[edit]
    start = key.end()
    value: AxisValue | Axis | None = None
    if text[start - 1 : start] == "=":
        try:
            found = read_value_or_axis(text, start)
        except Unreadable:
            return None
        value = found if isinstance(found, AxisValue) else _axis(text, position, path + (at or ""), found, start)
    elif kind is not OverrideKind.DELETE or start < len(text):
        return None
    if (edit is not None and sign) or (type(value) is Axis and kind in _UNSWEPT):
        return None
    package = package or "" if at else None
    return Override(kind=kind, path=path, package=package, value=value, text=text, position=position, column=start + 1)


def _axis(text: str, position: int, path: str, choices: AxisValues, start: int) -> Axis:
    place = ValueOrigin(layer=ConfigLayer.SWEEP, where=f"argument {position}", column=start + 1, text=text)
    return Axis(path=path, choices=choices, origin=place)


class _Faulty:
    """A word that can't be parsed, and its faults."""

    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.origin = ValueOrigin(layer=ConfigLayer.OVERRIDE, where=f"argument {position}", text=text)
        self.faults: list[Diagnostic] = []
        self.kind = OverrideKind.CHANGE
        self.equals = text.find("=")

    def all(self) -> list[Diagnostic]:
        if not _is_unicode(self.text):
            self.fault("is not valid Unicode text", 0, len(self.text))
            return self.faults
        self.look_at_key()
        if self.equals >= 0:
            self.look_at_value(self.equals + 1)
        return self.faults

    def too_deep(self) -> list[Diagnostic]:
        self.fault(f"is nested deeper than {DEEPEST} levels", 0)
        return self.faults

    def look_at_key(self) -> None:
        """Parse what is before the first `=`."""
        text = self.text
        sign = "~" if text.startswith("~") else "+" * (len(text[:2]) - len(text[:2].lstrip("+")))
        self.kind = _KINDS[sign]
        start, end = len(sign), self.equals if self.equals >= 0 else len(text)
        if self.equals < 0 and sign != "~" and start < end:
            self.fault("expected '=' and a value", end, hint=f"{text}=VALUE; ~{text[start:]} deletes it")
        if self.equals > start and text[self.equals - 1] in _EDITS:
            end -= 1
            self.kind = _EDITS[text[end]]
            if sign:
                self.fault(f"{sign} in front and {text[end]}= don't go together", 0, len(sign), hint="drop one of them")
        at = text.find("@", start, end)
        self.look_at_path(start, end if at < 0 else at, is_package=False)
        if at >= 0:
            self.look_at_path(at + 1, end, is_package=True)

    def look_at_path(self, start: int, end: int, *, is_package: bool) -> None:
        found = self.text[start:end]
        if _PATH.fullmatch(found) or (_GROUP.fullmatch(found) and not is_package) or (is_package and not found):
            return
        forms = (_PATH,) if is_package else (_PATH, _GROUP)
        at = start + max(good.end() if (good := form.match(found)) else 0 for form in forms)
        wanted = "a package such as model or db.main" if is_package else "a key such as lr or model.depth"
        character = repr(self.text[at]) if at < len(self.text) else "nothing"
        self.fault(f"expected {wanted}, found {character}", at, hint=_key_hint(found, self.text[at:end]))

    def look_at_value(self, start: int) -> None:
        try:
            found = read_value_or_axis(self.text, start)
        except Unreadable as error:
            self.fault(str(error), error.at, error.width, hint=self.fix(error, start))
            return
        if self.kind in _UNSWEPT and not isinstance(found, AxisValue):
            several = (
                ""
                if self.kind is OverrideKind.DELETE
                else f"for several write {self.text[:start]}[{self.text[start:]}]"
            )
            self.fault(_UNSWEPT[self.kind], start, len(self.text) - start, hint=several)

    def fix(self, error: Unreadable, start: int) -> str:
        if not error.may_be_text:
            return error.hint
        import shlex  # noqa: PLC0415 - 2 ms that only a fault should cost

        as_text = f"if it is text: {shlex.quote(self.text[:start] + quoted(self.text[start:].strip()))}"
        return f"{error.hint}; {as_text}" if error.hint else as_text

    def fault(self, message: str, at: int, width: int = 1, *, hint: str = "") -> None:
        message, hint = _shortened(message), _shortened(hint)
        self.faults.append(fault_at(self.origin, message, hint=hint, column=at + 1, width=width))


def _shortened(text: str) -> str:
    # A word may be megabytes long; a message about it is not.
    return text if len(text) <= _LONGEST_SAID else f"{text[: _LONGEST_SAID - 1]}…"


def _key_hint(key: str, found: str) -> str:
    if key.startswith("-"):
        return f"an override has no leading dashes: {key.lstrip('-')}=VALUE"
    if found[:1].isspace():
        return "remove the space before the ="
    if found[:1] == "[":
        return "an item of a list is a step of the path: a.0=VALUE"
    if found[:1] == "." and "/" not in key:
        return "a step is missing beside this dot"
    if found[:1] in ("/", "."):
        return "a group has slashes (db/mysql), a path has dots; none has both, and neither ends with one"
    return ""


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class OverrideApplier:
    """Applies overrides, in order, to a tree: change, add, force, delete, and the edits of lists.

    What is changed has to exist, what is added must not; each is a fault with what to write instead. A key added beyond
    a closed schema becomes a note: it is kept and shown, and is not part of the identity.
    """

    def __init__(self, layering: LayeredTree, *, has_files: bool, swept: frozenset[str]) -> None:
        self.notes: dict[str, None] = {}
        """The leaves beyond a closed schema, in the order in which they came."""
        self._tree = layering
        self._words = layering.words
        # A key that a file only sweeps exists, too.
        self._swept = swept
        # Without a file, any key of an open schema is accepted; with one, a misspelt key is a mistake.
        self._is_free = layering.words.is_open and not has_files

    def apply(self, override: Override) -> None:
        """Apply one override whose value is not swept."""
        origin = override.origin
        if override.kind is OverrideKind.DELETE:
            self._delete(override, origin)
        elif override.kind in (OverrideKind.APPEND, OverrideKind.REMOVE):
            self._edit(override, origin)
        elif type(override.value) is AxisValue:
            self._set(override.kind, override.path, override.value, override, origin)

    def may_set(self, override: Override, path: str, origin: ValueOrigin) -> bool:
        """Return True if an override may set a leaf; otherwise note the fault."""
        kind, tree = override.kind, self._tree
        if path in self._words.branches:
            tree.refuse_group(origin, path)
            return False
        is_there = tree.at(path) is not ABSENT
        if kind is OverrideKind.ADD and is_there:
            hint = f"write {path}=… to change it"
            tree.refuse(_at_key(override), "already exists", hint, key=path, width=len(override.path) + 1)
            return False
        owner = tree.owner_of(path)
        is_known = is_there or path in self._swept or (owner == path and path in self._words.leaves)
        # In a map that is one declared leaf, such as a program's `env`, an open schema accepts every key.
        is_open_map = self._words.is_open and owner in self._words.leaves and type(tree.at(owner)) is dict
        is_free = self._is_free if owner == path else is_open_map
        if kind is OverrideKind.CHANGE and not is_known and not is_free:
            near = self._words.suggestion(path, tree.paths())
            adding = f"+{override.text} adds it" if self._words.is_open else f"+{override.text} keeps it as a note"
            hint = f"{near} {adding}" if near else adding
            tree.refuse(_at_key(override), "there is no such key", hint, key=path, width=len(override.path))
            return False
        return True

    def is_note(self, path: str) -> bool:
        """Return True if a leaf is beyond a closed schema."""
        return not self._words.is_open and self._tree.owner_of(path) not in self._words.leaves

    def _set(self, kind: OverrideKind, path: str, choice: AxisValue, override: Override, origin: ValueOrigin) -> None:
        existing = self._tree.at(path)
        if type(choice.value) is dict and self._spreads(path, existing) and (choice.value or type(existing) is dict):
            for key, item in choice.value.items():
                if not key or "." in key:
                    self._tree.refuse(origin, f"{key!r} is not a key", key=path)
                else:
                    self._set(kind, f"{path}.{key}", AxisValue(text_of(item), item, ValueForm.VALUE), override, origin)
        elif self.may_set(changed(override, kind=kind), path, origin):
            owner = self._tree.owner_of(path)
            if owner != path:
                self._set_inside(owner, path, choice, origin)
                return
            if self.is_note(path):
                self.notes[path] = None
            self._tree.put_choice(path, choice, origin)

    def _spreads(self, path: str, existing: Any) -> bool:
        """Return True if a map given for a path is a branch of leaves and not the value of one leaf."""
        if self._tree.owner_of(path) != path or path in self._words.leaves:
            return False
        return existing is ABSENT or type(existing) is dict

    def _set_inside(self, owner: str, path: str, choice: AxisValue, origin: ValueOrigin) -> None:
        """Put a value into a list, or into a map that is one declared leaf."""
        tries = [choice.value, choice.text] if choice.form is ValueForm.PLAIN else [choice.value]
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

    def _delete(self, override: Override, origin: ValueOrigin) -> None:
        path, tree = override.path, self._tree
        existing = tree.at(path)
        if existing is ABSENT:
            if path in self._swept:
                return
            hint = self._words.suggestion(path, tree.paths())
            tree.refuse(_at_key(override), "there is no such key", hint, key=path, width=len(path))
            return
        if type(override.value) is AxisValue and not self._is(path, existing, override.value):
            message = f"is {_shown(existing)}, so it is not deleted"
            tree.refuse(origin, message, f"write ~{path} to delete it anyway", key=path)
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

    def _is(self, path: str, existing: Any, choice: AxisValue) -> bool:
        try:
            return same(value_of(choice, self._words.leaves.get(path)), existing)
        except ValueError:
            return False

    def _edit(self, override: Override, origin: ValueOrigin) -> None:
        """Append to a list, or remove from it."""
        path, tree, choice = override.path, self._tree, override.value
        existing = tree.at(path)
        if type(existing) not in (list, tuple) or type(choice) is not AxisValue:
            known = existing is not ABSENT or self._words.knows(path)
            message = "is not a list" if known else "there is no such key"
            hint = "" if known else self._words.suggestion(path, tree.paths())
            tree.refuse(_at_key(override), message, hint, key=path, width=len(path))
            return
        try:
            items = self._items(path, choice)
            whole = [*existing, *items] if override.kind is OverrideKind.APPEND else _removed(existing, items)
            self._put_whole(path, whole, origin)
        except ValueError as error:
            tree.refuse(origin, str(error), key=path, width=len(choice.text))

    def _items(self, path: str, choice: AxisValue) -> list[Any]:
        value = choice.value
        if path in self._words.leaves and not choice.refers:
            value = value_of(choice, self._words.leaves[path])
        return list(value) if type(value) in (list, tuple) else [value]

    def _put_whole(self, owner: str, whole: Any, origin: ValueOrigin) -> None:
        """Set a leaf that was changed inside; `ValueError` if it is no longer valid."""
        if not refers(whole):
            whole = check_value(whole, self._words.leaves.get(owner))
        self._tree.put(owner, whole, origin)


def _removed(existing: Sequence[Any], items: Sequence[Any]) -> list[Any]:
    for item in items:
        if not any(same(item, other) for other in existing):
            message = f"there is no {_shown(item)} in it"
            raise ValueError(message)
    return [other for other in existing if not any(same(item, other) for item in items)]


def _at_key(override: Override) -> ValueOrigin:
    """Return the place of an override's key, behind its sign."""
    return override.origin._replace(column=override.text.find(override.path) + 1)


def _shown(value: Any) -> str:
    text = text_of(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
