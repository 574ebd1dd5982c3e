"""The cluster file into nodes: the machines, and the policy for work on them.

    nodes:
      - { name: laptop, host: localhost }
      - name: desk
        host: desk.local
        transport: ssh
        max_adapters: 3
        gpus:
          - { uuid: GPU-8f1c, type: rtx-4090, vram_mb: 24564 }
    users:
      ada: { weight: 2 }
      "*": { most_jobs: 8 }
    pools:
      - { name: a100, backend: slurm, each: { cpu_cores: 8, ram_mb: 65536 }, wall: 4h, max: 8 }

YAML, or TOML with the same keys (`[[nodes]]`, `[[nodes.gpus]]`). All faults of a file are reported at once: first of
single values, then of their combination, node by node.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from stoker.config.compose import scalar_text
from stoker.config.fields import (
    EnumField,
    Field,
    FileDiagnostics,
    Flag,
    IntegerField,
    ListOf,
    MapOf,
    MapSchema,
    NumberField,
    ParsedMap,
    Text,
    read_as,
)
from stoker.config.pools import POOL, check_pools, pool_of, write_pools
from stoker.config.positions import LocatedValue
from stoker.core.device import MIB, MemoryType
from stoker.core.errors import InvalidCluster
from stoker.core.frozen import fields_of
from stoker.core.machine import ANY_USER, Cluster, Gpu, Node, NodeLaunch, NodeTransport, UserPolicy
from stoker.core.pool import is_ssh_destination
from stoker.core.text import NODE_NAME_RULE, counted, is_node_name, one_line

WHAT = "cluster file"
MOST_MIB = 2**30
"""One PiB: more is a mistake in the unit."""
MOST_SLOTS = 100_000
_LEAST_WEIGHT, _MOST_WEIGHT = 0.001, 1000.0
_LONGEST_USER = 200

_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", re.ASCII)
_HOST = re.compile(r"\w[\w.-]{0,253}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}\$?", re.ASCII)
_LOCAL_NAMES = (
    "localhost",
    "localhost.localdomain",
    "localhost6",
    "localhost6.localdomain6",
    "ip6-localhost",
    "ip6-loopback",
)

JOB_LIST = ListOf(Text("a job's or a recipe's name"), is_set=True)


def _is_user(text: str) -> bool:
    return text.isprintable() and len(text) <= _LONGEST_USER and text == text.strip()


def is_host(text: str) -> bool:
    """Return True if a text can be a machine's address: a name, or an IP address, in brackets or not."""
    return _HOST.fullmatch(text) is not None or _address(text) is not None


def is_this_machine(host: str) -> bool:
    """Return True if an address is this machine itself, however it is spelt."""
    name = host.rstrip(".").lower()
    if name in _LOCAL_NAMES or name.endswith(".localhost"):
        return True
    address = _address(host)
    if address is None:
        return False
    inner = getattr(address, "ipv4_mapped", None) or address
    return inner.is_loopback or inner.is_unspecified


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    text = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        pass
    try:
        # As programs read it: 127.1 and 2130706433 are addresses, too.
        return ipaddress.ip_address(socket.inet_aton(text)) if text.isascii() and text[:1].isdigit() else None
    except OSError:
        return None


GPU = MapSchema(
    "GPU",
    (
        Field(
            "uuid",
            Text("an identity such as GPU-8f1c", fits=lambda text: _UUID.fullmatch(text) is not None),
            "its identity, as nvidia-smi -L prints it",
            is_required=True,
        ),
        Field(
            "type",
            Text("a model such as rtx-4090", fits=str.isprintable),
            "its model, such as rtx-4090",
            is_required=True,
        ),
        Field(
            "vram_mb",
            IntegerField(least=1, most=MOST_MIB, unit_bytes=MIB, let_pass=0),
            "its memory in MiB, such as 24564",
            is_required=True,
        ),
        Field("memory_type", EnumField(MemoryType), "discrete: its own memory; unified: the machine's"),
        Field(
            "speed",
            NumberField(least=0.001, most=1000.0),
            "as measured, relative to an RTX 4090 (default: that of its type)",
            may_be_null=True,
        ),
    ),
)

