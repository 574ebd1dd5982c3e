from __future__ import annotations

import signal
from typing import Any

import pytest

from stoker.core.retry import FailureCause
from stoker.engine.execution.executor import error_of
from stoker.engine.program import CollectedOutputs
from stoker.engine.runners.program.program_end import ProgramExit, failure_of_outputs, failure_of_program, went_silent
from stoker.engine.runners.stage_runner import AttemptUsage, StageFailure
from stoker.engine.types import NodeEnding, NodeResult
from stoker.host.identity import ProcessExit

USAGE = AttemptUsage(peak_rss_bytes=5, cpu_s=1.0)


def ended(status: int | None = None, by: int | None = None) -> ProcessExit:
    return ProcessExit(status=status, signal=by, max_rss_bytes=1, cpu_s=0.1)


def failure(how: ProcessExit, stderr: str = "", **more: Any) -> StageFailure:
    failed = failure_of_program(how, ProgramExit(stderr=stderr, folder="/home/me/proj", **more), USAGE)
    assert failed is not None
    assert failed.usage == USAGE
    return failed


def exit_code(failed: StageFailure) -> int:
    """What a shell sees when a run ends with it."""
    result = NodeResult(ending=NodeEnding.FAILED, cause=failed.cause, message=failed.message, hint=failed.hint)
    return error_of("run", result, failed.error_code).exit_code


TRACE = """some warning
Traceback (most recent call last):
  File "/home/me/proj/train.py", line 88, in <module>
    main()
  File "/home/me/proj/lib/model.py", line 7, in main
    step()
  File "/usr/lib/python3/site-packages/torch/x.py", line 9, in step
    raise ValueError("loss is nan")
ValueError: loss is nan
"""


def test_a_program_that_ended_well_has_not_failed() -> None:
    assert failure_of_program(ended(0), ProgramExit(stderr=TRACE), USAGE) is None


def test_any_other_status_is_told_with_the_last_line() -> None:
    failed = failure(ended(3), "first\n\nlast line  \n\n")
    assert (failed.message, failed.cause, exit_code(failed)) == ("exit 3: last line", FailureCause.USER, 1)
    assert failure(ended(3)).message == "exit 3"


def test_of_a_traceback_the_exception_and_the_users_own_line_are_told() -> None:
    assert failure(ended(1), TRACE).message == "exit 1: ValueError: loss is nan (model.py:7)"


def test_what_follows_a_traceback_does_not_hide_it() -> None:
    assert failure(ended(1), f"{TRACE}wandb: run synced\n").message == "exit 1: ValueError: loss is nan (model.py:7)"


def test_of_chained_exceptions_the_last_counts_and_of_ignored_ones_none() -> None:
    chained = (
        TRACE
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + TRACE.replace("ValueError: loss is nan", "RuntimeError: gave up")
    )
    assert failure(ended(1), chained).message == "exit 1: RuntimeError: gave up (model.py:7)"
    ignored = f"{TRACE}Exception ignored in: <function f>\n{TRACE[13:].replace('ValueError', 'AttributeError')}"
    assert failure(ended(1), ignored).message == "exit 1: ValueError: loss is nan (model.py:7)"


@pytest.mark.parametrize(
    "stderr",
    [
        "Traceback (most recent call last):",
        "Traceback (most recent call last):\n" * 1000,
        "\r\r\r",
        "\0\0",
        "é" * 50000,
    ],
)
def test_whatever_was_written_there_is_a_line(stderr: str) -> None:
    message = failure(ended(1), stderr).message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("line", "cause", "code"),
    [
        ("OSError: [Errno 28] No space left on device: 'x'", FailureCause.IO, 10),
        ("cp: error writing 'x': No space left on device", FailureCause.IO, 10),
        ("OSError: [Errno 122] Disk quota exceeded", FailureCause.IO, 10),
        ("MemoryError", FailureCause.OOM_HOST, 46),
        ("MemoryError: Unable to allocate 8 GiB", FailureCause.OOM_HOST, 46),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 GiB", FailureCause.OOM_HOST, 46),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried", FailureCause.OOM_HOST, 46),
        ("OSError: [Errno 12] Cannot allocate memory", FailureCause.OOM_HOST, 46),
        ("terminate called after throwing an instance of 'std::bad_alloc'", FailureCause.OOM_HOST, 46),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", FailureCause.OOM_DEVICE, 46),
        ("RuntimeError: CUDA error: out of memory", FailureCause.OOM_DEVICE, 46),
        ("jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory", FailureCause.OOM_DEVICE, 46),
        ("sh: 13: exec: ./prog: Exec format error", FailureCause.INPUT, 16),
        ("ValueError: MemoryError is not what happened", FailureCause.USER, 1),
    ],
)
def test_what_the_last_line_tells_about_the_cause(line: str, cause: FailureCause, code: int) -> None:
    failed = failure(ended(1), line)
    assert (failed.cause, exit_code(failed)) == (cause, code)
    assert failed.hint or cause is FailureCause.USER


