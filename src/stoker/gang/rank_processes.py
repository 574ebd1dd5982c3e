"""The rank processes of one gang, with all that ties them to their owner: mailboxes, a pipe that wakes it, life lines.

Nothing of it has a name. A rank whose owner goes away, by whatever signal, is ended by the kernel: each has a life line
that is never written to; it becomes readable when the other side ends. (Beside it stands the zygote, which kills
its children when the owner is gone, and the kernel, which kills them when the zygote is.)

The first part only holds and looks; `wait_for` waits, `stop` ends.
"""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from stoker.core.clock import Clock, Closable, SystemClock
from stoker.core.errors import Cancelled, ProcessLost
from stoker.core.frozen import changed, fresh, frozen
from stoker.gang.gang_failures import (
    COLLECT_S,
    GangDeadlines,
    GangFailure,
    RankFailureMode,
    RankSnapshot,
    RanksPending,
    RanksReady,
    blame,
    error_of,
    judge,
    renumbered,
)
from stoker.gang.mailbox import MailboxPages, Phase, RankPage, RankState
from stoker.gang.rank_context import phases_of
from stoker.gang.starters import RankProcess, RankStart, Starter
from stoker.host.identity import ProcessExit
from stoker.host.processes import GRACE_S, StopOutcome

MAILBOX, WAKE, LIFE = "mailbox", "wake", "life"
"""The names of the descriptors that every rank is handed."""
WHERE_SIGNAL = signal.SIGRTMAX - 3 if hasattr(signal, "SIGRTMAX") else None
"""On it a rank writes where it is into its black box, whatever it is doing."""


class RankProcesses(Closable):
    """The processes of a gang, by rank. One thread uses them; any thread may `wake`."""

    def __init__(self, starter: Starter, devices: Sequence[str], *, first_rank: int = 0) -> None:
        """`devices` says for each rank how people know its device: `device 3, GPU-…`.

        Here ranks count from zero; `first_rank` is the number of the first one in a gang of several hosts.
        """
        self.first_rank = first_rank
        self.starter = starter
        self.devices = tuple(devices)
        self.pages = MailboxPages.make(len(devices))
        self.processes: list[RankProcess] = []
        self._seen = [RankSnapshot(rank=rank, device=device) for rank, device in enumerate(devices)]
        self._life_fds: list[int] = []
        # A wake-up must not write to a descriptor that has been reused.
        self._waking = threading.RLock()
        self.wake_fd, self._wake_write = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._wake_write, False)

    def __len__(self) -> int:
        return len(self.devices)

    def start(self, entry: str, request: Mapping[str, Any], fds: Mapping[str, int], **more: Any) -> RankProcess:
        """Start the next rank; it finds its own descriptors and those of every rank. Raises `ProcessLost`."""
        life_read, life_write = os.pipe()
        self._life_fds.append(life_write)
        try:
            own = {**self.own_fds(len(self.processes)), LIFE: life_read}
            order = RankStart(entry=entry, request=request, fds={**own, **fds}, **more)
            process = self.starter.start(order)
        finally:
            os.close(life_read)
        self.processes.append(process)
        return process

    def own_fds(self, rank: int) -> dict[str, int]:
        """Return the descriptors through which a rank speaks, by name."""
        return {MAILBOX: self.pages.fd(rank), WAKE: self._wake_write}

    def look(self, is_done: Callable[[RankSnapshot], bool]) -> list[RankSnapshot]:
        """Look at every rank: its page, and whether its process is there."""
        return [self._look(rank, is_done) for rank in range(len(self))]

    def has_failed(self) -> bool:
        """Return whether a rank has reported an error: then no more need to be started."""
        pages = (self.pages.read(rank) for rank in range(len(self.processes)))
        return any(isinstance(page, RankPage) and page.state is RankState.ERROR for page in pages)

    def has_unwatched(self) -> bool:
        """True if there is a process whose end does not wake us: it may have ended before we watched it."""
        return any(one.fd() is None and self._seen[rank].gone_ns is None for rank, one in enumerate(self.processes))

    def saw_end(self, rank: int) -> None:
        """Learn that a process has ended, now."""
        if self._seen[rank].gone_ns is None:
            self._seen[rank] = changed(self._seen[rank], gone_ns=time.monotonic_ns())

    def wake(self) -> None:
        """Wake the thread that waits."""
        with self._waking, suppress(OSError):
            os.write(self._wake_write, b"\1")

    def clear_wake(self) -> None:
        """Take what has woken us, before looking."""
        # Once, and all that a pipe holds: a rank that keeps writing must not keep us.
        with suppress(BlockingIOError):
            os.read(self.wake_fd, 1 << 16)

    def living(self) -> list[RankProcess]:
        """Return the processes whose end, with that of all they started, has not been confirmed."""
        return [process for rank, process in enumerate(self.processes) if self.exit_of(rank) is None]

    def exit_of(self, rank: int) -> ProcessExit | None:
        """Return how a rank ended, once nothing of it is left. What could not be killed counts as left."""
        seen = self._seen[rank]
        if seen.exit is None:
            with suppress(ProcessLost):
                seen = changed(seen, exit=self.processes[rank].exit())
            self._seen[rank] = seen
        return seen.exit

    def close(self) -> None:
        """Release everything, the life lines first: that ends the ranks that are still there."""
        while self._life_fds:
            os.close(self._life_fds.pop())
        for process in self.processes:
            process.close()
        self.pages.close()
        with self._waking:
            fds = (self.wake_fd, self._wake_write)
            self.wake_fd = self._wake_write = -1
            for fd in fds:
                if fd >= 0:
                    os.close(fd)

    def _look(self, rank: int, is_done: Callable[[RankSnapshot], bool]) -> RankSnapshot:
        seen = self._seen[rank]
        started = rank < len(self.processes)
        if started and seen.gone_ns is None and self.processes[rank].fd() is None and self.exit_of(rank) is not None:
            # Nothing watches it for us.
            self.saw_end(rank)
        if started and self._seen[rank].gone_ns is not None:
            self.exit_of(rank)
        # After the look at its end: what it wrote before that is there to be read.
        page = self.pages.read(rank)
        is_torn = not isinstance(page, RankPage)
        seen = changed(self._seen[rank], is_torn=is_torn, **({"page": page} if isinstance(page, RankPage) else {}))
        self._seen[rank] = seen
        return changed(seen, is_done=is_done(seen))


