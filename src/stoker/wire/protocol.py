"""The protocol's version and what every request and answer has in common.

A coordinator speaks its own version and the one before; a header of every request says which one the other side
speaks. Readers pass over fields they do not know; a field never changes its meaning under one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails
from pydantic_core.core_schema import CoreSchema, no_info_before_validator_function

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


def _bounded(schema: Any) -> Any:
    """Return a schema of pydantic's whose sequences and maps make few faults."""
    if isinstance(schema, list):
        return [_bounded(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: part if key in ("metadata", "default", "cls") else _bounded(part) for key, part in schema.items()}
    if made.get("type") in _STOPPING:
        made["fail_fast"] = True
    if made.get("type") == "dict" and made.get("values_schema", {}).get("type", "any") != "any":
        return no_info_before_validator_function(_check_entries, made)
    return made


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


class Message(_Bounded):
    """What one program tells another. Unknown fields are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants", defer_build=True)


class Asked(_Bounded):
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
            names = list(self.__pydantic_extra__)[:_MOST_UNKNOWN]
            found = [InitErrorDetails(type="extra_forbidden", loc=(name,), input=None) for name in names]
            raise ValidationError.from_exception_data(type(self).__name__, found)
        return self


def build_messages() -> None:
    """Build every message that is imported: for a process that uses most of them, in threads or in forks of itself."""
    kinds: list[type[BaseModel]] = [_Bounded]
    for kind in kinds:
        kinds += kind.__subclasses__()
        # What the web framework makes of a message must not wait either.
        kind.model_config["defer_build"] = False
        kind.model_rebuild()
