"""The worker's loop: take an event, decide, perform. Nothing in it waits for a network or a child."""

from __future__ import annotations

import os
import queue
import secrets
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from stoker.core.clock import Clock
from stoker.core.errors import Cancelled, LocalFile, LockHeld, ProcessLost, StokerError, Terminated
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import AttemptToken
from stoker.host.durable import read_regular, remove_tree, translate, translated, write_file
from stoker.host.folders import HomeFolder
from stoker.host.identity import Liveness, ProcessIdentity, is_alive, mine
from stoker.host.locks import FileLock
from stoker.host.processes import stop_group
from stoker.host.resources import NETWORK_FILE_SYSTEMS, file_system_of
from stoker.host.sockets import NotifySocket
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.stop import PATIENCE_S, stop_job
from stoker.protocol.lease_messages import Hello
from stoker.protocol.operator_messages import EXEC
from stoker.worker.actions import InstructionRunner, inherit
from stoker.worker.attempt_process import AttemptSpawner, Worker, WorkerRuntime
from stoker.worker.coordinator_calls import ClaimLoop
from stoker.worker.exec_command import CommandSessions
from stoker.worker.job_users import USERS, UserPool
from stoker.worker.machine_checks import DeviceChange, DeviceRedetection, why_closed
from stoker.worker.state_machine import decide
from stoker.worker.worker_options import read_pause, workers_folder
from stoker.worker.worker_state import (
    AttemptEnded,
    AttemptNotStarted,
    ClockTick,
    DevicesChanged,
    ExitWorker,
    Happening,
    HelloAnswered,
    Instruction,
    Journal,
    JournaledLease,
    MachineClosed,
    ReportStart,
    SendHello,
    WorkerShutdownMode,
    WorkerState,
    WorkerStopRequested,
)

OWNER, DISK = "owner", "disk"
_TICK_S = 0.25
_LOOK_EVERY_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def keep(worker: Worker) -> int:
    """Work until there is a reason to stop; return the exit code. Raises `LockHeld` if the name is taken here."""
    journal = Journal(worker.place)
    with translated(worker.place):
        os.makedirs(worker.place, mode=0o700, exist_ok=True)
    lock = FileLock(journal.lock_path, f"worker {worker.name}", wait_s=0.0, clock=worker.clock)
    try:
        lock.acquire()
    except LockHeld as error:
        message = f"worker {worker.name} is already running here: {error}"
        raise LockHeld(message, hint="give this one another --name, or stop that one", **error.data) from None
    try:
        journal.open()
        return Daemon(worker, journal).run()
    finally:
        lock.release()


