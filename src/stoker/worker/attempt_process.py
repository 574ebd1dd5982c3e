"""One attempt on this machine: check, start, watch and stop its process. Blocks: call it from threads.

Starting and stopping exclude each other: an attempt stopped before it started never starts.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from stoker.core.capability import Capability
from stoker.core.clock import Clock
from stoker.core.errors import InternalError, InvalidTransition, NotFound, ProcessLost, StokerError, Unavailable
from stoker.core.frozen import frozen
from stoker.core.job import attempt_id, variables_of
from stoker.core.leases import AttemptToken
from stoker.host.durable import translated
from stoker.host.fork_server import IS_SUPPORTED, ForkServer, IndependentChild
from stoker.host.identity import Liveness, ProcessIdentity, is_alive
from stoker.host.processes import Child, start, stop_group
from stoker.host.sockets import NotifySocket
from stoker.host.users import OtherUser, give_to
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.program import RECIPE
from stoker.jobs.stop import stop_job
from stoker.protocol.lease_messages import Grant, MachineInventory
from stoker.store.local_store import LocalStore
from stoker.worker.assignment import SAME_REQUEST_S, Assignment, AttemptEnd, end_of
from stoker.worker.coordinator_calls import WorkerConnections
from stoker.worker.exec_command import AttemptEnv, ExecTarget, place_beside
from stoker.worker.job_users import UserPool
from stoker.worker.machine_checks import LocalMachine, why_not
from stoker.worker.preparation.input_check import PreparedInputs, PresentInputs, refusal_by_tree
from stoker.worker.preparation.prepare_child import InputPreparer, PrepareLine
from stoker.worker.worker_state import Happening, Journal, StartRefusal, WorkerPolicy

SAID_FILE = "said.log"
"""In an attempt's folder: output of the attempt's own process, if any."""
_LAST_WORDS_BYTES = 2000
_LOOK_EVERY_S = 0.25
_REPORT_S = 5.0


AttemptChild = Child | IndependentChild


class AttemptProcess:
    """A child with an assignment, started by this worker or by its predecessor."""

    def __init__(self, identity: ProcessIdentity, child: AttemptChild | None = None, said_path: str = "") -> None:
        self.identity = identity
        self._child = child
        self._said_path = said_path

    def wait(self, clock: Clock) -> str:
        """Wait until it has exited; return how, as far as known. Blocks."""
        self._watch(clock)
        try:
            return "" if self._child is None else str(self._child.wait(_REPORT_S, clock=clock))
        except TimeoutError:
            # Its parent, the fork server, hangs.
            return "unknown exit status"

    def last_words(self) -> str:
        """Return the last line of its standard error."""
        try:
            with open(self._said_path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_WORDS_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def forget(self, folder: str) -> None:
        """Move its output into its attempt's folder, if there is any."""
        if not self._said_path:
            return
        with suppress(OSError):
            if os.path.getsize(self._said_path):
                os.replace(self._said_path, os.path.join(folder, SAID_FILE))
        _remove(self._said_path)

    def _watch(self, clock: Clock) -> None:
        if sys.platform == "linux":
            with suppress(OSError):
                descriptor = os.pidfd_open(self.identity.pid)
                try:
                    # The descriptor refers to the process it was opened for: that is compared, and waited for.
                    if is_alive(self.identity) is not Liveness.ALIVE:
                        return
                    poll = select.poll()
                    poll.register(descriptor, select.POLLIN)
                    poll.poll()
                    return
                finally:
                    os.close(descriptor)
        while is_alive(self.identity) is Liveness.ALIVE:
            clock.sleep(_LOOK_EVERY_S)


