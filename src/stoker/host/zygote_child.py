"""What a freshly forked child does: leave the zygote behind, enter its box, run one function, and end.

The child becomes the leader of its own session, dies with the zygote, reads nothing from standard input and writes its
output to the log it was given. If it is to work in a box, it enters that before anything else. The function is called
as `function(request, emit)`; `emit(object)` sends one JSON line up the pipe and may be called from any thread. Status
0: the function returned. Status 1: it raised, and the log has the traceback. `SystemExit` sets its own status.
What was registered with `atexit` runs, threads are waited for.

Variables in `env` are set after the preloaded libraries were imported: those that a library reads while it is imported
(numbers of threads, say) have to be in the zygote's own environment.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from stoker.core import jsontext
from stoker.host.box_entry import BOX_REFUSED, ChildSetup, enter
from stoker.host.import_watch import entry_point
from stoker.host.linux import become_independent, let_signals_in

# Lines up to this length are sent in one write, up to 4 KiB of it without any other process's bytes in between.
_BUFFER_BYTES = 1 << 16


class ChildPipes(NamedTuple):
    """The child's ends of its connections to the caller."""

    events_fd: int
    log_fd: int
    gate_fd: int | None
    """Where it waits until its box lets it in."""
    given_fds: Sequence[int] = ()
    """Further ones, named in its request."""


def run_forked(order: dict[str, Any], ends: ChildPipes, *, zygote_pid: int, zygote_fds: Sequence[int]) -> NoReturn:
    """Carry out the order and end this process. Signals are blocked when this is called."""
    status = 1
    emit = Emitter(ends.events_fd)
    try:
        for fd in zygote_fds:
            os.close(fd)
        become_independent(zygote_pid)
        _redirect(ends.log_fd)
        let_signals_in()
        _enter_box(order["box"], ends.gate_fd, emit)
        _enter(order)
        if ends.given_fds:
            order["request"]["fds"] = list(ends.given_fds)
        status = _run(order, emit)
    except BaseException:  # noqa: BLE001 - there is no caller above
        traceback.print_exc()
    finally:
        end_process(status, emit.flush)


def _redirect(log_fd: int) -> None:
    null_fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_fd, 0)
    os.close(null_fd)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(log_fd)
    for stream in (sys.stdout, sys.stderr):
        # A person may be following the log.
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]  # sys's own are


def _enter_box(box: Mapping[str, Any] | None, gate_fd: int | None, emit: Emitter) -> None:
    if box is None:
        return
    entry = ChildSetup(procs_files=tuple(box["files"]), address_space_bytes=box["address_space_bytes"], gate_fd=gate_fd)
    try:
        enter(entry)
    except OSError as error:
        emit({BOX_REFUSED: f"{error.strerror or error}: {error.filename or 'its limits'}"})
        raise


def _enter(order: dict[str, Any]) -> None:
    gc.enable()
    if order["cwd"] is not None:
        os.chdir(order["cwd"])
    # The environment of the work itself, not a setting of ours that is read.
    os.environ.update(order["env"])  # noqa: TID251


def _run(order: dict[str, Any], emit: Emitter) -> int:
    function = entry_point(order["entry"])
    try:
        function(order["request"], emit)
    except SystemExit as end:
        return _status_of(end)
    return 0


class Emitter:
    """The pipe to the caller, as a function.

    Any thread may call it, and so may a signal handler that interrupts a call: its line goes out after the one that is
    being written, or at the latest when the process ends.
    """

    def __init__(self, events_fd: int) -> None:
        # Keeps count of what is written even when a signal handler raises in the middle.
        self._pipe = open(events_fd, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115 - lives as long as the process
        self.fd = events_fd
        """A process forked from this one has to keep it to report through the same pipe."""
        self._turn = threading.RLock()
        self._lines: deque[bytes] = deque()
        self._is_sending = False

    def __call__(self, event: Mapping[str, Any]) -> None:
        line = jsontext.dumps(dict(event)).encode() + b"\n"
        with self._turn:
            self._lines.append(line)
            if not self._is_sending:
                self.flush()

    def flush(self) -> None:
        """Send what has not been sent."""
        with self._turn:
            self._is_sending = True
            try:
                self._pipe.flush()
                while self._lines:
                    self._pipe.write(self._lines.popleft())
                    self._pipe.flush()
            finally:
                self._is_sending = False


def _status_of(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


def end_process(status: int, *flushes: Callable[[], None]) -> NoReturn:
    """End a forked process: the interpreter's shutdown without the teardown of every module, which takes longer."""
    steps = (
        threading._shutdown,  # type: ignore[attr-defined]  # noqa: SLF001 - waits for threads, as multiprocessing does
        atexit._run_exitfuncs,  # noqa: SLF001 - as multiprocessing does
        *flushes,
        sys.stdout.flush,
        sys.stderr.flush,
    )
    for step in steps:
        try:
            step()
        except BaseException:  # noqa: BLE001 - the next one still has to run
            status = status or 1
    os._exit(status)
