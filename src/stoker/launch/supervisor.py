"""A child process beside this one: started again when it ends, and never left behind.

Its standard input is its life line: the first line is a secret, which is then in no argument and no environment
variable, and the child ends when the stream closes. The kernel closes it when this process ends, however that happens.
Its output is handed on line by line.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from stoker.core.clock import Clock

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Between an end and the next start; the pause doubles each time, and begins again after a child that lived longer."""
END_S = 5.0
"""How long the child may take to end after its life line has closed."""
_LONGEST_LINE = 64 * 1024


class SupervisedChild:
    """Keeps one child process running until closed. Thread-safe."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        folder: str,
        environment: Mapping[str, str],
        secret: str,
        on_line: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """`on_line` gets each line of the child, and a line about each of its ends, in another thread."""
        self._argv = tuple(argv)
        self._folder = folder
        self._environment = dict(environment)
        self._secret = secret
        self._on_line = on_line
        self._clock = clock
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="stoker-child", daemon=True)

    def start(self) -> None:
        """Start the child, and again whenever it ends."""
        self._thread.start()

    def close(self) -> None:
        """End the child. Blocks until it has ended."""
        self._is_closed.set()
        with self._lock:
            process = self._process
        if process is not None:
            _end(process)
        if self._thread.is_alive():
            self._thread.join(END_S)

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._is_closed.is_set():
            began_s = self._clock.monotonic_s()
            why = self._run_once()
            if self._is_closed.is_set():
                return
            if self._clock.monotonic_s() - began_s > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            self._on_line(f"{why}; starts again in {pause_s:.0f} s")
            self._is_closed.wait(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    def _run_once(self) -> str:
        """Run the child to its end; return how it ended."""
        try:
            with self._lock:
                if self._is_closed.is_set():
                    return ""
                self._process = process = subprocess.Popen(
                    self._argv,
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    # A Ctrl-C at the terminal is for this process, which then closes the life line.
                    start_new_session=True,
                )
        except OSError as error:
            return f"can't be started: {error.strerror}"
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            message = "a child without its streams"
            raise RuntimeError(message)
        # A child that ended at once does not read it.
        with suppress(OSError):
            stdin.write(f"{self._secret}\n".encode())
            stdin.flush()
        while line := stdout.readline(_LONGEST_LINE):
            self._on_line(line.decode(errors="replace").rstrip())
        code = process.wait()
        with suppress(OSError):
            stdin.close()
        stdout.close()
        return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    for act in (process.terminate, process.kill):
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            act()
        else:
            return
    process.wait()
