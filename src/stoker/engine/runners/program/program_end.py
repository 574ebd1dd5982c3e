"""What a program's end means: a cause, one line for people, a hint. Pure: from how it ended and what it said last."""

from __future__ import annotations

import os
import re
import signal
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from stoker.core.errors import NoSpace, OutOfMemory, ProcessLost, ProgramNotFound, StageFailed, StageTimeout
from stoker.core.frozen import frozen, frozen_by_position
from stoker.core.retry import FailureCause
from stoker.core.text import format_duration, format_size, lazy_pattern
from stoker.engine.program import CollectedOutputs
from stoker.engine.runners.stage_runner import AttemptUsage, StageFailure
from stoker.engine.scratch import newest_checkpoint
from stoker.host.identity import ProcessExit
from stoker.host.install import packages_digest, packages_in

if TYPE_CHECKING:
    from stoker.engine.runners.program.launch import Launch
    from stoker.engine.runners.stage_runner import Work

_LONGEST_LINE = 300
_MOST_LISTED = 5
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = lazy_pattern(r'^  File "([^"\n]{1,500})", line (\d{1,9})', re.MULTILINE)
_EXCEPTION = lazy_pattern(r"^[A-Za-z_][\w.]{0,200}(: .*)?$")
_FAULTS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})


@frozen
class ProgramExit:
    """What is known of a program that has ended."""

    stderr: str
    """The end of what it wrote there."""
    complaint: str = ""
    """What it reported itself, through the trainer contract."""
    was_out_of_memory: bool = False
    """True if the kernel killed a process in its box for memory."""
    cap_bytes: int | None = None
    folder: str = ""
    """Where it ran: of a traceback, the frame nearest to the user's own code is named."""


def failure_of_program(ended: ProcessExit, words: ProgramExit, usage: AttemptUsage) -> StageFailure | None:
    """Return why a program failed, or nothing if it did not."""
    if words.was_out_of_memory:
        return out_of_memory(words.cap_bytes, usage, is_part=ended.is_success)
    if ended.is_success:
        return StageFailure(cause=FailureCause.USER, message=words.complaint, usage=usage) if words.complaint else None
    said = words.complaint or _exception_in(words.stderr, words.folder)
    how = f"exit {ended.status}" if ended.signal is None else f"died by {ended}"
    # A program that was ended from outside had no time to say why.
    is_told = bool(said) and (ended.signal is None or ended.signal in _FAULTS)
    blame = next((blame for blame in _BLAMES if is_told and blame.pattern.search(said)), None) or _blame_for(ended)
    return StageFailure(
        cause=blame.cause,
        message=f"{how}: {said}" if is_told else how,
        hint=blame.hint,
        error_code=blame.code,
        usage=usage,
    )


def out_of_memory(cap_bytes: int | None, usage: AttemptUsage, *, is_part: bool = False) -> StageFailure:
    """Return the failure of an attempt that was killed at its memory limit, or a process of which was."""
    who = "a process of it" if is_part else "it"
    cap = f" at its cap of {format_size(cap_bytes)}" if cap_bytes else ""
    return StageFailure(
        cause=FailureCause.OOM_HOST,
        message=f"out of memory: {who} was killed{cap}",
        hint="smaller batches, fewer data workers, or memory=SIZE if this machine has more",
        error_code=OutOfMemory.code,
        usage=usage,
    )


def went_silent(limit_s: float, usage: AttemptUsage) -> StageFailure:
    """Return the message that it was stopped because no output for too long."""
    return StageFailure(
        cause=FailureCause.TIMEOUT,
        message=f"no output for {format_duration(limit_s)}",
        hint="print progress, or raise the limit with silence=TIME",
        error_code=StageTimeout.code,
        usage=usage,
    )


def failure_of_outputs(collected: CollectedOutputs, usage: AttemptUsage) -> StageFailure | None:
    """Return what is wrong with the declared outputs of a program that ended well, or nothing if all is there."""
    if collected.missing:
        message = f"it completed but wrote nothing to {', '.join(collected.missing[:_MOST_LISTED])}"
        hint = "outputs= takes paths relative to the folder that it runs in"
    elif collected.twice:
        listed = ", ".join(collected.twice[:_MOST_LISTED])
        message, hint = f"it wrote {listed} both to $STOKER_OUT and to a declared output", "choose one"
    else:
        return None
    return StageFailure(cause=FailureCause.VALIDATION, message=message, hint=hint, usage=usage)


def _blame_for(ended: ProcessExit) -> _Blame:
    """Return whose fault an end is that nothing else tells about."""
    if ended.signal is None:
        return _Blame(_ANYTHING, FailureCause.USER, StageFailed.code, _hint_for_status(ended.status or 0))
    if ended.signal in _FAULTS:
        hint = "a crash in native code; read the end of its output: stoker logs"
        return _Blame(_ANYTHING, FailureCause.USER, StageFailed.code, hint)
    hint = "another process ended it"
    if ended.signal == signal.SIGKILL:
        hint = "it was killed, or the machine ran out of memory: check dmesg"
    return _Blame(_ANYTHING, FailureCause.LOST, ProcessLost.code, hint)


