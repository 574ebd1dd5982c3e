"""From waiting to running: room on the machine, devices, the lease on the key, then an attempt.

Says what became of a node that it tried to start; what follows from that is the executor's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from stoker.core.device import Needs, Resource
from stoker.core.digests import Digest
from stoker.core.errors import Diagnostic, InvalidPlan, OutOfMemory, Refused, StokerError
from stoker.core.events import Kinds
from stoker.core.frozen import changeable, changed, frozen
from stoker.devices.admission import Admission, AdmissionDelay, AdmissionRefusal
from stoker.engine.action import share_key_of, shared_process_key
from stoker.engine.device_gate import AttemptDevices, DeviceGate, DeviceWait, NoDevices
from stoker.engine.execution.schedule import NodeQueue, QueuedNode
from stoker.engine.execution.stage_attempts import EDITED_CODE, READ_FIRST, AttemptReport, Attempts, InFlightAttempt
from stoker.engine.journal import StatusWriter
from stoker.engine.key_leases import KeyHeld
from stoker.engine.permits import MemoryGate, PermitGrant, Permits, Shortage, hint_of_less
from stoker.engine.plan import PlanNode
from stoker.engine.result_cache import Execute, Hit, LoopReadBudget, changes_as_json
from stoker.engine.runners.stage_runner import StageRunner
from stoker.engine.stage import Stage
from stoker.engine.types import Engine
from stoker.host.import_watch import ModuleSource, is_imported_from, pin
from stoker.store.records import Record

if TYPE_CHECKING:
    from stoker.engine.runners.shared.shared_runner import SharedProcessRunner


@frozen
class LaunchResult:
    """What became of a node that was tried: exactly one of the fields after `waiting` is set."""

    waiting: QueuedNode
    running: InFlightAttempt | None = None
    """It runs."""
    held: KeyHeld | None = None
    """Another process does this very work."""
    record: Record | None = None
    """Another process has done this very work since it was looked up."""
    outdated: str = ""
    """What has changed since it was decided about, for people: it has to be decided about again."""
    error: StokerError | None = None
    """Something on this machine is in the way."""


class NodeLauncher:
    """Nodes that wait for room, and the room there is. Only the executor's loop uses it."""

    def __init__(  # noqa: PLR0913 - all that a start depends on
        self,
        engine: Engine,
        *,
        attempts: Attempts,
        status: StatusWriter,
        moment: LoopReadBudget,
        job: str,
        uses_devices: bool,
        solo: bool = False,
    ) -> None:
        self._engine = engine
        self._solo = solo
        self._attempts = attempts
        self._status = status
        self._moment = moment
        self._pinned: list[tuple[ModuleSource, ...]] = []
        self._numbers: dict[str, int] = {}
        self._running = 0
        self._job = job
        self.permits = Permits(engine.capacity)
        self.devices: DeviceGate = engine.open_devices(attempts.wake) if uses_devices else NoDevices()
        self.room = NodeQueue()

    def needs_of(self, node: PlanNode, execute: Execute) -> Needs:
        """Return what a node holds while it runs, with the shared process that it would be a member of."""
        if not self._is_member(node):
            return node.needs
        return changed(node.needs, share_key=share_key_of(node.stage, node.args, execute.action))

    def _is_member(self, node: PlanNode) -> bool:
        """Return True if a node runs in a shared process."""
        return node.stage.together is not None and not self._solo and self._engine.shared_runner() is not None

    def launch_one(self, *, joining: AbstractSet[str] | None = None) -> LaunchResult | None:
        """Try the first waiting node that there is room for; smaller ones may pass those that are short.

        With `joining`, only those that become members of one of these shared processes.
        """
        in_line: set[Needs] = set()
        for waiting in (one for one in self.room.first_of_each() if self._may_start(one.needs, joining)):
            joins = self.permits.members_of(waiting.needs.share_key) > 0
            grant = self.permits.take(waiting.needs)
            if isinstance(grant, Shortage):
                if waiting.is_first_refusal():
                    self._tell_blocked(waiting, grant.short_of)
                if waiting.has_waited_enough:
                    break
                continue
            admitted = self._ask_for_memory(waiting, joins=joins)
            is_short = isinstance(admitted, AdmissionDelay) and admitted.may_wait
            tried = None if is_short else self._try_with_devices(waiting, grant, admitted)
            if not isinstance(tried, LaunchResult) or tried.running is None:
                self.permits.give_back(grant)
            if tried is None:
                if waiting.is_first_refusal():
                    self._tell_blocked(waiting, (Resource.MEMORY,))
                continue
            if not isinstance(tried, DeviceWait):
                return tried
            if not tried.is_known:
                # It may start in a moment: until then no later node does.
                return None
            in_line.add(waiting.needs)
        self.devices.wait_only_for(in_line)
        return None

    def _ask_for_memory(self, waiting: QueuedNode, *, joins: bool) -> Admission | AdmissionRefusal | AdmissionDelay:
        """Request memory for a start; without room for a base, a shared process of another run may have it already."""
        answer = self._engine.memory.ask(
            waiting.node,
            waiting.execute.action,
            is_work_running=self._running > 0,
            share_key=waiting.needs.share_key,
            joins=joins,
        )
        if isinstance(answer, Admission) or joins or not self._is_shared_process_up(waiting):
            return answer
        return self._ask_for_memory(waiting, joins=True)

    def _is_shared_process_up(self, waiting: QueuedNode) -> bool:
        runner = self._shared_runner(waiting)
        if runner is None or waiting.needs.gpu:
            return False
        return runner.is_up(shared_process_key(waiting.node.stage, waiting.needs.share_key, waiting.execute.action))

    def _shared_runner(self, waiting: QueuedNode) -> SharedProcessRunner | None:
        return self._engine.shared_runner() if waiting.needs.share_key else None

    def _may_start(self, needs: Needs, joining: AbstractSet[str] | None) -> bool:
        """Return True if one more of these may run: as a member, or in a process of its own."""
        if joining is not None and needs.share_key not in joining:
            return False
        return not 0 < needs.most <= self.permits.members_of(needs.share_key)

    def stand_aside(self) -> None:
        """There is no room for one more, whatever it needs: let others on this machine have the devices meanwhile."""
        self.devices.wait_only_for(frozenset())

    def refuse_the_impossible(self, nodes: Sequence[PlanNode]) -> None:
        """Refuse before anything runs what this machine can never give. Raises what `impossible` gives."""
        error = impossible(nodes, devices=self.devices, memory=self._engine.memory, runner_for=self._engine.runner_for)
        if error is not None:
            raise error

    def announce(self, nodes: Sequence[PlanNode]) -> None:
        """Announce the stages that do not run in shared processes: what several of them use is imported once."""
        self._engine.announce([node.stage for node in nodes if not self._is_member(node)])

    def land(self, running: InFlightAttempt, report: AttemptReport) -> None:
        """Release what a running node held, and record its memory."""
        if report.outdated == EDITED_CODE:
            self._engine.cache.forget_code(running.node.stage.module)
        self._running -= 1
        self.permits.give_back(running.grant)
        peak_gpu_bytes = None
        if running.taken is not None:
            peak_gpu_bytes = running.taken.peak_bytes
            # What was left behind still works on them.
            if running.is_over.is_set():
                self.devices.give_back(running.taken)
        self._engine.leases.give_back(running.execute.key)
        if running.share_key:
            # What was measured is its shared process's, and says nothing of this configuration alone.
            promised_bytes, took_bytes = (0, 0) if running.taken is None else running.taken.beside_base
            self._engine.memory.note_shared(running.node, promised_bytes=promised_bytes, took_bytes=took_bytes)
            return
        self._engine.memory.note(
            running.node,
            running.execute.action,
            report.usage,
            cap_bytes=running.memory_bytes,
            peak_gpu_bytes=peak_gpu_bytes,
        )

    def _try_with_devices(
        self, waiting: QueuedNode, grant: PermitGrant, admitted: Admission | AdmissionRefusal | AdmissionDelay
    ) -> LaunchResult | DeviceWait:
        """Start it, if there are devices for it; they come last, since others on the machine want them, too."""
        taken: AttemptDevices | None = None
        try:
            if not isinstance(admitted, Admission):
                raise OutOfMemory(f"not started: {admitted.why}", hint=hint_of_less(waiting.node, admitted))
            if waiting.needs.gpu:
                if not waiting.refusals:
                    # No place in line for what another process is about to make.
                    lease = self._engine.leases.take(waiting.execute.key, self._work_of(waiting))
                    if isinstance(lease, KeyHeld):
                        self.room.leave(waiting)
                        return LaunchResult(waiting=waiting, held=lease)
                    self._engine.leases.give_back(waiting.execute.key)
                answer = self.devices.take(waiting.needs, job=self._work_of(waiting))
                if isinstance(answer, DeviceWait):
                    self._tell_of(waiting, answer)
                    return answer
                taken = answer
        except StokerError as error:
            self.room.leave(waiting)
            return LaunchResult(waiting=waiting, error=error)
        self.room.leave(waiting)
        tried = self._try(waiting, grant, admitted, taken)
        if taken is not None and tried.running is None:
            self.devices.give_back(taken)
        return tried

    def _work_of(self, waiting: QueuedNode) -> str:
        """Name what a node is to do, for others on this machine."""
        return f"{self._job}/{waiting.name}"

    def _tell_of(self, waiting: QueuedNode, wait: DeviceWait) -> None:
        """Report what a node waits for: once, and again when that changes."""
        if not wait.is_known:
            return
        is_first = waiting.is_first_refusal()
        if wait.is_ours:
            if is_first:
                self._tell_blocked(waiting, (Resource.GPU,))
        elif wait.waits_for != waiting.waits_for:
            waiting.waits_for = wait.waits_for
            advice = self._engine.memory.advice_to_share(waiting.node, waiting.execute.action)
            self._status.hold(
                Kinds.STAGE_WAITING,
                node=waiting.name,
                stage=waiting.node.stage.name,
                why=f"{wait.why}; {advice}" if advice else wait.why,
                waits_for=wait.waits_for,
                place=wait.place,
            )

    def _tell_blocked(self, waiting: QueuedNode, short_of: tuple[Resource, ...]) -> None:
        listed = [str(resource) for resource in short_of]
        self._status.hold(Kinds.STAGE_BLOCKED, node=waiting.name, stage=waiting.node.stage.name, short_of=listed)

    def _try(
        self, waiting: QueuedNode, grant: PermitGrant, admitted: Admission, taken: AttemptDevices | None
    ) -> LaunchResult:
        key = waiting.execute.key
        try:
            # What takes long to look at is looked at by the attempt, beside the loop.
            still_begins = self._engine.cache.still_begins_with
            if self._moment.quickly(still_begins, waiting.node, waiting.execute.action) is False:
                return LaunchResult(waiting=waiting, outdated=READ_FIRST)
            code = self._engine.cache.sources_for(waiting.node.stage, waiting.execute.action)
            if code is None:
                what = "its code" if waiting.node.stage.fingerprint is None else "its code or its fingerprint"
                return LaunchResult(waiting=waiting, outdated=what)
            lease = self._engine.leases.take(key, self._work_of(waiting))
            if isinstance(lease, KeyHeld):
                return LaunchResult(waiting=waiting, held=lease)
            if not waiting.execute.force:
                look = self._engine.cache.look(waiting.node.stage, key)
                if isinstance(look, Hit) and look.has_bytes:
                    self._engine.leases.give_back(key)
                    return LaunchResult(waiting=waiting, record=look.record)
            return LaunchResult(waiting=waiting, running=self._start(waiting, grant, admitted, taken, code))
        except StokerError as error:
            self._engine.leases.give_back(key)
            return LaunchResult(waiting=waiting, error=error)

    def _start(
        self,
        waiting: QueuedNode,
        grant: PermitGrant,
        admitted: Admission,
        taken: AttemptDevices | None,
        code: tuple[ModuleSource, ...],
    ) -> InFlightAttempt:
        runner = self._runner_for(waiting, code)
        # Counted over the whole run, so that the report of an attempt that was left behind is known as old.
        number = self._numbers.get(waiting.name, 0) + 1
        self._numbers[waiting.name] = number
        self._status.hold(
            Kinds.STAGE_BEGIN,
            node=waiting.name,
            stage=waiting.node.stage.name,
            key=waiting.execute.key,
            attempt=number,
            why=waiting.execute.why,
            changes=changes_as_json(waiting.execute.changes),
        )
        if admitted.is_raised:
            self._status.hold(Kinds.STAGE_LOG, node=waiting.name, text=f"its cap is {admitted.why}")
        self._status.emit_held()
        running = self._attempts.start(
            waiting, grant=grant, taken=taken, number=number, runner=runner, code=code, memory_bytes=admitted.cap_bytes
        )
        self._running += 1
        return running

    def _runner_for(self, waiting: QueuedNode, code: tuple[ModuleSource, ...]) -> StageRunner:
        """Choose what runs a stage. This process runs none that it had imported before its code was edited."""
        stage = waiting.node.stage
        runner = self._shared_runner(waiting) or self._engine.runner_for(stage)
        if not (runner.is_here or stage.is_program) or self._is_ours(code):
            return runner
        if stage.is_program or self._engine.forked_runner is None:
            raise Refused(
                f"the code of {stage.name} was edited after this process had imported it", hint="start the run again"
            )
        return self._engine.forked_runner()

    def _is_ours(self, code: tuple[ModuleSource, ...]) -> bool:
        """Return whether this process has that code, or imports it if it has not imported it yet."""
        if not any(code is one for one in self._pinned):
            if not all(map(is_imported_from, code)):
                return False
            pin(code)
            self._pinned.append(code)
        return True


