"""Whether anything at all speaks for an accelerator, found without starting a program.

A machine without evidence is asked nothing: no child, no library. What counts is told, so that a person can see why a
tool was or was not asked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from stoker.hardware.probes.kernel_files import KernelFiles
from stoker.host.entry import find_program
from stoker.model.errors import StokerError
from stoker.model.frozen import frozen

FAKE_VARIABLE = "STOKER_GPU_FAKE"
"""Asks for invented hardware; see `faking`."""
_NVIDIA_FILES = ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia", "/dev/nvhost-gpu", "/dev/nvmap", "/dev/nvgpu")
_LIBRARY = "libnvidia-ml.so.1"
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64", "/usr/lib/aarch64-linux-gnu/nvidia", "/run/opengl-driver/lib",
)  # fmt: skip
_AMD_FILES = ("/dev/kfd", "/sys/class/kfd/kfd/topology/nodes")
_MAC_FILES = ("/System/Library/CoreServices/SystemVersion.plist",)


@frozen
class Evidence:
    """What speaks for accelerators of each vendor: a file, a program or a variable; empty if nothing does."""

    nvidia: str = ""
    amd: str = ""
    apple: str = ""
    fake: str = ""
    graphics: str = ""
    """Of whatever vendor: something that may be drawn on."""

    @property
    def is_of_devices(self) -> bool:
        """Whether something speaks for a device that work could be put on."""
        return bool(self.nvidia or self.amd or self.apple or self.fake)

    @property
    def is_there(self) -> bool:
        return self.is_of_devices or bool(self.graphics)


def look(files: KernelFiles, environment: Mapping[str, str], seen: Mapping[str, str]) -> Evidence:
    """Give what speaks for accelerators; `seen` are vendors of which the kernel's lists already name devices."""
    return Evidence(
        nvidia=seen.get("nvidia", "") or _nvidia(files, environment),
        amd=seen.get("amd", "") or _first(files, _AMD_FILES) or _program(("amd-smi", "rocm-smi"), environment),
        apple=_first(files, _MAC_FILES),
        fake=FAKE_VARIABLE if FAKE_VARIABLE in environment else "",
        graphics=next((f"/dev/dri/{name}" for name in files.names("/dev/dri", r"renderD\d+")), ""),
    )


def program_on_path(name: str, environment: Mapping[str, str]) -> str:
    """Give where a program is found, empty if it is not."""
    if not environment.get("PATH"):
        return ""
    try:
        return find_program(name, cwd="/", env=environment)
    except StokerError:
        return ""


def _nvidia(files: KernelFiles, environment: Mapping[str, str]) -> str:
    nodes = files.names("/dev", r"nvidia\d+")
    if nodes:
        return f"/dev/{nodes[0]}"
    return _first(files, _NVIDIA_FILES) or _program(("nvidia-smi",), environment) or _library(files, environment)


def _library(files: KernelFiles, environment: Mapping[str, str]) -> str:
    named = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    places = (f"{folder}/{_LIBRARY}" for folder in (*named, *_LIBRARY_FOLDERS))
    return next((place for place in places if files.has(place)), "")


def _program(names: tuple[str, ...], environment: Mapping[str, str]) -> str:
    return next((found for name in names if (found := program_on_path(name, environment))), "")


def _first(files: KernelFiles, places: tuple[str, ...]) -> str:
    return next((place for place in places if files.has(place)), "")
