"""The witness nvidia-smi: a list of GPUs as CSV, with a header so that every column says what it is.

Old versions do not know all columns and refuse the whole question; they are asked again for fewer. Parts of divided
GPUs (MIG) are in another list, asked for if there are any. Reading is pure and never raises.
"""

from __future__ import annotations

import re

from stoker.hardware.probes.asking import Reply, Silent
from stoker.hardware.probes.cells import is_absent, size_cell, text_cell
from stoker.hardware.probes.noticing import DEVICE_LOST, garbage, silence, trouble
from stoker.hardware.probes.sighting import Sighting, Statement, tidy_pci
from stoker.model.capability import ProbeFinding
from stoker.model.devices import Answer, Backend, Verdict
from stoker.model.frozen import changed

WITNESS = "nvidia-smi"

_OLD = ("index", "uuid", "pci.bus_id", "name", "memory.total", "memory.free", "driver_version")
_ALL = (*_OLD, "memory.reserved", "compute_cap", "mig.mode.current")
_NONE_FOUND = "no devices were found"
_UNKNOWN_FIELD = "not a valid field to query"
_GPU_LINE = re.compile(r"GPU \d+: .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_PART_LINE = re.compile(r"\s*MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)\s]+)\)")
_PART_SIZE = re.compile(r"\.(\d+)gb")
_SIZES = {"memory.total": "total_bytes", "memory.free": "free_bytes", "memory.reserved": "reserved_bytes"}


def question(program: str = WITNESS, *, is_old: bool = False) -> list[str]:
    """Give the command that lists the GPUs."""
    return [program, f"--query-gpu={','.join(_OLD if is_old else _ALL)}", "--format=csv"]


def parts_question(program: str = WITNESS) -> list[str]:
    """Give the command that also lists the parts of divided GPUs."""
    return [program, "-L"]


def wants_old_question(reply: Reply) -> bool:
    """Whether this version does not know all columns."""
    return not isinstance(reply, Silent) and _UNKNOWN_FIELD in f"{reply.out} {reply.err}".lower()


def read(reply: Reply) -> Statement:
    """Give what the list of GPUs says."""
    if isinstance(reply, Silent):
        return Statement(witness=WITNESS, findings=(silence(reply, WITNESS),), was_heard=False)
    lines = [line for line in reply.out.splitlines() if line.strip()]
    start = next((number for number, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        return _without_list(reply.out, reply.err, reply.exit_code)
    columns = [cell.partition(" [")[0].strip() for cell in lines[start].split(",")]
    sightings: list[Sighting] = []
    findings: list[ProbeFinding] = []
    for line in lines[start + 1 :]:
        sighting, noticed = _row(columns, line)
        findings.extend(noticed)
        if sighting is not None:
            sightings.append(sighting)
    if reply.exit_code and not findings:
        findings.append(_failure(f"{reply.err} {reply.out}", reply.exit_code))
    return Statement(
        witness=WITNESS,
        sightings=tuple(sightings),
        backends={Backend.CUDA: ""} if sightings else {},
        findings=tuple(findings),
    )


def read_parts(statement: Statement, reply: Reply) -> Statement:
    """Give a statement with the parts of its divided GPUs added."""
    if isinstance(reply, Silent):
        return changed(statement, findings=(*statement.findings, silence(reply, WITNESS)))
    parents = {one.uuid: one for one in statement.sightings}
    parts: list[Sighting] = []
    parent: Sighting | None = None
    for line in reply.out.splitlines():
        whole, part = _GPU_LINE.match(line), _PART_LINE.match(line)
        if whole is not None:
            parent = parents.get(whole[1])
        elif part is not None and parent is not None:
            parts.append(_part(parent, part))
    return changed(statement, sightings=(*statement.sightings, *parts))


def _is_header(line: str) -> bool:
    cells = {cell.partition(" [")[0].strip() for cell in line.split(",")}
    return {"index", "uuid", "name"} <= cells


def _row(columns: list[str], line: str) -> tuple[Sighting | None, list[ProbeFinding]]:
    cells = [cell.strip() for cell in line.split(",")]
    if not cells[0].isdecimal() or len(cells) > len(columns):
        return None, [trouble(line, WITNESS) or garbage(WITNESS, "a line that is no row of its list", line)]
    findings: list[ProbeFinding] = []
    if len(cells) < len(columns):
        # What is cut off may end within its last cell.
        cells.pop()
        findings.append(garbage(WITNESS, "a row that is cut off", line))
    row = dict(zip(columns, cells, strict=False))
    sizes: dict[str, int | None] = {}
    for column, field in _SIZES.items():
        try:
            sizes[field] = size_cell(row.get(column, ""))
        except ValueError as error:
            findings.append(garbage(WITNESS, f"{column} is {error}"))
    lost = [trouble(cell, WITNESS) for cell in cells if is_absent(cell) and "n/a" not in cell.lower()]
    findings.extend(one for one in lost if one is not None and one not in findings)
    stopped = next((one.message for one in lost if one is not None and one.code == DEVICE_LOST), "")
    uuid, pci = text_cell(row.get("uuid", "")), tidy_pci(row.get("pci.bus_id", ""))
    name = text_cell(row.get("name", ""))
    if not (uuid or pci or name):
        return None, [*findings, garbage(WITNESS, "a row that names no device", line)]
    return (
        Sighting(
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
            works=Answer(verdict=Verdict.NO, why=stopped) if stopped else None,
        ),
        findings,
    )


def _without_list(out: str, err: str, exit_code: int) -> Statement:
    said = f"{out.strip()} {err.strip()}".strip()
    if _NONE_FOUND in said.lower():
        return Statement(witness=WITNESS)
    return Statement(witness=WITNESS, findings=(_failure(said, exit_code),), was_heard=False)


def _failure(said: str, exit_code: int) -> ProbeFinding:
    known = trouble(said, WITNESS)
    if known is not None:
        return known
    return garbage(WITNESS, f"it ended with {exit_code}" if exit_code else "it printed no list", said)


def _part(parent: Sighting, found: re.Match[str]) -> Sighting:
    profile, number, uuid = found.groups()
    size = _PART_SIZE.search(profile)
    return Sighting(
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
