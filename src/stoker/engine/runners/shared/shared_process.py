"""The shared process itself: accepts members, and runs the one function that works for all.

Its supervisor starts it in containment, with the socket already open; it ends with its supervisor. What the function
prints goes to every member's log, and what it raises fails every member that is left. Without members it waits for the
linger time, closes the socket and ends.
"""

from __future__ import annotations

import io
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TextIO

from stoker.core.clock import Clock, SystemClock
from stoker.core.errors import InternalError, StokerError
from stoker.core.events import MEMBER_USAGE
from stoker.core.frozen import changeable, fresh
from stoker.core.jsontext import loads
from stoker.devices.ledger.ledger import Ledger
from stoker.devices.ledger.ledger_rules import ceiling_of
from stoker.devices.ledger.reservations import NoMeter, Reservation
from stoker.engine.kinds import Kind
from stoker.engine.runners.shared.members import FORMAT, MemberConnection, MemberServer
from stoker.engine.runners.stage_runner import (
    CODE_EDITED,
    MOST_MEMBERS_NAMED,
    MemberUsage,
    StageFailure,
    StageSuccess,
    answer_of,
    checked_args,
    context_of,
    failure_of,
    find_stage,
    given_inputs,
    handles_of,
    judge_made,
    member_name,
)
from stoker.engine.stage import Member
from stoker.host import linux
from stoker.host.identity import mine, of_pid
from stoker.host.import_watch import entry_point, import_only, received
from stoker.host.network import allow_many_files
from stoker.host.sockets import NamedSocket, NamedSocketListener

# Reservations of device memory that members' runs made. If a member's run is gone, its shared process releases them.


def ceiling_by(claims: Iterable[Any]) -> int | None:
    """Return the maximum memory of a device by the reservations of the members; None: all of it."""
    with suppress(ValueError, KeyError, TypeError):
        return ceiling_of([Reservation.from_dict(claim["entry"]) for claim in claims if claim])
    return None


def release(claim: Any) -> None:
    """Release a member's reservation. Idempotent. What can't be released ends with this process."""
    with suppress(StokerError, ValueError, KeyError, TypeError):
        if claim:
            held = Reservation.from_dict(claim["entry"])
            Ledger(claim["folder"], clock=SystemClock(), meter=NoMeter()).release(held)


# Which members shared this process at the same time, for the record of each attempt.


@changeable
class _Presence:
    name: str
    members: int
    others: int = 0
    named: list[str] = fresh(factory=list)

    def meet(self, another: _Presence, members: int) -> None:
        self.others += 1
        self.members = max(self.members, members)
        if len(self.named) < MOST_MEMBERS_NAMED:
            self.named.append(another.name)


