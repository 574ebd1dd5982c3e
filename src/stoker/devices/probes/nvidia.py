"""NVIDIA's probes: nvidia-smi, NVML, the driver's files, and boards (Jetson).

nvidia-smi prints a list of GPUs as CSV, with a header that names the columns.

Old versions do not know all columns and refuse the whole query; they are run again for fewer. Parts of divided GPUs
(MIG) are in another list, read if there are any. Reading is pure and never raises.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from typing import Any

from stoker.core.capability import ProbeFinding
from stoker.core.device import Backend, MemoryType, TriState, TriStateAnswer
from stoker.core.frozen import changed
from stoker.core.text import one_line
from stoker.devices.probes.observations import (
    DEVICE_LOST,
    DeviceReport,
    ProbeResult,
    failed_probe,
    known_problem,
    no_output,
    tidy_pci,
    unreadable,
)
from stoker.devices.probes.readers import (
    KernelFiles,
    bytes_value,
    count_value,
    is_absent,
    marked_objects,
    size_cell,
    text_cell,
)
from stoker.host.command_runner import ProbeFailure, Reply

NVIDIA_SMI = "nvidia-smi"

_OLD = ("index", "uuid", "pci.bus_id", "name", "memory.total", "memory.free", "driver_version")
_ALL = (*_OLD, "memory.reserved", "compute_cap", "mig.mode.current")
_NONE_FOUND = "no devices were found"
_UNKNOWN_FIELD = "not a valid field to query"
_GPU_LINE = re.compile(r"GPU \d+: .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_PART_LINE = re.compile(r"\s*MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)\s]+)\)")
_PART_SIZE = re.compile(r"\.(\d+)gb")
_SIZES = {"memory.total": "total_bytes", "memory.free": "free_bytes", "memory.reserved": "reserved_bytes"}


def nvidia_smi_command(program: str = NVIDIA_SMI, *, is_old: bool = False) -> list[str]:
    """Return the command that lists the GPUs."""
    return [program, f"--query-gpu={','.join(_OLD if is_old else _ALL)}", "--format=csv"]


def parts_command(program: str = NVIDIA_SMI) -> list[str]:
    """Return the command that also lists the parts of divided GPUs."""
    return [program, "-L"]


def needs_old_columns(reply: Reply) -> bool:
    """Return True if this version does not know all columns."""
    return not isinstance(reply, ProbeFailure) and _UNKNOWN_FIELD in f"{reply.out} {reply.err}".lower()


def read_nvidia_smi(reply: Reply) -> ProbeResult:
    """Read the list of GPUs."""
    if isinstance(reply, ProbeFailure):
        return failed_probe(NVIDIA_SMI, no_output(reply, NVIDIA_SMI))
    lines = [line for line in reply.out.splitlines() if line.strip()]
    start = next((number for number, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        return _without_list(reply.out, reply.err, reply.exit_code)
    columns = [cell.partition(" [")[0].strip() for cell in lines[start].split(",")]
    reports: list[DeviceReport] = []
    findings: list[ProbeFinding] = []
    for line in lines[start + 1 :]:
        report, noticed = _row(columns, line)
        findings.extend(noticed)
        if report is not None:
            reports.append(report)
    if reply.exit_code and not findings:
        findings.append(_failure(f"{reply.err} {reply.out}", reply.exit_code))
    return ProbeResult(
        probe=NVIDIA_SMI,
        reports=tuple(reports),
        backends={Backend.CUDA: ""} if reports else {},
        findings=tuple(findings),
    )


def read_parts(result: ProbeResult, reply: Reply) -> ProbeResult:
    """Return a result with the parts of its divided GPUs added."""
    if isinstance(reply, ProbeFailure):
        return changed(result, findings=(*result.findings, no_output(reply, NVIDIA_SMI)))
    parents = {one.uuid: one for one in result.reports}
    parts: list[DeviceReport] = []
    parent: DeviceReport | None = None
    for line in reply.out.splitlines():
        whole, part = _GPU_LINE.match(line), _PART_LINE.match(line)
        if whole is not None:
            parent = parents.get(whole[1])
        elif part is not None and parent is not None:
            parts.append(_part(parent, part))
    return changed(result, reports=(*result.reports, *parts))


def _is_header(line: str) -> bool:
    cells = {cell.partition(" [")[0].strip() for cell in line.split(",")}
    return {"index", "uuid", "name"} <= cells


def _row(columns: list[str], line: str) -> tuple[DeviceReport | None, list[ProbeFinding]]:
    cells = [cell.strip() for cell in line.split(",")]
    if not cells[0].isdecimal() or len(cells) > len(columns):
        finding = known_problem(line, NVIDIA_SMI) or unreadable(NVIDIA_SMI, "a line that is no row of its list", line)
        return None, [finding]
    findings: list[ProbeFinding] = []
    if len(cells) < len(columns):
        # Cut-off output may end within its last cell.
        cells.pop()
        findings.append(unreadable(NVIDIA_SMI, "a row that is cut off", line))
    row = dict(zip(columns, cells, strict=False))
    sizes: dict[str, int | None] = {}
    for column, field in _SIZES.items():
        try:
            sizes[field] = size_cell(row.get(column, ""))
        except ValueError as error:
            findings.append(unreadable(NVIDIA_SMI, f"{column} is {error}"))
    lost = [known_problem(cell, NVIDIA_SMI) for cell in cells if is_absent(cell) and "n/a" not in cell.lower()]
    findings.extend(one for one in lost if one is not None and one not in findings)
    stopped = next((one.message for one in lost if one is not None and one.code == DEVICE_LOST), "")
    uuid, pci = text_cell(row.get("uuid", "")), tidy_pci(row.get("pci.bus_id", ""))
    name = text_cell(row.get("name", ""))
    if not (uuid or pci or name):
        return None, [*findings, unreadable(NVIDIA_SMI, "a row that names no device", line)]
    return (
        DeviceReport(
            backend=Backend.CUDA,
            uuid=uuid,
            pci=pci,
            index=int(cells[0]) if len(cells[0]) < 6 else None,
            name=name,
            total_bytes=sizes.get("total_bytes") or None,
            reserved_bytes=sizes.get("reserved_bytes"),
            free_bytes=sizes.get("free_bytes"),
            driver=text_cell(row.get("driver_version", "")),
            capability=text_cell(row.get("compute_cap", "")),
            is_split=row.get("mig.mode.current", "").strip("[] ").lower() == "enabled",
            works=TriStateAnswer(verdict=TriState.NO, why=stopped) if stopped else None,
        ),
        findings,
    )


def _without_list(out: str, err: str, exit_code: int) -> ProbeResult:
    printed = f"{out.strip()} {err.strip()}".strip()
    if _NONE_FOUND in printed.lower():
        return ProbeResult(probe=NVIDIA_SMI)
    return failed_probe(NVIDIA_SMI, _failure(printed, exit_code))


def _failure(printed: str, exit_code: int) -> ProbeFinding:
    known = known_problem(printed, NVIDIA_SMI)
    if known is not None:
        return known
    return unreadable(NVIDIA_SMI, f"it ended with {exit_code}" if exit_code else "it printed no list", printed)


def _part(parent: DeviceReport, found: re.Match[str]) -> DeviceReport:
    profile, number, uuid = found.groups()
    size = _PART_SIZE.search(profile)
    return DeviceReport(
        backend=Backend.CUDA,
        uuid=uuid,
        index=int(number),
        name=f"{parent.name} MIG {profile}",
        # The profile's name is rounded up to whole gigabytes: good enough where nothing better is known.
        total_bytes=int(size[1]) << 30 if size else None,
        driver=parent.driver,
        capability=parent.capability,
        parent=parent.uuid,
    )


# The probe NVML: NVIDIA's management library, queried by `nvml_child.py` in a child process.
#
# It reports the most and the most exactly: identities, addresses, memory with the driver's own part, parts of divided
# GPUs. Reading is pure and never raises.

NVML = "nvml"
_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_child.py")


def child_command(folder: str, *words: str) -> list[str]:
    """Return the command of the child script; `folder` contains pynvml."""
    # Isolated and without site packages: it starts in a few milliseconds, independent of any environment.
    return [sys.executable, "-I", "-S", _SCRIPT, folder, *words]


def library_folder() -> str:
    """Return the folder of pynvml, empty if it is not installed. Does not import it."""
    try:
        spec = importlib.util.find_spec("pynvml")
    except (ImportError, ValueError):
        return ""
    if spec is None or not spec.origin:
        return ""
    folder = os.path.dirname(os.path.abspath(spec.origin))
    return os.path.dirname(folder) if spec.submodule_search_locations else folder


def missing() -> ProbeResult:
    """Return the finding that the library's Python half is not installed."""
    finding = ProbeFinding(
        code="nvml_missing",
        message="NVML was not queried: the Python library nvidia-ml-py is not installed beside Stoker",
        probe=NVML,
        hint="install nvidia-ml-py into Stoker's environment",
    )
    return failed_probe(NVML, finding)


