"""What a stage sees while it runs, and what its failures are turned into."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import StageContext
from stoker.core.errors import (
    Cancelled,
    CorruptBytes,
    LocalFile,
    NoPermission,
    NoSpace,
    OutOfMemory,
    ProcessLost,
    StageDiverged,
    StageFailed,
    StageInputError,
    StageTimeout,
)
from stoker.core.retry import FailureCause
from stoker.engine.execution.executor import error_of
from stoker.engine.runners.stage_runner import failure_of, find_stage
from stoker.engine.types import NodeEnding, NodeResult
from tests.unit.engine.misbehaving import OutOfMemoryError
from tests.unit.engine.stages import Folder, Number, number


def context(folder: Path, **more: Any) -> tuple[StageContext, list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    job = StageContext(node="n", out=str(folder), emit=told.append, **{"is_cancelled": lambda: False, **more})
    return job, told


# --- the context ---------------------------------------------------------------------------------


def test_what_is_saved_lies_in_the_staging_folder(tmp_path: Path) -> None:
    job, _ = context(tmp_path)
    assert job.out == tmp_path
    handle = job.save(Number, 5)
    assert (handle.load(), handle.staged_in, handle.digest) == (5, str(tmp_path), "")
    assert job.made(Folder).staged_in == str(tmp_path)


def test_items_are_saved_in_order(tmp_path: Path) -> None:
    job, _ = context(tmp_path)
    handles = [job.save_item(Number, value) for value in (7, 8)]
    assert [handle.staged_in for handle in handles] == [f"{tmp_path}/000000", f"{tmp_path}/000001"]
    assert [handle.load() for handle in handles] == [7, 8]


def test_steps_and_logs_are_reported(tmp_path: Path) -> None:
    job, told = context(tmp_path)
    job.step(3, of=10, loss=1)
    job.step(4)
    job.log("hello")
    assert told == [
        {"step": 3, "of": 10, "metrics": {"loss": 1.0}},
        {"step": 4, "of": None, "metrics": {}},
        {"log": "hello"},
    ]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_watched_metric_that_is_no_number_any_more_is_divergence(tmp_path: Path, loss: float) -> None:
    job, told = context(tmp_path, diverges_on=("loss",))
    job.step(1, loss=1.0, other=float("nan"))
    with pytest.raises(StageDiverged, match="at step 2"):
        job.step(2, loss=loss)
    assert len(told) == 2


def test_a_cancelled_stage_hears_of_it_when_it_asks(tmp_path: Path) -> None:
    job, told = context(tmp_path, is_cancelled=lambda: True)
    with pytest.raises(Cancelled, match="n was asked to stop"):
        job.check()
    with pytest.raises(Cancelled):
        job.step(1)
    assert told == []


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "cause", "code"),
    [
        (ValueError("x"), FailureCause.USER, "stage_failed"),
        (KeyboardInterrupt(), FailureCause.USER, "stage_failed"),
        (SystemExit(3), FailureCause.USER, "stage_failed"),
        (MemoryError(), FailureCause.OOM_HOST, "out_of_memory"),
        (OutOfMemoryError("CUDA"), FailureCause.OOM_DEVICE, "out_of_memory"),
        (OutOfMemory("limit"), FailureCause.OOM_HOST, "out_of_memory"),
        (FileNotFoundError(2, "gone", "f"), FailureCause.IO, "stage_failed"),
        (OSError(errno.ENOSPC, "full", "f"), FailureCause.IO, "no_space"),
        (OSError(errno.EDQUOT, "quota", "f"), FailureCause.IO, "no_space"),
        (NoSpace("full"), FailureCause.IO, "no_space"),
        (OSError("1024 requested and 496 written"), FailureCause.IO, "no_space"),
        (Exception("I/O error: No space left on device (os error 28)"), FailureCause.IO, "no_space"),
        (Exception("I/O error: Permission denied (os error 13)"), FailureCause.USER, "stage_failed"),
        (StageInputError("no rows"), FailureCause.INPUT, "stage_input"),
        (LocalFile("gone"), FailureCause.INPUT, "local_file"),
        (StageDiverged("nan"), FailureCause.DIVERGED, "stage_diverged"),
        (Cancelled("stop"), FailureCause.CANCELLED, "cancelled"),
        (CorruptBytes("bad"), FailureCause.USER, "corrupt_bytes"),
    ],
)
def test_what_a_stage_raises_has_a_cause(error: BaseException, cause: FailureCause, code: str) -> None:
    failed = failure_of(error)
    assert (failed.cause, failed.error_code) == (cause, code)
    assert failed.message


def test_a_long_message_is_cut_to_one_line() -> None:
    failed = failure_of(ValueError("first line " + "x" * 1000 + "\nsecond line"))
    assert failed.message.startswith("ValueError: first line xxx")
    assert len(failed.message) < 400
    assert "second line" in failed.detail


def test_an_error_without_words_is_named() -> None:
    assert failure_of(ValueError()).message == "ValueError"


@pytest.mark.parametrize(
    ("cause", "code", "expected"),
    [
        (FailureCause.USER, "stage_failed", StageFailed),
        (FailureCause.VALIDATION, "stage_failed", StageFailed),
        (FailureCause.TIMEOUT, "stage_failed", StageTimeout),
        (FailureCause.DIVERGED, "stage_diverged", StageDiverged),
        (FailureCause.OOM_HOST, "out_of_memory", OutOfMemory),
        (FailureCause.OOM_DEVICE, "out_of_memory", OutOfMemory),
        (FailureCause.INPUT, "stage_input", StageInputError),
        (FailureCause.LOST, "process_lost", ProcessLost),
        (FailureCause.IO, "no_space", NoSpace),
        (FailureCause.IO, "no_permission", NoPermission),
        (FailureCause.INPUT, "local_file", LocalFile),
        (FailureCause.IO, "corrupt_bytes", CorruptBytes),
        (FailureCause.CANCELLED, "cancelled", StageFailed),
        (None, "unheard_of", StageFailed),
    ],
)
def test_a_failed_node_is_the_error_that_fits(cause: FailureCause | None, code: str, expected: type) -> None:
    result = NodeResult(ending=NodeEnding.FAILED, cause=cause, message="it broke", hint="mend it")
    error = error_of("train", result, code)
    assert type(error) is expected
    assert (str(error), error.hint, error.data["node"]) == ("train: it broke", "mend it", "train")


# --- in the child --------------------------------------------------------------------------------


def test_a_stage_is_found_by_where_it_is() -> None:
    assert find_stage(number.entry) is number


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ("tests.unit.engine.stages:note", TypeError),
        ("tests.unit.engine.stages:nothing", AttributeError),
        ("tests.unit.engine.nowhere:x", ModuleNotFoundError),
    ],
)
def test_what_is_no_stage_is_told(entry: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        find_stage(entry)
