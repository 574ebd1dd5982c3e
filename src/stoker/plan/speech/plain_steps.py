"""At which step a line of a program's output stands. Pure, but for what it remembers.

A line says so itself; or it stands where the last one did that had something to say there; or, as long as no line says
anything of the kind, lines are counted. A line that tells an epoch only, among others that tell steps, stands at the
last of those. Where `step` begins anew with every `epoch`, the epochs are put one behind the other: `epoch=2 step=0`
comes after the last step of epoch 1.
"""

from __future__ import annotations

import math

from stoker.plan.speech.trainer_lines import Plain


class Steps:
    """The steps of one program's output."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._counted = -1
        self._has_steps = False
        """A line has told a step, and not just an epoch."""
        self._epoch = -math.inf
        self._shift = 0

    def place(self, step: int | None) -> int:
        """Place a line that was meant for us."""
        if step is not None:
            self._last = step
        elif self._last is None:
            self._counted += 1
            return self._counted
        return self._last

    def place_plain(self, said: Plain) -> int:
        """Place a line of plain output that holds values."""
        if said.step is None or (said.is_epoch and self._has_steps):
            return self.place(None)
        if said.is_epoch:
            return self.place(said.step)
        epoch = said.values.get("epoch", self._epoch)
        if self._has_steps and self._last is not None and epoch > self._epoch:
            self._shift = max(self._shift, self._last + 1 - said.step)
        self._has_steps = True
        self._epoch = epoch
        return self.place(said.step + self._shift)