NODE = MapSchema(
    "node",
    (
        Field(
            "name",
            Text("a node's name", fits=is_node_name, hint=NODE_NAME_RULE),
            "its name; the machine's host id",
            is_required=True,
        ),
        Field(
            "host",
            Text("an address", fits=is_host, hint="a name or an IP address; user and port have keys of their own"),
            "its address: a name or an IP address",
            is_required=True,
        ),
        Field(
            "transport",
            EnumField(NodeTransport),
            "how it would be reached from here; shown only",
        ),
        Field(
            "user",
            Text("a user's name", fits=lambda text: _USER.fullmatch(text) is not None, may_be_empty=True),
            "login name there",
            may_be_null=True,
        ),
        Field("gpus", ListOf(GPU), "its devices; none: jobs run on its CPU"),
        Field(
            "max_adapters",
            IntegerField(least=1, most=MOST_SLOTS, let_pass=0),
            "maximum number of jobs at once; more than one: they may share devices",
        ),
        Field("cpu_cores", IntegerField(least=1, most=1_000_000), "physical cores", may_be_null=True),
        Field("ram_mb", IntegerField(least=1, most=MOST_MIB, unit_bytes=MIB), "memory in MiB", may_be_null=True),
        Field(
            "slots",
            IntegerField(least=1, most=MOST_SLOTS),
            "maximum number of jobs at once (default: max_adapters, or one per device)",
            may_be_null=True,
        ),
        Field(
            "shares_devices",
            Flag(),
            "whether jobs may share a device (default: true if max_adapters is more than one)",
            may_be_null=True,
        ),
        Field("allow_jobs", JOB_LIST, "only these jobs or recipes; empty: all"),
        Field("deny_jobs", JOB_LIST, "not these; takes precedence over allow_jobs"),
        Field("priority", IntegerField(least=-(2**31)), "preferred over others if higher"),
        Field("description", Text(may_be_empty=True), "a note for people"),
        Field("launch", EnumField(NodeLaunch), "when its worker is started over SSH (default: manual)"),
    ),
)

USER = MapSchema(
    "user",
    (
        Field(
            "weight",
            NumberField(least=_LEAST_WEIGHT, most=_MOST_WEIGHT),
            "share beside other users within a priority: 2 is twice as much as 1, which is the default",
        ),
        Field("most_jobs", IntegerField(least=1), "maximum number of jobs at once", may_be_null=True),
        Field("most_devices", IntegerField(least=1), "maximum number of devices at once", may_be_null=True),
    ),
    meant={
        **dict.fromkeys(("share", "shares", "priority"), "weight"),
        **dict.fromkeys(("jobs", "max_jobs"), "most_jobs"),
        **dict.fromkeys(("devices", "gpus", "max_devices", "max_gpus", "most_gpus"), "most_devices"),
    },
)

CLUSTER = MapSchema(
    WHAT,
    (
        Field("nodes", ListOf(NODE), "the machines", may_be_null=True),
        Field(
            "users",
            MapOf(USER, Text(f"a user's name, or {ANY_USER}", fits=_is_user)),
            f"shares and limits by user, as `stoker jobs show` names the submitter; {ANY_USER}: users without an entry",
            may_be_null=True,
        ),
        Field("pools", ListOf(POOL), "machines that can be started when jobs wait", may_be_null=True),
    ),
)


def read_cluster(name: str, path: str) -> Cluster:
    """Read a cluster file, called `name` in messages.

    Raises `InvalidCluster` with all faults, or `LocalFile` if it can't be read at all.
    """
    return read_as(WHAT, name, path, cluster_of)


def cluster_of(reading: FileDiagnostics, tree: LocatedValue | None) -> Cluster:
    """Build the nodes of an open file."""
    nodes: tuple[ParsedMap, ...] = ()
    users: Mapping[str, ParsedMap] = {}
    pools: tuple[ParsedMap, ...] = ()
    if tree is not None:
        given: ParsedMap = CLUSTER.read(tree, "", reading)
        nodes, users = given.get("nodes", ()), given.get("users", {})
        listed = tree.value.get("nodes", tree)
        # Machines that join need no entry, so a file may be about users or pools alone.
        if (listed is tree or not listed.value) and not given.says("users") and not given.says("pools"):
            hint = "such as - {name: laptop, host: localhost}"
            reading.refuse(listed, "nodes", "a cluster has at least one node", hint)
        _Rules(reading).check(nodes)
        pools = given.get("pools", ())
        check_pools(reading, pools, nodes)
    reading.raise_any(InvalidCluster)
    return Cluster(
        nodes=tuple(map(_node, nodes)),
        users={name: UserPolicy(**user.values) for name, user in users.items()},
        pools=tuple(map(pool_of, pools)),
    )


