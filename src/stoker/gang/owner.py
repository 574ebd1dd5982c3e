"""A gang, seen from the process that owns it: several ranks brought up together or not at all.

    with Gang(ranks=[RankConfig(0), RankConfig(1)], backend="gloo") as gang:
        print(gang.contexts)
        results = gang.run(train, "data.csv")

All ranks are up when the with-block begins, or it raises the first cause and nothing is left of any. A failure in a
call breaks the gang the same way. One thread uses a gang; any thread may `cancel` or `close` it.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Self

from stoker.core.clock import Closable
from stoker.core.device import CUDA_VARIABLE, Backend, Device
from stoker.core.errors import Diagnostic, GangClosed, GangNotUp, MissingExtra, RankFailed, StokerError
from stoker.core.frozen import changed
from stoker.devices.this_machine import devices_here
from stoker.gang import rank_context
from stoker.gang.gang_failures import GangDeadlines, GangFailure, RankSnapshot, error_of, judge
from stoker.gang.gang_plan import CALLS, ERR, OUT, STORE, GangPlan, Staging, memory_of_all, rank_plans
from stoker.gang.mailbox import MailboxPages, Phase, Publisher, RankPage
from stoker.gang.rank import GangRank, own_frames
from stoker.gang.rank_config import (
    BACKENDS,
    DEVICE_KINDS,
    RankConfig,
    check,
    limit_faults,
    listed,
    time_faults,
    word_faults,
)
from stoker.gang.rank_context import Context, context_of
from stoker.gang.rank_messages import HEADER, FrameKind, RankExchange, call_message, pack, read_answers
from stoker.gang.rank_processes import (
    CLOSE_S,
    ROLLBACK_S,
    START_S,
    Cancel,
    GangTimeouts,
    RankProcesses,
    is_ready,
    stop,
    wait_for,
)
from stoker.gang.rendezvous_types import (
    CLOSED,
    UP,
    HostPart,
    Rendezvous,
    RendezvousLink,
    cause_of,
    has_passed,
    variables_for,
)
from stoker.gang.starters import RANK_ENTRY, RankZygote, Starter, warm_here
from stoker.host.command_runner import SubprocessRunner
from stoker.host.install import pip_install
from stoker.host.processes import GRACE_S


class RunningGang:
    """The processes of a gang, started and ended together. What fails is raised; the caller then calls `end`."""

    def __init__(self, plan: GangPlan, starter: Starter, cancel: Cancel, rendezvous: Rendezvous | None) -> None:
        self._plan = plan
        self._rendezvous = rendezvous
        self._cancel = cancel
        self._ends: list[socket.socket] = []
        self._ranks = RankProcesses(starter, plan.names, first_rank=plan.first_rank)
        self._together: RendezvousLink | None = None
        try:
            self._staging = Staging(plan.configs)
        except BaseException:
            self._ranks.close()
            raise
        cancel.attend(self._ranks)

    def bring_up(self, started_ns: int) -> list[RankSnapshot]:
        """Start all ranks and wait until every one is ready."""
        plan = self._plan
        staged = [self._staging.orders(rank) for rank in range(len(plan.configs))]
        ranks = rank_plans(plan, staged, started_ns)
        surroundings = _surroundings(plan.host_ranks.address if plan.host_ranks is not None else "")
        with memory_of_all(ranks) as common:
            output = {name: number for name, number in ((OUT, 1), (ERR, 2)) if _is_open(number)}
            for index, rank in enumerate(ranks):
                if self._cancel.is_wanted or self._ranks.has_failed():
                    break
                ours, theirs = socket.socketpair()
                self._ends.append(ours)
                with theirs:
                    fds = {**common, **output, **self._staging.fds(index), CALLS: theirs.fileno()}
                    self._ranks.start(RANK_ENTRY, {**rank.to_request(), **surroundings}, fds, cwd=os.getcwd())
        patience = GangTimeouts(total_s=plan.timeout_s, phases_s=plan.phases_s, started_ns=started_ns)
        rendezvous = self._rendezvous
        if rendezvous is None or plan.host_ranks is None:
            return self._wait(is_ready, patience)
        rendezvous.on_news(self._ranks.wake)
        left_s = max(0.0, plan.timeout_s - (time.monotonic_ns() - started_ns) / 1e9)
        self._together = RendezvousLink(rendezvous, plan.host_ranks, self._ends, left_s)
        self._wait(is_ready, patience)
        rendezvous.arrive(UP)
        return self._wait(self._together.has_come_up, GangTimeouts(total_s=None), each_look=self._together.attend_up)

    def talk(self, message: bytes, timeout_s: float | None) -> list[bytes]:
        """Send a message to every rank and wait for all answers."""
        exchange = RankExchange(self._ends, message)
        patience = GangTimeouts(total_s=timeout_s)
        self._wait(exchange.has_answered, patience, conversation=exchange)
        return exchange.answers()

    def _wait(self, is_done: Callable[[RankSnapshot], bool], patience: GangTimeouts, **more: Any) -> list[RankSnapshot]:
        """Wait for the ranks here, and listen to the other hosts, if there are any."""
        together = self._together
        if together is None:
            return wait_for(self._ranks, is_done, patience, cancel=self._cancel, **more)
        try:
            more = {"each_look": together.attend, **more}
            return wait_for(self._ranks, is_done, patience, cancel=self._cancel, **more)
        except StokerError as error:
            first = together.settle(error)
            if first is error:
                raise
            raise first from error

    def outputs(self) -> list[dict[str, bytes]]:
        """Return what ranks have brought out, by rank and name."""
        return self._staging.read_all()

    def close(self) -> None:
        """Tell all ranks to end, and give them time; who does not is seen to by `end`.

        Raises `RankFailed` if a rank could not bring back what it was to store. Any other trouble at its end is past.
        """
        exchange = RankExchange(self._ends, pack(FrameKind.CLOSE))
        patience = GangTimeouts(total_s=min(self._plan.grace_s, CLOSE_S))
        try:
            wait_for(
                self._ranks,
                lambda look: look.exit is not None and look.exit.is_success,
                patience,
                conversation=exchange,
            )
        except RankFailed:
            if self._staging.has_outputs:
                raise

    def end(self) -> None:
        """Stop the ranks that are left, confirmed, and release everything. Raises `ProcessLost` if one survives."""
        try:
            stop(self._ranks, grace_s=min(self._plan.grace_s, ROLLBACK_S / 2))
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Release everything; remaining ranks end because of it."""
        while self._ends:
            self._ends.pop().close()
        self._staging.close()
        self._ranks.close()


