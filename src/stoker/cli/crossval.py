"""`stoker crossval`: compare a model with a reference, or two jobs with each other. `full-crossval`: fetch first."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, date, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.crossval_fleet import trace_on_fleet
from stoker.cli.crossval_sides import ComparedSide, find_sides, hold_reference, side_values
from stoker.cli.grammar import AT, Grammar, Option, Positional, whole
from stoker.cli.local_run import CommandInputFetcher
from stoker.cli.run import carry_out, nodes_to_rerun, running, words_of
from stoker.config.values import text_of
from stoker.core.errors import (
    Cancelled,
    InternalError,
    LocalFile,
    LockHeld,
    NotVerified,
    ParityFailed,
    ParityUndecided,
    StokerError,
    Usage,
)
from stoker.crossval.ladder import Outcome
from stoker.crossval.limits import TIERS, with_changes
from stoker.crossval.runtimes import RUNTIMES, SEED, determinism
from stoker.crossval.xfail import Accepted, ExpectedFailure, accept, accept_failed_run
from stoker.jobs.execution import Continuation
from stoker.jobs.request import JobRequest
from stoker.store.tree_views import open_view
from stoker.views.text_tables import near_path

if TYPE_CHECKING:
    from stoker.crossval.report_folder import ReportFolder

RECIPE = "crossval/parity"
_NAME = "crossval"
_KEPT_OPTIONS = ("--dry-run", "--rerun", "--name", "--out", "--timeout", "--contain")
# The reports are copied from the store, into a folder that has one from the beginning.
_OTHER_OPTIONS = {
    "keep_going": False,
    "max_failures": None,
    "solo": False,
    "jobs": None,
    "no_out": True,
    "wandb": None,
}
_RUNTIMES = "torch, llama.cpp, onnx, the address of a server, or a program that speaks the protocol"

_OPTIONS = (
    Option("--model", value="PATH", help="model of both sides (default: the first one found in models/, then here)"),
    Option("--candidate", value="RUNTIME", help=f"runtime under test: {_RUNTIMES}; settings: torch,precision=bf16"),
    Option(
        "--reference",
        value="RUNTIME",
        is_many=True,
        help="runtime to compare with (default: llama.cpp for GGUF, else torch); repeat it for several",
    ),
    Option("--reference-model", value="PATH", help="another model for the reference, such as the one it was made from"),
    Option("--text", value="TEXT", is_many=True, help="a text whose tokens are compared; repeat it for several"),
    Option("--positions", value="N", read=whole(1), help="maximum number of positions (default: 64)"),
    Option("--chunk", value="N", read=whole(1), help="positions computed at once (default: all)"),
    Option("--no-layers", help="do not compare layers"),
    Option("--no-decode", help="do not compute the second half one by one"),
    Option(
        "--limit",
        value="NAME=X",
        is_many=True,
        help="replace a limit: nmse, max_abs_sd, kl, top1, embedding, layer, head",
    ),
    Option("--strict", help="fail if a runtime did not run as requested: device, precision, kernels, all tensors used"),
    Option("--xfail", value="TEXT", help="accept a failure: 'REASON until YYYY-MM-DD'"),
    Option("--seed", value="N", read=whole(0), help="seed of the runtimes (default: 42)"),
    Option(
        "--candidate-on",
        value="MACHINE",
        help="run the candidate on this machine of the fleet, as a job; the model is sent there",
        completes="machine",
    ),
    Option(
        "--reference-on",
        value="MACHINE",
        help="run the reference on this machine of the fleet; both sides run at the same time",
        completes="machine",
    ),
    AT,
)

GRAMMAR = Grammar(
    "crossval",
    about=(
        "Compare what two runtimes answer for the same model: files, tokens, weights, each layer by itself, logits of "
        "one pass and of a decode, position by position. All measures decide together; the first difference is named "
        "by tensor, layer and position. With two jobs, name the first thing in which they differ: code, data, config, "
        "environment, device or numbers. The report is always written (JSON, Markdown, JUnit XML, HTML). Exit code: 0 "
        "pass, 1 fail, 15 tokenizers disagree, 18 undecided."
    ),
    positionals=(Positional("JOB", key="jobs_compared", help="two jobs to compare", is_many=True, completes="job"),),
    options=(*_OPTIONS, *(one for one in running(_NAME) if one.names[0] in _KEPT_OPTIONS)),
    examples=(
        "stoker crossval --model models/tiny/model-f32.gguf",
        "stoker crossval --model my-model/ --candidate torch,precision=bf16,device=cuda --strict",
        "stoker crossval --model tiny.gguf --candidate ./my_runtime.py --limit kl=1e-6",
        "stoker crossval --model tiny.gguf --candidate ./my_runtime.py --reference llama.cpp --reference torch",
        "stoker crossval --model my-model/ --candidate torch --candidate-on desk --reference-on lab1",
        "stoker crossval before after",
    ),
    errors=(ParityFailed, NotVerified, ParityUndecided, LocalFile, LockHeld, Usage),
)

FULL_GRAMMAR = Grammar(
    "full-crossval",
    about=(
        "Fetch the C++ reference if it is missing, then compare: `stoker reference fetch` and `stoker crossval`. Every "
        "step is cached, so a second run with the same model reads the results from the store."
    ),
    options=GRAMMAR.options,
    examples=("stoker full-crossval --model models/tiny/model-f32.gguf", "stoker full-crossval --dry-run"),
    errors=GRAMMAR.errors,
)


def perform_full(call: CommandContext, given: dict[str, Any]) -> int:
    """Fetch the reference, then compare."""
    from stoker.cli.reference import perform_fetch

    def fetch() -> None:
        perform_fetch(call, {"tag": None, "force": False, "clean": False})

    return _perform(call, {**given, "jobs_compared": []}, fetch)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Compare two runtimes, or two jobs."""
    return _perform(call, given, lambda: None)


