"""Ranks forked from this very process, for an owner that was itself forked from a warm one and has done nothing yet.

A stage's process is such an owner: it has torch imported, one thread and no device, and all that it starts stays in its
box and its session's family. Forking from it costs no second import. A process with threads must not use this, nor one
that has touched a device. Linux only.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Collection
from contextlib import suppress
from typing import NoReturn

from stoker.gang.starting import RankProcess, RankStart, Watched
from stoker.host.entry_points import entry_point
from stoker.host.exit import Exit
from stoker.host.forking import HANDLED, become_independent, has_ended, let_signals_in, reap, signal_child
from stoker.host.identity import identity_from
from stoker.host.process_table import read_row
from stoker.host.processes import stop_group
from stoker.model.errors import ProcessLost

_STANDARD = (0, 1, 2)


class ForkedHere(Watched):
    """A rank that is a child of this process."""

    def __init__(self, pid: int) -> None:
        row = read_row(pid)
        if row is None:
            raise ProcessLost(f"process {pid} was gone before it began")
        super().__init__(identity_from(pid, row.start_ticks))
        self._exit: Exit | None = None

    @property
    def is_reaped(self) -> bool:
        """Whether its number may be somebody else's by now."""
        return self._exit is not None

    def exit(self) -> Exit | None:
        if self._exit is None:
            pid = self.identity.pid
            if not has_ended(pid):
                return None
            # Its number, and so its group's, is kept for it until it is reaped.
            stop_group(self.identity, grace_s=0.0)
            self._exit = reap(pid)
        return self._exit


class ForkStarter:
    """Forks ranks from this process."""

    def __init__(self, *, keeps: Collection[int] = ()) -> None:
        """`keeps` are descriptors that every rank inherits under their own numbers, beside what it is handed."""
        self._keeps = (*_STANDARD, *keeps)

    def start(self, order: RankStart) -> ForkedHere:
        owner = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            pid = os.fork()
            if pid == 0:
                self._be_rank(order, owner)
        except OSError as error:
            raise ProcessLost(
                f"no process could be made: {error.strerror}", hint="this machine is out of memory or process numbers"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return ForkedHere(pid)

    def signal(self, processes: Collection[RankProcess], number: signal.Signals) -> None:
        for one in processes:
            if isinstance(one, ForkedHere) and not one.is_reaped:
                signal_child(one.identity.pid, number)

    @property
    def loss(self) -> None:
        """Each stands alone."""

    def _be_rank(self, order: RankStart, owner: int) -> NoReturn:
        try:
            become_independent(owner)
            # New numbers: what a rank takes for its own output may be what it was handed.
            fds = {name: os.dup(fd) for name, fd in order.fds.items()}
            _close_all_but({*self._keeps, *fds.values()})
            let_signals_in()
            if order.cwd is not None:
                os.chdir(order.cwd)
            entry_point(order.entry)({**order.request, "fds": fds})
            os._exit(0)
        except BaseException:  # noqa: BLE001 - there is nobody above us
            traceback.print_exc()
        finally:
            os._exit(1)


def _close_all_but(kept: set[int]) -> None:
    """Close what belongs to the owner: a life line that a sibling holds open tells nothing."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))
