"""Is this machine fit for gangs? One is brought up for show, adds something up that is known, and is taken down again.

`choose` says what can be tried here, `rehearse` tries it; whatever happens is a finding and never raised.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from stoker.core.device import Device
from stoker.core.errors import Cancelled, ProcessLost, StokerError, WorkFailed
from stoker.core.frozen import fresh, frozen
from stoker.core.text import counted
from stoker.gang.mailbox import Phase
from stoker.gang.owner import Gang
from stoker.gang.rank_config import Buffer, RankConfig
from stoker.gang.rank_processes import START_S
from stoker.gang.starters import warm_here

RANKS = 2
"""Default number of ranks, if there are not more devices."""
COLLECTIVE = "ALL_REDUCE"
"""What follows the phases of the bring-up."""
_VALUES = 1024
_WINDOW_BYTES = 4096


@frozen
class GangSelfTestSetup:
    """What is tried."""

    ranks: int
    backend: str
    devices: tuple[Device, ...] = ()
    """One for each rank, where there are such."""
    why: str = ""
    """Why it is not tried on GPUs, if it is not."""

    def __str__(self) -> str:
        count = counted(self.ranks, "rank")
        how = "NCCL, one GPU for each" if self.backend == "nccl" else "gloo on the CPU"
        return f"{count} with {how}" + (f" ({self.why})" if self.why else "")


@frozen
class RankSelfTest:
    """How it went with one rank."""

    rank: int
    device: str
    phases_s: Mapping[str, float] = fresh(factory=dict)
    """How long each phase took that it came through."""

    def to_dict(self) -> dict[str, Any]:
        return {"rank": self.rank, "device": self.device, "phases_s": dict(self.phases_s)}


@frozen
class GangSelfTest:
    """How it went."""

    trial: GangSelfTestSetup
    ranks: tuple[RankSelfTest, ...] = ()
    import_s: float = 0.0
    """How long torch took to be imported before, where that is done once for all ranks."""
    up_s: float | None = None
    """From the first process to the last rank that was ready; `None`: they never were."""
    error: StokerError | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "tried": str(self.trial),
            "ranks": self.trial.ranks,
            "backend": self.trial.backend,
            "is_fit": self.error is None,
            "import_s": self.import_s,
            "up_s": self.up_s,
            "by_rank": [rank.to_dict() for rank in self.ranks],
            "error": None if self.error is None else self.error.to_dict(),
        }


def choose(wanted: int | None, devices: Sequence[Device]) -> GangSelfTestSetup:
    """Return the setup for these GPUs: NCCL if each rank has its own, else gloo. `wanted` is the number of ranks."""
    count = wanted or max(RANKS, len(devices))
    if not devices:
        return GangSelfTestSetup(ranks=count, backend="gloo", why="no usable GPU on this machine")
    if count <= len(devices):
        return GangSelfTestSetup(ranks=count, backend="nccl", devices=tuple(devices[:count]))
    there = "there is 1 GPU" if len(devices) == 1 else f"there are {len(devices)} GPUs"
    return GangSelfTestSetup(ranks=count, backend="gloo", why=f"NCCL needs one GPU for each rank, and {there}")


def rehearse(trial: GangSelfTestSetup, *, timeout_s: float = START_S, on_phase: str = "") -> GangSelfTest:
    """Bring a gang up, have it add something up, and take it down. Raises nothing but `Cancelled`."""
    names = [f"device {rank}" + (f", {device.uuid}" if device else "") for rank, device in _devices(trial)]
    import_s = _import(timeout_s)
    started_s = time.monotonic()
    up_s = None
    phases: list[dict[str, float]] = [{} for _ in names]
    try:
        gang = Gang(
            [RankConfig(rank, [Buffer("x", _WINDOW_BYTES)]) for rank in range(trial.ranks)],
            backend=trial.backend,
            devices=trial.devices or None,
            timeout_s=timeout_s,
            on_phase=on_phase,
        )
        with gang:
            up_s = time.monotonic() - started_s
            phases = [dict(context.phases_s) for context in gang.contexts]
            for rank, (took_s, total) in enumerate(gang.run(add_up, timeout_s=timeout_s)):
                phases[rank][COLLECTIVE] = took_s
                check_sums(rank, total, trial.ranks)
    except Cancelled:
        raise
    except StokerError as error:
        reached = error.data.get("phases_s")
        if isinstance(reached, list) and up_s is None:
            phases = reached
        return GangSelfTest(trial=trial, ranks=_by_rank(names, phases), import_s=import_s, up_s=up_s, error=error)
    return GangSelfTest(trial=trial, ranks=_by_rank(names, phases), import_s=import_s, up_s=up_s)


def add_up() -> tuple[float, list[float]]:
    """In a rank: have all ranks' numbers added up; give how long it took, and the sums."""
    from stoker.gang.rank_context import this_rank  # noqa: PLC0415 - ranks only
    from stoker.gang.torch_backend import all_reduced  # noqa: PLC0415 - torch, which only ranks have

    started_s = time.monotonic()
    total = all_reduced([float(this_rank().rank + 1 + place) for place in range(_VALUES)])
    return time.monotonic() - started_s, total


def last_phase(phases_s: Mapping[str, float]) -> str:
    """Return the phase that a rank was in after those which it came through."""
    order = [phase.name for phase in Phase if phase < Phase.READY]
    return next((name for name in order if name not in phases_s), COLLECTIVE)


def _import(timeout_s: float) -> float:
    """Import what ranks need, where that is done once for all; why it can't be done, the bring-up itself says."""
    if sys.platform == "linux" and find_spec("torch") is not None:
        with suppress(TimeoutError, ProcessLost):
            return warm_here().wait_ready(timeout_s)
    return 0.0


def _devices(trial: GangSelfTestSetup) -> list[tuple[int, Device | None]]:
    return [(rank, trial.devices[rank] if trial.devices else None) for rank in range(trial.ranks)]


def check_sums(rank: int, total: Sequence[float], ranks: int) -> None:
    """Check a rank's sums: whole numbers, exact in every float type. Raises `WorkFailed`."""
    expected = [ranks * (ranks + 1) / 2 + ranks * place for place in range(_VALUES)]
    if list(total) != expected:
        place = next((at for at, pair in enumerate(zip(total, expected, strict=False)) if pair[0] != pair[1]), 0)
        raise WorkFailed(
            f"rank {rank} (device {rank}) added up wrongly: {total[place]} at {place}, and it is {expected[place]}",
            hint="do not train on it: check network, driver and memory",
            rank=rank,
            phase=COLLECTIVE,
        )


def _by_rank(names: Sequence[str], phases: Sequence[Mapping[str, float]]) -> tuple[RankSelfTest, ...]:
    return tuple(
        RankSelfTest(rank=rank, device=name, phases_s=phases[rank] if rank < len(phases) else {})
        for rank, name in enumerate(names)
    )
