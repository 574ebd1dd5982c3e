"""Run attempts as members of a shared process: find the living one or start it, send the work, receive the answer.

An attempt never outlives its run: the end of its connection frees its slot. To stop it is a message, to kill it is to
close the connection; the shared process is never killed for one member. If the shared process is lost, so are all its
members; each is retried by its own policy. If one does not answer, because it was stopped, its socket is removed after
a timeout, and another is started. Linux only.
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
from stoker.core.events import MEMBER_USAGE
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps
from stoker.core.retry import FailureCause
from stoker.core.text import format_duration
from stoker.engine.device_gate import HIDDEN, VRAM_BYTES
from stoker.engine.runners.process_runner import as_request
from stoker.engine.runners.program.program_end import out_of_memory
from stoker.engine.runners.shared.members import (
    FORMAT,
    Frames,
    JoinAgain,
    JoinTimeout,
    SharedProcessExit,
    SharedProcessHandshake,
    framed,
    is_ready,
    read_exit,
    receive,
    receive_hello,
)
from stoker.engine.runners.stage_runner import (
    AttemptUsage,
    StageAttempt,
    StageFailure,
    StageSuccess,
    Work,
    read_member_usage,
)
from stoker.engine.stage import Stage
from stoker.host.containment.box import MARK
from stoker.host.identity import Liveness, is_alive
from stoker.host.import_watch import handed_on
from stoker.host.processes import start
from stoker.host.sockets import NamedSocket, NamedSocketListener
from stoker.host.user_switch import written
from stoker.host.writers import LogFile

# Starting a shared process: its name, its socket, and its supervisor.

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from stoker.engine.runners.shared.supervisor import main; main(int(sys.argv[1]))"
)
_START_S = 30.0


@frozen
class SharedProcessSettings:
    """Settings of all shared processes that this program starts."""

    folder: str
    """Folder of their sockets; it belongs to this user."""
    home: str
    """Runs with another home do not join."""
    cwd: str
    environment: Mapping[str, str]
    contain: str | None
    """The requested containment; None: the strongest that works."""
    version: str
    linger_s: float
    """How long a shared process without members waits for new ones."""
    patience_s: float = 60.0
    """Timeout after which one without members is killed."""
    answer_s: float = 120.0
    """Timeout for its hello, and for it to read the join message."""


def shared_process_name(key: str, devices: Sequence[str], settings: SharedProcessSettings) -> str:
    """Return the name of the shared process of a key on some devices: equal only for attempts that may share one."""
    same = [FORMAT, key, list(devices), settings.home, settings.version, sys.executable, list(sys.path)]
    return _begin_of_names(settings) + digest_value("company name", same)[:16]


def _begin_of_names(settings: SharedProcessSettings) -> str:
    """Return the beginning of the names of all shared processes of a home."""
    return digest_value("company home", settings.home)[:8]


def start_shared_process(
    work: Work, settings: SharedProcessSettings, door: NamedSocket, clock: Clock
) -> tuple[socket.socket | None, str]:
    """Open the socket, connect to it, and start a supervisor for it; None if another attempt was faster.

    Returns the connection and the mark of that opening.
    """
    opened = door.open()
    if opened is None:
        return None, ""
    link: socket.socket | None = None
    try:
        with opened.listener:
            link = door.knock()
            _start_supervisor(work, settings, door, opened, clock)
    except BaseException:
        door.close(opened)
        if link is not None:
            link.close()
        raise
    return link, opened.mark


def _start_supervisor(
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
        # A default: threads that spin while they wait take cores from those that work.
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
        # It forks at once and runs in a session of its own.
        first = start(
            [sys.executable, "-P", "-c", _BOOT, str(descriptor), dumps(list(sys.path))],
            cwd="/",
            env=environment,
            pass_fds=(descriptor, listener_fd, sources_fd),
        )
        ended = first.wait(_START_S, clock)
    if not ended.is_success:
        raise ProcessLost(f"the supervisor of its shared process could not start: {ended}")


_MOST_TRIES = 5
_LOOK_S = 0.25
_EXIT_S = 10.0
_FAREWELL_S = 5.0


class SharedProcessRunner:
    """Runs attempts as members of shared processes."""

    is_here = False

    def __init__(self, settings: Callable[[], SharedProcessSettings], *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    def check(self, works: Mapping[str, tuple[Stage, Mapping[str, Any]]]) -> None:
        """Does nothing: a shared process needs no other program than the one that runs already."""

    def attempt(self, work: Work) -> StageAttempt:
        return _Member(work, self._settings(), self._clock)

    def is_up(self, process_key: str) -> bool:
        """Return True if a shared process with this key runs without devices, started by any run."""
        settings = self._settings()
        with suppress(StokerError):
            return NamedSocket(settings.folder, shared_process_name(process_key, (), settings)).is_answered()
        return False

    def has_process(self) -> bool:
        """Return True if a shared process of this home runs, with or without members."""
        settings = self._settings()
        with suppress(OSError, StokerError):
            names = {name.partition(".")[0] for name in os.listdir(settings.folder)}
            ours = [name for name in names if name.startswith(_begin_of_names(settings))]
            return any(NamedSocket(settings.folder, name).is_answered() for name in ours)
        return False


class _Standing(Enum):
    """State of a member's connection."""

    OUTSIDE = auto()
    JOINING = auto()
    """A part of the join message may be sent."""
    JOINED = auto()


