"""The kernel as a witness for AMD's devices: the compute driver's list (KFD), which is what ROCm itself goes by.

Reads files only, in ROCm's own order. Written from the kernel's documentation and published listings; untested on AMD
hardware.
"""

from __future__ import annotations

from stoker.hardware.probes.cells import bytes_value, text_cell
from stoker.hardware.probes.kernel_files import KernelFiles
from stoker.hardware.probes.sighting import Sighting, Statement
from stoker.model.devices import Backend

WITNESS = "kfd"
DEVICE_FILE = "/dev/kfd"
NODES = "/sys/class/kfd/kfd/topology/nodes"
_DRM = "/sys/class/drm"


def read(files: KernelFiles) -> Statement:
    """Give the devices that the compute driver lists."""
    nodes = [(node, read_properties(files.text(f"{NODES}/{node}/properties"))) for node in files.names(NODES, r"\d+")]
    # Processors stand in the same list; they have no SIMD units.
    devices = [properties for _, properties in nodes if properties.get("simd_count", 0) > 0]
    driver = text_cell(files.text("/sys/module/amdgpu/version"))
    return Statement(
        witness=WITNESS,
        sightings=tuple(_sighting(files, index, properties, driver) for index, properties in enumerate(devices)),
        backends={Backend.ROCM: ""} if devices and files.has(DEVICE_FILE) else {},
        was_heard=files.has(NODES),
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
    """Give the PCI address of a node; empty if it has none."""
    location = properties.get("location_id", 0)
    if not 0 < location < 1 << 16:
        return ""
    return f"{properties.get('domain', 0):04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.{location & 7:x}"


def memory_files(files: KernelFiles, pci: str) -> str:
    """Give the folder in which the graphics driver tells of a device's memory; empty if there is none."""
    for card in files.names(_DRM, r"card\d+"):
        folder = f"{_DRM}/{card}/device"
        if files.target_name(folder) == pci and files.has(f"{folder}/mem_info_vram_total"):
            return folder
    return ""


def memory(files: KernelFiles, folder: str) -> tuple[int | None, int | None]:
    """Give the total and the free memory that a folder of the graphics driver tells of."""
    total, used = (bytes_of(files.text(f"{folder}/mem_info_vram_{which}")) for which in ("total", "used"))
    return total, None if total is None or used is None else max(0, total - used)


def bytes_of(text: str) -> int | None:
    """Give the size that a file of the driver holds, if it is one."""
    return bytes_value(int(text)) if text.isdecimal() and len(text) <= 16 else None


def _sighting(files: KernelFiles, index: int, properties: dict[str, int], driver: str) -> Sighting:
    pci = address(properties)
    total, free = memory(files, folder) if (folder := memory_files(files, pci)) else (None, None)
    generation = _generation(properties.get("gfx_target_version", 0))
    unique = properties.get("unique_id", 0)
    return Sighting(
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
    """Spell a generation as AMD does: 110000 is gfx1100, 90010 is gfx90a."""
    if not 10000 <= version < 1000000:
        return ""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
