"""A machine made of files: /proc, /sys, /dev and a PATH below one folder, with programs that do what they are told."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.asker import RECORDINGS

MEMINFO = "MemTotal:       65788012 kB\nMemFree:         1000000 kB\nMemAvailable:   51200000 kB\n"


class FileMachine:
    """What probes see of it; nothing at first but memory and a machine id."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir(parents=True)
        self.environment = {"PATH": str(self.bin)}
        self.file("/proc/meminfo", MEMINFO)
        self.file("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")

    def file(self, path: str, text: str = "") -> Path:
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text, encoding="utf-8")
        return at

    def link(self, path: str, target: str) -> None:
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(target)

    def program(self, name: str, script: str) -> str:
        """Put a shell script on the PATH. It has no other programs than those it names in full."""
        at = self.bin / name
        at.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        at.chmod(0o755)
        return str(at)

    def recording(self, name: str, recording: str, *, exit_code: int = 0) -> str:
        """Put a program on the PATH that prints a recording."""
        return self.program(name, f"/bin/cat '{RECORDINGS / recording}'\nexit {exit_code}")

    def nvidia(self, *, information: str = "proc/nvidia-information.txt", address: str = "0000:01:00.0") -> None:
        """Give it one device of NVIDIA's, with its driver and device files."""
        self.file("/proc/driver/nvidia/version", (RECORDINGS / "proc/nvidia-version.txt").read_text())
        self.file(f"/proc/driver/nvidia/gpus/{address}/information", (RECORDINGS / information).read_text())
        self.file("/dev/nvidia0")
        self.file("/dev/nvidiactl")

    def card(self, address: str, *, vendor: str = "0x10de", device: str = "0x2684", driver: str = "") -> None:
        """Put a display controller on its bus, bound to a driver or to none."""
        place = f"/sys/bus/pci/devices/{address}"
        for name, text in (("vendor", vendor), ("device", device), ("class", "0x030000")):
            self.file(f"{place}/{name}", f"{text}\n")
        if driver:
            self.link(f"{place}/driver", f"../../bus/pci/drivers/{driver}")

    def amd(self, *, address: str = "0000:03:00.0", total: int = 21458059264, used: int = 27856896) -> None:
        """Give it one device of AMD's with its compute driver."""
        nodes = "/sys/class/kfd/kfd/topology/nodes"
        self.file(f"{nodes}/0/properties", (RECORDINGS / "proc/kfd-properties-processor.txt").read_text())
        self.file(f"{nodes}/0/gpu_id", "0\n")
        self.file(f"{nodes}/1/properties", (RECORDINGS / "proc/kfd-properties-rx7900.txt").read_text())
        self.file(f"{nodes}/1/gpu_id", "4672\n")
        self.file("/dev/kfd")
        self.file(f"/sys/devices/pci/{address}/mem_info_vram_total", f"{total}\n")
        self.file(f"/sys/devices/pci/{address}/mem_info_vram_used", f"{used}\n")
        self.link("/sys/class/drm/card0/device", f"../../../devices/pci/{address}")

    def jetson(self) -> None:
        """Make it a board."""
        self.file("/proc/device-tree/model", "NVIDIA Jetson AGX Orin Developer Kit\0")
        self.file("/proc/device-tree/compatible", "nvidia,p3737-0000+p3701-0000\0nvidia,tegra234\0")
        self.file(
            "/etc/nv_tegra_release", "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n"
        )
        self.file("/dev/nvhost-gpu")
        self.file("/dev/nvmap")
