"""Ways to start the process of a rank: forked from a warm zygote, or as an interpreter of its own.

Both give the same thing: a process that leads its own session, has the descriptors it was handed, and runs
`module:function(request)`. Forking is Linux only and takes milliseconds, since what the ranks need is imported already.
A fresh interpreter pays for its imports, and works wherever there are descriptors to inherit: on macOS by what its
documentation says (untested), on Windows not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from stoker.gang.memory import unnamed_memory
from stoker.host.entry_points import entry_point
from stoker.host.exit import Exit
from stoker.host.forked import Forked
from stoker.host.identity import ProcessIdentity
from stoker.host.process_table import read_row
from stoker.host.processes import Child, group_members, signal_one, stop_group
from stoker.host.processes import start as start_program
from stoker.host.zygote import Zygote
from stoker.model import json_text
from stoker.model.clock import SystemClock
from stoker.model.closable import Closable
from stoker.model.errors import Cancelled, ProcessLost, Unavailable
from stoker.model.frozen import fresh, frozen

RANK_ENTRY = "stoker.gang.rank:run_rank"
PRELOAD = ("stoker.gang.preloading",)
"""What the zygote of ranks imports: torch, and all that a bring-up needs of ours."""

# What a rank's own leftovers get between being asked to end and being killed.
_LINGER_S = 1.0
_READY_LOOK_S = 0.1
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from stoker.gang.exec_rank import main; main(int(sys.argv[1]))"
)


@frozen
class RankStart:
    """What the process of one rank is made of."""

    entry: str
    """`module:function`, called with the request."""
    request: Mapping[str, Any]
    """Plain values. The function finds `fds` in it: the numbers of its descriptors by name."""
    fds: Mapping[str, int] = fresh(factory=dict)
    """Ours stay ours."""
    cwd: str | None = None


class RankProcess(Protocol):
    """One rank's process."""

    @property
    def identity(self) -> ProcessIdentity: ...

    def exit(self) -> Exit | None:
        """Give how it ended, once nothing of its session is left; raises `ProcessLost` if something survived."""

    def fd(self) -> int | None:
        """Give what becomes readable when the process itself ends; `None` where there is no such thing."""

    def close(self) -> None:
        """Let go of the descriptor."""


class Starter(Protocol):
    """Starts ranks and signals them."""

    def start(self, order: RankStart) -> RankProcess:
        """Start one. Raises `ProcessLost`, `Unavailable`."""

    def signal(self, processes: Collection[RankProcess], number: signal.Signals) -> None:
        """Signal processes with their groups; those that are gone are left alone."""

    @property
    def loss(self) -> ProcessLost | None:
        """Why all its processes are gone at once, if that is so."""


class Watched:
    """The part that all sorts have in common: a descriptor that stays with its process, whoever gets its number."""

    def __init__(self, identity: ProcessIdentity) -> None:
        self.identity = identity
        self._fd: int | None = None
        if sys.platform == "linux":
            with suppress(ProcessLookupError):
                self._fd = os.pidfd_open(identity.pid)
        row = read_row(identity.pid)
        if row is None or row.start_ticks != identity.start_ticks:
            # It has ended already, and somebody else may have its number.
            self.close()

    def fd(self) -> int | None:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class ForkedRank(Watched):
    """A rank in a child of the zygote."""

    def __init__(self, forked: Forked) -> None:
        super().__init__(forked.identity)
        self.forked = forked
        # It speaks through its mailbox.
        forked.ignore_events()

    def exit(self) -> Exit | None:
        if not self.forked.has_ended:
            return None
        try:
            return self.forked.wait(0)
        except ProcessLost as lost:
            if "pids" in lost.data:
                raise
            # The zygote is gone, and the kernel has taken its children with it.
            return Exit(status=None, signal=signal.SIGKILL, max_rss_bytes=0, cpu_s=0.0)


class ExecRank(Watched):
    """A rank in an interpreter of its own."""

    def __init__(self, child: Child) -> None:
        super().__init__(child.identity)
        self.child = child
        self._exit: Exit | None = None

    def exit(self) -> Exit | None:
        if self._exit is None and (ended := self.child.poll()) is not None:
            # What it left behind has nobody any more who would end it.
            stop_group(self.identity, grace_s=0.0)
            self._exit = ended
        return self._exit


