"""Arguments of stages and recipes: declared as a dataclass, checked as a whole, every fault at once.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class SplitArgs:
        test_percent: int = arg(25, help="share of rows held out", ge=1, le=90)

A field is part of the identity of the work unless it says `runtime=True` (threads, verbosity). A field may be such a
dataclass itself (`model: GbtShape = arg(GbtShape())`): its arguments have dotted names, `model.depth`, and values are
plain nested maps everywhere but in the args object.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from stoker.config.values import NOTHING, DeclaredLeaf, Schema
from stoker.core.errors import Diagnostic, InvalidArgs
from stoker.core.frozen import changed, frozen, frozen_by_position
from stoker.core.text import did_you_mean_path
from stoker.engine.arg_types import ArgType, ListType, OptionalType, arg_type_of, fault_text, said

# Limits of a number: declared with an argument, checked with its value, written into its schema.


@frozen
class Bounds:
    """Limits of a number; an item that is not a number has none."""

    ge: float | None = None
    le: float | None = None
    gt: float | None = None
    lt: float | None = None

    def check(self, value: Any) -> None:
        """Raise `ValueError` naming the limit that does not hold."""
        if type(value) not in (int, float):
            return
        ge, le, gt, lt = self.ge, self.le, self.gt, self.lt
        is_within = (ge is None or value >= ge) and (le is None or value <= le)
        if is_within and (gt is None or value > gt) and (lt is None or value < lt):
            return
        for limit, word, holds in (
            (self.ge, "at least", operator.ge),
            (self.gt, "more than", operator.gt),
            (self.le, "at most", operator.le),
            (self.lt, "less than", operator.lt),
        ):
            # NaN compares false with every limit, so it is within none.
            if limit is not None and not holds(value, limit):
                message = f"must be {word} {limit}, got {value}"
                raise ValueError(message)

    def within(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a JSON Schema with the limits on the numbers that it describes, however deep they stand."""
        if "anyOf" in schema:
            return {**schema, "anyOf": [self.within(one) for one in schema["anyOf"]]}
        for inner in ("items", "additionalProperties"):
            if isinstance(schema.get(inner), dict):
                return {**schema, inner: self.within(schema[inner])}
        if schema.get("type") not in ("integer", "number"):
            return schema
        names = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
        limits = {names[name]: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {**schema, **limits}


REQUIRED: Any = dataclasses.MISSING


def arg(  # noqa: PLR0913 - a declaration says everything at once
    default: Any = REQUIRED,
    *,
    help: str = "",
    runtime: bool = False,
    read_first: bool = False,
    each: bool = False,
    measured_on: bool = False,
    aliases: Sequence[str] = (),
    later: bool = False,
    ge: float | None = None,
    le: float | None = None,
    gt: float | None = None,
    lt: float | None = None,
) -> Any:
    """Declare one argument of a dataclass: its default, help and limits.

    Files that are `read_first`, as a program's code is, may change while the work runs. A folder that is for `each`
    trial is written to: where several trials name one, each gets its own below it. What is `measured_on` decides what
    the metrics are taken from, as held-out data does: trials that differ in it are not ranked against each other.
    `aliases` are other words for it, which the message about an unknown argument answers with its name. One that was
    declared `later` than results were made is no part of an identity while it has its default, so that keys stay.
    """
    bounds = Bounds(ge=ge, le=le, gt=gt, lt=lt)
    metadata = {
        "help": help,
        "runtime": runtime,
        "read_first": read_first,
        "each": each,
        "measured_on": measured_on,
        "aliases": tuple(aliases),
        "later": later,
        "bounds": bounds,
    }
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
    is_read_first: bool = False
    is_each: bool = False
    is_measured_on: bool = False
    aliases: tuple[str, ...] = ()
    is_later: bool = False

    def is_identity(self, value: Any) -> bool:
        """Return True if a value is part of an identity."""
        return not self.is_runtime and not self.is_unchanged(value)

    def is_unchanged(self, value: Any) -> bool:
        """Return True if a value means the same as its absence did before this argument was declared."""
        return self.is_later and value == self.default

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    def check(self, value: Any) -> Any:
        """Return the normal form of a value; `ValueError` says what is wrong with it."""
        value = self.type.check(value)
        for item in () if isinstance(self.type, RecordType) else _items_of(value):
            self.bounds.check(item)
        return value

    def read(self, text: str) -> Any:
        """Turn what a person typed into a value in its normal form; `ValueError` says what would be right."""
        return self.check(self.type.read(text))

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
    """The declared arguments of one stage or recipe, or of one record among them."""

    def __init__(self, of: type | None, *, _around: tuple[type, ...] = ()) -> None:
        self.type = of
        self.specs: dict[str, ArgSpec] = {}
        if of is None:
            return
        if not dataclasses.is_dataclass(of):
            message = f"{of!r} is not a dataclass: arguments are declared as one"
            raise TypeError(message)
        if of in _around:
            message = f"{of.__name__} contains itself"
            raise TypeError(message)
        hints = typing.get_type_hints(of)
        for field in dataclasses.fields(of):
            try:
                self.specs[field.name] = _spec_of(field, hints[field.name], (*_around, of))
            except (TypeError, ValueError) as error:
                message = f"argument {field.name} of {of.__name__}: {error}"
                raise TypeError(message) from None

    def build(self, given: Mapping[str, Any], *, owner: str) -> Any:
        """Make the args object from values; every fault in one `InvalidArgs`."""
        values, faults = self.check(given, owner=owner)
        if faults:
            raise InvalidArgs(_headline(owner, faults), faults=tuple(faults), hint=f"stoker recipes show {owner}")
        return self.make(values)

    def check(self, given: Mapping[str, Any], *, owner: str) -> tuple[dict[str, Any], list[Diagnostic]]:
        """Check values against the declaration: normal forms, defaults filled, and all faults."""
        faults = []
        values: dict[str, Any] = {}
        for name in given:
            if name not in self.specs:
                leaves = dict(self.leaves())
                aliases = {path: spec.aliases for path, spec in leaves.items()}
                hint = did_you_mean_path(str(name), list(leaves), aliases) or self._known()
                faults.append(Diagnostic(f"{owner}.{name}", "unknown argument", hint))
        for name, spec in self.specs.items():
            value, found = _checked(spec, given.get(name, REQUIRED), f"{owner}.{name}")
            faults += found
            if not found:
                values[name] = value
        return values, faults

    def read(self, texts: Mapping[str, str], *, owner: str) -> tuple[dict[str, Any], list[Diagnostic]]:
        """Read `key=value` texts by the declared types. Unknown names stay texts, for `check` to refuse."""
        leaves = dict(self.leaves())
        values: dict[str, Any] = {}
        faults = []
        for name, text in texts.items():
            spec = leaves.get(name) or self.specs.get(name)
            try:
                value = spec.type.read(text) if spec else text
            except ValueError as error:
                faults.append(Diagnostic(f"{owner}.{name}", str(error)))
            else:
                _put(values, name.split(".") if name in leaves else [name], value)
        return values, faults

    def leaves(self) -> Iterator[tuple[str, ArgSpec]]:
        """Return every argument that has a value of its own by its dotted name, in declared order."""
        for name, spec in self.specs.items():
            if isinstance(spec.type, RecordType):
                for inner, leaf in spec.type.args.leaves():
                    yield f"{name}.{inner}", changed(leaf, is_runtime=True) if spec.is_runtime else leaf
            else:
                yield name, spec

    def declared(self) -> Schema:
        """Return the arguments as a configuration knows them."""
        return Schema(
            leaves={
                path: DeclaredLeaf(
                    path=path,
                    read=spec.read,
                    check=spec.check,
                    says=spec.type.describe(),
                    faults_in=functools.partial(_faults_in, spec.type) if spec.type.has_fields else None,
                    default=NOTHING if spec.is_required else _copy_of(spec.default),
                    is_runtime=spec.is_runtime,
                    is_list=_is_list(spec.type),
                    aliases=spec.aliases,
                )
                for path, spec in self.leaves()
            }
        )

    def make(self, values: Mapping[str, Any]) -> Any:
        """Make the args object, and the records in it, from checked values."""
        if self.type is None:
            return None
        return self.type(**{name: self.specs[name].type.make(value) for name, value in values.items()})

    def values_of(self, args: Any) -> dict[str, Any]:
        """Return an args object as a plain map, in declared order; records in it are maps too."""
        return {name: spec.type.plain(getattr(args, name)) for name, spec in self.specs.items()}

    def identity(self, values: Mapping[str, Any], digest_of: Callable[[str], str]) -> dict[str, Any]:
        """Return what enters the key: identity arguments only, each path replaced by the digest of its content."""
        return {
            name: spec.type.identity(values[name], digest_of)
            for name, spec in self.specs.items()
            if spec.is_identity(values[name])
        }

    def nested_runtime(self) -> tuple[str, ...]:
        """Return the dotted paths of leaves that are no part of the identity, though the record around them is."""
        return tuple(
            f"{name}.{inner}"
            for name, spec in self.specs.items()
            if isinstance(spec.type, RecordType) and not spec.is_runtime
            for inner in (
                *(own for own, of in spec.type.args.specs.items() if of.is_runtime),
                *spec.type.args.nested_runtime(),
            )
        )

    def measured_on(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those checked values that decide what the metrics are taken from."""
        return {
            name: values[name]
            for name, spec in self.specs.items()
            if spec.is_measured_on and not spec.is_unchanged(values[name])
        }

    def paths_in(self, values: Mapping[str, Any]) -> list[str]:
        """Return every input path among the values."""
        return [path for name, spec in self.specs.items() for path in spec.type.paths(values[name])]

    def changed_reads(
        self,
        values: Mapping[str, Any],
        identity: Mapping[str, Any],
        digest_of: Callable[[str], str],
        *,
        first: bool = False,
    ) -> list[str]:
        """Return the input paths among the values that no longer hold what an identity says: those read all along.

        With `first`, those that are read first, which matter when the work begins and not any more when it ends.
        """
        changed_paths: list[str] = []
        for name, spec in self.specs.items():
            if (
                not spec.is_identity(values[name])
                or spec.is_read_first is not first
                or not spec.type.paths(values[name])
            ):
                continue
            now = spec.type.identity(values[name], digest_of)
            if now != identity[name]:
                changed_paths += _paths_that_differ(spec.type.identity(values[name], _Path), identity[name], now)
        return changed_paths

    def with_paths(self, given: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
        """Return values with changed input paths. Missing or invalid values stay as they are, for `check` to report."""
        values = dict(given)
        for name, spec in self.specs.items():
            if name not in values:
                continue
            if isinstance(spec.type, RecordType):
                values[name] = spec.type.with_paths(values[name], change)
            else:
                with suppress(ValueError):
                    values[name] = spec.type.with_paths(spec.type.check(values[name]), change)
        return values

    def schema(self) -> dict[str, Any]:
        """Describe the arguments as JSON Schema."""
        return {
            "type": "object",
            "properties": {name: spec.schema() for name, spec in self.specs.items()},
            "required": [name for name, spec in self.specs.items() if spec.is_required],
            "additionalProperties": False,
        }

    def prefill(self, overlay: Mapping[str, Any]) -> dict[str, Any]:
        """Return a filled-in example: the overlay wins, then defaults, then a placeholder naming the type."""
        filled: dict[str, Any] = {}
        for name, spec in self.specs.items():
            if isinstance(spec.type, RecordType):
                filled[name] = spec.type.args.prefill(spec.type.plain(overlay.get(name, {})))
            else:
                instead = f"<{spec.type.describe()}>" if spec.is_required else spec.default
                filled[name] = overlay.get(name, instead)
        return filled

    def with_defaults(self, values: Mapping[str, Any]) -> ArgsSchema:
        """Return the same arguments with other defaults; every one has a value among them."""
        made = ArgsSchema(None)
        made.type = self.type
        for name, spec in self.specs.items():
            of = (
                RecordType(spec.type.args.with_defaults(values[name]))
                if isinstance(spec.type, RecordType)
                else spec.type
            )
            made.specs[name] = changed(spec, type=of, default=values[name])
        return made

    def _known(self) -> str:
        return f"known: {', '.join(dict(self.leaves()))}" if self.specs else "it takes none"


@frozen_by_position
class RecordType(ArgType):
    """Arguments with names of their own, declared as a dataclass: by itself, or in a tuple."""

    form = dict
    args: ArgsSchema

    @property
    def has_fields(self) -> bool:
        return True

    def read(self, text: str) -> Any:
        if text.lstrip().startswith("{"):
            from stoker.config.value_grammar import split_pairs  # noqa: PLC0415 - only records as text should cost it

            values, faults = self.args.read({name: part.text for name, part in split_pairs(text).items()}, owner="")
            if faults:
                raise ValueError("; ".join(fault_text(fault) for fault in faults))
            return values
        fields = ", ".join(f".{path}" for path, _ in self.args.leaves())
        message = f"{text!r} can't be read as a record; set its fields one by one: {fields}"
        raise ValueError(message)

    def check(self, value: Any) -> dict[str, Any]:
        values, faults = self.faults_in(value, "")
        if faults:
            raise ValueError("; ".join(str(fault).removeprefix(".") for fault in faults))
        return values

    def faults_in(self, value: Any, where: str) -> tuple[dict[str, Any], list[Diagnostic]]:
        """Check a map, or a record itself, and give every fault with its dotted place."""
        plain = self.plain(value)
        if not isinstance(plain, Mapping):
            return {}, [Diagnostic(where, f"expected fields of {self.describe()}, got {said(value)}")]
        return self.args.check(plain, owner=where)

    def schema(self) -> dict[str, Any]:
        return self.args.schema()

    def describe(self) -> str:
        return f"record ({', '.join(self.args.specs)})"

    def identity(self, value: Any, digest_of: Callable[[str], str]) -> Any:
        return self.args.identity(value, digest_of)

    def paths(self, value: Any) -> list[str]:
        return self.args.paths_in(value)

    def with_paths(self, value: Any, change: Callable[[str], str]) -> Any:
        plain = self.plain(value)
        return self.args.with_paths(plain, change) if isinstance(plain, Mapping) else value

    def make(self, value: Any) -> Any:
        return self.args.make(value)

    def plain(self, value: Any) -> Any:
        return self.args.values_of(value) if type(value) is self.args.type else value

    def brief(self, value: Any) -> Any:
        specs = self.args.specs
        return {name: specs[name].type.brief(one) for name, one in value.items() if one != specs[name].default}


def _spec_of(field: dataclasses.Field[Any], annotation: Any, around: tuple[type, ...]) -> ArgSpec:
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    bounds = field.metadata.get("bounds", Bounds())
    is_record = isinstance(annotation, type) and dataclasses.is_dataclass(annotation)

    def record_of(one: type) -> ArgType:
        return RecordType(ArgsSchema(one, _around=around))

    of = record_of(annotation) if is_record else arg_type_of(annotation, record_of)
    if isinstance(of, RecordType):
        if bounds != Bounds():
            message = "limits belong to the fields of a record, not to the record"
            raise TypeError(message)
        # Without a default of its own it has its fields' defaults, as long as every field has one.
        if default is not REQUIRED or all(not spec.is_required for spec in of.args.specs.values()):
            default = of.check({} if default is REQUIRED else default)
            of = RecordType(of.args.with_defaults(default))
    spec = ArgSpec(
        name=field.name,
        type=of,
        default=default,
        help=field.metadata.get("help", ""),
        is_runtime=field.metadata.get("runtime", False),
        bounds=bounds,
        is_read_first=field.metadata.get("read_first", False),
        is_each=field.metadata.get("each", False),
        is_measured_on=field.metadata.get("measured_on", False),
        aliases=field.metadata.get("aliases", ()),
        is_later=field.metadata.get("later", False),
    )
    # In its normal form, or a default of 1 and a given 1 would be two values of a float field.
    return spec if spec.is_required else changed(spec, default=spec.check(default))


def _faults_in(of: ArgType, value: Any) -> list[Diagnostic]:
    return of.faults_in(value, "")[1]


def _checked(spec: ArgSpec, value: Any, where: str) -> tuple[Any, list[Diagnostic]]:
    """Return the normal form of a value, or of the default where none is given, and all that is wrong with it."""
    if isinstance(spec.type, RecordType):
        return spec.type.faults_in({} if value is REQUIRED else value, where)
    if value is REQUIRED:
        if spec.is_required:
            return None, [Diagnostic(where, f"is required ({spec.type.describe()})", spec.help)]
        return _copy_of(spec.default), []
    if spec.type.has_fields:
        return spec.type.faults_in(value, where)
    try:
        return spec.check(value), []
    except ValueError as error:
        return None, [Diagnostic(where, str(error))]


class _Path(str):
    """An input path that stands where an identity has the digest of its content."""

    __slots__ = ()


def _paths_that_differ(shape: Any, before: Any, now: Any) -> Iterator[str]:
    """Yield each `_Path` of an identity's shape for which two such identities have different digests."""
    if isinstance(shape, _Path):
        if before != now:
            yield str(shape)
    elif isinstance(shape, Mapping):
        for key, inner in shape.items():
            yield from _paths_that_differ(inner, before[key], now[key])
    elif isinstance(shape, list | tuple):
        for inners in zip(shape, before, now, strict=True):
            yield from _paths_that_differ(*inners)


def _is_list(of: ArgType) -> bool:
    return isinstance(of.inner if isinstance(of, OptionalType) else of, ListType)


def _copy_of(default: Any) -> Any:
    return _copy(default) if isinstance(default, list | dict) else default


def _put(values: dict[str, Any], steps: list[str], value: Any) -> None:
    for step in steps[:-1]:
        values = values.setdefault(step, {})
    values[steps[-1]] = value


def _items_of(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else (value,)


def _headline(owner: str, faults: Iterable[Diagnostic]) -> str:
    listed = list(faults)
    return f"{listed[0]}" if len(listed) == 1 else f"{len(listed)} errors in the arguments of {owner}"
