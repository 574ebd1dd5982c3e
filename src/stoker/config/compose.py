"""Composing: from files, the environment and overrides to one configuration, every fault at once.

Later wins: declared defaults, files in their order, the environment (`STOKER__a__b`), overrides in their order, and for
each trial the choices of its point. References are resolved once, after all of that. Every choice of every axis is
read before any point is made, so that a sweep with a mistake in it is refused without being expanded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from stoker.config.config_file import ConfigFiles
from stoker.config.file_set import ConfigGatherer, axes_in
from stoker.config.layers import LayeredTree, put_environment
from stoker.config.overrides import Override, OverrideApplier
from stoker.config.points import ResolvedReferences, TrialBase, Trials, faulty, finished
from stoker.config.positions import ConfigLayer, LayerValue, ValueOrigin, fault_at
from stoker.config.sweep import Axis, AxisValue, Sweep, SweepPoint
from stoker.config.typed_values import Vocabulary, check_resolved, typed
from stoker.config.values import ABSENT, NOTHING, Schema, found, without
from stoker.core.digests import Digest, digest_encoded, digest_value, encode
from stoker.core.errors import Diagnostic, InvalidConfig
from stoker.core.frozen import changeable, fresh, frozen
from stoker.core.jsontext import dumps
from stoker.core.text import lazy_pattern

# Fingerprints of configurations.
#
# `identity_fingerprint` identifies a trial: everything that affects its result, and nothing about how it is run
# (threads, verbosity) or noted beside it. `full_fingerprint` covers all of it. Both are digests of the canonical
# encoding, so types count (1, 1.0, "1" and true are four values, and so are NaN, infinity, "inf" and null), the order
# of keys does not, and neither do the layers that the values came from.

IDENTITY: Final = "config-identity"
FULL: Final = "config-full"


def identity_fingerprint(values: Mapping[str, Any], schema: Schema) -> Digest:
    """Digest every leaf but those that are declared to be about running."""
    return digest_value(IDENTITY, _without(dict(values), _runtime_steps(schema)))


def full_fingerprint(values: Mapping[str, Any], notes: Mapping[str, Any]) -> Digest:
    """Digest everything, notes included."""
    return digest_value(FULL, {"values": dict(values), "notes": dict(notes)})


class TrialFingerprints:
    """Identity fingerprints of many trials that share most of their values with one base.

    Values that a trial shares with the base as the same object are not encoded again. The result is that of
    `identity_fingerprint`.
    """

    def __init__(self, base: Mapping[str, Any], schema: Schema) -> None:
        self._runtime = _runtime_steps(schema)
        self._touched = {steps[0] for steps in self._runtime}
        self._base = dict(base)
        self._chunks = {key: self._chunk(key, value) for key, value in base.items()}
        self._order = sorted(self._chunks, key=str.encode)

    def identity(self, values: Mapping[str, Any]) -> Digest:
        """Digest one trial."""
        base, chunks = self._base, self._chunks
        order = self._order if values.keys() == base.keys() else sorted(values, key=str.encode)
        parts = [
            chunks[key] if key in base and values[key] is base[key] else self._chunk(key, values[key]) for key in order
        ]
        wanted = [part for part in parts if part]
        return digest_encoded(IDENTITY, b"m%d:%b" % (len(wanted), b"".join(wanted)))

    def _chunk(self, key: str, value: Any) -> bytes:
        """Encode a key with its value, as in an encoded map; nothing if all of it is about running."""
        if key in self._touched:
            left = _without({key: value}, self._runtime)
            if not left:
                return b""
            value = left[key]
        return encode(key) + encode(value)


def _runtime_steps(schema: Schema) -> list[list[str]]:
    return [path.split(".") for path, declared in schema.leaves.items() if declared.is_runtime]


def _without(values: dict[str, Any], paths: list[list[str]]) -> dict[str, Any]:
    for steps in paths:
        values = without(values, steps)
    return values


# A composed configuration: its values, their origins, and the values of each trial of its sweep.

Options = tuple[tuple[str, str], ...]
"""Options of groups that a point chooses."""


@frozen
class ConfigRow:
    """One leaf, for people to see."""

    path: str
    value: Any
    origin: ValueOrigin
    is_note: bool = False


@changeable
class ComposedConfig:
    """One composed configuration. Its maps and lists are shared with its trials: they must not be changed."""

    schema: Schema
    values: dict[str, Any]
    """Nested plain maps, typed and resolved; of a sweep, the values that all its trials start from."""
    origins: Mapping[str, tuple[LayerValue, ...]]
    """For each leaf its value in each layer, the winner last; a deleted leaf ends with `NOTHING`."""
    notes: Mapping[str, Any]
    """Leaves beyond a closed schema, by their path: kept and shown, not part of the identity."""
    sweep: Sweep | None
    groups: Mapping[str, tuple[str, ...]]
    """The chosen options, by group."""
    read_from_environment: Mapping[str, Digest]
    """Variables that references read, each with a digest of its value."""
    environment_leaves: frozenset[str]
    """Leaves that contain the value of such a variable."""
    _trials: Trials
    _swept_groups: frozenset[str]
    _variant: Callable[[Options], ComposedConfig]
    _variants: dict[Options, ComposedConfig] = fresh(factory=dict)
    _fingerprints: TrialFingerprints | None = None

    def at(self, point: SweepPoint) -> dict[str, Any]:
        """Return the values of one trial. Raises `InvalidConfig` if only this point's combination is wrong."""
        if not self._swept_groups:
            return self._trials.at(point.choices)
        base, choices = self._split(point)
        return base._trials.at(choices)  # noqa: SLF001 - it is one of us

    def identity(self) -> Digest:
        """Return the identity without its sweep."""
        return identity_fingerprint(self.values, self.schema)

    def trials(self, points: Iterator[SweepPoint]) -> Iterator[tuple[SweepPoint, dict[str, Any], Digest]]:
        """Yield points with their values and identities."""
        for point in points:
            values = self.at(point)
            yield point, values, self._identities.identity(values)

    def full(self) -> Digest:
        """Digest everything, notes and leaves about running included."""
        return full_fingerprint(self.values, self.notes)

    def explain(self, path: str, point: SweepPoint | None = None) -> dict[str, tuple[LayerValue, ...]]:
        """Return all candidates of a leaf, or of all leaves of a branch; empty if no layer sets it.

        With a point, its choices come last.
        """
        base = self
        choices: Mapping[str, AxisValue] = {}
        if point is not None:
            base, listed = self._split(point)
            choices = dict(listed)
        candidates = {leaf: stack for leaf, stack in base.origins.items() if _is_at(leaf, path)}
        for leaf, choice in choices.items():
            if _is_at(leaf, path):
                origin = ValueOrigin(layer=ConfigLayer.SWEEP, where=f"{leaf}={choice.text}")
                candidates[leaf] = (*candidates.get(leaf, ()), LayerValue(origin=origin, value=choice.value))
        return candidates

    def place_of(self, path: str) -> ValueOrigin | None:
        """Return the place in a file that has a value, or a part of one; None if it is not from a file."""
        axes = {axis.path: axis for axis in axes_in(self.sweep)} if self.sweep is not None else {}
        steps = path.split(".")
        for count in range(len(steps), 0, -1):
            leaf = ".".join(steps[:count])
            origin = axes[leaf].origin if leaf in axes else None
            if origin is None and leaf in self.origins:
                origin = self.origins[leaf][-1].place(steps[count:])
            if origin is not None:
                return origin if origin.line else None
        return None

    def rows(self) -> list[ConfigRow]:
        """Return every leaf with its value and the winning origin, in the order of the layers."""
        rows = []
        for path, stack in self.origins.items():
            if stack[-1].value is NOTHING:
                continue
            is_note = path in self.notes
            value = self.notes[path] if is_note else found(self.values, path.split("."))
            if value is not ABSENT:
                rows.append(ConfigRow(path=path, value=value, origin=stack[-1].origin, is_note=is_note))
        return rows

    def record(self) -> dict[str, Any]:
        """Return everything as plain data, for a file beside the results."""
        return {
            "values": self.values,
            "notes": dict(self.notes),
            "groups": {group: list(options) for group, options in self.groups.items()},
            "environment": dict(self.read_from_environment),
            "origins": {path: [_told(candidate) for candidate in stack] for path, stack in self.origins.items()},
        }

    def to_yaml(self) -> str:
        """Format the values as YAML that reads back as the same values."""
        return to_yaml(self.values)

    def to_json(self) -> str:
        """Format the values as JSON, numbers that are not finite tagged."""
        return to_json(self.values)

    @property
    def _identities(self) -> TrialFingerprints:
        if self._fingerprints is None:
            self._fingerprints = TrialFingerprints(self.values, self.schema)
        return self._fingerprints

    def _split(self, point: SweepPoint) -> tuple[ComposedConfig, list[tuple[str, AxisValue]]]:
        """Return the configuration with a point's groups chosen, and the rest of its choices."""
        groups = tuple((path, choice.text) for path, choice in point.choices if path in self._swept_groups)
        rest = [(path, choice) for path, choice in point.choices if path not in self._swept_groups]
        if not groups:
            return self, rest
        if groups not in self._variants:
            self._variants[groups] = self._variant(groups)
        return self._variants[groups], rest