def test_a_kill_for_memory_is_named_with_the_cap_whoever_was_killed() -> None:
    for how in (ended(by=signal.SIGKILL), ended(137), ended(1)):
        failed = failure(how, TRACE, was_out_of_memory=True, cap_bytes=2 * 2**30)
        assert failed.message == "out of memory: it was killed at its cap of 2.0 GiB"
        assert (failed.cause, exit_code(failed)) == (FailureCause.OOM_HOST, 46)
    failed = failure(ended(0), "", was_out_of_memory=True, cap_bytes=2 * 2**30)
    assert failed.message == "out of memory: a process of it was killed at its cap of 2.0 GiB"
    assert (failed.cause, exit_code(failed)) == (FailureCause.OOM_HOST, 46)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL])
def test_a_crash_is_the_programs_own(number: signal.Signals) -> None:
    failed = failure(ended(by=number))
    assert failed.message == f"died by signal {number.value} ({number.name})"
    assert (failed.cause, exit_code(failed)) == (FailureCause.USER, 1)


def test_a_crash_for_want_of_memory_is_told_as_such() -> None:
    failed = failure(ended(by=signal.SIGABRT), "terminate called\n  what():  std::bad_alloc\n")
    assert failed.message == "died by signal 6 (SIGABRT): what():  std::bad_alloc"
    assert (failed.cause, exit_code(failed)) == (FailureCause.OOM_HOST, 46)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, 64])
def test_an_end_from_outside_is_a_loss_and_nothing_that_it_said_explains_it(number: int) -> None:
    failed = failure(ended(by=number), "OSError: No space left on device")
    assert failed.message.startswith(f"died by signal {int(number)}")
    assert "space" not in failed.message
    assert (failed.cause, exit_code(failed)) == (FailureCause.LOST, 45)
    assert failed.hint


def test_a_shell_that_tells_of_a_signal_is_explained() -> None:
    failed = failure(ended(139), "Segmentation fault")
    assert failed.message == "exit 139: Segmentation fault"
    assert failed.hint == "139 is a shell's status for a command killed by SIGSEGV"
    assert failure(ended(255)).hint == ""


def test_a_program_that_says_it_failed_has_failed_whatever_its_status() -> None:
    assert failure(ended(0), complaint="no data").message == "no data"
    assert failure(ended(2), TRACE, complaint="no data").message == "exit 2: no data"


def test_silence_is_a_time_out() -> None:
    failed = went_silent(90.0, USAGE)
    assert (failed.cause, failed.message, exit_code(failed)) == (FailureCause.TIMEOUT, "no output for 1m30s", 43)


def test_declared_outputs_are_there_once() -> None:
    assert failure_of_outputs(CollectedOutputs(stale=("runs",)), USAGE) is None
    missing = failure_of_outputs(CollectedOutputs(missing=("runs", "b")), USAGE)
    assert missing is not None
    assert missing.message == "it completed but wrote nothing to runs, b"
    twice = failure_of_outputs(CollectedOutputs(twice=("a",)), USAGE)
    assert twice is not None
    assert twice.message == "it wrote a both to $STOKER_OUT and to a declared output"
    assert {missing.cause, twice.cause} == {FailureCause.VALIDATION}
