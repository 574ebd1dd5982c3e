"""Permits: what running stages hold of the machine, taken as a whole vector or not at all.

Because a vector is taken in one step by one loop, two stages can't each hold what the other waits for. A request for
more cores than there are is cut down and then runs alone; one for more memory than there is was refused before it came
here (`MemoryGate`). What a shared process holds once, cores and its base, is taken with its first member and released
with its last. Devices are not counted here: all runs on the machine share them (`engine.device_gate`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from stoker.core.device import GIB, Capacity, Needs, Resource
from stoker.core.digests import Digest, digest_value
from stoker.core.errors import StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.text import format_size
from stoker.devices.admission import Admission, AdmissionDelay, AdmissionRefusal, MachineMemory, admit
from stoker.engine.action import Action
from stoker.engine.plan import PlanNode
from stoker.engine.run_history import Footprints
from stoker.engine.runners.stage_runner import AttemptUsage
from stoker.host.import_watch import entry_point


@frozen
class PermitGrant:
    """What one stage holds."""

    cpu: int
    network: int
    disk: int
    memory_bytes: int
    share_key: str = ""


@frozen
class Shortage:
    """What there is not enough of right now, in the fixed order of resources."""

    short_of: tuple[Resource, ...]


class Permits:
    """What is left of a capacity. Not for several threads: the executor's loop owns it."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self._cpu = capacity.cpu
        self._network = capacity.network
        self._disk = capacity.disk
        self._memory_bytes = capacity.memory_bytes
        self._shared: dict[str, tuple[int, PermitGrant]] = {}

    def members_of(self, share_key: str) -> int:
        """Return how many members of a shared process hold something."""
        return self._shared[share_key][0] if share_key in self._shared else 0

    def take(self, needs: Needs) -> PermitGrant | Shortage:
        """Take all that a stage needs, or nothing and say what is short."""
        wanted = self._cut_down(needs)
        short = [
            resource
            for resource, need, left in (
                (Resource.CPU, wanted.cpu, self._cpu),
                (Resource.NETWORK, wanted.network, self._network),
                (Resource.DISK, wanted.disk, self._disk),
                (Resource.MEMORY, wanted.memory_bytes, self._memory_bytes),
            )
            if need > left
        ]
        if short:
            return Shortage(short_of=tuple(short))
        self._cpu -= wanted.cpu
        self._network -= wanted.network
        self._disk -= wanted.disk
        self._memory_bytes -= wanted.memory_bytes
        return self._as_member(needs, wanted) if needs.share_key else wanted

    def give_back(self, grant: PermitGrant) -> None:
        """Return what a stage held."""
        if grant.share_key:
            grant = self._left(grant)
        self._cpu += grant.cpu
        self._network += grant.network
        self._disk += grant.disk
        self._memory_bytes += grant.memory_bytes

    def _as_member(self, needs: Needs, taken: PermitGrant) -> PermitGrant:
        """Return what a member holds by itself; what its shared process holds is kept apart."""
        count, base = self._shared.get(needs.share_key, (0, None))
        own_bytes = taken.memory_bytes
        if base is None:
            own_bytes = max(0, taken.memory_bytes - needs.base_memory_bytes)
            base = changed(taken, memory_bytes=taken.memory_bytes - own_bytes)
        self._shared[needs.share_key] = (count + 1, base)
        return PermitGrant(cpu=0, network=0, disk=0, memory_bytes=own_bytes, share_key=needs.share_key)

    def _left(self, grant: PermitGrant) -> PermitGrant:
        """Return what is free when a member has left: of the last one also what its shared process held."""
        count, base = self._shared.pop(grant.share_key)
        if count > 1:
            self._shared[grant.share_key] = (count - 1, base)
            return grant
        return changed(base, memory_bytes=base.memory_bytes + grant.memory_bytes)

    def _cut_down(self, needs: Needs) -> PermitGrant:
        limit = self.capacity.memory_bytes
        if self.members_of(needs.share_key):
            own_bytes = max(0, needs.memory_bytes - needs.base_memory_bytes)
            return PermitGrant(cpu=0, network=0, disk=0, memory_bytes=min(own_bytes, limit) if limit else 0)
        return PermitGrant(
            cpu=min(needs.cpu, self.capacity.cpu),
            network=min(needs.network, self.capacity.network),
            disk=min(needs.disk, self.capacity.disk),
            memory_bytes=min(needs.memory_bytes, limit) if limit else 0,
        )


