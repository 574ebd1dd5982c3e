"""`stoker run`: run a recipe, a plan file or any program on this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import AUTO, Grammar, Option, Positional, duration, ranks, whole
from stoker.cli.local_run import CommandInputFetcher, run_build
from stoker.config.config_file import SUFFIXES
from stoker.core.errors import (
    Cancelled,
    InsufficientDeviceMemory,
    InvalidConfig,
    InvalidProgram,
    NotFound,
    OutOfMemory,
    PlanDeadline,
    ProgramNotFound,
    Refused,
    StageFailed,
    StageTimeout,
    TooManyTrials,
    UnknownRecipe,
    Usage,
)
from stoker.core.job import JobState
from stoker.core.text import METRICS_OFF, did_you_mean, is_metric_pattern, metric_source_fault, outside
from stoker.engine.plan import Plan
from stoker.engine.types import MAX_IN_FLIGHT
from stoker.host.folders import placed_path
from stoker.jobs.builder import JobBuild
from stoker.jobs.execution import Continuation
from stoker.jobs.program import FOUND
from stoker.jobs.request import JobRequest
from stoker.jobs.trials import is_sweep, trials_of_job

if TYPE_CHECKING:
    from stoker.jobs.job_folder import JobFolder

MOST_UNASKED = 1_000
MOST_TRIALS = 100_000
_CONTAINMENTS = ("systemd", "cgroup2", "cgroup1", "address_space", "watchdog", "bare")
UNNAMED = "the recipe's last word, or the script's name"


def job_options(unnamed: str) -> tuple[Option, ...]:
    """Return the options that describe a job, here and on the fleet; `unnamed` is its default name."""
    return (Option("--name", value="NAME", help=f"job name (default: {unnamed})"),)


METRICS = Option(
    "--metrics",
    value="SOURCE",
    help="where a program's metrics are read from, beside what it prints and the files in its outputs: a pattern with "
    "groups for name and number, such as 'loss_(\\w+): (\\S+)', or for a number alone; a folder or file of "
    "TensorBoard, W&B, MLflow, Transformers or CSV, such as runs/; off: nowhere; repeat it for several",
    is_many=True,
)
_METRICS_HINT = (
    r"write a pattern such as 'loss_(\w+): (\S+)', with \S+ or [^:]* instead of .*; begin a path that has a ( with ./"
)


DATA = Option(
    "--data",
    value="PATH=SOURCE",
    help="data that appears at PATH below a program's folder, such as data/corpus or ./train.bin: a file or folder of "
    "this machine, stoker:NAME or org/repo; NAME=SOURCE: variable NAME holds its path; may be repeated",
    is_many=True,
)


def running(unnamed: str) -> tuple[Option, ...]:
    """Return the options of commands that run a job; `unnamed` is the job's default name."""
    return (
        Option("--dry-run", help="show what would run, why, and its expected cost; run nothing"),
        Option(
            "--rerun",
            value="STAGE",
            help="run this stage even if its result is cached; several: with commas, or repeat the option",
            is_many=True,
        ),
        Option("--keep-going", help="continue with stages that do not depend on a failed one; sweeps always do"),
        Option("--max-failures", value="N", read=whole(1), help="stop after N failures; implies --keep-going"),
        Option("--solo", help="run each trial in its own process, also those that could share one over one base"),
        Option(
            "-j", "--jobs", value="N", read=whole(1), help=f"stages at once (default: {MAX_IN_FLIGHT}; programs: 1)"
        ),
        *job_options(unnamed),
        Option("--out", value="DIR", help="write results to DIR/NAME (default: stoker-out)"),
        Option("--no-out", help="keep results only in the store"),
        Option("--timeout", value="TIME", read=duration, help="stop the job if it takes longer: 90s, 15m, 2h"),
        Option(
            "--contain",
            value="HOW",
            help=f"limit memory by this mechanism: {', '.join(_CONTAINMENTS)}",
            completes=_CONTAINMENTS,
        ),
        Option(
            "--wandb",
            value="PROJECT",
            help="also send metrics to wandb (WANDB_MODE, default: offline); requires wandb in the program's Python",
        ),
        Option("-y", "--yes", help=f"do not ask for confirmation, not even for more than {MOST_UNASKED:,} trials"),
    )


