"""Overrides and trials of a configuration, one at a time."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.config.compose import ComposedConfig
from stoker.config.overrides import Override, read_overrides
from stoker.config.sweep import SweepPoint
from stoker.core.digests import Digest
from stoker.core.errors import InvalidConfig


def parse_overrides(words: Iterable[str]) -> list[Override]:
    """Parse words; raise every fault of every word in one `InvalidConfig`."""
    overrides, faults = read_overrides(words)
    if faults:
        message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} errors in the overrides"
        raise InvalidConfig(message, faults=tuple(faults))
    return overrides


def parse_override(text: str, position: int = 1) -> Override:
    """Parse one word at a position."""
    return parse_overrides([*["x=1"] * (position - 1), text])[-1]


def identity_at(composed: ComposedConfig, point: SweepPoint) -> Digest:
    """Return the identity of one trial."""
    return next(composed.trials(iter((point,))))[2]