def _perform(call: CommandContext, given: dict[str, Any], prepare: Callable[[], None]) -> int:
    """Compare with each reference, in reports of its own; the worst verdict decides."""
    references = list(dict.fromkeys(given["reference"])) or [""]
    if len(references) == 1:
        return _perform_one(call, {**given, "reference": references[0]}, prepare)
    if given["jobs_compared"]:
        raise Usage("--reference: two jobs are compared with each other", hint="stoker crossval before after")
    names = [_name_beside(given["name"] or _NAME, reference) for reference in references]
    if len(set(names)) < len(names):
        raise Usage("two references would write to one folder", hint="run them one by one, each with its --name")
    worst, failed = 0, None
    for reference, name in zip(references, names, strict=True):
        call.out.line(f"reference {reference}:")
        try:
            code, error = _perform_one(call, {**given, "reference": reference, "name": name}, prepare), None
        except (ParityFailed, NotVerified, ParityUndecided) as verdict:
            code, error = verdict.exit_code, verdict
            call.out.note(f"{reference}: {verdict.message}")
        if _gravity(code) > _gravity(worst):
            worst, failed = code, error
    if failed is not None:
        raise failed
    return worst


def _name_beside(name: str, other: str) -> str:
    """Return the name of reports beside those of others: of one reference of several, or of two jobs."""
    return f"{name}-{re.sub(r'[^A-Za-z0-9._]+', '-', other).strip('-.')}"


def _gravity(code: int) -> int:
    """Return how much an exit code matters beside others: a failure, then tokenizers that disagree, then no answer."""
    return {0: 0, ParityUndecided.exit_code: 1, NotVerified.exit_code: 2, ParityFailed.exit_code: 4}.get(code, 3)


def _perform_one(call: CommandContext, given: dict[str, Any], prepare: Callable[[], None]) -> int:
    from stoker.crossval.report_folder import ReportFolder

    if given["dry_run"]:
        if given["jobs_compared"]:
            raise Usage("--dry-run: two jobs are compared without a run", hint="stoker crossval before after")
        return _compare(call, given, None)
    settings = call.parts.settings
    folder = os.path.join(settings.folder, given["out"]) if given["out"] else settings.out
    made_at = datetime.fromtimestamp(call.parts.clock.wall_s(), tz=UTC).isoformat(timespec="seconds")
    title = " and ".join(given["jobs_compared"]) or "stoker crossval"
    name = given["name"] or reduce(_name_beside, given["jobs_compared"], _NAME)
    reports = ReportFolder(os.path.join(folder, name), title, clock=call.parts.clock, made_at=made_at)
    with reports:
        reports.begin()
        try:
            prepare()
            if given["jobs_compared"]:
                from stoker.cli.run_difference import compare_runs

                return compare_runs(call, given, reports)
            return _compare(call, given, reports)
        except BaseException as error:
            if not reports.has_verdict:
                _write_failure(call, error, reports)
            raise


