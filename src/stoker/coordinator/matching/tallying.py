"""How many jobs wait that a machine can't be given, for which reason: the first that the rule names.

Machines in the same state have the same answers, so they are worked out once for each state, not for each machine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from stoker.coordinator.matching.line import Line
from stoker.coordinator.matching.reserving import KEPT
from stoker.coordinator.matching.roll import Machine, Roll
from stoker.scheduler.reasons import first_block

_STATES = 512


class Tally:
    """Reasons by state and shape."""

    def __init__(self, roll: Roll) -> None:
        self._roll = roll
        self._reasons: OrderedDict[Hashable, dict[int, str]] = OrderedDict()

    def counts(self, machine: Machine, line: Line) -> dict[str, int]:
        """Say how many of those who wait can't start on a machine for which reason."""
        reasons = self._known(machine)
        counts: dict[str, int] = {}
        for level in line.levels.values():
            for number, count in level.counts.items():
                reason = reasons.get(number)
                if reason is None:
                    reason = reasons[number] = self._reason(machine, number)
                counts[reason] = counts.get(reason, 0) + count
        return counts

    def _known(self, machine: Machine) -> dict[int, str]:
        state = self._roll.state(machine)
        known = self._reasons.get(state)
        if known is None:
            known = self._reasons[state] = {}
            if len(self._reasons) > _STATES:
                self._reasons.popitem(last=False)
        else:
            self._reasons.move_to_end(state)
        return known

    def _reason(self, machine: Machine, number: int) -> str:
        if self._roll.fits(machine) >> number & 1:
            # What fits and is not given is kept for somebody else.
            return KEPT
        return str(first_block(self._roll.shape(number), self._roll.board.seat(machine.name)))