class _Rules:
    """Checks of nodes and their devices together, in the order of system B."""

    def __init__(self, reading: FileDiagnostics) -> None:
        self._reading = reading
        self._names: dict[str, ParsedMap] = {}
        self._devices: dict[str, tuple[ParsedMap, ParsedMap]] = {}

    def check(self, nodes: tuple[ParsedMap, ...]) -> None:
        for node in nodes:
            self._check_name(node)
            self._check_slots(node)
            self._check_address(node)
            for gpu in node.get("gpus", ()):
                self._check_memory(node, gpu)
                self._check_uuid(node, gpu)

    def _check_name(self, node: ParsedMap) -> None:
        name = node.get("name")
        if name is None:
            return
        first = self._names.setdefault(name, node)
        if first is not node:
            self._refuse(node, "name", f"duplicate node name {name!r}", f"first on line {first.at('name').line}")

    def _check_slots(self, node: ParsedMap) -> None:
        if node.get("max_adapters") == 0:
            message = f"{_called(node)}: max_adapters is 0, so it would never get a job"
            self._refuse(node, "max_adapters", message, "at least 1; remove a node that takes no work")

    def _check_address(self, node: ParsedMap) -> None:
        host = node.get("host")
        if host is None or node.get("transport") is not NodeTransport.SSH:
            return
        if is_this_machine(host):
            message = f"{_called(node)}: SSH transport to {host} leads back to the machine it starts from"
            self._refuse(node, "host", message, "transport: local, or the machine's own address")
        user = node.get("user")
        destination = f"{user}@{host}" if user else host
        if node.get("launch") is NodeLaunch.AUTO and not is_ssh_destination(destination):
            message = f"{_called(node)}: {one_line(destination, 80)!r} is not an SSH destination that workers start at"
            hint = "host: letters a to z, digits and _ . - : %, such as a name of ~/.ssh/config; or launch: manual"
            self._refuse(node, "host", message, hint)

    def _check_memory(self, node: ParsedMap, gpu: ParsedMap) -> None:
        if gpu.get("vram_mb") == 0:
            message = f"{_called(node)}, GPU {gpu.get('uuid', '?')}: zero VRAM"
            self._refuse(gpu, "vram_mb", message, "vram_mb is its memory in MiB, such as 24564")

    def _check_uuid(self, node: ParsedMap, gpu: ParsedMap) -> None:
        uuid = gpu.get("uuid")
        if uuid is None:
            return
        first_node, first = self._devices.setdefault(uuid.casefold(), (node, gpu))
        if first is gpu:
            return
        where = "it" if first_node is node else _called(first_node)
        message = f"{_called(node)}: duplicate GPU UUID {uuid}: also in {where}, line {first.at('uuid').line}"
        self._refuse(gpu, "uuid", message, "a device is in one machine, once")

    def _refuse(self, given: ParsedMap, name: str, message: str, hint: str) -> None:
        self._reading.refuse(given.at(name), f"{given.key}.{name}", message, hint)


def _called(node: ParsedMap) -> str:
    name = node.get("name")
    return f"node {name}" if name else f"the node {node.key}"


def _node(given: ParsedMap) -> Node:
    values = dict(given.values)
    values["gpus"] = tuple(Gpu(**gpu.values) for gpu in given.get("gpus", ()))
    return Node(**values)


# A cluster as text: the form for people, and the file that reads back as the same cluster.

_LEFT_OUT: dict[str, Any] = fields_of(Node(name="", host="")) | fields_of(Gpu(uuid="", type="", vram_mb=0))


def render_cluster(cluster: Cluster) -> str:
    """Format a cluster for people: a line of sums, then a line for each node. No line end after the last.

    It is wide, with aligned columns.
    """
    count, slots = len(cluster.nodes), cluster.adapter_slots
    head = f"{counted(count, 'node')}, {counted(slots, 'adapter slot')}"
    rows = [(node.name, node.host, str(node.transport), _devices(node)) for node in cluster.nodes]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines = [head]
    for row, node in zip(rows, cluster.nodes, strict=True):
        cells = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        lines.append(f"  {cells}  max_adapters {node.max_adapters}")
    return "\n".join(lines)


def write_cluster(cluster: Cluster) -> str:
    """Format a cluster as a YAML file: each node's keys one below the other, a device per line, without defaults."""
    lines = ["nodes:"] if cluster.nodes else ["nodes: []"]
    for node in cluster.nodes:
        for position, line in enumerate(_node_lines(node)):
            lines.append(f"  {'- ' if position == 0 else '  '}{line}")
    if cluster.users:
        lines.append("users:")
    for name, user in cluster.users.items():
        inside = ", ".join(f"{key}: {_text(value)}" for key, value in fields_of(user).items() if value is not None)
        lines.append(f"  {scalar_text(name)}: {{{inside}}}")
    lines += write_pools(cluster.pools)
    return "".join(f"{line}\n" for line in lines)


def node_as_json(node: Node) -> dict[str, Any]:
    """Return a node as JSON: every key of the file, defaults included."""
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
    """Return the values that differ from the defaults, and those without one."""
    for key, value in fields_of(noun).items():
        if key in _ALWAYS or value != _LEFT_OUT[key]:
            yield key, value


def _text(value: Any) -> str:
    if type(value) is tuple:
        return f"[{', '.join(map(scalar_text, value))}]"
    return str(value) if isinstance(value, StrEnum) else scalar_text(value)


_ALWAYS = frozenset({"name", "host", "uuid", "type", "vram_mb"})