def _surroundings(address: str) -> dict[str, Any]:
    """Return what ranks take over from this process: they run its code. And where they listen for each other."""
    environ = dict(os.environ)  # noqa: TID251 - handed on, no setting of ours
    paths: list[object] = list(sys.path)
    sys_path = [entry for entry in paths if isinstance(entry, str)]
    return {"environ": {**variables_for(address), **environ}, "sys_path": sys_path}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


class InlineGang:
    """A gang of one rank in this very process: no fork, and a debugger sees everything.

    For tests and for debugging. No process can be ended here, so no deadline is kept.
    """

    def __init__(self, plan: GangPlan) -> None:
        self._plan = plan
        self._staging = Staging(plan.configs)
        self._pages = MailboxPages.make(1)
        self._rank: GangRank | None = None
        self._wake_fds = list(os.pipe())
        os.set_blocking(self._wake_fds[1], False)
        self._publisher = Publisher(
            self._pages.fd(0), self._wake_fds[1], rank=0, nranks=1, device_id=plan.configs[0].device_id
        )
        self._started_ns = 0

    def bring_up(self, started_ns: int) -> list[RankSnapshot]:
        """Go through all phases. Raises `RankFailed` from whatever was raised."""
        self._started_ns = started_ns
        (plan,) = rank_plans(self._plan, [self._staging.orders(0)], started_ns)
        with memory_of_all([plan]) as common:
            try:
                # Its store is in its memory: one in a file would still be there when that is closed.
                fds = {name: fd for name, fd in common.items() if name != STORE}
                self._rank = GangRank(plan, self._publisher, {**fds, **self._staging.fds(0)})
                self._rank.bring_up()
            except Exception as error:
                raise self._told(error) from error
        return [self._look()]

    def talk(self, message: bytes, timeout_s: float | None) -> list[bytes]:
        """Do what a message asks for; give the answer's content."""
        kind, _ = HEADER.unpack_from(message)
        self._started_ns = time.monotonic_ns()
        try:
            if self._rank is not None and kind == FrameKind.CALL:
                return [self._rank.call(message[HEADER.size :])]
            if self._rank is not None:
                self._rank.stage_out()
        except Exception as error:
            raise self._told(error) from error
        return [b""]

    def outputs(self) -> list[dict[str, bytes]]:
        return self._staging.read_all()

    def close(self) -> None:
        """Release in order, so that this process may be a rank again."""
        if self._rank is not None:
            self._rank.stage_out()
            self._rank.close()

    def end(self) -> None:
        """Leave the group, and let go of everything."""
        from stoker.gang import torch_backend  # noqa: PLC0415 - torch, which this process has already

        rank_context.become(None)
        with suppress(Exception):
            torch_backend.destroy()
        self.let_go()

    def let_go(self) -> None:
        self._staging.close()
        self._pages.close()
        while self._wake_fds:
            os.close(self._wake_fds.pop())

    def _look(self) -> RankSnapshot:
        page = self._pages.read(0)
        return RankSnapshot(rank=0, device=self._plan.names[0], page=page if isinstance(page, RankPage) else RankPage())

    def _told(self, error: Exception) -> Exception:
        self._publisher.fail(error, hidden_frames=own_frames(error))
        look = self._look()
        limits = GangDeadlines(started_ns=self._started_ns, deadline_ns=None, phases_s={}, collect_s=0.0)
        verdict = judge([look], time.monotonic_ns(), limits)
        if not isinstance(verdict, GangFailure):
            return error
        return error_of(
            verdict,
            nranks=1,
            traceback=lambda rank: self._pages.traceback(rank, look.page),
            crash=self._pages.crash,
        )


