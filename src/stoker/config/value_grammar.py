r"""The value behind the `=`: one value, or an axis of a sweep.

    text  3  1e-5  null      a single value, read by the fixed rules (`values`); spaces around it are dropped
    'a, b'  "a, b"           text exactly as it is; \' and \" for the quote itself
    [a,b]  {a:1,b:2}         one list, one map; they nest
    ${a.b}                   a reference, kept as text and resolved later
    a\,b                     a backslash takes the meaning from , : = space \ quotes and brackets; the rest is text
    a,b,c  choice(a,b,c)     an axis with these values
    range:1:10:2  lin:0:1:5  log:1e-4:1e-1:4        numeric axes (`sweep_ranges`); they need no quotes in a shell
    range(1,10,2)  linspace(0,1,5)  logspace(1e-4,1e-1,4)      the same; in a shell they need quotes

Reading takes time in proportion to the length of the text, whatever it holds, and nesting is bounded.
"""

from __future__ import annotations

import re

from stoker.config.sweep import AxisValue, AxisValues, ListedAxisValues, ValueForm
from stoker.config.values import scalar
from stoker.core.text import did_you_mean, lazy_pattern

MOST_NESTED = 32

_SPACES = lazy_pattern(r"[ \t]*")
# Characters without a meaning in a value and in the key of a map; control characters are not among them.
_RUN = lazy_pattern(r"[^\\$,()\[\]{}'\"\x00-\x08\x0a-\x1f\x7f]*")
_KEY_RUN = lazy_pattern(r"[^\\$,:=()\[\]{}'\"\x00-\x08\x0a-\x1f\x7f]*")
_BRACES = lazy_pattern(r"\$\{|\}")
# The parts of most lists and axes, so that they can be split without looking at each character.
_ITEMS = r"[A-Za-z0-9_./+-]+(?:,[A-Za-z0-9_./+-]+)*"
_FLAT = lazy_pattern(rf"{_ITEMS}|\[(?P<listed>{_ITEMS})\]", re.ASCII)
_NAME = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_ESCAPABLE = frozenset("\\()[]{}:=, \t'\"")
_SHELL_SAFE = ("range:", "lin:", "log:")
_SPACINGS = {"range": "range", "linspace": "lin", "logspace": "log"}
_CASTS = frozenset(["int", "float", "str", "bool", "json_str"])
_EXPECTED = {"]": "a comma or ']'", "}": "a comma or '}'", ")": "a comma or ')'", ":": "a colon and a value"}
_CLOSERS = {"[": "]", "{": "}", "(": ")"}


class Unreadable(ValueError):
    """Invalid text; `at` is the index of the error, `width` its length."""

    def __init__(self, message: str, *, at: int, width: int = 1, hint: str = "", may_be_text: bool = False) -> None:
        super().__init__(message)
        self.at = at
        self.width = width
        self.hint = hint
        self.may_be_text = may_be_text
        """Quotes around the whole value would make it valid."""


def read_value(text: str) -> AxisValue:
    """Read one value; `Unreadable` if it is invalid, or if it makes an axis."""
    found = read_value_or_axis(text)
    if isinstance(found, AxisValue):
        return found
    raise Unreadable("one value is expected here, not a sweep", at=0, width=len(text), may_be_text=True)


def read_value_or_axis(text: str, start: int = 0) -> AxisValue | AxisValues:
    """Read from an index to the end of the text: one value, or the values of an axis."""
    flat = _FLAT.fullmatch(text, start)
    if flat is None:
        return _Reader(text, start).value_or_axis()
    if flat.lastgroup == "listed":
        return AxisValue(flat[0], list(map(scalar, flat["listed"].split(","))))
    items = [AxisValue(item, scalar(item)) for item in flat[0].split(",")]
    return items[0] if len(items) == 1 else ListedAxisValues(tuple(items))


