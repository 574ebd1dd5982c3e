"""What a recipe may know of this machine while its plan is made, handed in by the roof: never part of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from stoker.model.frozen import frozen

if TYPE_CHECKING:
    from stoker.hardware.admission import Memory
    from stoker.hardware.estimate.calibration import Foretold
    from stoker.hardware.estimate.terms import Correction


@frozen
class Remembered:
    """What measured peaks say of one estimate."""

    names: tuple[str, ...] = ()
    """Under which they are kept; none: they are not."""
    correction: Correction | None = None


@frozen
class Surroundings:
    """Places and devices of this machine."""

    hub_cache: Callable[[], str] = lambda: ""
    """Gives where models that were fetched lie, asked only if one is wanted; empty: nobody said."""
    count_gpus: Callable[[], int] = lambda: 0
    """Gives how many devices this machine has, asked only if it makes a difference."""
    rooms: Callable[[], Mapping[str, int]] = dict
    """Gives how much memory each of them has, in bytes by its name; nothing of one about which nobody could say."""
    memory: Callable[[], Memory | None] = lambda: None
    """Gives what the machine itself has of memory; nothing where the work is done elsewhere."""
    remembered: Callable[[Foretold], Remembered] = lambda _: Remembered()
    """Gives what earlier runs of such work say of its estimate, asked only where memory of a device is foretold."""
    stand_ins: frozenset[str] = frozenset()
    """Arguments that say something else than is meant, since what is meant is not here: nothing is judged by them."""
    fetches: Callable[[], bool] = lambda: False
    """Says whether what only has to be fetched comes by itself, so that it is no fault beside others."""


_NOTHING = Surroundings()
_NOW: ContextVar[Surroundings] = ContextVar("surroundings", default=_NOTHING)


def surroundings() -> Surroundings:
    """Give what the plan that is being made may know."""
    return _NOW.get()


@contextmanager
def surrounded_by(given: Surroundings) -> Iterator[None]:
    """Make plans within, knowing this."""
    token = _NOW.set(given)
    try:
        yield
    finally:
        _NOW.reset(token)
