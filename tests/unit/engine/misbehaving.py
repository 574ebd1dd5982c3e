"""Stages that go wrong in every way we could think of."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.authoring import InputPath, RetryOn, RetryPolicy, Stage, StageContext, StageInputError, arg, stage
from tests.unit.engine.stages import ASIDE_S, Blob, Folder, Number, Words, note, wait_for_file


@dataclass(frozen=True, slots=True, kw_only=True)
class HowArgs:
    how: str = arg("")
    value: int = arg(0)
    ledger: str = arg("", runtime=True)
    gate: str = arg("", runtime=True)


class OutOfMemoryError(RuntimeError):
    """Named as torch's is."""


def _raise(job: StageContext, args: HowArgs) -> Any:
    raise ValueError("it is broken\nand more lines")


def _refuse(job: StageContext, args: HowArgs) -> Any:
    raise StageInputError("the table has no rows", hint="give it some")


def _exit(job: StageContext, args: HowArgs) -> Any:
    sys.exit(3)


def _os_exit(job: StageContext, args: HowArgs) -> Any:
    os._exit(7)


def _segfault(job: StageContext, args: HowArgs) -> Any:
    ctypes.string_at(0)


def _killed(job: StageContext, args: HowArgs) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _interrupt(job: StageContext, args: HowArgs) -> Any:
    raise KeyboardInterrupt


def _memory(job: StageContext, args: HowArgs) -> Any:
    raise MemoryError("no more")


def _eat_in_a_child(job: StageContext, args: HowArgs) -> Any:
    subprocess.run([sys.executable, "-S", "-E", "-c", "x = bytearray(2 << 30)"], check=False)
    if args.value:
        time.sleep(60)
    return job.save(Number, 1)


def _device_memory(job: StageContext, args: HowArgs) -> Any:
    raise OutOfMemoryError("CUDA out of memory")


def _full_disk(job: StageContext, args: HowArgs) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/somewhere/file")


def _gone_file(job: StageContext, args: HowArgs) -> Any:
    return open("/nowhere/file")


def _wrong_file(job: StageContext, args: HowArgs) -> Any:
    (job.out / "other.txt").write_text("x")
    return job.save(Number, 1)


def _nothing_written(job: StageContext, args: HowArgs) -> Any:
    return job.made(Number)


def _wrong_thing(job: StageContext, args: HowArgs) -> Any:
    job.save(Number, 1)
    return 42


def _wrong_kind(job: StageContext, args: HowArgs) -> Any:
    return job.save(Words, "x")


def _nothing(job: StageContext, args: HowArgs) -> Any:
    job.save(Number, 1)


def _not_json(job: StageContext, args: HowArgs) -> Any:
    (job.out / "value.json").write_text("{")
    return job.made(Number)


def _socket(job: StageContext, args: HowArgs) -> Any:
    job.save(Number, 1)
    os.mkfifo(job.out / "pipe")
    return job.made(Number)


def _link_out(job: StageContext, args: HowArgs) -> Any:
    outside = job.out.parent.parent / "outside.json"
    outside.write_text("1")
    (job.out / "value.json").symlink_to(outside)
    return job.made(Number)


def _elsewhere(job: StageContext, args: HowArgs) -> Any:
    """Write beside the staging folder, then behave."""
    (job.out.parent / "beside.txt").write_text("x")
    return job.save(Number, args.value)


def _talk(job: StageContext, args: HowArgs) -> Any:
    for _ in range(2000):
        print("x" * 1000)
        sys.stderr.write("y" * 100 + "\n")
    job.log("the end")
    return job.save(Number, args.value)


def _many_steps(job: StageContext, args: HowArgs) -> Any:
    for step in range(20_000):
        job.step(step, of=20_000, loss=1.0 / (step + 1))
    return job.save(Number, args.value)


def _grandchild(job: StageContext, args: HowArgs) -> Any:
    child = subprocess.Popen(["sleep", "300"])
    note(args.ledger, f"grandchild {child.pid}")
    return job.save(Number, args.value)


def _daemon(job: StageContext, args: HowArgs) -> Any:
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    note(args.ledger, f"grandchild {child.pid}")
    return job.save(Number, args.value)


def _hang(job: StageContext, args: HowArgs) -> Any:
    try:
        note(args.ledger, f"hang {os.getpid()}")
        while True:
            time.sleep(0.005)
    finally:
        note(args.ledger, "cleaned up")


def _stubborn(job: StageContext, args: HowArgs) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(args.ledger, f"hang {os.getpid()}")
    while True:
        time.sleep(0.005)


def _catch_all(job: StageContext, args: HowArgs) -> Any:
    """Catch what was raised and go on, but ask now and then."""
    note(args.ledger, f"hang {os.getpid()}")
    while True:
        # As some libraries do.
        with suppress(Exception):
            time.sleep(0.005)
        job.check()


