"""`stoker gate`: is a candidate worse than its baseline? Exit code 17 if it is, 18 if the noise allows no answer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.cli.bench import machine_here, open_model, versions_here
from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, duration, whole
from stoker.cli.screens import busy_between
from stoker.core.errors import (
    GateUndecided,
    NoCoordinator,
    NotFound,
    NotVerified,
    Regression,
    StageTimeout,
    Usage,
    WorkFailed,
)
from stoker.core.text import counted
from stoker.views.text_tables import near_path

if TYPE_CHECKING:
    from stoker.crossval.gate import GateResult
    from stoker.crossval.gate_sides import GateSide
    from stoker.crossval.measures import LimitRequest
    from stoker.crossval.stored_sides import StoredSide

_FORMATS = ("human", "json", "junit", "markdown")
_REPORT = "stoker-out/gate/report.json"


def _limit(text: str) -> LimitRequest:
    from stoker.crossval.measures import parse_limit

    return parse_limit(text)


def _share(text: str) -> float:
    return float(text)


def _format(text: str) -> str:
    if text not in _FORMATS:
        message = f"{text!r} is not one of {', '.join(_FORMATS)}"
        raise ValueError(message)
    return text


GRAMMAR = Grammar(
    "gate",
    about=(
        "Decide whether a candidate is worse than a baseline. Two programs, two models, or one program in two folders "
        "run in turn, pair by pair, until the interval of each metric is on one side of its boundary: half the limit "
        "for times and throughputs, the limit for perplexities. Of two benchmark results, two jobs or two files of "
        "scored documents there are only numbers: perplexities are decided (over documents by a paired bootstrap), "
        "times only where no drift of the machine explains the change. A benchmark result beside something that can be "
        "run is run again, if its program or model is unchanged. Limits: perplexity +2 %, latency +5 %, "
        "throughput −5 %; p95 and other metrics with --limit. A report is written in any case, also after a failure "
        "or Ctrl-C."
    ),
    options=(
        Option("--baseline", value="SIDE", help="what it was: a command line, a file, a job; a folder with -- PROGRAM"),
        Option("--candidate", value="SIDE", help="what it is now"),
        Option(
            "--limit",
            value="NAME=CHANGE",
            read=_limit,
            is_many=True,
            help="latency=3%, p95=20%, throughput=off, accuracy=-1%; repeat it",
        ),
        Option(
            "--texts", value="FILE", help="documents for the perplexity of models: .jsonl with `text`, or paragraphs"
        ),
        Option("--runtime", value="RUNTIME", help="runtime of models: torch, llama.cpp, onnx (default: by their form)"),
        Option("--candidate-runtime", value="RUNTIME", help="another one for the candidate: torch,precision=bf16"),
        Option("--rerun", help="run the programs or models of two benchmark results again, if they are unchanged"),
        Option("--pairs", value="N", read=whole(1), help="maximum number of pairs (default: 200)"),
        Option("--batch", value="N", read=whole(1), help="pairs between two looks at the result (default: 10)"),
        Option("--warmup", value="N", read=whole(0), help="pairs before them that are not measured (default: 1)"),
        Option("--confidence", value="P", read=_share, help="confidence of intervals (default: 0.98)"),
        Option("--timeout", value="TIME", read=duration, help="of programs: time limit of one run: 90s, 15m"),
        Option(
            "--format",
            value="NAME",
            read=_format,
            completes=_FORMATS,
            help="on standard output: human, json, junit, markdown",
        ),
        Option(
            "--report",
            value="FILE",
            is_many=True,
            help=f"report file: .json, .xml (JUnit) or .md; repeat it (default: {_REPORT})",
        ),
        AT,
    ),
    takes_program=True,
    examples=(
        'stoker gate --baseline "python old.py" --candidate "python new.py"',
        "stoker gate --baseline ../main --candidate . --report gate.xml -- python bench.py",
        "stoker gate --baseline f16.gguf --candidate q4.gguf --texts held-out.jsonl",
        "stoker gate --baseline base.nll.jsonl --candidate adapter.nll.jsonl",
        "stoker gate --baseline base.bench.json --candidate new.bench.json --format markdown",
        'stoker gate --baseline base.bench.json --candidate "python new.py"',
    ),
    errors=(Regression, GateUndecided, WorkFailed, StageTimeout, NotFound, NotVerified),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Measure, decide, report."""
    from stoker.crossval.gate import raise_verdict
    from stoker.crossval.gate_rule import GateRule
    from stoker.crossval.gate_run import GatePlace, GateRequest, run_gate
    from stoker.crossval.report_formats import FORMATS, format_of_path
    from stoker.store.memo import digest_path

    for side in ("baseline", "candidate"):
        if not given[side]:
            raise Usage(f"--{side} is missing", hint="stoker help gate")
    parts, out = call.parts, call.out
    paths = tuple(call.path(path) for path in given["report"] or [_REPORT])
    for path in paths:
        format_of_path(path)
    shown = near_path(paths[0], parts.settings.folder)
    rule = GateRule(
        confidence=GateRule().confidence if given["confidence"] is None else given["confidence"],
        batch=given["batch"] or GateRule().batch,
        most_pairs=given["pairs"] or GateRule().most_pairs,
    )
    program = " ".join(given["program"] or ())
    baseline, candidate = (f"{program} in {one}" if program else one for one in (given["baseline"], given["candidate"]))
    request = GateRequest(
        baseline=baseline,
        candidate=candidate,
        limits=tuple(given["limit"]),
        rule=rule,
        warmup=1 if given["warmup"] is None else given["warmup"],
        timeout_s=given["timeout"],
        texts=call.path(given["texts"]) if given["texts"] else "",
        reports=paths,
        is_rerun=bool(given["rerun"]),
    )
    place = GatePlace(
        clock=parts.clock,
        environment=parts.settings.environment,
        machine=machine_here(call),
        versions=versions_here(call),
        open_model=lambda side, name: open_model(
            call, side.path, side.runtime or given.get(f"{name}_runtime") or given["runtime"] or ""
        ),
        digest_of=partial(digest_path, memo=parts.store.memo, clock=parts.clock),
    )
    try:
        result, report = run_gate(
            request,
            lambda: [_side(call, given, given[name]) for name in ("baseline", "candidate")],
            place,
            lambda steps: busy_between(call, "pair {number}", steps),
        )
    except BaseException:
        out.note(f"note: report: {shown}")
        raise
    out.object(report.to_json())
    if (given["format"] or "human") == "human":
        _show(call, result)
    else:
        out.lines(FORMATS[given["format"]](report).splitlines())
    raise_verdict(result, [shown])
    return 0


