"""AMD's probes: amd-smi, and rocm-smi, which it replaces. Both print JSON, in shapes that change with versions.

Reading is pure and never raises. Written from documented and published outputs; untested on AMD hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stoker.core import jsontext
from stoker.core.capability import ProbeFinding
from stoker.core.device import Backend
from stoker.devices.probes.observations import DeviceReport, ProbeResult, failed_probe, no_output, tidy_pci, unreadable
from stoker.devices.probes.readers import KernelFiles, bytes_value, count_value, size_cell, text_cell
from stoker.host.command_runner import ProbeFailure, Reply

AMD_SMI = "amd-smi"
ROCM_SMI = "rocm-smi"

_CARD = re.compile(r"card(\d+)")
_HEX = re.compile(r"[0-9a-fA-F]{1,16}")
_LIST_KEYS = ("gpu_data", "gpus", "gpu")
_PERMISSION = ("permission", "not permitted", "render group", "video group")


def amd_smi_command(program: str = AMD_SMI) -> list[str]:
    """Return the command that lists devices, by amd-smi."""
    return [program, "static", "--asic", "--bus", "--vram", "--driver", "--json"]


def rocm_smi_command(program: str = ROCM_SMI) -> list[str]:
    """Return the command that lists devices, by rocm-smi."""
    wanted = ["--showproductname", "--showmeminfo", "vram", "--showuniqueid", "--showbus", "--showdriverversion"]
    return [program, *wanted, "--json"]


def read_amd(reply: Reply) -> ProbeResult:
    """Read the output of amd-smi."""
    value, failed = _json(reply, AMD_SMI)
    if failed is not None:
        return failed
    rows = value if isinstance(value, list) else _listed(value)
    reports, findings = _each(AMD_SMI, [row for row in rows if isinstance(row, dict)], _of_amd)
    return _result(AMD_SMI, reports, findings)


def read_rocm(reply: Reply) -> ProbeResult:
    """Read the output of rocm-smi."""
    value, failed = _json(reply, ROCM_SMI)
    if failed is not None:
        return failed
    if not isinstance(value, dict):
        finding = unreadable(ROCM_SMI, "its JSON is no object", reply.out)
        return failed_probe(ROCM_SMI, finding)
    system = value.get("system")
    driver = _first(system, "Driver version") if isinstance(system, dict) else ""
    cards = [
        {**row, "_index": int(found[1]), "_driver": driver}
        for name, row in value.items()
        if (found := _CARD.fullmatch(name)) and isinstance(row, dict)
    ]
    reports, findings = _each(ROCM_SMI, cards, _of_rocm)
    return _result(ROCM_SMI, reports, findings)


def _result(probe: str, reports: list[DeviceReport], findings: list[ProbeFinding]) -> ProbeResult:
    return ProbeResult(
        probe=probe,
        reports=tuple(reports),
        backends={Backend.ROCM: ""} if reports else {},
        findings=tuple(findings),
    )


def _json(reply: Reply, probe: str) -> tuple[Any, ProbeResult | None]:
    """Return the JSON in an output, or a result without it. Warnings may be before and after it."""
    if isinstance(reply, ProbeFailure):
        return None, failed_probe(probe, no_output(reply, probe))
    starts = [at for at in (reply.out.find("{"), reply.out.find("[")) if at >= 0]
    end = max(reply.out.rfind("}"), reply.out.rfind("]"))
    try:
        return jsontext.loads(reply.out[min(starts) : end + 1] if starts else ""), None
    except ValueError:
        return None, failed_probe(probe, _unreadable(reply.out, reply.err, probe))


def _unreadable(out: str, err: str, probe: str) -> ProbeFinding:
    printed = f"{err} {out}".strip()
    if any(word in printed.lower() for word in _PERMISSION):
        return ProbeFinding(
            code="probe_permission",
            message=f"{probe}: no permission to query the devices",
            probe=probe,
            hint="add the user to the groups render and video",
        )
    return unreadable(probe, "it printed no JSON that can be read", printed)


def _listed(value: object) -> list[Any]:
    if not isinstance(value, dict):
        return []
    found = next((value[key] for key in _LIST_KEYS if isinstance(value.get(key), list)), None)
    return found if found is not None else [value] if "asic" in value else []


def _each(probe: str, rows: list[dict[str, Any]], make: Any) -> tuple[list[DeviceReport], list[ProbeFinding]]:
    reports: list[DeviceReport] = []
    findings: list[ProbeFinding] = []
    for row in rows:
        try:
            reports.append(make(row))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            findings.append(unreadable(probe, f"a device that can't be read ({error})", str(row)))
    return reports, findings


def _of_amd(row: Mapping[str, Any]) -> DeviceReport:
    asic, bus, vram = (_part(row, key) for key in ("asic", "bus", "vram"))
    size = vram.get("size", vram.get("vram_size_mb", ""))
    if isinstance(size, dict):
        size = f"{size.get('value', '')} {size.get('unit', '')}"
    return DeviceReport(
        backend=Backend.ROCM,
        uuid=_identity(text_cell(asic.get("asic_serial"))),
        pci=tidy_pci(text_cell(bus.get("bdf"))),
        index=count_value(row.get("gpu")),
        name=text_cell(asic.get("market_name")),
        total_bytes=size_cell(str(size).strip()) or None,
        driver=text_cell(_part(row, "driver").get("version") or _part(row, "driver").get("driver_version")),
        capability=text_cell(asic.get("target_graphics_version")),
    )


def _of_rocm(row: Mapping[str, Any]) -> DeviceReport:
    total_bytes = size_cell(_first(row, "VRAM Total Memory (B)"), unit="b") or None
    used_bytes = size_cell(_first(row, "VRAM Total Used Memory (B)"), unit="b")
    known = total_bytes is not None and used_bytes is not None
    return DeviceReport(
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
    """Return the readable name: versions differ in its key, and some have only a number."""
    names = (_first(row, key) for key in ("Card Series", "Card series", "Device Name", "Card Model", "Card model"))
    return next((name for name in names if name and not name.startswith("0x")), "")


def _part(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = row.get(key)
    return part if isinstance(part, dict) else {}


def _first(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return text_cell(str(value)) if isinstance(value, str | int) else ""


def _identity(serial: str) -> str:
    """Format a unique id as ROCm's own variables do: `GPU-` and 16 digits."""
    digits = serial.lower().removeprefix("0x")
    if not _HEX.fullmatch(digits) or not digits.strip("0"):
        return ""
    return f"GPU-{digits.rjust(16, '0')}"


