"""Ways to start the process of a rank: forked from a warm zygote, or as an interpreter of its own.

Both give the same thing: a process that leads its own session, has the descriptors it was handed, and runs
`module:function(request)`. Forking is Linux only and takes milliseconds, since what the ranks need is imported already.
A fresh interpreter pays for its imports, and works wherever there are descriptors to inherit: on macOS by what its
documentation says (untested), on Windows not.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, Protocol

from stoker.core import jsontext
from stoker.core.clock import Closable, SystemClock
from stoker.core.errors import Cancelled, ProcessLost, Unavailable
from stoker.core.frozen import fresh, frozen
from stoker.gang.mailbox import unnamed_memory
from stoker.host.identity import ProcessExit, ProcessIdentity, identity_from, read_row
from stoker.host.import_watch import entry_point
from stoker.host.linux import HANDLED, become_independent, has_ended, let_signals_in, reap, signal_child
from stoker.host.processes import Child, group_members, signal_one, stop_group
from stoker.host.processes import start as start_program
from stoker.host.zygote import ForkedWork, Zygote

RANK_ENTRY = "stoker.gang.rank:run_rank"
PRELOAD = ("stoker.gang.rank", "stoker.gang.torch_backend", "stoker.gang.windows")
"""What the zygote of ranks imports once: torch, and all that a bring-up needs. No thread starts, no GPU is touched."""

# What a rank's own leftovers get between being asked to end and being killed.
_LINGER_S = 1.0
_READY_LOOK_S = 0.1
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from stoker.gang.starters import run_exec_rank; run_exec_rank(int(sys.argv[1]))"
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

    def exit(self) -> ProcessExit | None:
        """Return how it ended, once nothing of its session is left; raises `ProcessLost` if something survived."""

    def fd(self) -> int | None:
        """Return what becomes readable when the process itself ends; `None` where there is no such thing."""

    def close(self) -> None:
        """Close the descriptor."""


class Starter(Protocol):
    """Starts ranks and signals them."""

    def start(self, order: RankStart) -> RankProcess:
        """Start one. Raises `ProcessLost`, `Unavailable`."""

    def signal(self, processes: Collection[RankProcess], number: signal.Signals) -> None:
        """Signal processes with their groups; those that are gone are left alone."""

    @property
    def loss(self) -> ProcessLost | None:
        """Why all its processes are gone at once, if that is so."""


class RankProcessBase:
    """The part that all sorts have in common: a descriptor that stays with its process, even if its pid is reused."""

    def __init__(self, identity: ProcessIdentity) -> None:
        self.identity = identity
        self._fd: int | None = None
        if sys.platform == "linux":
            with suppress(ProcessLookupError):
                self._fd = os.pidfd_open(identity.pid)
        row = read_row(identity.pid)
        if row is None or row.start_ticks != identity.start_ticks:
            # It has ended already, and its pid may have been reused.
            self.close()

    def fd(self) -> int | None:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class ForkedRank(RankProcessBase):
    """A rank in a child of the zygote."""

    def __init__(self, forked: ForkedWork) -> None:
        super().__init__(forked.identity)
        self.forked = forked
        # It speaks through its mailbox.
        forked.ignore_events()

    def exit(self) -> ProcessExit | None:
        if not self.forked.has_ended:
            return None
        try:
            return self.forked.wait(0)
        except ProcessLost as lost:
            if "pids" in lost.data:
                raise
            # The zygote is gone, and the kernel has taken its children with it.
            return ProcessExit(status=None, signal=signal.SIGKILL, max_rss_bytes=0, cpu_s=0.0)


class ExecRank(RankProcessBase):
    """A rank in an interpreter of its own."""

    def __init__(self, child: Child) -> None:
        super().__init__(child.identity)
        self.child = child
        self._exit: ProcessExit | None = None

    def exit(self) -> ProcessExit | None:
        if self._exit is None and (ended := self.child.poll()) is not None:
            # What it left behind has no other parent that would end it.
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
            "stoker.gang.starters:run_forked_rank",
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
        body = jsontext.dumps({"entry": order.entry, "request": {**order.request, "fds": numbers}}).encode()
        # Arguments and variables can be read by all users of the machine, and have a limit.
        fd = unnamed_memory("stoker-rank-order", len(body))
        try:
            os.pwrite(fd, body, 0)
            child = start_program(
                [self._python, "-P", "-c", _BOOT, str(fd), jsontext.dumps(self._sys_path)],
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


class RankZygote(Closable):
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
        """Return the way to fork ranks, once everything is imported; a zygote that was killed is replaced.

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
        """Return the way that needs no zygote."""
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
    """Return our own output for a child, unless it is closed."""
    try:
        os.fstat(number)
    except OSError:
        return subprocess.DEVNULL
    return number


_STANDARD = (0, 1, 2)


class LocalForkedRank(RankProcessBase):
    """A rank forked from this very process, which was itself forked from a warm one and has done nothing yet.

    A stage's process is such an owner: it has torch imported, one thread and no device, and all that it starts stays in
    its box and its session's family. Forking from it costs no second import. A process with threads must not use this,
    nor one that has touched a device. Linux only.
    """

    def __init__(self, pid: int) -> None:
        row = read_row(pid)
        if row is None:
            raise ProcessLost(f"process {pid} was gone before it began")
        super().__init__(identity_from(pid, row.start_ticks))
        self._exit: ProcessExit | None = None

    @property
    def is_reaped(self) -> bool:
        """True if its pid may have been reused."""
        return self._exit is not None

    def exit(self) -> ProcessExit | None:
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

    def start(self, order: RankStart) -> LocalForkedRank:
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
        return LocalForkedRank(pid)

    def signal(self, processes: Collection[RankProcess], number: signal.Signals) -> None:
        for one in processes:
            if isinstance(one, LocalForkedRank) and not one.is_reaped:
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
        except BaseException:  # noqa: BLE001 - there is no caller above us
            traceback.print_exc()
        finally:
            os._exit(1)


def _close_all_but(kept: set[int]) -> None:
    """Close what belongs to the owner: a life line that a sibling holds open tells nothing."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


def run_exec_rank(order_fd: int) -> None:
    """Run a rank in an interpreter of its own: read the order and do it."""
    size = os.fstat(order_fd).st_size
    order = jsontext.loads(os.pread(order_fd, size, 0))
    os.close(order_fd)
    entry_point(order["entry"])(order["request"])


_lock = threading.Lock()
_kept: dict[int, RankZygote] = {}


def warm_here() -> RankZygote:
    """Return the zygote for all gangs of this process; started for the first gang, closed when this process exits."""
    with _lock:
        pid = os.getpid()
        if pid not in _kept:
            # In a forked copy of this process the other one's is not ours to use, nor to close.
            _kept.clear()
            # The code is that of this process; ranks get its variables when they start.
            environment = dict(os.environ)  # noqa: TID251 - see above
            _kept[pid] = RankZygote(env=environment, cwd=os.getcwd(), sys_path=sys.path)
            atexit.register(_close, pid)
        return _kept[pid]


def _close(pid: int) -> None:
    if pid == os.getpid() and pid in _kept:
        _kept.pop(pid).close()
