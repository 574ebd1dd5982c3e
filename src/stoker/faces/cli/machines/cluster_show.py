"""`stoker cluster show`: the machines of a cluster file, a line for each."""

from __future__ import annotations

from typing import Any

from stoker.config.cluster_file import read_cluster
from stoker.config.cluster_text import node_as_json, render_cluster
from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar
from stoker.faces.cli.machines.cluster_choice import FILE, choose_cluster

GRAMMAR = Grammar(
    "cluster",
    about=(
        "Show the machines of a cluster file: name, address, how it is reached, its devices, and how many jobs it "
        "takes at once."
    ),
    positionals=(FILE,),
    examples=("stoker cluster show", "stoker cluster show lab.yaml --json", "stoker cluster check lab.yaml"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
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
