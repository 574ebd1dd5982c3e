"""A company's own process: it greets members, and runs the one function that works for all.

Started by its supervisor, inside a box, with the socket already open; it ends with its supervisor. What the
function prints goes to every member's log, and what it raises fails every member that is left. Without members it
lingers a little, closes the door and ends.
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
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn, TextIO

from stoker.core.clock import Clock, SystemClock
from stoker.core.errors import InternalError, StokerError
from stoker.core.frozen import changeable, fresh
from stoker.core.jsontext import loads
from stoker.devices.ledger.ledger import Ledger
from stoker.devices.ledger.ledger_rules import ceiling_of
from stoker.devices.ledger.reservations import NoMeter, Reservation
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
from stoker.engine.stage import Kind, Member
from stoker.host import linux
from stoker.host.identity import mine, of_pid
from stoker.host.import_watch import entry_point, import_only, received
from stoker.host.network import allow_many_files
from stoker.host.sockets import NamedSocket, NamedSocketListener

# What members' runs took of devices for them, as their company sees it: how much that is, and how it is given back.
#
# A member whose run is gone can't give it back itself: its company does, whose process holds it by then.


def ceiling_by(claims: Iterable[Any]) -> int | None:
    """Return the most that a company may take of a device by the claims of its members; nothing: all there is."""
    with suppress(ValueError, KeyError, TypeError):
        return ceiling_of([Reservation.from_dict(claim["entry"]) for claim in claims if claim])
    return None


def give_back(claim: Any) -> None:
    """Give back what a member's run took in the ledger; what can't be goes with this process. Twice is fine."""
    with suppress(StokerError, ValueError, KeyError, TypeError):
        if claim:
            held = Reservation.from_dict(claim["entry"])
            Ledger(claim["folder"], clock=SystemClock(), meter=NoMeter()).release(held)


# With whom each member has shared this process, for the record of its attempt.


@changeable
class _Seated:
    name: str
    members: int
    others: int = 0
    named: list[str] = fresh(factory=list)

    def meet(self, another: _Seated, members: int) -> None:
        self.others += 1
        self.members = max(self.members, members)
        if len(self.named) < MOST_MEMBERS_NAMED:
            self.named.append(another.name)


class MemberUsageTracker:
    """All members of one company, by slot."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._seated: dict[int, _Seated] = {}

    def came(self, seat: int, name: object) -> None:
        """Note a new member."""
        members = len(self._seated) + 1
        newcomer = _Seated(name=member_name(name), members=members)
        for one in self._seated.values():
            one.meet(newcomer, members)
            newcomer.meet(one, members)
        self._seated[seat] = newcomer

    def left(self, seat: int) -> MemberUsage:
        """Note that a member left; return its usage."""
        one = self._seated.pop(seat)
        return MemberUsage(process=self._process, members=one.members, others=one.others, named=tuple(one.named))


_ANY = 1 << 20
_LAST_ANSWERS_S = 10.0
_LONGEST_LINE = 1 << 14


