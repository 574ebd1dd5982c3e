"""Attempts as members of a company: each finds the living one, or starts it, and hears of its own work alone.

An attempt never outlives its run: the end of its connection frees its slot. To stop it is a message, to kill it is to
hang up; the company is never killed for one member. If the company's process is lost, all its members are, each to be
tried again as its own policy says. One that does not answer, because it was stopped, is waited for so long and no
longer: then its door is taken away, and another company begun. Linux only.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Any

from stoker.core.clock import Clock
from stoker.core.digests import digest_value
from stoker.core.errors import Diagnostic, InvalidArgs, NoPermission, ProcessLost, StokerError
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps
from stoker.core.retry import FailureCause
from stoker.core.text import format_duration
from stoker.engine.device_gate import HIDDEN, VRAM_BYTES
from stoker.engine.runners.process_runner import as_request
from stoker.engine.runners.program.program_end import out_of_memory
from stoker.engine.runners.shared.members import (
    FORMAT,
    ComeAgain,
    Frames,
    SharedProcessExit,
    SharedProcessHandshake,
    Unanswered,
    be_greeted,
    framed,
    is_ready,
    read_last_words,
    receive,
)
from stoker.engine.runners.stage_runner import Attempt, AttemptUsage, StageFailure, StageSuccess, Work, read_stay
from stoker.engine.stage import Stage
from stoker.host.containment.box import MARK
from stoker.host.identity import Liveness, is_alive
from stoker.host.import_watch import handed_on
from stoker.host.processes import start
from stoker.host.sockets import NamedSocket, NamedSocketListener
from stoker.host.user_switch import written
from stoker.host.writers import LogFile

# A member that finds no company starts one: its name, its socket, and its supervisor.

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from stoker.engine.runners.shared.supervisor import main; main(int(sys.argv[1]))"
)
_START_S = 30.0


@frozen
class SharedProcessSettings:
    """What all companies that are started from here have in common."""

    folder: str
    """Where their doors are: this user's own, on this machine."""
    home: str
    """Runs with another home do not join."""
    cwd: str
    environment: Mapping[str, str]
    contain: str | None
    """The containment that was asked for; nothing: the strongest that works."""
    version: str
    linger_s: float
    """How long a company without members waits for others."""
    patience_s: float = 60.0
    """When one without members that does not end is ended."""
    answer_s: float = 120.0
    """How long one that has a door is waited for until it greets, or listens."""


def company_name(company: str, devices: Sequence[str], settings: SharedProcessSettings) -> str:
    """Name the company of a key on some devices: the same only for what may share a process."""
    same = [FORMAT, company, list(devices), settings.home, settings.version, sys.executable, list(sys.path)]
    return digest_value("company name", same)[:24]


def begin_company(
    work: Work, settings: SharedProcessSettings, door: NamedSocket, clock: Clock
) -> tuple[socket.socket | None, str]:
    """Open the door, knock at it, and start a supervisor for it; None if another was quicker.

    With the mark of that opening.
    """
    opened = door.open()
    if opened is None:
        return None, ""
    link: socket.socket | None = None
    try:
        with opened.listener:
            link = door.knock()
            _start_keeper(work, settings, door, opened, clock)
    except BaseException:
        door.close(opened)
        if link is not None:
            link.close()
        raise
    return link, opened.mark