class _Member:
    def __init__(self, work: Work, settings: SharedProcessSettings, clock: Clock) -> None:
        self._work = work
        self._settings = settings
        self._clock = clock
        self._door = NamedSocket(settings.folder, shared_process_name(work.process_key, work.devices, settings))
        self._log = LogFile(work.folders.log_of(work.node))
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._standing = _Standing.OUTSIDE
        self._stopped = threading.Event()
        self._killed_s: float | None = None

    def run(self) -> StageSuccess | StageFailure:
        try:
            join = self._join_message()
            for _ in range(_MOST_TRIES):
                with suppress(JoinAgain):
                    return self._try(join)
            raise ProcessLost(f"{_MOST_TRIES} shared processes ended before this attempt could join one")
        except ProcessLost as error:
            return StageFailure(cause=FailureCause.LOST, message=str(error), hint=error.hint, error_code=error.code)
        except (InvalidArgs, NoPermission) as error:
            # A retry would fail in the same way.
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
        """Send a stop, or close the connection if this attempt was killed. Never blocks. The caller holds the lock.

        While it is joining, `_join` checks for this itself.
        """
        link = self._link
        if link is None:
            return
        with suppress(OSError):
            if self._standing is _Standing.OUTSIDE:
                # The work has not started.
                link.shutdown(socket.SHUT_RDWR)
            elif self._standing is _Standing.JOINED and self._killed_s is not None:
                # The other direction stays open for the answer: it means that nothing writes to its folder any more.
                link.shutdown(socket.SHUT_WR)
            elif self._standing is _Standing.JOINED:
                link.send(framed({"stop": True}), socket.MSG_DONTWAIT)

    def _join_message(self) -> bytes:
        """Return the join message. Call it before connecting: finding the inputs may take a while."""
        work = self._work
        join = {
            "join": {
                **as_request(work),
                "who": f"{work.folders.job}/{work.node}",
                "most": work.most,
                "in_pass": work.in_pass,
                "claim": work.claim,
            }
        }
        try:
            return framed(join)
        except ValueError as error:
            fault = Diagnostic(work.node, f"arguments too long for a shared process: {error}", "run it with --solo")
            raise InvalidArgs(str(fault), faults=(fault,), hint=fault.hint) from None

    def _try(self, join: bytes) -> StageSuccess | StageFailure:
        # Before connecting: what is opened later may be another shared process.
        mark = self._door.mark()
        link = self._door.knock()
        if link is None:
            link, mark = start_shared_process(self._work, self._settings, self._door, self._clock)
        if link is None:
            raise JoinAgain
        with link:
            with self._lock:
                self._link, self._standing = link, _Standing.OUTSIDE
                if self._stopped.is_set():
                    return _STOPPED_EARLY
            try:
                return self._take_part(link, join)
            except JoinTimeout:
                self._give_up(mark)
                raise JoinAgain from None
            finally:
                with self._lock:
                    self._link = None

    def _give_up(self, mark: str) -> None:
        """Remove the socket of that opening, so that another shared process is started.

        Raises `ProcessLost` if there is no room for a second base: on a device (not reserved there), or in memory.
        """
        waited = f"has not answered for {format_duration(self._settings.answer_s)}"
        short = "" if self._work.devices else self._work.short_of_base()
        if self._work.devices or short:
            hint = "its process (stoker-company) may be stopped: continue it with kill -CONT, or end it with kill -9"
            beside = f", and there is no memory for another: {short}" if short else f": {self._door.path}"
            raise ProcessLost(f"its shared process {waited}{beside}", hint=hint)
        self._note(f"shared process at {self._door.path} {waited}: starting another")
        self._door.take_away(mark)

    def _take_part(self, link: socket.socket, join: bytes) -> StageSuccess | StageFailure:
        frames = Frames()
        try:
            hello, waiting = receive_hello(link, frames, within_s=self._settings.answer_s, clock=self._clock)
        except JoinAgain:
            if self._stopped.is_set():
                return _STOPPED_EARLY
            raise
        except ValueError as error:
            raise ProcessLost(f"{self._door.path} is not the socket of a shared process: {error}") from None
        try:
            self._work.started(hello.identity)
            self._note(f"joined shared process {hello.identity.pid}")
            if not self._join(link, join):
                return _STOPPED_EARLY
            return self._listen(link, frames, waiting) or self._lost(hello)
        except (ConnectionError, ValueError) as error:
            self._note(f"connection to the shared process: {error}")
            return self._lost(hello)
        finally:
            os.close(hello.exit_fd)

    def _join(self, link: socket.socket, join: bytes) -> bool:
        """Send the join message; return False if this attempt was stopped before that. Raises `JoinTimeout`."""
        with self._lock:
            if self._stopped.is_set():
                return False
            self._standing = _Standing.JOINING
        # Not under the lock: a stop must not wait for a shared process that does not read.
        deadline_s = self._clock.monotonic_s() + self._settings.answer_s
        unsent = memoryview(join)
        while unsent:
            if self._stopped.is_set():
                return False
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise JoinTimeout
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
        """Handle messages until the answer; None if the connection ends without one."""
        bodies = list(waiting)
        while True:
            for body in bodies:
                if isinstance(body.get("answer"), dict):
                    return self._read_answer(body)
                self._pass_on(body)
            if self._killed_s is not None and self._clock.monotonic_s() - self._killed_s > _FAREWELL_S:
                return StageFailure(
                    cause=FailureCause.CANCELLED, message="its shared process did not release it in time"
                )
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
        # The peak is that of the whole process, not of this member.
        answer, peak_bytes = body["answer"], body.get("peak_rss_bytes")
        usage = AttemptUsage(
            peak_rss_bytes=peak_bytes if isinstance(peak_bytes, int) else None,
            member_usage=read_member_usage(body.get(MEMBER_USAGE)),
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

    def _lost(self, hello: SharedProcessHandshake) -> StageFailure:
        """Return why the connection ended without an answer, from the exit file."""
        if self._stopped.is_set():
            return StageFailure(cause=FailureCause.CANCELLED, message="it was asked to stop")
        deadline_s = self._clock.monotonic_s() + _EXIT_S
        while (ended := read_exit(hello.exit_fd)) is None:
            is_supervised = is_alive(hello.supervisor) is not Liveness.GONE
            if not is_supervised or self._clock.monotonic_s() > deadline_s:
                ended = read_exit(hello.exit_fd)
                break
            self._clock.sleep(0.02)
        if ended is None:
            with suppress(StokerError):
                self._door.clear()
            is_supervised = is_alive(hello.supervisor) is not Liveness.GONE
            ended = SharedProcessExit(
                how="its supervisor has not reported how" if is_supervised else "its supervisor ended too"
            )
        self._note(ended.said)
        return _failure(ended, hello.identity.pid)

    def _note(self, text: str) -> None:
        if text:
            self._log.write(text.encode(errors="replace").rstrip(b"\n") + b"\n")


def _is_step(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("step"), int) and isinstance(body.get("metrics"), dict)


_STOPPED_EARLY = StageFailure(cause=FailureCause.CANCELLED, message="it was stopped before it began")


def _failure(ended: SharedProcessExit, pid: int) -> StageFailure:
    if ended.was_out_of_memory:
        return out_of_memory(ended.cap_bytes, AttemptUsage(), is_part=False)
    hint = "read the end of its output: stoker logs"
    if ended.number == 9:
        hint = "it was killed, or the machine ran out of memory: check dmesg"
    return StageFailure(
        cause=FailureCause.LOST,
        message=f"its shared process {pid} ended without an answer: {ended.how}",
        hint=hint,
        error_code=ProcessLost.code,
    )