class AttemptSpawner:
    """Starts attempt processes: forks of a warm process where the system can do that."""

    def __init__(
        self, argv: Sequence[str], *, folder: str, said_folder: str, environment: Callable[[], Mapping[str, str]]
    ) -> None:
        """Create it; `folder` is the working folder of children, `environment` returns their variables."""
        self._argv = tuple(argv)
        self._folder = folder
        self._said_folder = said_folder
        self._environment = environment
        self._lock = threading.Lock()
        self._server: ForkServer | None = None
        self._ended: list[ForkServer] = []
        """Former servers that still have children."""
        self._variables: dict[str, str] = {}
        """The server's environment."""
        self._may_serve = IS_SUPPORTED
        """False after a server died by itself: the next might too. A child started without it reports the error."""
        self._count = 0

    def keep_warm(self) -> None:
        """Start the server from which the next child is forked if there is none. Never waits for it."""
        if self._lock.acquire(blocking=False):
            try:
                self._warm_server()
            finally:
                self._lock.release()

    def take(self) -> tuple[AttemptChild, str]:
        """Return a child that waits for its assignment, and the path of its output."""
        with self._lock:
            self._count += 1
            said_path = os.path.join(self._said_folder, f"{os.getpid()}-{self._count}.log")
            try:
                with translated(said_path), open(said_path, "wb") as output:
                    return self._fork(output) or self._start(output), said_path
            except StokerError:
                _remove(said_path)
                raise

    def hand(self, child: AttemptChild, assignment: Assignment) -> None:
        """Send a child its assignment. Raises `ProcessLost` if it has exited."""
        if child.stdin is None:
            raise ProcessLost("the attempt's process accepts no assignment")
        try:
            with child.stdin as pipe:
                pipe.write(assignment.to_line())
        except OSError as error:
            raise ProcessLost(f"the attempt's process exited before it started: {error}") from error

    def dismiss(self, child: AttemptChild, said_path: str) -> None:
        """Stop a child without assignment, and delete its output."""
        if child.stdin is not None:
            child.stdin.close()
        child.stop(grace_s=1.0)
        _remove(said_path)

    def close(self) -> None:
        """End the server. Children go on."""
        with self._lock:
            self._end_server()

    def _warm_server(self) -> ForkServer | None:
        variables = dict(self._environment())
        if self._server is not None and not self._server.is_running():
            self._may_serve = False
            self._end_server()
        elif variables != self._variables:
            self._end_server()
        if self._server is None and self._may_serve:
            self._server = ForkServer.start(self._argv, cwd=self._folder, env=variables)
            self._variables = variables
        return self._server

    def _fork(self, output: IO[bytes]) -> AttemptChild | None:
        try:
            server = self._warm_server()
            child = None if server is None else server.fork(output)
            if server is not None and child is None:
                # Code has changed since it started.
                self._end_server()
                server = self._warm_server()
                child = None if server is None else server.fork(output)
            return child
        except ProcessLost:
            self._end_server(hangs=True)
            return None

    def _end_server(self, *, hangs: bool = False) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        if hangs:
            server.kill()
        else:
            server.close()
        # Those with children end later, and are reaped here.
        self._ended = [one for one in (*self._ended, server) if one.is_running()]

    def _start(self, output: IO[bytes]) -> AttemptChild:
        import subprocess  # noqa: PLC0415 - a constant of it

        # Where children live again, the next one is forked.
        self._may_serve = IS_SUPPORTED
        env = self._environment()
        return start(self._argv, cwd=self._folder, env=env, stdin=subprocess.PIPE, stdout=output, stderr=output)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


# An attempt's process passes the grace period on to its stages, and gets this much more for itself.
_OWN_S = 5.0
_LOOK_AGAIN_S = 2.0
_DEVICES_S = 10.0
_PROGRAM_S = 3.0


@frozen
class Worker:
    """The parts of one worker."""

    name: str
    wishes: WorkerPolicy
    slots: int | None
    """As requested; None: as in the coordinator's cluster file."""
    declared: dict[str, Any]
    version: str
    lines: WorkerConnections
    machine: LocalMachine
    argv: tuple[str, ...]
    """The command line of an attempt's child."""
    folder: str
    """Its working folder."""
    state: str
    """The state folder: the worker's own files and its owner's settings."""
    place: str
    """The folder of the worker's own files."""
    runs: str
    scratch: str
    store: Callable[[], LocalStore]
    clock: Clock
    entropy: Callable[[], int]
    new_word: Callable[[], str]
    tell: Callable[[str, dict[str, Any]], None]
    users: tuple[OtherUser, ...] = ()
    """The users that programs of jobs run as, one job each; empty: the worker's own user."""
    supervisor: NotifySocket | None = None
    """The service manager that started this worker, if any."""
    holds: Callable[[], MachineInventory] | None = None
    """The trees and environments on this machine: sent with hello, and again when they change."""
    preparing: InputPreparer | None = None
    """Fetches code, data and environments of jobs."""
    contents_at: str = ""
    """The address that serves trees to other machines; empty: none."""
    ends_with: ProcessIdentity | None = None
    """This process if its home goes with it, and its attempts too; None: the next worker takes them over."""
    detect: Callable[[], Capability] | None = None
    """Detects this machine's devices again; None: the capability of the start is kept."""


@frozen
class WorkerRuntime:
    """A running worker: what its attempts and reporters share."""

    worker: Worker
    journal: Journal
    incarnation: str
    spawner: AttemptSpawner
    users: UserPool | None
    """The users that programs run as; None: the worker's own."""
    may_speak: Callable[[AttemptToken], bool]
    """Returns True while an attempt's lease is valid by this machine's clock."""
    report: Callable[[Happening], None]

    def check_lease(self, token: AttemptToken) -> None:
        """Raise `Unavailable` if an attempt's lease has expired by this machine's clock."""
        if not self.may_speak(token):
            raise Unavailable("the lease is over by this machine's clock", hint="it is renewed, or dropped")


