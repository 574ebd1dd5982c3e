"""What runs inside a stage's process whose stage wants several ranks: it owns a gang, and every rank does the work.

    stage's process (in its box, torch imported, no device touched)  ──fork──▶  rank 0 … N−1: the stage's function

Every rank calls the stage with the same inputs and arguments, torch.distributed initialised around it. Rank 0 reports
and writes; what the others report is dropped but for lines of the log, which say whose they are. The first rank that
fails decides the outcome, and nothing is left of the others.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.core.errors import InternalError, RankFailed, RankTimeout
from stoker.core.jsontext import dumps, loads
from stoker.core.retry import FailureCause
from stoker.engine.runners.stage_runner import (
    StageFailure,
    StageSuccess,
    answer,
    answer_of,
    asked_to_stop,
    do_work,
    failure_of,
    pass_on,
    work_in,
)
from stoker.gang.mailbox import unnamed_memory
from stoker.gang.owner import Gang
from stoker.gang.rank_config import RankConfig
from stoker.gang.rank_context import this_rank
from stoker.gang.starters import ForkStarter
from stoker.host.zygote_child import Emitter

_ROOM_BYTES = 1 << 16
"""For what one rank tells of its failure; its traceback is cut to far less."""
_GRACE_S = 5.0


class Outcomes:
    """Where ranks tell how they failed: memory without a name, which they inherit and which ends with them."""

    def __init__(self, ranks: int) -> None:
        self.fd = unnamed_memory("stoker-outcomes", ranks * _ROOM_BYTES)

    def tell(self, rank: int, outcome: StageFailure) -> None:
        body = dumps(answer_of(outcome)).encode()[: _ROOM_BYTES - 1]
        os.pwrite(self.fd, body, rank * _ROOM_BYTES)

    def of(self, rank: int) -> Mapping[str, Any] | None:
        """Return what a rank wrote; nothing if it died before it could."""
        body = os.pread(self.fd, _ROOM_BYTES, rank * _ROOM_BYTES).rstrip(b"\0")
        try:
            failure = loads(body.decode())
        except ValueError:
            return None
        return failure if isinstance(failure, dict) else None


class StageRankFailed(Exception):
    """Ends a rank whose stage failed, after its failure was written to `Outcomes`."""


_inherited: dict[str, Any] = {}
"""What ranks have from their owner by being forked from it: the way to report, and where to tell failures."""


def run_work(request: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Bring the ranks up, have the stage done by all of them, and send one answer."""
    if not isinstance(emit, Emitter):
        raise InternalError("a gang's owner reports through a pipe that its ranks can inherit")
    # Ranks are forked from here, and have what this process has imported or will.
    work = work_in(request)
    outcomes = Outcomes(work["ranks"])
    _inherited.update(emit=emit, outcomes=outcomes)
    with asked_to_stop():
        try:
            with Gang(
                ranks=[RankConfig(number) for number in range(work["ranks"])],
                backend="nccl" if work["devices"] else "gloo",
                starter=ForkStarter(keeps=(emit.fd, outcomes.fd)),
                grace_s=_GRACE_S,
            ) as gang:
                gang.run(run_on_rank, work)
            outcome: StageSuccess | StageFailure = StageSuccess()
        except RankFailed as error:
            outcome = _failure(error, outcomes, work["devices"])
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run has to hear of it
            outcome = failure_of(error)
    answer(outcome, emit)


def run_on_rank(work: dict[str, Any]) -> None:
    """Do the stage's work as one of its ranks."""
    rank = this_rank().context.rank
    emit, outcomes = _inherited["emit"], _inherited["outcomes"]

    def report(said: dict[str, Any]) -> None:
        if rank == 0:
            pass_on(said, emit)
        elif "log" in said:
            pass_on({"log": f"[rank {rank}] {said['log']}"}, emit)

    with asked_to_stop() as is_told:
        outcome = do_work({**work, "devices": work["devices"][rank : rank + 1]}, report, is_told)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if isinstance(outcome, StageFailure):
        outcomes.tell(rank, outcome)
        raise StageRankFailed(outcome.message)


def _failure(error: RankFailed, outcomes: Outcomes, devices: Sequence[str]) -> StageFailure:
    """Return the first rank's failure as the stage's: its own cause, with the rank."""
    failure = outcomes.of(error.rank)
    if failure is None:
        lost = FailureCause.LOST if isinstance(error, RankTimeout) or not error.traceback else FailureCause.USER
        return StageFailure(
            cause=lost, message=str(error), hint=error.hint, detail=error.traceback, error_code=error.code
        )
    on = f" (device {error.rank}, {devices[error.rank]})" if error.rank < len(devices) else ""
    return StageFailure(
        cause=FailureCause(failure["cause"]),
        message=f"rank {error.rank}{on}: {failure['message']}",
        hint=failure["hint"],
        detail=failure["detail"],
        error_code=failure["error_code"],
    )