class MemoryGate:
    """Decides about memory for the stages of one run: whether one may start, its limit, and what it took.

    The decision is `devices.admission`'s. Here it is asked about stages: with what a node declares, what the machine
    has, and what the same configuration took when it ran before.
    """

    def __init__(self, memory: Callable[[], MachineMemory], footprints: Footprints, peaks: str = "") -> None:
        self._memory = memory
        self._peaks = peaks
        """Where the book of what shared processes took lies; empty: there is none."""
        self._footprints = footprints
        self._first: MachineMemory | None = None

    def never(self, node: PlanNode) -> str:
        """Return why a node can never start here, or an empty text."""
        if not node.needs.memory_bytes:
            return ""
        answer = admit(node.needs.memory_bytes, self._whole())
        return answer.why if isinstance(answer, AdmissionRefusal) else ""

    def ask(
        self, node: PlanNode, action: Action, *, is_work_running: bool, share_key: str = "", joins: bool = False
    ) -> Admission | AdmissionRefusal | AdmissionDelay:
        """Decide about one start. What runs inline has no memory of its own to cap.

        A member that `joins` others needs no base of its own. The number of members is unknown when a shared process
        starts, so its limit is all memory above the system reserve.
        """
        if node.stage.inline:
            return Admission(cap_bytes=None, why="it runs in the engine's own process")
        need_bytes = node.needs.memory_bytes
        if not need_bytes:
            return admit(None, self._whole())
        if share_key:
            own_bytes = max(0, need_bytes - node.needs.base_memory_bytes) if joins else need_bytes
            answer = admit(own_bytes, self._memory(), is_work_running=is_work_running)
            return admit(None, self._whole()) if isinstance(answer, Admission) else answer
        known = self._footprints.known(configuration_of(action))
        killed_at = known.killed_at_bytes if known else None
        return admit(need_bytes, self._memory(), is_work_running=is_work_running, killed_at_bytes=killed_at)

    def short_of_base(self, node: PlanNode) -> str:
        """Return why a member has no room now if it brings its base along, or give an empty text."""
        answer = admit(node.needs.memory_bytes, self._memory())
        return "" if isinstance(answer, Admission) else answer.why

    def note(
        self,
        node: PlanNode,
        action: Action,
        usage: AttemptUsage,
        *,
        cap_bytes: int | None,
        peak_gpu_bytes: int | None = None,
    ) -> None:
        """Remember what a stage took. Only a kill at its cap lets the next attempt have more."""
        if peak_gpu_bytes:
            self._footprints.note_gpu(configuration_of(action), peak_gpu_bytes)
        if not node.stage.inline and (usage.peak_rss_bytes is not None or usage.was_killed_for_memory):
            self._footprints.note(
                configuration_of(action),
                peak_bytes=usage.peak_rss_bytes,
                was_out_of_memory=usage.was_killed_for_memory,
                cap_bytes=cap_bytes,
            )

    def note_shared(self, node: PlanNode, *, promised_bytes: int, took_bytes: int) -> None:
        """Record the device memory of members beside their base, for the next estimate of their kind.

        More than 150 % of the reserved memory is ignored: members that left did not return all of theirs. Less than the
        estimate is ignored too: the data of the next members may be longer.
        """
        needs = node.needs
        is_sound = 0 < 2 * took_bytes < 3 * promised_bytes
        if not self._peaks or not needs.peaks or not is_sound:
            return
        from stoker.devices.estimate.terms import CalibrationFile  # noqa: PLC0415 - milliseconds that a cached run never needs

        estimated_bytes = max(1, round(promised_bytes * 100 / needs.foretold_percent))
        # A book that can't be written costs nothing but what it would have taught.
        with suppress(StokerError):
            measured_bytes = max(took_bytes, estimated_bytes)
            book = CalibrationFile(self._peaks)
            book.note_under(needs.peaks, measured_bytes=measured_bytes, estimated_bytes=estimated_bytes)

    def advice_to_share(self, node: PlanNode, action: Action) -> str:
        """Return how work that waits for whole devices could have a part of one instead, from what it took before."""
        known = None if node.needs.shares else self._footprints.known_gpu(configuration_of(action))
        if known is None or not node.stage.is_program:
            return ""
        # A tenth more than ever seen: what it takes next time is not exactly what it took.
        part_gib = max(1, -(-known * 11 // (10 * GIB)))
        took = f"it took {format_size(known)} of one so far"
        return f"{took}, so with vram={part_gib}G shares=true it could run beside others that share"

    def _whole(self) -> MachineMemory:
        """What the machine has at all does not change: looked up once."""
        if self._first is None:
            self._first = self._memory()
        return self._first


def hint_of_less(node: PlanNode, short: AdmissionRefusal | AdmissionDelay) -> str:
    """Return what to do about a stage for which there is too little memory now: in its own words, if it has some."""
    if node.stage.is_program:
        return "close what holds memory, or declare less (memory=)"
    fitting, together = "", node.stage.together
    if together is not None and together.fits and isinstance(short, AdmissionDelay):
        # A hint that can't be given must not hide what happened.
        with suppress(StokerError):
            fitting = entry_point(together.fits)(node.stage.args.make(node.args), short.room_bytes)
    return f"close what holds memory, or reduce its needs: {fitting or 'a smaller batch'}"


def configuration_of(action: Action) -> Digest:
    """Name a configuration: a stage with its arguments, whatever its inputs and its code are."""
    return digest_value("configuration", [action.facts.stage, dict(action.args)])