class ZygoteStarter:
    """Forks ranks from a zygote, which stays its owner's."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote

    def start(self, order: RankStart) -> ForkedRank:
        names = list(order.fds)
        request = {**order.request, "fd_names": names}
        forked = self._zygote.fork(
            "stoker.gang.starting:run_forked_rank",
            {"entry": order.entry, "request": request},
            cwd=order.cwd,
            fds=[order.fds[name] for name in names],
        )
        return ForkedRank(forked)

    def signal(self, processes: Collection[RankProcess], number: signal.Signals) -> None:
        self._zygote.signal([one.forked for one in processes if isinstance(one, ForkedRank)], number)

    @property
    def loss(self) -> ProcessLost | None:
        return self._zygote.loss


class ExecStarter:
    """Starts an interpreter per rank."""

    def __init__(self, python: str, *, env: Mapping[str, str], cwd: str, sys_path: Sequence[str]) -> None:
        self._python = python
        self._env = env
        self._cwd = cwd
        self._sys_path = list(sys_path)

    def start(self, order: RankStart) -> ExecRank:
        if sys.platform == "win32":
            raise Unavailable("gangs can't be brought up on Windows", hint="run them under WSL")
        numbers = dict(order.fds)
        body = json_text.dumps({"entry": order.entry, "request": {**order.request, "fds": numbers}}).encode()
        # Arguments and variables can be read by everybody on the machine, and have a limit.
        fd = unnamed_memory("stoker-rank-order", len(body))
        try:
            os.pwrite(fd, body, 0)
            child = start_program(
                [self._python, "-P", "-c", _BOOT, str(fd), json_text.dumps(self._sys_path)],
                cwd=order.cwd or self._cwd,
                env=self._env,
                stdout=_own(1),
                stderr=_own(2),
                pass_fds=(fd, *numbers.values()),
            )
        finally:
            os.close(fd)
        return ExecRank(child)

    def signal(self, processes: Collection[RankProcess], number: signal.Signals) -> None:
        for one in processes:
            for member in group_members(one.identity):
                signal_one(member, number)

    @property
    def loss(self) -> None:
        """Each stands alone."""


class Warm(Closable):
    """A zygote for ranks that is started when the first gang asks for it, and stays. Any thread may use it.

    Where there is no forking, ranks start as interpreters of their own.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        cwd: str,
        sys_path: Sequence[str],
        python: str = sys.executable,
        preload: Sequence[str] = (),
    ) -> None:
        self._env = env
        self._cwd = cwd
        self._sys_path = list(sys_path)
        self._python = python
        self._preload = (*PRELOAD, *preload)
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None

    def starter(
        self, timeout_s: float | None = None, *, is_cancelled: Callable[[], bool] | None = None
    ) -> ZygoteStarter:
        """Give the way to fork ranks, once everything is imported; a zygote that was killed is replaced.

        Raises `Unavailable` but on Linux, `ProcessLost` if it does not get ready in time, `Cancelled`.
        """
        zygote = self._warm()
        clock = SystemClock()
        deadline_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
        while True:
            try:
                zygote.wait_ready(_READY_LOOK_S)
            except TimeoutError as late:
                if is_cancelled is not None and is_cancelled():
                    raise Cancelled("the gang was cancelled") from late
                if deadline_s is not None and clock.monotonic_s() >= deadline_s:
                    message = f"the zygote of the ranks still imports after {timeout_s:.0f} s"
                    raise ProcessLost(message, hint="raise timeout_s, or start it before: Warm.wait_ready") from late
            else:
                return ZygoteStarter(zygote)

    def exec_starter(self) -> ExecStarter:
        """Give the way that needs no zygote."""
        return ExecStarter(self._python, env=self._env, cwd=self._cwd, sys_path=self._sys_path)

    def wait_ready(self, timeout_s: float | None = None) -> float:
        """Import everything now; give how long that took. Raises `TimeoutError`, `ProcessLost`."""
        return self._warm().wait_ready(timeout_s).preload_s

    def close(self) -> None:
        with self._lock:
            if self._zygote is not None:
                self._zygote.close(grace_s=_LINGER_S)
            self._zygote = None

    def _warm(self) -> Zygote:
        with self._lock:
            if self._zygote is not None and self._zygote.is_lost:
                self._zygote.close()
                self._zygote = None
            if self._zygote is None:
                self._zygote = Zygote.start(
                    self._python,
                    self._preload,
                    env=self._env,
                    cwd=self._cwd,
                    sys_path=self._sys_path,
                    linger_s=_LINGER_S,
                )
            return self._zygote


def run_forked_rank(order: Mapping[str, Any], _emit: object) -> None:
    """Run a rank in a freshly forked child; this is where the zygote enters."""
    request = dict(order["request"])
    request["fds"] = dict(zip(request.pop("fd_names"), order["fds"], strict=True))
    entry_point(order["entry"])(request)


def _own(number: int) -> int:
    """Give our own output for a child, unless it is closed."""
    try:
        os.fstat(number)
    except OSError:
        return subprocess.DEVNULL
    return number
