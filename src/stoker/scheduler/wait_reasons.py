"""Why ready jobs do not start: on a machine that asked, or anywhere."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from stoker.scheduler.decisions import HoldReason
from stoker.scheduler.job_types import JobType, JobTypes
from stoker.scheduler.machine import MatchableMachine
from stoker.scheduler.machine_index import MachineIndex
from stoker.scheduler.policy import NextJobPicker
from stoker.scheduler.ready_queue import ReadyQueue, UserQueue
from stoker.scheduler.reasons import first_block

_STATES = 512


class WaitReasons:
    """Finds reasons; it decides nothing."""

    def __init__(self, types: JobTypes, machines: MachineIndex, ready: ReadyQueue, policy: NextJobPicker) -> None:
        self._types = types
        self._machines = machines
        self._ready = ready
        self._policy = policy
        self._known: OrderedDict[Hashable, dict[int, str]] = OrderedDict()

    def tally(self, machine: MatchableMachine, declined: int, now_s: float) -> dict[str, int]:
        """Count ready jobs by why they do not start on a machine, which declined those of some types."""
        counts: dict[str, int] = {}
        for users in self._ready.levels.values():
            for queue in users.values():
                for index in self._types.in_mask(queue.bits):
                    one = self._types.types[index]
                    is_declined = bool(declined & one.bits)
                    reason = str(HoldReason.DECLINED) if is_declined else self.reason(machine, queue, one, now_s)
                    counts[reason] = counts.get(reason, 0) + queue.counts[index]
        return counts

    def reason(self, machine: MatchableMachine, queue: UserQueue, one: JobType, now_s: float) -> str:
        """Return why the first job of a type does not start on a machine: an `UnfitReason`, or a `HoldReason`."""
        if machine.deferred & one.bits:
            return str(HoldReason.BETTER_FREE)
        if self._machines.fits(machine) & one.bits:
            return str(self._policy.hold_reason(machine, queue, one, now_s))
        known = self._in_state(machine)
        reason = known.get(one.index)
        if reason is None:
            reason = known[one.index] = str(first_block(one.shape, self._machines.index.usage(machine.name)))
        return reason

    def _in_state(self, machine: MatchableMachine) -> dict[int, str]:
        """Return the reasons that are known for machines in the same state, by type."""
        state = self._machines.index.state(machine.name)
        known = self._known.get(state)
        if known is None:
            known = self._known[state] = {}
            if len(self._known) > _STATES:
                self._known.popitem(last=False)
        return known
