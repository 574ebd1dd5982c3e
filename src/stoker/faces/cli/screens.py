"""Where lines go while work is under way: one after the other, or nowhere. The live one is in `live`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from stoker.faces.cli.output import Output
from stoker.model.clock import Clock

HEARTBEAT_S = 10.0


Running = Callable[[float, float], list[str]]
"""Gives a line for each stage that runs, from the time now and for how long at least it has run."""


class Screen(Protocol):
    """Where lines go while a run is under way."""

    def begin(self, running: Running) -> None:
        """Something runs from now on; `running` tells what."""

    def lasting(self, line: str) -> None:
        """Write a line that stays."""

    def close(self) -> None:
        """Write what is left and let go."""


class PlainScreen:
    """Lines as they come, without control codes; what runs long is mentioned every so often, if it has changed."""

    def __init__(self, out: Output, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, running: Running) -> None:
        self._thread = threading.Thread(target=self._beat, args=(running,), name="stoker-progress", daemon=True)
        self._thread.start()

    def lasting(self, line: str) -> None:
        self._out.line(line)

    def close(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _beat(self, running: Running) -> None:
        said: list[str] = []
        while not self._is_over.wait(HEARTBEAT_S):
            lines = running(self._clock.wall_s(), HEARTBEAT_S / 2)
            for line in lines:
                if line not in said:
                    self._out.line(f"  {line}")
            said = lines


class LineScreen:
    """Only what lasts, as it comes."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def begin(self, running: Running) -> None:
        return

    def lasting(self, line: str) -> None:
        self._out.line(line)

    def close(self) -> None:
        return


class SilentScreen:
    """Says nothing, for those who asked for that."""

    def begin(self, running: Running) -> None:
        return

    def lasting(self, line: str) -> None:
        return

    def close(self) -> None:
        return
