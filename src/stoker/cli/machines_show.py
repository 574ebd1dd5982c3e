"""`stoker machines show`: one machine's whole capability, and where each fact came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT, reach_if_any
from stoker.cli.grammar import Grammar, Positional
from stoker.core.capability import Capability
from stoker.core.device import Device
from stoker.core.errors import NotFound
from stoker.core.text import format_size
from stoker.devices.checkup import faked_by
from stoker.views.device_lines import devices_text, ram_text
from stoker.views.fleet_lines import MACHINE_HEADER, machine_lines, machine_row
from stoker.views.text_tables import table

if TYPE_CHECKING:
    from stoker.protocol.client import FleetClient


# `stoker machines`: the machines that Stoker knows: this one, and beside it those of the fleet.

LISTING_GRAMMAR = Grammar(
    "machines",
    about=(
        "List the machines that Stoker knows: this one with its cores, memory, devices and what is free; and, where "
        "there is a coordinator, those of its fleet with what they hold and whether they take jobs."
    ),
    options=(AT,),
    examples=(
        "stoker machines",
        "stoker machines show",
        "stoker machines drain lab1 --for 2h",
        "stoker machines export --out cluster.yaml",
    ),
)


def perform_listing(call: CommandContext, given: dict[str, Any]) -> int:
    """List them."""
    out = call.out
    client = reach_if_any(call, given["at"])
    capability = call.parts.capability
    about = {"name": capability.hostname, "is_here": True, "label": faked_by(capability)}
    out.object({**capability.to_dict(), **about})
    for line in table(
        [_row(capability)], header=("machine", "cores", "RAM", "recipes", "devices"), columns=out.columns
    ):
        out.line(line)
    if client is not None:
        _list_fleet(call, client)
    return 0


def _list_fleet(call: CommandContext, client: FleetClient) -> None:
    out, now_s = call.out, call.parts.clock.wall_s()
    machines = client.machines()
    for machine in machines:
        out.object({**machine.model_dump(mode="json"), "is_here": False})
    out.line(f"\nfleet of {client.url}" + ("" if machines else ": no machine belongs to it"))
    if machines:
        for line in table([machine_row(one, now_s) for one in machines], header=MACHINE_HEADER, columns=out.columns):
            out.line(line)
    else:
        is_local = client.url.startswith("http://")
        out.note(f"hint: stoker {f'work --join {client.url}' if is_local else 'machines invite'}")


def _row(capability: Capability) -> list[str]:
    usable = capability.usable_devices
    others = len(capability.devices) - len(usable)
    devices = [devices_text(usable)] if usable else ["none: CPU only"]
    devices += [f"{others} that can't be used"] if others else []
    label = faked_by(capability)
    return [
        capability.hostname,
        str(capability.cpu_cores),
        ram_text(capability),
        str(len(capability.recipes)),
        "; ".join(devices) + (f" ({label})" if label else ""),
    ]


SHOW_GRAMMAR = Grammar(
    "machines show",
    about="Show everything that was found out about a machine, and who said it. With --json it is one object.",
    positionals=(Positional("NAME", help="which machine; this one unless told", is_required=False),),
    options=(AT,),
    examples=("stoker machines show", "stoker machines show lab1", "stoker machines show --json"),
)


def perform_show(call: CommandContext, given: dict[str, Any]) -> int:
    """Show it."""
    out = call.out
    capability = call.parts.capability
    name = given["name"]
    if name and (given["at"] or name != capability.hostname):
        return _show_of_fleet(call, name, given["at"])
    label = faked_by(capability)
    out.object({**capability.to_dict(), "label": label})
    out.line(f"{capability.hostname}{f' ({label})' if label else ''}")
    rows = _facts(capability)
    for line in table(rows, header=("", "", "said by"), indent="  "):
        out.line(line)
    for one in capability.devices:
        out.line(f"\n{one.name} ({one.backend}{', faked' if one.is_fake else ''})")
        for line in table(_device_facts(one), indent="  "):
            out.line(line)
    for finding in capability.findings:
        out.line(f"\n{finding.code}: {finding.message}{f' (hint: {finding.hint})' if finding.hint else ''}")
    return 0


def _show_of_fleet(call: CommandContext, name: str, at: str | None) -> int:
    """Show a machine of the fleet."""
    client = reach_if_any(call, at)
    if client is None:
        if call.incomplete is not None:
            raise call.incomplete
        here = call.parts.capability.hostname
        raise NotFound(f"there is no machine {name!r}", hint=f"this one is {here}; `stoker machines` lists")
    machine, out = client.machine(name), call.out
    out.object({**machine.model_dump(mode="json"), "is_here": False})
    for line in machine_lines(machine, call.parts.clock.wall_s()):
        out.line(line)
    return 0


def _facts(capability: Capability) -> list[list[str]]:
    sources = capability.sources

    def by(field: str) -> str:
        return sources.get(field, "")

    rows = [
        ["name", capability.hostname, by("hostname")],
        ["system", f"{capability.os} {capability.arch}", by("os")],
        ["cpu", capability.cpu_name or "unknown", by("cpu_name")],
        ["cores", f"{capability.cpu_cores} ({capability.cpu_threads} threads)", by("cpu_cores")],
        ["RAM", ram_text(capability), by("ram")],
        ["commit", capability.training_commit or "none", by("training_commit")],
    ]
    rows += [
        [str(backend), version or "yes", by(str(backend)) or "implied"]
        for backend, version in capability.backends.items()
    ]
    for one in capability.interpreters:
        torch = f"torch {one.torch}{f' for {one.torch_cuda}' if one.torch_cuda else ''}" if one.torch else "no torch"
        rows.append([f"python {one.version}", f"{one.path}, {torch}", by("interpreters")])
    rows.append(["recipes", str(len(capability.recipes)), by("recipes")])
    rows.append(["digest", str(capability.digest)[:12], ""])
    return rows


def _device_facts(one: Device) -> list[list[str]]:
    shown = {
        "uuid": one.uuid,
        "index": "" if one.index is None else str(one.index),
        "memory_type": str(one.memory_type),
        "total_bytes": "" if one.total_bytes is None else format_size(one.total_bytes),
        "free_bytes": "" if one.free_bytes is None else format_size(one.free_bytes),
        "driver": one.driver,
        "capability": one.capability,
        "pci": one.pci,
        **{
            name: f"{answer.verdict}{f': {answer.why}' if answer.why else ''}"
            for name, answer in (("installed", one.installed), ("visible", one.visible), ("usable", one.usable))
        },
    }
    return [
        [field.removesuffix("_bytes"), value or "unknown", one.sources.get(field, "")] for field, value in shown.items()
    ]
