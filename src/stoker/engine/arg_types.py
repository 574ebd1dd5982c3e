"""The types an argument may have, each knowing how text is read, how a value is checked and what schema it has.

The declared type decides: `007` is text for a text field and 7 for an integer field; `1` becomes 1.0 for a float
field; `on` is never a boolean. A value is normalised once, here, and is what enters the key.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
import types
import typing
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NewType

from stoker.core.errors import Diagnostic
from stoker.core.frozen import frozen_by_position
from stoker.core.text import EXACT_FLOATS, parse_duration, parse_size, whole_number

Plain = NewType("Plain", object)
"""Text, numbers, booleans, nothing, and lists and maps of these."""

Size = NewType("Size", str)
"""How many bytes, as a person writes it: 500M, 8G."""

Duration = NewType("Duration", str)
"""How long, as a person writes it: 90s, 2h."""

PathOrName = NewType("PathOrName", str)
"""A file or folder of the user's, or a name that means something else. Only its recipe knows which."""

InputPath = NewType("InputPath", str)
"""A file or folder of the user's that a stage reads. It enters the key by the digest of its content."""

# Python refuses to print what is much larger, and so does every message and every file of ours.
_MOST_BITS = 8192


class ArgType:
    """How one type reads text, checks a value and describes itself."""

    form: ClassVar[type] = object
    """The form of its plain values, by which one of several types is chosen."""

    def read(self, text: str) -> Any:
        """Turn what a person typed into a value; `ValueError` says what would be right."""
        raise NotImplementedError

    def check(self, value: Any) -> Any:
        """Return the normal form of a value, or raise `ValueError`."""
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        """Describe the type as JSON Schema."""
        raise NotImplementedError

    def describe(self) -> str:
        """Name the type for people."""
        raise NotImplementedError

    def identity(self, value: Any, _digest_of: Callable[[str], str]) -> Any:
        """Return what of a value enters the key: the value itself, input paths replaced by their content's digest."""
        return value

    def paths(self, _value: Any) -> list[str]:
        """Return the input paths inside a value."""
        return []

    def with_paths(self, value: Any, _change: Callable[[str], str]) -> Any:
        """Return a value whose input paths are changed, and nothing else."""
        return value

    @property
    def has_fields(self) -> bool:
        """True if a value may have fields of its own, each with its own faults."""
        return False

    def faults_in(self, value: Any, where: str) -> tuple[Any, list[Diagnostic]]:
        """Return the normal form of a value, and every fault in it with its dotted place."""
        try:
            return self.check(value), []
        except ValueError as error:
            return None, [Diagnostic(where, str(error))]

    def make(self, value: Any) -> Any:
        """Return what an args object holds for a plain value in its normal form."""
        return value

    def plain(self, value: Any) -> Any:
        """Return the plain value for what an args object holds."""
        return value

    def brief(self, value: Any) -> Any:
        """Return a checked plain value without the fields of records that have their defaults, to be typed again."""
        return value


@frozen_by_position
class BoolType(ArgType):
    """True or false, and no other word for it."""

    def read(self, text: str) -> bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        message = f"{text!r} is not a boolean; write true or false"
        raise ValueError(message)

    def check(self, value: Any) -> bool:
        if type(value) is bool:
            return value
        message = f"expected a boolean, got {said(value)}"
        raise ValueError(message)

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def describe(self) -> str:
        return "bool"


@frozen_by_position
class IntType(ArgType):
    """Whole numbers; a float that is one counts (`core.text.whole_number`)."""

    def read(self, text: str) -> int:
        return self.check(_read_whole(text))

    def check(self, value: Any) -> int:
        number = whole_number(value)
        if number is None:
            message = f"expected a whole number, got {said(value)}"
            raise ValueError(message)
        if number.bit_length() > _MOST_BITS:
            message = f"a whole number of {number.bit_length()} bits is too large"
            raise ValueError(message)
        return number

    def schema(self) -> dict[str, Any]:
        return {"type": "integer"}

    def describe(self) -> str:
        return "int"


