"""Evidence of accelerators, found without starting a program; and readers of the kernel's files and of tools' output.

Without evidence nothing is started: no child, no library. The evidence is reported, so that a person can see why a
tool was or was not run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from stoker.core import jsontext
from stoker.core.device import Backend
from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.core.text import lazy_pattern, one_line
from stoker.host.box_entry import find_program

# What our own child scripts print: JSON objects on marked lines, whatever else is printed around them.

MARK = "stoker-probe:"


def marked_objects(text: str) -> list[dict[str, Any]]:
    """Return the objects of all whole marked lines; other output is ignored."""
    found = []
    for line in text.splitlines():
        _, mark, body = line.partition(MARK)
        if mark:
            try:
                value = jsontext.loads(body)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
    return found


# Single values as vendors' tools print them, and their forms of "no value".

_ABSENT = frozenset(
    {
        "", "-", "n/a", "na", "none", "null", "unknown", "unknown error", "not supported", "not available",
        "not found", "insufficient permissions", "no permission", "requested functionality has been deprecated",
        "gpu requires reset", "gpu is lost", "error",
    }
)  # fmt: skip
# Thousands may be separated by a space, also by a non-breaking one.
_SIZE = lazy_pattern(r"(\d{1,3}(?:[\s\u00a0\u202f]\d{3})+|\d+)(?:\.0+)?\s*([a-z]*)", re.IGNORECASE)
_FACTORS = {
    "b": 1, "bytes": 1,
    "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "kio": 1 << 10,
    "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20, "mio": 1 << 20, "mo": 1 << 20,
    "g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30, "gio": 1 << 30, "go": 1 << 30,
    "t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40, "tio": 1 << 40, "to": 1 << 40,
}  # fmt: skip
_MOST_BYTES = 1 << 50
_MOST_DIGITS = 20
_LONGEST = 200


def is_absent(text: str) -> bool:
    """Return True if a tool printed that it has no value: empty, `[N/A]`, `[Insufficient Permissions]` and the like."""
    return text.strip().strip("[]<>()").strip().lower() in _ABSENT


def text_cell(text: object) -> str:
    """Return a text that is safe to show, empty if there is none."""
    return "" if not isinstance(text, str) or is_absent(text) else one_line(text, _LONGEST)


def size_cell(text: str, *, unit: str = "mib") -> int | None:
    """Return a size in bytes, `None` if the tool has none. Raises `ValueError` for anything else.

    All units are binary, whatever they are called, as in these tools. `unit` is the default.
    """
    if is_absent(text):
        return None
    found = _SIZE.fullmatch(text.strip())
    factor = _FACTORS.get((found[2] or unit).lower()) if found else None
    if found is None or factor is None or len(found[1]) > _MOST_DIGITS:
        raise ValueError(f"not a size: {text[:40]!r}")
    size_bytes = int(re.sub(r"\D", "", found[1])) * factor
    if size_bytes > _MOST_BYTES:
        raise ValueError(f"no device has that much memory: {text[:40]!r}")
    return size_bytes


def bytes_value(value: object) -> int | None:
    """Return a number of bytes from JSON, `None` if it is not a valid one."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= _MOST_BYTES else None  # type: ignore[operator,return-value]


def count_value(value: object) -> int | None:
    """Return a small number from JSON, such as an index, or `None`."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 1 << 31 else None  # type: ignore[operator,return-value]


# The kernel's own files below a given root, read so that nothing about them can raise or take long.

_MOST_READ_BYTES = 1 << 16


class KernelFiles:
    """Files below /proc, /sys and /dev, named by their absolute paths and looked up below a root."""

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def text(self, path: str) -> str:
        """Return the content of a file, without NULs and surrounding space; empty if it can't be read."""
        try:
            descriptor = os.open(self.place(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return ""
        try:
            data = os.read(descriptor, _MOST_READ_BYTES)
        except OSError:
            return ""
        finally:
            os.close(descriptor)
        return data.decode("utf-8", "replace").replace("\0", " ").strip()

    def names(self, path: str, pattern: str = ".*") -> list[str]:
        """Return the entries of a folder whose whole name matches, numbers in their order; none if it can't be read."""
        try:
            found = [name for name in os.listdir(self.place(path)) if re.fullmatch(pattern, name)]
        except (OSError, ValueError):
            return []
        return sorted(found, key=lambda name: [int(part) if part.isdecimal() else part for part in _runs(name)])

    def has(self, path: str) -> bool:
        """Return True if the name exists."""
        return os.path.lexists(self.place(path))

    def may_use(self, path: str) -> bool:
        """Return True if we may read and write a device file."""
        return os.access(self.place(path), os.R_OK | os.W_OK)

    def target_name(self, path: str) -> str:
        """Return the last part of a link's target; empty if it is none."""
        try:
            return os.path.basename(os.readlink(self.place(path)))
        except OSError:
            return ""

    def place(self, path: str) -> str:
        """Return the real path of a file."""
        return os.path.join(self._root, path.lstrip("/"))


def _runs(name: str) -> list[str]:
    # Text and numbers alternate, starting with text, so that two names can always be compared.
    return re.split(r"(\d+)", name)


FAKE_VARIABLE = "STOKER_GPU_FAKE"
"""Requests fake hardware; see `fake_devices`."""
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
    """Evidence of accelerators: a file, a program or a variable; empty if there is none."""

    devices: Mapping[Backend, str]
    """Of devices of a backend; only backends with evidence."""
    fake: str = ""
    graphics: str = ""
    """Of a display device of any vendor."""

    @property
    def is_of_devices(self) -> bool:
        """True if there is evidence of a device for work."""
        return bool(self.devices or self.fake)

    @property
    def is_there(self) -> bool:
        return self.is_of_devices or bool(self.graphics)


def look(files: KernelFiles, environment: Mapping[str, str], listed: Mapping[Backend, str]) -> Evidence:
    """Return the evidence of accelerators; `listed` are the backends of which the kernel's lists name devices."""
    found = {backend: listed.get(backend) or find(files, environment) for backend, find in _EVIDENCE.items()}
    return Evidence(
        devices={backend: evidence for backend, evidence in {**listed, **found}.items() if evidence},
        fake=FAKE_VARIABLE if FAKE_VARIABLE in environment else "",
        graphics=next((f"/dev/dri/{name}" for name in files.names("/dev/dri", r"renderD\d+")), ""),
    )


def program_on_path(name: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program, empty if it is not found."""
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


def _amd(files: KernelFiles, environment: Mapping[str, str]) -> str:
    return _first(files, _AMD_FILES) or _program(("amd-smi", "rocm-smi"), environment)


def _apple(files: KernelFiles, _environment: Mapping[str, str]) -> str:
    return _first(files, _MAC_FILES)


def _library(files: KernelFiles, environment: Mapping[str, str]) -> str:
    named = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    places = (f"{folder}/{_LIBRARY}" for folder in (*named, *_LIBRARY_FOLDERS))
    return next((place for place in places if files.has(place)), "")


def _program(names: tuple[str, ...], environment: Mapping[str, str]) -> str:
    return next((found for name in names if (found := program_on_path(name, environment))), "")


def _first(files: KernelFiles, places: tuple[str, ...]) -> str:
    return next((place for place in places if files.has(place)), "")


_EVIDENCE: Mapping[Backend, Callable[[KernelFiles, Mapping[str, str]], str]] = {
    Backend.CUDA: _nvidia,
    Backend.ROCM: _amd,
    Backend.METAL: _apple,
}
"""Search for devices that the kernel's lists do not name."""