def read_nvml(reply: Reply) -> ProbeResult:
    """Read a snapshot."""
    if isinstance(reply, ProbeFailure):
        return failed_probe(NVML, no_output(reply, NVML))
    report = next(iter(marked_objects(reply.out)), None)
    if report is None:
        ended = f"it ended with {reply.exit_code}" if reply.exit_code else "it printed no answer"
        finding = known_problem(reply.err, NVML) or unreadable(NVML, ended, reply.err or reply.out)
        return failed_probe(NVML, finding)
    if "missing" in report:
        return missing()
    if "error" in report:
        return failed_probe(NVML, _nvml_failure(str(report["error"])))
    driver = text_cell(report.get("driver"))
    reports = [one for row in _rows(report.get("devices")) for one in _device(row, driver)]
    errors = report.get("errors")
    return ProbeResult(
        probe=NVML,
        reports=tuple(reports),
        backends={Backend.CUDA: _cuda_version(report.get("cuda"))} if reports else {},
        findings=tuple(_nvml_failure(str(error)) for error in errors) if isinstance(errors, list) else (),
    )


def _nvml_failure(text: str) -> ProbeFinding:
    return known_problem(text, NVML) or ProbeFinding(
        code="nvml_error", message=f"NVML reports: {one_line(text, 200)}", probe=NVML, hint="does nvidia-smi work?"
    )


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _device(row: dict[str, Any], driver: str) -> list[DeviceReport]:
    whole = _report(row, driver, "")
    return [whole, *(_report(part, driver, whole.uuid) for part in _rows(row.get("parts")))]