@frozen_by_position
class FloatType(ArgType):
    """Numbers; not finite ones, too."""

    def read(self, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            message = f"{text!r} is not a number"
            raise ValueError(message) from None

    def check(self, value: Any) -> float:
        if type(value) is float:
            return value
        if type(value) is int:
            try:
                return float(value)
            except OverflowError:
                message = f"{value} is too large for a float"
                raise ValueError(message) from None
        message = f"expected a number, got {said(value)}"
        raise ValueError(message)

    def schema(self) -> dict[str, Any]:
        return {"type": "number"}

    def describe(self) -> str:
        return "float"


@frozen_by_position
class StrType(ArgType):
    """Text, or the path of a file or folder that is read."""

    form = str
    is_path: bool = False
    may_be_path: bool = False

    def read(self, text: str) -> str:
        return self.check(text)

    def check(self, value: Any) -> str:
        if type(value) is not str:
            message = f"expected text, got {said(value)}"
            raise ValueError(message)
        try:
            value.encode()
        except UnicodeEncodeError:
            message = f"{value!r} is not valid Unicode text"
            raise ValueError(message) from None
        if self.is_path and not value:
            message = "expected a path, got nothing"
            raise ValueError(message)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "path"} if self.is_path else {"type": "string"}

    def describe(self) -> str:
        return "path" if self.is_path else "text"

    def identity(self, value: Any, digest_of: Callable[[str], str]) -> Any:
        return {"content": digest_of(value)} if self.is_path else value

    def paths(self, value: Any) -> list[str]:
        return [value] if self.is_path else []

    def with_paths(self, value: Any, change: Callable[[str], str]) -> Any:
        return change(value) if self.is_path or self.may_be_path else value


@frozen_by_position
class PlainType(ArgType):
    """Plain data of any shape: what a user's program is given."""

    def read(self, text: str) -> Any:
        return text

    def check(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) in (list, tuple):
            return [self.check(item) for item in value]
        if type(value) is dict and all(type(key) is str for key in value):
            return {key: self.check(item) for key, item in value.items()}
        message = f"expected plain data, got {said(value)}"
        raise ValueError(message)

    def schema(self) -> dict[str, Any]:
        return {}

    def describe(self) -> str:
        return "plain data"


@frozen_by_position
class MeasureType(ArgType):
    """A size or a duration: text with a unit, such as 8G or 30m, kept as it was written; empty for none."""

    parse: Callable[[str], float]
    what: str
    example: str

    def read(self, text: str) -> str:
        return self.check(text)

    def check(self, value: Any) -> str:
        if type(value) in (int, float) or (type(value) is str and value.strip().replace(".", "", 1).isdigit()):
            message = f"{value} of what? A {self.what} has a unit: {self.example}"
            raise ValueError(message)
        text = _TEXT.check(value)
        if text:
            self.parse(text)
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}

    def describe(self) -> str:
        return f"{self.what} such as {self.example}"


@frozen_by_position
class ChoiceType(ArgType):
    """One of a few values."""

    choices: tuple[Any, ...]

    def read(self, text: str) -> Any:
        for choice in self.choices:
            if str(choice) == text:
                return choice
        raise ValueError(self._refusal(text))

    def check(self, value: Any) -> Any:
        for choice in self.choices:
            if choice == value and type(choice) is type(value):
                return choice
        raise ValueError(self._refusal(value))

    def _refusal(self, value: Any) -> str:
        return f"{said(value)} is not one of {', '.join(map(str, self.choices))}"

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.choices)}

    def describe(self) -> str:
        return "|".join(map(str, self.choices))


@frozen_by_position
class OptionalType(ArgType):
    """A value or null."""

    inner: ArgType

    def read(self, text: str) -> Any:
        return None if text in ("null", "none", "None") else self.inner.read(text)

    def check(self, value: Any) -> Any:
        return None if value is None else self.inner.check(value)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.inner.schema(), {"type": "null"}]}

    def describe(self) -> str:
        return f"{self.inner.describe()} or null"

    def identity(self, value: Any, digest_of: Callable[[str], str]) -> Any:
        return None if value is None else self.inner.identity(value, digest_of)

    def paths(self, value: Any) -> list[str]:
        return [] if value is None else self.inner.paths(value)

    def with_paths(self, value: Any, change: Callable[[str], str]) -> Any:
        return None if value is None else self.inner.with_paths(value, change)


