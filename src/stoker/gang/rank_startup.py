"""Waiting for a gang: until every rank got there, the first has failed, the time is over, or somebody cancels.

One loop for bringing up and for calls. It sleeps until a rank publishes, a process ends, or a limit is reached, looks
at all ranks and lets `judging` decide. It ends nobody: whoever called does that (`stopping`).
"""

from __future__ import annotations

import selectors
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from stoker.core.errors import Cancelled
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
from stoker.gang.mailbox import Phase, RankState
from stoker.gang.rank_context import phases_of
from stoker.gang.rank_processes import WHERE_SIGNAL, RankProcesses

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
    """A wish to stop that any thread, or a signal handler, may utter at any moment."""

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
    """Have the ends of processes wake us; give their ranks by descriptor."""
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
            # It stays readable, and has told us all it can.
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
    """Have silent ranks say where they are; those that can't, don't."""
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