def _report(row: dict[str, Any], driver: str, parent: str) -> DeviceReport:
    return DeviceReport(
        backend=Backend.CUDA,
        uuid=text_cell(row.get("uuid")),
        # A part has the address of its device, which is no identity.
        pci="" if parent else tidy_pci(text_cell(row.get("pci"))),
        index=count_value(row.get("index")),
        minor=None if parent else count_value(row.get("minor")),
        name=text_cell(row.get("name")),
        total_bytes=bytes_value(row.get("total")) or None,
        reserved_bytes=bytes_value(row.get("reserved")),
        free_bytes=bytes_value(row.get("free")),
        driver=driver,
        capability=_capability(row.get("capability")),
        parent=parent,
        is_split=row.get("is_split") is True and not parent,
    )


def _capability(value: object) -> str:
    numbers = value if isinstance(value, list) and all(isinstance(one, int) for one in value) else []
    return ".".join(map(str, numbers))


def _cuda_version(value: object) -> str:
    number = count_value(value)
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


# The kernel as a probe for NVIDIA's devices: the driver's own list, and device files. Reads files only.

KERNEL = "kernel"

_GPUS = "/proc/driver/nvidia/gpus"
_VERSION = re.compile(r"(?:Kernel Module|Module for \S+)\s+(\d+(?:\.\d+)+)")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def read_driver(files: KernelFiles) -> ProbeResult:
    """Return what NVIDIA's driver lists in /proc."""
    version = driver_version(files)
    rows = [(pci, read_information(files.text(f"{_GPUS}/{pci}/information"))) for pci in files.names(_GPUS)]
    excluded = [pci for pci, row in rows if row.get("GPU Excluded", "").lower() == "yes"]
    return ProbeResult(
        probe=KERNEL,
        reports=tuple(_of_driver(index, pci, row, version) for index, (pci, row) in enumerate(rows)),
        findings=tuple(
            ProbeFinding(
                code="device_excluded",
                message=f"the driver is configured to ignore the device at {pci}",
                probe=KERNEL,
                hint="see NVreg_ExcludedGpus in the options of the nvidia kernel module",
            )
            for pci in excluded
        ),
        is_readable=files.has(_GPUS),
    )


