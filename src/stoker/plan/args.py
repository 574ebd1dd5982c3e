"""Arguments of stages and recipes: declared as a dataclass, checked as a whole, every fault at once.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class SplitArgs:
        test_percent: int = arg(25, help="share of rows held out", ge=1, le=90)

A field is part of the identity of the work unless it says `runtime=True` (threads, verbosity).
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stoker.model.errors import ArgsFaults, Fault
from stoker.model.frozen import changed, frozen
from stoker.model.suggest import did_you_mean
from stoker.plan.arg_types import ArgType, Bounds, arg_type_of

REQUIRED: Any = dataclasses.MISSING


def arg(  # noqa: PLR0913 - a declaration says everything at once
    default: Any = REQUIRED,
    *,
    help: str = "",
    runtime: bool = False,
    ge: float | None = None,
    le: float | None = None,
    gt: float | None = None,
    lt: float | None = None,
) -> Any:
    """Declare one argument of a dataclass: its default, help and limits."""
    metadata = {"help": help, "runtime": runtime, "bounds": Bounds(ge=ge, le=le, gt=gt, lt=lt)}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=functools.partial(_copy, default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def _copy(value: Any) -> Any:
    return value.copy()


@frozen
class ArgSpec:
    """One declared argument."""

    name: str
    type: ArgType
    default: Any
    help: str
    is_runtime: bool
    bounds: Bounds

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    def check(self, value: Any) -> Any:
        """Give the normal form of a value; `ValueError` says what is wrong with it."""
        value = self.type.check(value)
        for item in _items_of(value):
            self.bounds.check(item)
        return value

    def schema(self) -> dict[str, Any]:
        body = self.bounds.within(self.type.schema())
        if self.help:
            body["description"] = self.help
        if not self.is_required:
            body["default"] = self.default
        if self.is_runtime:
            body["x-runtime"] = True
        return body


class ArgsSchema:
    """The declared arguments of one stage or recipe."""

    def __init__(self, of: type | None) -> None:
        self.type = of
        self.specs: dict[str, ArgSpec] = {}
        if of is None:
            return
        if not dataclasses.is_dataclass(of):
            message = f"{of!r} is not a dataclass: arguments are declared as one"
            raise TypeError(message)
        hints = typing.get_type_hints(of)
        for field in dataclasses.fields(of):
            try:
                self.specs[field.name] = _spec_of(field, arg_type_of(hints[field.name]))
            except (TypeError, ValueError) as error:
                message = f"argument {field.name} of {of.__name__}: {error}"
                raise TypeError(message) from None

    def build(self, given: Mapping[str, Any], *, owner: str) -> Any:
        """Make the args object from values; every fault in one `ArgsFaults`."""
        values, faults = self.check(given, owner=owner)
        if faults:
            raise ArgsFaults(_headline(owner, faults), faults=tuple(faults), hint=f"stoker recipes show {owner}")
        return self.make(values)

    def check(self, given: Mapping[str, Any], *, owner: str) -> tuple[dict[str, Any], list[Fault]]:
        """Check values against the declaration: normal forms, defaults filled, and all faults."""
        faults = []
        values: dict[str, Any] = {}
        for name in given:
            if name not in self.specs:
                hint = did_you_mean(name, self.specs) or self._known()
                faults.append(Fault(f"{owner}.{name}", "there is no such argument", hint))
        for name, spec in self.specs.items():
            if name in given:
                try:
                    values[name] = spec.check(given[name])
                except ValueError as error:
                    faults.append(Fault(f"{owner}.{name}", str(error)))
            elif spec.is_required:
                faults.append(Fault(f"{owner}.{name}", f"is required ({spec.type.describe()})", spec.help))
            else:
                values[name] = _copy(spec.default) if isinstance(spec.default, list | dict) else spec.default
        return values, faults

    def read(self, texts: Mapping[str, str], *, owner: str) -> tuple[dict[str, Any], list[Fault]]:
        """Read `key=value` texts by the declared types. Unknown names stay texts, for `check` to refuse."""
        values: dict[str, Any] = {}
        faults = []
        for name, text in texts.items():
            spec = self.specs.get(name)
            try:
                values[name] = spec.type.read(text) if spec else text
            except ValueError as error:
                faults.append(Fault(f"{owner}.{name}", str(error)))
        return values, faults

    def make(self, values: Mapping[str, Any]) -> Any:
        """Make the args object from checked values."""
        return self.type(**values) if self.type is not None else None

    def values_of(self, args: Any) -> dict[str, Any]:
        """Give an args object as a plain map, in declared order."""
        return {name: getattr(args, name) for name in self.specs}

    def identity(self, values: Mapping[str, Any], digest_of: Callable[[str], str]) -> dict[str, Any]:
        """Give what enters the key: identity arguments only, each path replaced by the digest of its content."""
        return {
            name: spec.type.identity(values[name], digest_of)
            for name, spec in self.specs.items()
            if not spec.is_runtime
        }

    def paths_in(self, values: Mapping[str, Any]) -> list[str]:
        """Give every input path among the values."""
        return [path for name, spec in self.specs.items() for path in spec.type.paths(values[name])]

    def schema(self) -> dict[str, Any]:
        """Describe the arguments as JSON Schema."""
        return {
            "type": "object",
            "properties": {name: spec.schema() for name, spec in self.specs.items()},
            "required": [name for name, spec in self.specs.items() if spec.is_required],
            "additionalProperties": False,
        }

    def prefill(self, overlay: Mapping[str, Any]) -> dict[str, Any]:
        """Give a filled-in example: the overlay wins, then defaults, then a placeholder naming the type."""
        return {
            name: overlay.get(name, f"<{spec.type.describe()}>" if spec.is_required else spec.default)
            for name, spec in self.specs.items()
        }

    def _known(self) -> str:
        return f"known: {', '.join(self.specs)}" if self.specs else "it takes none"


def _spec_of(field: dataclasses.Field[Any], of: ArgType) -> ArgSpec:
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    spec = ArgSpec(
        name=field.name,
        type=of,
        default=default,
        help=field.metadata.get("help", ""),
        is_runtime=field.metadata.get("runtime", False),
        bounds=field.metadata.get("bounds", Bounds()),
    )
    # In its normal form, or a default of 1 and a given 1 would be two values of a float field.
    return spec if spec.is_required else changed(spec, default=spec.check(default))


def _items_of(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else (value,)


def _headline(owner: str, faults: Iterable[Fault]) -> str:
    listed = list(faults)
    return f"{listed[0]}" if len(listed) == 1 else f"{len(listed)} faults in the arguments of {owner}"
