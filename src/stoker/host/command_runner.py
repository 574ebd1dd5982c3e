"""Programs that are run for their output and may hang, flood, crash or not exist. A reply always comes in time.

Each program runs as a child in a session of its own, with the given text as its standard input, or none, and the
language `C` by default. What it prints is kept up to a limit. At its timeout it is killed with all that it started.
Several programs run in parallel, so two that hang cost the time of one. Nothing here raises, whatever the program does.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Protocol

from stoker.core.clock import SystemClock
from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.core.text import one_line
from stoker.host.processes import Child, end_unseen, start

LIMIT_S = 5.0
"""Timeout of one program."""
MOST_BYTES = 1 << 20
"""How much of one stream is kept. Valid output is far smaller."""

_LOOK_S = 0.05
_SHOWN = 1 << 14
# How long a killed program may take to exit. One that waits for a broken device can't be killed at all.
_GOING_S = 0.5


@frozen
class ProbeOutput:
    """What a program printed before it ended."""

    out: str
    err: str = ""
    exit_code: int = 0
    """Negative: the signal that ended it."""
    seconds: float = 0.0


@frozen
class ProbeFailure:
    """Why a program gave no reply."""

    why: str
    code: str
    """`probe_missing`, `probe_not_started`, `probe_timeout`, `probe_flood` or `probe_stuck`."""
    out: str = ""
    """The start of what it had printed."""
    seconds: float = 0.0


Reply = ProbeOutput | ProbeFailure


class CommandRunner(Protocol):
    """Anything that runs such programs."""

    def ask(self, argv: Sequence[str], *, limit_s: float = LIMIT_S, stdin: str = "") -> Reply:
        """Run a program and return its output. Never raises."""

    def ask_all(self, commands: Sequence[Sequence[str]], *, limit_s: float = LIMIT_S) -> tuple[Reply, ...]:
        """Run several programs in parallel and return their outputs, in order. Never raises."""


class SubprocessRunner:
    """Runs real programs, found on the `PATH` of the given environment."""

    def __init__(
        self, environment: Mapping[str, str], *, most_bytes: int = MOST_BYTES, language: str | None = "C"
    ) -> None:
        """`language` None: that of the environment, for commands that start programs which outlive them."""
        words = {} if language is None else {"LC_ALL": language, "LANG": language, "LANGUAGE": ""}
        self._environment = {**environment, **words}
        self._clock = SystemClock()
        self._most_bytes = most_bytes

    def ask(self, argv: Sequence[str], *, limit_s: float = LIMIT_S, stdin: str = "") -> Reply:
        return self._run([argv], limit_s, stdin)[0]

    def ask_all(self, commands: Sequence[Sequence[str]], *, limit_s: float = LIMIT_S) -> tuple[Reply, ...]:
        return self._run(commands, limit_s, "")

    def _run(self, commands: Sequence[Sequence[str]], limit_s: float, stdin: str) -> tuple[Reply, ...]:
        begun_s = self._clock.monotonic_s()
        running: list[_RunningCommand] = []
        try:
            running.extend(_RunningCommand(argv, self._environment, self._most_bytes, stdin) for argv in commands)
            self._listen(running, begun_s, limit_s)
        finally:
            # Also after an interrupt: nothing that we started stays behind.
            for one in running:
                one.end()
        return tuple(one.reply for one in running if one.reply is not None)

    def _listen(self, running: Sequence[_RunningCommand], begun_s: float, limit_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            for one in running:
                one.register(selector)
            while waiting := [one for one in running if one.reply is None]:
                spent_s = self._clock.monotonic_s() - begun_s
                if spent_s >= limit_s:
                    for one in waiting:
                        one.kill()
                    for one in waiting:
                        one.time_is_over(spent_s, limit_s)
                    return
                if selector.get_map():
                    for key, _ in selector.select(min(_LOOK_S, limit_s - spent_s)):
                        key.data(selector)
                else:
                    self._clock.sleep(min(_LOOK_S / 10, limit_s - spent_s))
                for one in waiting:
                    one.look(selector, self._clock.monotonic_s() - begun_s)


class _RunningCommand:
    """One running program."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], most_bytes: int, stdin: str) -> None:
        self.reply: Reply | None = None
        self._name = os.path.basename(argv[0])
        self._child: Child | None = None
        self._is_stuck = False
        self._streams: list[_Stream] = []
        try:
            with ExitStack() as files:
                source = files.enter_context(_file_of(stdin)) if stdin else subprocess.DEVNULL
                self._child = start(
                    argv, cwd="/", env=environment, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
        except StokerError as error:
            is_missing = error.data.get("errno") == "ENOENT"
            self.reply = ProbeFailure(
                why=f"{self._name}: {one_line(error.message, 200)}",
                code="probe_missing" if is_missing else "probe_not_started",
            )
            return
        except (OSError, ValueError) as error:
            self.reply = ProbeFailure(why=f"{self._name}: {one_line(str(error), 200)}", code="probe_not_started")
            return
        for pipe in (self._child.stdout, self._child.stderr):
            if pipe is not None:
                self._streams.append(_Stream(pipe, most_bytes))

    def register(self, selector: selectors.BaseSelector) -> None:
        for stream in self._streams:
            selector.register(stream.pipe, selectors.EVENT_READ, stream.read)

    def look(self, selector: selectors.BaseSelector, spent_s: float) -> None:
        """Return the reply, if it is complete."""
        if self.reply is not None or self._child is None:
            return
        if any(stream.is_full for stream in self._streams):
            why = f"{self._name} printed more than {self._streams[0].most_bytes} bytes and was stopped"
            self._finish(
                selector, ProbeFailure(why=why, code="probe_flood", out=self._text(0, _SHOWN), seconds=spent_s)
            )
            return
        exit_code = self._exit_code()
        if exit_code is None:
            return
        # A process that it left behind may hold the pipes open for ever: its own output is in them by now.
        for stream in self._streams:
            stream.drain(selector)
        self._finish(selector, ProbeOutput(out=self._text(0), err=self._text(1), exit_code=exit_code, seconds=spent_s))

    def time_is_over(self, spent_s: float, limit_s: float) -> None:
        why = f"{self._name} timed out after {limit_s:g} s"
        is_gone = self.end()
        if not is_gone:
            why = f"{why}, and is still there after SIGKILL: it waits for a device or a driver"
        self.reply = ProbeFailure(
            why=why, code="probe_timeout" if is_gone else "probe_stuck", out=self._text(0, _SHOWN), seconds=spent_s
        )

    def end(self) -> bool:
        """Kill what is left of it; return True if it is gone."""
        if self._child is None or self._is_stuck:
            return not self._is_stuck
        for stream in self._streams:
            stream.pipe.close()
        if self._exit_code() is not None:
            end_unseen(self._child.identity)
            return True
        self.kill()
        try:
            self._child.wait(_GOING_S)
        except TimeoutError:
            self._is_stuck = True
            return False
        except ChildProcessError:
            pass
        return True

    def kill(self) -> None:
        """Kill it and its process group, without waiting."""
        if self._child is not None and self._exit_code() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.identity.pid, signal.SIGKILL)

    def _exit_code(self) -> int | None:
        """Return its exit status, `None` while it runs."""
        if self._child is None:
            return None
        try:
            ended = self._child.poll()
        except ChildProcessError:
            # Another thread of this process waits for every child, and has reaped this one.
            return 0
        if ended is None:
            return None
        return ended.status if ended.status is not None else -(ended.signal or 0)

    def _finish(self, selector: selectors.BaseSelector, reply: Reply) -> None:
        for stream in self._streams:
            stream.leave(selector)
        self.reply = reply

    def _text(self, number: int, most: int | None = None) -> str:
        # A NUL has no meaning in what these programs print; in broken output it would hide the rest.
        return self._streams[number].kept[:most].decode("utf-8", "replace").replace("\0", "")