class MemberUsageTracker:
    """Records which members shared the process with which, by number."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._present: dict[int, _Presence] = {}

    def came(self, number: int, name: object) -> None:
        """Note a new member."""
        members = len(self._present) + 1
        newcomer = _Presence(name=member_name(name), members=members)
        for one in self._present.values():
            one.meet(newcomer, members)
            newcomer.meet(one, members)
        self._present[number] = newcomer

    def left(self, number: int) -> MemberUsage:
        """Note that a member left; return its usage."""
        one = self._present.pop(number)
        return MemberUsage(process=self._process, members=one.members, others=one.others, named=tuple(one.named))


_ANY = 1 << 20
_LAST_ANSWERS_S = 10.0
_LONGEST_LINE = 1 << 14
_JOIN_GAP_S = 0.2
"""Members of one run join one after another: how long the next one takes at most."""
_ALL_JOINED_S = 1.0
"""How long the first one waits at most."""


class LiveSharedContext:
    """The `SharedContext` of a shared process."""

    def __init__(
        self,
        members: MemberServer,
        door: NamedSocket,
        opened: NamedSocketListener,
        *,
        devices: tuple[str, ...],
        linger_s: float,
        clock: Clock,
    ) -> None:
        self.devices = devices
        self._members = members
        self._door = door
        self._opened = opened
        self._linger_s = linger_s
        self._clock = clock
        self._connections: dict[int, MemberConnection] = {}
        self._usage = MemberUsageTracker(os.getpid())
        self._is_over = False
        self.ceiling_bytes: int | None = None
        self.in_pass = 0

    @property
    def is_over(self) -> bool:
        return self._is_over

    def new_members(self, wait_s: float) -> list[Member]:
        """Return new members; after the linger time without any member, the process is over."""
        deadline_s = self._clock.monotonic_s() + wait_s
        empty_s: float | None = None
        with self._members.changed:
            while not (joined := self._members.take_joined(self._fits)):
                left_s = deadline_s - self._clock.monotonic_s()
                empty_s = self._members.empty_for_s()
                if empty_s is not None:
                    left_s = min(left_s, self._linger_s - empty_s)
                if left_s <= 0:
                    break
                self._members.changed.wait(left_s)
            if not self._connections:
                joined += self._following(joined)
        if not joined and empty_s is not None and empty_s >= self._linger_s:
            self._is_over = self._withdraw()
        members = [member for connection in joined if (member := self._admit(connection)) is not None]
        if joined:
            self._update_limits()
        return members

    def _following(self, joined: Sequence[MemberConnection]) -> list[MemberConnection]:
        """Return the members that follow the first ones, each within `_JOIN_GAP_S`: all of a run begin in one step.

        Otherwise the first would be ahead of the others for as long as it trains.
        """
        together = list(joined)

        def fits(newcomers: list[MemberConnection]) -> bool:
            return self._fits([*together, *newcomers])

        while joined and fits([joined[0]]):
            more = self._members.take_joined(fits)
            together += more
            until_s = min(together[-1].joined_s + _JOIN_GAP_S, joined[0].joined_s + _ALL_JOINED_S)
            left_s = until_s - self._clock.monotonic_s()
            if not more and left_s <= 0:
                break
            if not more:
                self._members.changed.wait(left_s)
        return together[len(joined) :]

    def fail_all(self, error: BaseException) -> None:
        """Fail every member, and every one that is joining, with this error."""
        failed = failure_of(error)
        self._is_over = True
        self._close(unless_knocked=False)
        for number in list(self._connections):
            self._answer(number, failed)
        deadline_s = self._clock.monotonic_s() + _LAST_ANSWERS_S
        with self._members.changed:
            while self._members.empty_for_s() is None and self._clock.monotonic_s() < deadline_s:
                for connection in self._members.take_joined():
                    self._members.answer(connection, _as_message(failed))
                self._members.changed.wait(0.05)

    def _fits(self, newcomers: list[MemberConnection]) -> bool:
        """Return True if no member, current or new, would be among more than its maximum."""
        together = [*self._connections.values(), *newcomers]
        return all(len(together) <= limit for limit in _limits("most", together))

    def _withdraw(self) -> bool:
        self._members.set_accepting(False)
        with self._members.changed:
            is_empty = self._members.empty_for_s() is not None
        if is_empty and self._close(unless_knocked=True):
            return True
        self._members.set_accepting(True)
        return False

    def _close(self, *, unless_knocked: bool) -> bool:
        try:
            return self._door.close(self._opened, unless_knocked=unless_knocked)
        except StokerError:
            # The supervisor tries once more; a member that connects until then has to try again.
            return True

    def _admit(self, connection: MemberConnection) -> Member | None:
        number = next(number for number in range(_ANY) if number not in self._connections)
        self._connections[number] = connection
        work = connection.work or {}
        self._usage.came(number, work.get("who", work.get("node")))
        try:
            stage = find_stage(work["entry"])
            job = context_of(work, stage, connection.send, lambda: connection.is_stopped or connection.is_gone)
            args = stage.args.make(checked_args(work, stage))
            inputs = handles_of(stage, given_inputs(work))
        except BaseException as error:  # noqa: BLE001 - sent to that member
            self._answer(number, failure_of(error))
            return None

        def answer(outcome: Kind[Any] | BaseException) -> None:
            if isinstance(outcome, BaseException):
                self._answer(number, failure_of(outcome))
            else:
                self._answer(number, judge_made(stage, outcome, work["out"]))

        return Member(number, job=job, inputs=inputs, args=args, answer=answer, is_gone=lambda: connection.is_gone)

    def _update_limits(self) -> None:
        self.ceiling_bytes = ceiling_by(one.work.get("claim") for one in self._connections.values() if one.work)
        limits = _limits("in_pass", self._connections.values())
        # The ledger holds the largest pass of some members once, and all that the others need.
        self.in_pass = max(limits) + len(self._connections) - len(limits) if limits else 0

    def _answer(self, number: int, outcome: StageSuccess | StageFailure) -> None:
        connection = self._connections.pop(number)
        if isinstance(outcome, StageFailure) and outcome.error_code == CODE_EDITED.error_code:
            # Its subprocesses may run other code for as long as they live: no other member may join.
            self._close(unless_knocked=False)
        self._update_limits()
        if connection.is_gone and connection.work is not None:
            # Its run may have been killed: this process holds its reservation by now.
            release(connection.work.get("claim"))
        self._members.answer(connection, _as_message(outcome, self._usage.left(number)))


class MemberLogStream(io.TextIOBase):
    """A stream that is copied to every member's log, line by line."""

    def __init__(self, own: TextIO, emit: Callable[[str], None]) -> None:
        self._own = own
        self._emit = emit
        self._lock = threading.RLock()
        self._line = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base says that it may be missing
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._own.fileno()

    def write(self, text: str) -> int:
        with self._lock:
            self._own.write(text)
            whole, newline, self._line = (self._line + text).rpartition("\n")
            if newline:
                self._own.flush()
                self._emit(whole)
            if len(self._line) > _LONGEST_LINE:
                # Progress bars never end their line.
                self._emit(self._line)
                self._line = ""
        return len(text)

    def flush(self) -> None:
        self._own.flush()


