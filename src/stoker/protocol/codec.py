"""Messages as bytes: JSON as every file and stream of ours writes it, non-finite numbers tagged (`core.jsontext`).

pydantic's own writer and reader are several times quicker and do all but the tags; those take the longer way.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, Self, TypeVar, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import InitErrorDetails
from pydantic_core import core_schema as schemas
from pydantic_core.core_schema import CoreSchema, no_info_before_validator_function

from stoker.core.frozen import defaults_of, field_names
from stoker.core.jsontext import dumps, loads
from stoker.core.text import whole_number

# The protocol's version, and what all requests and responses have in common.
#
# A coordinator supports its own version and the one before; a header of each request names the client's version.
# Readers ignore unknown fields; a field never changes its meaning within a version. In version 2, workers send results
# and checkpoints as trees, not as archives.

VERSION = 2
OLDEST = 1
"""The oldest supported version."""
VERSION_HEADER = "X-Stoker-Protocol"
TOKEN_HEADER = "X-Operator-Token"  # noqa: S105 - the header's name


MOST_ENTRIES = 20_000
"""Of one map whose values are checked."""
_MOST_UNKNOWN = 100
"""Of the unknown fields of a message, those that are named."""
_STOPPING = frozenset({"tuple", "list", "set", "frozenset"})
_NUMBERS = frozenset({"int", "float", "bool"})


def _bounded(schema: Any) -> Any:
    """Return a pydantic schema that reads numbers by our rule, and reports few errors per sequence or map.

    By default pydantic accepts "1" and true as numbers, and 1 as true.
    """
    if isinstance(schema, list):
        return [_bounded(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: part if key in ("metadata", "default", "cls") else _bounded(part) for key, part in schema.items()}
    if made.get("type") in _STOPPING:
        made["fail_fast"] = True
    if made.get("type") in _NUMBERS:
        made["strict"] = True
    if made.get("type") == "int":
        return no_info_before_validator_function(_as_whole, made)
    if made.get("type") == "dict" and made.get("values_schema", {}).get("type", "any") != "any":
        return no_info_before_validator_function(_check_entries, made)
    return made


def _as_whole(value: Any) -> Any:
    if type(value) is int:
        return value
    number = whole_number(value)
    return value if number is None else number


def _check_entries(value: Any) -> Any:
    if isinstance(value, Mapping) and len(value) > MOST_ENTRIES:
        message = f"more than {MOST_ENTRIES} entries"
        raise ValueError(message)
    return value


class _Bounded(BaseModel):
    """A message that reports few errors, however much of it is invalid: each error takes a kilobyte.

    A sequence is refused at its first invalid element, a map if it has too many entries. The validator is built on
    first use, since a command uses ten of a hundred messages and building all takes 90 ms. Several threads may use one
    for the first time together: pydantic locks since 2.14.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        made: CoreSchema = _bounded(handler(source))
        return made


class WireMessage(_Bounded):
    """A message between programs. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants", defer_build=True)


class StrictRequest(_Bounded):
    """A request of a user's program. Unknown fields are refused: a misspelt one would have no effect."""

    # Allowed at first, so that a million of them do not become a million errors; refused below.
    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        ser_json_inf_nan="constants",
        defer_build=True,
        json_schema_extra={"additionalProperties": False},
    )

    @model_validator(mode="after")
    def _refuse_unknown(self) -> Self:
        if self.__pydantic_extra__:
            raise _unknown(type(self).__name__, self.__pydantic_extra__)
        return self


def _unknown(title: str, names: Iterable[str]) -> ValidationError:
    found = [InitErrorDetails(type="extra_forbidden", loc=(name,), input=None) for name in list(names)[:_MOST_UNKNOWN]]
    return ValidationError.from_exception_data(title, found)


