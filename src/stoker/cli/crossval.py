"""`stoker crossval`: compare a model with a reference, or two jobs with each other. `full-crossval`: fetch first."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional, whole
from stoker.cli.local_run import CommandInputFetcher
from stoker.cli.run import carry_out, nodes_to_rerun, running, words_of
from stoker.core.errors import (
    LocalFile,
    NotVerified,
    ParityFailed,
    ParityUndecided,
    StokerError,
    Usage,
)
from stoker.core.frozen import changed
from stoker.jobs.execution import Continuation
from stoker.jobs.request import JobRequest

if TYPE_CHECKING:
    from stoker.crossval.runtimes import RuntimeChoice, RuntimePlaces

RECIPE = "crossval/parity"
_NAME = "crossval"
_KEPT_OPTIONS = ("--dry-run", "--rerun", "--name", "--out", "--timeout", "--contain")
_OTHER_OPTIONS = {"keep_going": False, "max_failures": None, "solo": False, "jobs": None, "no_out": False, "wandb": None}
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
    positionals=(
        Positional("JOB", key="jobs_compared", help="two jobs to compare", is_many=True, completes="job"),
    ),
    options=(*_OPTIONS, *(one for one in running(_NAME) if one.flag in _KEPT_OPTIONS)),
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

    today = datetime.fromtimestamp(call.parts.clock.wall_s()).astimezone().date()
    expected = parse_xfail(given["xfail"], today) if given["xfail"] else None
    overrides = _overrides(call, given)
    if given["dry_run"]:
        _show_commands(call, overrides)
    request = JobRequest(target=RECIPE, overrides=tuple(f"{key}={value}" for key, value in overrides.items()), name=name)
    fetcher = CommandInputFetcher(call, is_dry=given["dry_run"])
    build = fetcher.build(lambda: call.builder().build(request))
    if build is None:
        return 0
    options = {**_OTHER_OPTIONS, **given}
    nodes = nodes_to_rerun(build.plan, words_of(given["rerun"]))
    code = carry_out(call, build, Continuation(), options, nodes, fetcher)
    if code or given["dry_run"]:
        return code
    return _conclude(call, os.path.join(folder, name), expected, today)
