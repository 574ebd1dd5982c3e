"""Overrides: what one word of a command line changes in a configuration.

    a.b=v        change what is there               a.b+=v         append to a list; of a list, every item
    +a.b=v       add what is not there              a.b-=v         remove from a list; of a list, every item
    ++a.b=v      one or the other                   group=option   choose; group@package=option puts it elsewhere
    ~a.b         delete; ~a.b=v only if it is v

Steps of a path are names (letters, digits, `_`, `$`, inner `-`) or indexes. A comma or a range in the value makes an
axis of a sweep (`value_grammar`). Whether a word names a group or a leaf is not decided here: only who has the files
knows. The text of a value is kept, because the declared type of a leaf decides how it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum

from stoker.config.axis import Axis, Choice, Choices
from stoker.config.caret import fault_at
from stoker.config.located import DEEPEST
from stoker.config.origin import Layer, Origin
from stoker.config.value_grammar import Unreadable, read_value_or_axis
from stoker.config.values import quoted, scalar
from stoker.model.errors import ConfigFaults
from stoker.model.faults import Fault
from stoker.model.frozen import frozen

# Nearly every word is one of these, and is understood without looking at each character.
_SIMPLE = re.compile(r"(\+{0,2})([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)=([A-Za-z0-9_./+-]+)", re.ASCII)
_STEP = r"(?:[^\W\d]|\$)(?:[\w$-]*[\w$])?"
_PATH = re.compile(rf"(?:{_STEP}|[0-9]+(?=\.))(?:\.(?:{_STEP}|[0-9]+))*")
_NAME = r"[^\W\d](?:[\w-]*\w)?"
_GROUP = re.compile(rf"{_NAME}(?:/{_NAME})+")
_KEY = re.compile(rf"(\+\+|\+|~|)({_GROUP.pattern}|{_PATH.pattern})(@({_PATH.pattern})?)?(?:([+-])?=)?")


class Kind(StrEnum):
    """What an override does."""

    CHANGE = "change"
    ADD = "add"
    FORCE = "force"
    DELETE = "delete"
    APPEND = "append"
    REMOVE = "remove"


_KINDS = {"": Kind.CHANGE, "+": Kind.ADD, "++": Kind.FORCE, "~": Kind.DELETE}
_LONGEST_SAID = 300
_EDITS = {"+": Kind.APPEND, "-": Kind.REMOVE}
_UNSWEPT = {
    Kind.DELETE: "what is deleted can't be swept",
    Kind.APPEND: "what is appended can't be swept",
    Kind.REMOVE: "what is removed can't be swept",
}


@frozen
class Override:
    """One word, understood."""

    kind: Kind
    path: str
    """Dotted, or a group such as `model` or `db/mysql`."""
    package: str | None = None
    """Where a group's option is put (`group@package=option`)."""
    value: Choice | Axis | None = None
    """An axis if it is swept; nothing only for `~path`."""
    text: str
    """The whole word."""
    position: int
    """Which word it was, from 1."""
    column: int
    """Where the value begins in the word, from 1; just after the word if it has none."""

    @property
    def names_group(self) -> bool:
        """It can only mean a group: a leaf has neither slashes nor a package."""
        return self.package is not None or "/" in self.path

    @property
    def origin(self) -> Origin:
        """The place of its value."""
        layer = Layer.SWEEP if type(self.value) is Axis else Layer.OVERRIDE
        return Origin(layer=layer, where=f"argument {self.position}", column=self.column, text=self.text)


def parse_overrides(words: Iterable[str]) -> list[Override]:
    """Understand words; every fault of every word in one `ConfigFaults`."""
    overrides, faults = read_overrides(words)
    if faults:
        message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} faults in the overrides"
        raise ConfigFaults(message, faults=tuple(faults))
    return overrides


def parse_override(text: str, position: int = 1) -> Override:
    """Understand one word; all its faults in one `ConfigFaults`."""
    override, faults = _read(text, position)
    if override is None:
        raise ConfigFaults(str(faults[0]), faults=tuple(faults))
    return override


