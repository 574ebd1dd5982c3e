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
    InputPath,
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
    from stoker.crossval.bench import BenchSubject, ReadEnergy
    from stoker.crossval.gate_run import GatePlace
    from stoker.crossval.gate_sides import GateSide, ModelSide
    from stoker.crossval.model_subject import ModelSubject


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

    baseline: str = arg(help="what it was: a command line, a model, a benchmark result, numbers, documents, or a plan")
    candidate: str = arg(help="what it is now")
    limits: tuple[str, ...] = arg((), help="limits such as latency=3%, p95=20%, throughput=off")
    pairs: int = arg(200, help="maximum number of pairs", ge=1, le=100_000)
    batch: int = arg(10, help="pairs between two looks at the result", ge=1, le=100_000)
    texts: str = arg("", help="file of documents for the perplexity of models")
    runtime: str = arg("", help="runtime of models; empty: by their form")
    candidate_runtime: str = arg("", help="another one for the candidate, such as torch,precision=bf16")
    warmup: int = arg(1, help="pairs before them that are not measured", ge=0, le=1000)
    confidence: float = arg(0.98, help="confidence of intervals", ge=0.5, le=0.9999)
    timeout_s: float | None = arg(None, help="of programs: time limit of one run", gt=0)
    fails: bool = arg(default=True, help="fail on a regression and where there is no answer")
    folder: str = arg(".", help="folder of relative paths and of the programs", runtime=True)
    report: str = arg("stoker-out/gate/report.json", help="report file: .json, .xml or .md", runtime=True)
    interpreter: str = arg("", help="Python that has the libraries of the models' runtimes", runtime=True)
    gpus: int = arg(0, help="number of GPUs", ge=0, le=1024, runtime=True)


@stage("crossval/gate", cached=False, deterministic=False)
def gate_stage(job: StageContext, args: GateArgs) -> GateReport:
    """Run a gate; its report is the result."""
    from stoker.core.frozen import changed
    from stoker.crossval.gate import raise_verdict
    from stoker.crossval.gate_rule import GateRule
    from stoker.crossval.gate_run import GateRequest, run_gate
    from stoker.crossval.gate_sides import JobSide, ProgramSide, read_side
    from stoker.crossval.measures import parse_limit

    folder = os.path.abspath(args.folder)
    runtimes = {"baseline": args.runtime, "candidate": args.candidate_runtime or args.runtime}

    def opened(side: ModelSide, name: str) -> ModelSubject:
        return _model(side.path, side.runtime or runtimes[name], folder, args.interpreter)

    place = changed(_place(job), open_model=opened)
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
        texts=os.path.join(folder, args.texts) if args.texts else "",
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
    """A program or a model to measure."""

    program: str = arg("", help="the command line of a program")
    model: InputPath | None = arg(None, help="file or folder of a model; null: a program, or a server as the runtime")
    runtime: str = arg("", help="runtime of the model: torch, llama.cpp, onnx, an address; empty: by its form")
    prompt: int = arg(128, help="of a model: tokens of the prompt", ge=1, le=1 << 20)
    decode: int = arg(32, help="of a model: tokens after it, one at a time", ge=1, le=1 << 20)
    strict: bool = arg(default=False, help="of a model: fail if it did not run as requested")
    runs: int = arg(20, help="measured runs", ge=1, le=100_000)
    warmup: int = arg(1, help="runs before them that are not measured", ge=0, le=1000)
    measures: tuple[str, ...] = arg((), help="of a program: also read these measures from its output")
    timeout_s: float | None = arg(None, help="of a program: time limit of one run", gt=0)
    folder: str = arg(".", help="the program's working folder", runtime=True)
    interpreter: str = arg("", help="Python that has the libraries of the runtime", runtime=True)
    gpus: int = arg(0, help="number of GPUs", ge=0, le=1024, runtime=True)


@stage("crossval/bench", cached=False, deterministic=False)
def bench_stage(job: StageContext, args: BenchArgs) -> BenchReport:
    """Measure a program or a model run by run."""
    from contextlib import ExitStack

    from stoker.crossval.bench import Bench, EnergyMeter

    place = _place(job)
    with ExitStack() as opened:
        energy = EnergyMeter(job.devices, place.environment)
        opened.callback(energy.close)
        subject = _bench_subject(args, place, energy)
        opened.callback(subject.close)
        measured = Bench(subject, place.clock, machine=place.machine, versions=place.versions)
        for count in measured.steps(args.runs, warmup=args.warmup):
            job.step(count, of=args.runs)
        result = measured.result()
    job.step(args.runs, of=args.runs, **{one.name: one.median for one in result.summaries()})
    return job.save(BenchReport, result.to_json())


def _bench_subject(args: BenchArgs, place: GatePlace, energy: ReadEnergy) -> BenchSubject:
    from stoker.crossval.bench import ProgramSubject
    from stoker.crossval.timed_run import TimedProgram

    words, folder = tuple(shlex.split(args.program)), os.path.abspath(args.folder)
    model = args.model or (args.runtime if "://" in args.runtime else "")
    if bool(words) == bool(model):
        raise StageInputError("either a program or a model is measured", hint='program="python once.py", or model=PATH')
    if model and (args.measures or args.timeout_s is not None):
        raise StageInputError("measures and timeout_s are of a program", hint="leave them out for a model")
    if words and (args.runtime or args.strict):
        raise StageInputError("runtime and strict are of a model", hint="leave them out for a program")
    if model:
        load = {"prompt_tokens": args.prompt, "decoded_tokens": args.decode}
        return _model(model, args.runtime, folder, args.interpreter, energy=energy, is_strict=args.strict, **load)
    program = TimedProgram(argv=words, folder=folder, environment=place.environment, timeout_s=args.timeout_s)
    return ProgramSubject(program, place.clock, names=args.measures, energy=energy)


@recipe("crossval/bench", version=1, category=Category.EVAL, output=BenchReport)
def bench(args: BenchArgs) -> Plan:
    """Measure a program or a model: see `stoker help bench`."""
    needs = Needs(cpu=1, gpu=args.gpus)
    return PlanBuilder("bench").start(bench_stage, args, id="bench", needs=needs).finish()


def _model(
    path: str,
    runtime: str,
    folder: str,
    interpreter: str,
    *,
    energy: ReadEnergy = dict,
    is_strict: bool = False,
    **load: int,
) -> ModelSubject:
    from stoker.core.clock import SystemClock
    from stoker.crossval.gate_run import digest_of
    from stoker.crossval.model_subject import ModelLoad, open_model
    from stoker.crossval.runtimes import RuntimePlaces

    # A stage runs in a process that has the variables of its run.
    places = RuntimePlaces(environment=dict(os.environ), folder=folder, reference=interpreter)  # noqa: TID251
    with_python = interpreter and runtime and "python=" not in runtime
    return open_model(
        path,
        f"{runtime},python={interpreter}" if with_python else runtime,
        places,
        SystemClock(),
        digest_of=digest_of,
        energy=energy,
        load=ModelLoad(**load),
        is_strict=is_strict,
    )


def _place(job: StageContext) -> GatePlace:
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
        machine=machine_facts(host_name(environment)[0], [{"uuid": one} for one in job.devices], usable_cores()),
        versions={"stoker": __version__, "python": platform.python_version()},
    )
