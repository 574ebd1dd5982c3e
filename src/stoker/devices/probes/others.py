"""Probes of other vendors or of several: the PCI bus, system_profiler, other backends' tools, torch.

Reading is pure and never raises.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from stoker.core import jsontext
from stoker.core.capability import ProbeFinding
from stoker.core.device import Backend, MemoryType, TriState, TriStateAnswer
from stoker.core.frozen import changed, frozen
from stoker.core.text import one_line
from stoker.devices.probes.observations import DeviceReport, ProbeResult, failed_probe, no_output, tidy_pci, unreadable
from stoker.devices.probes.readers import KernelFiles, bytes_value, count_value, marked_objects, size_cell, text_cell
from stoker.host.command_runner import ProbeFailure, Reply

# The PCI bus as a probe for the devices of several vendors.
#
# Reads files only. The bus also names devices without a driver, which distinguishes a card without a driver from no
# card.

PCI = "pci"
_BUS = "/sys/bus/pci/devices"
# Displays, and accelerators that can't draw.
_CLASSES = ("0x03", "0x12")


@frozen
class _BusVendor:
    """Devices of one vendor on the bus."""

    backend: Backend
    name: str
    driver: str
    """The kernel's driver for computing."""
    driver_hint: str


_BUS_VENDORS = {
    "0x10de": _BusVendor(
        backend=Backend.CUDA, name="NVIDIA", driver="nvidia", driver_hint="install the vendor's driver"
    ),
    "0x1002": _BusVendor(
        backend=Backend.ROCM, name="AMD", driver="amdgpu", driver_hint="load amdgpu, with ROCm's support"
    ),
}
"""By the vendor's number."""