def _start_keeper(
    work: Work, settings: SharedProcessSettings, door: NamedSocket, opened: NamedSocketListener, clock: Clock
) -> None:
    variables = {name: value for name, value in (work.variables or HIDDEN).items() if name != VRAM_BYTES}
    environment = {name: value for name, value in settings.environment.items() if name != MARK}
    listener_fd = opened.listener.fileno()
    order = {
        "run": work.stage.together.run if work.stage.together else "",
        "folder": door.folder,
        "name": door.name,
        "mark": opened.mark,
        "listener_fd": listener_fd,
        "devices": list(work.devices),
        "variables": variables,
        # A default: threads that spin while they wait take the cores of those they wait for.
        "environment": {"OMP_WAIT_POLICY": "passive", **environment},
        "memory_bytes": work.memory_bytes,
        "contain": settings.contain,
        "python": sys.executable,
        "sys_path": list(sys.path),
        "cwd": settings.cwd,
        "linger_s": settings.linger_s,
        "patience_s": settings.patience_s,
    }
    with handed_on(work.code) as sources_fd, written({**order, "sources_fd": sources_fd}) as descriptor:
        # It leaves this process at once and runs by itself, in a session of its own.
        first = start(
            [sys.executable, "-P", "-c", _BOOT, str(descriptor), dumps(list(sys.path))],
            cwd="/",
            env=environment,
            pass_fds=(descriptor, listener_fd, sources_fd),
        )
        ended = first.wait(_START_S, clock)
    if not ended.is_success:
        raise ProcessLost(f"its company's keeper could not begin: {ended}")


_MOST_TRIES = 5
_LOOK_S = 0.25
_LAST_WORDS_S = 10.0
_FAREWELL_S = 5.0