MODES = ("auto", "zygote", "exec", "inline")
COMMS = ("eager", "lazy")


class Gang(Closable):
    """Ranks that live and end together."""

    def __init__(  # noqa: PLR0913 - what a gang is made of
        self,
        ranks: Sequence[RankConfig],
        *,
        backend: str = "gloo",
        timeout_s: float = START_S,
        phase_limits_s: Mapping[Phase, float] | None = None,
        device_kind: str | None = None,
        devices: Sequence[Device] | None = None,
        nranks: int | None = None,
        comm: str = "eager",
        mode: str = "auto",
        warm: RankZygote | None = None,
        starter: Starter | None = None,
        on_phase: str = "",
        grace_s: float = GRACE_S,
        rendezvous: Rendezvous | None = None,
    ) -> None:
        """Check everything that can be checked. Raises `BadGang` with all faults; starts nothing.

        `device_kind` is `cuda` for NCCL and `cpu` else, unless said. `devices` are this machine's GPUs as ranks number
        them, if they are known already. `nranks` is only compared with how many configs there are. `comm="lazy"` makes
        the communicator when ranks first ask for it. `mode` is how ranks are started: forked from a `zygote`, as
        interpreters of their own (`exec`), or one rank `inline`, in this process. `warm` is where they are forked from;
        by default this process keeps one for all its gangs; `starter` is any other way. `on_phase` names a function,
        `module:function`, that every rank calls with a phase's name and its rank as it begins. `grace_s` is how long
        ranks may take to end. `rendezvous` is where this host's ranks meet those of others, which are
        then one gang: each host's owner does the same, and a failure of one is the failure of all.
        """
        configs = listed(ranks)
        kind = device_kind or ("cuda" if backend == "nccl" else "cpu")
        faults = word_faults(
            {
                "backend": (backend, BACKENDS),
                "device_kind": (kind, DEVICE_KINDS),
                "comm": (comm, COMMS),
                "mode": (mode, MODES),
            }
        )
        faults += time_faults({"timeout_s": timeout_s, "grace_s": grace_s})
        faults += limit_faults({} if phase_limits_s is None else phase_limits_s)
        faults += _fitting_faults(backend, kind, mode, len(configs))
        if mode == "inline" and rendezvous is not None:
            faults.append(Diagnostic("mode", "inline is for one host, and there is a rendezvous"))
        if kind == "cuda" and devices is None:
            devices = cuda_here(os.environ)  # noqa: TID251 - what its own ranks will see
        check(
            configs,
            nranks=nranks,
            device_ids=range(len(devices)) if kind == "cuda" and devices is not None else None,
            memory_bytes=_memory_bytes() if kind == "cpu" else None,
            others=faults,
        )
        self._plan = GangPlan(
            configs=configs,
            backend=backend,
            device_kind=kind,
            names=tuple(_name(config.device_id, devices if kind == "cuda" else None) for config in configs),
            timeout_s=timeout_s,
            phases_s=dict(phase_limits_s or {}),
            is_lazy=comm == "lazy",
            on_phase=on_phase,
            grace_s=grace_s,
        )
        self._rendezvous = rendezvous
        self._mode = mode
        self._warm = warm
        self._given_starter = starter
        self._cancel = Cancel()
        self._turn = threading.RLock()
        self._is_busy = False
        self._live: RunningGang | InlineGang | None = None
        self._contexts: tuple[Context, ...] | None = None
        self._outputs: list[dict[str, bytes]] = []
        self._why_over = ""

    def __len__(self) -> int:
        return len(self._plan.configs)

    def __enter__(self) -> Self:
        self.bring_up()
        return self

    @property
    def contexts(self) -> tuple[Context, ...]:
        """What is known of each rank, in rank order. Raises `GangNotUp` before it is up, `GangClosed` after."""
        return self._see_up()[1]

    @property
    def outputs(self) -> list[dict[str, bytes]]:
        """What `store_to_host` brought back last, by rank and name: when it was asked for, or at the close."""
        return self._outputs

    def bring_up(self) -> tuple[Context, ...]:
        """Start all ranks and wait until every one is ready; give their contexts.

        Raises `RankFailed` with the first cause, `RankTimeout` when the time is over, `Cancelled`, `ProcessLost`: then
        nothing is left of any rank, and this gang can't be used again.
        """
        with self._turn:
            if self._why_over or self._live is not None:
                raise GangClosed(f"the gang can't be brought up: {self._why_over or 'it is up'}", hint="make another")
            started_ns = time.monotonic_ns()
            with _Busy(self):
                self._plan = self._with_host_ranks()
                self._live = live = self._make()
                # If this gang is never closed, its ranks end with it.
                weakref.finalize(self, live.let_go)
                if self._rendezvous is not None:
                    weakref.finalize(self, self._rendezvous.close)
                looks = live.bring_up(started_ns)
                self._contexts = tuple(
                    context_of(config, look.page, self._plan.first_rank + look.rank, self._plan.nranks)
                    for config, look in zip(self._plan.configs, looks, strict=True)
                )
            return self._contexts

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float | None = None) -> list[Any]:
        """Call a function on every rank; give the results in rank order.

        It has to be importable, and what it is given to be picklable: else `BadCall`, and no rank was called. If a rank
        raises, ends, returns what can't be pickled, or is silent for too long, that is raised, and the gang is closed.
        """
        with self._turn:
            live, _ = self._see_up()
            message = call_message(function, arguments)
            with _Busy(self):
                answers = live.talk(message, timeout_s)
            return read_answers(answers)

    def store_to_host(self) -> list[dict[str, bytes]]:
        """Bring back the buffers that are marked for it, by rank and name."""
        with self._turn:
            live, _ = self._see_up()
            with _Busy(self):
                live.talk(pack(FrameKind.STORE), None)
                self._outputs = live.outputs()
            return self._outputs

    def cancel(self) -> None:
        """Cancel: a thread that waits for this gang gets `Cancelled`, all ranks end. Thread-safe; twice is fine."""
        self._cancel()

    def close(self) -> None:
        """End all ranks: in order, if nothing failed. Twice is fine; while a thread waits for the gang, it cancels."""
        if not self._turn.acquire(blocking=False):
            self.cancel()
            self._turn.acquire()
        try:
            if self._is_busy:
                # A signal handler, in the middle of our own waiting.
                self.cancel()
                return
            self._close()
        finally:
            self._turn.release()

    def _close(self) -> None:
        live, was_up = self._live, self._contexts is not None
        self._live, self._contexts = None, None
        self._why_over = self._why_over or "it is closed"
        try:
            if live is not None and was_up and not self._cancel.is_wanted:
                if self._rendezvous is not None:
                    has_passed(self._rendezvous, CLOSED, self._plan.grace_s)
                live.close()
                self._outputs = live.outputs()
        finally:
            try:
                if live is not None:
                    live.end()
            finally:
                if self._rendezvous is not None:
                    self._rendezvous.close()

    def _with_host_ranks(self) -> GangPlan:
        """Meet the other hosts; give the plan with this one's place among them."""
        plan = self._plan
        if self._rendezvous is None:
            return plan
        part = HostPart(ranks=len(self), devices=plan.names)
        host_ranks = self._rendezvous.gather(part, plan.timeout_s, lambda: self._cancel.is_wanted)
        if host_ranks.is_alone:
            return plan
        return changed(plan, host_ranks=host_ranks, names=tuple(f"{name} on {host_ranks.name}" for name in plan.names))

    def _make(self) -> RunningGang | InlineGang:
        if find_spec("torch") is None:
            raise MissingExtra("gangs need torch, which is not installed", hint=pip_install("stoker[torch]"))
        if self._mode == "inline":
            return InlineGang(self._plan)
        return RunningGang(self._plan, self._starter(), self._cancel, self._rendezvous)

    def _starter(self) -> Starter:
        if self._given_starter is not None:
            return self._given_starter
        warm = self._warm or warm_here()
        if self._mode == "zygote" or (self._mode == "auto" and sys.platform == "linux"):
            return warm.starter(self._plan.timeout_s, is_cancelled=lambda: self._cancel.is_wanted)
        return warm.exec_starter()

    def _give_up(self, error: BaseException) -> None:
        """End everything, because of an error."""
        self._why_over = str(error) if isinstance(error, StokerError) else type(error).__name__
        self._contexts = None
        if self._rendezvous is not None:
            self._rendezvous.fail(cause_of(error, "" if self._plan.host_ranks is None else self._plan.host_ranks.name))
        self._close()

    def _see_up(self) -> tuple[RunningGang | InlineGang, tuple[Context, ...]]:
        if self._why_over:
            raise GangClosed(f"the gang is over: {self._why_over}", hint="make another one")
        if self._live is None or self._contexts is None:
            raise GangNotUp("the gang is not up", hint="use it in a with-block, or call bring_up")
        return self._live, self._contexts


