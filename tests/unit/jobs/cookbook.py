"""A cookbook for the tests of `worker`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stoker.authoring import (
    Category,
    Cookbook,
    Diagnostic,
    InputPath,
    InvalidArgs,
    Plan,
    PlanBuilder,
    SharedBase,
    StageContext,
    arg,
    recipe,
    stage,
)
from tests.unit.engine.misbehaving import HowArgs, misbehave, misbehave_aside, misbehave_here
from tests.unit.engine.stages import (
    Blob,
    CountArgs,
    FileArgs,
    Number,
    NumberArgs,
    Words,
    add,
    blob,
    blob_sum,
    count,
    double,
    number,
    read,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumArgs:
    values: tuple[int, ...] = arg((1, 2), help="what is added up", ge=0)
    plus: int = arg(0)
    ledger: str = arg("", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadArgs:
    data: InputPath = arg(help="the file to read")
    more: list[InputPath] = arg([])
    maybe: InputPath | None = arg(None)
    title: str = arg("", help="a text that is no path")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleArgs:
    factor: int = arg(1)
    ledger: str = arg("", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchArgs:
    base: int = arg(3, ge=0)
    factor: int = arg(1, ge=0)
    ledger: str = arg("", runtime=True)


@recipe("test/sum", output=Number, version=3, category=Category.EVAL)
def total(args: SumArgs) -> Plan:
    """Add numbers up."""
    if 13 in args.values:
        fault = Diagnostic("test/sum.values", "thirteen is not added up")
        raise InvalidArgs(str(fault), faults=(fault,))
    builder = PlanBuilder("sum")
    tips = [builder.start(number, NumberArgs(value=value, ledger=args.ledger)) for value in args.values]
    last = NumberArgs(value=args.plus, ledger=args.ledger)
    return builder.add(add, last, feeds=[(None, tip) for tip in tips]).finish(keep=tuple(tips[:1]))


@recipe("test/read", output=Words)
def reading(args: ReadArgs) -> Plan:
    return PlanBuilder("read").start(read, FileArgs(path=args.data)).finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedArgs:
    base: str = arg(__file__, help="the file or folder that all share")
    base_name: str = arg("", runtime=True)
    rank: int = arg(8)
    gpus: int | None = arg(None, runtime=True)
    checkpoints: str | None = arg(None, runtime=True)


def shared_by_tuned(args: TunedArgs, digest_of: Callable[[str], str]) -> SharedBase | None:
    """Rank 1 shares nothing."""
    if args.rank == 1:
        return None
    gib = 1024**3
    return SharedBase(
        share_key=digest_of(args.base)[-8:],
        base_bytes=4 * gib,
        member_bytes=args.rank * gib // 8,
        base_ram_bytes=2 * gib,
        member_ram_bytes=gib // 2,
    )


@recipe("test/tuned", output=Words, shares=shared_by_tuned, brings={"base": "config.json"})
def tuned(args: TunedArgs) -> Plan:
    """Read what others read, too."""
    if args.rank > 1000:
        fault = Diagnostic("test/tuned.rank", "more than a thousand")
        raise InvalidArgs(str(fault), faults=(fault,))
    return PlanBuilder("tuned").start(read, FileArgs(path=InputPath(args.base))).finish()


@recipe("test/fan", output=Number)
def fan() -> Plan:
    return PlanBuilder("fan").start(count, CountArgs(n=3)).each(double).finish()


@recipe("test/blobs", output=Number)
def blobs() -> Plan:
    start = PlanBuilder("blobs").start(blob, NumberArgs(value=2))
    return start.then(blob_sum, NumberArgs(value=1)).finish(keep=(start,))


@recipe("test/go", output=Number)
def go(args: HowArgs) -> Plan:
    return PlanBuilder("go").start(misbehave_here, args).then(double).finish()


@stage("test/scale", inline=True)
def scale(job: StageContext, number: Number, args: ScaleArgs) -> Number:
    """Return a multiple; thirteen times is refused."""
    if args.ledger:
        with open(args.ledger, "a", encoding="utf-8") as file:
            file.write(f"scale {args.factor}\n")
    job.step(1, of=1, loss=1.0 / (1 + args.factor))
    if args.factor == 13:
        message = "thirteen times is too much"
        raise ValueError(message)
    return job.save(Number, number.load() * args.factor)


@recipe("test/branches", output=Number)
def branches(args: BranchArgs) -> Plan:
    """Two stages that do not depend on the factor, one that does."""
    start = PlanBuilder("branches").start(number, NumberArgs(value=args.base, ledger=args.ledger))
    doubled = start.then(double)
    return doubled.then(scale, ScaleArgs(factor=args.factor, ledger=args.ledger)).finish(keep=(doubled,))


@recipe("test/liar", output=Blob)
def liar() -> Plan:
    """Promise another kind than it gives."""
    return PlanBuilder("liar").start(number).finish()


@recipe("test/crooked", output=Number)
def crooked() -> Plan:
    return PlanBuilder("crooked").start(double).finish()


COOKBOOK = Cookbook(
    name="test",
    recipes=(total, reading, tuned, fan, blobs, go, branches, liar, crooked),
    stages=(number, add, double, scale, count, read, blob, blob_sum, misbehave, misbehave_here, misbehave_aside),
)
