"""`stoker crossval`: compare a model with a reference, or two jobs with each other. `full-crossval`: fetch first."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional, whole
from stoker.cli.local_run import CommandInputFetcher
from stoker.cli.run import carry_out, nodes_to_rerun, running, words_of
from stoker.config.values import text_of
from stoker.core.errors import (
    Cancelled,
    InternalError,
    LocalFile,
    NotVerified,
    ParityFailed,
    ParityUndecided,
    StokerError,
    Usage,
    WorkFailed,
)
from stoker.core.frozen import frozen
from stoker.crossval.ladder import Outcome
from stoker.crossval.limits import TIERS, with_changes
from stoker.crossval.plugin_lines import PluginCommand
from stoker.crossval.reference import find_reference
from stoker.crossval.runtimes import (
    RUNTIMES,
    SEED,
    RuntimeChoice,
    RuntimePlaces,
    determinism,
    plugin_command,
    read_runtime,
    runtimes_for,
)
from stoker.crossval.xfail import ExpectedFailure, accept
from stoker.host.install import packages_in
from stoker.jobs.execution import Continuation
from stoker.jobs.request import JobRequest
from stoker.store.environment_cache import EnvironmentCache
from stoker.views.text_tables import near_path

RECIPE = "crossval/parity"
_NAME = "crossval"
_KEPT_OPTIONS = ("--dry-run", "--rerun", "--name", "--out", "--timeout", "--contain")
_OTHER_OPTIONS = {
    "keep_going": False,
    "max_failures": None,
    "solo": False,
    "jobs": None,
    "no_out": False,
    "wandb": None,
}
_RUNTIMES = "torch, llama.cpp, onnx, the address of a server, or a program that speaks the protocol"

_OPTIONS = (
    Option("--model", value="PATH", help="model of both sides (default: the first one found in models/, then here)"),
    Option("--candidate", value="RUNTIME", help=f"runtime under test: {_RUNTIMES}; settings: torch,precision=bf16"),
    Option("--reference", value="RUNTIME", help="runtime to compare with (default: llama.cpp for GGUF, else torch)"),
    Option("--reference-model", value="PATH", help="another model for the reference, such as the one it was made from"),
    Option("--text", value="TEXT", is_many=True, help="a text whose tokens are compared; repeat it for several"),
    Option("--positions", value="N", read=whole(1), help="maximum number of positions (default: 64)"),
    Option("--chunk", value="N", read=whole(1), help="positions computed at once (default: all)"),
    Option("--no-layers", help="do not compare layers"),
    Option("--no-decode", help="do not compute the second half one by one"),
    Option("--limit", value="NAME=X", is_many=True, help="replace a limit: nmse, max_abs_sd, kl, top1, layer, head"),
    Option("--strict", help="fail if a runtime did not run as requested: device, precision, kernels, all tensors used"),
    Option("--xfail", value="TEXT", help="accept a failure: 'REASON until YYYY-MM-DD'"),
    Option("--seed", value="N", read=whole(0), help="seed of the runtimes (default: 42)"),
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
        "stoker crossval before after",
    ),
    errors=(ParityFailed, NotVerified, ParityUndecided, LocalFile, Usage),
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

    if not given["dry_run"]:
        perform_fetch(call, {"tag": None, "force": False, "clean": False})
    return perform(call, {**given, "jobs_compared": []})


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Compare two runtimes, or two jobs."""
    if given["jobs_compared"]:
        from stoker.cli.run_difference import compare_runs

        return compare_runs(call, given)
    settings = call.parts.settings
    folder = os.path.join(settings.folder, given["out"]) if given["out"] else settings.out
    name = given["name"] or _NAME
    try:
        return _compare(call, given, folder, name)
    except BaseException as error:
        _write_failure(call, error, os.path.join(folder, name), is_dry=given["dry_run"])
        raise