class Checked:
    """Annotates a frozen class of `core` for use in messages: pydantic creates, checks and writes its objects.

    `limits` are field types that are stricter than those of the class. Fields `omitted_by_default` are written only if
    they differ from their default. Unknown fields are refused, unless it `is_open`. With `is_rechecked` false, an
    existing object is accepted as it is: it was checked when it was created.
    """

    def __init__(
        self,
        *,
        omitted_by_default: Collection[str] = (),
        is_rechecked: bool = True,
        is_open: bool = False,
        **limits: Any,
    ) -> None:
        self._omitted = omitted_by_default
        self._is_rechecked = is_rechecked
        self._is_open = is_open
        self._limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        hints = {**get_type_hints(source), **self._limits}
        defaults = defaults_of(source)
        # pydantic treats it as a dataclass, which it is except for its decorator.
        source.__dataclass_fields__ = {}
        fields = []
        for name in field_names(source):
            schema = handler.generate_schema(hints[name])
            if name in defaults:
                schema = schemas.with_default_schema(schema, default=defaults[name])
            omit_if = partial(operator.eq, defaults[name]) if name in self._omitted else None
            fields.append(schemas.dataclass_field(name, schema, serialization_exclude_if=omit_if))
        names = dict.fromkeys(field_names(source))
        made = schemas.dataclass_schema(
            source,
            schemas.dataclass_args_schema(source.__name__, fields),
            list(names),
            slots=True,
            revalidate_instances="always" if self._is_rechecked else "never",
            config=schemas.CoreConfig(ser_json_inf_nan="constants"),
        )

        def check(value: Any, validate: schemas.ValidatorFunctionWrapHandler) -> Any:
            checked = validate(value)
            if not self._is_open and isinstance(value, dict) and not names.keys() >= value.keys():
                raise _unknown(source.__name__, [name for name in value if name not in names])
            return checked

        return schemas.no_info_wrap_validator_function(check, _bounded(made))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(schema)
        if not self._is_open:
            handler.resolve_ref_schema(made)["additionalProperties"] = False
        return made


_ADAPTERS: list[TypeAdapter[Any]] = []


def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return the reader and writer of a type that is not a message; built on first use."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind, config=ConfigDict(ser_json_inf_nan="constants", defer_build=True))
    _ADAPTERS.append(adapter)
    return adapter


def build_messages() -> None:
    """Build the validators of all imported messages; for a process that uses most of them, in threads or forks."""
    for adapter in _ADAPTERS:
        adapter.rebuild()
    kinds: list[type[BaseModel]] = [_Bounded]
    for kind in kinds:
        kinds += kind.__subclasses__()
        # The web framework's derived classes are built at once, too.
        kind.model_config["defer_build"] = False
        kind.model_rebuild()


M = TypeVar("M", bound=BaseModel)
_SHOWN_FAULTS = 3


def to_json(message: BaseModel) -> bytes:
    """Return a message as JSON. A request omits default values: ten thousand jobs are a third smaller."""
    is_short = isinstance(message, StrictRequest)
    text = message.model_dump_json(exclude_defaults=is_short)
    if "NaN" in text or "Infinity" in text or '"$' in text:
        text = dumps(message.model_dump(mode="json", exclude_defaults=is_short))
    return text.encode()


def from_json(kind: type[M], data: bytes) -> M:
    """Read a message of a kind. Raises `ValueError` with a message of one line if it is invalid."""
    try:
        if b'"$' in data:
            return kind.model_validate(loads(data))
        if b"NaN" in data or b"Infinity" in data:
            # Non-finite numbers are tagged. Bare ones are invalid JSON, although pydantic accepts them.
            loads(data)
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise ValueError(said(error)) from None


def values_in(text: bytes, start: int = 0, end: int | None = None) -> int:
    """Return an upper estimate of the number of values in JSON text; punctuation inside strings counts as well."""
    return text.count(b"[", start, end) + text.count(b"{", start, end) + text.count(b",", start, end)


def alike(first: M, own: dict[str, Any]) -> M:
    """Return a copy of `first`, which was checked, with the fields in `own`, which are not checked here.

    For tens of thousands of messages whose own fields were checked elsewhere: takes a tenth of the time.
    """
    kind = type(first)
    made = kind.__new__(kind)
    _set(made, "__dict__", {**first.__dict__, **own})
    _set(made, "__pydantic_fields_set__", first.__pydantic_fields_set__)
    _set(made, "__pydantic_extra__", first.__pydantic_extra__)
    _set(made, "__pydantic_private__", None)
    return made


# Messages are frozen once created.
_set = object.__setattr__


def said(error: ValidationError) -> str:
    """Return the errors of a message in one line."""
    faults = [
        f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" if fault["loc"] else fault["msg"]
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    more = f" (and {len(faults) - _SHOWN_FAULTS} more)" if len(faults) > _SHOWN_FAULTS else ""
    return "; ".join(faults[:_SHOWN_FAULTS]) + more


# A `Range` header as our downloads send it: `bytes=START-` or `bytes=START-LAST`.

_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


def read_range(asked: str, size_bytes: int) -> tuple[int, int, bool]:
    """Return offset, length, and True if it is a part. An unknown form of range means the whole.

    A negative length: the range starts beyond the end.
    """
    match = _RANGE.fullmatch(asked.strip())
    if match is None:
        return 0, size_bytes, False
    start, last = int(match[1]), int(match[2]) if match[2] else size_bytes - 1
    if start >= size_bytes or last < start:
        return 0, -1, True
    return start, min(last, size_bytes - 1) - start + 1, True
