"""What trials were measured on. A metric over one text says nothing about a trial that was measured on another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from stoker.model.frozen import frozen
from stoker.model.json_text import dumps
from stoker.plan.graph import Plan


class Measured(Protocol):
    """A trial with metrics, however it is shown."""

    @property
    def n(self) -> int:
        """Its number."""

    @property
    def measured_on(self) -> Mapping[str, Any]:
        """The arguments that decided what its metrics were taken from."""


T = TypeVar("T", bound=Measured)


@frozen
class Ground(Generic[T]):
    """Trials that may be compared with each other."""

    told_by: Mapping[str, Any]
    """What tells it from the other grounds; nothing if there is no other."""
    trials: tuple[T, ...]


def on_grounds(trials: Sequence[T], measured: Sequence[T]) -> list[Ground[T]]:
    """Put trials together that were measured on the same, in the order they come; that of the lowest number first.

    Only those of them that were `measured` tell grounds apart: one that has no value is compared with nobody. Where
    none was, its ground comes last.
    """
    names = dict.fromkeys(name for trial in measured for name in trial.measured_on)
    differing = [name for name in names if len({_spelt(trial, [name]) for trial in measured}) > 1]
    found: dict[str, list[T]] = {}
    for trial in trials:
        found.setdefault(_spelt(trial, differing), []).append(trial)
    numbers = {trial.n for trial in measured}

    def place(group: Sequence[T]) -> tuple[bool, int]:
        own = [trial.n for trial in group]
        return numbers.isdisjoint(own), min(own)

    groups = sorted(found.values(), key=place)
    return [
        Ground(told_by={name: group[0].measured_on.get(name) for name in differing}, trials=tuple(group))
        for group in groups
    ]


def settled(measured_on: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Give what metrics are taken from; where nobody said it, what the plan's stages were given for it.

    So one who names a default stands on one ground with one who leaves it out.
    """
    return {name: _meant(name, plan) if value is None else value for name, value in measured_on.items()}


def _meant(name: str, plan: Plan) -> Any:
    given = {dumps(node.args[name]): node.args[name] for node in plan.nodes if name in node.args}
    return next(iter(given.values())) if len(given) == 1 else None


def _spelt(trial: Measured, names: Iterable[str]) -> str:
    return dumps([trial.measured_on.get(name) for name in names])