def _compare(call: CommandContext, given: dict[str, Any], folder: str, name: str) -> int:
    from stoker.crossval.xfail import parse_xfail

    today = datetime.fromtimestamp(call.parts.clock.wall_s(), tz=UTC).date()
    expected = parse_xfail(given["xfail"], today) if given["xfail"] else None
    limits = dict(map(_limit, given["limit"]))
    sides = _sides(call, given)
    request = JobRequest(
        target=RECIPE,
        overrides=tuple(f"{key}={text_of(value)}" for key, value in _values(given, sides, limits).items()),
        name=name,
    )
    fetcher = CommandInputFetcher(call, is_dry=given["dry_run"])
    build = fetcher.build(lambda: call.builder().build(request))
    if build is None:
        return 0
    if given["dry_run"]:
        _show_commands(call, sides, given["seed"] or SEED)
    nodes = nodes_to_rerun(build.plan, words_of(given["rerun"]))
    code = carry_out(call, build, Continuation(), {**_OTHER_OPTIONS, **given}, nodes, fetcher)
    if given["dry_run"]:
        return code
    if code:
        _write_failed_run(call, name, os.path.join(folder, name))
        return code
    return _conclude(call, os.path.join(folder, name), expected, today)


@frozen
class _Side:
    """One side as the command line describes it."""

    choice: RuntimeChoice
    runtime: str
    """As typed."""
    model: str
    command: PluginCommand
    versions: tuple[str, ...]


def _sides(call: CommandContext, given: dict[str, Any]) -> dict[str, _Side]:
    """Return candidate and reference: their models, interpreters and the versions of their libraries."""
    settings = call.parts.settings
    model = given["model"] or find_model(settings.folder)
    models = {"candidate": model, "reference": given["reference_model"] or model}
    places = _places(call)
    found = {}
    for side, path in models.items():
        runtime = given[side] or _default(side, path)
        choice = read_runtime(runtime)
        whole = path if path.startswith(("http://", "https://")) else os.path.join(settings.folder, path)
        if not choice.url and not os.path.exists(whole):
            raise LocalFile(f"there is no model {path!r}", hint="--model FILE or FOLDER; stoker fixtures makes one")
        command = plugin_command(choice, places, seed=given["seed"] or SEED)
        found[side] = _Side(
            choice=choice,
            runtime=runtime,
            model=choice.url or whole,
            command=command,
            versions=_versions(choice, command),
        )
    return found


def find_model(folder: str) -> str:
    """Return the model of a folder (C-36): the first one in `models/`, then in the folder itself."""
    for place in (os.path.join(folder, "models"), folder):
        for parent, folders, names in os.walk(place):
            folders.sort()
            found = sorted(name for name in names if name.endswith((".gguf", ".safetensors")))
            if found:
                path = os.path.join(parent, found[0] if found[0].endswith(".gguf") else "")
                return os.path.relpath(path, folder)
            if place == folder:
                break
    raise LocalFile(
        "there is no model in models/ or in this folder",
        hint="--model PATH; download one: stoker fetch; or make one: stoker fixtures --output models/tiny",
    )


def _default(side: str, model: str) -> str:
    """Return the runtime of a side that was not named."""
    names = runtimes_for(model)
    if not names:
        raise Usage(f"--model {model}: its form is unknown", hint=f"name the runtimes: --{side} {', '.join(RUNTIMES)}")
    if side == "reference" and "llama.cpp" in names:
        return "llama.cpp"
    return names[0]


def _places(call: CommandContext) -> RuntimePlaces:
    parts = call.parts
    reference = find_reference(EnvironmentCache(parts.settings.envs, clock=parts.clock))
    return RuntimePlaces(
        environment=parts.settings.environment,
        folder=parts.settings.folder,
        reference=reference.interpreter if reference is not None else "",
    )


def _versions(choice: RuntimeChoice, command: PluginCommand) -> tuple[str, ...]:
    """Return the versions of a runtime's libraries: a result of other ones is not reused."""
    runtime = RUNTIMES.get(choice.name)
    if runtime is None or not runtime.needs:
        return ()
    packages = packages_in(os.path.dirname(os.path.dirname(command.argv[0])))
    names = [name for group in runtime.needs for name in group if name in packages]
    return tuple(f"{name}=={packages[name]}" for name in names)


