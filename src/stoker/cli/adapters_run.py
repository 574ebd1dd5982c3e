"""`stoker adapters run`: the adapters of a file, trained together here and now."""

from __future__ import annotations

from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Positional
from stoker.cli.local_run import CommandInputFetcher
from stoker.cli.run import carry_out, nodes_to_rerun, refuse_words, running, words_of
from stoker.jobs.request import JobRequest
from stoker.jobs.rerun import go_on

GRAMMAR = Grammar(
    "adapters run",
    about=(
        "Train the adapters of a file over one base, in one process, as many at once as memory allows. Each has a "
        "label, data, checkpoints and settings of its own; one that ends, or fails, leaves the others as they are. "
        "Results lie in stoker-out/NAME/LABEL, the best one also in stoker-out/NAME/best if all were measured on the "
        "same data; checkpoints in the folders that the file names. The same command goes on after an interruption."
    ),
    positionals=(
        Positional("FILE", key="file", help="the adapters, in TOML or YAML: [[adapter]] with data and checkpoint"),
        Positional(
            "key=value",
            key="values",
            help="what holds for every adapter that says nothing else: base=org/name, rank=16, epochs=1, "
            "schedule=round_robin, and whatever else language/lora takes",
            is_many=True,
            is_required=False,
        ),
    ),
    options=running("the file's name"),
    examples=(
        "stoker adapters run adapters.toml",
        "stoker adapters run adapters.toml base=Qwen/Qwen2.5-0.5B epochs=1 --dry-run",
        "stoker adapters run adapters.toml --solo --name one-by-one",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Train a file's adapters, or show what that would do."""
    refuse_words(given["values"], "one file at a time; settings are one word each, without spaces around the =")
    fetcher, builder = CommandInputFetcher(call, is_dry=given["dry_run"]), call.builder()
    request = JobRequest(
        target=given["file"], is_adapters_file=True, overrides=tuple(given["values"]), name=given["name"] or ""
    )
    build = fetcher.build(lambda: builder.build(request))
    if build is None:
        return 0
    nodes = nodes_to_rerun(build.plan, words_of(given["rerun"]))
    going_on = go_on(build, call.parts.cache, call.sweeps_folder(), afresh=bool(nodes))
    return carry_out(call, build, going_on, given, nodes, fetcher)