def read_information(text: str) -> dict[str, str]:
    """Read one device's file of the driver: `Key: value` lines."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def driver_version(files: KernelFiles) -> str:
    """Return the version of NVIDIA's loaded driver; empty without one."""
    found = _VERSION.search(files.text("/proc/driver/nvidia/version"))
    return found[1] if found else text_cell(files.text("/sys/module/nvidia/version"))


def device_files(files: KernelFiles) -> dict[int, bool]:
    """Return the numbers of NVIDIA's device files, each with whether we may use it."""
    names = files.names("/dev", r"nvidia\d{1,4}")
    return {int(name.removeprefix("nvidia")): files.may_use(f"/dev/{name}") for name in names}


def _of_driver(index: int, pci: str, row: dict[str, str], version: str) -> DeviceReport:
    uuid = row.get("GPU UUID", "")
    minor = row.get("Device Minor", "")
    return DeviceReport(
        backend=Backend.CUDA,
        # Question marks, until the device was used.
        uuid=uuid if _UUID.fullmatch(uuid) else "",
        pci=tidy_pci(row.get("Bus Location", "")) or tidy_pci(pci),
        index=index,
        minor=count_value(int(minor)) if minor.isdecimal() and len(minor) < 6 else None,
        name=text_cell(row.get("Model", "")),
        driver=version,
    )


# The kernel as a probe for NVIDIA's boards (Jetson and other Tegra): device tree, release file, the GPU's sysfs.
#
# There the GPU uses the machine's memory, and the usual tools are missing or print `[N/A]`. Reads files only. Written
# from published lists; untested on a board.

JETSON = "jetson"

_TREES = ("/proc/device-tree", "/sys/firmware/devicetree/base")
_RELEASE_FILE = "/etc/nv_tegra_release"
_RELEASE = re.compile(r"R(\d+)\s*\(release\),\s*REVISION:\s*([\d.]+)")
_CHIP = re.compile(r"nvidia,(tegra\d+)")
_GENERATIONS = {"tegra210": "5.3", "tegra186": "6.2", "tegra194": "7.2", "tegra234": "8.7"}
_GPU_PLACES = ("/sys/devices/gpu.0", "/sys/devices/platform/gpu.0", "/dev/nvhost-gpu", "/dev/nvgpu/igpu0", "/dev/nvmap")
_PLATFORM = "/sys/devices/platform"
_GPU_NAME = r"[0-9a-f]+\.(gpu|gv11b|gp10b|ga10b)"


def read_jetson(files: KernelFiles) -> ProbeResult:
    """Return the board's GPU, if this is such a board."""
    model = text_cell(_from_tree(files, "model"))
    chip = _CHIP.search(_from_tree(files, "compatible"))
    is_board = chip is not None or "jetson" in model.lower()
    if not is_board:
        return ProbeResult(probe=JETSON, is_readable=False)
    has_gpu = any(files.has(place) for place in _GPU_PLACES) or bool(files.names(_PLATFORM, _GPU_NAME))
    if not has_gpu:
        return ProbeResult(probe=JETSON)
    release = _RELEASE.search(files.text(_RELEASE_FILE))
    report = DeviceReport(
        backend=Backend.CUDA,
        index=0,
        name=model or f"NVIDIA {chip[1] if chip else 'Tegra'}",
        memory_type=MemoryType.UNIFIED,
        driver=f"L4T {release[1]}.{release[2]}" if release else "",
        capability=_GENERATIONS.get(chip[1], "") if chip else "",
    )
    return ProbeResult(probe=JETSON, reports=(report,), backends={Backend.CUDA: ""})


def _from_tree(files: KernelFiles, name: str) -> str:
    return next((text for tree in _TREES if (text := files.text(f"{tree}/{name}"))), "")