SHORTEST_POLL_S = 0.02
LONGEST_POLL_S = 1.0
# How often a node is decided about again because something changed before it began, after a pause that doubles.
_MOST_DECISIONS = 6
_FIRST_PAUSE_S = 0.05


@changeable
class _Moment:
    due_s: float
    pause_s: float
    is_due: bool = False


class DeferredNodes:
    """Nodes that wait for a time (backoff, a lease elsewhere), or for another node that does the same work.

    Also nodes that are cancelled by themselves, while the others go on, and how often a node was decided about again.
    """

    def __init__(self) -> None:
        self._moments: dict[str, _Moment] = {}
        self._outdated: dict[str, int] = {}
        self._in_flight: dict[Digest, str] = {}
        self._twins: dict[Digest, list[str]] = {}

    def back_off(self, name: str, delay_s: float, now_s: float) -> None:
        """Put a node aside for a while."""
        self._moments[name] = _Moment(due_s=now_s + delay_s, pause_s=delay_s)

    def decide_later(self, name: str, now_s: float) -> bool:
        """Put a node aside that was outdated before it began; False if that happened too often."""
        count = self._outdated[name] = self._outdated.get(name, 0) + 1
        if count > _MOST_DECISIONS:
            return False
        self.back_off(name, _FIRST_PAUSE_S * (2 ** (count - 1)), now_s)
        return True

    def has_begun(self, name: str) -> None:
        """A node began: what was decided about it held."""
        self._outdated.pop(name, None)

    def poll_later(self, name: str, now_s: float) -> bool:
        """Put a node aside until it is time to look again, longer each time; says whether this is the first time."""
        before = self._moments.get(name)
        pause_s = min(LONGEST_POLL_S, before.pause_s * 1.5) if before else SHORTEST_POLL_S
        self._moments[name] = _Moment(due_s=now_s + pause_s, pause_s=pause_s)
        return before is None

    def due(self, now_s: float) -> list[str]:
        """Return the nodes whose moment has come, each once."""
        names = []
        for name, moment in self._moments.items():
            if not moment.is_due and now_s >= moment.due_s:
                moment.is_due = True
                names.append(name)
        return names

    def nap_s(self, now_s: float, longest_s: float) -> float:
        """Return how long nothing here needs attention."""
        waits = [moment.due_s - now_s for moment in self._moments.values() if not moment.is_due]
        return max(0.0, min([longest_s, *waits]))

    def forget(self, name: str) -> None:
        """Stop waiting for the moment of a node."""
        self._moments.pop(name, None)

    def take_off(self, key: Digest, name: str) -> bool:
        """A node is about to do the work of a key. False: another node already is, and this one waits for it."""
        if key in self._in_flight:
            self._twins.setdefault(key, []).append(name)
            return False
        self._in_flight[key] = name
        return True

    def land(self, key: Digest) -> list[str]:
        """The work of a key is over; gives the nodes that waited for it."""
        self._in_flight.pop(key, None)
        return self._twins.pop(key, [])

    def release_all(self) -> list[str]:
        """Return every node that waits, because the run is stopping."""
        names = [*self._moments, *(name for twins in self._twins.values() for name in twins)]
        self._moments.clear()
        self._twins.clear()
        return names


