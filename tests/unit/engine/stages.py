"""Stages for the tests of `plan`: small, honest ones here; those that misbehave are in `misbehaving`.

`ledger` is a file that gets one line per execution, whichever process that happens in; it is no part of a key.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from stoker.authoring import (
    InputPath,
    JsonKind,
    Needs,
    RetryOn,
    RetryPolicy,
    StageContext,
    TextKind,
    TreeKind,
    arg,
    stage,
)

# A limit that no stage comes near to.
ASIDE_S = 60.0


class Number(JsonKind):
    name = "test-number"


class Words(TextKind):
    name = "test-words"


class Folder(TreeKind):
    name = "test-folder"


class Blob(JsonKind):
    """Large enough to lie in a blob of its own."""

    name = "test-blob"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberArgs:
    value: int = arg(0)
    ledger: str = arg("", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountArgs:
    n: int = arg(3, ge=0)
    ledger: str = arg("", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileArgs:
    path: InputPath = arg()
    ledger: str = arg("", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceArgs:
    value: int = arg(0)
    gate: str = arg("", help="a file to wait for", runtime=True)
    ledger: str = arg("", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    width: int = arg(1, ge=1)
    file: InputPath | None = arg(None)
    ledger: str = arg("", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedArgs:
    shape: Shape = arg(Shape(width=2))
    value: int = arg(0)


def note(ledger: str, line: str) -> None:
    """Write one line, whole, also beside other processes."""
    if ledger:
        descriptor = os.open(ledger, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)


def wait_for_file(path: str, job: StageContext) -> None:
    deadline_s = time.monotonic() + 30
    while path and not os.path.exists(path):
        assert time.monotonic() < deadline_s, f"{path} never came"
        job.check()
        time.sleep(0.002)


@stage("test/number", inline=True)
def number(job: StageContext, args: NumberArgs) -> Number:
    """Return a number."""
    note(args.ledger, f"number {args.value}")
    return job.save(Number, args.value)


@stage("test/process-shaped")
def process_shaped(job: StageContext, args: ShapedArgs) -> Number:
    """Multiply, by a number that stands in a record."""
    note(args.shape.ledger, f"shaped {args.shape.width}")
    return job.save(Number, args.value * args.shape.width)


@stage("test/add", inline=True)
def add(job: StageContext, numbers: list[Number], args: NumberArgs) -> Number:
    """Add numbers up, and one more."""
    note(args.ledger, f"add {args.value}")
    return job.save(Number, args.value + sum(one.load() for one in numbers))


@stage("test/double", inline=True)
def double(job: StageContext, number: Number, args: NumberArgs) -> Number:
    note(args.ledger, f"double {args.value}")
    return job.save(Number, 2 * number.load())


@stage("test/parity", inline=True)
def parity(job: StageContext, number: Number, args: NumberArgs) -> Number:
    """Forget most of a number: different inputs, equal outputs."""
    note(args.ledger, "parity")
    return job.save(Number, number.load() % 2)


@stage("test/count", inline=True)
def count(job: StageContext, args: CountArgs) -> list[Number]:
    """Return a list of numbers."""
    note(args.ledger, f"count {args.n}")
    return [job.save_item(Number, item) for item in range(args.n)]


@stage("test/pair", inline=True)
def pair(job: StageContext, left: Number, right: Number) -> Number:
    return job.save(Number, [left.load(), right.load()])


@stage("test/volatile", inline=True, cached=False)
def volatile(job: StageContext, args: NumberArgs) -> Number:
    """Never skipped."""
    note(args.ledger, "volatile")
    return job.save(Number, args.value)


@stage("test/unstable", inline=True, deterministic=False)
def unstable(job: StageContext, args: FileArgs) -> Number:
    """Return how often it ran: another answer each time."""
    note(args.ledger, "unstable")
    return job.save(Number, len(Path(args.ledger).read_text().splitlines()))


@stage("test/blob", inline=True)
def blob(job: StageContext, args: NumberArgs) -> Blob:
    note(args.ledger, f"blob {args.value}")
    return job.save(Blob, [args.value] * 4000)


@stage("test/blob-sum", inline=True)
def blob_sum(job: StageContext, blob: Blob, args: NumberArgs) -> Number:
    note(args.ledger, f"blob-sum {args.value}")
    return job.save(Number, args.value + sum(blob.load()))


@stage("test/read", inline=True)
def read(job: StageContext, args: FileArgs) -> Words:
    note(args.ledger, "read")
    return job.save(Words, Path(args.path).read_text())


@stage("test/slow", inline=True, timeout_s=ASIDE_S)
def slow(job: StageContext, args: PaceArgs) -> Number:
    """Wait for a file, politely."""
    note(args.ledger, f"slow {args.value}")
    wait_for_file(args.gate, job)
    return job.save(Number, args.value)


@stage("test/process-number")
def process_number(job: StageContext, args: NumberArgs) -> Number:
    """Return a number, in a process of its own."""
    note(args.ledger, f"{os.getpid()}")
    job.step(1, of=1, value=float(args.value))
    return job.save(Number, args.value)


@stage("test/process-sum")
def process_sum(job: StageContext, numbers: list[Number], args: NumberArgs) -> Number:
    note(args.ledger, f"{os.getpid()}")
    return job.save(Number, args.value + sum(one.load() for one in numbers))


@stage("test/process-slow")
def process_slow(job: StageContext, args: PaceArgs) -> Number:
    note(args.ledger, f"{os.getpid()}")
    wait_for_file(args.gate, job)
    return job.save(Number, args.value)


@stage("test/process-read")
def process_read(job: StageContext, blob: Blob, args: NumberArgs) -> Number:
    note(args.ledger, f"{os.getpid()}")
    return job.save(Number, args.value + sum(blob.load()))


class Concurrency:
    """How many run at once, and the most that ever did."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.order: list[int] = []
        self.now = 0
        self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


concurrency = Concurrency()


@stage("test/counted", inline=True, needs=Needs(cpu=0), timeout_s=ASIDE_S)
def counted(job: StageContext, args: PaceArgs) -> Number:
    """Take part in a count of what runs at once."""
    concurrency.order.append(args.value)
    with concurrency:
        wait_for_file(args.gate, job)
    return job.save(Number, args.value)


@stage("test/gpu", inline=True, needs=Needs(cpu=0, gpu=1), timeout_s=ASIDE_S)
def on_gpu(job: StageContext, args: PaceArgs) -> Words:
    """Return which device it was given."""
    note(args.ledger, f"{args.value} {','.join(job.devices)}")
    wait_for_file(args.gate, job)
    return job.save(Words, ",".join(job.devices))


@stage("test/greedy", inline=True, needs=Needs(cpu=1, memory_gib=1000.0), timeout_s=ASIDE_S)
def greedy(job: StageContext, args: PaceArgs) -> Number:
    with concurrency:
        return job.save(Number, args.value)


@stage("test/flaky", inline=True, retry=RetryPolicy(attempts=3, backoff_s=0.01, on=RetryOn.ALL))
def flaky(job: StageContext, args: NumberArgs) -> Number:
    """Fail until it has been tried `value` times."""
    note(args.ledger, f"flaky {job.attempt}")
    if job.attempt < args.value:
        message = f"not yet, at attempt {job.attempt}"
        raise RuntimeError(message)
    return job.save(Number, args.value)
