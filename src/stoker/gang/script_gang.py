"""A script run as ranks: all of them started, heard and watched until every one has ended well, or the first cause.

    gang = ScriptGang(script, 8, folder=…, hear=…)
    gang.run()      # returns when all ended with 0; raises RankFailed with the first cause, nothing is left then

A rank is done when its process has ended with 0. Whatever else happens to one ends all. There is no limit of time,
except from the moment the first rank enters `init_process_group` until all are through it.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import IO, Any, Protocol

from stoker.core.clock import Closable, SystemClock
from stoker.core.errors import Cancelled, RankFailed, RankTimeout, StokerError, Unavailable
from stoker.gang.gang_failures import RankFailureMode, RankSnapshot, is_echo
from stoker.gang.gang_plan import ERR, OUT, STORE
from stoker.gang.mailbox import Phase, unnamed_memory
from stoker.gang.rank import BECOME, RUN_HERE
from stoker.gang.rank_processes import Cancel, GangTimeouts, RankProcesses, stop, wait_for, wait_gone
from stoker.gang.scripts import (
    HeldPort,
    Script,
    check_ranks,
    needs_libraries,
    rank_variables,
    shared_variables,
    speaks_for_all,
)
from stoker.gang.starters import ExecStarter, Starter, ZygoteStarter
from stoker.host.processes import GRACE_S
from stoker.host.zygote import Zygote

LONGEST_BYTES = 1 << 20
TAIL_LINES = 30
_READ_BYTES = 1 << 16
_LAST_WAIT_S = 1.0
_LOOK_S = 0.1


class RankLineCallback(Protocol):
    """Takes lines of one rank without their ends, in order; `is_error` tells of which of its two outputs."""

    def __call__(self, rank: int, lines: Sequence[bytes], *, is_error: bool) -> None: ...


class _RankStream:
    """One output of one rank."""

    def __init__(self, rank: int, *, is_error: bool, log: IO[bytes] | None) -> None:
        self.rank = rank
        self.is_error = is_error
        self.log = log
        self._rest = b""

    def take(self, chunk: bytes) -> list[bytes]:
        """Return the lines that are whole now; no bytes: the rest."""
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


class RankOutput(Closable):
    """Reads what ranks print, as whole lines: each has its own pipes, and one thread reads them all.

    Make it, hand out the writing ends, `listen`, and `close` when all have ended. A carriage return ends a line as a
    line end does, so a progress bar is seen, too. A line is given when it is whole; one that is longer than
    `LONGEST_BYTES` comes in pieces. A slow callback holds up the ranks, as a slow terminal would.
    """

    def __init__(
        self,
        nranks: int,
        hear: RankLineCallback,
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
        self._streams: dict[int, _RankStream] = {}
        self._tails: list[deque[bytes]] = [deque(maxlen=TAIL_LINES) for _ in range(nranks)]
        self._wake = list(os.pipe())
        self._selector.register(self._wake[0], selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._listen, name="stoker-gang-output", daemon=True)
        try:
            for rank in range(nranks):
                self._open(rank, log_folder, is_error=False)
                self._open(rank, log_folder, is_error=True)
        except BaseException:
            self.close()
            raise

    def ends(self, rank: int) -> tuple[int, int]:
        """Return the writing ends of a rank's standard output and standard error."""
        return self._writing[2 * rank], self._writing[2 * rank + 1]

    def listen(self) -> None:
        """Begin; the writing ends here are closed, so hand them out before."""
        self._close_writing()
        self._thread.start()

    def last_words(self, rank: int) -> list[str]:
        """Return the last lines of a rank's standard error."""
        return [line.decode(errors="replace") for line in self._tails[rank]]

    def close(self) -> None:
        """Read what has been written, and stop; an end that another process holds open is not waited for.

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
        for fd in list(self._streams):
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
        self._streams[read_fd] = _RankStream(rank, is_error=is_error, log=log)
        self._selector.register(read_fd, selectors.EVENT_READ)

    def _close_writing(self) -> None:
        while self._writing:
            os.close(self._writing.pop())

    def _listen(self) -> None:
        is_told_to_end = False
        while self._streams and not is_told_to_end:
            ready = [int(key.fd) for key, _ in self._selector.select()]
            is_told_to_end = self._wake[0] in ready
            for fd in ready:
                if fd in self._streams:
                    self._read(fd)

    def _read(self, fd: int) -> None:
        stream = self._streams[fd]
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if chunk:
            self._keep(stream, chunk)
        self._say(stream, stream.take(chunk))
        if not chunk:
            self._end(fd)

    def _keep(self, stream: _RankStream, chunk: bytes) -> None:
        view = memoryview(chunk)
        try:
            while view and stream.log is not None:
                view = view[os.write(stream.log.fileno(), view) :]
        except OSError as error:
            # The ranks go on; a log with a hole in it would be worse than one that ends.
            log, stream.log = stream.log, None
            if log is not None:
                self.unkept.append(f"{log.name} is not whole: {error.strerror}")
                log.close()

    def _end(self, fd: int) -> None:
        stream = self._streams.pop(fd)
        self._say(stream, stream.take(b""))
        self._selector.unregister(fd)
        os.close(fd)
        if stream.log is not None:
            stream.log.close()

    def _say(self, stream: _RankStream, lines: list[bytes]) -> None:
        if not lines:
            return
        if stream.is_error:
            self._tails[stream.rank].extend(lines)
        self._hear(stream.rank, lines, is_error=stream.is_error)


def prefixed(rank: int, lines: Sequence[bytes], *, is_prefixed: bool) -> bytes:
    """Return lines as they are written in one piece."""
    before = f"[rank {rank}] ".encode() if is_prefixed else b""
    return b"".join(before + line + b"\n" for line in lines)


OnPhase = Callable[[int, Phase, int], None]
"""Takes a rank, the phase that it began, and when by the monotonic clock, in nanoseconds."""

_PRELOAD = ("stoker.gang.rank",)
_LIBRARIES = ("torch", "torch.distributed")
_LINGER_S = 1.0
_ZYGOTE_POLL_S = 0.05
_FDS_PER_RANK = 8
_FDS_BESIDE = 64
_NAMED = 8
_NS = 1_000_000_000


class ScriptGang:
    """One run of one script. One thread runs it; any thread, or a signal handler, may `end` it."""

    def __init__(  # noqa: PLR0913 - what a run is made of
        self,
        script: Script,
        nranks: int,
        *,
        folder: str,
        hear: RankLineCallback,
        on_phase: OnPhase = lambda *_: None,
        timeout_s: float | None = None,
        log_folder: str | None = None,
        grace_s: float = GRACE_S,
        sys_path: Sequence[str] | None = None,
    ) -> None:
        """Check what can be checked; start nothing. Raises `BadGang`.

        `timeout_s` is for coming through `init_process_group`. `sys_path` is where scripts find modules, beside their
        own folder: by default what this interpreter was started with.
        """
        check_ranks(nranks)
        self._script = script
        self._nranks = nranks
        self._folder = folder
        self._hear = hear
        self._on_phase = on_phase
        self._timeout_s = timeout_s
        self._log_folder = log_folder
        self._grace_s = grace_s
        self._sys_path = list(sys_path if sys_path is not None else sys.path[0 if sys.flags.safe_path else 1 :])
        self._cancel = Cancel()
        self._why: StokerError | None = None
        self._stamps: dict[tuple[int, Phase], int] = {}
        self._left: set[int] = set()
        self.warnings: tuple[str, ...] = ()

    def end(self, why: StokerError) -> None:
        """Make `run` stop all ranks and raise this: `Cancelled` sends SIGINT, anything else SIGTERM."""
        self._why = self._why or why
        self._cancel()

    def run(self) -> None:
        """Run to the end.

        Raises `RankFailed` (its `data` has as `output` the last lines that the rank wrote to standard error),
        `RankTimeout`, whatever `end` was given, `ProcessLost`; nothing is left of any rank then.
        """
        _make_room(self._nranks)
        with ExitStack() as held:
            port = held.enter_context(HeldPort())
            voices = RankOutput(
                self._nranks,
                self._hear,
                log_folder=self._log_folder,
                is_given_up=lambda: self._cancel.is_wanted,
            )
            try:
                with voices:
                    self._run(voices, port.number)
            except RankFailed as error:
                # Who could not say what was wrong may have said it to people.
                is_mute = error.data.get("how") == RankFailureMode.ENDED
                error.data["output"] = "\n".join(voices.last_words(error.rank)) if is_mute else ""
                if isinstance(error, RankTimeout):
                    error.hint = self._why_silent(error.rank)
                elif self._left and is_echo(str(error.data.get("text", ""))):
                    error.hint = f"rank {_named(self._left)} exited with 0 before; it may be the peer that is gone"
                raise
            finally:
                self.warnings += tuple(voices.unkept)

    def _why_silent(self, rank: int) -> str:
        strangers = [other for other in range(self._nranks) if (other, Phase.COMM) not in self._stamps]
        if not strangers or rank in strangers:
            return "the others waited for it in init_process_group; --timeout gives it longer"
        return f"it waited in init_process_group for rank {_named(strangers)}, which exited with 0 and never called it"

    def _run(self, voices: RankOutput, port: int) -> None:
        env = shared_variables(self._script.environment, self._nranks)
        with ExitStack() as held:
            starter = self._starter(env, held)
            ranks = held.enter_context(RankProcesses(starter, [f"device {rank}" for rank in range(self._nranks)]))
            self._cancel.attend(ranks)
            started_ns = time.monotonic_ns()
            grace_s = self._grace_s
            try:
                self._start(ranks, voices, env, port)
                voices.listen()
                patience = GangTimeouts(total_s=None, started_ns=started_ns)
                wait_for(ranks, self._is_done, patience, cancel=self._cancel, deadline_of=self._deadline_ns)
            except Cancelled as cancelled:
                number = signal.SIGINT if self._why is None or isinstance(self._why, Cancelled) else signal.SIGTERM
                starter.signal(ranks.living(), number)
                wait_gone(ranks, grace_s, SystemClock())
                grace_s = 0.0
                raise self._why or cancelled from None
            finally:
                stop(ranks, grace_s=grace_s)

    def _starter(self, env: dict[str, str], held: ExitStack) -> Starter:
        if sys.platform != "linux":
            return ExecStarter(sys.executable, env=env, cwd=self._folder, sys_path=sys.path)
        wants_libraries = self._script.is_own and needs_libraries(self._script, self._folder)
        zygote = Zygote.start(
            sys.executable,
            (*_PRELOAD, *(_LIBRARIES if wants_libraries else ())),
            env=env,
            cwd=self._folder,
            sys_path=sys.path,
            linger_s=_LINGER_S,
        )
        held.callback(zygote.close, grace_s=0.0)
        self._see_warm(zygote)
        return ZygoteStarter(zygote)

    def _see_warm(self, zygote: Zygote) -> None:
        """Wait until libraries are imported. Raises the reason if the run is cancelled."""
        while True:
            if self._cancel.is_wanted:
                raise self._why or Cancelled("interrupted")
            try:
                ready = zygote.wait_ready(_ZYGOTE_POLL_S)
            except TimeoutError:
                continue
            self.warnings = tuple(one for one in ready.warnings if not one.startswith("can't preload torch"))
            return

    def _start(self, ranks: RankProcesses, voices: RankOutput, env: dict[str, str], port: int) -> None:
        script, run_id = self._script, os.urandom(8).hex()
        store_fd = unnamed_memory("stoker-store", 0, may_grow=True)
        try:
            for rank in range(self._nranks):
                if self._cancel.is_wanted:
                    break
                out_fd, err_fd = voices.ends(rank)
                own = rank_variables(rank, self._nranks, port=port, run_id=run_id)
                request: dict[str, Any] = {
                    "rank": rank,
                    "nranks": self._nranks,
                    "order": script.order(rank, self._nranks),
                    "argv": script.words(rank),
                    "environ": {**env, **own, **speaks_for_all(env, rank)},
                    "sys_path": self._sys_path,
                }
                fds = {STORE: store_fd, OUT: out_fd, ERR: err_fd}
                ranks.start(RUN_HERE if script.is_own else BECOME, request, fds, cwd=self._folder)
        finally:
            os.close(store_fd)

    def _is_done(self, look: RankSnapshot) -> bool:
        for stamp_ns, phase in sorted(zip(look.page.stamps_ns, Phase, strict=True)):
            if stamp_ns and self._stamps.get((look.rank, phase)) != stamp_ns:
                self._stamps[look.rank, phase] = stamp_ns
                self._on_phase(look.rank, phase, stamp_ns)
        has_left = look.exit is not None and look.exit.is_success
        if has_left:
            self._left.add(look.rank)
        return has_left

    def _deadline_ns(self, looks: Sequence[RankSnapshot]) -> int | None:
        """Return when the time is over for those who join their group, and for those whom they wait for."""
        begun = [
            look.page.stamps_ns[Phase.COMM] for look in looks if look.page.phase is Phase.COMM and not look.is_done
        ]
        return None if self._timeout_s is None or not begun else min(begun) + round(self._timeout_s * _NS)


def _named(ranks: Collection[int]) -> str:
    return ", ".join(map(str, sorted(ranks)[:_NAMED])) + (", …" if len(ranks) > _NAMED else "")


def _make_room(nranks: int) -> None:
    """Raise the limit of open files to what this many ranks need."""
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 - not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = nranks * _FDS_PER_RANK + _FDS_BESIDE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Unavailable(
            f"{nranks:,} ranks take {wanted:,} open files, and this user may have {hard:,}",
            hint="fewer ranks, or a higher limit (ulimit -n)",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
