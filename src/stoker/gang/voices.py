"""What ranks print, as whole lines: each has pipes of its own, and one thread reads them all.

A carriage return ends a line as a line end does, so a progress bar is seen, too. A line is given when it is whole; one
that is longer than `LONGEST_BYTES` comes in pieces. Whoever hears holds up the ranks, as a slow terminal would.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, Protocol

from stoker.model.closable import Closable

LONGEST_BYTES = 1 << 20
TAIL_LINES = 30
_READ_BYTES = 1 << 16
_LAST_WAIT_S = 1.0
_LOOK_S = 0.1


class Hear(Protocol):
    """Takes lines of one rank without their ends, in order; `is_error` tells of which of its two outputs."""

    def __call__(self, rank: int, lines: Sequence[bytes], *, is_error: bool) -> None: ...


class _Voice:
    """One output of one rank."""

    def __init__(self, rank: int, *, is_error: bool, log: IO[bytes] | None) -> None:
        self.rank = rank
        self.is_error = is_error
        self.log = log
        self._rest = b""

    def take(self, chunk: bytes) -> list[bytes]:
        """Give the lines that are whole now; no bytes: the rest."""
        if not chunk:
            rest, self._rest = self._rest, b""
            return [rest] if rest else []
        text = (self._rest + chunk).replace(b"\r\n", b"\n")
        # Its line end may be on the way.
        held = b"\r" if text.endswith(b"\r") else b""
        *lines, rest = text.removesuffix(b"\r").replace(b"\r", b"\n").split(b"\n")
        while len(rest) > LONGEST_BYTES:
            lines.append(rest[:LONGEST_BYTES])
            rest = rest[LONGEST_BYTES:]
        self._rest = rest + held
        return lines


class Voices(Closable):
    """The outputs of all ranks. Make it, hand out the writing ends, `listen`, and `close` when all have ended."""

    def __init__(
        self,
        nranks: int,
        hear: Hear,
        *,
        log_folder: str | None = None,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """`log_folder` exists, and gets `rank-3.out` and `rank-3.err`. Raises `OSError`.

        `is_given_up` says whether a listener who does not come back is still waited for when we close.
        """
        self._hear = hear
        self._is_given_up = is_given_up
        self.unkept: list[str] = []
        """Which logs are not whole, and why."""
        self._selector = selectors.DefaultSelector()
        self._writing: list[int] = []
        self._voices: dict[int, _Voice] = {}
        self._tails: list[deque[bytes]] = [deque(maxlen=TAIL_LINES) for _ in range(nranks)]
        self._wake = list(os.pipe())
        self._selector.register(self._wake[0], selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._listen, name="stoker-gang-voices", daemon=True)
        try:
            for rank in range(nranks):
                self._open(rank, log_folder, is_error=False)
                self._open(rank, log_folder, is_error=True)
        except BaseException:
            self.close()
            raise

    def ends(self, rank: int) -> tuple[int, int]:
        """Give the writing ends of a rank's standard output and standard error."""
        return self._writing[2 * rank], self._writing[2 * rank + 1]

    def listen(self) -> None:
        """Begin; the writing ends here are closed, so hand them out before."""
        self._close_writing()
        self._thread.start()

    def last_words(self, rank: int) -> list[str]:
        """Give the last lines of a rank's standard error."""
        return [line.decode(errors="replace") for line in self._tails[rank]]

    def close(self) -> None:
        """Hear out what has been said, and stop; whoever still holds an end open is not waited for.

        A listener who does not come back keeps what he has, once he is given up.
        """
        self._close_writing()
        if self._thread.ident is not None and self._wake:
            self._thread.join(_LAST_WAIT_S)
            os.write(self._wake[1], b"\1")
            while self._thread.is_alive():
                self._thread.join(_LOOK_S)
                if self._thread.is_alive() and self._is_given_up():
                    return
        for fd in list(self._voices):
            self._end(fd)
        self._selector.close()
        while self._wake:
            os.close(self._wake.pop())

    def _open(self, rank: int, log_folder: str | None, *, is_error: bool) -> None:
        log = None
        if log_folder is not None:
            name = f"rank-{rank}.{'err' if is_error else 'out'}"
            log = open(os.path.join(log_folder, name), "wb", buffering=0)  # noqa: SIM115 - closed at its end
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        self._writing.append(write_fd)
        self._voices[read_fd] = _Voice(rank, is_error=is_error, log=log)
        self._selector.register(read_fd, selectors.EVENT_READ)

    def _close_writing(self) -> None:
        while self._writing:
            os.close(self._writing.pop())

    def _listen(self) -> None:
        is_told_to_end = False
        while self._voices and not is_told_to_end:
            ready = [int(key.fd) for key, _ in self._selector.select()]
            is_told_to_end = self._wake[0] in ready
            for fd in ready:
                if fd in self._voices:
                    self._read(fd)

    def _read(self, fd: int) -> None:
        voice = self._voices[fd]
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if chunk:
            self._keep(voice, chunk)
        self._say(voice, voice.take(chunk))
        if not chunk:
            self._end(fd)

    def _keep(self, voice: _Voice, chunk: bytes) -> None:
        view = memoryview(chunk)
        try:
            while view and voice.log is not None:
                view = view[os.write(voice.log.fileno(), view) :]
        except OSError as error:
            # The ranks go on; a log with a hole in it would be worse than one that ends.
            log, voice.log = voice.log, None
            if log is not None:
                self.unkept.append(f"{log.name} is not whole: {error.strerror}")
                log.close()

    def _end(self, fd: int) -> None:
        voice = self._voices.pop(fd)
        self._say(voice, voice.take(b""))
        self._selector.unregister(fd)
        os.close(fd)
        if voice.log is not None:
            voice.log.close()

    def _say(self, voice: _Voice, lines: list[bytes]) -> None:
        if not lines:
            return
        if voice.is_error:
            self._tails[voice.rank].extend(lines)
        self._hear(voice.rank, lines, is_error=voice.is_error)


def prefixed(rank: int, lines: Sequence[bytes], *, is_prefixed: bool) -> bytes:
    """Give lines as they are written in one piece."""
    before = f"[rank {rank}] ".encode() if is_prefixed else b""
    return b"".join(before + line + b"\n" for line in lines)
