"""The witness torch: what the torch of one interpreter sees, and whether it could compute there.

It is the only witness that has worked on a device, and the only one that sees what programs see: devices that a
variable hides are hidden from it. `torch_child.py` runs in the user's interpreter. Reading is pure and never raises.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stoker.hardware.probes.asking import Reply, Silent
from stoker.hardware.probes.cells import bytes_value, count_value, text_cell
from stoker.hardware.probes.marked import marked_objects
from stoker.hardware.probes.noticing import garbage, silence
from stoker.hardware.probes.sighting import Sighting, Statement, tidy_pci
from stoker.model.capability import ProbeFinding
from stoker.model.devices import Answer, Backend, Verdict
from stoker.model.frozen import changed
from stoker.model.printable import one_line

WITNESS = "torch"
_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_child.py")
_LONGEST = 200
_NONE = "No CUDA GPUs are available"


def question(python: str) -> list[str]:
    """Give the command that asks the torch of an interpreter."""
    return [python, _SCRIPT]


def read(reply: Reply) -> Statement:
    """Give what torch said, also if it fell silent half way."""
    said: dict[str, Any] = {}
    for one in marked_objects(reply.out):
        said.update(one)
    findings = _findings(reply, said)
    # What fails once torch is there says as much about the devices as a list of them.
    if "devices" not in said and not ("error" in said and said.get("torch")):
        return Statement(witness=WITNESS, findings=findings, was_heard=False)
    backend = Backend.ROCM if said.get("hip") else Backend.CUDA
    rows = said["devices"] if isinstance(said.get("devices"), list) else []
    sightings = [_sighting(row, backend, text_cell(said.get("torch"))) for row in rows if isinstance(row, dict)]
    version = text_cell(said.get("hip")) or text_cell(said.get("cuda"))
    backends = {backend: version} if sightings else {}
    if said.get("metal") is True:
        backends[Backend.METAL] = ""
    return Statement(
        witness=WITNESS,
        sightings=tuple(sightings),
        backends=backends,
        findings=findings,
        looked_for=frozenset({backend}) if version else frozenset(),
    )


def _findings(reply: Reply, said: Mapping[str, Any]) -> tuple[ProbeFinding, ...]:
    if isinstance(reply, Silent):
        slow = "the first import of torch may take longer than that: ask again"
        finding = silence(reply, WITNESS)
        return (changed(finding, hint=slow) if reply.code == "probe_timeout" else finding,)
    if said.get("missing"):
        # That an interpreter has no torch is told where interpreters are.
        return ()
    version = text_cell(said.get("torch"))
    error = str(said.get("error", ""))
    if error and _NONE not in error:
        what = f"torch {version} can't use its devices" if version else "torch can't be imported"
        return (
            ProbeFinding(
                code="torch_error",
                message=f"{what}: {one_line(error, _LONGEST)}",
                probe=WITNESS,
                hint="reinstall torch for this machine's driver" if version else "reinstall torch in that environment",
            ),
        )
    if version and not said.get("cuda") and not said.get("hip") and not said.get("metal"):
        return (
            ProbeFinding(
                code="torch_without_gpu",
                message=f"torch {version} was built for CPUs only",
                probe=WITNESS,
                hint="install a build of torch for CUDA or ROCm in that environment",
            ),
        )
    if "devices" not in said and not error:
        noise = reply.err or reply.out
        return (garbage(WITNESS, f"it ended with {reply.exit_code} before it had said all", noise),)
    return ()


def _sighting(row: Mapping[str, Any], backend: Backend, version: str) -> Sighting:
    uuid = text_cell(row.get("uuid"))
    return Sighting(
        backend=backend,
        # It leaves out the vendor's prefix; what ROCm gives is no UUID of the vendor's tools.
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


def _works(row: Mapping[str, Any], version: str) -> Answer:
    if row.get("works") is True:
        return Answer(verdict=Verdict.YES, why=f"torch {version} has computed on it")
    if error := row.get("error"):
        return Answer(verdict=Verdict.NO, why=f"torch {version} fails on it: {one_line(str(error), _LONGEST)}")
    return Answer(verdict=Verdict.NO, why=f"torch {version} computes wrongly on it")