# The kernel as a probe for AMD's devices: the compute driver's list (KFD), which ROCm itself uses.
#
# Reads files only, in ROCm's own order. Written from the kernel's documentation and published lists; untested on AMD
# hardware.

KFD = "kfd"
DEVICE_FILE = "/dev/kfd"
NODES = "/sys/class/kfd/kfd/topology/nodes"
_DRM = "/sys/class/drm"


def read_kfd(files: KernelFiles) -> ProbeResult:
    """Return the devices that the compute driver lists."""
    nodes = [(node, read_properties(files.text(f"{NODES}/{node}/properties"))) for node in files.names(NODES, r"\d+")]
    # Processors are in the same list; they have no SIMD units.
    devices = [properties for _, properties in nodes if properties.get("simd_count", 0) > 0]
    driver = text_cell(files.text("/sys/module/amdgpu/version"))
    return ProbeResult(
        probe=KFD,
        reports=tuple(_report(files, index, properties, driver) for index, properties in enumerate(devices)),
        backends={Backend.ROCM: ""} if devices and files.has(DEVICE_FILE) else {},
        is_readable=files.has(NODES),
    )


def read_properties(text: str) -> dict[str, int]:
    """Read a node's file: a name and a number on each line."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdecimal() and len(words[1]) <= 20:
            found[words[0]] = int(words[1])
    return found


def address(properties: dict[str, int]) -> str:
    """Return the PCI address of a node; empty if it has none."""
    location = properties.get("location_id", 0)
    if not 0 < location < 1 << 16:
        return ""
    return f"{properties.get('domain', 0):04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.{location & 7:x}"


def memory_files(files: KernelFiles, pci: str) -> str:
    """Return the folder of the graphics driver with a device's memory; empty if there is none."""
    for card in files.names(_DRM, r"card\d+"):
        folder = f"{_DRM}/{card}/device"
        if files.target_name(folder) == pci and files.has(f"{folder}/mem_info_vram_total"):
            return folder
    return ""


def memory(files: KernelFiles, folder: str) -> tuple[int | None, int | None]:
    """Return the total and the free memory in a folder of the graphics driver."""
    total, used = (bytes_of(files.text(f"{folder}/mem_info_vram_{which}")) for which in ("total", "used"))
    return total, None if total is None or used is None else max(0, total - used)


def bytes_of(text: str) -> int | None:
    """Return the size in a file of the driver, if it is one."""
    return bytes_value(int(text)) if text.isdecimal() and len(text) <= 16 else None


def _report(files: KernelFiles, index: int, properties: dict[str, int], driver: str) -> DeviceReport:
    pci = address(properties)
    total, free = memory(files, folder) if (folder := memory_files(files, pci)) else (None, None)
    generation = _generation(properties.get("gfx_target_version", 0))
    unique = properties.get("unique_id", 0)
    return DeviceReport(
        backend=Backend.ROCM,
        uuid=f"GPU-{unique:016x}" if 0 < unique < 1 << 64 else "",
        pci=pci,
        index=index,
        name=f"AMD {generation}" if generation else "AMD device",
        total_bytes=total or None,
        free_bytes=free,
        driver=driver,
        capability=generation,
    )


def _generation(version: int) -> str:
    """Format a generation as AMD does: 110000 is gfx1100, 90010 is gfx90a."""
    if not 10000 <= version < 1000000:
        return ""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
