"""Stages in children of a warm zygote: a crash, a leak or a hang of one can't take the run down, and all can be killed.

The zygote is started when the first such stage runs, with the modules that the cookbooks ask to preload, so that a
stage costs a fork and not an interpreter. Each attempt is a process group of its own.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any

from stoker.core.clock import SystemClock
from stoker.core.errors import ProcessLost, Unavailable
from stoker.core.jsontext import dumps
from stoker.core.retry import FailureCause
from stoker.engine.device_gate import HIDDEN
from stoker.engine.runners.program.program_end import out_of_memory
from stoker.engine.runners.stage_runner import AttemptUsage, StageAttempt, StageFailure, StageSuccess, Work
from stoker.engine.stage import Stage
from stoker.host.containment.box import MARK, ContainedGroup, Containment, ContainmentLimits, ContainmentReading
from stoker.host.identity import ProcessExit
from stoker.host.import_watch import handed_on
from stoker.host.processes import ask_group, stop_group
from stoker.host.zygote import ForkedWork, Zygote

CHILD = "stoker.engine.runners.stage_runner:run_work"
PRELOAD = ("stoker.engine.runners.stage_runner", "stoker.authoring", "pathlib")
"""What the zygote imports for every stage. What is missing here each child imports again, for milliseconds."""
_READ_BOX_EVERY_S = 0.5


class ProcessRunner:
    """Forks one child per attempt."""

    is_here = False

    def __init__(
        self, start_zygote: Callable[[], Zygote], containment: Callable[[], Containment], *, gang_child: str
    ) -> None:
        """`gang_child` is what a child runs, `module:function`, whose stage wants several ranks; else `CHILD`."""
        self._gang_child = gang_child
        self._start_zygote = start_zygote
        self._containment = containment
        self._zygote: Zygote | None = None
        self._has_told: Zygote | None = None
        self._lock = threading.Lock()

    def check(self, works: Mapping[str, tuple[Stage, Mapping[str, Any]]]) -> None:
        """They are forked from what runs already: nothing can be missing."""

    def attempt(self, work: Work) -> StageAttempt:
        entry = CHILD if work.ranks == 1 else self._gang_child
        return _ProcessAttempt(work, entry, self._warm, self._untold, self._containment)

    def close(self) -> None:
        with self._lock:
            if self._zygote is not None:
                self._zygote.close()
            self._zygote = None

    def _warm(self) -> Zygote:
        with self._lock:
            if self._zygote is not None and self._zygote.is_lost:
                # Killed from outside, by the kernel for memory perhaps: the next stage gets a new one.
                self._zygote.close()
                self._zygote = None
            if self._zygote is None:
                self._zygote = self._start_zygote()
            return self._zygote

    def _untold(self, zygote: Zygote) -> tuple[str, ...]:
        """Return what went wrong while the zygote got warm, once."""
        with self._lock:
            warnings = () if self._has_told is zygote else tuple(zygote.wait_ready().warnings)
            self._has_told = zygote
            return warnings


class _ProcessAttempt:
    def __init__(
        self,
        work: Work,
        entry: str,
        warm: Callable[[], Zygote],
        warnings: Callable[[Zygote], tuple[str, ...]],
        containment: Callable[[], Containment],
    ) -> None:
        self._work = work
        self._entry = entry
        self._containment = containment
        self._warm = warm
        self._warnings = warnings
        self._lock = threading.Lock()
        self._forked: ForkedWork | None = None
        self._stopped = threading.Event()
        self._clock = SystemClock()

    def run(self) -> StageSuccess | StageFailure:
        work = self._work
        limits = ContainmentLimits(memory_bytes=work.memory_bytes, uses_gpu=bool(work.devices))
        mark = f"{work.folders.run_id}-{secrets.token_hex(4)}"
        try:
            box = self._containment().open(f"{work.folders.run_id}-{work.node}", limits, mark)
            try:
                return self._run_in(box, mark)
            finally:
                box.kill_all()
                box.close()
        except ProcessLost as error:
            return StageFailure(cause=FailureCause.LOST, message=str(error), hint=error.hint, error_code=error.code)
        except Unavailable as error:
            return StageFailure(cause=FailureCause.IO, message=str(error), hint=error.hint, error_code=error.code)

    def _run_in(self, box: ContainedGroup, mark: str) -> StageSuccess | StageFailure:
        work = self._work
        request = {"work": dumps(as_request(work))}
        environment = {**(work.variables or HIDDEN), MARK: mark}
        zygote = self._warm()
        if self._stopped.is_set():
            return _STOPPED_EARLY
        log_path = work.folders.log_of(work.node)
        with handed_on(work.code) as sources_fd:
            forked = zygote.fork(
                self._entry, request, log_path=log_path, env=environment, box=box.entry, fds=(sources_fd,)
            )
        for warning in self._warnings(zygote):
            work.emit({"log": warning})
        try:
            box.took_in(forked.identity)
            work.started(forked.identity)
            with self._lock:
                self._forked = forked
            if self._stopped.is_set():
                # Asked while the zygote was still importing: there was no process yet to pass it on to.
                stop_group(forked.identity, grace_s=0.0)
                return _STOPPED_EARLY
            answer = self._listen(forked, box)
            return _read_answer(answer, forked.wait(), box.read(), work.memory_bytes)
        finally:
            if not forked.has_ended:
                # Something else than the work went wrong; the work must not go on alone.
                stop_group(forked.identity, grace_s=0.0)

    def _listen(self, forked: ForkedWork, box: ContainedGroup) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        next_reading_s = self._clock.monotonic_s()
        while not forked.has_no_more_events:
            for event in forked.read_events(_READ_BOX_EVERY_S):
                if "answer" in event:
                    answer = answer or event["answer"]
                else:
                    self._work.emit(event)
            now_s = self._clock.monotonic_s()
            if now_s >= next_reading_s:
                next_reading_s = now_s + _READ_BOX_EVERY_S
                if box.read().was_out_of_memory:
                    # Some kernels kill one and let the others wait for it for ever.
                    box.kill_all()
        return answer

    def ask_to_stop(self) -> None:
        forked = self._stop()
        if forked is not None and not forked.has_ended:
            ask_group(forked.identity)

    def kill(self) -> bool:
        forked = self._stop()
        if forked is None:
            return False
        if not forked.has_ended:
            stop_group(forked.identity, grace_s=0.0)
        return True

    def _stop(self) -> ForkedWork | None:
        with self._lock:
            self._stopped.set()
            return self._forked


_STOPPED_EARLY = StageFailure(cause=FailureCause.CANCELLED, message="it was stopped before it began")


def as_request(work: Work) -> dict[str, Any]:
    """Return an attempt's work as another process takes it."""
    return {
        "entry": work.stage.entry,
        "node": work.node,
        "args": dict(work.args),
        "inputs": {
            port: [[str(given.ref.kind), given.ref.digest, given.where()] for given in givens]
            for port, givens in work.inputs.items()
        },
        "out": work.out,
        "devices": list(work.devices),
        "ranks": work.ranks,
        "attempt": work.attempt,
        "scratch": work.scratch,
    }


def _read_answer(
    answer: dict[str, Any], ended: ProcessExit, reading: ContainmentReading, cap_bytes: int | None
) -> StageSuccess | StageFailure:
    was_killed = reading.was_out_of_memory
    usage = AttemptUsage(
        peak_rss_bytes=reading.peak_bytes or ended.max_rss_bytes, cpu_s=ended.cpu_s, was_killed_for_memory=was_killed
    )
    if was_killed:
        return out_of_memory(cap_bytes, usage, is_part=answer.get("outcome") == "finished")
    if answer.get("outcome") == "finished":
        return StageSuccess(usage=usage)
    if answer.get("outcome") == "failed":
        return StageFailure(
            cause=FailureCause(answer["cause"]),
            message=answer["message"],
            hint=answer["hint"],
            detail=answer["detail"],
            error_code=answer["error_code"],
            usage=usage,
        )
    hint = "read the end of its output: stoker logs"
    if ended.signal == 9:
        hint = "it was killed, or the machine ran out of memory: check dmesg"
    return StageFailure(
        cause=FailureCause.LOST, message=f"its process ended without an answer: {ended}", hint=hint,
        error_code="process_lost", usage=usage,
    )  # fmt: skip
