"""A cookbook for tests: stages that add, print, wait, fail, diverge, fail at first, and fan out.

`ledger` arguments name a file that gets one line per execution; they are no part of a key. A stage that waits does so
until the file `gate` exists, so that a test decides when it goes on.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from stoker.authoring import (
    Category,
    Cookbook,
    InputPath,
    JsonKind,
    Plan,
    PlanBuilder,
    RetryOn,
    RetryPolicy,
    StageContext,
    StageInputError,
    TextKind,
    TreeKind,
    arg,
    recipe,
    stage,
)


class Number(JsonKind):
    name = "toy/number"


class Words(TextKind):
    name = "toy/words"


class Page(TreeKind):
    name = "toy/page"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberArgs:
    value: int = arg(help="a number", ge=0, le=1000)
    ledger: str = arg("", help="a file that gets a line per execution", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileArgs:
    file: InputPath = arg(help="a file to read")


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitArgs:
    value: int = arg(help="a number", ge=0)
    gate: str = arg("", help="wait until this file exists; empty: do not wait", runtime=True)
    ledger: str = arg("", help="a file that gets a line per execution", runtime=True)
    stubborn: bool = arg(False, help="do not end when asked", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlakyArgs:
    ledger: str = arg(help="a file that gets a line per execution", runtime=True)


def _note(ledger: str, text: str) -> None:
    if ledger:
        with open(ledger, "a", encoding="utf-8") as file:
            file.write(f"{text} {os.getpid()}\n")


@stage("toy/number", inline=True)
def number(job: StageContext, args: NumberArgs) -> Number:
    """Give a number; prints where it must not."""
    print("a stage prints")
    os.write(1, b"and so does a library\n")
    _note(args.ledger, "number")
    job.log(f"the number is {args.value}")
    return job.save(Number, {"value": args.value})


@stage("toy/double")
def double(job: StageContext, number: Number) -> Number:
    """Give twice as much, in a process of its own."""
    print("doubling")
    for step in range(3):
        job.step(step + 1, of=3, loss=1.0 / (step + 1))
    return job.save(Number, {"value": 2 * number.load()["value"]})


@stage("toy/big")
def big(job: StageContext, number: Number) -> Words:
    """Give a text that is too long to be kept inline."""
    return job.save(Words, f"{number.load()['value']}\n" * 5000)


@stage("toy/read")
def read(job: StageContext, args: FileArgs) -> Words:
    """Read a file of the user's."""
    return job.save(Words, Path(args.file).read_text())


@stage("toy/wait")
def wait(job: StageContext, args: WaitArgs) -> Number:
    """Wait for the gate, saying so."""
    _wait(job, args)
    return job.save(Number, {"value": args.value})


@stage("toy/wait-inline", inline=True)
def wait_inline(job: StageContext, args: WaitArgs) -> Number:
    """Wait for the gate in the engine's own process, and listen to nobody."""
    _note(args.ledger, "wait")
    while args.gate and not os.path.exists(args.gate):
        time.sleep(0.02)
    return job.save(Number, {"value": args.value})


@stage("toy/fail")
def fail(job: StageContext, number: Number) -> Number:
    """Raise."""
    print("about to fail")
    message = f"no way with {number.load()['value']}"
    raise ValueError(message)


@stage("toy/refuse")
def refuse(job: StageContext, number: Number) -> Number:
    """Refuse what it was given."""
    raise StageInputError("the number is odd", hint="take an even one")


@stage("toy/diverge", diverges_on=("loss",))
def diverge(job: StageContext, number: Number) -> Number:
    """Run away."""
    job.step(1, of=2, loss=1.0)
    job.step(2, of=2, loss=float("nan"))
    return job.save(Number, {"value": 0})


@stage("toy/flaky", retry=RetryPolicy(attempts=3, backoff_s=0.01, on=RetryOn.ALL))
def flaky(job: StageContext, args: FlakyArgs) -> Number:
    """Fail the first time."""
    _note(args.ledger, "flaky")
    if len(Path(args.ledger).read_text().splitlines()) < 2:
        message = "not in the mood"
        raise OSError(message)
    return job.save(Number, {"value": 7})


