"""The ranks of a gang as processes: started together, spoken to together, ended together."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from stoker.gang.bringing_up import Cancel, Patience, is_ready, wait_for
from stoker.gang.calling import Exchange
from stoker.gang.frames import Kind, pack
from stoker.gang.interfaces import variables_for
from stoker.gang.judging import Look
from stoker.gang.meeting import UP, Meeting
from stoker.gang.plans import CALLS, ERR, OUT, GangPlan, memory_of_all, rank_plans
from stoker.gang.ranks import Ranks
from stoker.gang.staging import Staging
from stoker.gang.starting import RANK_ENTRY, Starter
from stoker.gang.stopping import CLOSE_S, ROLLBACK_S, stop
from stoker.gang.together import Together
from stoker.model.errors import StokerError
from stoker.model.gang_errors import RankFailed


class Live:
    """The processes. What fails is raised; whoever gets that calls `end`."""

    def __init__(self, plan: GangPlan, starter: Starter, cancel: Cancel, meeting: Meeting) -> None:
        self._plan = plan
        self._meeting = meeting
        self._cancel = cancel
        self._ends: list[socket.socket] = []
        self._ranks = Ranks(starter, plan.names, first_rank=plan.first_rank)
        self._together: Together | None = None
        try:
            self._staging = Staging(plan.configs)
        except BaseException:
            self._ranks.close()
            raise
        cancel.attend(self._ranks)

    def bring_up(self, started_ns: int) -> list[Look]:
        """Start all ranks and wait until every one is ready."""
        plan = self._plan
        staged = [self._staging.orders(rank) for rank in range(len(plan.configs))]
        ranks = rank_plans(plan, staged, started_ns)
        surroundings = _surroundings(plan.seats.address if plan.seats is not None else "")
        with memory_of_all(ranks) as common:
            output = {name: number for name, number in ((OUT, 1), (ERR, 2)) if _is_open(number)}
            for index, rank in enumerate(ranks):
                if self._cancel.is_wanted or self._ranks.has_failed():
                    break
                ours, theirs = socket.socketpair()
                self._ends.append(ours)
                with theirs:
                    fds = {**common, **output, **self._staging.fds(index), CALLS: theirs.fileno()}
                    self._ranks.start(RANK_ENTRY, {**rank.to_request(), **surroundings}, fds, cwd=os.getcwd())
        patience = Patience(total_s=plan.timeout_s, phases_s=plan.phases_s, started_ns=started_ns)
        if plan.seats is None or plan.seats.is_alone:
            return self._wait(is_ready, patience)
        self._meeting.on_news(self._ranks.wake)
        left_s = max(0.0, plan.timeout_s - (time.monotonic_ns() - started_ns) / 1e9)
        self._together = Together(self._meeting, plan.seats, self._ends, left_s)
        self._wait(is_ready, patience)
        self._meeting.arrive(UP)
        return self._wait(self._together.has_come_up, Patience(total_s=None), each_look=self._together.attend_up)

    def talk(self, message: bytes, timeout_s: float | None) -> list[bytes]:
        """Send a message to every rank and wait for all answers."""
        exchange = Exchange(self._ends, message)
        patience = Patience(total_s=timeout_s)
        self._wait(exchange.has_answered, patience, conversation=exchange)
        return exchange.answers()

    def _wait(self, is_done: Callable[[Look], bool], patience: Patience, **more: Any) -> list[Look]:
        """Wait for the ranks here, and listen to the other hosts, if there are any."""
        together = self._together
        if together is None:
            return wait_for(self._ranks, is_done, patience, cancel=self._cancel, **more)
        try:
            more = {"each_look": together.attend, **more}
            return wait_for(self._ranks, is_done, patience, cancel=self._cancel, **more)
        except StokerError as error:
            first = together.settle(error)
            if first is error:
                raise
            raise first from error

    def outputs(self) -> list[dict[str, bytes]]:
        """Give what ranks have brought out, by rank and name."""
        return self._staging.read_all()

    def close(self) -> None:
        """Tell all ranks to end, and give them time; who does not is seen to by `end`.

        Raises `RankFailed` if a rank could not bring back what it was to store. Any other trouble at its end is past.
        """
        exchange = Exchange(self._ends, pack(Kind.CLOSE))
        patience = Patience(total_s=min(self._plan.grace_s, CLOSE_S))
        try:
            wait_for(self._ranks, _has_left, patience, conversation=exchange)
        except RankFailed:
            if self._staging.has_outputs:
                raise

    def end(self) -> None:
        """Stop whoever is left, confirmed, and let go of everything. Raises `ProcessLost` if somebody survives."""
        try:
            stop(self._ranks, grace_s=min(self._plan.grace_s, ROLLBACK_S / 2))
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Let go of everything; ranks that are still there end of it."""
        while self._ends:
            self._ends.pop().close()
        self._staging.close()
        self._ranks.close()


def _has_left(look: Look) -> bool:
    return look.exit is not None and look.exit.is_success


def _surroundings(address: str) -> dict[str, Any]:
    """Give what ranks take over from this process: they run its code. With an address, how to reach other hosts."""
    environ = dict(os.environ)  # noqa: TID251 - handed on, no setting of ours
    return {"environ": {**(variables_for(address) if address else {}), **environ}, "sys_path": _texts(sys.path)}


def _texts(path: Sequence[object]) -> list[str]:
    return [entry for entry in path if isinstance(entry, str)]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
