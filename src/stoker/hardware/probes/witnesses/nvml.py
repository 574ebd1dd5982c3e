"""The witness NVML: NVIDIA's management library, asked by `nvml_child.py` in a throwaway process.

It says the most and the most exactly: identities, addresses, memory with the driver's own part, parts of divided GPUs.
Reading is pure and never raises.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from stoker.hardware.probes.asking import Reply, Silent
from stoker.hardware.probes.cells import bytes_value, count_value, text_cell
from stoker.hardware.probes.marked import marked_objects
from stoker.hardware.probes.noticing import garbage, silence, trouble
from stoker.hardware.probes.sighting import Sighting, Statement, tidy_pci
from stoker.model.capability import ProbeFinding
from stoker.model.devices import Backend
from stoker.model.printable import one_line

WITNESS = "nvml"
_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_child.py")


def child_command(folder: str, *words: str) -> list[str]:
    """Give the command of the child script; `folder` is where pynvml lies."""
    # Isolated and without site packages: it starts in a few milliseconds, and nobody's environment changes it.
    return [sys.executable, "-I", "-S", _SCRIPT, folder, *words]


def library_folder() -> str:
    """Give the folder in which pynvml lies, empty if it is not installed. Does not import it."""
    try:
        spec = importlib.util.find_spec("pynvml")
    except (ImportError, ValueError):
        return ""
    if spec is None or not spec.origin:
        return ""
    folder = os.path.dirname(os.path.abspath(spec.origin))
    return os.path.dirname(folder) if spec.submodule_search_locations else folder


def missing() -> Statement:
    """Say that the library's Python half is not installed."""
    finding = ProbeFinding(
        code="nvml_missing",
        message="NVML was not asked: the Python library nvidia-ml-py is not installed beside Stoker",
        probe=WITNESS,
        hint="install nvidia-ml-py into Stoker's environment",
    )
    return Statement(witness=WITNESS, findings=(finding,), was_heard=False)


def read(reply: Reply) -> Statement:
    """Give what a snapshot says."""
    if isinstance(reply, Silent):
        return Statement(witness=WITNESS, findings=(silence(reply, WITNESS),), was_heard=False)
    said = next(iter(marked_objects(reply.out)), None)
    if said is None:
        ended = f"it ended with {reply.exit_code}" if reply.exit_code else "it printed no answer"
        finding = trouble(reply.err, WITNESS) or garbage(WITNESS, ended, reply.err or reply.out)
        return Statement(witness=WITNESS, findings=(finding,), was_heard=False)
    if "missing" in said:
        return missing()
    if "error" in said:
        return Statement(witness=WITNESS, findings=(_failure(str(said["error"])),), was_heard=False)
    driver = text_cell(said.get("driver"))
    sightings = [one for row in _rows(said.get("devices")) for one in _device(row, driver)]
    return Statement(
        witness=WITNESS,
        sightings=tuple(sightings),
        backends={Backend.CUDA: _cuda_version(said.get("cuda"))} if sightings else {},
        findings=tuple(_failure(str(error)) for error in said.get("errors") or ()),
    )


def _failure(text: str) -> ProbeFinding:
    return trouble(text, WITNESS) or ProbeFinding(
        code="nvml_error", message=f"NVML says: {one_line(text, 200)}", probe=WITNESS, hint="does nvidia-smi work?"
    )


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _device(row: dict[str, Any], driver: str) -> list[Sighting]:
    whole = _sighting(row, driver, "")
    return [whole, *(_sighting(part, driver, whole.uuid) for part in _rows(row.get("parts")))]


def _sighting(row: dict[str, Any], driver: str, parent: str) -> Sighting:
    return Sighting(
        backend=Backend.CUDA,
        uuid=text_cell(row.get("uuid")),
        # A part has its whole's address, which is no identity.
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
