"""A warm process whose forks outlive it, and us: attempts of a worker go on when their worker restarts.

    this process  ──fork: input, output, exit pipe──▶  server (imported once, one thread)  ──fork──▶  child: run()
                  ◀──────────────forked───────────────                                                │
                  ◀───────── how it ended, on the exit pipe, from the server, which reaps it ──────────┘

When this process goes away, the server ends with its last child. If the server is killed, its children go on; only how
they end is unknown then. It refuses to fork as soon as a file that it imported, or a folder that distributions are
installed in, has changed since it was started: the next server has today's code. Linux only. For work that must end
with its caller see `zygote`.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NoReturn

from stoker.core.clock import Clock, Closable
from stoker.core.errors import ProcessLost, Unavailable
from stoker.core.frozen import compile_constructors, fields_of
from stoker.core.jsontext import dumps, loads
from stoker.host import linux
from stoker.host.durable import StrPath
from stoker.host.identity import Liveness, ProcessExit, ProcessIdentity, identity_from, is_alive, read_row
from stoker.host.processes import GRACE_S, GroupLeader, StopOutcome, start_server, stop_group
from stoker.host.sockets import Channel, ReceivedMessage
from stoker.host.zygote_child import end_process

IS_SUPPORTED = sys.platform == "linux"
_SERVE = "--serve-forks"
"""The argument that makes a program a fork server. Behind it: the channel's descriptor, and when it was started."""
_FIRST_ANSWER_S = 60.0
"""For the first answer: until then it imports."""
_ANSWER_S = 10.0
_CLOSE_WAIT_S = 1.0
_STOP_WAIT_S = 5.0
_EXIT_BYTES = 4096
_TAIL_BYTES = 2000
_INSTALL_FOLDERS = ("site-packages", "dist-packages")


class IndependentChild(GroupLeader):
    """A child of the server."""

    def __init__(self, identity: ProcessIdentity, stdin: IO[bytes], exit_fd: int) -> None:
        self.identity = identity
        self.stdin = stdin
        self._exit_fd = exit_fd
        os.set_blocking(exit_fd, False)
        self._close_exit = weakref.finalize(self, os.close, exit_fd)
        self._exit: ProcessExit | None = None
        self._reading = threading.Lock()

    def poll(self) -> ProcessExit | None:
        with self._reading:
            if self._exit is None:
                self._exit = self._read_exit()
                if self._exit is not None:
                    self._close_exit()
            return self._exit

    def stop(self, *, grace_s: float = GRACE_S, clock: Clock | None = None) -> StopOutcome:
        """Stop the whole group; see `stop_group`."""
        stopped = stop_group(self.identity, grace_s=grace_s, clock=clock)
        # A server that hangs does not report the end.
        with suppress(TimeoutError):
            self.wait(_STOP_WAIT_S)
        return stopped

    def _read_exit(self) -> ProcessExit | None:
        try:
            text = os.read(self._exit_fd, _EXIT_BYTES)
        except BlockingIOError:
            return None
        if text:
            return ProcessExit(**loads(text))
        # The server was killed before it: how it ends is not known.
        if is_alive(self.identity) is Liveness.ALIVE:
            return None
        return ProcessExit(status=None, signal=None, max_rss_bytes=0, cpu_s=0.0)


