"""A gang, seen from the process that owns it: several ranks brought up together or not at all.

    with Gang(ranks=[RankConfig(0), RankConfig(1)], backend="gloo") as gang:
        print(gang.contexts)
        results = gang.run(train, "data.csv")

All ranks are up when the with-block begins, or it raises the first cause and nothing is left of any. A failure in a
call breaks the gang the same way. One thread uses a gang; any thread may `cancel` or `close` it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Self

from stoker.gang.bringing_up import START_S, Cancel
from stoker.gang.calling import call_message, read_answers
from stoker.gang.configs import (
    BACKENDS,
    DEVICE_KINDS,
    RankConfig,
    check,
    limit_faults,
    listed,
    time_faults,
    word_faults,
)
from stoker.gang.contexts import Context, context_of
from stoker.gang.cuda_devices import cuda_here
from stoker.gang.frames import Kind, pack
from stoker.gang.inline import Inline
from stoker.gang.live import Live
from stoker.gang.meeting import CLOSED, AloneMeeting, HostPart, Meeting, has_passed
from stoker.gang.plans import GangPlan
from stoker.gang.starting import Starter, Warm
from stoker.gang.states import Phase
from stoker.gang.together import cause_of
from stoker.gang.warm_here import warm_here
from stoker.host.installing import pip_install
from stoker.host.processes import GRACE_S
from stoker.model.closable import Closable
from stoker.model.devices import Device
from stoker.model.errors import MissingExtra, StokerError
from stoker.model.faults import Fault
from stoker.model.frozen import changed
from stoker.model.gang_errors import GangClosed, GangNotUp

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
        warm: Warm | None = None,
        starter: Starter | None = None,
        on_phase: str = "",
        grace_s: float = GRACE_S,
        meeting: Meeting | None = None,
    ) -> None:
        """Check everything that can be checked. Raises `BadGang` with all faults; starts nothing.

        `device_kind` is `cuda` for NCCL and `cpu` else, unless said. `devices` are this machine's GPUs as ranks number
        them, if they are known already. `nranks` is only compared with how many configs there are. `comm="lazy"` makes
        the communicator when ranks first ask for it. `mode` is how ranks are started: forked from a `zygote`, as
        interpreters of their own (`exec`), or one rank `inline`, in this process. `warm` is where they are forked from;
        by default this process keeps one for all its gangs; `starter` is any other way. `on_phase` names a function,
        `module:function`, that every rank calls with a phase's name and its rank as it begins. `grace_s` is how long
        ranks that are told to end may take. `meeting` is where this host's ranks meet those of others, which are
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
        if mode == "inline" and meeting is not None:
            faults.append(Fault("mode", "inline is for one host, and there is a meeting"))
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
        self._meeting = meeting or AloneMeeting()
        self._mode = mode
        self._warm = warm
        self._given_starter = starter
        self._cancel = Cancel()
        self._turn = threading.RLock()
        self._is_busy = False
        self._live: Live | Inline | None = None
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

        Raises `RankFailed` with the first cause, `RankSilent` when the time is over, `Cancelled`, `ProcessLost`: then
        nothing is left of any rank, and this gang can't be used again.
        """
        with self._turn:
            if self._why_over or self._live is not None:
                raise GangClosed(f"the gang can't be brought up: {self._why_over or 'it is up'}", hint="make another")
            started_ns = time.monotonic_ns()
            with _Busy(self):
                self._plan = self._seated()
                self._live = live = self._make()
                # Should nobody close this gang, its ranks end with it.
                weakref.finalize(self, live.let_go)
                weakref.finalize(self, self._meeting.close)
                looks = live.bring_up(started_ns)
                self._contexts = tuple(
                    context_of(config, look.page, self._plan.first_rank + look.rank, self._plan.nranks)
                    for config, look in zip(self._plan.configs, looks, strict=True)
                )
            return self._contexts

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float | None = None) -> list[Any]:
        """Call a function on every rank; give the results in rank order.

        It has to be importable, and what it is given to be picklable: else `BadCall`, and nobody was called. If a rank
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
                live.talk(pack(Kind.STORE), None)
                self._outputs = live.outputs()
            return self._outputs

    def cancel(self) -> None:
        """Have whoever waits for this gang get `Cancelled`, and all ranks ended. Any thread, at any moment, twice."""
        self._cancel()

    def close(self) -> None:
        """End all ranks: in order, if nothing failed. Twice is fine; while somebody waits for the gang, it cancels."""
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
                has_passed(self._meeting, CLOSED, self._plan.grace_s)
                live.close()
                self._outputs = live.outputs()
        finally:
            try:
                if live is not None:
                    live.end()
            finally:
                self._meeting.close()

    def _seated(self) -> GangPlan:
        """Meet the other hosts; give the plan with this one's place among them."""
        plan = self._plan
        part = HostPart(ranks=len(self), devices=plan.names)
        seats = self._meeting.gather(part, plan.timeout_s, lambda: self._cancel.is_wanted)
        if seats.is_alone:
            return plan
        return changed(plan, seats=seats, names=tuple(f"{name} on {seats.name}" for name in plan.names))

    def _make(self) -> Live | Inline:
        if find_spec("torch") is None:
            raise MissingExtra("gangs need torch, which is not installed", hint=pip_install("stoker[torch]"))
        if self._mode == "inline":
            return Inline(self._plan)
        return Live(self._plan, self._starter(), self._cancel, self._meeting)

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
        self._meeting.fail(cause_of(error, "" if self._plan.seats is None else self._plan.seats.name))
        self._close()

    def _see_up(self) -> tuple[Live | Inline, tuple[Context, ...]]:
        if self._why_over:
            raise GangClosed(f"the gang can't be used any more: {self._why_over}", hint="make another one")
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


def _fitting_faults(backend: str, kind: str, mode: str, count: int) -> list[Fault]:
    faults = []
    if (backend, kind) == ("nccl", "cpu"):
        faults.append(Fault("backend", "nccl speaks between GPUs only", "use gloo"))
    if mode == "inline" and count > 1:
        faults.append(Fault("mode", f"inline is for one rank, and there are {count}"))
    return faults


def _name(device_id: int, devices: Sequence[Device] | None) -> str:
    known = devices is not None and device_id < len(devices)
    return f"device {device_id}" + (f", {devices[device_id].uuid}" if devices is not None and known else "")


def _memory_bytes() -> int | None:
    """Give how much memory this computer has, where that can be asked."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
