"""`stoker machines`: the machines that Stoker knows. Today that is this one."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar
from stoker.faces.view.devices import devices_text, ram_text
from stoker.faces.view.tables import table
from stoker.hardware.requiring import faked_by
from stoker.model.capability import Capability

GRAMMAR = Grammar(
    "machines",
    about="List the machines that Stoker knows: cores, memory, devices with what is free, recipes. Today, this one.",
    examples=("stoker machines", "stoker machines show", "stoker machines export --out cluster.yaml"),
)


def perform(call: Call, _given: dict[str, Any]) -> int:
    """List them."""
    out = call.out
    capability = call.parts.capability
    about = {"name": capability.hostname, "is_here": True, "label": faked_by(capability)}
    out.object({**capability.to_dict(), **about})
    for line in table(
        [_row(capability)], header=("machine", "cores", "RAM", "recipes", "devices"), columns=out.columns
    ):
        out.line(line)
    return 0


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
