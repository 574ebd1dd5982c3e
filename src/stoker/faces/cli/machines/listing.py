"""`stoker machines`: the machines that Stoker knows: this one, and beside it those of the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import AT, reach_if_any
from stoker.faces.cli.grammar import Grammar
from stoker.faces.view.devices import devices_text, ram_text
from stoker.faces.view.fleet import MACHINE_HEADER, machine_row
from stoker.faces.view.tables import table
from stoker.hardware.requiring import faked_by
from stoker.model.capability import Capability

if TYPE_CHECKING:
    from stoker.wire.client import FleetClient

GRAMMAR = Grammar(
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


def perform(call: Call, given: dict[str, Any]) -> int:
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


def _list_fleet(call: Call, client: FleetClient) -> None:
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