@frozen_by_position
class ListType(ArgType):
    """Values of one type in order."""

    form = list
    item: ArgType
    as_tuple: bool

    def read(self, text: str) -> Any:
        from stoker.config.value_grammar import split_items  # noqa: PLC0415 - only lists as text should cost it

        return self._shape([self.item.read(part.text) for part in split_items(text)])

    def check(self, value: Any) -> Any:
        if type(value) not in (list, tuple):
            message = f"expected a list, got {said(value)}"
            raise ValueError(message)
        return self._shape([self.item.check(item) for item in value])

    def _shape(self, items: list[Any]) -> Any:
        return tuple(items) if self.as_tuple else items

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema()}

    def describe(self) -> str:
        return f"list of {self.item.describe()}"

    def identity(self, value: Any, digest_of: Callable[[str], str]) -> Any:
        return [self.item.identity(item, digest_of) for item in value]

    def paths(self, value: Any) -> list[str]:
        return [path for item in value for path in self.item.paths(item)]

    def with_paths(self, value: Any, change: Callable[[str], str]) -> Any:
        return self._shape([self.item.with_paths(item, change) for item in value])

    @property
    def has_fields(self) -> bool:
        return self.item.has_fields

    def faults_in(self, value: Any, where: str) -> tuple[Any, list[Diagnostic]]:
        if not self.has_fields or type(value) not in (list, tuple):
            return super().faults_in(value, where)
        found = [self.item.faults_in(item, f"{where}.{number}") for number, item in enumerate(value)]
        return self._shape([made for made, _ in found]), [fault for _, faults in found for fault in faults]

    def make(self, value: Any) -> Any:
        return self._shape([self.item.make(item) for item in value]) if self.has_fields else value

    def plain(self, value: Any) -> Any:
        return self._shape([self.item.plain(item) for item in value]) if self.has_fields else value

    def brief(self, value: Any) -> Any:
        return self._shape([self.item.brief(item) for item in value])


@frozen_by_position
class MapType(ArgType):
    """Values of one type by name."""

    item: ArgType

    def read(self, text: str) -> Any:
        from stoker.config.value_grammar import split_pairs  # noqa: PLC0415 - only maps as text should cost it

        return {key: self.item.read(part.text) for key, part in split_pairs(text).items()}

    def check(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict or any(type(key) is not str for key in value):
            message = f"expected a map with text keys, got {said(value)}"
            raise ValueError(message)
        return {_TEXT.check(key): self.item.check(item) for key, item in value.items()}

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.item.schema()}

    def describe(self) -> str:
        return f"map of {self.item.describe()}"

    def identity(self, value: Any, digest_of: Callable[[str], str]) -> Any:
        return {key: self.item.identity(item, digest_of) for key, item in value.items()}

    def paths(self, value: Any) -> list[str]:
        return [path for item in value.values() for path in self.item.paths(item)]

    def with_paths(self, value: Any, change: Callable[[str], str]) -> Any:
        return {key: self.item.with_paths(item, change) for key, item in value.items()}


@frozen_by_position
class EitherType(ArgType):
    """Text, or a list or fields in its place: the form of a value says which."""

    options: tuple[ArgType, ...]

    def read(self, text: str) -> Any:
        ends = text.strip()[:1] + text.strip()[-1:]
        return self._option({"[]": [], "{}": {}}.get(ends, text)).read(text)

    def check(self, value: Any) -> Any:
        made, faults = self.faults_in(value, "")
        if faults:
            raise ValueError("; ".join(fault_text(fault) for fault in faults))
        return made

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [option.schema() for option in self.options]}

    def describe(self) -> str:
        return " or ".join(option.describe() for option in self.options)

    def identity(self, value: Any, digest_of: Callable[[str], str]) -> Any:
        return self._option(value).identity(value, digest_of)

    def paths(self, value: Any) -> list[str]:
        return self._option(value).paths(value)

    def with_paths(self, value: Any, change: Callable[[str], str]) -> Any:
        return self._option(value).with_paths(value, change)

    @property
    def has_fields(self) -> bool:
        return any(option.has_fields for option in self.options)

    def faults_in(self, value: Any, where: str) -> tuple[Any, list[Diagnostic]]:
        option = self._option(value)
        if option.form is not _form_of(value):
            return None, [Diagnostic(where, f"expected {self.describe()}, got {said(value)}")]
        return option.faults_in(value, where)

    def make(self, value: Any) -> Any:
        return self._option(value).make(value)

    def plain(self, value: Any) -> Any:
        option = self._option(value)
        return option.plain(value) if option.form is _form_of(value) else value

    def brief(self, value: Any) -> Any:
        return self._option(value).brief(value)

    def _option(self, value: Any) -> ArgType:
        """Return the type that a value has the form of; the first one if it has the form of none."""
        form = _form_of(value)
        return next((option for option in self.options if option.form is form), self.options[0])