ROLLBACK_S = 10.0
CLOSE_S = 60.0
_KILL_WAIT_S = 5.0
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.01


def stop(ranks: RankProcesses, *, grace_s: float = GRACE_S, clock: Clock | None = None) -> StopOutcome:
    """Stop every rank and all that it started. Returns when none is left; raises `ProcessLost` if one is.

    Asked means a message to the rank (the caller's affair) and SIGTERM to each rank's group; after the grace SIGKILL;
    and then it is waited until their parent confirms that nothing of them is left. Only processes that this gang
    started are ever signalled, and those by their own parent.
    """
    clock = clock or SystemClock()
    if not ranks.living():
        return StopOutcome.ALREADY_GONE
    ranks.starter.signal(ranks.living(), signal.SIGTERM)
    if wait_gone(ranks, grace_s, clock):
        return StopOutcome.POLITE
    ranks.starter.signal(ranks.living(), signal.SIGKILL)
    if wait_gone(ranks, _KILL_WAIT_S, clock):
        return StopOutcome.FIRM
    pids = [process.identity.pid for process in ranks.living()]
    raise ProcessLost(
        f"still there after SIGKILL: process {', '.join(map(str, pids))}",
        hint="it may wait for a device or a network disk",
        pids=pids,
    )


def wait_gone(ranks: RankProcesses, wait_s: float, clock: Clock) -> bool:
    """Wait until every rank's end is confirmed; say whether it is."""
    deadline_s = clock.monotonic_s() + wait_s
    pause_s = _FIRST_PAUSE_S
    while ranks.living():
        if clock.monotonic_s() >= deadline_s:
            return False
        clock.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
    return True


START_S = 120.0
_NS = 1_000_000_000
# Where processes and pipes can't wake us, we look; also should a wake-up ever be lost.
_LOOK_ANYWAY_S = 1.0
_LOOK_WITHOUT_PIDFD_S = 0.02
_WHERE_WAIT_S = 0.2
_WHERE_LOOK_S = 0.002


@frozen
class GangTimeouts:
    """How long is waited."""

    total_s: float | None = START_S
    phases_s: Mapping[Phase, float] = fresh(factory=dict)
    collect_s: float = COLLECT_S
    started_ns: int = 0
    """When the time began to run; zero: now."""


class RankIoHandler(Protocol):
    """What else is to be done while ranks are waited for, such as talking to them."""

    def fds(self) -> Mapping[int, int]:
        """Return descriptors to wait for, and for which events of `selectors`."""

    def act(self, fd: int) -> None:
        """Do what can be done without waiting, now that this one is ready."""


class Cancel:
    """A request to stop. Thread-safe; a signal handler may make it too."""

    def __init__(self) -> None:
        self._is_wanted = threading.Event()
        self._ranks: RankProcesses | None = None

    @property
    def is_wanted(self) -> bool:
        return self._is_wanted.is_set()

    def __call__(self) -> None:
        self._is_wanted.set()
        ranks = self._ranks
        if ranks is not None:
            ranks.wake()

    def attend(self, ranks: RankProcesses) -> None:
        """Learn who is to be woken."""
        self._ranks = ranks


def is_ready(look: RankSnapshot) -> bool:
    """Return whether a rank is up."""
    return look.page.state is RankState.SUCCESS


