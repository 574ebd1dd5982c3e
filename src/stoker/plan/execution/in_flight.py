"""Attempts under way: found by their reports, asked to stop in time, ended when they do not.

Asking comes first, for a time-out and for a cancelled run alike; whoever has not ended after the grace is killed. Work
in our own process can't be killed: it is left behind, and whatever it answers is not taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from stoker.model.clock import Clock
from stoker.model.errors import ProcessLost
from stoker.model.retry import Cause
from stoker.plan.device.gate import Noticed
from stoker.plan.execution.attempting import Report, Running

# What a killed attempt may need to give its report.
_LAST_WORDS_S = 10.0


class InFlight:
    """The attempts of one run, by node. Only the executor's loop uses it."""

    def __init__(self, *, clock: Clock, grace_s: float) -> None:
        self._clock = clock
        self._grace_s = grace_s
        self._running: dict[str, Running] = {}

    def __len__(self) -> int:
        """How many run at once; a company is one, however many members it has."""
        alone = sum(1 for running in self._running.values() if not running.company)
        return alone + len(self.companies)

    def __contains__(self, name: str) -> bool:
        return name in self._running

    @property
    def companies(self) -> frozenset[str]:
        """Give the words of the companies that some are members of."""
        return frozenset(running.company for running in self._running.values() if running.company)

    def add(self, running: Running) -> None:
        """Take in an attempt that has been started."""
        self._running[running.name] = running

    def take(self, report: Report) -> Running | None:
        """Take out the attempt that a report is about; nothing if that was left behind."""
        running = self._running.get(report.name)
        if running is None or running.number != report.attempt:
            return None
        return self._running.pop(report.name)

    def notice(self, noticed: Noticed) -> str:
        """Ask work that holds far more of a device than it was promised to stop; gives what people are told.

        Nothing of work that is over: its end told what it took.
        """
        if noticed.taken is None:
            return noticed.message
        running = next((one for one in self._running.values() if one.taken is noticed.taken), None)
        if running is None:
            return ""
        if noticed.is_over_limit and running.stop_cause is None and not running.is_committing:
            running.stop_why = f"out of GPU memory: {noticed.message}"
            self._ask(running, Cause.OOM_DEVICE)
        return f"{running.name}: {noticed.message}"

    def ask_all(self) -> None:
        """Ask everybody to stop: the run is."""
        for running in self._running.values():
            self._ask(running, Cause.CANCELLED)

    def ask(self, names: Iterable[str]) -> None:
        """Ask the attempts of these nodes to stop, those that run."""
        for name in names:
            if name in self._running:
                self._ask(self._running[name], Cause.CANCELLED)

    def watch(self) -> list[Running]:
        """Ask those past their limit, kill those past their grace; give, and let go of, those that can't be killed."""
        now_s = self._clock.monotonic_s()
        left_behind = []
        for running in self._running.values():
            limit_s = running.node.limit_s
            is_late = limit_s is not None and now_s - running.started_s > limit_s
            # Work that has ended in time is not late because its result takes long to keep.
            if is_late and not running.is_committing:
                self._ask(running, Cause.TIMEOUT)
            if running.stop_cause is None or running.is_killed or now_s < running.kill_at_s:
                continue
            running.is_killed = True
            if not _kill(running):
                left_behind.append(running)
        for running in left_behind:
            del self._running[running.name]
        return left_behind

    def drop_all(self) -> None:
        """End everybody and wait until they have; for a loop that can't go on itself."""
        self.ask_all()
        deadline_s = self._clock.monotonic_s() + self._grace_s
        for running in self._running.values():
            if not running.is_over.wait(max(0.0, deadline_s - self._clock.monotonic_s())) and _kill(running):
                running.is_over.wait(_LAST_WORDS_S)
        self._running.clear()

    def _ask(self, running: Running, cause: Cause) -> None:
        if running.stop_cause is None:
            running.stop_cause = cause
            running.kill_at_s = self._clock.monotonic_s() + self._grace_s
            with suppress(ProcessLost):
                running.attempt.ask_to_stop()


def _kill(running: Running) -> bool:
    try:
        return running.attempt.kill()
    except ProcessLost:
        # It survived even that; whoever started it can't do more.
        return False
