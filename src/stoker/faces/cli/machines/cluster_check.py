"""`stoker cluster check`: every fault of a cluster file, with its line."""

from __future__ import annotations

from typing import Any

from stoker.config.cluster_file import read_cluster
from stoker.faces.cli.call import Call
from stoker.faces.cli.declared_files import Declared, tell_declared
from stoker.faces.cli.grammar import Grammar
from stoker.faces.cli.machines.cluster_choice import FILE, choose_cluster

GRAMMAR = Grammar(
    "cluster check",
    about=(
        "Check a cluster file: its values, its names and addresses, devices that stand in it twice. All faults are "
        "told at once, each with file, line, key and value. Exit code 23 if there are any."
    ),
    positionals=(FILE,),
    examples=("stoker cluster check", "stoker cluster check lab.yaml --json", "stoker check lab.yaml jobs.toml"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Check it."""
    name, path = choose_cluster(call, given["file"])
    tell_declared(call, [Declared.of(name, path, read_cluster)])
    return 0
