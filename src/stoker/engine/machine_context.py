"""What a recipe may know of this machine while its plan is made, handed in by the roof: never part of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from stoker.core.frozen import frozen

if TYPE_CHECKING:
    from stoker.devices.estimate.terms import Correction, EstimatedWork
    from stoker.devices.memory_admission import MachineMemory


@frozen
class MeasuredPeakCorrection:
    """What measured peaks say of one estimate."""

    names: tuple[str, ...] = ()
    """Under which they are kept; none: they are not."""
    correction: Correction | None = None


@frozen
class MachineContext:
    """Places and devices of this machine."""

    hub_cache: Callable[[], str] = lambda: ""
    """Gives where models that were fetched lie, asked only if one is wanted; empty: nobody said."""
    count_gpus: Callable[[], int] = lambda: 0
    """Gives how many devices this machine has, asked only if it makes a difference."""
    rooms: Callable[[], Mapping[str, int]] = dict
    """Gives how much memory each of them has, in bytes by its name; nothing of one about which nobody could say."""
    memory: Callable[[], MachineMemory | None] = lambda: None
    """Gives what the machine itself has of memory; nothing where the work is done elsewhere."""
    remembered: Callable[[EstimatedWork], MeasuredPeakCorrection] = lambda _: MeasuredPeakCorrection()
    """Gives what earlier runs of such work say of its estimate, asked only where memory of a device is foretold."""
    stand_ins: frozenset[str] = frozenset()
    """Arguments that say something else than is meant, since what is meant is not here: nothing is judged by them."""
    fetches: Callable[[], bool] = lambda: False
    """Says whether what only has to be fetched comes by itself, so that it is no fault beside others."""


_NOTHING = MachineContext()
_NOW: ContextVar[MachineContext] = ContextVar("surroundings", default=_NOTHING)


def surroundings() -> MachineContext:
    """Return what the plan that is being made may know."""
    return _NOW.get()


@contextmanager
def surrounded_by(given: MachineContext) -> Iterator[None]:
    """Make plans within, knowing this."""
    token = _NOW.set(given)
    try:
        yield
    finally:
        _NOW.reset(token)
