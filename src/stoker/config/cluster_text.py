"""A cluster as text: the form that people read, and the file that reads back as the same cluster."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from stoker.config.view import scalar_text
from stoker.model.frozen import fields_of
from stoker.model.nodes import Cluster, Gpu, Node
from stoker.model.printable import one_line

_LEFT_OUT: dict[str, Any] = fields_of(Node(name="", host="")) | fields_of(Gpu(uuid="", type="", vram_mb=0))


def render_cluster(cluster: Cluster) -> str:
    """Write a cluster for people: a line of sums, then a line for each node. No line end after the last.

    It is wide, and its columns stand below each other.
    """
    count, slots = len(cluster.nodes), cluster.adapter_slots
    head = f"{count:,} node{'' if count == 1 else 's'}, {slots:,} adapter slot{'' if slots == 1 else 's'}"
    rows = [(node.name, node.host, str(node.transport), _devices(node)) for node in cluster.nodes]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines = [head]
    for row, node in zip(rows, cluster.nodes, strict=True):
        cells = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        lines.append(f"  {cells}  max_adapters {node.max_adapters}")
    return "\n".join(lines)


def write_cluster(cluster: Cluster) -> str:
    """Write a cluster as a YAML file: each node's keys below each other, a device per line, defaults left out."""
    lines = ["nodes:"] if cluster.nodes else ["nodes: []"]
    for node in cluster.nodes:
        for position, line in enumerate(_node_lines(node)):
            lines.append(f"  {'- ' if position == 0 else '  '}{line}")
    if cluster.users:
        lines.append("users:")
    for name, user in cluster.users.items():
        inside = ", ".join(f"{key}: {_text(value)}" for key, value in fields_of(user).items() if value is not None)
        lines.append(f"  {scalar_text(name)}: {{{inside}}}")
    return "".join(f"{line}\n" for line in lines)


def node_as_json(node: Node) -> dict[str, Any]:
    """Give a node as JSON does: every key of the file, defaults included."""
    return {**fields_of(node), "gpus": [fields_of(gpu) for gpu in node.gpus]}


def _devices(node: Node) -> str:
    return " ".join(f"[{one_line(gpu.type)} {gpu.vram_mb} MB {gpu.memory_type}]" for gpu in node.gpus) or "CPU-only"


def _node_lines(node: Node) -> Iterator[str]:
    for key, value in _given(node):
        if key == "gpus":
            yield "gpus:"
            for gpu in node.gpus:
                inside = ", ".join(f"{key}: {_text(value)}" for key, value in _given(gpu))
                yield f"  - {{{inside}}}"
        else:
            yield f"{key}: {_text(value)}"


def _given(noun: Node | Gpu) -> Iterator[tuple[str, Any]]:
    """Give what differs from the defaults, and what has none."""
    for key, value in fields_of(noun).items():
        if key in _ALWAYS or value != _LEFT_OUT[key]:
            yield key, value


def _text(value: Any) -> str:
    if type(value) is tuple:
        return f"[{', '.join(map(scalar_text, value))}]"
    return str(value) if isinstance(value, StrEnum) else scalar_text(value)


_ALWAYS = frozenset({"name", "host", "uuid", "type", "vram_mb"})