def split_items(text: str) -> list[AxisValue]:
    """Read a list (`[a,b]`, or `a,b` without brackets) and return its items."""
    reader = _Reader(text, 0)
    reader.skip_spaces()
    if text.startswith("[", reader.at):
        items = reader.items("[", 1)
        reader.expect_end()
        return items
    return [] if reader.at == len(text) else reader.separated()


def split_pairs(text: str) -> dict[str, AxisValue]:
    """Read a map (`{a:1,b:2}`) and return its items."""
    reader = _Reader(text, 0)
    reader.skip_spaces()
    if not text.startswith("{", reader.at):
        raise Unreadable("a map is expected here", at=reader.at, hint="such as {a:1,b:2}")
    pairs = reader.pairs(1)
    reader.expect_end()
    return pairs


class _Reader:
    """A text and how far it has been read."""

    __slots__ = ("at", "text")

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.at = start

    def value_or_axis(self) -> AxisValue | AxisValues:
        self.skip_spaces()
        text, start = self.text, self.at
        if start == len(text):
            return AxisValue("", "")
        if text[start] == "=":
            raise Unreadable("there is a second =", at=start, hint="one is enough", may_be_text=True)
        if text.startswith(_SHELL_SAFE, start):
            return self.shell_safe_axis()
        name = _NAME.match(text, start)
        if name is not None and text.startswith("(", after := _after_spaces(text, name.end())):
            return self.function(name[0], after)
        items = self.separated()
        return items[0] if len(items) == 1 else ListedAxisValues(tuple(items))

    def separated(self) -> list[AxisValue]:
        """Read elements with commas between them, to the end."""
        items = [self.element("", 0)]
        while self.at < len(self.text):
            self.expect(",", "a comma")
            self.skip_spaces()
            if self.text.startswith(_SHELL_SAFE, self.at):
                raise _not_alone(self.at)
            items.append(self.element("", 0))
        return items

    def element(self, closer: str, depth: int) -> AxisValue:
        """Read one element and the spaces around it; `closer` ends it beside a comma."""
        self.skip_spaces()
        start = self.at
        opener = self.text[start : start + 1]
        if opener in ("'", '"'):
            found = self.quoted(opener)
            choice = AxisValue(found, found, ValueForm.QUOTED)
        elif opener == "[":
            items = self.items("[", depth + 1)
            choice = AxisValue(self.text[start : self.at], [item.value for item in items])
        elif opener == "{":
            pairs = self.pairs(depth + 1)
            choice = AxisValue(self.text[start : self.at], {key: item.value for key, item in pairs.items()})
        else:
            return self.plain(closer)
        self.skip_spaces()
        return choice

    def items(self, opener: str, depth: int) -> list[AxisValue]:
        """Read square brackets or parentheses with their content."""
        closer, opened = _CLOSERS[opener], self.open(depth)
        items: list[AxisValue] = []
        if self.closes(closer):
            return items
        while True:
            items.append(self.element(closer, depth))
            if self.ends(closer, opened):
                return items

    def pairs(self, depth: int) -> dict[str, AxisValue]:
        """Read braces with their content."""
        opened = self.open(depth)
        pairs: dict[str, AxisValue] = {}
        if self.closes("}"):
            return pairs
        while True:
            start = self.at
            key = self.map_key()
            if key in pairs:
                raise Unreadable(f"{key!r} is twice in one map", at=start, width=self.at - start)
            self.expect(":", f"a colon and a value for {key!r}")
            pairs[key] = self.element("}", depth)
            if self.ends("}", opened):
                return pairs

    def map_key(self) -> str:
        self.skip_spaces()
        opener = self.text[self.at : self.at + 1]
        if opener not in ("'", '"'):
            return self.plain(":").text
        key = self.quoted(opener)
        self.skip_spaces()
        return key

    def open(self, depth: int) -> int:
        opened = self.at
        if depth > MOST_NESTED:
            raise Unreadable(f"nested deeper than {MOST_NESTED} levels", at=opened, hint="put it into a file")
        self.at += 1
        self.skip_spaces()
        return opened

    def closes(self, closer: str) -> bool:
        if not self.text.startswith(closer, self.at):
            return False
        self.at += 1
        return True

    def ends(self, closer: str, opened: int) -> bool:
        """Step over a closing bracket (True) or a comma (False)."""
        if self.closes(closer):
            return True
        if self.at == len(self.text):
            message = f"{self.text[opened]!r} is never closed: expected {closer!r} or a comma"
            raise Unreadable(message, at=opened, hint=f"close it with {closer}, or put the whole value in quotes")
        self.expect(",", f"a comma or {closer!r}")
        return False

    def quoted(self, quote: str) -> str:
        """Read text in quotes, with the quotes."""
        text, opened, parts = self.text, self.at, []
        begin = opened + 1
        while (found := text.find(quote, begin)) >= 0:
            part = text[begin:found]
            kept = part.rstrip("\\")
            slashes = len(part) - len(kept)
            parts.append(kept + "\\" * (slashes // 2))
            begin = found + 1
            if slashes % 2 == 0:
                self.at = begin
                return "".join(parts)
            parts.append(quote)
        raise Unreadable("the quote is never closed", at=opened, hint=f"close it with {quote}")

    def plain(self, closer: str) -> AxisValue:
        """Read a single value without quotes, up to a comma, `closer` or the end."""
        text, start = self.text, self.at
        at = (_KEY_RUN if closer == ":" else _RUN).match(text, start).end()  # type: ignore[union-attr]  # may be empty
        if at < len(text) and text[at] != "," and text[at] != closer:
            return self.with_signs(closer, at)
        self.at = at
        found = text[start:at].rstrip(" \t")
        if not found:
            raise _missing(text, at, closer)
        return AxisValue(found, scalar(found))

    def with_signs(self, closer: str, at: int) -> AxisValue:
        """Read the same if there is a character at `at` that may have a meaning."""
        text, end, begin = self.text, len(self.text), self.at
        run = _KEY_RUN if closer == ":" else _RUN
        pieces = []
        while at < end and text[at] != "," and text[at] != closer:
            if text[at] == "\\" and at + 1 < end and text[at + 1] in _ESCAPABLE:
                pieces += [text[begin:at], text[at + 1]]
                at = begin = at + 2
            elif text.startswith("${", at):
                if closer == ":":
                    raise Unreadable("a key can't refer to a value", at=at, width=2)
                at = _after_reference(text, at)
            elif text[at] in "\\$":
                at += 1
            else:
                raise _meaningless(text, at, closer)
            at = run.match(text, at).end()  # type: ignore[union-attr]  # an empty run is a match, too
        self.at = at
        # Spaces at the end are dropped, but not one that was escaped.
        pieces.append(text[begin:at].rstrip(" \t"))
        found = "".join(pieces)
        return AxisValue(found, found if len(pieces) > 1 else scalar(found))

    def shell_safe_axis(self) -> AxisValues:
        """Read `range:`, `lin:` or `log:` and its numbers, to the end."""
        start = self.at
        name, *parts = self.text[start:].split(":")
        if "," in self.text[start:]:
            raise _not_alone(self.text.index(",", start))
        places, at = [], start + len(name) + 1
        for part in parts:
            places.append((at, len(part)))
            at += len(part) + 1
        return _spaced(name, [part.strip(" \t") for part in parts], places, (start, len(self.text) - start))

    def function(self, name: str, opens: int) -> AxisValues:
        """Read a function that makes an axis, to the end."""
        start, self.at = self.at, opens
        if name == "choice":
            items = self.items("(", 1)
            self.expect_end()
            if not items:
                raise Unreadable("choice() has no values", at=start, width=self.at - start, hint="such as choice(a,b)")
            return ListedAxisValues(tuple(items))
        if name not in _SPACINGS:
            raise _no_function(name, start)
        texts, places = self.numbers()
        self.expect_end()
        return _spaced(_SPACINGS[name], texts, places, (start, self.at - start))

    def numbers(self) -> tuple[list[str], list[tuple[int, int]]]:
        """Read a function's numbers, and their places."""
        opened = self.open(1)
        texts: list[str] = []
        places: list[tuple[int, int]] = []
        if self.closes(")"):
            return texts, places
        while True:
            self.skip_spaces()
            start = self.at
            texts.append(self.plain(")").text)
            places.append((start, len(texts[-1])))
            if self.ends(")", opened):
                return texts, places

    def skip_spaces(self) -> None:
        self.at = _after_spaces(self.text, self.at)

    def expect(self, character: str, says: str) -> None:
        if not self.text.startswith(character, self.at):
            found = repr(self.text[self.at]) if self.at < len(self.text) else "the end"
            raise Unreadable(f"expected {says}, found {found}", at=self.at, may_be_text=True)
        self.at += 1

    def expect_end(self) -> None:
        self.skip_spaces()
        if self.at < len(self.text):
            message = f"nothing may follow here, found {self.text[self.at]!r}"
            raise Unreadable(message, at=self.at, width=len(self.text) - self.at, may_be_text=True)


def _spaced(name: str, texts: list[str], places: list[tuple[int, int]], whole: tuple[int, int]) -> AxisValues:
    # Imported on use: the arithmetic costs a millisecond that few words need.
    from stoker.config.sweep_ranges import BadSpacing, spaced  # noqa: PLC0415

    try:
        return spaced(name, texts)
    except BadSpacing as error:
        at, width = whole if error.part is None or error.part >= len(places) else places[error.part]
        raise Unreadable(str(error), at=at, width=width, hint=error.hint, may_be_text=True) from None


def _after_spaces(text: str, at: int) -> int:
    return _SPACES.match(text, at).end()  # type: ignore[union-attr]  # no space is a match, too


def _after_reference(text: str, start: int) -> int:
    """Step over a `${…}` and the references inside it."""
    depth = 0
    for found in _BRACES.finditer(text, start):
        depth += 1 if found[0] == "${" else -1
        if depth == 0:
            if found.end() == start + 3:
                raise Unreadable("the reference is empty", at=start, width=3, hint="such as ${model.depth}")
            return found.end()
    raise Unreadable("'${' is never closed", at=start, width=2, hint="close it with }")


def _missing(text: str, at: int, closer: str) -> Unreadable:
    if at == len(text):
        says = "expected a value, found the end"
    else:
        says = f"expected {'a key' if closer == ':' else 'a value'} before {text[at]!r}"
    return Unreadable(says, at=at, hint="'' is the empty text")


def _meaningless(text: str, at: int, closer: str) -> Unreadable:
    found = text[at]
    if found in "'\"":
        says = "a quote inside text that is not in quotes"
    elif found in "([{":
        says = f"{found!r} inside text that is not in quotes"
    elif found in ")]}":
        says = f"expected {_EXPECTED[closer]}, found {found!r}" if closer else f"{found!r} closes nothing"
    elif found == "=":
        says = "expected a colon between key and value, found '='"
    else:
        says = f"a control character ({found!r}) outside quotes"
    hint = f"write \\{found} for the character itself" if found in _ESCAPABLE else ""
    return Unreadable(says, at=at, hint=hint, may_be_text=True)


def _not_alone(at: int) -> Unreadable:
    message = "a range can't be among choices"
    return Unreadable(message, at=at, hint="a sweep file has concat for that", may_be_text=True)


def _no_function(name: str, at: int) -> Unreadable:
    if name in _CASTS:
        hint = "the declared type of a field decides; quotes make text"
    else:
        hint = did_you_mean(name, ["choice", *_SPACINGS]) or f"there are choice, {', '.join(_SPACINGS)}"
    return Unreadable(f"there is no function {name!r}", at=at, width=len(name), hint=hint, may_be_text=True)
