"""AMD's witnesses: amd-smi, and rocm-smi, which it replaces. Both print JSON, in shapes that change with versions.

Reading is pure and never raises. Written from documented and published outputs; untested on AMD hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stoker.hardware.probes.asking import Reply, Silent
from stoker.hardware.probes.cells import count_value, size_cell, text_cell
from stoker.hardware.probes.noticing import garbage, silence
from stoker.hardware.probes.sighting import Sighting, Statement, tidy_pci
from stoker.model import json_text
from stoker.model.capability import ProbeFinding
from stoker.model.devices import Backend

AMD_SMI = "amd-smi"
ROCM_SMI = "rocm-smi"

_CARD = re.compile(r"card(\d+)")
_HEX = re.compile(r"[0-9a-fA-F]{1,16}")
_LIST_KEYS = ("gpu_data", "gpus", "gpu")
_PERMISSION = ("permission", "not permitted", "render group", "video group")


def amd_question(program: str = AMD_SMI) -> list[str]:
    """Give the command that lists devices, the newer way."""
    return [program, "static", "--asic", "--bus", "--vram", "--driver", "--json"]


def rocm_question(program: str = ROCM_SMI) -> list[str]:
    """Give the command that lists devices, the older way."""
    wanted = ["--showproductname", "--showmeminfo", "vram", "--showuniqueid", "--showbus", "--showdriverversion"]
    return [program, *wanted, "--json"]


def read_amd(reply: Reply) -> Statement:
    """Give what amd-smi said."""
    value, failed = _json(reply, AMD_SMI)
    if failed is not None:
        return failed
    rows = value if isinstance(value, list) else _listed(value)
    sightings, findings = _each(AMD_SMI, [row for row in rows if isinstance(row, dict)], _of_amd)
    return _statement(AMD_SMI, sightings, findings)


def read_rocm(reply: Reply) -> Statement:
    """Give what rocm-smi said."""
    value, failed = _json(reply, ROCM_SMI)
    if failed is not None:
        return failed
    if not isinstance(value, dict):
        finding = garbage(ROCM_SMI, "its JSON is no object", reply.out)
        return Statement(witness=ROCM_SMI, findings=(finding,), was_heard=False)
    system = value.get("system")
    driver = _first(system, "Driver version") if isinstance(system, dict) else ""
    cards = [
        {**row, "_index": int(found[1]), "_driver": driver}
        for name, row in value.items()
        if (found := _CARD.fullmatch(name)) and isinstance(row, dict)
    ]
    sightings, findings = _each(ROCM_SMI, cards, _of_rocm)
    return _statement(ROCM_SMI, sightings, findings)


def _statement(witness: str, sightings: list[Sighting], findings: list[ProbeFinding]) -> Statement:
    return Statement(
        witness=witness,
        sightings=tuple(sightings),
        backends={Backend.ROCM: ""} if sightings else {},
        findings=tuple(findings),
    )


def _json(reply: Reply, witness: str) -> tuple[Any, Statement | None]:
    """Give the JSON in an answer, or the statement that there is none. Warnings may stand before and after it."""
    if isinstance(reply, Silent):
        return None, Statement(witness=witness, findings=(silence(reply, witness),), was_heard=False)
    starts = [at for at in (reply.out.find("{"), reply.out.find("[")) if at >= 0]
    end = max(reply.out.rfind("}"), reply.out.rfind("]"))
    try:
        return json_text.loads(reply.out[min(starts) : end + 1] if starts else ""), None
    except ValueError:
        return None, Statement(witness=witness, findings=(_unreadable(reply.out, reply.err, witness),), was_heard=False)


def _unreadable(out: str, err: str, witness: str) -> ProbeFinding:
    said = f"{err} {out}".strip()
    if any(word in said.lower() for word in _PERMISSION):
        return ProbeFinding(
            code="probe_permission",
            message=f"{witness} may not ask the devices as this user",
            probe=witness,
            hint="add the user to the groups render and video",
        )
    return garbage(witness, "it printed no JSON that can be read", said)


def _listed(value: object) -> list[Any]:
    if not isinstance(value, dict):
        return []
    found = next((value[key] for key in _LIST_KEYS if isinstance(value.get(key), list)), None)
    return found if found is not None else [value] if "asic" in value else []


def _each(witness: str, rows: list[dict[str, Any]], make: Any) -> tuple[list[Sighting], list[ProbeFinding]]:
    sightings: list[Sighting] = []
    findings: list[ProbeFinding] = []
    for row in rows:
        try:
            sightings.append(make(row))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            findings.append(garbage(witness, f"a device that can't be read ({error})", str(row)))
    return sightings, findings


def _of_amd(row: Mapping[str, Any]) -> Sighting:
    asic, bus, vram = (_part(row, key) for key in ("asic", "bus", "vram"))
    size = vram.get("size", vram.get("vram_size_mb", ""))
    if isinstance(size, dict):
        size = f"{size.get('value', '')} {size.get('unit', '')}"
    return Sighting(
        backend=Backend.ROCM,
        uuid=_identity(text_cell(asic.get("asic_serial"))),
        pci=tidy_pci(text_cell(bus.get("bdf"))),
        index=count_value(row.get("gpu")),
        name=text_cell(asic.get("market_name")),
        total_bytes=size_cell(str(size).strip()) or None,
        driver=text_cell(_part(row, "driver").get("version") or _part(row, "driver").get("driver_version")),
        capability=text_cell(asic.get("target_graphics_version")),
    )


def _of_rocm(row: Mapping[str, Any]) -> Sighting:
    total_bytes = size_cell(_first(row, "VRAM Total Memory (B)"), unit="b") or None
    used_bytes = size_cell(_first(row, "VRAM Total Used Memory (B)"), unit="b")
    known = total_bytes is not None and used_bytes is not None
    return Sighting(
        backend=Backend.ROCM,
        uuid=_identity(_first(row, "Unique ID")),
        pci=tidy_pci(_first(row, "PCI Bus")),
        index=count_value(row.get("_index")),
        name=_name(row),
        total_bytes=total_bytes,
        free_bytes=max(0, total_bytes - used_bytes) if known else None,  # type: ignore[operator]
        driver=text_cell(row.get("_driver")),
        capability=_first(row, "GFX Version"),
    )


def _name(row: Mapping[str, Any]) -> str:
    """Give the readable name: versions disagree under which key it stands, and where only a number does."""
    names = (_first(row, key) for key in ("Card Series", "Card series", "Device Name", "Card Model", "Card model"))
    return next((name for name in names if name and not name.startswith("0x")), "")


def _part(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = row.get(key)
    return part if isinstance(part, dict) else {}


def _first(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return text_cell(str(value)) if isinstance(value, str | int) else ""


def _identity(serial: str) -> str:
    """Spell a unique id as ROCm's own variables do: `GPU-` and 16 digits."""
    digits = serial.lower().removeprefix("0x")
    if not _HEX.fullmatch(digits) or not digits.strip("0"):
        return ""
    return f"GPU-{digits.rjust(16, '0')}"