def wait_for(  # noqa: PLR0913 - what is waited for, and how
    ranks: RankProcesses,
    is_done: Callable[[RankSnapshot], bool],
    patience: GangTimeouts,
    *,
    cancel: Cancel | None = None,
    conversation: RankIoHandler | None = None,
    deadline_of: Callable[[list[RankSnapshot]], int | None] | None = None,
    each_look: Callable[[list[RankSnapshot]], None] | None = None,
) -> list[RankSnapshot]:
    """Wait until `is_done` holds for every rank; give the last look.

    `deadline_of` says from what is seen when the time is over, in place of the patience's total.
    `each_look` is called with all that is seen, before it is judged.
    Raises `RankFailed` with the first cause, `RankTimeout` when the time is over, `Cancelled`.

    One loop for bringing up and for calls. It sleeps until a rank publishes, a process ends, or a limit is reached,
    looks at all ranks and lets `gang_failures.judge` decide. It ends no rank: the caller does that (`stop`).
    """
    started_ns = patience.started_ns or time.monotonic_ns()
    deadline_ns = None if patience.total_s is None else started_ns + round(patience.total_s * _NS)
    limits = GangDeadlines(
        started_ns=started_ns, deadline_ns=deadline_ns, phases_s=patience.phases_s, collect_s=patience.collect_s
    )
    with selectors.DefaultSelector() as selector:
        selector.register(ranks.wake_fd, selectors.EVENT_READ)
        watched = _watch(selector, ranks)
        while True:
            if cancel is not None and cancel.is_wanted:
                raise Cancelled("the gang was cancelled")
            ranks.clear_wake()
            looks = ranks.look(is_done)
            if each_look is not None:
                each_look(looks)
            if deadline_of is not None:
                limits = changed(limits, deadline_ns=deadline_of(looks))
            verdict = judge(looks, time.monotonic_ns(), limits)
            if isinstance(verdict, RanksReady):
                return looks
            if isinstance(verdict, GangFailure):
                raise _error(ranks, verdict, looks)
            _sleep(selector, verdict, ranks, watched, conversation)


def _watch(selector: selectors.BaseSelector, ranks: RankProcesses) -> dict[int, int]:
    """Watch the ends of processes; return their ranks by descriptor."""
    watched: dict[int, int] = {}
    for rank, process in enumerate(ranks.processes):
        fd = process.fd()
        if fd is not None:
            selector.register(fd, selectors.EVENT_READ)
            watched[fd] = rank
    return watched


def _sleep(
    selector: selectors.BaseSelector,
    verdict: RanksPending,
    ranks: RankProcesses,
    watched: dict[int, int],
    conversation: RankIoHandler | None,
) -> None:
    pause_s = _LOOK_WITHOUT_PIDFD_S if ranks.has_unwatched() else _LOOK_ANYWAY_S
    if verdict.until_ns is not None:
        pause_s = min(pause_s, max(0.0, (verdict.until_ns - time.monotonic_ns()) / _NS))
    asked = {} if conversation is None else dict(conversation.fds())
    for fd, events in asked.items():
        selector.register(fd, events)
    try:
        ready = [int(key.fd) for key, _ in selector.select(pause_s)]
    finally:
        for fd in asked:
            with suppress(KeyError, ValueError):
                selector.unregister(fd)
    for fd in ready:
        if fd in asked and conversation is not None:
            conversation.act(fd)
        elif fd in watched:
            # It stays readable, and says no more.
            selector.unregister(fd)
            ranks.saw_end(watched.pop(fd))


def _error(ranks: RankProcesses, failed: GangFailure, looks: list[RankSnapshot]) -> Exception:
    if (loss := ranks.starter.loss) is not None:
        # They all went with it, and none of them is the cause.
        return loss
    if failed.cause.how is RankFailureMode.SILENT:
        asked = [failed.cause.rank, *(one.rank for one in failed.pending)]
        _ask_where(ranks, asked)
        failed = blame(failed, {rank: ranks.pages.crash(rank) for rank in asked})
    first = ranks.first_rank
    error = error_of(
        renumbered(failed, first),
        nranks=len(ranks),
        traceback=lambda rank: ranks.pages.traceback(rank - first, looks[rank - first].page),
        crash=lambda rank: ranks.pages.crash(rank - first),
    )
    error.data["phases_s"] = [phases_of(look.page.stamps_ns) for look in looks]
    return error


def _ask_where(ranks: RankProcesses, silent: list[int]) -> None:
    """Request the tracebacks of silent ranks, as far as they can write them."""
    if WHERE_SIGNAL is None:
        return
    for rank in silent:
        fd = ranks.processes[rank].fd() if rank < len(ranks.processes) else None
        # One that is not yet listening would die of it, which is what it is about to do anyway.
        if fd is not None:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fd, WHERE_SIGNAL)
    deadline_s = time.monotonic() + _WHERE_WAIT_S
    with selectors.DefaultSelector() as nothing:
        while time.monotonic() < deadline_s and not all(ranks.pages.crash(rank) for rank in silent):
            nothing.select(_WHERE_LOOK_S)
        # What has begun to come is a few more writes.
        nothing.select(_WHERE_LOOK_S)