class ForkServer(Closable):
    """The server, seen from the process that orders forks."""

    def __init__(self, process: subprocess.Popen[bytes], end: socket.socket, log: IO[bytes]) -> None:
        self._process = process
        self._socket = end
        self._channel = Channel(end)
        self._log = log

    @classmethod
    def start(cls, argv: Sequence[str], *, cwd: StrPath, env: Mapping[str, str]) -> ForkServer:
        """Start `argv`, which calls `serve_if_asked` when it is warm. Returns at once."""
        started_ns = time.time_ns()
        process, ours, log = start_server(lambda fd: [*argv, _SERVE, str(fd), str(started_ns)], cwd=cwd, env=env)
        ours.settimeout(_FIRST_ANSWER_S)
        return cls(process, ours, log)

    def is_running(self) -> bool:
        """Return True if its process has not ended."""
        return self._process.poll() is None

    def fork(self, output: IO[bytes]) -> IndependentChild | None:
        """Fork a child that writes to `output`; None if code has changed since the server started.

        One thread at a time. Raises `ProcessLost` if the server is gone or does not answer, and `Unavailable` if the
        system makes no process now; the server goes on then.
        """
        input_read, input_write = os.pipe()
        exit_read, exit_write = os.pipe()
        is_forked = False
        try:
            self._channel.send({"op": "fork"}, [input_read, output.fileno(), exit_write])
            answer = self._answer()
            if answer["op"] == "stale":
                return None
            if answer["op"] != "forked":
                raise Unavailable(f"no process could be made: {answer['why']}", hint="end some processes, or wait")
            is_forked = True
        except (OSError, TimeoutError) as error:
            raise ProcessLost(f"the fork server (process {self._process.pid}) does not answer{self._tail()}") from error
        finally:
            for fd in (input_read, exit_write, *(() if is_forked else (input_write, exit_read))):
                os.close(fd)
        identity = identity_from(answer["pid"], answer["start_ticks"])
        return IndependentChild(identity, open(input_write, "wb"), exit_read)

    def close(self) -> None:
        """End the server. If it has children, it ends with the last one; call `is_running` then to reap it."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_WAIT_S)
        self._log.close()

    def kill(self) -> None:
        """End a server that hangs. Its children go on, and how they end stays unknown."""
        self._process.kill()
        self.close()

    def _answer(self) -> dict[str, Any]:
        while (messages := self._channel.receive()) is not None:
            if messages:
                self._socket.settimeout(_ANSWER_S)
                return messages[0].body
        raise ConnectionResetError

    def _tail(self) -> str:
        fd = self._log.fileno()
        text = os.pread(fd, _TAIL_BYTES, max(0, os.fstat(fd).st_size - _TAIL_BYTES)).decode(errors="replace").strip()
        return f": {text.splitlines()[-1]}" if text else ""


def serve_if_asked(run: Callable[[], int]) -> None:
    """If a `ForkServer` started this program, fork a child that calls `run` for each request, and do not return."""
    if _SERVE not in sys.argv:
        return
    control_fd, started_ns = map(int, sys.argv[sys.argv.index(_SERVE) + 1 :])
    linux.set_name("stoker-forks")
    compile_constructors()
    gc.collect()
    gc.freeze()
    _Server(Channel(socket.socket(fileno=control_fd)), run, started_ns).serve()
    # Nothing of ours is left to write.
    os._exit(0)


class _Server:
    def __init__(self, channel: Channel, run: Callable[[], int], started_ns: int) -> None:
        self._channel = channel
        self._run = run
        self._accepts = True
        self._exit_fds: dict[int, int] = {}
        self._code = _state_of_code()
        # What changed while we imported may have been imported before the change.
        self._is_stale = any(max(state[2:]) >= started_ns for state in self._code.values() if state)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def serve(self) -> None:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while self._accepts or self._exit_fds:
            ends = [self._channel.fileno()] if self._accepts else []
            ready, _, _ = select.select([*ends, self._wake_read], [], [])
            if self._wake_read in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            self._reap()
            if self._accepts and self._channel.fileno() in ready:
                self._obey(self._channel.receive())

    def _obey(self, messages: list[ReceivedMessage] | None) -> None:
        if messages is None:
            self._accepts = False
        for message in messages or ():
            # If the other side is gone, the next round notices.
            with suppress(ConnectionError):
                self._channel.send(self._fork(message))

    def _fork(self, message: ReceivedMessage) -> dict[str, Any]:
        input_fd, output_fd, exit_fd = message.fds
        try:
            if self._is_stale or _state_of_code() != self._code:
                os.close(exit_fd)
                return {"op": "stale"}
            signal.pthread_sigmask(signal.SIG_BLOCK, linux.HANDLED)
            try:
                pid = os.fork()
                if pid == 0:
                    self._become_child(input_fd, output_fd, exit_fd)
            except OSError as error:
                os.close(exit_fd)
                return {"op": "refused", "why": error.strerror}
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, linux.HANDLED)
        finally:
            os.close(input_fd)
            os.close(output_fd)
        self._exit_fds[pid] = exit_fd
        row = read_row(pid)
        return {"op": "forked", "pid": pid, "start_ticks": row.start_ticks if row else 0}

    def _become_child(self, input_fd: int, output_fd: int, exit_fd: int) -> NoReturn:
        status = 1
        try:
            linux.lead_session()
            linux.set_name("python")
            for number, fd in enumerate((input_fd, output_fd, output_fd)):
                os.dup2(fd, number)
            for fd in (input_fd, output_fd, exit_fd, *self._exit_fds.values(), self._wake_read, self._wake_write):
                os.close(fd)
            self._channel.close()
            linux.let_signals_in()
            status = self._run()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001 - there is no caller above
            sys.excepthook(*sys.exc_info())
        finally:
            end_process(status)

    def _reap(self) -> None:
        for pid in list(self._exit_fds):
            if linux.has_ended(pid):
                exit_fd = self._exit_fds.pop(pid)
                # Who asked may be gone, or have no use for it.
                with suppress(OSError):
                    os.write(exit_fd, dumps(fields_of(linux.reap(pid))).encode())
                os.close(exit_fd)


def _state_of_code() -> dict[str, tuple[int, int, int, int] | None]:
    """Return what identifies the files of all imported modules, and the folders that distributions are put in."""
    files = {path for module in list(sys.modules.values()) if (path := getattr(module, "__file__", None))}
    folders = {path for path in sys.path if os.path.basename(path) in _INSTALL_FOLDERS}
    return {path: _state_of(path) for path in files | folders}


def _state_of(path: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
