"""The witness system_profiler: the GPUs of a Mac and whether Metal can be spoken to them.

Reading is pure and never raises. Written from published outputs; untested on a Mac.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stoker.hardware.probes.asking import Reply, Silent
from stoker.hardware.probes.cells import size_cell, text_cell
from stoker.hardware.probes.noticing import garbage, silence
from stoker.hardware.probes.sighting import Sighting, Statement
from stoker.model import json_text
from stoker.model.devices import Backend, MemoryType

WITNESS = "system_profiler"
_KEY = "SPDisplaysDataType"
_FAMILY = re.compile(r"metal(\d*)", re.IGNORECASE)


def question(program: str = WITNESS) -> list[str]:
    """Give the command that lists graphics hardware."""
    return [program, _KEY, "-json"]


def read(reply: Reply) -> Statement:
    """Give what system_profiler said."""
    if isinstance(reply, Silent):
        return Statement(witness=WITNESS, findings=(silence(reply, WITNESS),), was_heard=False)
    try:
        value = json_text.loads(reply.out)
        rows = [row for row in value[_KEY] if isinstance(row, dict)]
    except (ValueError, TypeError, KeyError):
        finding = garbage(WITNESS, "it printed no list of displays", reply.err or reply.out)
        return Statement(witness=WITNESS, findings=(finding,), was_heard=False)
    able = [(number, row) for number, row in enumerate(rows) if _metal(row) is not None]
    versions = [version for _, row in able if (version := _metal(row))]
    return Statement(
        witness=WITNESS,
        sightings=tuple(_sighting(number, row) for number, row in able),
        backends={Backend.METAL: max(versions, default="")} if able else {},
    )


def _metal(row: Mapping[str, Any]) -> str | None:
    """Give the version of Metal that a GPU speaks, empty if it is not told, `None` if it speaks none."""
    for key in ("spdisplays_mtlgpufamilysupport", "spdisplays_metal", "spdisplays_metalfamily"):
        value = str(row.get(key, ""))
        if "unsupported" in value or "notsupported" in value.replace("_", ""):
            return None
        if found := _FAMILY.search(value):
            return found[1]
        if "supported" in value:
            return ""
    return None


def _sighting(number: int, row: Mapping[str, Any]) -> Sighting:
    own = _size(row, ("spdisplays_vram", "_spdisplays_vram"))
    return Sighting(
        backend=Backend.METAL,
        index=number,
        name=text_cell(row.get("sppci_model")) or text_cell(row.get("_name")),
        # Apple's own GPUs and Intel's in the processor work in the machine's memory.
        memory_type=MemoryType.UNIFIED if own is None else MemoryType.DISCRETE,
        total_bytes=own,
    )


def _size(row: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        try:
            return size_cell(str(row.get(key, ""))) or None
        except ValueError:
            continue
    return None