def _hint_for_status(status: int) -> str:
    """Explain what shells and other wrappers make of a signal: they end with a status of their own."""
    try:
        name = signal.Signals(status - 128).name
    except ValueError:
        return ""
    return f"{status} is a shell's status for a command killed by {name}"


def _exception_in(stderr: str, folder: str) -> str:
    """Return the exception that a Python program ended with and where it was raised; else its last line."""
    trace = _last_trace(stderr)
    lines = (line.strip() for line in reversed(stderr.splitlines()))
    said = next((line for line in trace.splitlines() if _EXCEPTION.match(line)), "") or next(filter(None, lines), "")
    frames = _FRAME.findall(trace)
    if not frames:
        return said[:_LONGEST_LINE]
    own = [frame for frame in frames if frame[0].startswith(f"{folder}/") and "/site-packages/" not in frame[0]]
    path, line = (own or frames)[-1]
    return f"{said[:_LONGEST_LINE]} ({path.rpartition('/')[2]}:{line})"


def _last_trace(stderr: str) -> str:
    """Return what follows the head of the last traceback that ended something."""
    end = len(stderr)
    while (start := stderr.rfind(_TRACEBACK, 0, end)) >= 0:
        before = stderr[:start].rstrip("\n").rpartition("\n")[2]
        # What goes wrong while Python takes itself down, after the exception that we look for.
        if not before.startswith("Exception ignored"):
            return stderr[start + len(_TRACEBACK) : end]
        end = start
    return ""


@frozen_by_position
class _Blame:
    """What the last line of a program tells about whose fault it is."""

    pattern: re.Pattern[str]
    cause: FailureCause
    code: str
    hint: str


_LESS = "smaller batches, or memory=SIZE if this machine has more"
_ANYTHING = lazy_pattern("")
_BLAMES = (
    _Blame(
        re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE),
        FailureCause.IO, NoSpace.code, "free some space; stoker store prune",
    ),
    _Blame(
        re.compile(r"OutOfMemoryError|CUDA( error:)? out of memory|RESOURCE_EXHAUSTED: Out of memory"),
        FailureCause.OOM_DEVICE, OutOfMemory.code, "smaller batches, or another device",
    ),
    _Blame(
        re.compile(r"^[\w.]*MemoryError\b|can't allocate memory|Cannot allocate memory|std::bad_alloc"),
        FailureCause.OOM_HOST, OutOfMemory.code, _LESS,
    ),
    _Blame(
        # Only our own way into the box speaks so, about the program itself.
        re.compile(r"^sh: .*Exec format error$"),
        FailureCause.INPUT, ProgramNotFound.code,
        "check that it is built for this machine; a script needs a first line such as #!/bin/sh",
    ),
)  # fmt: skip


# The manifest of a result: what really happened, kept with it for later questions.


_DRIVER = "/proc/driver/nvidia/version"
_FRAMEWORKS = (
    "torch", "tensorflow", "jax", "jaxlib", "flax", "numpy", "transformers", "peft", "accelerate", "lightning",
    "pytorch_lightning", "keras", "scikit_learn", "xgboost", "lightgbm", "deepspeed",
)  # fmt: skip


def manifest_of_program(launch: Launch, work: Work) -> dict[str, Any]:
    """Return the manifest of a program that ended well."""
    return {"argv": list(launch.argv), "folder": launch.folder, **_made_with(work, _packages_of(_python_of(launch)))}


def manifest_of_stage(work: Work) -> dict[str, Any]:
    """Return the manifest of a stage that this interpreter did, here or in another process."""
    return _made_with(work, _our_packages())


def _made_with(work: Work, packages: dict[str, str]) -> dict[str, Any]:
    return {
        "frameworks": _frameworks_among(packages),
        "packages": packages_digest(packages),
        "driver": _driver(),
        "devices": list(work.devices),
        "memory_bytes": work.memory_bytes,
        "attempt": work.attempt,
        "checkpoint": newest_checkpoint(work.scratch) if work.scratch else None,
    }


# Neither changes while a process runs, and there may be thousands of results.
@cache
def _our_packages() -> dict[str, str]:
    return _packages_of(sys.executable)


def _python_of(launch: Launch) -> str:
    """Return the interpreter of the program's environment; if it has none of its own, the program itself may be one."""
    prefix = launch.env.get("VIRTUAL_ENV", "")
    return os.path.join(prefix, "bin", "python") if prefix else launch.argv[0]


def frameworks_of(python: str) -> dict[str, str]:
    """Return the versions of frameworks that an interpreter's own environment has, without starting it."""
    return _frameworks_among(_packages_of(python))


def _packages_of(python: str) -> dict[str, str]:
    return packages_in(os.path.dirname(os.path.dirname(python)))


def _frameworks_among(packages: dict[str, str]) -> dict[str, str]:
    return {name: packages[name.replace("_", "-")] for name in _FRAMEWORKS if name.replace("_", "-") in packages}


@cache
def _driver() -> str:
    try:
        with open(_DRIVER, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()[:200]
    except OSError:
        return ""
