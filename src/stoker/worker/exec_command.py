"""One operator's command beside a running job: start it, pass its input and output, stop it. Blocks; has own threads.

Its output is sent no faster than its operator reads; secrets of the job are masked. When `run` returns, none of its
processes runs; if the worker is killed, a shell beside it kills them.
"""

from __future__ import annotations

import os
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from stoker.core.clock import Clock
from stoker.core.errors import InternalError, LocalFile, NoPermission, ProcessLost, ProgramNotFound, StokerError
from stoker.core.frozen import frozen
from stoker.core.leases import AttemptToken
from stoker.engine.runners.program.sandbox import SecretRedactor
from stoker.host.box_entry import find_program
from stoker.host.containment.box import MARK, CleanupShell
from stoker.host.identity import ProcessExit, ProcessIdentity, ProcessRow, living_rows
from stoker.host.interpreter import find_python, is_bare_python
from stoker.host.processes import stop_group
from stoker.host.user_switch import AttachedCommand, attach, procs_files_of
from stoker.host.users import OtherUser
from stoker.protocol.client import FleetClient
from stoker.protocol.lease_messages import ExecCall
from stoker.protocol.operator_messages import EXEC_PIECE_BYTES, OUT, ExecEnd, ExecListen
from stoker.transfer.trees.tree_sources import TransferBackoff, is_later

_PROGRAMS_OWN = "STOKER_OUT"
_REPORTS = ("STOKER_CONTROL", "STOKER_METRICS", _PROGRAMS_OWN)
"""Variables by which a program reports its result: a command beside it must not do so by mistake."""
_RESULT = "STOKER_JOB_OUT"
"""The variable with the folder of the program's result."""
_LOOK_AGAIN_S = 0.05
_SHELLS = ("/bin/bash", "/bin/sh")


@frozen
class ExecTarget:
    """Where a command runs beside a job: the folder, variables, limits and user of the job's own program.

    They are read from the running program, so they are correct even after the worker that started it is gone. A job
    whose stages are no programs, or which is between two of them, uses those of its attempt.
    """

    folder: str
    environment: Mapping[str, str]
    procs_files: tuple[str, ...] = ()
    """Files by which it enters the job's control groups."""
    user: OtherUser | None = None
    hidden: tuple[str, ...] = ()
    """Values masked in its output."""


@frozen
class AttemptEnv:
    """The folder, variables and user of an attempt."""

    folder: str
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    user: OtherUser | None


def place_beside(child: ProcessIdentity, given: AttemptEnv, *, clock: Clock, patience_s: float) -> ExecTarget:
    """Return the place beside an attempt's program; `child` is the attempt's own process.

    Waits up to `patience_s` for a program that is being started.
    """
    until_s = clock.monotonic_s() + patience_s
    while (found := find_running(child, living_rows())) is None and clock.monotonic_s() < until_s:
        clock.sleep(_LOOK_AGAIN_S)
    theirs = {**given.environment, **given.secrets} if found is None else found[1]
    return ExecTarget(
        folder=given.folder,
        environment=_beside(theirs),
        procs_files=() if found is None else procs_files_of(found[0]),
        user=given.user,
        hidden=tuple({*given.secrets.values(), *(theirs[name] for name in given.secrets if theirs.get(name))}),
    )