class CancelledNodes:
    """Nodes to be cancelled while the others go on. `add` from one other thread at a time, the rest from the loop."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._looked_for: frozenset[str] = frozenset()
        self._open: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._names)

    def __contains__(self, name: str) -> bool:
        """Return True if a node is one of them, or an instance of one that fans out."""
        return name.partition("[")[0] in self._names

    def add(self, names: Iterable[str]) -> None:
        """Ask for more of them to be cancelled."""
        self._names = self._names.union(names)

    def still_open(self, nodes: Iterable[str], has_ended: Callable[[str], bool]) -> list[str]:
        """Return those among a plan's nodes that have not ended. All nodes are looked through only after `add`."""
        if self._looked_for is not self._names:
            self._looked_for = self._names
            self._open = [name for name in nodes if name in self]
        self._open = [name for name in self._open if not has_ended(name)]
        return self._open


_FEWER = (
    "gpus=0 runs on the CPU; `stoker doctor` shows the devices of this machine, `stoker machines` those of the fleet; "
    "`stoker submit` takes the same settings"
)


def impossible(
    nodes: Sequence[PlanNode],
    *,
    devices: DeviceGate,
    memory: MemoryGate,
    runner_for: Callable[[Stage], StageRunner],
) -> StokerError | None:
    """Return why some of these nodes can never run here, or give nothing.

    `InvalidPlan`, `OutOfMemory` for memory, `ProgramNotFound` and its like for a program.
    """
    faults = tuple(Diagnostic(node.id, never) for node in nodes if (never := devices.never(node.needs)))
    if faults:
        headline = str(faults[0]) if len(faults) == 1 else f"{len(faults)} stages can't run on this machine"
        return InvalidPlan(headline, faults=faults, hint=_FEWER)
    too_large = [f"{node.id}: {never}" for node in nodes if (never := memory.never(node))]
    if too_large:
        is_said = all(node.stage.is_program for node in nodes)
        less = "declare less" if is_said else "reduce its needs, such as the batch size"
        return OutOfMemory("; ".join(too_large[:3]), hint=f"{less}, or run it on a larger machine")
    programs = [node for node in nodes if node.stage.is_program and not node.producers()]
    if programs:
        works = {node.id: (node.stage, node.args) for node in programs}
        try:
            runner_for(programs[0].stage).check(works)
        except StokerError as error:
            return error
    return None


def impossible_here(engine: Engine, nodes: Sequence[PlanNode]) -> StokerError | None:
    """Return the same for a dry run."""
    devices = engine.open_devices(lambda: None) if any(node.needs.gpu for node in nodes) else NoDevices()
    try:
        return impossible(nodes, devices=devices, memory=engine.memory, runner_for=engine.runner_for)
    finally:
        devices.close()
