"""A gate and a benchmark as stages of a plan.

Neither is ever cached: what it measures is the machine as well. A gate that finds a regression, or can't decide, fails
its stage with the exit code of `stoker gate`, so that nothing behind it runs; its report is written all the same.
"""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stoker.authoring import (
    Category,
    JsonKind,
    Needs,
    Plan,
    PlanBuilder,
    StageContext,
    StageInputError,
    arg,
    recipe,
    stage,
)

if TYPE_CHECKING:
    from stoker.crossval.gate_run import GatePlace
    from stoker.crossval.gate_sides import GateSide


class GateReport(JsonKind):
    """The report of a gate."""

    name = "crossval/gate-report"
    file = "report.json"


class BenchReport(JsonKind):
    """The result of a benchmark."""

    name = "crossval/bench-result"
    file = "result.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateArgs:
    """Two sides and their limits."""

    baseline: str = arg(help="what it was: a command line, a benchmark result, scored documents, or a plan")
    candidate: str = arg(help="what it is now")
    limits: tuple[str, ...] = arg((), help="limits such as latency=3%, p95=20%, throughput=off")
    pairs: int = arg(200, help="maximum number of pairs", ge=1, le=100_000)
    batch: int = arg(25, help="pairs between two looks at the result", ge=1, le=100_000)
    warmup: int = arg(1, help="pairs before them that are not measured", ge=0, le=1000)
    confidence: float = arg(0.98, help="confidence of intervals", ge=0.5, le=0.9999)
    timeout_s: float | None = arg(None, help="time limit of one run", gt=0)
    fails: bool = arg(default=True, help="fail on a regression and where there is no answer")
    folder: str = arg(".", help="folder of relative paths and of the programs", runtime=True)
    report: str = arg("stoker-out/gate/report.json", help="report file: .json, .xml or .md", runtime=True)
    gpus: int = arg(0, help="number of GPUs for the programs", ge=0, le=1024, runtime=True)


@stage("crossval/gate", cached=False, deterministic=False)
def gate_stage(job: StageContext, args: GateArgs) -> GateReport:
    """Run a gate; its report is the result."""
    from stoker.crossval.gate import raise_verdict
    from stoker.crossval.gate_rule import GateRule
    from stoker.crossval.gate_run import GateRequest, run_gate
    from stoker.crossval.gate_sides import JobSide, ProgramSide, read_side
    from stoker.crossval.measures import parse_limit

    place = _place()
    folder = os.path.abspath(args.folder)
    rule = GateRule(confidence=args.confidence, batch=args.batch, most_pairs=args.pairs)
    try:
        limits = tuple(map(parse_limit, args.limits))
    except ValueError as error:
        raise StageInputError(f"limits: {error}", hint="limits=[latency=5%]") from None

    def sides() -> list[GateSide]:
        found = [
            read_side(text, folder=folder, search=place.environment.get("PATH"))
            for text in (args.baseline, args.candidate)
        ]
        # A plan knows no other jobs: one word is a program.
        return [ProgramSide(argv=(one.name,), folder=folder) if isinstance(one, JobSide) else one for one in found]

    def follow(steps: Iterator[int]) -> Iterator[int]:
        for count in steps:
            job.step(count, of=args.pairs)
            yield count

    path = os.path.join(folder, args.report)
    request = GateRequest(
        baseline=args.baseline,
        candidate=args.candidate,
        limits=limits,
        rule=rule,
        warmup=args.warmup,
        timeout_s=args.timeout_s,
        reports=(path,),
    )
    result, report = run_gate(request, sides, place, follow)
    for one in result.verdicts:
        job.log(f"{one.limit.metric}: {one.outcome}: {one.reason}")
    if args.fails:
        raise_verdict(result, [path])
    return job.save(GateReport, report.to_json())


@recipe("crossval/gate", version=1, category=Category.GATE, output=GateReport)
def gate(args: GateArgs) -> Plan:
    """Decide whether a candidate is worse than a baseline: see `stoker help gate`."""
    needs = Needs(cpu=1, gpu=args.gpus)
    return PlanBuilder("gate").start(gate_stage, args, id="gate", needs=needs).finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArgs:
    """A program to measure."""

    program: str = arg(help="its command line")
    runs: int = arg(20, help="measured runs", ge=1, le=100_000)
    warmup: int = arg(1, help="runs before them that are not measured", ge=0, le=1000)
    measures: tuple[str, ...] = arg((), help="also read these measures from its output")
    timeout_s: float | None = arg(None, help="time limit of one run", gt=0)
    folder: str = arg(".", help="its working folder", runtime=True)
    gpus: int = arg(0, help="number of GPUs for it", ge=0, le=1024, runtime=True)


@stage("crossval/bench", cached=False, deterministic=False)
def bench_stage(job: StageContext, args: BenchArgs) -> BenchReport:
    """Measure a program run by run."""
    from stoker.crossval.bench import Bench, ProgramSubject
    from stoker.crossval.timed_run import TimedProgram

    place = _place()
    words = tuple(shlex.split(args.program))
    if not words:
        raise StageInputError("program is empty", hint='program="python serve_once.py"')
    program = TimedProgram(
        argv=words, folder=os.path.abspath(args.folder), environment=place.environment, timeout_s=args.timeout_s
    )
    subject = ProgramSubject(program, place.clock, names=args.measures)
    measured = Bench(subject, place.clock, machine=place.machine, versions=place.versions)
    for count in measured.steps(args.runs, warmup=args.warmup):
        job.step(count, of=args.runs)
    result = measured.result()
    job.step(args.runs, of=args.runs, **{one.name: one.median for one in result.summaries()})
    return job.save(BenchReport, result.to_json())


@recipe("crossval/bench", version=1, category=Category.EVAL, output=BenchReport)
def bench(args: BenchArgs) -> Plan:
    """Measure a program: see `stoker help bench`."""
    needs = Needs(cpu=1, gpu=args.gpus)
    return PlanBuilder("bench").start(bench_stage, args, id="bench", needs=needs).finish()


def _place() -> GatePlace:
    from stoker import __version__
    from stoker.core.clock import SystemClock
    from stoker.crossval.bench import machine_facts
    from stoker.crossval.gate_run import GatePlace
    from stoker.devices.this_machine import host_name
    from stoker.host.resources import usable_cores

    # A stage runs in a process that has the variables of its run.
    environment = dict(os.environ)  # noqa: TID251 - nothing passes them to stages
    return GatePlace(
        clock=SystemClock(),
        environment=environment,
        machine=machine_facts(host_name(environment)[0], (), usable_cores()),
        versions={"stoker": __version__, "python": platform.python_version()},
    )