def _finish_late(job: StageContext, args: HowArgs) -> Any:
    """Take no notice of being asked, and finish."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(args.ledger, f"hang {os.getpid()}")
    deadline_s = time.monotonic() + 30
    while not os.path.exists(args.gate) and time.monotonic() < deadline_s:
        time.sleep(0.002)
    return job.save(Number, args.value)


def _diverge(job: StageContext, args: HowArgs) -> Any:
    job.step(1, loss=0.5)
    job.step(2, loss=float("nan"))
    return job.save(Number, args.value)


def _tell_odd_numbers(job: StageContext, args: HowArgs) -> Any:
    class Step:
        def __index__(self) -> int:
            return 3

    class Loss:
        def __float__(self) -> float:
            return 0.25

    job.step(Step(), of=Step(), loss=Loss())  # type: ignore[arg-type]
    return job.save(Number, args.value)


def _good(job: StageContext, args: HowArgs) -> Any:
    note(args.ledger, f"good {args.value}")
    return job.save(Number, args.value)


def _polite(job: StageContext, args: HowArgs) -> Any:
    note(args.ledger, f"hang {os.getpid()}")
    wait_for_file(args.gate or "/never", job)
    return job.save(Number, args.value)


WAYS: dict[str, Callable[[StageContext, HowArgs], Any]] = {
    name.removeprefix("_"): value for name, value in list(globals().items()) if name.startswith("_") and callable(value)
}


@stage("test/misbehave", diverges_on=("loss",))
def misbehave(job: StageContext, args: HowArgs) -> Number:
    """Go wrong in a process of its own."""
    result: Number = WAYS[args.how](job, args)
    return result


@stage("test/misbehave-here", inline=True, diverges_on=("loss",))
def misbehave_here(job: StageContext, args: HowArgs) -> Number:
    """Go wrong in the engine's own process."""
    result: Number = WAYS[args.how](job, args)
    return result


@stage("test/misbehave-aside", inline=True, timeout_s=ASIDE_S, diverges_on=("loss",))
def misbehave_aside(job: StageContext, args: HowArgs) -> Number:
    """Go wrong in the engine's own process, in a thread beside its loop."""
    result: Number = WAYS[args.how](job, args)
    return result


@stage("test/empty-item", inline=True)
def empty_item(job: StageContext) -> list[Folder]:
    (job.out / "000000").mkdir()
    return [Folder.at(str(job.out / "000000"))]


@stage("test/swapped", inline=True)
def swapped(job: StageContext) -> list[Number]:
    """Return items in another order than they were saved in."""
    return [job.save_item(Number, value) for value in range(3)][::-1]


@stage("test/short-list", inline=True)
def short_list(job: StageContext) -> list[Number]:
    return [job.save_item(Number, value) for value in range(3)][:2]


@stage("test/no-list", inline=True)
def no_list(job: StageContext) -> list[Number]:
    return job.save_item(Number, 1)  # type: ignore[return-value]


@stage("test/pass-through", inline=True)
def pass_through(job: StageContext, folder: Folder) -> Folder:
    """Give back what it was given, having written nothing."""
    return folder


@stage("test/a-folder", inline=True)
def a_folder(job: StageContext) -> Folder:
    (job.out / "a").mkdir()
    (job.out / "a" / "b.txt").write_text("b")
    return job.made(Folder)


@stage("test/vandal")
def vandal(job: StageContext, blob: Blob) -> Number:
    """Write into its input."""
    os.chmod(blob.path, 0o644)
    with open(blob.path, "r+") as file:
        file.write("[9]")
    return job.save(Number, 1)


@stage("test/small-vandal")
def small_vandal(job: StageContext, number: Number) -> Number:
    os.chmod(number.path, 0o644)
    Path(number.path).write_text("9")
    return job.save(Number, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EditArgs:
    path: InputPath = arg()


@stage("test/editor", inline=True)
def editor(job: StageContext, args: EditArgs) -> Words:
    """Change the file that it reads."""
    text = Path(args.path).read_text()
    Path(args.path).write_text(f"{text} and more")
    return job.save(Words, text)


def trying(how: str, policy: RetryPolicy) -> Stage:
    """A stage that fails in one way until its third attempt."""

    @stage(f"test/trying-{how}", inline=True, retry=policy)
    def made(job: StageContext, args: HowArgs) -> Number:
        note(args.ledger, f"{how} {job.attempt}")
        if job.attempt < 3:
            WAYS[how](job, args)
        return job.save(Number, args.value)

    return made


ALWAYS = RetryPolicy(attempts=3, backoff_s=0.01, on=RetryOn.ALL)
TRANSIENT = RetryPolicy(attempts=3, backoff_s=0.01)
MEMORY = RetryPolicy(attempts=3, backoff_s=0.01, on=RetryOn.OUT_OF_MEMORY)