def program_settings() -> list[tuple[str, str]]:
    """Return the settings that a program takes as key=value, each with its help."""
    from dataclasses import fields

    from stoker.cookbooks.command.cookbook import CommandArgs

    return [(f"{one.name}=", one.metadata["help"]) for one in fields(CommandArgs) if one.name not in FOUND]


GRAMMAR = Grammar(
    "run",
    about=(
        "Run a recipe, a plan or any program on this machine and show its progress. A comma or a range in a value "
        "makes a sweep; {name} in a program's words is replaced by a value. Stages with cached results are skipped. "
        "After an interruption, run the same command again to continue. Results are also written as plain files to "
        "stoker-out/NAME."
    ),
    positionals=(
        Positional(
            "RECIPE|PLAN.json",
            key="target",
            help="what to run: `stoker recipes` lists the recipes; omit it if a program follows --",
            is_required=False,
            completes="recipe file",
        ),
        Positional(
            "key=value",
            key="values",
            help="settings: a.b=v changes, +a=v adds, ++a=v either, '~a' deletes, group=option; lr=1e-3,1e-4 or "
            "lr=log:1e-4:1e-1:4, n=range:1:10:2, x=lin:0:1:5 sweeps",
            is_many=True,
            is_required=False,
            completes="setting",
        ),
    ),
    options=(
        Option(
            "--config", value="FILE", help="YAML or TOML file with settings; repeat it: later ones win", is_many=True
        ),
        Option(
            "--failed",
            value="JOB",
            help="run the failed and unfinished part of an earlier job of this folder again",
            completes="job",
        ),
        Option(
            "--ranks",
            value="N|auto",
            read=ranks,
            help="run a program, or a recipe that has ranks=, as N processes that start and end together; auto: one "
            "per GPU, at least 1. See `stoker help gang run`",
        ),
        METRICS,
        DATA,
        *running(UNNAMED),
    ),
    examples=(
        "stoker run tabular/gbt data=iris lr=0.05",
        "stoker run tabular/gbt data=iris model.depth=3,5,7 lr=log:1e-2:1:3",
        "stoker run lr=1e-2,1e-3 -- python train.py --lr {lr}",
        "stoker run outputs=runs/ memory=8G -- ./train.sh",
        "stoker run vram=6G shares=true -- python train.py",
        "stoker run --ranks 8 -- python train.py",
        "stoker run --failed last",
        "stoker run tabular/compare --json | tail -n 1",
    ),
    takes_program=True,
    settings=program_settings,
    errors=(
        StageFailed,
        Usage,
        ProgramNotFound,
        InvalidConfig,
        TooManyTrials,
        UnknownRecipe,
        InvalidProgram,
        StageTimeout,
        OutOfMemory,
        PlanDeadline,
        InsufficientDeviceMemory,
        Cancelled,
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Run, or show the plan."""
    metric_paths = _metric_paths(call, given)
    for typed, path in metric_paths.items():
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise Usage(f"--metrics {typed} is neither a file nor a folder", hint=_METRICS_HINT)
    fetcher = CommandInputFetcher(call, is_dry=given["dry_run"])
    if given["failed"] is not None:
        build, going_on = _build_failed(call, fetcher, given)
        if build is None:
            return 0
        nodes = nodes_to_rerun(build.plan, words_of(given["rerun"]))
    else:
        build = _build(call, fetcher, given)
        if build is None:
            return 0
        nodes = nodes_to_rerun(build.plan, words_of(given["rerun"]))
        going_on = _continue(call, build, afresh=bool(nodes))
    _refuse_shared_outputs(build, given)
    code = carry_out(call, build, going_on, given, nodes, fetcher)
    for typed, path in metric_paths.items():
        if not given["dry_run"] and not os.path.exists(path):
            call.out.note(f"note: no metrics were read from {typed}: no such file or folder")
    return code


def _metric_paths(call: CommandContext, given: dict[str, Any]) -> dict[str, str]:
    """Return the files and folders that `--metrics` names, as typed and whole."""
    typed = (one for one in given["metrics"] if one != METRICS_OFF and not is_metric_pattern(one))
    return {outside(one): os.path.join(call.parts.settings.folder, one) for one in typed if one}


def _continue(call: CommandContext, build: JobBuild, *, afresh: bool) -> Continuation:
    """Return what a sweep keeps from earlier runs."""
    if not is_sweep(build.trials):
        return Continuation()
    from stoker.jobs.rerun import go_on

    return go_on(build, call.parts.cache, call.sweeps_folder(), afresh=afresh)


def carry_out(
    call: CommandContext,
    build: JobBuild,
    going_on: Continuation,
    given: dict[str, Any],
    nodes: frozenset[str],
    fetcher: CommandInputFetcher,
) -> int:
    """Run a job, or show the plan; `nodes` run despite cached results."""
    for note in (*build.notes, going_on.note):
        if note:
            call.out.note(f"note: {note}")
    if given["dry_run"]:
        from stoker.cli.dry_run import show_forecast

        return show_forecast(call, build, going_on.kept, nodes, is_solo=given["solo"])
    fetcher.verify(build)
    return run_build(call, build, going_on, given, nodes)


def words_of(given: list[str]) -> list[str]:
    """Return the words of an option that takes several, with commas or repeated."""
    return [word for words in given for word in words.split(",") if word]


def _build(call: CommandContext, fetcher: CommandInputFetcher, given: dict[str, Any]) -> JobBuild | None:
    """Build the job; None if a dry run only shows what would be fetched for it."""
    if given["ranks"] == AUTO:
        given["ranks"] = max(1, len(call.parts.devices))
    request = read_request(given, GRAMMAR)
    builder = call.builder()
    if request.is_plan_file:
        return builder.build(request)
    if request.target.endswith(SUFFIXES) and not request.program:
        raise UnknownRecipe(
            f"{request.target} is not a recipe or a plan",
            hint=f"settings: --config {request.target}; a manifest: stoker submit {request.target}; "
            f"an adapters file: stoker adapters run {request.target}",
        )
    job = builder.compose(request)
    _check_size(call, job.size, given)
    return fetcher.build(lambda: builder.build_composed(job))


def _refuse_shared_outputs(build: JobBuild, given: dict[str, Any]) -> None:
    """Raise `Usage` if programs that run at once would write to one place."""
    if build.program is None or not is_sweep(build.trials) or (given["jobs"] or 1) < 2:
        return
    outputs = dict.fromkeys(name for trial in build.trials for name in trial.spec.args.get("outputs", ()))
    if outputs:
        raise Usage(
            f"--jobs {given['jobs']}: parallel programs would all write to {', '.join(outputs)}",
            hint="write to $STOKER_OUT, a folder for each trial, or use --jobs 1",
        )


def _check_size(call: CommandContext, count: int, given: dict[str, Any]) -> None:
    """Ask before very many trials are made. Raises `TooManyTrials`."""
    if count > MOST_TRIALS:
        raise TooManyTrials(
            f"sweep has {count:,} trials; a job has at most {MOST_TRIALS:,}",
            hint="use fewer values, or `sample` in a sweep file",
            trials=count,
        )
    if count <= MOST_UNASKED or given["yes"] or given["dry_run"]:
        return
    if not call.out.asks(f"{count:,} trials. Run them?"):
        raise TooManyTrials(
            f"sweep has {count:,} trials; more than {MOST_UNASKED:,} need --yes",
            hint="list them: --dry-run; run them: --yes",
        )


def _build_failed(
    call: CommandContext, fetcher: CommandInputFetcher, given: dict[str, Any]
) -> tuple[JobBuild | None, Continuation]:
    """Build an earlier job again, keeping its completed trials; None if there is nothing to run."""
    if given["target"] or given["values"] or given["program"] is not None or given["config"]:
        raise Usage("--failed takes no target and no settings", hint=f"stoker run --failed {given['failed']}")
    folder = _find_failed(call, given["failed"])
    name = folder.spec().name
    if folder.state()[0] is JobState.RUNNING:
        raise Refused(f"job {name} is still running", hint=f"stoker logs {name} -f, or stoker cancel {name}")
    trials, end = trials_of_job(folder), folder.ended()
    has_trouble = end is None or end.error is not None
    builder = call.builder()
    request = JobRequest(
        earlier=folder, name=given["name"] or "", at_once=given["jobs"] or 1, fields=GRAMMAR.job_fields(given)
    )
    if has_trouble or is_sweep(trials):
        build = fetcher.build(lambda: builder.build(request))
        if build is None or not is_sweep(trials):
            return build, Continuation()
        from stoker.api.job import job_story
        from stoker.jobs.rerun import go_on_after

        going_on, left = go_on_after(
            build, call.parts.cache, call.sweeps_folder(), trials=trials, story=job_story(folder)
        )
        if left or has_trouble:
            return build, going_on
    call.out.line(f"nothing in {name} failed; nothing to run")
    return None, Continuation()


def _find_failed(call: CommandContext, name: str) -> JobFolder:
    """Find a job that was started in the current folder: a program runs, and results are written, where it started."""
    from stoker.api.local_job import LocalJob
    from stoker.jobs.job_folder import find_job

    settings = call.parts.settings
    try:
        return find_job(settings.runs, name, started_in=settings.folder)
    except NotFound:
        found = call.lookup.job(name)
    if not isinstance(found, LocalJob) or found.is_attempt:
        raise Refused(f"{name} is a job of the fleet", hint=f"run it again there: stoker jobs requeue {name}")
    spec = found.folder.spec()
    raise Refused(
        f"job {spec.name} was started in another folder, {spec.folder}",
        hint=f"cd {shlex.quote(spec.folder)} && stoker run --failed {name}",
    )


def nodes_to_rerun(plan: Plan, rerun: list[str]) -> frozenset[str]:
    """Return the nodes that --rerun names: by id, by stage, or, in a sweep, the same node of every trial."""
    nodes: set[str] = set()
    faults = []
    for name in rerun:
        meant = {node.id for node in plan.nodes if name in (node.id, node.stage.name, _tail(node.id))}
        if meant:
            nodes |= meant
        else:
            # An instance of a fan-out is not yet a node.
            base = name.partition("[")[0]
            if "[" in name and any(node.id == base for node in plan.nodes):
                nodes.add(name)
            else:
                faults.append(name)
    if faults:
        known = [name for node in plan.nodes for name in (node.id, node.stage.name, _tail(node.id))]
        listed = ", ".join(dict.fromkeys(node.id for node in plan.nodes[:12]))
        raise Usage(
            f"--rerun: {plan.name} has no stage {' or '.join(map(repr, faults))}",
            hint=did_you_mean(faults[0], known) or f"its stages: {listed}",
        )
    return frozenset(nodes)


def _tail(node_id: str) -> str:
    number, dot, rest = node_id.partition(".")
    return rest if dot and number.isdigit() else node_id


# The words of a command line that name the job and its settings.

_NO_TARGET = {
    "run": ("nothing to run", "a recipe, a plan file"),
    "submit": ("nothing to submit", "a manifest, a recipe"),
}


def read_request(given: dict[str, Any], grammar: Grammar) -> JobRequest:
    """Return the request of a command line. Raises `Usage`."""
    verb = grammar.words if grammar.words in _NO_TARGET else "run"
    target, values = given["target"], list(given["values"])
    if given["program"] is not None:
        if not given["program"]:
            raise Usage("no program after --", hint=f"stoker {verb} lr=1e-2,1e-3 -- python train.py --lr {{lr}}")
        # Before a program, every word is a setting.
        values, target = ([target, *values] if target else values), ""
        refuse_words(values, "write only settings before --")
    elif not target:
        message, targets = _NO_TARGET[verb]
        raise Usage(message, hint=f"give {targets}, or -- PROGRAM; see `stoker help {verb}`")
    elif target.endswith((".py", ".sh")) or target in ("python", "python3"):
        words = " ".join([target, *values])
        program = words if target.startswith("python") else f"{'python' if target.endswith('.py') else 'sh'} {words}"
        raise Usage(f"{target!r} is not a recipe", hint=f"write a program after --: stoker {verb} -- {program}")
    elif "=" in target:
        both = f"stoker {verb} RECIPE key=value …, or stoker {verb} key=value … -- PROGRAM"
        raise Usage(f"{target!r} is a setting, without a recipe or a program", hint=both)
    refuse_words(values, "an argument is one word: no spaces around the =")
    if given.get("ranks") is not None:
        values.append(f"ranks={given['ranks']}")
    metrics = tuple(given.get("metrics") or ())
    if metrics and given["program"] is None:
        raise Usage("--metrics is for programs", hint=f"stoker {verb} --metrics {metrics[0]} -- PROGRAM")
    _check_metrics(metrics)
    data = read_data(given.get("data") or ())
    if data and given["program"] is None:
        raise Usage("--data is for programs", hint=f"stoker {verb} --data {given['data'][0]} -- PROGRAM")
    return JobRequest(
        metrics=metrics,
        data=data,
        target=target,
        overrides=tuple(values),
        files=tuple(given["config"]),
        program=tuple(given["program"] or ()),
        name=given.get("name") or "",
        at_once=given.get("jobs") or 1,
        fields=grammar.job_fields(given),
    )


def _check_metrics(sources: Sequence[str]) -> None:
    for one in sources:
        fault = metric_source_fault(one)
        if fault:
            raise Usage(f"--metrics '{outside(one)}' can't be used: {fault}", hint=_METRICS_HINT)


def read_data(words: Sequence[str]) -> dict[str, str]:
    """Parse `--data PATH=SOURCE`. Raises `Usage` for another form, `BadInput` for a path that leads elsewhere."""
    found: dict[str, str] = {}
    for word in words:
        name, _, source = word.partition("=")
        if not source or not ("/" in name or (name.isidentifier() and name.isascii())):
            hint = "--data data/corpus=../corpus, or --data DATA=../corpus"
            if not source:
                hint += f"; an argument of a recipe has no dashes: data={word}"
            raise Usage(f"--data {word}: not PATH=SOURCE", hint=hint)
        name = placed_path(name) if "/" in name else name
        if name in found:
            raise Usage(f"--data {word}: {name} is already {found[name]}", hint="give each path once")
        found[name] = source
    return found


def refuse_words(values: Sequence[str], hint: str) -> None:
    """Raise `Usage` for words that are not key=value."""
    odd = [word for word in values if "=" not in word and not word.startswith("~")]
    if odd:
        listed = ", ".join(map(repr, odd))
        raise Usage(f"{listed} {'is' if len(odd) == 1 else 'are'} not key=value", hint=hint)


# `stoker adapters run`: the adapters of a file, trained together on this machine.


ADAPTERS_RUN_GRAMMAR = Grammar(
    "adapters run",
    about=(
        "Train the adapters of a file over one base, in one process, as many at once as memory allows. Each has its "
        "own label, data, checkpoints and settings; one that ends or fails does not affect the others. Results are "
        "written to stoker-out/NAME/LABEL, the best one also to stoker-out/NAME/best if all were measured on the same "
        "data; checkpoints to the folders that the file names. After an interruption, run the same command again to "
        "continue."
    ),
    positionals=(
        Positional("FILE", key="file", help="adapters file in TOML or YAML: [[adapter]] with data and checkpoint"),
        Positional(
            "key=value",
            key="values",
            help="defaults for all adapters: base=org/name, rank=16, epochs=1, schedule=round_robin, and other "
            "arguments of language/lora",
            is_many=True,
            is_required=False,
            completes="setting language/lora",
        ),
    ),
    options=running("the file's name"),
    examples=(
        "stoker adapters run adapters.toml",
        "stoker adapters run adapters.toml base=Qwen/Qwen2.5-0.5B epochs=1 --dry-run",
        "stoker adapters run adapters.toml --solo --name one-by-one",
    ),
)


def perform_adapters_run(call: CommandContext, given: dict[str, Any]) -> int:
    """Train a file's adapters, or show the plan."""
    refuse_words(given["values"], "give one file; write settings as key=value without spaces around =")
    fetcher, builder = CommandInputFetcher(call, is_dry=given["dry_run"]), call.builder()
    request = JobRequest(
        target=given["file"],
        is_adapters_file=True,
        overrides=tuple(given["values"]),
        name=given["name"] or "",
        fields=ADAPTERS_RUN_GRAMMAR.job_fields(given),
    )
    build = fetcher.build(lambda: builder.build(request))
    if build is None:
        return 0
    nodes = nodes_to_rerun(build.plan, words_of(given["rerun"]))
    going_on = _continue(call, build, afresh=bool(nodes))
    return carry_out(call, build, going_on, given, nodes, fetcher)