@stage("toy/pieces")
def pieces(job: StageContext, number: Number) -> list[Number]:
    """Give three numbers."""
    return [job.save_item(Number, {"value": number.load()["value"] + extra}) for extra in range(3)]


@stage("toy/page")
def page(job: StageContext, numbers: list[Number]) -> Page:
    """Write a page with a summary, as reports do."""
    values = [one.load()["value"] for one in numbers]
    (job.out / "page.txt").write_text(f"{values}\n")
    summary = {
        "headline": f"the sum is {sum(values)}",
        "table": {"columns": ["number", "value"], "rows": [[str(i), value] for i, value in enumerate(values)]},
        "next": ["stoker run toy/sum value=4"],
    }
    (job.out / "summary.json").write_text(repr(summary).replace("'", '"'))
    return job.made(Page)


def _wait(job: StageContext, args: WaitArgs) -> None:
    import signal

    if args.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _note(args.ledger, "wait")
    print("waiting")
    step = 0
    while args.gate and not os.path.exists(args.gate):
        step += 1
        job.step(step, of=None, patience=1.0 / step)
        time.sleep(0.02)


@recipe("toy/sum", version=1, category=Category.TRAIN, output=Page, summary="add a number and its double")
def add(args: NumberArgs) -> Plan:
    start = PlanBuilder("sum").start(number, args)
    doubled = start.then(double)
    return doubled.then(page, numbers=[start]).finish(keep=(start,))


@recipe("toy/copy", version=1, category=Category.DATA_PREP, output=Words, summary="copy a file")
def copy(args: FileArgs) -> Plan:
    return PlanBuilder("copy").start(read, args).finish()


@recipe("toy/text", version=1, category=Category.TRAIN, output=Words, summary="a long text")
def text(args: NumberArgs) -> Plan:
    return PlanBuilder("text").start(number, args).then(big).finish()


@recipe("toy/slow", version=1, category=Category.TRAIN, output=Number, summary="wait for a file")
def slow(args: WaitArgs) -> Plan:
    return PlanBuilder("slow").start(wait, args).then(double).finish()


@recipe("toy/slow-inline", version=1, category=Category.TRAIN, output=Number, summary="wait for a file, in the engine")
def slow_inline(args: WaitArgs) -> Plan:
    return PlanBuilder("slow-inline").start(wait_inline, args).finish()


@recipe("toy/fail", version=1, category=Category.TRAIN, output=Number, summary="one branch fails, one does not")
def failing(args: NumberArgs) -> Plan:
    start = PlanBuilder("fail").start(number, args)
    return start.then(fail).then(double, id="after").finish(keep=(start.then(double, id="beside"),))


@recipe("toy/refuse", version=1, category=Category.TRAIN, output=Number, summary="a stage refuses its input")
def refusing(args: NumberArgs) -> Plan:
    return PlanBuilder("refuse").start(number, args).then(refuse).finish()


@recipe("toy/diverge", version=1, category=Category.TRAIN, output=Number, summary="a loss that is not a number")
def diverging(args: NumberArgs) -> Plan:
    return PlanBuilder("diverge").start(number, args).then(diverge).finish()


@recipe("toy/flaky", version=1, category=Category.TRAIN, output=Number, summary="succeeds the second time")
def flaking(args: FlakyArgs) -> Plan:
    return PlanBuilder("flaky").start(flaky, args).finish()


@recipe("toy/fan", version=1, category=Category.TRAIN, output=Page, summary="three of a kind")
def fan(args: NumberArgs) -> Plan:
    return PlanBuilder("fan").start(number, args).then(pieces).each(double).merge(page).finish()


COOKBOOK = Cookbook(
    name="toy",
    summary="for tests",
    recipes=(add, copy, text, slow, slow_inline, failing, refusing, diverging, flaking, fan),
    stages=(number, double, big, read, wait, wait_inline, fail, refuse, diverge, flaky, pieces, page),
    kinds=(Number, Words, Page),
    prefill={"toy/sum": {"value": 3}},
)