class Daemon:
    """One running worker."""

    def __init__(self, worker: Worker, journal: Journal) -> None:
        self._worker = worker
        self._clock = worker.clock
        self._journal = journal
        self._happenings: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        predecessor = journal.read()
        self._inherited = inherit(
            predecessor,
            coordinator=worker.lines.url,
            now_s=self._clock.boottime_s(),
            liveness={one.run: is_alive(one.child) for one in (() if predecessor is None else predecessor.leases)},
        )
        incarnation = self._inherited.incarnation or worker.new_word()
        self._looked_s = 0.0
        self._incarnation = incarnation
        self._hello = self._hello_of(incarnation)
        self._redetecting = (
            DeviceRedetection(worker.machine.offer, worker.detect, self._report_devices) if worker.detect else None
        )
        leases = {lease.token: lease for lease in self._inherited.adopted}
        self._keeping = WorkerState(wishes=worker.wishes, leases=leases)
        questions = ClaimLoop(
            worker.lines,
            hello=lambda: self._hello,
            stops_s=lambda: self._keeping.stops_s,
            holds=worker.holds or (lambda: None),
            clock=worker.clock,
            report=self._report,
            new_word=worker.new_word,
        )
        runtime = WorkerRuntime(
            worker=worker,
            journal=journal,
            incarnation=incarnation,
            spawner=AttemptSpawner(
                worker.argv,
                folder=worker.folder,
                said_folder=journal.said_folder,
                environment=worker.machine.child_environment,
            ),
            users=self._open_users(journal),
            may_speak=self._may_speak,
            report=self._report,
        )
        sessions = None if worker.lines.execs is None else CommandSessions(worker.lines.execs, worker.clock)
        self._acting = InstructionRunner(runtime, self._keeping, questions, sessions)

    def run(self) -> int:
        """Run until the worker stops; return its exit code."""
        for written in self._inherited.ended:
            about = {"job": written.grant.spec.shown, "run": written.run, "pid": written.child.pid}
            self._worker.tell("left_behind", about)
            end_left_behind(self._journal, written, runs=self._worker.runs, clock=self._clock)
        for lease in self._inherited.adopted:
            self._acting.adopt(lease)
            pid = None if lease.child is None else lease.child.pid
            self._worker.tell("adopted", {"job": lease.grant.spec.shown, "run": lease.run, "pid": pid})
        self._acting.write_down()
        if self._worker.preparing is not None:
            self._worker.preparing.sweep()
        before = self._listen_to_signals()
        try:
            self._perform([SendHello(), *(ReportStart(token=lease.token) for lease in self._inherited.adopted)])
            self._tell_supervisor(NotifySocket.ready)
            if self._redetecting is not None:
                self._redetecting.start()
            while True:
                self._tell_supervisor(NotifySocket.alive)
                self._look_around()
                self._acting.keep_warm()
                code = self._take(self._next())
                if code is not None:
                    self._acting.say_goodbye()
                    return code
        finally:
            self._tell_supervisor(NotifySocket.ending)
            if self._redetecting is not None:
                self._redetecting.close()
            for number, handler in before.items():
                signal.signal(number, handler)
            self._acting.close()

    def leave(self, error: type[StokerError], why: str) -> None:
        """Request a stop: the first call gracefully, the second at once. Thread-safe, and safe in signal handlers."""
        self._report(WorkerStopRequested(now_s=self._clock.boottime_s(), exit_code=error.exit_code, why=why))

    def _tell_supervisor(self, word: Callable[[NotifySocket], None]) -> None:
        if self._worker.supervisor is not None:
            word(self._worker.supervisor)

    def _listen_to_signals(self) -> dict[signal.Signals, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        # A signal that this process was started to ignore stays ignored.
        heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        return {number: signal.signal(number, self._on_signal) for number in heard}

    def _next(self) -> Happening:
        try:
            return self._happenings.get(timeout=_TICK_S)
        except queue.Empty:
            return ClockTick(now_s=self._clock.boottime_s())

    def _take(self, happening: Happening) -> int | None:
        """Decide, store the state, then perform; return the exit code if the worker exits."""
        if isinstance(happening, HelloAnswered):
            self._acting.claim_wait_s = happening.welcome.claim_wait_s
        elif isinstance(happening, DevicesChanged):
            self._hello = self._hello_of(self._incarnation)
        elif isinstance(happening, AttemptEnded | AttemptNotStarted):
            self._suspect_devices(happening)
        self._keeping, instructions = decide(self._keeping, happening)
        self._acting.note(self._keeping)
        return self._perform(instructions)

    def _perform(self, instructions: Iterable[Instruction]) -> int | None:
        for instruction in instructions:
            if isinstance(instruction, ExitWorker):
                return instruction.code
            self._acting.perform(instruction)
        return None

    def _look_around(self) -> None:
        """Check once a second whether the owner paused the machine, and whether the disk is full."""
        now_s = self._clock.boottime_s()
        if now_s - self._looked_s < _LOOK_EVERY_S or self._keeping.leaving is not WorkerShutdownMode.NO:
            return
        self._looked_s = now_s
        pause = read_pause(self._worker.state, now_s=self._clock.wall_s())
        why = "" if pause is None else pause.why()
        self._report(MachineClosed(now_s=now_s, by=OWNER, why=why, gives_back=True))
        full = why_closed(self._worker.machine.disk_free_bytes())
        is_full = DISK in self._keeping.closed
        if bool(full) != is_full:
            self._report(MachineClosed(now_s=now_s, by=DISK, why=full))

    def _suspect_devices(self, happening: AttemptEnded | AttemptNotStarted) -> None:
        """Check the devices soon after an attempt with devices failed or did not start."""
        lease = self._keeping.leases.get(happening.token)
        has_failed = isinstance(happening, AttemptNotStarted) or not happening.end.is_completed
        if self._redetecting is not None and has_failed and lease is not None and lease.grant.devices:
            self._redetecting.hurry()

    def _report_devices(self, change: DeviceChange) -> None:
        """Report changed devices. Called from the detection thread."""
        usable = len(self._worker.machine.capability.usable_devices)
        slots = max(1, usable) if self._worker.slots is None else None
        now_s = self._clock.boottime_s()
        self._report(DevicesChanged(now_s=now_s, gone=change.gone, back=change.back, slots=slots))

    def _report(self, happening: Happening) -> None:
        self._happenings.put(happening)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self.leave(Cancelled, "interrupted")
        else:
            self.leave(Terminated, "terminal closed" if number == signal.SIGHUP else "stop requested")

    def _hello_of(self, incarnation: str) -> Hello:
        worker, capability = self._worker, self._worker.machine.capability
        return Hello(
            worker=worker.name,
            incarnation=incarnation,
            boot_id=mine().boot_id,
            version=worker.version,
            capability=capability.to_dict(),
            capability_digest=str(capability.digest),
            slots=worker.slots,
            declared=worker.declared,
            accepts=worker.machine.accepts,
            contents_at=worker.contents_at,
            features=() if worker.lines.execs is None else (EXEC,),
        )

    def _open_users(self, journal: Journal) -> UserPool | None:
        if not self._worker.users:
            return None
        users = UserPool(self._worker.users, os.path.join(journal.folder, USERS), self._clock)
        users.open(lease.run for lease in self._inherited.adopted)
        return users

    def _may_speak(self, token: AttemptToken) -> bool:
        return self._acting.may_speak(token)


def end_left_behind(
    journal: Journal, written: JournaledLease, *, runs: str, clock: Clock, patience_s: float = PATIENCE_S
) -> None:
    """Stop an attempt of a worker process that is gone; when this returns, nothing of it runs."""
    # Without its lease file it stops by itself; it is stopped here too, before anything else happens.
    journal.lease_file(written.run).remove()
    with suppress(StokerError):
        stop_job(JobFolder(os.path.join(runs, written.run)), clock=clock, patience_s=patience_s)
    with suppress(ProcessLost):
        stop_group(written.child, clock=clock)


# The home of a worker with a ticket: a private folder on a disk of this machine, removed when the worker ends.
#
# Locks and databases do not work on a shared file system, and nothing is to remain on a machine that somebody else
# uses next. A worker that was killed leaves its folder behind; the next one on the machine removes it, with what that
# worker left running.


HOME_PREFIX = "stoker-home-"
HOME_OWNER = "owner.json"
"""In such a home: the identity of its worker's process."""
_USUAL = "/tmp"  # noqa: S108 - a folder with a random name is made in it
_LONGEST_NAME = 40
"""Of the worker's name: the path of a Unix socket below it has at most 107 bytes."""
_RANDOM_BYTES = 4
_LARGEST_BYTES = 4096
_UNMARKED_S = 3600.0
"""A folder that has no owner after so long never gets one: its worker was killed in between."""
_PATIENCE_S = 1.0
"""For attempts that a dead worker left: their checkpoints can't be sent."""
_TRIES = 20
_PAUSE_S = 0.1


@contextmanager
def private_home(name: str, environment: Mapping[str, str], clock: Clock) -> Iterator[str]:
    """Make the home of this process, and remove it at the end; first remove those of dead processes.

    It is below $TMPDIR if that is a folder on a disk of this machine, else below /tmp. Raises `LocalFile` if neither
    can be written.
    """
    parents = tuple(dict.fromkeys(filter(None, (environment.get("TMPDIR", ""), _USUAL))))
    for parent in parents:
        sweep_homes(parent, clock)
    begun: list[str] = []
    try:
        home = _make(name, parents, begun)
        write_file(os.path.join(home, HOME_OWNER), dumps(mine().to_dict()).encode(), mode=0o600)
        yield home
    finally:
        with _undisturbed():
            for one in begun:
                _remove(one, clock)


def goes_with_us(home: str) -> bool:
    """Return True if a home is the private one of this process."""
    try:
        return _owner_of(home) == mine()
    except (OSError, StokerError, ValueError, AttributeError):
        return False


def sweep_homes(parent: str, clock: Clock) -> None:
    """Remove the homes of this user's workers that are dead, with what they left running."""
    try:
        names = [name for name in os.listdir(parent) if name.startswith(HOME_PREFIX)]
    except OSError:
        return
    for name in names:
        home = os.path.join(parent, name)
        with suppress(OSError, StokerError):
            if _is_left_behind(home, clock):
                _end_attempts(home, clock)
                _remove(home, clock)


def _make(name: str, parents: tuple[str, ...], begun: list[str]) -> str:
    """Make the folder; its path is in `begun` before it exists, since a signal may end the process in between."""
    trouble: StokerError | None = None
    for parent in parents:
        try:
            kind = file_system_of(parent).type
            if kind not in NETWORK_FILE_SYSTEMS:
                home = f"{HOME_PREFIX}{name[:_LONGEST_NAME]}-{secrets.token_hex(_RANDOM_BYTES)}"
                begun.append(os.path.join(os.path.abspath(parent), home))
                os.mkdir(begun[-1], 0o700)
                return begun[-1]
            trouble = trouble or LocalFile(f"{parent} is on a network ({kind})", path=parent)
        except OSError as error:
            begun.clear()
            trouble = trouble or translate(error, parent)
    raise LocalFile(
        f"no folder for this worker's files on a disk of this machine: {trouble}",
        hint="TMPDIR or STOKER_HOME names a folder on a disk of this machine",
    )


def _is_left_behind(home: str, clock: Clock) -> bool:
    found = os.lstat(home)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    try:
        return is_alive(_owner_of(home)) is Liveness.GONE
    except FileNotFoundError:
        return clock.wall_s() - found.st_mtime > _UNMARKED_S
    except (ValueError, AttributeError):
        return False


def _owner_of(home: str) -> ProcessIdentity:
    return ProcessIdentity.from_dict(loads(read_regular(os.path.join(home, HOME_OWNER), _LARGEST_BYTES)))


def _end_attempts(home: str, clock: Clock) -> None:
    """Stop the attempts of a dead worker: nobody can take them up again."""
    workers = workers_folder(HomeFolder.STATE.below(home))
    with suppress(FileNotFoundError):
        for name in os.listdir(workers):
            journal = Journal(os.path.join(workers, name))
            left = journal.read()
            for lease in () if left is None else left.leases:
                end_left_behind(journal, lease, runs=HomeFolder.RUNS.below(home), clock=clock, patience_s=_PATIENCE_S)


def _remove(home: str, clock: Clock) -> None:
    """Remove a home, the mark of its owner last: if this is cut off, the next sweep continues it."""
    for left in reversed(range(_TRIES)):
        try:
            for name in os.listdir(home):
                if name != HOME_OWNER:
                    remove_tree(os.path.join(home, name))
            remove_tree(home)
            return
        except (OSError, StokerError):
            # A process that is just ending may still have written or removed a file.
            if not left or not os.path.lexists(home):
                return
        clock.sleep(_PAUSE_S)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore requests to end: this is the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