def _told(candidate: LayerValue) -> dict[str, Any]:
    body: dict[str, Any] = {"layer": str(candidate.origin.layer), "from": str(candidate.origin)}
    return {**body, "deletes": True} if candidate.value is NOTHING else {**body, "value": candidate.value}


def _is_at(leaf: str, path: str) -> bool:
    return leaf == path or leaf.startswith(f"{path}.") or path.startswith(f"{leaf}.")


# So many choices of an axis are tried in advance where each means composing or resolving again.
_TRIED = 200


def compose(
    files: Sequence[str],
    overrides: Sequence[Override],
    schema: Schema,
    environment: Mapping[str, str],
    folder: str,
) -> ComposedConfig:
    """Compose one configuration. Files are named relative to `folder`.

    Raises `InvalidConfig` with everything that is wrong, or `LocalFile` for a file that isn't there.
    """
    request = _Request(files=files, overrides=overrides, schema=schema, environment=environment, folder=folder)
    composition = _Composition(request, {})
    composed = composition.run()
    if files or overrides:
        composition.try_groups()
    composition.refuse("in the configuration")
    return composed


@frozen
class _Request:
    files: Sequence[str]
    overrides: Sequence[Override]
    schema: Schema
    environment: Mapping[str, str]
    folder: str


class _Composition:
    """One pass over all layers, with an option fixed for each group that a sweep varies."""

    def __init__(self, request: _Request, fixed: Mapping[str, str]) -> None:
        self.faults: list[Diagnostic] = []
        self._request = request
        self._words = Vocabulary(request.schema)
        self._shelf = ConfigFiles(request.folder, self.faults)
        self._files = ConfigGatherer(self._shelf, request.files, request.overrides, request.schema.leaves, fixed)

    def run(self) -> ComposedConfig:
        """Compose, noting faults."""
        layers = self._files.layers()
        tree = LayeredTree(self._words, self.faults)
        tree.put_defaults()
        for layer in layers:
            tree.put_file(layer)
        put_environment(tree, self._request.environment)
        has_files = bool(self._request.files)
        overriding = OverrideApplier(tree, has_files=has_files, swept=self._files.swept_by_files)
        for override in self._files.setting:
            if type(override.value) is not Axis:
                overriding.apply(override)
            elif overriding.may_set(override, override.path, override.origin) and overriding.is_note(override.path):
                message = "is not part of the identity, so it can't be swept"
                hint = self._words.suggestion(override.path, [])
                self.faults.append(fault_at(override.origin, message, hint=hint, key=override.path))
        return self._finish(tree, tuple(overriding.notes))

    def refuse(self, where: str) -> None:
        """Raise if there is any fault, each once."""
        if self.faults:
            raise faulty(list(dict.fromkeys(self.faults)), where)

    def try_groups(self) -> None:
        """Compose once with each option of each swept group, and note what goes wrong."""
        axes = self._files.swept_groups(self._files.sweep)
        first = {path: axis.choices.at(0).text for path, axis in axes.items()}
        for path, axis in axes.items():
            for choice in islice(axis.choices, 1, _TRIED):
                variant = _Composition(self._request, first | {path: choice.text})
                variant.run()
                known = {(fault.where, fault.message) for fault in self.faults}
                for fault in variant.faults:
                    if (fault.where, fault.message) not in known:
                        message = f"{fault.message}, with {path}={choice.text}"
                        self.faults.append(Diagnostic(fault.where, message, fault.hint, fault.shown))

    def _finish(self, tree: LayeredTree, notes: tuple[str, ...]) -> ComposedConfig:
        sweep = self._files.sweep
        swept_groups: frozenset[str] = frozenset()
        axes: dict[str, Axis] = {}
        if sweep is not None:
            sweep, faults = typed(sweep, self._request.schema)
            self.faults += faults
            swept_groups = frozenset(self._files.swept_groups(sweep))
            axes = {axis.path: axis for axis in axes_in(sweep) if axis.path not in swept_groups}
            self._refuse_unknown_axes(tree, axes)
        required = self._required(tree)
        self.faults += [
            Diagnostic(path, f"is required ({self._words.leaves[path].says})", f"write {path}=…")
            for path in required
            if path not in axes
        ]
        root, referring, lent = _with_first_choices(tree, axes) if axes else (tree.root, tree.referring, ())
        resolved = self._resolved(root, referring)
        self.faults += resolved.faults
        values = finished(root, resolved.leaves, (*notes, *lent))
        trials = Trials(
            TrialBase(
                leaves=self._words.leaves,
                root=tree.root,
                values=values,
                referring=tree.referring,
                notes=notes,
                required=tuple(path for path in axes if path in required),
                resolve=self._resolved,
            )
        )
        if axes and not self.faults:
            self._try_choices(trials, axes)
        return ComposedConfig(
            schema=self._request.schema,
            values=values,
            origins={path: tuple(stack) for path, stack in tree.stacks.items()},
            notes={path: resolved.leaves.get(path, found(tree.root, path.split("."))) for path in notes},
            sweep=sweep,
            groups=self._files.chosen(),
            read_from_environment={**resolved.read, **trials.read},
            environment_leaves=resolved.touched,
            _trials=trials,
            _swept_groups=swept_groups,
            _variant=self._variant,
        )

    def _variant(self, chosen: Options) -> ComposedConfig:
        composition = _Composition(self._request, dict(chosen))
        composed = composition.run()
        composition.refuse(f"with {', '.join(f'{group}={option}' for group, option in chosen)}")
        return composed

    def _resolved(self, root: dict[str, Any], referring: Mapping[str, ValueOrigin]) -> ResolvedReferences:
        if not referring:
            return ResolvedReferences()
        from stoker.config.interpolation import Resolution  # noqa: PLC0415 - most configurations have no reference

        leaves = self._words.leaves
        resolution = Resolution(
            root,
            referring,
            environment=self._request.environment,
            folder=self._request.folder,
            typed=lambda path, value: check_resolved(value, leaves.get(path)),
        )
        done = resolution.resolve_all()
        return ResolvedReferences(
            leaves=done, faults=resolution.faults, read=resolution.read, touched=frozenset(resolution.touched)
        )

    def _refuse_unknown_axes(self, tree: LayeredTree, axes: Mapping[str, Axis]) -> None:
        """Refuse axes of files that a closed schema does not have; those of overrides were checked before."""
        for path, axis in axes.items():
            origin = axis.origin
            if origin is None or not origin.line:
                continue
            if path in self._words.branches:
                tree.refuse_group(origin, path)
            elif not self._words.is_open and tree.owner_of(path) not in self._words.leaves:
                tree.refuse(origin, "there is no such key", self._words.suggestion(path, []), key=path)

    def _required(self, tree: LayeredTree) -> list[str]:
        """Return the leaves without a value and a default; unknown while a file is only half read."""
        if self._shelf.is_torn:
            return []
        return [
            path
            for path, declared in self._words.leaves.items()
            if declared.is_required and path not in tree.refused and tree.at(path) is ABSENT
        ]

    def _try_choices(self, trials: Trials, axes: Mapping[str, Axis]) -> None:
        """Try each choice beside the first ones of the other axes, where a combination can be wrong."""
        first = {path: axis.choices.at(0) for path, axis in axes.items()}
        for path, axis in axes.items():
            if trials.depend_on(path, islice(axis.choices, _TRIED)):
                for choice in islice(axis.choices, _TRIED):
                    self.faults += _faults_at(trials, first | {path: choice})