class LiveSharedContext:
    """The company as its function sees it: `SharedContext`."""

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
        self._seats: dict[int, MemberConnection] = {}
        self._stays = MemberUsageTracker(os.getpid())
        self._is_over = False
        self.ceiling_bytes: int | None = None

    @property
    def is_over(self) -> bool:
        return self._is_over

    def new_members(self, wait_s: float) -> list[Member]:
        """Return new members; without any for the linger time, the company is over."""
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
        if not joined and empty_s is not None and empty_s >= self._linger_s:
            self._is_over = self._withdraw()
        seats = [seat for member in joined if (seat := self._seat(member)) is not None]
        if joined:
            self._look_at_claims()
        return seats

    def fail_all(self, error: BaseException) -> None:
        """Give up: every member, and every one that is joining, fails for this reason."""
        failed = failure_of(error)
        self._is_over = True
        self._close(unless_knocked=False)
        for number in list(self._seats):
            self._answer(number, failed)
        deadline_s = self._clock.monotonic_s() + _LAST_ANSWERS_S
        with self._members.changed:
            while self._members.empty_for_s() is None and self._clock.monotonic_s() < deadline_s:
                for member in self._members.take_joined():
                    self._members.told(member, _as_message(failed))
                self._members.changed.wait(0.05)

    def _fits(self, newcomers: list[MemberConnection]) -> bool:
        """Return whether these may sit beside those who are here: no member is with more others than it said."""
        together = [*self._seats.values(), *newcomers]
        limits = [member.work.get("most") for member in together if member.work]
        return all(len(together) <= limit for limit in limits if isinstance(limit, int) and limit > 0)

    def _withdraw(self) -> bool:
        self._members.let_in(is_open=False)
        with self._members.changed:
            is_empty = self._members.empty_for_s() is not None
        if is_empty and self._close(unless_knocked=True):
            return True
        self._members.let_in(is_open=True)
        return False

    def _close(self, *, unless_knocked: bool) -> bool:
        try:
            return self._door.close(self._opened, unless_knocked=unless_knocked)
        except StokerError:
            # The supervisor tries once more; a member that connects until then is asked to try again.
            return True

    def _seat(self, member: MemberConnection) -> Member | None:
        number = next(number for number in range(_ANY) if number not in self._seats)
        self._seats[number] = member
        work = member.work or {}
        self._stays.came(number, work.get("who", work.get("node")))
        try:
            stage = find_stage(work["entry"])
            job = context_of(work, stage, member.say, lambda: member.is_stopped or member.is_gone)
            args = stage.args.make(checked_args(work, stage))
            inputs = handles_of(stage, given_inputs(work))
        except BaseException as error:  # noqa: BLE001 - of one member, and for it to hear
            self._answer(number, failure_of(error))
            return None

        def answer(said: Kind[Any] | BaseException) -> None:
            if isinstance(said, BaseException):
                self._answer(number, failure_of(said))
            else:
                self._answer(number, judge_made(stage, said, work["out"]))

        return Member(number, job=job, inputs=inputs, args=args, answer=answer, is_gone=lambda: member.is_gone)

    def _look_at_claims(self) -> None:
        self.ceiling_bytes = ceiling_by(member.work.get("claim") for member in self._seats.values() if member.work)

    def _answer(self, number: int, outcome: StageSuccess | StageFailure) -> None:
        member = self._seats.pop(number)
        if isinstance(outcome, StageFailure) and outcome.error_code == CODE_EDITED.error_code:
            # What it has started may work with other code for as long as it lives: no other member joins.
            self._close(unless_knocked=False)
        self._look_at_claims()
        if member.is_gone and member.work is not None:
            # Its run may have been killed: what it holds of devices is held by this process by now.
            give_back(member.work.get("claim"))
        self._members.told(member, _as_message(outcome, self._stays.left(number)))


class MemberLogStream(io.TextIOBase):
    """A stream that also goes to every member's log, line by line."""

    def __init__(self, own: TextIO, tell: Callable[[str], None]) -> None:
        self._own = own
        self._tell = tell
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
                self._tell(whole)
            if len(self._line) > _LONGEST_LINE:
                # Bars that are drawn over and over never end their line.
                self._tell(self._line)
                self._line = ""
        return len(text)

    def flush(self) -> None:
        self._own.flush()


def main(descriptor: int) -> NoReturn:
    """Be the company that an order describes, and end."""
    with open(descriptor, "rb") as file:
        order: dict[str, Any] = loads(file.read())
    linux.die_with_parent(signal.SIGKILL)
    keeper = of_pid(order["keeper_pid"])
    if keeper is None or os.getppid() != order["keeper_pid"]:
        # It ended before we asked, so the signal never comes.
        os._exit(1)
    linux.set_name("stoker-company")
    allow_many_files()
    clock = SystemClock()
    listener = socket.socket(fileno=order["listener_fd"])
    door, opened = (
        NamedSocket(order["folder"], order["name"]),
        NamedSocketListener(listener=listener, mark=order["mark"]),
    )
    greeting = {"v": FORMAT, "hello": {"identity": mine().to_dict(), "keeper": keeper.to_dict()}}
    members = MemberServer(listener, greeting, order["words_fd"], clock=clock)
    sys.stdout = MemberLogStream(sys.stdout, lambda text: members.tell_all({"log": text}))
    sys.stderr = MemberLogStream(sys.stderr, lambda text: members.tell_all({"log": text}))
    hall = LiveSharedContext(
        members, door, opened, devices=tuple(order["devices"]), linger_s=order["linger_s"], clock=clock
    )
    status = 1
    try:
        # All members have this code: the company is named by its digest.
        import_only(received(order["sources_fd"]))
        entry_point(order["run"])(hall)
        if not hall.is_over:
            raise InternalError(f"{order['run']} returned while its company was not over")
        status = 0
    except BaseException as error:  # noqa: BLE001 - whatever it is, every member has to hear of it
        traceback.print_exc()
        hall.fail_all(error)
    members.close(_LAST_ANSWERS_S)
    os._exit(status)


def _as_message(outcome: StageSuccess | StageFailure, stay: MemberUsage | None = None) -> dict[str, Any]:
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    company = None if stay is None else stay.to_json()
    return {"answer": answer_of(outcome), "peak_rss_bytes": peak_bytes, "company": company}
