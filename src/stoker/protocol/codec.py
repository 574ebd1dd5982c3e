"""Messages as bytes: JSON as every file and stream of ours writes it, non-finite numbers tagged (`core.jsontext`).

pydantic's own writer and reader are several times quicker and do all but the tags; those take the longer way.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
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

# The protocol's version and what every request and answer has in common.
#
# A coordinator speaks its own version and the one before; a header of every request says which one the other side
# speaks. Readers pass over fields they do not know; a field never changes its meaning under one version.

VERSION = 1
OLDEST = 1
"""The oldest version that is still understood."""
VERSION_HEADER = "X-Stoker-Protocol"
TOKEN_HEADER = "X-Operator-Token"  # noqa: S105 - the header's name


MOST_ENTRIES = 20_000
"""Of one map whose values are checked."""
_MOST_UNKNOWN = 100
"""Of the unknown fields of a message, those that are named."""
_STOPPING = frozenset({"tuple", "list", "set", "frozenset"})
_NUMBERS = frozenset({"int", "float", "bool"})


def _bounded(schema: Any) -> Any:
    """Return a schema of pydantic's that reads numbers by our rule, and whose sequences and maps make few faults.

    Of itself pydantic takes "1" and true for numbers, and 1 for true.
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
    number = whole_number(value)
    return value if number is None else number


def _check_entries(value: Any) -> Any:
    if isinstance(value, Mapping) and len(value) > MOST_ENTRIES:
        message = f"it has more than {MOST_ENTRIES} entries"
        raise ValueError(message)
    return value


class _Bounded(BaseModel):
    """A message whose faults stay few, however much is wrong with it: each one found costs a kilobyte.

    A sequence is refused at its first bad element, a map if it has too many entries. Its validator is built when it is
    first used, since a command uses ten of a hundred messages and building all takes 90 ms. Threads may use one for the
    first time at once: pydantic has a lock for that since 2.14.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        made: CoreSchema = _bounded(handler(source))
        return made


class WireMessage(_Bounded):
    """What one program tells another. Unknown fields are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants", defer_build=True)


class StrictRequest(_Bounded):
    """What a person's program asks for. Unknown fields are refused: a misspelt one would be silently without effect."""

    # Allowed at first, so that not each of a million becomes a fault; then refused, below.
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
    """Annotates a frozen class of `core`, so that messages may have it: pydantic makes, checks and writes its objects.

    `limits` are types of fields that say more than the class does. `hidden` fields do not travel. Unknown fields are
    refused. With `is_rechecked` false, an object is taken as it is: it was checked when it was made.
    """

    def __init__(self, *, hidden: Collection[str] = (), is_rechecked: bool = True, **limits: Any) -> None:
        self._hidden = hidden
        self._is_rechecked = is_rechecked
        self._limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        hints = {**get_type_hints(source), **self._limits}
        defaults = defaults_of(source)
        # pydantic takes it for a dataclass, which it is but for its decorator.
        source.__dataclass_fields__ = {}
        fields = []
        for name in field_names(source):
            schema = handler.generate_schema(hints[name])
            if name in defaults:
                schema = schemas.with_default_schema(schema, default=defaults[name])
            is_hidden = name in self._hidden
            fields.append(schemas.dataclass_field(name, schema, init=not is_hidden, serialization_exclude=is_hidden))
        names = {name: None for name in field_names(source) if name not in self._hidden}
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
            if isinstance(value, dict) and not names.keys() >= value.keys():
                raise _unknown(source.__name__, [name for name in value if name not in names])
            return checked

        return schemas.no_info_wrap_validator_function(check, _bounded(made))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(schema)
        handler.resolve_ref_schema(made)["additionalProperties"] = False
        return made


_ADAPTERS: list[TypeAdapter[Any]] = []


def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return what reads and writes objects that are no message; as a message it is built when it is first used."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind, config=ConfigDict(ser_json_inf_nan="constants", defer_build=True))
    _ADAPTERS.append(adapter)
    return adapter


def build_messages() -> None:
    """Build every message that is imported: for a process that uses most of them, in threads or in forks of itself."""
    for adapter in _ADAPTERS:
        adapter.rebuild()
    kinds: list[type[BaseModel]] = [_Bounded]
    for kind in kinds:
        kinds += kind.__subclasses__()
        # What the web framework makes of a message must not wait either.
        kind.model_config["defer_build"] = False
        kind.model_rebuild()


M = TypeVar("M", bound=BaseModel)
_SHOWN_FAULTS = 3


def to_json(message: BaseModel) -> bytes:
    """Write a message. Of what is asked for, what is as by default is left out: ten thousand jobs are a third less."""
    is_short = isinstance(message, StrictRequest)
    text = message.model_dump_json(exclude_defaults=is_short)
    if "NaN" in text or "Infinity" in text or '"$' in text:
        text = dumps(message.model_dump(mode="json", exclude_defaults=is_short))
    return text.encode()


def from_json(kind: type[M], data: bytes) -> M:
    """Read a message of a kind. Raises `ValueError`, in one line, for everything that is none."""
    try:
        if b'"$' in data:
            return kind.model_validate(loads(data))
        if b"NaN" in data or b"Infinity" in data:
            # Non-finite numbers come tagged. Bare they are no JSON, whatever pydantic makes of them.
            loads(data)
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise ValueError(said(error)) from None


def values_in(text: bytes, start: int = 0, end: int | None = None) -> int:
    """Return how many values a stretch of JSON may have, about; what stands in its texts is counted as well."""
    return text.count(b"[", start, end) + text.count(b"{", start, end) + text.count(b",", start, end)


def alike(first: M, own: dict[str, Any]) -> M:
    """Make another message: all as in `first`, which was checked, but for some fields, which are not checked here.

    For messages by the ten thousand whose own fields were checked elsewhere: a tenth of the time.
    """
    kind = type(first)
    made = kind.__new__(kind)
    _set(made, "__dict__", {**first.__dict__, **own})
    _set(made, "__pydantic_fields_set__", first.__pydantic_fields_set__)
    _set(made, "__pydantic_extra__", first.__pydantic_extra__)
    _set(made, "__pydantic_private__", None)
    return made


# Messages are frozen, as soon as they are made.
_set = object.__setattr__


def said(error: ValidationError) -> str:
    """Return what is wrong with a message in one line."""
    faults = [
        f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" if fault["loc"] else fault["msg"]
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    more = f" (and {len(faults) - _SHOWN_FAULTS} more)" if len(faults) > _SHOWN_FAULTS else ""
    return "; ".join(faults[:_SHOWN_FAULTS]) + more


# A `Range` header, as downloads of ours send it: `bytes=START-` or `bytes=START-LAST`.

_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


def read_range(asked: str, size_bytes: int) -> tuple[int, int, bool]:
    """Return where to begin, how much to give, and whether that is a part. Nothing we can read means the whole.

    A negative length: the range lies beyond the end.
    """
    match = _RANGE.fullmatch(asked.strip())
    if match is None:
        return 0, size_bytes, False
    start, last = int(match[1]), int(match[2]) if match[2] else size_bytes - 1
    if start >= size_bytes or last < start:
        return 0, -1, True
    return start, min(last, size_bytes - 1) - start + 1, True
