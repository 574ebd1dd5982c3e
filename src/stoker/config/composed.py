"""A configuration that is composed: its values, where each came from, and the values of each trial of its sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.config.axis import Choice
from stoker.config.fingerprint import TrialFingerprints, full_fingerprint, identity_fingerprint
from stoker.config.origin import Candidate, Layer, Origin
from stoker.config.schema import NOTHING, Schema
from stoker.config.sweep import Point, Sweep
from stoker.config.trees import ABSENT, found
from stoker.config.trial import Trials
from stoker.model.digests import Digest
from stoker.model.frozen import frozen

Options = tuple[tuple[str, str], ...]
"""Options of groups that a point chooses."""


@frozen
class Row:
    """One leaf, for people to see."""

    path: str
    value: Any
    origin: Origin
    is_note: bool = False


@frozen
class Facts:
    """What composing found out."""

    schema: Schema
    values: dict[str, Any]
    """Nested plain maps, typed and resolved; of a sweep, what all its trials start from."""
    origins: Mapping[str, tuple[Candidate, ...]]
    """For each leaf what was said about it, the winner last; a deleted leaf ends with `NOTHING`."""
    notes: Mapping[str, Any]
    """Leaves beyond a closed schema, by their path: kept and shown, no part of the identity."""
    sweep: Sweep | None
    groups: Mapping[str, tuple[str, ...]]
    """The options that were chosen, by group."""
    read_from_environment: Mapping[str, Digest]
    """Variables that references asked for, each with a digest of what it held."""
    environment_leaves: frozenset[str]
    """Leaves that such a variable went into: a face may want to hide them."""


class Composed:
    """One configuration, ready to be used. Its maps and lists are shared with its trials: nobody changes them."""

    def __init__(
        self, facts: Facts, trials: Trials, *, swept_groups: frozenset[str], variant: Callable[[Options], Composed]
    ) -> None:
        self.schema = facts.schema
        self.values = facts.values
        self.origins = facts.origins
        self.notes = facts.notes
        self.sweep = facts.sweep
        self.groups = facts.groups
        self.read_from_environment = facts.read_from_environment
        self.environment_leaves = facts.environment_leaves
        self._trials = trials
        self._swept_groups = swept_groups
        self._variant = variant
        self._variants: dict[Options, Composed] = {}
        self._fingerprints: TrialFingerprints | None = None

    def at(self, point: Point) -> dict[str, Any]:
        """Give the values of one trial. Raises `ConfigFaults` where only this point's combination is wrong."""
        if not self._swept_groups:
            return self._trials.at(point.choices)
        base, choices = self._split(point)
        return base._trials.at(choices)  # noqa: SLF001 - it is one of us

    def identity(self) -> Digest:
        """Name what is wanted without its sweep."""
        return identity_fingerprint(self.values, self.schema)

    def identity_at(self, point: Point) -> Digest:
        """Name one trial."""
        return self._identities.identity(self.at(point))

    def trials(self, points: Iterator[Point]) -> Iterator[tuple[Point, dict[str, Any], Digest]]:
        """Give points with their values and names, one at a time."""
        for point in points:
            values = self.at(point)
            yield point, values, self._identities.identity(values)

    def full(self) -> Digest:
        """Digest everything, notes and what is about running included."""
        return full_fingerprint(self.values, self.notes)

    def full_at(self, point: Point) -> Digest:
        """The same for one trial."""
        return full_fingerprint(self.at(point), self.notes)

    def explain(self, path: str, point: Point | None = None) -> dict[str, tuple[Candidate, ...]]:
        """Give what every layer said about a leaf, or about all leaves of a branch; nothing if nobody said anything.

        With a point, its choices come last.
        """
        base = self
        choices: Mapping[str, Choice] = {}
        if point is not None:
            base, listed = self._split(point)
            choices = dict(listed)
        told = {leaf: stack for leaf, stack in base.origins.items() if _is_at(leaf, path)}
        for leaf, choice in choices.items():
            if _is_at(leaf, path):
                origin = Origin(layer=Layer.SWEEP, where=f"{leaf}={choice.text}")
                told[leaf] = (*told.get(leaf, ()), Candidate(origin=origin, value=choice.value))
        return told

    def rows(self) -> list[Row]:
        """Give every leaf that there is with its value and the origin that won, in the order of the layers."""
        rows = []
        for path, stack in self.origins.items():
            if stack[-1].value is NOTHING:
                continue
            is_note = path in self.notes
            value = self.notes[path] if is_note else found(self.values, path.split("."))
            if value is not ABSENT:
                rows.append(Row(path=path, value=value, origin=stack[-1].origin, is_note=is_note))
        return rows

    def record(self) -> dict[str, Any]:
        """Give everything that is known as plain data, for a file beside the results."""
        return {
            "values": self.values,
            "notes": dict(self.notes),
            "groups": {group: list(options) for group, options in self.groups.items()},
            "environment": dict(self.read_from_environment),
            "origins": {path: [_told(candidate) for candidate in stack] for path, stack in self.origins.items()},
        }

    def to_yaml(self) -> str:
        """Write the values as YAML that reads back as the same values."""
        from stoker.config.view import to_yaml  # noqa: PLC0415 - only who looks at it pays for it

        return to_yaml(self.values)

    def to_json(self) -> str:
        """Write the values as JSON, numbers that are not finite tagged."""
        from stoker.config.view import to_json  # noqa: PLC0415 - only who looks at it pays for it

        return to_json(self.values)

    @property
    def _identities(self) -> TrialFingerprints:
        if self._fingerprints is None:
            self._fingerprints = TrialFingerprints(self.values, self.schema)
        return self._fingerprints

    def _split(self, point: Point) -> tuple[Composed, list[tuple[str, Choice]]]:
        """Give the configuration with a point's groups chosen, and the rest of its choices."""
        groups = tuple((path, choice.text) for path, choice in point.choices if path in self._swept_groups)
        rest = [(path, choice) for path, choice in point.choices if path not in self._swept_groups]
        if not groups:
            return self, rest
        if groups not in self._variants:
            self._variants[groups] = self._variant(groups)
        return self._variants[groups], rest


def _told(candidate: Candidate) -> dict[str, Any]:
    body: dict[str, Any] = {"layer": str(candidate.origin.layer), "from": str(candidate.origin)}
    return {**body, "deletes": True} if candidate.value is NOTHING else {**body, "value": candidate.value}


def _is_at(leaf: str, path: str) -> bool:
    return leaf == path or leaf.startswith(f"{path}.") or path.startswith(f"{leaf}.")
