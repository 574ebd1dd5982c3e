"""Attempts' children: one kept warm ahead of time, each the leader of its own session, each watched until it is gone.

A child waits for its assignment on its standard input. It holds no pipe of ours after that, so it outlives a keeper
that is killed, and a successor finds it by identity.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from stoker.core.clock import Clock
from stoker.core.errors import ProcessLost
from stoker.host.durable import translated
from stoker.host.identity import Liveness, ProcessIdentity, is_alive
from stoker.host.processes import Child, start
from stoker.worker.assignment import Assignment

SAID_FILE = "said.log"
"""In an attempt's folder: what its own process wrote, where it wrote anything."""
_LAST_WORDS_BYTES = 2000
_LOOK_EVERY_S = 0.25


class AttemptProcess:
    """A child with an assignment, ours or a predecessor's."""

    def __init__(self, identity: ProcessIdentity, child: Child | None = None, said_path: str = "") -> None:
        self.identity = identity
        self._child = child
        self._said_path = said_path

    def wait(self, clock: Clock) -> str:
        """Wait until it is gone; say how it ended, as far as that can be known."""
        self._watch(clock)
        return "" if self._child is None else str(self._child.wait(clock=clock))

    def last_words(self) -> str:
        """Return the last line that it wrote to its standard error."""
        try:
            with open(self._said_path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_WORDS_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def forget(self, folder: str) -> None:
        """Put what it said into its attempt's folder, to go when that goes; nothing of it stays with the worker."""
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
                    # The descriptor stays with the process it was opened for: what we compare is what we wait for.
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
    """Starts children."""

    def __init__(
        self, argv: Sequence[str], *, folder: str, said_folder: str, environment: Callable[[], Mapping[str, str]]
    ) -> None:
        """Make it; `folder` is where children start, `environment` what they get."""
        self._argv = tuple(argv)
        self._folder = folder
        self._said_folder = said_folder
        self._environment = environment
        self._lock = threading.Lock()
        self._spare: tuple[Child, str] | None = None
        self._may_keep = True
        """Not after a spare one died unasked: the next might at once, and the next. Whoever needs one finds out why."""
        self._count = 0

    def keep_spare(self) -> None:
        """See that a child waits for the next assignment."""
        with self._lock:
            if self._spare is not None and self._spare[0].poll() is not None:
                self.dismiss(*self._spare)
                self._spare, self._may_keep = None, False
            if self._spare is None and self._may_keep:
                self._spare = self._start()

    def take(self) -> tuple[Child, str]:
        """Return a child that waits, and where it writes what it has to say."""
        with self._lock:
            spare, self._spare = self._spare, None
            self._may_keep = True
            if spare is not None and spare[0].poll() is None:
                return spare
            if spare is not None:
                self.dismiss(*spare)
            return self._start()

    def hand(self, child: Child, assignment: Assignment) -> None:
        """Give a child its assignment. Raises `ProcessLost` if it is gone."""
        if child.stdin is None:
            raise ProcessLost("an attempt's process takes no assignment")
        try:
            with child.stdin as pipe:
                pipe.write(assignment.to_line())
        except OSError as error:
            raise ProcessLost(f"the attempt's process is gone before it began: {error}") from error

    def dismiss(self, child: Child, said_path: str) -> None:
        """Let a child go that was given nothing, with whatever it said."""
        if child.stdin is not None:
            child.stdin.close()
        child.stop(grace_s=1.0)
        _remove(said_path)

    def close(self) -> None:
        """Let the spare one go."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            self.dismiss(*spare)

    def _start(self) -> tuple[Child, str]:
        import subprocess  # noqa: PLC0415 - a constant of it

        self._count += 1
        said_path = os.path.join(self._said_folder, f"{os.getpid()}-{self._count}.log")
        with translated(said_path), open(said_path, "wb") as said:
            child = start(
                self._argv,
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
            )
        return child, said_path


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
