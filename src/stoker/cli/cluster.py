"""Which cluster file is meant: the one that is named, the one that lies here, or the one that the environment names."""

from __future__ import annotations

import os
from typing import Any

from stoker.cli.check_files import DeclaredFileCheck, tell_declared
from stoker.cli.commands import verbs_of
from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Positional
from stoker.cli.suggestions import instead
from stoker.config.cluster_file import node_as_json, read_cluster, render_cluster
from stoker.config.config_file import SUFFIXES
from stoker.core.errors import LocalFile, Usage
from stoker.core.text import nearest

NAMES = ("cluster.yaml", "cluster.yml", "cluster.toml")
VARIABLE = "STOKER_CLUSTER"

FILE = Positional(
    "FILE",
    help=f"a cluster file; unless told, {NAMES[0]} in this folder, else what {VARIABLE} names",
    is_required=False,
)


def choose_cluster(call: CommandContext, typed: str) -> tuple[str, str]:
    """Return the cluster file that is meant: as it was called, and its whole path. `typed` may be empty."""
    settings = call.parts.settings
    here = next((name for name in NAMES if os.path.exists(os.path.join(settings.folder, name))), "")
    chosen = typed or here or settings.environment.get(VARIABLE, "")
    if typed and not typed.endswith(SUFFIXES) and not os.path.exists(call.path(typed)):
        meant = nearest(typed, [verb.path[1] for verb in verbs_of("cluster")])
        near = f"did you mean `stoker cluster {meant}`?" if meant else f"a cluster file is {' or '.join(SUFFIXES)}"
        hint = instead("cluster", [typed]) or near
        raise Usage(f"`stoker cluster` does not know {typed!r}", hint=hint)
    if not chosen:
        hint = f"name one, set {VARIABLE}, or write one: stoker machines export --out {NAMES[0]}"
        raise LocalFile(f"there is no {NAMES[0]} in this folder", hint=hint, path=NAMES[0])
    return chosen, call.path(chosen)


# `stoker cluster check`: every fault of a cluster file, with its line.

CLUSTER_CHECK_GRAMMAR = Grammar(
    "cluster check",
    about=(
        "Check a cluster file: its values, its names and addresses, devices that stand in it twice. All faults are "
        "told at once, each with file, line, key and value. Exit code 23 if there are any."
    ),
    positionals=(FILE,),
    examples=("stoker cluster check", "stoker cluster check lab.yaml --json", "stoker check lab.yaml jobs.toml"),
)


def perform_cluster_check(call: CommandContext, given: dict[str, Any]) -> int:
    """Check it."""
    name, path = choose_cluster(call, given["file"])
    tell_declared(call, [DeclaredFileCheck.of(name, path, read_cluster)])
    return 0


# `stoker cluster show`: the machines of a cluster file, a line for each.

CLUSTER_SHOW_GRAMMAR = Grammar(
    "cluster",
    about=(
        "Show the machines of a cluster file: name, address, how it is reached, its devices, and how many jobs it "
        "takes at once."
    ),
    positionals=(FILE,),
    examples=("stoker cluster show", "stoker cluster show lab.yaml --json", "stoker cluster check lab.yaml"),
)


def perform_cluster_show(call: CommandContext, given: dict[str, Any]) -> int:
    """Show them."""
    name, path = choose_cluster(call, given["file"])
    cluster = read_cluster(name, path)
    call.out.object(
        {
            "file": name,
            "path": path,
            "nodes": [node_as_json(node) for node in cluster.nodes],
            "adapter_slots": cluster.adapter_slots,
        }
    )
    call.out.line(render_cluster(cluster))
    return 0
