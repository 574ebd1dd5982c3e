"""The kernel as a witness for NVIDIA's boards (Jetson and other Tegra): device tree, release file, the GPU's sysfs.

There the GPU works in the machine's memory, and the usual tools are missing or say `[N/A]`. Reads files only. Written
from published listings; untested on a board.
"""

from __future__ import annotations

import re

from stoker.hardware.probes.cells import text_cell
from stoker.hardware.probes.kernel_files import KernelFiles
from stoker.hardware.probes.sighting import Sighting, Statement
from stoker.model.devices import Backend, MemoryType

WITNESS = "jetson"

_TREES = ("/proc/device-tree", "/sys/firmware/devicetree/base")
_RELEASE_FILE = "/etc/nv_tegra_release"
_RELEASE = re.compile(r"R(\d+)\s*\(release\),\s*REVISION:\s*([\d.]+)")
_CHIP = re.compile(r"nvidia,(tegra\d+)")
_GENERATIONS = {"tegra210": "5.3", "tegra186": "6.2", "tegra194": "7.2", "tegra234": "8.7"}
_GPU_PLACES = ("/sys/devices/gpu.0", "/sys/devices/platform/gpu.0", "/dev/nvhost-gpu", "/dev/nvgpu/igpu0", "/dev/nvmap")
_PLATFORM = "/sys/devices/platform"
_GPU_NAME = r"[0-9a-f]+\.(gpu|gv11b|gp10b|ga10b)"


def read(files: KernelFiles) -> Statement:
    """Give the board's GPU, if this is such a board."""
    model = text_cell(_from_tree(files, "model"))
    chip = _CHIP.search(_from_tree(files, "compatible"))
    is_board = chip is not None or "jetson" in model.lower()
    if not is_board:
        return Statement(witness=WITNESS, was_heard=False)
    has_gpu = any(files.has(place) for place in _GPU_PLACES) or bool(files.names(_PLATFORM, _GPU_NAME))
    if not has_gpu:
        return Statement(witness=WITNESS)
    release = _RELEASE.search(files.text(_RELEASE_FILE))
    sighting = Sighting(
        backend=Backend.CUDA,
        index=0,
        name=model or f"NVIDIA {chip[1] if chip else 'Tegra'}",
        memory_type=MemoryType.UNIFIED,
        driver=f"L4T {release[1]}.{release[2]}" if release else "",
        capability=_GENERATIONS.get(chip[1], "") if chip else "",
    )
    return Statement(witness=WITNESS, sightings=(sighting,), backends={Backend.CUDA: ""})


def _from_tree(files: KernelFiles, name: str) -> str:
    return next((text for tree in _TREES if (text := files.text(f"{tree}/{name}"))), "")