class _Busy:
    """While a gang is waited for. An error that comes out of it is the end of the gang."""

    def __init__(self, gang: Gang) -> None:
        self._gang = gang

    def __enter__(self) -> None:
        self._gang._is_busy = True  # noqa: SLF001 - a part of it

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._gang._is_busy = False  # noqa: SLF001 - a part of it
        if error is not None:
            self._gang._give_up(error)  # noqa: SLF001 - a part of it


def _fitting_faults(backend: str, kind: str, mode: str, count: int) -> list[Diagnostic]:
    faults = []
    if (backend, kind) == ("nccl", "cpu"):
        faults.append(Diagnostic("backend", "nccl needs GPUs", "use gloo"))
    if mode == "inline" and count > 1:
        faults.append(Diagnostic("mode", f"inline is for one rank, and there are {count}"))
    return faults


def _name(device_id: int, devices: Sequence[Device] | None) -> str:
    known = devices is not None and device_id < len(devices)
    return f"device {device_id}" + (f", {devices[device_id].uuid}" if devices is not None and known else "")


def _memory_bytes() -> int | None:
    """Return how much memory this computer has, where that can be asked."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def cuda_here(environment: Mapping[str, str]) -> tuple[Device, ...]:
    """Return this machine's GPUs in the order in which ranks number them. Queries the driver in a child process."""
    found = devices_here(environment, ask=lambda: SubprocessRunner(environment))
    return as_numbered(found, environment.get(CUDA_VARIABLE))


def as_numbered(devices: Sequence[Device], visible: str | None) -> tuple[Device, ...]:
    """Put CUDA's devices into the order in which a program sees them under `CUDA_VISIBLE_DEVICES`."""
    mine = sorted(
        (device for device in devices if device.backend is Backend.CUDA),
        key=lambda device: (device.index is None, device.index),
    )
    if visible is None:
        return tuple(mine)
    named = [word.strip() for word in visible.split(",")]
    chosen = []
    for word in named:
        match = next((device for device in mine if _is_meant(device, word)), None)
        if match is None:
            # CUDA stops at the first that it does not know.
            break
        chosen.append(match)
    return tuple(chosen)


def _is_meant(device: Device, word: str) -> bool:
    return str(device.index) == word or (len(word) > len("GPU-") and device.uuid.startswith(word))
