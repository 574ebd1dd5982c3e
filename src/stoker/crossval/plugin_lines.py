"""The connection with a plug-in: a child process that gets one line and returns lines, each in time and of a limit.

Nothing that a child does makes this wait without end or take memory without end: it may hang, crash, close its output,
print on and on without a newline, leave its input unread or flood its log. Each of these is an error that names the
plug-in, its signal or exit status and the end of its log; the child is stopped then. It leads its own process group,
and nothing of that is left after `close`.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

from stoker.core.clock import Clock, Closable, SystemClock
from stoker.core.errors import PluginCrashed, PluginFailed, PluginInvalid, PluginTimeout
from stoker.core.frozen import frozen
from stoker.core.text import format_size, one_line
from stoker.host.identity import ProcessExit
from stoker.host.processes import start

_READ_BYTES = 1 << 16
_LOG_BYTES = 16 << 10
_LOOK_S = 0.25
_POLITE_S = 2.0
_SHOWN = 80


@frozen
class PluginCommand:
    """How a plug-in is started."""

    label: str
    """What it is called in messages."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """All of its environment."""
    cwd: str = "/"


class PluginConnection(Closable):
    """One running plug-in. Not thread-safe."""

    def __init__(self, command: PluginCommand, *, clock: Clock | None = None) -> None:
        self.label = command.label
        self._clock = clock or SystemClock()
        self._log = bytearray()
        self._read = bytearray()
        self._searched = 0
        self._unsent = memoryview(b"")
        self._end: ProcessExit | None = None
        self._is_closed = False
        self._child = start(
            command.argv,
            cwd=command.cwd,
            env=command.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        pipes = (self._child.stdin, self._child.stdout, self._child.stderr)
        self._pipes: list[IO[bytes]] = [pipe for pipe in pipes if pipe is not None]
        self._stdin, self._stdout, self._stderr = self._pipes
        self._selector = selectors.DefaultSelector()
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._selector.register(self._stderr, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        return self._child.identity.pid

    @property
    def log(self) -> str:
        """The end of what it has printed on standard error."""
        return bytes(self._log).decode("utf-8", "replace")

    def send(self, line: bytes) -> None:
        """Send a request. It goes out while `receive` waits, as far as the plug-in reads it."""
        self._require_open()
        if self._read:
            raise self._stopped(
                PluginInvalid, f"{self.label} printed {_shown(self._read)} without a request", op="unrequested"
            )
        self._unsent = memoryview(line + b"\n")
        self._selector.register(self._stdin, selectors.EVENT_WRITE)

    def receive(self, op: str, *, timeout_s: float, most_bytes: int) -> bytes:
        """Return the next line, without its end. `op` names the request in errors."""
        self._require_open()
        deadline_s = self._clock.monotonic_s() + timeout_s
        while (line := self._line()) is None:
            if len(self._read) > most_bytes:
                limit = format_size(most_bytes)
                raise self._stopped(PluginInvalid, f"{self.label} printed a line of more than {limit}", op=op)
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise self._stopped(
                    PluginTimeout, f"{self.label} did not respond to {op} within {timeout_s:g} s", op=op
                )
            self._pump(min(left_s, _LOOK_S), op)
        if len(line) > most_bytes:
            limit = format_size(most_bytes)
            raise self._stopped(PluginInvalid, f"{self.label} printed a line of more than {limit}", op=op)
        return line

    def close(self) -> None:
        """End it: close its input, wait a moment, then stop its whole group."""
        self._stop(_POLITE_S)

    def refuse(self, kind: type[PluginFailed], message: str, **data: object) -> PluginFailed:
        """Return an error about its response; the plug-in is stopped."""
        return self._stopped(kind, message, **data)

    def _require_open(self) -> None:
        if self._is_closed:
            raise PluginFailed(f"{self.label} is stopped: no more requests", plugin=self.label)

    def _line(self) -> bytes | None:
        at = self._read.find(b"\n", self._searched)
        if at < 0:
            self._searched = len(self._read)
            return None
        line = bytes(self._read[:at])
        del self._read[: at + 1]
        self._searched = 0
        return line

    def _pump(self, wait_s: float, op: str) -> None:
        """Write and read what can be without waiting longer than that."""
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            if key.fileobj is self._stdin:
                self._write()
            elif key.fileobj is self._stderr:
                self._keep_log()
            elif not self._read_more():
                raise self._crashed(op)
        # A process that it left behind may hold its output open.
        if not ready and self._ended() is not None:
            raise self._crashed(op)

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._stdin.fileno(), self._unsent[: 1 << 20]) :]
        except BlockingIOError:
            return
        except OSError:
            # It no longer reads: whether it has crashed is seen at its output.
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._selector.unregister(self._stdin)

    def _read_more(self) -> bool:
        """Read from its output; return False at the end."""
        data = _read_from(self._stdout)
        self._read += data or b""
        return data != b""

    def _keep_log(self) -> None:
        data = _read_from(self._stderr)
        if data == b"":
            self._selector.unregister(self._stderr)
        self._log += data or b""
        del self._log[:-_LOG_BYTES]

    def _ended(self) -> ProcessExit | None:
        if self._end is None:
            self._end = self._child.poll()
        return self._end

    def _crashed(self, op: str) -> PluginFailed:
        if self._ended() is None:
            with suppress(TimeoutError):
                self._end = self._child.wait(_POLITE_S, self._clock)
        end = self._end
        if end is None:
            return self._stopped(PluginCrashed, f"{self.label} closed its output during {op}", op=op)
        if end.signal:
            name = signal.Signals(end.signal).name if end.signal in signal.valid_signals() else str(end.signal)
            message = f"{self.label} was killed by {name} during {op}"
            return self._stopped(PluginCrashed, message, op=op, signal=name)
        message = f"{self.label} exited with {end.status} during {op}"
        return self._stopped(PluginCrashed, message, op=op, exit_status=end.status)

    def _stopped(self, kind: type[PluginFailed], message: str, **data: object) -> PluginFailed:
        self._stop(0.0)
        log = self.log
        last = next((line for line in reversed(log.splitlines()) if line.strip()), "")
        hint = f"its log ends with: {one_line(last, 200)}" if last else ""
        return kind(message, hint=hint, plugin=self.label, log=log, **data)

    def _stop(self, polite_s: float) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with suppress(OSError):
                self._stdin.close()
            if polite_s and self._ended() is None:
                with suppress(TimeoutError):
                    self._end = self._child.wait(polite_s, self._clock)
            self._child.stop(grace_s=polite_s, clock=self._clock)
        finally:
            for _ in range(_LOG_BYTES // _READ_BYTES + 4):
                data = _read_from(self._stderr)
                if not data:
                    break
                self._log += data
            del self._log[:-_LOG_BYTES]
            self._selector.close()
            for pipe in self._pipes:
                with suppress(OSError):
                    pipe.close()


def _read_from(pipe: IO[bytes]) -> bytes | None:
    """Return what is there, nothing if there is none yet, and b"" at the end."""
    try:
        return os.read(pipe.fileno(), _READ_BYTES)
    except BlockingIOError:
        return None
    except (OSError, ValueError):
        return b""


def _shown(data: bytes | bytearray) -> str:
    return repr(bytes(data[:_SHOWN]).decode("utf-8", "replace"))