def _beside(theirs: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a command beside a program with these variables."""
    kept = {name: value for name, value in theirs.items() if name not in _REPORTS}
    return {**kept, _RESULT: theirs[_PROGRAMS_OWN]} if _PROGRAMS_OWN in theirs else kept


def find_running(child: ProcessIdentity, rows: Iterable[ProcessRow]) -> tuple[int, dict[str, str]] | None:
    """Return the program that an attempt runs now, with its variables; None if there is none."""
    if sys.platform != "linux":
        return None
    below: dict[int, list[ProcessRow]] = {}
    for row in rows:
        below.setdefault(row.parent_pid, []).append(row)
    family, waiting = [], [child.pid]
    while waiting:
        children = below.pop(waiting.pop(), [])
        family += children
        waiting += [row.pid for row in children]
    for row in sorted(family, key=lambda row: (row.start_ticks, row.pid)):
        variables = _variables_of(row.pid)
        if MARK in variables and _PROGRAMS_OWN in variables:
            return row.pid, variables
    return None


def command_for(argv: tuple[str, ...], place: ExecTarget, term: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return a command with its program's path, and its variables; without one, a shell. Raises `ProgramNotFound`."""
    environment = dict(place.environment)
    if term:
        environment["TERM"] = term
    if not argv:
        wanted = (environment.get("SHELL", ""), *_SHELLS)
        shell = next((path for path in wanted if path and os.access(path, os.X_OK)), _SHELLS[-1])
        return (shell,), environment
    try:
        return (_find(argv[0], place.folder, environment), *argv[1:]), environment
    except NoPermission:
        raise ProgramNotFound(f"{argv[0]} may not be executed there", hint="name its interpreter") from None
    except LocalFile as error:
        if not os.path.isdir(place.folder):
            raise
        hint = error.hint or "it is looked for on the job's PATH, and in its folder as ./NAME"
        raise ProgramNotFound(f"there is no program {argv[0]} there", hint=hint) from None


def _find(word: str, folder: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program beside the job; `python` is the interpreter that the job itself gets."""
    if is_bare_python(word):
        python = find_python("", folder=folder, environment=environment, own_prefix=sys.prefix, word=word)
        if python.path:
            return python.path
    return find_program(word, cwd=folder, env=environment)


def _variables_of(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = os.fsdecode(file.read()).split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


NOT_STARTED, NOT_FOUND, BY_SIGNAL = 126, 127, 128
"""Exit codes as in shells; of a signal, its number is added."""
_WAIT_S = 20.0
_AWAY_S = 60.0
_LOOK_EVERY_S = 0.1
_LAST_READ_S = 0.2
_LAST_TRIES = 3


class ExecSession:
    """One session."""

    def __init__(self, call: ExecCall, line: FleetClient, clock: Clock) -> None:
        self.call = call
        self.token = call.token()
        self._line = line
        self._clock = clock
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._command: AttachedCommand | None = None
        self._sent = 0
        self.why = ""
        """Why it was stopped before its command exited."""

    def run(self, place: Callable[[], ExecTarget]) -> None:
        """Run the command to its end, and report that."""
        try:
            code, message = self._run(place)
        except ProgramNotFound as error:
            code, message = NOT_FOUND, _said(error)
        except StokerError as error:
            code, message = NOT_STARTED, _said(error)
        except Exception as problem:  # noqa: BLE001 - reported to the operator
            code, message = NOT_STARTED, str(InternalError(f"{type(problem).__name__}: {problem}"))
        self._over.set()
        self.tell_end(code, message)

    def end(self, why: str) -> None:
        """Stop the command and its children. Thread-safe; nothing starts after this."""
        self.why = self.why or why
        self._over.set()
        with self._lock:
            command = self._command
        if command is not None:
            self._kill(command)

    def tell_end(self, code: int, message: str) -> None:
        """Report how it ended; gives up if the coordinator does not answer."""
        token, pauses = self.token, TransferBackoff()
        said = ExecEnd(**token.fence(), exit_code=code, message=message[:2000])
        for _ in range(_LAST_TRIES):
            try:
                self._line.finish_exec(token.job, self.call.id, said)
            except StokerError as error:
                if not is_later(error):
                    return
                self._clock.sleep(pauses.failed())
            else:
                return

    def _run(self, place: Callable[[], ExecTarget]) -> tuple[int, str]:
        call, found = self.call, place()
        argv, environment = command_for(call.argv, found, call.term)
        guard = CleanupShell()
        try:
            with self._lock:
                if self._over.is_set():
                    return NOT_STARTED, self.why
                self._command = command = attach(
                    argv,
                    folder=found.folder,
                    env=environment,
                    size=(call.rows, call.columns) if call.is_tty else None,
                    procs_files=found.procs_files,
                    user=found.user,
                )
            guard.guard_session(command.child.identity)
            try:
                ended = self._see_through(command, found.hidden)
            finally:
                self._kill(command)
                # Before its descriptors are closed: the kernel reuses their numbers.
                self._over.set()
                with self._lock:
                    command.close()
        finally:
            guard.dismiss()
        code = ended.status if ended.status is not None else BY_SIGNAL + (ended.signal or 0)
        return code, self.why

    def _see_through(self, command: AttachedCommand, hidden: tuple[str, ...]) -> ProcessExit:
        for descriptor in (command.input, *command.outputs):
            os.set_blocking(descriptor, False)
        threading.Thread(target=self._listen, args=(command,), name="stoker-exec-in", daemon=True).start()
        hidings = {descriptor: SecretRedactor(hidden) for descriptor in command.outputs}
        with selectors.DefaultSelector() as selector:
            for stream, descriptor in enumerate(command.outputs, OUT):
                selector.register(descriptor, selectors.EVENT_READ, stream)
            while (ended := command.child.poll()) is None:
                if not self._pump(selector, hidings, _LOOK_EVERY_S) and command.is_tty:
                    # A prompt must be shown, even if it looks like the beginning of a secret.
                    self._send(hidings[command.outputs[0]].finish(), OUT)
            # Its background processes are killed; their output so far can still be read.
            self._kill(command)
            while selector.get_map() and self._pump(selector, hidings, _LAST_READ_S):
                pass
            for stream, descriptor in enumerate(command.outputs, OUT):
                self._send(hidings[descriptor].finish(), stream)
        return ended

    def _pump(self, selector: selectors.BaseSelector, hidings: dict[int, SecretRedactor], wait_s: float) -> bool:
        """Send available output; return True if there was any."""
        if not selector.get_map():
            self._over.wait(wait_s)
            return False
        ready = selector.select(wait_s)
        for key, _ in ready:
            try:
                data = os.read(key.fd, EXEC_PIECE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                # The kernel's error when no process has the terminal open any more.
                data = b""
            if not data:
                selector.unregister(key.fd)
            self._send(hidings[key.fd].feed(data), key.data)
        return bool(ready)

    def _send(self, data: bytes, stream: int) -> None:
        """Send bytes, however long that takes; drop them if the session is over."""
        pauses, until_s = TransferBackoff(), self._clock.monotonic_s() + _AWAY_S
        while data and not self._over.is_set():
            try:
                end = self._line.put_exec(
                    self.token, self.call.id, data[:EXEC_PIECE_BYTES], stream=stream, offset=self._sent, wait_s=_WAIT_S
                )
            except StokerError as error:
                self._pause_or_end(error, pauses, until_s)
                continue
            data, self._sent = data[end - self._sent :], end
            pauses, until_s = TransferBackoff(), self._clock.monotonic_s() + _AWAY_S

    def _listen(self, command: AttachedCommand) -> None:
        """Pass input, size changes and the end of input to the command until it has ended."""
        token, call = self.token, self.call
        rows, columns, offset, is_eof = call.rows, call.columns, 0, False
        pauses, until_s = TransferBackoff(), self._clock.monotonic_s() + _AWAY_S
        while not self._over.is_set():
            said = ExecListen(**token.fence(), offset=offset, rows=rows, columns=columns, is_eof=is_eof, wait_s=_WAIT_S)
            try:
                heard = self._line.hear_exec(token.job, call.id, said)
            except StokerError as error:
                self._pause_or_end(error, pauses, until_s)
                continue
            pauses, until_s = TransferBackoff(), self._clock.monotonic_s() + _AWAY_S
            if heard.over:
                self.end(heard.over)
                return
            if (heard.rows, heard.columns) != (rows, columns):
                rows, columns = heard.rows, heard.columns
                self._while_open(lambda: command.resize(rows, columns))  # noqa: B023 - called at once
            self._type(command, heard.data)
            offset += len(heard.data)
            if heard.is_eof and not is_eof:
                is_eof = True
                self._while_open(command.end_input)

    def _while_open(self, act: Callable[[], None]) -> None:
        with self._lock:
            if not self._over.is_set():
                act()

    def _type(self, command: AttachedCommand, data: bytes) -> None:
        while data and not self._over.is_set():
            with self._lock:
                if self._over.is_set():
                    return
                try:
                    data = data[os.write(command.input, data) :]
                except BlockingIOError:
                    pass
                except OSError:
                    # It reads no more; its output is still sent.
                    return
            if data:
                self._over.wait(_LOOK_EVERY_S / 2)

    def _pause_or_end(self, error: StokerError, pauses: TransferBackoff, until_s: float) -> None:
        if is_later(error) and self._clock.monotonic_s() < until_s:
            self._over.wait(pauses.failed())
        else:
            self.end(str(error))

    def _kill(self, command: AttachedCommand) -> None:
        with suppress(ProcessLost):
            stop_group(command.child.identity, grace_s=0.0, clock=self._clock)


def _said(error: StokerError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


MOST_PER_JOB = 4
_REMEMBERED = 1000


class CommandSessions:
    """Exec sessions of one worker, each with a thread of its own. Nothing here blocks the worker."""

    def __init__(self, line: FleetClient, clock: Clock) -> None:
        self._line = line
        self._clock = clock
        self._lock = threading.Lock()
        self._live: dict[str, ExecSession] = {}
        self._known: deque[str] = deque(maxlen=_REMEMBERED)

    def open(self, call: ExecCall, place: Callable[[], ExecTarget]) -> None:
        """Start a session once: the coordinator repeats its request until it gets a response."""
        session = self._new(call)
        if session is None:
            return
        with self._lock:
            theirs = [one for one in self._live.values() if one.token == session.token]
            is_room = len(theirs) < MOST_PER_JOB
            if is_room:
                self._live[call.id] = session
        if is_room:
            self._in_thread(lambda: self._see_through(session, place))
        else:
            self._refuse(session, f"{MOST_PER_JOB} commands run inside this job already")

    def refuse(self, call: ExecCall, why: str) -> None:
        """Report why a session is not started."""
        session = self._new(call)
        if session is not None:
            self._refuse(session, why)

    def end(self, token: AttemptToken, why: str) -> None:
        """Stop all commands beside an attempt, and wait until they have exited."""
        for session in self._of(token):
            session.end(why)

    def close(self, why: str) -> None:
        """Stop all commands."""
        for session in self._of(None):
            session.end(why)

    def _new(self, call: ExecCall) -> ExecSession | None:
        with self._lock:
            if call.id in self._known:
                return None
            self._known.append(call.id)
        return ExecSession(call, self._line, self._clock)

    def _of(self, token: AttemptToken | None) -> list[ExecSession]:
        with self._lock:
            return [one for one in self._live.values() if token in (None, one.token)]

    def _see_through(self, session: ExecSession, place: Callable[[], ExecTarget]) -> None:
        try:
            session.run(place)
        finally:
            with self._lock:
                self._live.pop(session.call.id, None)

    def _refuse(self, session: ExecSession, why: str) -> None:
        self._in_thread(lambda: session.tell_end(NOT_STARTED, why))

    def _in_thread(self, act: Callable[[], None]) -> None:
        threading.Thread(target=act, name="stoker-exec", daemon=True).start()
