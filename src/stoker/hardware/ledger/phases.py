"""Where the ledger's time goes, in six phases. Switched off it reads no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum

from stoker.model.frozen import frozen


class Phase(StrEnum):
    """What the ledger does."""

    LOCK = "lock_acq"
    READ = "ledger_rd"
    MEASURE = "vram_qry"
    WRITE = "ledger_wr"
    UNLOCK = "lock_rel"
    WAIT = "wait_poll"


@frozen
class Spent:
    """How often a phase was gone through, and how long that took together."""

    times: int
    seconds: float


class Phases:
    """Adds up what each phase takes; with no clock it counts nothing."""

    def __init__(self, seconds: Callable[[], float] | None = None) -> None:
        self._seconds = seconds
        self._spent: dict[Phase, Spent] = {}

    def during(self, phase: Phase) -> AbstractContextManager[None]:
        """Count the block."""
        return _NOTHING if self._seconds is None else self._count(phase, self._seconds)

    @property
    def spent(self) -> dict[Phase, Spent]:
        """Give what was counted so far, in the order of the phases."""
        return {phase: self._spent.get(phase, Spent(times=0, seconds=0.0)) for phase in Phase}

    @contextmanager
    def _count(self, phase: Phase, seconds: Callable[[], float]) -> Iterator[None]:
        begun_s = seconds()
        try:
            yield
        finally:
            before = self._spent.get(phase, Spent(times=0, seconds=0.0))
            self._spent[phase] = Spent(times=before.times + 1, seconds=before.seconds + seconds() - begun_s)


_NOTHING = nullcontext()