def _with_first_choices(
    tree: LayeredTree, axes: Mapping[str, Axis]
) -> tuple[dict[str, Any], Mapping[str, ValueOrigin], tuple[str, ...]]:
    """Set each leaf that only the sweep sets to its first choice, so that references to it can be tried.

    Returns the values, the leaves with references, and the leaves that were set.
    """
    absent = {path: axis for path, axis in axes.items() if tree.at(path) is ABSENT}
    if not absent or not tree.referring:
        return tree.root, tree.referring, ()
    lent = tree.copied()
    for path, axis in absent.items():
        lent.put_choice(path, axis.choices.at(0), axis.origin or ValueOrigin(layer=ConfigLayer.SWEEP, where="sweep"))
    return lent.root, lent.referring, tuple(absent)


def _faults_at(trials: Trials, choices: Mapping[str, AxisValue]) -> Sequence[Diagnostic]:
    try:
        trials.at(list(choices.items()))
    except InvalidConfig as error:
        return error.faults
    return ()


# A configuration as text: YAML and JSON that read back as the same values.
#
# The YAML is the plain subset that `yaml_file` reads: block maps, lists in one line if they hold single values, text
# in double quotes wherever it could be read as something else.

# Text without quotes, valid in block and flow style.
_PLAIN = lazy_pattern(r"[A-Za-z_./][A-Za-z0-9_./+-]*(?: [A-Za-z0-9_./+-]+)*", re.ASCII)
_ESCAPED = lazy_pattern('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]')
_NAMED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def to_yaml(values: Mapping[str, Any]) -> str:
    """Write values as YAML."""
    return "".join(f"{line}\n" for line in _map_lines(values, "")) if values else "{}\n"


