"""Stoker's side of the benchmarks: the same trivial work as the peers', as stages, recipes and plans.

`bench/fan` is many independent stages with one number each, `bench/chain` as many in a row. Stages are inline, as the
peers' are; `forked_square` does the same in a child process. Executions are counted in this process, outside of what
is cached.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from stoker.authoring import Category, Cookbook, JsonKind, Plan, PlanBuilder, StageContext, arg, recipe, stage

executions: list[int] = []
"""The numbers of the inline stages that really ran in this process."""


class Value(JsonKind):
    """A small JSON object."""

    name = "bench-value"
    version = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexArgs:
    """What one stage is asked."""

    index: int = arg(help="the number to work on", ge=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceArgs:
    """What the stage that everyone wants is asked; where and how long is no part of its key."""

    index: int = arg(help="the number to square")
    ledger: str = arg(help="file that gets one byte per execution", runtime=True)
    stage_s: float = arg(0.5, help="how long the stage takes", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountArgs:
    """What a recipe is asked."""

    count: int = arg(1000, help="how many stages", ge=1, le=1_000_000)


@stage("bench/square", version=1, inline=True)
def square(job: StageContext, args: IndexArgs) -> Value:
    """Depend on one number only."""
    executions.append(args.index)
    return job.save(Value, {"index": args.index, "value": args.index * args.index})


@stage("bench/follow", version=1, inline=True)
def follow(job: StageContext, before: Value, args: IndexArgs) -> Value:
    """Read what the stage before has made, too."""
    executions.append(args.index)
    return job.save(Value, {"index": args.index, "value": before.load()["value"] + args.index})


@stage("bench/first", version=1, inline=True)
def first(job: StageContext) -> Value:
    """Begin a chain; it stands for index 0, whose sum is 0."""
    executions.append(0)
    return job.save(Value, {"index": 0, "value": 0})


@stage("bench/forked-square", version=1)
def forked_square(job: StageContext, args: IndexArgs) -> Value:
    """Do the same as `square`, in a child process."""
    return job.save(Value, {"index": args.index, "value": args.index * args.index})


@stage("bench/slow-square", version=1, inline=True)
def slow_square(job: StageContext, args: RaceArgs) -> Value:
    """Leave a mark, take a while, answer."""
    ledger = os.open(args.ledger, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(ledger, b".")
    os.close(ledger)
    time.sleep(args.stage_s)
    return job.save(Value, {"value": args.index * args.index})


@recipe("bench/fan", version=1, category=Category.USER, output=Value, summary="many independent trivial stages")
def fan(args: CountArgs) -> Plan:
    """Build `count` stages that know nothing of each other."""
    return _fan(args.count, forked=False)


@recipe("bench/forked-fan", version=1, category=Category.USER, output=Value, summary="the fan, a process per stage")
def forked_fan(args: CountArgs) -> Plan:
    """Build the fan of stages that run in child processes."""
    return _fan(args.count, forked=True)


@recipe("bench/chain", version=1, category=Category.USER, output=Value, summary="trivial stages in a row")
def chain(args: CountArgs) -> Plan:
    """Build `count` stages, each reading what the one before has made."""
    tip = PlanBuilder("chain").start(first)
    for index in range(1, args.count):
        tip = tip.then(follow, IndexArgs(index=index))
    return tip.finish()


@recipe("bench/race", version=1, category=Category.USER, output=Value, summary="one stage that everyone wants")
def race(args: RaceArgs) -> Plan:
    """Build the one stage."""
    return PlanBuilder("race").start(slow_square, args).finish()


def _fan(count: int, *, forked: bool) -> Plan:
    builder = PlanBuilder("fan")
    for index in range(count):
        builder.start(forked_square if forked else square, IndexArgs(index=index))
    return builder.finish()


COOKBOOK = Cookbook(
    name="bench",
    summary="trivial stages for benchmarks",
    recipes=(fan, forked_fan, chain, race),
    stages=(square, follow, first, forked_square, slow_square),
    kinds=(Value,),
)