def _compare(call: CommandContext, given: dict[str, Any], reports: ReportFolder | None) -> int:
    """Compare two models; without a folder for reports, show what would be done."""
    from stoker.crossval.xfail import parse_xfail

    today = datetime.fromtimestamp(call.parts.clock.wall_s(), tz=UTC).date()
    expected = parse_xfail(given["xfail"], today) if given["xfail"] else None
    limits = dict(map(_limit, given["limit"]))
    sides = find_sides(call, given)
    name = given["name"] or _NAME
    if given["dry_run"]:
        _show_commands(call, sides, SEED if given["seed"] is None else given["seed"])
    with ExitStack() as stack:
        hold_reference(call, sides, stack)
        traces = trace_on_fleet(call, given, sides, name, stack)
        if given["dry_run"] and any(side.machine for side in sides.values()):
            return 0
        values = {**side_values(given, sides), **traces, **({"limits": limits} if limits else {})}
        request = JobRequest(
            target=RECIPE, overrides=tuple(f"{key}={text_of(value)}" for key, value in values.items()), name=name
        )
        fetcher = CommandInputFetcher(call, is_dry=given["dry_run"])
        build = fetcher.build(lambda: call.builder().build(request))
        if build is None:
            return 0
        nodes = nodes_to_rerun(build.plan, words_of(given["rerun"]))
        code = carry_out(call, build, Continuation(), {**_OTHER_OPTIONS, **given}, nodes, fetcher)
    if reports is None:
        return code
    job = call.lookup.local_job(build.spec.id)
    if code:
        end = job.folder.ended()
        error = dict((end.error if end is not None else None) or {"message": "the run failed"})
        reports.fail({"exit_code": code, **error})
        call.out.note(f"report: {reports.folder}")
        accepted = accept_failed_run(code, expected, today)
        return 0 if _is_accepted(call, accepted, reports) else code
    for found in job.results().found:
        for part in found.fetch(lambda _size_bytes: None):
            reports.take(open_view(call.parts.store, part.record))
    return _conclude(call, reports, expected, today)


def _limit(text: str) -> tuple[str, float]:
    name, mark, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not mark or math.isnan(number):
        raise Usage(f"--limit {text!r} is not NAME=NUMBER", hint="--limit kl=1e-6")
    with_changes(TIERS["f32"], {name: number})
    return name, number


def _show_commands(call: CommandContext, sides: Mapping[str, ComparedSide], seed: int) -> None:
    """Print how each side would be started, and with which variables (C-40)."""
    for side, one in sides.items():
        variables = determinism(one.choice.threads, seed)
        words = [f"{name}={value}" for name, value in sorted(variables.items())]
        argv = [one.choice.label]
        if one.command is not None:
            argv = [one.command.argv[0], one.choice.label] if one.choice.name in RUNTIMES else list(one.command.argv)
        body = {"side": side, "runtime": one.choice.label, "model": one.model, "machine": one.machine}
        call.out.object({**body, "environment": variables})
        call.out.line(f"{side}: {shlex.join(argv)} with {one.model}{f' on {one.machine}' if one.machine else ''}")
        call.out.line(f"  {' '.join(words)}")


def _is_accepted(call: CommandContext, accepted: Accepted, reports: ReportFolder) -> bool:
    """Return True if a failure is an expected one; the reports say so then."""
    if accepted.note:
        call.out.note(f"note: {accepted.note}")
    if accepted.is_pass:
        reports.accept(accepted.note)
    return accepted.is_pass


def _conclude(call: CommandContext, reports: ReportFolder, expected: ExpectedFailure | None, today: date) -> int:
    """Print the verdict; return the exit code, or raise what the verdict means."""
    from stoker.crossval.parity_report import VERDICT, read_verdict

    folder = reports.folder
    verdict = read_verdict(os.path.join(folder, VERDICT))
    out = call.out
    out.object({"report": folder, **verdict.to_json()})
    out.table(
        [(step.name, str(step.outcome), step.reason) for step in verdict.steps], header=("STEP", "OUTCOME", "REASON")
    )
    out.line(f"report: {os.path.join(near_path(folder, call.parts.settings.folder), 'parity.html')}")
    accepted = accept(verdict, expected, today)
    if verdict.outcome is Outcome.PASSED:
        if accepted.note:
            out.note(f"note: {accepted.note}")
        return 0
    if _is_accepted(call, accepted, reports):
        return 0
    data = {"report": folder, "first_divergence": verdict.first.to_json() if verdict.first else None}
    if verdict.outcome is Outcome.UNDECIDED:
        hint = "give a model whose logits both runtimes return"
        raise ParityUndecided(verdict.reason or "no logits were compared", hint=hint, **data)
    text = verdict.first.text if verdict.first is not None else verdict.reason
    if verdict.first is not None and verdict.first.step == "tokens":
        raise NotVerified(text, hint="are both the same model, with the same tokenizer files?", **data)
    raise ParityFailed(text, hint=f"the report shows every position: {folder}", **data)


def _write_failure(call: CommandContext, error: BaseException, reports: ReportFolder) -> None:
    """Write a report of what went wrong."""
    known = error if isinstance(error, StokerError) else InternalError(f"{type(error).__name__}: {error}")
    if isinstance(error, KeyboardInterrupt):
        known = Cancelled("interrupted")
    with suppress(StokerError):
        reports.fail(known.to_dict())
        call.out.note(f"report: {reports.folder}")
