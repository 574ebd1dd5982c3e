"""From waiting to running: room on the machine, devices, the lease on the key, then an attempt.

Says what became of a node that it tried to start; what follows from that is the executor's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from stoker.hardware.admission import Admitted, NotNow, TooLarge
from stoker.host.imports import Source, is_imported_from, pin
from stoker.model.errors import OutOfMemory, Refused, StokerError
from stoker.model.frozen import changed, frozen
from stoker.model.resources import Needs, Resource
from stoker.plan.admitting import hint_of_less
from stoker.plan.cache import Hit
from stoker.plan.company.keys import company_key, company_word
from stoker.plan.device.gate import DeviceGate, NoDevices, Taken, Wait
from stoker.plan.engine import Engine
from stoker.plan.execution.attempting import EDITED_CODE, READ_FIRST, Attempts, Report, Running
from stoker.plan.execution.news import News
from stoker.plan.execution.queueing import Waiting, WaitingRoom
from stoker.plan.execution.reading import Moment
from stoker.plan.graph import Node
from stoker.plan.impossible import impossible
from stoker.plan.lease import Held
from stoker.plan.permits import Grant, Permits, Shortage
from stoker.plan.resolve import Execute
from stoker.plan.runner import StageRunner
from stoker.store.records import Record

if TYPE_CHECKING:
    from stoker.plan.company.runner import CompanyRunner


@frozen
class Started:
    """It runs."""

    running: Running


@frozen
class Elsewhere:
    """Another process does this very work."""

    waiting: Waiting
    held: Held


@frozen
class JustMade:
    """Another process has done this very work since it was looked up."""

    waiting: Waiting
    record: Record


@frozen
class Outdated:
    """Its code, or what it reads first, has changed since it was decided about: it has to be decided about again."""

    waiting: Waiting
    what: str
    """What has changed, for people."""


@frozen
class NotStarted:
    """Something on this machine is in the way."""

    waiting: Waiting
    error: StokerError


class Launchpad:
    """Nodes that wait for room, and the room there is. Only the executor's loop uses it."""

    def __init__(  # noqa: PLR0913 - all that a start depends on
        self,
        engine: Engine,
        *,
        attempts: Attempts,
        news: News,
        moment: Moment,
        job: str,
        uses_devices: bool,
        solo: bool = False,
    ) -> None:
        self._engine = engine
        self._solo = solo
        self._attempts = attempts
        self._news = news
        self._moment = moment
        self._pinned: list[tuple[Source, ...]] = []
        self._numbers: dict[str, int] = {}
        self._running = 0
        self._job = job
        self.permits = Permits(engine.capacity)
        self.devices: DeviceGate = engine.open_devices(attempts.wake) if uses_devices else NoDevices()
        self.room = WaitingRoom()

    def needs_of(self, node: Node, execute: Execute) -> Needs:
        """Give what a node holds while it runs, with the company that it would be a member of."""
        if node.stage.together is None or self._solo or self._engine.company_runner() is None:
            return node.needs
        return changed(node.needs, company=company_word(node.stage, node.args, execute.action))

    def launch_one(
        self, *, joining: AbstractSet[str] | None = None
    ) -> Started | Elsewhere | JustMade | Outdated | NotStarted | None:
        """Try the first waiting node that there is room for; smaller ones may pass those that are short.

        With `joining`, only those that become members of one of these companies.
        """
        in_line: set[Needs] = set()
        for waiting in (one for one in self.room.first_of_each() if self._has_seat(one.needs, joining)):
            joins = self.permits.members_of(waiting.needs.company) > 0
            grant = self.permits.take(waiting.needs)
            if isinstance(grant, Shortage):
                if waiting.is_first_refusal():
                    self._news.blocked(waiting.name, waiting.node, grant.short_of)
                if waiting.has_waited_enough:
                    break
                continue
            admitted = self._ask_for_memory(waiting, joins=joins)
            is_short = isinstance(admitted, NotNow) and admitted.may_wait
            tried = None if is_short else self._try_with_devices(waiting, grant, admitted)
            if not isinstance(tried, Started):
                self.permits.give_back(grant)
            if tried is None:
                if waiting.is_first_refusal():
                    self._news.blocked(waiting.name, waiting.node, (Resource.MEMORY,))
                continue
            if not isinstance(tried, Wait):
                return tried
            if not tried.is_known:
                # A moment, and it may start: until then nobody behind it does.
                return None
            in_line.add(waiting.needs)
        self.devices.wait_only_for(in_line)
        return None

    def _ask_for_memory(self, waiting: Waiting, *, joins: bool) -> Admitted | TooLarge | NotNow:
        """Ask for a start; where there is no room for a base, it may be there already, in a company of another run."""
        answer = self._engine.memory.ask(
            waiting.node,
            waiting.execute.action,
            is_work_running=self._running > 0,
            company=waiting.needs.company,
            joins=joins,
        )
        if isinstance(answer, Admitted) or joins or not self._has_company(waiting):
            return answer
        return self._ask_for_memory(waiting, joins=True)

    def _has_company(self, waiting: Waiting) -> bool:
        runner = self._company_runner(waiting)
        if runner is None or waiting.needs.gpu:
            return False
        return runner.is_begun(company_key(waiting.node.stage, waiting.needs.company, waiting.execute.action))

    def _company_runner(self, waiting: Waiting) -> CompanyRunner | None:
        return self._engine.company_runner() if waiting.needs.company else None

    def _has_seat(self, needs: Needs, joining: AbstractSet[str] | None) -> bool:
        """Whether there is a place at all: a company's, or one beside it."""
        if joining is not None and needs.company not in joining:
            return False
        return not 0 < needs.most <= self.permits.members_of(needs.company)

    def stand_aside(self) -> None:
        """There is no room for one more, whatever it needs: let others on this machine have the devices meanwhile."""
        self.devices.wait_only_for(frozenset())

    def refuse_the_impossible(self, nodes: Sequence[Node]) -> None:
        """Refuse before anything runs what this machine can never give. Raises what `impossible` gives."""
        error = impossible(nodes, devices=self.devices, memory=self._engine.memory, runner_for=self._engine.runner_for)
        if error is not None:
            raise error

    def land(self, running: Running, report: Report) -> None:
        """Give back what a running node held, and remember how much memory it took."""
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
        if running.company:
            # What was measured is its company's, and says nothing of this configuration alone.
            promised_bytes, took_bytes = (0, 0) if running.taken is None else running.taken.beside_base
            self._engine.memory.note_company(running.node, promised_bytes=promised_bytes, took_bytes=took_bytes)
            return
        self._engine.memory.note(
            running.node,
            running.execute.action,
            report.usage,
            cap_bytes=running.memory_bytes,
            peak_gpu_bytes=peak_gpu_bytes,
        )

    def _try_with_devices(
        self, waiting: Waiting, grant: Grant, admitted: Admitted | TooLarge | NotNow
    ) -> Started | Elsewhere | JustMade | Outdated | NotStarted | Wait:
        """Start it, if there are devices for it; they come last, since others on the machine want them, too."""
        taken: Taken | None = None
        try:
            if not isinstance(admitted, Admitted):
                raise OutOfMemory(f"not started: {admitted.why}", hint=hint_of_less(waiting.node, admitted))
            if waiting.needs.gpu:
                if not waiting.refusals:
                    # Nobody stands in line for what another process is about to make.
                    lease = self._engine.leases.take(waiting.execute.key, self._work_of(waiting))
                    if isinstance(lease, Held):
                        self.room.leave(waiting)
                        return Elsewhere(waiting=waiting, held=lease)
                    self._engine.leases.give_back(waiting.execute.key)
                answer = self.devices.take(waiting.needs, job=self._work_of(waiting))
                if isinstance(answer, Wait):
                    self._tell_of(waiting, answer)
                    return answer
                taken = answer
        except StokerError as error:
            self.room.leave(waiting)
            return NotStarted(waiting=waiting, error=error)
        self.room.leave(waiting)
        tried = self._try(waiting, grant, admitted, taken)
        if taken is not None and not isinstance(tried, Started):
            self.devices.give_back(taken)
        return tried

    def _work_of(self, waiting: Waiting) -> str:
        """Name what a node is to do, for others on this machine."""
        return f"{self._job}/{waiting.name}"

    def _tell_of(self, waiting: Waiting, wait: Wait) -> None:
        """Say what a node waits for: once, and again when that is another thing."""
        if not wait.is_known:
            return
        is_first = waiting.is_first_refusal()
        if wait.is_ours:
            if is_first:
                self._news.blocked(waiting.name, waiting.node, (Resource.GPU,))
        elif wait.waits_for != waiting.waits_for:
            waiting.waits_for = wait.waits_for
            advice = self._engine.memory.advice_to_share(waiting.node, waiting.execute.action)
            self._news.waits_for_devices(waiting.name, waiting.node, wait, advice)

    def _try(
        self, waiting: Waiting, grant: Grant, admitted: Admitted, taken: Taken | None
    ) -> Started | Elsewhere | JustMade | Outdated | NotStarted:
        key = waiting.execute.key
        try:
            # What takes long to look at is looked at by the attempt, beside the loop.
            still_begins = self._engine.cache.still_begins_with
            if self._moment.quickly(still_begins, waiting.node, waiting.execute.action) is False:
                return Outdated(waiting=waiting, what=READ_FIRST)
            code = self._engine.cache.sources_for(waiting.node.stage, waiting.execute.action)
            if code is None:
                what = "its code" if waiting.node.stage.fingerprint is None else "its code or its fingerprint"
                return Outdated(waiting=waiting, what=what)
            lease = self._engine.leases.take(key, self._work_of(waiting))
            if isinstance(lease, Held):
                return Elsewhere(waiting=waiting, held=lease)
            if not waiting.execute.force:
                look = self._engine.cache.look(waiting.node.stage, key)
                if isinstance(look, Hit) and look.has_bytes:
                    self._engine.leases.give_back(key)
                    return JustMade(waiting=waiting, record=look.record)
            return Started(running=self._start(waiting, grant, admitted, taken, code))
        except StokerError as error:
            self._engine.leases.give_back(key)
            return NotStarted(waiting=waiting, error=error)

    def _start(
        self, waiting: Waiting, grant: Grant, admitted: Admitted, taken: Taken | None, code: tuple[Source, ...]
    ) -> Running:
        runner = self._runner_for(waiting, code)
        # Counted over the whole run, so that the report of an attempt that was left behind is known as old.
        number = self._numbers.get(waiting.name, 0) + 1
        self._numbers[waiting.name] = number
        self._news.begins(waiting.name, waiting.node, waiting.execute, number)
        if admitted.is_raised:
            self._news.said(waiting.name, f"its cap is {admitted.why}")
        self._news.tell()
        running = self._attempts.start(
            waiting, grant=grant, taken=taken, number=number, runner=runner, code=code, memory_bytes=admitted.cap_bytes
        )
        self._running += 1
        return running

    def _runner_for(self, waiting: Waiting, code: tuple[Source, ...]) -> StageRunner:
        """Choose what runs a stage. This process runs none that it had imported before its code was edited."""
        stage = waiting.node.stage
        runner = self._company_runner(waiting) or self._engine.runner_for(stage)
        if not (runner.is_here or stage.is_program) or self._is_ours(code):
            return runner
        if stage.is_program or self._engine.forked_runner is None:
            raise Refused(
                f"the code of {stage.name} was edited after this process had imported it", hint="start the run again"
            )
        return self._engine.forked_runner()

    def _is_ours(self, code: tuple[Source, ...]) -> bool:
        """Return whether this process has that code, or imports it if it has not imported it yet."""
        if not any(code is one for one in self._pinned):
            if not all(map(is_imported_from, code)):
                return False
            pin(code)
            self._pinned.append(code)
        return True
