"""What a stage sees of the run while it works: where to write, how to report, when to stop."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar

from stoker.model.errors import Cancelled, StageDiverged
from stoker.plan.kind import Kind

if TYPE_CHECKING:
    from pathlib import Path

K = TypeVar("K", bound=Kind[Any])


_LONGEST_TOLD = 500


class StageContext:
    """Handed to a stage as `job`. All writing goes below `out`."""

    def __init__(  # noqa: PLR0913 - what a stage may know
        self,
        *,
        node: str,
        out: str,
        emit: Callable[[dict[str, Any]], None],
        is_cancelled: Callable[[], bool],
        diverges_on: tuple[str, ...] = (),
        devices: tuple[str, ...] = (),
        attempt: int = 1,
        scratch: str = "",
    ) -> None:
        self.node = node
        self.devices = devices
        self.attempt = attempt
        self._out = out
        self._scratch = scratch
        self._emit = emit
        self._is_cancelled = is_cancelled
        self._diverges_on = diverges_on
        self._items = 0

    @property
    def out(self) -> Path:
        """The staging folder of this attempt: empty at the start, taken into the store if the stage succeeds."""
        return _path(self._out)

    @property
    def scratch(self) -> Path:
        """A folder that survives attempts and runs until this work succeeds: the place for checkpoints."""
        if self._scratch:
            os.makedirs(self._scratch, exist_ok=True)
        return _path(self._scratch or self._out)

    def save(self, kind: type[K], value: Any) -> K:
        """Write a value through its kind's codec and give the handle to return."""
        kind.save(value, kind.path_in(self._out))
        return kind.at(self._out)

    def made(self, kind: type[K]) -> K:
        """Give the handle to return when the stage wrote below `out` by itself."""
        return kind.at(self._out)

    def save_item(self, kind: type[K], value: Any) -> K:
        """Write one item of a list output; items keep the order in which they are saved."""
        folder = os.path.join(self._out, f"{self._items:06d}")
        os.mkdir(folder)
        self._items += 1
        kind.save(value, kind.path_in(folder))
        return kind.at(folder)

    def step(self, step: int, *, of: int | None = None, **metrics: float) -> None:
        """Report progress and metrics. Cheap; may be dropped under pressure; stops the stage if it diverged."""
        self.check()
        values = {name: float(value) for name, value in metrics.items()}
        # Plain numbers, whatever library they come from: they go through JSON.
        self._emit({"step": index(step), "of": None if of is None else index(of), "metrics": values})
        for name in self._diverges_on:
            if name in values and not math.isfinite(values[name]):
                raise StageDiverged(
                    f"{name} is {values[name]} at step {step}", hint="lower the learning rate", metric=name, step=step
                )

    def log(self, text: str) -> None:
        """Write a line to the stage's log."""
        self._emit({"log": text})

    def tell(self, text: str, *, at_once: bool = False) -> None:
        """Say in a line what people should see while it runs; it stands in the log, too.

        `at_once` is for what is news of this stage alone: it is shown under its name, and does not wait for its end.
        """
        self.log(text)
        self._emit({"told": text[:_LONGEST_TOLD], **({"at_once": True} if at_once else {})})

    def check(self) -> None:
        """Raise if the run is being cancelled: call it now and then in long loops."""
        if self._is_cancelled():
            raise Cancelled(f"{self.node} was asked to stop")


def _path(of: str) -> Path:
    from pathlib import Path  # noqa: PLC0415 - milliseconds that a cached run never needs

    return Path(of)