class SharedProcessRunner:
    """Makes members."""

    is_here = False

    def __init__(self, settings: Callable[[], SharedProcessSettings], *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    def check(self, works: Mapping[str, tuple[Stage, Mapping[str, Any]]]) -> None:
        """A company is started from what runs already: nothing can be missing."""

    def attempt(self, work: Work) -> Attempt:
        return _Member(work, self._settings(), self._clock)

    def is_begun(self, company: str) -> bool:
        """Say whether there is a company of that key without devices, of whichever run: its base is there already."""
        settings = self._settings()
        with suppress(StokerError):
            return NamedSocket(settings.folder, company_name(company, (), settings)).is_answered()
        return False


class _Standing(Enum):
    """Where a member is."""

    OUTSIDE = auto()
    JOINING = auto()
    """A part of what it is here for may be said."""
    JOINED = auto()


class _Member:
    def __init__(self, work: Work, settings: SharedProcessSettings, clock: Clock) -> None:
        self._work = work
        self._settings = settings
        self._clock = clock
        self._door = NamedSocket(settings.folder, company_name(work.company, work.devices, settings))
        self._log = LogFile(work.folders.log_of(work.node))
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._standing = _Standing.OUTSIDE
        self._stopped = threading.Event()
        self._killed_s: float | None = None

    def run(self) -> StageSuccess | StageFailure:
        try:
            said = self._said()
            for _ in range(_MOST_TRIES):
                with suppress(ComeAgain):
                    return self._try(said)
            raise ProcessLost(f"{_MOST_TRIES} companies ended before it could join one")
        except ProcessLost as error:
            return StageFailure(cause=FailureCause.LOST, message=str(error), hint=error.hint, error_code=error.code)
        except (InvalidArgs, NoPermission) as error:
            # Neither is otherwise a moment later.
            return StageFailure(cause=FailureCause.INPUT, message=str(error), hint=error.hint, error_code=error.code)
        except StokerError as error:
            return StageFailure(cause=FailureCause.IO, message=str(error), hint=error.hint, error_code=error.code)
        finally:
            self._log.close()

    def ask_to_stop(self) -> None:
        with self._lock:
            self._stopped.set()
            self._part()

    def kill(self) -> bool:
        with self._lock:
            self._stopped.set()
            self._killed_s = self._clock.monotonic_s()
            self._part()
        return True

    def _part(self) -> None:
        """Say that this attempt is to stop, or hang up if it was killed, without waiting; the caller holds the lock.

        A member that is joining looks for itself.
        """
        link = self._link
        if link is None:
            return
        with suppress(OSError):
            if self._standing is _Standing.OUTSIDE:
                # The work has not begun.
                link.shutdown(socket.SHUT_RDWR)
            elif self._standing is _Standing.JOINED and self._killed_s is not None:
                # The other direction stays open for a last message: that nothing writes to its folder any more.
                link.shutdown(socket.SHUT_WR)
            elif self._standing is _Standing.JOINED:
                link.send(framed({"stop": True}), socket.MSG_DONTWAIT)

    def _said(self) -> bytes:
        """Return the join message: made before it waits, since finding the inputs may take a while."""
        work = self._work
        join = {
            "join": {
                **as_request(work),
                "who": f"{work.folders.job}/{work.node}",
                "most": work.most,
                "claim": work.claim,
            }
        }
        try:
            return framed(join)
        except ValueError as error:
            fault = Diagnostic(work.node, f"its arguments are too long for a company: {error}", "--solo needs none")
            raise InvalidArgs(str(fault), faults=(fault,), hint=fault.hint) from None

    def _try(self, said: bytes) -> StageSuccess | StageFailure:
        # First: what is opened after this may be another one's.
        mark = self._door.mark()
        link = self._door.knock()
        if link is None:
            link, mark = begin_company(self._work, self._settings, self._door, self._clock)
        if link is None:
            raise ComeAgain
        with link:
            with self._lock:
                self._link, self._standing = link, _Standing.OUTSIDE
                if self._stopped.is_set():
                    return _STOPPED_EARLY
            try:
                return self._take_part(link, said)
            except Unanswered:
                self._give_up(mark)
                raise ComeAgain from None
            finally:
                with self._lock:
                    self._link = None

    def _give_up(self, mark: str) -> None:
        """Take away the door of that opening: the next company found is another.

        Raises `ProcessLost` where a second base has no room: on a device, where it is in no ledger, or in memory.
        """
        waited = f"has not answered for {format_duration(self._settings.answer_s)}"
        short = "" if self._work.devices else self._work.short_of_base()
        if self._work.devices or short:
            hint = "somebody may have stopped its process, stoker-company: kill -CONT lets it go on, kill -9 ends it"
            beside = f", and there is no room for another: {short}" if short else f": {self._door.path}"
            raise ProcessLost(f"its company {waited}{beside}", hint=hint)
        self._note(f"the company at {self._door.path} {waited}: another one is begun")
        self._door.take_away(mark)

    def _take_part(self, link: socket.socket, said: bytes) -> StageSuccess | StageFailure:
        frames = Frames()
        try:
            greeted, waiting = be_greeted(link, frames, within_s=self._settings.answer_s, clock=self._clock)
        except ComeAgain:
            if self._stopped.is_set():
                return _STOPPED_EARLY
            raise
        except ValueError as error:
            raise ProcessLost(f"what answers at {self._door.path} is no company: {error}") from None
        try:
            self._work.started(greeted.identity)
            self._note(f"in the company of process {greeted.identity.pid}")
            if not self._join(link, said):
                return _STOPPED_EARLY
            return self._listen(link, frames, waiting) or self._lost(greeted)
        except (ConnectionError, ValueError) as error:
            self._note(f"the company's connection: {error}")
            return self._lost(greeted)
        finally:
            os.close(greeted.words_fd)

    def _join(self, link: socket.socket, said: bytes) -> bool:
        """Return what the work is; not if this attempt is stopped before that is whole. Raises `Unanswered`."""
        with self._lock:
            if self._stopped.is_set():
                return False
            self._standing = _Standing.JOINING
        # Not under the lock: a stop must not wait for a company that does not listen.
        deadline_s = self._clock.monotonic_s() + self._settings.answer_s
        unsent = memoryview(said)
        while unsent:
            if self._stopped.is_set():
                return False
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise Unanswered
            if is_ready(link, select.POLLOUT, min(left_s, _LOOK_S)):
                with suppress(BlockingIOError):
                    unsent = unsent[link.send(unsent, socket.MSG_DONTWAIT) :]
        with self._lock:
            self._standing = _Standing.JOINED
            if self._stopped.is_set():
                self._part()
        return True

    def _listen(
        self, link: socket.socket, frames: Frames, waiting: Sequence[dict[str, Any]]
    ) -> StageSuccess | StageFailure | None:
        """Pass on what is said until the answer; nothing if there is none."""
        bodies = list(waiting)
        while True:
            for body in bodies:
                if isinstance(body.get("answer"), dict):
                    return self._read_answer(body)
                self._pass_on(body)
            if self._killed_s is not None and self._clock.monotonic_s() - self._killed_s > _FAREWELL_S:
                return StageFailure(cause=FailureCause.CANCELLED, message="it did not leave its company in time")
            if not is_ready(link, select.POLLIN, _LOOK_S):
                bodies = []
                continue
            data, fds = receive(link)
            for fd in fds:
                os.close(fd)
            if not data:
                return None
            bodies = frames.feed(data)

    def _pass_on(self, body: dict[str, Any]) -> None:
        if isinstance(body.get("log"), str):
            self._note(body["log"])
        elif isinstance(body.get("told"), str) or _is_step(body):
            self._work.emit(body)

    def _read_answer(self, body: Mapping[str, Any]) -> StageSuccess | StageFailure:
        # Its process has others' memory in it, too: no measure of how much this work needs by itself.
        answer, peak_bytes = body["answer"], body.get("peak_rss_bytes")
        usage = AttemptUsage(
            peak_rss_bytes=peak_bytes if isinstance(peak_bytes, int) else None, stay=read_stay(body.get("company"))
        )
        if answer.get("outcome") == "finished":
            return StageSuccess(usage=usage)
        detail = str(answer.get("detail", ""))
        self._note(detail)
        return StageFailure(
            cause=FailureCause(answer.get("cause", FailureCause.LOST)),
            message=str(answer.get("message", "")),
            hint=str(answer.get("hint", "")),
            detail=detail,
            error_code=str(answer.get("error_code", "stage_failed")),
            usage=usage,
        )

    def _lost(self, greeted: SharedProcessHandshake) -> StageFailure:
        """Return why the connection ended without an answer, from what the supervisor left."""
        if self._stopped.is_set():
            return StageFailure(cause=FailureCause.CANCELLED, message="it was asked to stop")
        deadline_s = self._clock.monotonic_s() + _LAST_WORDS_S
        while (words := read_last_words(greeted.words_fd)) is None:
            is_kept = is_alive(greeted.keeper) is not Liveness.GONE
            if not is_kept or self._clock.monotonic_s() > deadline_s:
                words = read_last_words(greeted.words_fd)
                break
            self._clock.sleep(0.02)
        if words is None:
            with suppress(StokerError):
                self._door.clear()
            is_kept = is_alive(greeted.keeper) is not Liveness.GONE
            words = SharedProcessExit(how="and its keeper has not said how" if is_kept else "and its keeper with it")
        self._note(words.said)
        return _failure(words, greeted.identity.pid)

    def _note(self, text: str) -> None:
        if text:
            self._log.write(text.encode(errors="replace").rstrip(b"\n") + b"\n")


def _is_step(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("step"), int) and isinstance(body.get("metrics"), dict)


_STOPPED_EARLY = StageFailure(cause=FailureCause.CANCELLED, message="it was stopped before it began")


def _failure(words: SharedProcessExit, pid: int) -> StageFailure:
    if words.was_out_of_memory:
        return out_of_memory(words.cap_bytes, AttemptUsage(), is_part=False)
    hint = "stoker logs shows what it wrote last"
    if words.number == 9:
        hint = "somebody killed it, or the whole machine ran out of memory; `dmesg` would say"
    return StageFailure(
        cause=FailureCause.LOST,
        message=f"its company's process {pid} ended without an answer: {words.how}",
        hint=hint,
        error_code=ProcessLost.code,
    )