def main(descriptor: int) -> NoReturn:
    """Run the shared process that a request describes, and exit."""
    with open(descriptor, "rb") as file:
        order: dict[str, Any] = loads(file.read())
    linux.die_with_parent(signal.SIGKILL)
    supervisor = of_pid(order["keeper_pid"])
    if supervisor is None or os.getppid() != order["keeper_pid"]:
        # The supervisor ended before the call above, so the signal never comes.
        os._exit(1)
    linux.set_name("stoker-company")
    allow_many_files()
    clock = SystemClock()
    listener = socket.socket(fileno=order["listener_fd"])
    door, opened = (
        NamedSocket(order["folder"], order["name"]),
        NamedSocketListener(listener=listener, mark=order["mark"]),
    )
    greeting = {"v": FORMAT, "hello": {"identity": mine().to_dict(), "keeper": supervisor.to_dict()}}
    members = MemberServer(listener, greeting, order["exit_fd"], clock=clock)
    sys.stdout = MemberLogStream(sys.stdout, lambda text: members.send_all({"log": text}))
    sys.stderr = MemberLogStream(sys.stderr, lambda text: members.send_all({"log": text}))
    shared = LiveSharedContext(
        members, door, opened, devices=tuple(order["devices"]), linger_s=order["linger_s"], clock=clock
    )
    status = 1
    try:
        # All members have this code: its digest is part of the name of the shared process.
        import_only(received(order["sources_fd"]))
        entry_point(order["run"])(shared)
        if not shared.is_over:
            raise InternalError(f"{order['run']} returned before the shared process was over")
        status = 0
    except BaseException as error:  # noqa: BLE001 - sent to every member
        traceback.print_exc()
        shared.fail_all(error)
    members.close(_LAST_ANSWERS_S)
    os._exit(status)


def _limits(name: str, members: Iterable[MemberConnection]) -> list[int]:
    """Return the limits that members set by this name."""
    found = [member.work.get(name) for member in members if member.work]
    return [limit for limit in found if isinstance(limit, int) and limit > 0]


def _as_message(outcome: StageSuccess | StageFailure, usage: MemberUsage | None = None) -> dict[str, Any]:
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    recorded = None if usage is None else usage.to_json()
    return {"answer": answer_of(outcome), "peak_rss_bytes": peak_bytes, MEMBER_USAGE: recorded}
