"""Seats: how work that shares one process sees those it works for.

    def run_company(company: Company) -> None:
        seated: list[Seat] = []
        while not company.is_over:
            seated += company.arrivals(wait_s=0.0 if seated else 1.0)
            for seat in seated: …one step of each…; seat.finished(made) or seat.failed(error) when it ends

Each member is a stage attempt of its own, of whichever run: its folder, scratch, log, steps, failure and cancelling are
reached through `seat.job`. Exactly one of `finished` and `failed` is said of every seat, also of one whose run is gone;
that frees the seat. `Alone` is a company of one in the stage's own process, so that the same function does both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from stoker.core.errors import InternalError
from stoker.engine.kind import Kind
from stoker.engine.stage import StageContext


class Seat:
    """One member's place. Its number is that of no other member who is seated."""

    def __init__(
        self,
        number: int,
        *,
        job: StageContext,
        inputs: Mapping[str, Any],
        args: Any,
        answer: Callable[[Kind[Any] | BaseException], None],
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self.number = number
        self.job = job
        """As a stage has it; `job.check()` raises `Cancelled` if this member alone is to stop, or its run is gone."""
        self.inputs = inputs
        """By port: a kind's handle, or a list of them."""
        self.args = args
        """The stage's dataclass, or nothing if it has none."""
        self._answer = answer
        self._is_gone = is_gone
        self._is_taken = True

    @property
    def is_gone(self) -> bool:
        """Whether nobody hears what this member says any more. It still has to be told how it ended."""
        return self._is_gone()

    @property
    def is_taken(self) -> bool:
        """Whether it has not been said yet how this member ended."""
        return self._is_taken

    def finished(self, made: Kind[Any]) -> None:
        """Say that it has made what its stage promises: a handle from `job.save` or `job.made`."""
        self._say(made)

    def failed(self, error: BaseException) -> None:
        """Say why it ended without a result. The others do not notice."""
        self._say(error)

    def _say(self, answer: Kind[Any] | BaseException) -> None:
        if not self._is_taken:
            raise InternalError(f"seat {self.number} ({self.job.node}) was said to have ended twice")
        self._is_taken = False
        self._answer(answer)


class Company(Protocol):
    """Who there is to work for. One thread uses it, that which does the work."""

    devices: tuple[str, ...]
    """Those that the process was given, by UUID."""

    @property
    def ceiling_bytes(self) -> int | None:
        """The most that it may take of a device for those who are seated now; nothing: all there is."""

    def arrivals(self, wait_s: float) -> list[Seat]:
        """Give who has come since the last call; if nobody has, wait so long for somebody. Call it at every border."""

    @property
    def is_over(self) -> bool:
        """Whether nobody is seated and nobody can come any more: time to return."""


class Alone:
    """A company of one, in the stage's own process; the stage's function gives its result."""

    def __init__(self, job: StageContext, inputs: Mapping[str, Any], args: Any) -> None:
        self.devices = job.devices
        self.ceiling_bytes: int | None = None
        self._said: Kind[Any] | BaseException | None = None
        self._arriving = [Seat(0, job=job, inputs=inputs, args=args, answer=self._take)]

    def arrivals(self, wait_s: float) -> list[Seat]:
        arrived, self._arriving = self._arriving, []
        return arrived

    @property
    def is_over(self) -> bool:
        return self._said is not None

    def result(self) -> Any:
        """Return what was made, for the stage to return. Raises what it failed with."""
        if self._said is None:
            raise InternalError("the work ended without saying how")
        if isinstance(self._said, BaseException):
            raise self._said
        return self._said

    def _take(self, answer: Kind[Any] | BaseException) -> None:
        self._said = answer