def _file_of(text: str) -> IO[bytes]:
    """Return an open file without a name, in memory if possible: the text may hold a secret. Caller closes."""
    file: IO[bytes]
    if sys.platform == "linux":
        file = os.fdopen(os.memfd_create("stdin"), "w+b")
    else:
        import tempfile  # noqa: PLC0415 - milliseconds at every start

        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(text.encode())
    file.seek(0)
    return file


class _Stream:
    """What is read from one pipe, up to a limit."""

    def __init__(self, pipe: IO[bytes], most_bytes: int) -> None:
        self.pipe = pipe
        self.most_bytes = most_bytes
        self.kept = bytearray()
        os.set_blocking(pipe.fileno(), False)

    @property
    def is_full(self) -> bool:
        return len(self.kept) > self.most_bytes

    def read(self, selector: selectors.BaseSelector) -> bool:
        """Read what is there; return True if more may come."""
        try:
            data = os.read(self.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.leave(selector)
            return False
        self.kept += data
        return not self.is_full

    def drain(self, selector: selectors.BaseSelector) -> None:
        while self.pipe in selector.get_map() and self.read(selector):
            pass

    def leave(self, selector: selectors.BaseSelector) -> None:
        with suppress(KeyError, ValueError):
            selector.unregister(self.pipe)