def read_bus(files: KernelFiles) -> ProbeResult:
    """Return the accelerators on the PCI bus, whether or not a driver has taken them."""
    found = []
    for address in files.names(_BUS, r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"):
        place = f"{_BUS}/{address}"
        vendor = _BUS_VENDORS.get(files.text(f"{place}/vendor"))
        if vendor is not None and files.text(f"{place}/class").startswith(_CLASSES):
            found.append(_of_bus(files, address, vendor))
    return ProbeResult(probe=PCI, reports=tuple(found))


def _of_bus(files: KernelFiles, address: str, vendor: _BusVendor) -> DeviceReport:
    place = f"{_BUS}/{address}"
    driver = files.target_name(f"{place}/driver")
    stopped, hint = "", ""
    if driver.startswith("vfio"):
        stopped = f"reserved for a virtual machine (bound to {driver})"
    elif driver != vendor.driver:
        taken = f"the driver {driver} has it" if driver else "no driver has it"
        stopped, hint = f"{taken}, and computing needs {vendor.driver}", vendor.driver_hint
    return DeviceReport(
        backend=vendor.backend,
        pci=tidy_pci(address),
        name=text_cell(f"{vendor.name} device {files.text(f'{place}/device')}"),
        driver_hint=hint,
        works=TriStateAnswer(verdict=TriState.NO, why=stopped) if stopped else None,
    )


# The probe system_profiler: the GPUs of a Mac and whether they support Metal. Written from published outputs; untested
# on a Mac.

SYSTEM_PROFILER = "system_profiler"
_KEY = "SPDisplaysDataType"
_FAMILY = re.compile(r"metal(\d*)", re.IGNORECASE)


def system_profiler_command(program: str = SYSTEM_PROFILER) -> list[str]:
    """Return the command that lists graphics hardware."""
    return [program, _KEY, "-json"]


def read_system_profiler(reply: Reply) -> ProbeResult:
    """Read the output of system_profiler."""
    if isinstance(reply, ProbeFailure):
        return failed_probe(SYSTEM_PROFILER, no_output(reply, SYSTEM_PROFILER))
    try:
        value = jsontext.loads(reply.out)
        rows = [row for row in value[_KEY] if isinstance(row, dict)]
    except (ValueError, TypeError, KeyError):
        finding = unreadable(SYSTEM_PROFILER, "it printed no list of displays", reply.err or reply.out)
        return failed_probe(SYSTEM_PROFILER, finding)
    able = [(number, row) for number, row in enumerate(rows) if _metal(row) is not None]
    versions = [version for _, row in able if (version := _metal(row))]
    return ProbeResult(
        probe=SYSTEM_PROFILER,
        reports=tuple(_report(number, row) for number, row in able),
        backends={Backend.METAL: max(versions, default="")} if able else {},
    )


def _metal(row: Mapping[str, Any]) -> str | None:
    """Return the version of Metal that a GPU supports, empty if not reported, `None` if it supports none."""
    for key in ("spdisplays_mtlgpufamilysupport", "spdisplays_metal", "spdisplays_metalfamily"):
        value = str(row.get(key, ""))
        if "unsupported" in value or "notsupported" in value.replace("_", ""):
            return None
        if found := _FAMILY.search(value):
            return found[1]
        if "supported" in value:
            return ""
    return None


def _report(number: int, row: Mapping[str, Any]) -> DeviceReport:
    own = _size(row, ("spdisplays_vram", "_spdisplays_vram"))
    return DeviceReport(
        backend=Backend.METAL,
        index=number,
        name=text_cell(row.get("sppci_model")) or text_cell(row.get("_name")),
        # Apple's own GPUs and Intel's integrated ones use the machine's memory.
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


# Probes of other backends: vulkaninfo, clinfo, sycl-ls and glxinfo.
#
# They name no devices of ours, only backends: webgpu (through Vulkan), opencl, oneapi, opengl. Emulation on the
# processor does not count. Reading is pure and never raises.

_VULKAN_TYPE = re.compile(r"deviceType\s*=\s*(?:PHYSICAL_DEVICE_TYPE_)?(\w+)")
_VULKAN_VERSION = re.compile(r"apiVersion\s*=.*?(\d+\.\d+\.\d+)")
_OPENCL_TYPE = re.compile(r"CL_DEVICE_TYPE\s+(.*)")
_OPENCL_VERSION = re.compile(r"CL_DEVICE_VERSION\s+OpenCL (\d+\.\d+)")
_SYCL_LINE = re.compile(r"\s*\[(?:ext_oneapi_)?(level_zero|opencl)(?::gpu[:\]]|\]?\[?[^\]]*:gpu)", re.MULTILINE)
_SYCL_VERSION = re.compile(r"\[(\d+\.\d+(?:\.\d+)*)(?:\+\d+)?\]\s*$", re.MULTILINE)
_GL_RENDERER = re.compile(r"OpenGL renderer string:\s*(.+)")
_GL_VERSION = re.compile(r"OpenGL (?:core profile )?version string:\s*(\d+\.\d+)")
_EMULATED = ("llvmpipe", "softpipe", "swrast", "software rasterizer", "swiftshader")


@frozen
class BackendProbe:
    """One program that detects a backend."""

    probe: str
    backend: Backend
    argv: tuple[str, ...]
    version: Callable[[str], str | None]
    """Returns the version in its output; `None`: there is no hardware behind it."""
    needs: tuple[str, ...] = ()
    """Variables, one of which must be set for it to have a server to query."""


def read(probe: BackendProbe, reply: Reply) -> ProbeResult:
    """Read a program's output about its backend."""
    if isinstance(reply, ProbeFailure):
        return failed_probe(probe.probe, no_output(reply, probe.probe))
    version = probe.version(reply.out)
    if version is None and reply.exit_code and not reply.out.strip():
        finding = unreadable(probe.probe, f"it ended with {reply.exit_code}", reply.err)
        return failed_probe(probe.probe, finding)
    return ProbeResult(probe=probe.probe, backends={} if version is None else {probe.backend: version})


def _vulkan(out: str) -> str | None:
    kinds, versions = _VULKAN_TYPE.findall(out), _VULKAN_VERSION.findall(out)
    if not any(kind in ("DISCRETE_GPU", "INTEGRATED_GPU", "VIRTUAL_GPU") for kind in kinds):
        return None
    return f"Vulkan {versions[0]}" if versions else ""


def _opencl(out: str) -> str | None:
    kinds, versions = _OPENCL_TYPE.findall(out), _OPENCL_VERSION.findall(out)
    if not any(word in ("CL_DEVICE_TYPE_GPU", "GPU") for kind in kinds for word in re.split(r"[\s|,]+", kind)):
        return None
    return max(versions, default="")


def _oneapi(out: str) -> str | None:
    if not _SYCL_LINE.search(out):
        return None
    versions = [found[1] for line in out.splitlines() if ":gpu" in line and (found := _SYCL_VERSION.search(line))]
    return versions[-1] if versions else ""


def _opengl(out: str) -> str | None:
    renderer = _GL_RENDERER.search(out)
    if renderer is None or any(word in renderer[1].lower() for word in _EMULATED):
        return None
    version = _GL_VERSION.search(out)
    return version[1] if version else ""


BACKEND_PROBES = (
    BackendProbe(probe="vulkaninfo", backend=Backend.WEBGPU, argv=("vulkaninfo", "--summary"), version=_vulkan),
    BackendProbe(probe="clinfo", backend=Backend.OPENCL, argv=("clinfo", "--raw"), version=_opencl),
    BackendProbe(probe="sycl-ls", backend=Backend.ONEAPI, argv=("sycl-ls",), version=_oneapi),
    BackendProbe(
        probe="glxinfo",
        backend=Backend.OPENGL,
        argv=("glxinfo", "-B"),
        version=_opengl,
        needs=("DISPLAY", "WAYLAND_DISPLAY"),
    ),
)


# The probe torch: the devices that the torch of one interpreter sees, and whether it could compute there.
#
# It is the only probe that computes on a device, and the only one that sees what programs see: devices that a variable
# hides are hidden from it. `torch_child.py` runs in the user's interpreter.

TORCH = "torch"
_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_child.py")
_LONGEST = 200
_NONE = "No CUDA GPUs are available"


def torch_command(python: str) -> list[str]:
    """Return the command that runs the torch of an interpreter."""
    return [python, _SCRIPT]


def read_torch(reply: Reply) -> ProbeResult:
    """Read torch's output, also if it ends half way."""
    report: dict[str, Any] = {}
    for one in marked_objects(reply.out):
        report.update(one)
    findings = _findings(reply, report)
    # A failure after the import is as informative about the devices as a list of them.
    if "devices" not in report and not ("error" in report and report.get("torch")):
        return ProbeResult(probe=TORCH, findings=findings, is_readable=False)
    backend = Backend.ROCM if report.get("hip") else Backend.CUDA
    rows = report["devices"] if isinstance(report.get("devices"), list) else []
    reports = [_torch_report(row, backend, text_cell(report.get("torch"))) for row in rows if isinstance(row, dict)]
    version = text_cell(report.get("hip")) or text_cell(report.get("cuda"))
    backends = {backend: version} if reports else {}
    if report.get("metal") is True:
        backends[Backend.METAL] = ""
    return ProbeResult(
        probe=TORCH,
        reports=tuple(reports),
        backends=backends,
        findings=findings,
        looked_for=frozenset({backend}) if version else frozenset(),
    )


def _findings(reply: Reply, report: Mapping[str, Any]) -> tuple[ProbeFinding, ...]:
    if isinstance(reply, ProbeFailure):
        slow = "the first import of torch may take longer than that: try again"
        finding = no_output(reply, TORCH)
        return (changed(finding, hint=slow) if reply.code == "probe_timeout" else finding,)
    if report.get("missing"):
        # An interpreter without torch is reported by the check of interpreters.
        return ()
    version = text_cell(report.get("torch"))
    error = str(report.get("error", ""))
    if error and _NONE not in error:
        what = f"torch {version} can't use its devices" if version else "torch can't be imported"
        return (
            ProbeFinding(
                code="torch_error",
                message=f"{what}: {one_line(error, _LONGEST)}",
                probe=TORCH,
                hint="reinstall torch for this machine's driver" if version else "reinstall torch in that environment",
            ),
        )
    if version and not report.get("cuda") and not report.get("hip") and not report.get("metal"):
        return (
            ProbeFinding(
                code="torch_without_gpu",
                message=f"torch {version} was built for CPUs only",
                probe=TORCH,
                hint="install a build of torch for CUDA or ROCm in that environment",
            ),
        )
    if "devices" not in report and not error:
        noise = reply.err or reply.out
        return (unreadable(TORCH, f"it ended with {reply.exit_code} before its output was complete", noise),)
    return ()


def _torch_report(row: Mapping[str, Any], backend: Backend, version: str) -> DeviceReport:
    uuid = text_cell(row.get("uuid"))
    return DeviceReport(
        backend=backend,
        # It omits the vendor's prefix; ROCm's value is not a UUID of the vendor's tools.
        uuid=f"GPU-{uuid}" if uuid and backend is Backend.CUDA and not uuid.startswith(("GPU-", "MIG-")) else "",
        pci=tidy_pci(text_cell(row.get("pci"))),
        index=count_value(row.get("index")),
        name=text_cell(row.get("name")),
        total_bytes=bytes_value(row.get("total")) or None,
        reserved_bytes=0,
        free_bytes=bytes_value(row.get("free")),
        capability=_capability(row, backend),
        works=_works(row, version),
    )


def _capability(row: Mapping[str, Any], backend: Backend) -> str:
    if backend is Backend.ROCM:
        return text_cell(row.get("gcn")).partition(":")[0]
    numbers = row.get("capability")
    is_pair = isinstance(numbers, list) and len(numbers) == 2 and all(isinstance(one, int) for one in numbers)
    return f"{numbers[0]}.{numbers[1]}" if is_pair else ""  # type: ignore[index]


def _works(row: Mapping[str, Any], version: str) -> TriStateAnswer:
    if row.get("works") is True:
        return TriStateAnswer(verdict=TriState.YES, why=f"torch {version} has computed on it")
    if error := row.get("error"):
        return TriStateAnswer(verdict=TriState.NO, why=f"torch {version} fails on it: {one_line(str(error), _LONGEST)}")
    return TriStateAnswer(verdict=TriState.NO, why=f"torch {version} computes wrongly on it")