class RunningAttempt:
    """One attempt, from its start to its end."""

    def __init__(
        self,
        runtime: WorkerRuntime,
        grant: Grant,
        hear: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Create it; `hear` is called with each line printed before the start."""
        self._runtime = runtime
        self._worker = runtime.worker
        self.hear = hear
        self.grant = grant
        self._turn = threading.Lock()
        self._stopped = threading.Event()
        self._ward: AttemptProcess | None = None
        self._prepared = PreparedInputs()
        self.run = ""
        self.prepared = 0
        """A counter that grows while inputs arrive."""
        self.has_brought = False
        """True if something was fetched for it."""
        self.says = ""
        """What it is doing before it starts."""

    @property
    def folder(self) -> JobFolder:
        """Its job folder."""
        return JobFolder(os.path.join(self._worker.runs, self.run))

    def adopt(self, run: str, child: ProcessIdentity) -> None:
        """Take over an attempt that an earlier worker process started."""
        self.run, self._ward = run, AttemptProcess(child)

    def begin(
        self,
        ends_s: Callable[[], float],
        prepare: Callable[[threading.Event], None],
        write_down: Callable[[str, ProcessIdentity], None],
    ) -> ProcessIdentity | StartRefusal | None:
        """Start it, or return why not; None if it was stopped meanwhile.

        `prepare` fetches its checkpoint until its event is set, and may take longer than the granted lease: `ends_s` is
        called afterwards. `write_down` is called before the child gets its assignment.
        """
        worker, spawner = self._worker, self._runtime.spawner
        with self._turn:
            if self._stopped.is_set():
                return None
            refusal = why_not(self.grant, worker.machine.look(self.grant))
            if refusal is not None:
                return refusal
            self.run = attempt_id(worker.clock.now(), worker.entropy())
            try:
                prepare(self._stopped)
                held = None if self._stopped.is_set() else self._bring()
                if not isinstance(held, PresentInputs):
                    self._give_up()
                    return held
                child, said_path = spawner.take()
            except StokerError as error:
                self._give_up()
                return StartRefusal(reason="start", message=str(error))
            lease = self._runtime.journal.lease_file(self.run)
            try:
                self._put_in_place(held, child.identity)
                lease.write(ends_s(), self.grant.spec.on_partition)
                write_down(self.run, child.identity)
                spawner.hand(child, self._assignment(lease.path))
            except StokerError as error:
                self._give_user_back()
                self._leave()
                spawner.dismiss(child, said_path)
                return StartRefusal(reason="start", message=str(error))
            self._ward = AttemptProcess(child.identity, child, said_path)
            return child.identity

    def wait(self) -> AttemptEnd:
        """Wait until its process has exited; return how it ended. Blocks."""
        ward = self._ward
        if ward is None:
            raise InternalError("cannot wait for an attempt without a process")
        how = ward.wait(self._worker.clock)
        self._give_user_back()
        written = self.folder.ended()
        last_line = ward.last_words() if written is None else ""
        end = end_of(written, how=", ".join(filter(None, (how, last_line))))
        if end.is_terminated:
            # What ends this worker too is not the job's loss: its own request may come a moment later.
            self._stopped.wait(SAME_REQUEST_S)
        return end

    def stop(self, grace_s: float) -> AttemptEnd:
        """Stop all its processes; check that none is left. A second call with a shorter grace period stops sooner."""
        clock = self._worker.clock
        self._stopped.set()
        with self._turn:
            ward = self._ward
        if ward is None:
            return end_of(None, how="not started")
        held = self._worker.machine.holdings(self.grant, ward.identity)
        while True:
            try:
                self._stop_processes(ward, grace_s)
                break
            except StokerError:
                # Nothing is reported until it is gone: it may hang in a device or on a network disk, or its folder
                # can't be read now.
                clock.sleep(_LOOK_AGAIN_S)
                grace_s = 0.0
        self._see_devices_free(held)
        return self.wait()

    def is_alive(self) -> bool:
        """Return True if its process runs."""
        return self._ward is not None and is_alive(self._ward.identity) is Liveness.ALIVE

    def place(self) -> ExecTarget:
        """Return where an operator's command runs beside it. Raises `InvalidTransition` if it is not running."""
        worker, users, ward = self._worker, self._runtime.users, self._ward
        if ward is None or not self.is_alive():
            raise InvalidTransition(f"{self.grant.spec.shown} is not running", state="ended", move="exec")
        given = AttemptEnv(
            folder=self.folder.spec().folder,
            environment={**worker.machine.child_environment(), **self._variables()},
            secrets=worker.machine.secrets(self.grant).values,
            user=None if users is None else users.of(self.run),
        )
        patience_s = _PROGRAM_S if self.grant.spec.recipe == RECIPE else 0.0
        return place_beside(ward.identity, given, clock=worker.clock, patience_s=patience_s)

    def forget(self) -> None:
        """Delete its lease file and other temporary files."""
        if self.run:
            self._runtime.journal.lease_file(self.run).remove()
        if self._ward is not None:
            self._ward.forget(self.folder.path)
        self._leave()

    def _bring(self) -> PresentInputs | StartRefusal | None:
        """Fetch its inputs; return None if it was stopped meanwhile."""
        grant, preparing = self.grant, self._worker.preparing
        if not (grant.spec.code_tree or grant.spec.inputs or grant.spec.environment):
            return PresentInputs()
        if preparing is None:
            return StartRefusal(reason="preparing", message="this worker fetches neither code nor data")
        before = self.prepared

        def heed(line: PrepareLine) -> None:
            self.has_brought = True
            self.prepared = max(self.prepared, before + line.count)
            self.says = line.says or self.says
            self.hear(line.line)

        # Its environment is built as the user that it runs as.
        user = None if self._runtime.users is None else self._runtime.users.take(self.run)
        answer = preparing.prepare(grant, self._stopped, heed, user)
        accepts = self._worker.machine.accepts
        if isinstance(answer, PresentInputs) and accepts and grant.spec.code_tree:
            here = preparing.here
            why = refusal_by_tree(grant, accepts, here.code_tree(grant), lambda: here.code_view(grant))
            return StartRefusal(reason="code", message=why, lasts=True) if why else answer
        return answer

    def _put_in_place(self, held: PresentInputs, child: ProcessIdentity) -> None:
        if self._worker.preparing is not None:
            here = self._worker.preparing.here
            self._prepared = here.put_in_place(self.grant, self.run, held)
            if self._runtime.users is not None and self._prepared.workspace:
                give_to(self._runtime.users.take(self.run), self._prepared.workspace)
            here.mark(self.grant, self.run, child, self._prepared)

    def _leave(self) -> None:
        """Delete what was made for it alone."""
        if self._worker.preparing is not None and self.run:
            with suppress(StokerError):
                self._worker.preparing.here.leave(self.grant, self.run, self._prepared)

    def _stop_processes(self, ward: AttemptProcess, grace_s: float) -> None:
        clock = self._worker.clock
        # It may have ended, or may have no folder yet.
        with suppress(InvalidTransition, NotFound):
            stop_job(self.folder, clock=clock, patience_s=grace_s + _OWN_S if grace_s else 0.0)
        stop_group(ward.identity, grace_s=grace_s, clock=clock)

    def _see_devices_free(self, held: frozenset[str]) -> None:
        """Wait until the ledger has no reservation of it: the next job finds its devices free."""
        clock = self._worker.clock
        until_s = clock.monotonic_s() + _DEVICES_S
        while self._worker.machine.is_held(self.grant, held) and clock.monotonic_s() < until_s:
            clock.sleep(0.1)

    def _give_up(self) -> None:
        """Release what it held before its inputs were placed."""
        self._give_user_back()
        self.run = ""

    def _give_user_back(self) -> None:
        if self._runtime.users is not None:
            self._runtime.users.give_back(self.run)

    def _assignment(self, lease_path: str) -> Assignment:
        grant, worker, users, prepared = self.grant, self._worker, self._runtime.users, self._prepared
        ready = prepared.ready
        return Assignment(
            spec=grant.spec,
            token=grant.token(),
            folder=prepared.folder(grant),
            devices=list(grant.devices),
            is_shared=grant.is_shared,
            vram_bytes=grant.vram_bytes,
            interpreter=worker.machine.python_beside(grant),
            secrets=dict(worker.machine.secrets(grant).values),
            paths=dict(prepared.paths),
            facts=prepared.facts(grant),
            python={} if ready is None else ready.facts(),
            run=self.run,
            lease_path=lease_path,
            ends_with={} if worker.ends_with is None else worker.ends_with.to_dict(),
            coordinator=worker.lines.url,
            worker=worker.name,
            grace_s=worker.wishes.stop_grace_s,
            run_as={} if users is None else users.take(self.run).to_dict(),
            environment=self._variables(),
        )

    def _variables(self) -> dict[str, str]:
        grant = self.grant
        return {
            **self._worker.machine.variables(grant),
            **self._prepared.variables(grant),
            "STOKER_TOKEN": grant.token().to_text(),
            **variables_of(grant.spec),
        }