def read_overrides(words: Iterable[str]) -> tuple[list[Override], list[Fault]]:
    """Understand words: those that can be, and the faults of all others. Positions count from 1."""
    overrides: list[Override] = []
    faults: list[Fault] = []
    for position, word in enumerate(words, start=1):
        override, found = _read(word, position)
        faults += found
        if override is not None:
            overrides.append(override)
    return overrides, faults


def is_key(text: str) -> bool:
    """Say whether this may stand before the `=`: a dotted path, or a group."""
    return _PATH.fullmatch(text) is not None or _GROUP.fullmatch(text) is not None


def _read(text: str, position: int) -> tuple[Override | None, Sequence[Fault]]:
    if len(text) > 2 * DEEPEST and _is_too_deep(text.partition("=")[0]):
        return None, _Faulty(text, position).too_deep()
    simple = _SIMPLE.fullmatch(text)
    if simple is not None:
        sign, path, value = simple.groups()
        choice, column = Choice(value, scalar(value)), len(text) - len(value) + 1
        return Override(kind=_KINDS[sign], path=path, value=choice, text=text, position=position, column=column), ()
    understood = _understand(text, position) if _is_unicode(text) else None
    return (None, _Faulty(text, position).all()) if understood is None else (understood, ())


def _is_too_deep(key: str) -> bool:
    return any(part.count(".") + part.count("/") >= DEEPEST for part in key.split("@"))


def _understand(text: str, position: int) -> Override | None:
    """Understand any word without a fault; what is wrong with another one is found out apart."""
    key = _KEY.match(text)
    if key is None:
        return None
    sign, path, at, package, edit = key.groups()
    kind = _KINDS[sign] if edit is None else _EDITS[edit]
    start = key.end()
    value: Choice | Axis | None = None
    if text[start - 1 : start] == "=":
        try:
            found = read_value_or_axis(text, start)
        except Unreadable:
            return None
        value = found if isinstance(found, Choice) else _axis(text, position, path + (at or ""), found, start)
    elif kind is not Kind.DELETE or start < len(text):
        return None
    if (edit is not None and sign) or (type(value) is Axis and kind in _UNSWEPT):
        return None
    package = package or "" if at else None
    return Override(kind=kind, path=path, package=package, value=value, text=text, position=position, column=start + 1)


def _axis(text: str, position: int, path: str, choices: Choices, start: int) -> Axis:
    place = Origin(layer=Layer.SWEEP, where=f"argument {position}", column=start + 1, text=text)
    return Axis(path=path, choices=choices, origin=place)


class _Faulty:
    """A word that can't be understood, and what is wrong with it."""

    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.origin = Origin(layer=Layer.OVERRIDE, where=f"argument {position}", text=text)
        self.faults: list[Fault] = []
        self.kind = Kind.CHANGE
        self.equals = text.find("=")

    def all(self) -> list[Fault]:
        if not _is_unicode(self.text):
            self.fault("is not valid Unicode text", 0, len(self.text))
            return self.faults
        self.look_at_key()
        if self.equals >= 0:
            self.look_at_value(self.equals + 1)
        return self.faults

    def too_deep(self) -> list[Fault]:
        self.fault(f"is nested deeper than {DEEPEST} levels", 0)
        return self.faults

    def look_at_key(self) -> None:
        """Take apart what stands before the first `=`."""
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
        said = repr(self.text[at]) if at < len(self.text) else "nothing"
        self.fault(f"expected {wanted}, found {said}", at, hint=_key_hint(found, self.text[at:end]))

    def look_at_value(self, start: int) -> None:
        try:
            found = read_value_or_axis(self.text, start)
        except Unreadable as error:
            self.fault(str(error), error.at, error.width, hint=self.fix(error, start))
            return
        if self.kind in _UNSWEPT and not isinstance(found, Choice):
            several = "" if self.kind is Kind.DELETE else f"for several write {self.text[:start]}[{self.text[start:]}]"
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
    # A word may be megabytes long; what is said about it is not.
    return text if len(text) <= _LONGEST_SAID else f"{text[: _LONGEST_SAID - 1]}…"


def _key_hint(key: str, found: str) -> str:
    if key.startswith("-"):
        return f"an override has no dashes in front: {key.lstrip('-')}=VALUE"
    if found[:1].isspace():
        return "no space may stand before the ="
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