def _form_of(value: Any) -> type:
    if dataclasses.is_dataclass(value):
        return dict
    return list if type(value) is tuple else type(value)


def fault_text(fault: Diagnostic) -> str:
    """Return a fault inside a value as text: its place and its message."""
    where = fault.where.removeprefix(".")
    hint = f" ({fault.hint})" if fault.hint else ""
    return f"{where}: {fault.message}{hint}" if where else f"{fault.message}{hint}"


def said(value: Any) -> str:
    """Return a value that was given, shortened."""
    # A list or a map may be nested as deep as can be read, or be megabytes long.
    return repr(value) if isinstance(value, str | int | float) else reprlib.repr(value)


def _read_whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number.is_integer():
        message = f"{text!r} is not a whole number"
        raise ValueError(message)
    if abs(number) > EXACT_FLOATS:
        message = f"{text!r} is too large to be read exactly; write all its digits"
        raise ValueError(message)
    return int(number)


RecordOf = Callable[[Any], ArgType]


def arg_type_of(annotation: Any, record_of: RecordOf | None = None) -> ArgType:
    """Turn an annotation into an argument type; `TypeError` if it is not one of ours.

    With `record_of`, a dataclass may be an item of a tuple, or one of several types.
    """
    plain = _PLAIN.get(annotation)
    if plain is not None:
        return plain
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ChoiceType(inner)
    if origin in (types.UnionType, typing.Union):
        made = _union_of(inner, record_of)
    elif origin is list and len(inner) == 1:
        made = ListType(arg_type_of(inner[0]), as_tuple=False)
    elif origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        made = ListType(_part_of(inner[0], record_of), as_tuple=True)
    elif origin is dict and len(inner) == 2 and inner[0] is str:
        made = MapType(arg_type_of(inner[1]))
    else:
        made = None
    if made is not None:
        return made
    if dataclasses.is_dataclass(annotation):
        message = f"a record such as {annotation!r} stands by itself or in a tuple, not in a map or beside null"
        raise TypeError(message)
    message = f"{annotation!r} is not a supported type of an argument"
    raise TypeError(message)


def _union_of(inner: tuple[Any, ...], record_of: RecordOf | None) -> ArgType | None:
    """Return the type of a value or null, or of values that their forms tell apart."""
    if type(None) in inner:
        others = [item for item in inner if item is not type(None)]
        return OptionalType(arg_type_of(others[0])) if len(others) == 1 else None
    options = tuple(_part_of(item, record_of) for item in inner)
    forms = {option.form for option in options} - {object}
    return EitherType(options) if len(forms) == len(options) else None


def _part_of(annotation: Any, record_of: RecordOf | None) -> ArgType:
    if record_of is not None and dataclasses.is_dataclass(annotation):
        return record_of(annotation)
    return arg_type_of(annotation, record_of)


_TEXT = StrType()
_PLAIN: dict[Any, ArgType] = {
    bool: BoolType(),
    int: IntType(),
    float: FloatType(),
    str: _TEXT,
    InputPath: StrType(is_path=True),
    PathOrName: StrType(may_be_path=True),
    Plain: PlainType(),
    Size: MeasureType(parse_size, "size", "8G"),
    Duration: MeasureType(parse_duration, "duration", "30m"),
}