def _values(given: dict[str, Any], sides: Mapping[str, _Side], limits: dict[str, float]) -> dict[str, Any]:
    """Return the arguments of the recipe that differ from its defaults."""
    values: dict[str, Any] = {}
    for side, one in sides.items():
        values[side] = one.model
        values[f"{side}_runtime"] = one.runtime
        values[f"{side}_versions"] = list(one.versions)
        if one.choice.name in RUNTIMES and not one.choice.python and one.choice.name != "server":
            values[f"{side}_interpreter"] = one.command.argv[0]
    replays = [side for side in ("reference", "candidate") if "replay" in _abilities(sides[side])]
    values["replay"] = replays[0] if replays else ""
    options = {"text": "texts", "positions": "positions", "chunk": "chunk", "seed": "seed"}
    values |= {key: given[name] for name, key in options.items() if given[name] not in (None, [])}
    values |= {"layers": not given["no_layers"], "decode": not given["no_decode"], "strict": bool(given["strict"])}
    return values | ({"limits": limits} if limits else {})


def _abilities(side: _Side) -> tuple[str, ...]:
    runtime = RUNTIMES.get(side.choice.name)
    return runtime.can if runtime is not None else ()


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


def _show_commands(call: CommandContext, sides: Mapping[str, _Side], seed: int) -> None:
    """Print how each side would be started, and with which variables (C-40)."""
    for side, one in sides.items():
        variables = determinism(one.choice.threads, seed)
        words = [f"{name}={value}" for name, value in sorted(variables.items())]
        argv = [one.command.argv[0], one.choice.label] if one.choice.name in RUNTIMES else list(one.command.argv)
        call.out.object({"side": side, "runtime": one.choice.label, "model": one.model, "environment": variables})
        call.out.line(f"{side}: {shlex.join(argv)} with {one.model}")
        call.out.line(f"  {' '.join(words)}")


def _conclude(call: CommandContext, folder: str, expected: ExpectedFailure | None, today: date) -> int:
    """Print the verdict; return the exit code, or raise what the verdict means."""
    from stoker.crossval.parity_report import VERDICT, read_verdict

    verdict = read_verdict(os.path.join(folder, VERDICT))
    out = call.out
    out.object({"report": folder, **verdict.to_json()})
    out.table(
        [(step.name, str(step.outcome), step.reason) for step in verdict.steps], header=("STEP", "OUTCOME", "REASON")
    )
    out.line(f"report: {os.path.join(near_path(folder, call.parts.settings.folder), 'parity.html')}")
    accepted = accept(verdict, expected, today)
    if accepted.note:
        out.note(f"note: {accepted.note}")
    if accepted.is_pass:
        return 0
    data = {"report": folder, "first_divergence": verdict.first.to_json() if verdict.first else None}
    if verdict.outcome is Outcome.UNDECIDED:
        hint = "give a model whose logits both runtimes return"
        raise ParityUndecided(verdict.reason or "no logits were compared", hint=hint, **data)
    text = verdict.first.text if verdict.first is not None else verdict.reason
    if verdict.first is not None and verdict.first.step == "tokens":
        raise NotVerified(text, hint="are both the same model, with the same tokenizer files?", **data)
    raise ParityFailed(text, hint=f"the report shows every position: {folder}", **data)


def _write_failed_run(call: CommandContext, name: str, folder: str) -> None:
    """Write a report of a run without a verdict, with the error of its job."""
    end = call.lookup.local_job(name).folder.ended()
    raw = (end.error if end is not None else None) or {}
    error = WorkFailed(str(raw.get("message", "the run failed")), hint=str(raw.get("hint", "")))
    _write_failure(call, error, folder, is_dry=False)


def _write_failure(call: CommandContext, error: BaseException, folder: str, *, is_dry: bool) -> None:
    """Write a report of what went wrong, unless there is one of a verdict."""
    if is_dry or isinstance(error, ParityFailed | ParityUndecided | NotVerified | Usage | GeneratorExit):
        return
    from stoker.crossval.parity_report import error_report, write_forms

    known = error if isinstance(error, StokerError) else InternalError(f"{type(error).__name__}: {error}")
    if isinstance(error, KeyboardInterrupt):
        known = Cancelled("interrupted")
    made_at = datetime.fromtimestamp(call.parts.clock.wall_s(), tz=UTC).isoformat(timespec="seconds")
    with suppress(StokerError):
        write_forms(error_report(known, "stoker crossval", made_at=made_at), folder)
        call.out.note(f"report: {folder}")
