"""`stoker machines export`: a cluster file for this machine, its devices by UUID."""

from __future__ import annotations

from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option
from stoker.config.cluster_file import node_as_json, write_cluster
from stoker.core.errors import LocalFile
from stoker.core.machine import Cluster
from stoker.devices.checkup import faked_by
from stoker.host.durable import create_file, write_file
from stoker.scheduler.offers import node_of

GRAMMAR = Grammar(
    "machines export",
    about=(
        "Write a cluster file for this machine: cores, memory, every device by UUID. To standard output, unless --out "
        "names a file. `stoker check` reads it back."
    ),
    options=(
        Option("--out", value="FILE", help="write it there instead of to standard output"),
        Option("--force", help="replace what is there"),
    ),
    examples=("stoker machines export", "stoker machines export --out cluster.yaml"),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Write it."""
    out = call.out
    capability = call.parts.capability
    node = node_of(capability)
    label = faked_by(capability)
    text = f"# {label}\n" if label else ""
    text += write_cluster(Cluster(nodes=(node,)))
    path = call.path(given["out"]) if given["out"] else ""
    if path:
        _write(path, text, force=given["force"])
    out.object({"path": path or None, "nodes": [node_as_json(node)], "is_fake": capability.is_fake, "text": text})
    if not path:
        out.line(text.rstrip("\n"))
    elif not out.is_quiet:
        devices = "1 device" if len(node.gpus) == 1 else f"{len(node.gpus)} devices"
        out.line(f"{node.name} with {devices} in {path}{f' ({label})' if label else ''}")
    unknown = [one.name for one in capability.devices if one.uuid not in {gpu.uuid for gpu in node.gpus}]
    if unknown:
        out.note(f"left out, their memory is unknown: {', '.join(unknown)}")
    return 0


def _write(path: str, text: str, *, force: bool) -> None:
    if force:
        write_file(path, text.encode())
    elif not create_file(path, text.encode()):
        raise LocalFile(f"{path} is there already", hint="choose another name, or replace it with --force", path=path)