def to_json(values: Mapping[str, Any]) -> str:
    """Write values as JSON, numbers that are not finite tagged."""
    return dumps(dict(values), indent=2) + "\n"


def scalar_text(value: Any) -> str:
    """Write a single value as YAML reads it back."""
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is float:
        return _float_text(value)
    return str(value) if type(value) is int else _text(value)


def _map_lines(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in values.items():
        if type(value) is dict and value:
            yield f"{indent}{_text(key)}:"
            yield from _map_lines(value, f"{indent}  ")
        elif type(value) in (list, tuple) and any(type(item) in (dict, list, tuple) for item in value):
            yield f"{indent}{_text(key)}:"
            for item in value:
                yield f"{indent}  - {_flow(item)}"
        else:
            yield f"{indent}{_text(key)}: {_flow(value)}"


def _flow(value: Any) -> str:
    if type(value) is dict:
        return f"{{{', '.join(f'{_text(key)}: {_flow(item)}' for key, item in value.items())}}}"
    if type(value) in (list, tuple):
        return f"[{', '.join(map(_flow, value))}]"
    return scalar_text(value)


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"


def _text(text: str) -> str:
    from stoker.config.yaml_file import read_plain  # noqa: PLC0415 - only a shown configuration needs it

    if _PLAIN.fullmatch(text) and type(read_plain(text)) is str:
        return text
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def _escape(found: re.Match[str]) -> str:
    return _NAMED.get(found[0]) or f"\\u{ord(found[0]):04x}"