def _side(call: CommandContext, given: dict[str, Any], text: str) -> GateSide:
    """Return what a side is. A single word is a job, or else a program."""
    from stoker.crossval.gate_sides import JobSide, ProgramSide, is_program, read_side

    settings = call.parts.settings
    search = settings.environment.get("PATH")
    found = read_side(text, folder=settings.folder, program=given["program"] or (), search=search)
    if not isinstance(found, JobSide):
        return found
    try:
        return _job(call, given, found.name)
    except (NotFound, NoCoordinator):
        if not is_program(found.name, settings.folder, search):
            raise
        return ProgramSide(argv=(found.name,), folder=settings.folder)


def _job(call: CommandContext, given: dict[str, Any], name: str) -> StoredSide:
    from stoker.api.local_job import LocalJob
    from stoker.crossval.gate_sides import side_of_job
    from stoker.devices.this_machine import host_name

    job = call.lookup.job(name, given["at"])
    facts, trials = job.gather()
    machine = str(getattr(getattr(job, "view", None), "machine", ""))
    if isinstance(job, LocalJob):
        machine = host_name(call.parts.settings.environment)[0]
    return side_of_job(name, facts.spec.recipe, trials, machine)


def _show(call: CommandContext, result: GateResult) -> None:
    out = call.out
    signs = {"passed": (out.signs.ran, "green"), "failed": (out.signs.failed, "red"), "undecided": ("?", "yellow")}
    rows = []
    for one in result.verdicts:
        sign, colour = signs[one.outcome]
        values = ("" if value is None else f"{value:.5g}" for value in (one.baseline, one.candidate))
        change = "" if one.weighed is None else one.limit.shown(one.weighed.effect)
        rows.append([f"{out.paint(sign, colour)} {one.limit.metric}", *values, change, str(one.limit), one.outcome])
    out.table(rows, header=("metric", "baseline", "candidate", "change", "limit", ""))
    for note in result.notes:
        out.note(f"note: {note}")
    pairs = f" in {counted(len(result.pairs), 'pair')}" if result.pairs else ""
    if result.outcome == "passed":
        out.line(f"passed{pairs}: {result.reason}")
