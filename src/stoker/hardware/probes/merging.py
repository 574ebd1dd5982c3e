"""All statements into one answer. Pure: `precedence` says who is believed, `comparing` what does not fit together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import cast

from stoker.hardware.probes.comparing import compare, unmatched
from stoker.hardware.probes.found import Found, spoken
from stoker.hardware.probes.grouping import TORCH, Group, backend_of, first_of, group, is_unified, pair
from stoker.hardware.probes.sighting import Statement
from stoker.hardware.probes.three_answers import MachineFacts, installed, usable, visible
from stoker.hardware.probes.visibility import Candidate, visible_answers
from stoker.model.capability import ProbeFinding
from stoker.model.devices import Answer, Backend, Device, MemoryType

_FIELDS = ("name", "index", "memory_type", "total_bytes", "free_bytes", "driver", "capability", "pci")
_FROM_MEMORY = "meminfo"
_MADE_UP = "made up"


def merge(statements: Sequence[Statement], environment: Mapping[str, str], facts: MachineFacts) -> Found:
    """Give the devices that the statements add up to, with who said what, and all that does not fit together."""
    heard = {one.witness: one for one in statements}
    groups = group(statements)
    uuids, findings = _identities(groups, facts.tag)
    by_variables = visible_answers(
        [
            Candidate(uuid=uuid, backend=backend_of(one), name=_text(one, "name"), parent=_text(one, "parent"))
            for one, uuid in zip(groups, uuids, strict=True)
        ],
        environment,
    )
    if TORCH in heard:
        seen = [one for one, answer in zip(groups, by_variables, strict=True) if not answer.is_no]
        findings += unmatched(pair(seen, heard[TORCH]))
    devices = tuple(
        _device(one, uuid, answer, heard, facts) for one, uuid, answer in zip(groups, uuids, by_variables, strict=True)
    )
    said = [finding for one in statements for finding in one.findings]
    noticed = [*said, *findings, *compare(groups, devices, heard, facts.device_files)]
    backends, sources = _backends(statements)
    return Found(
        devices=devices,
        backends=spoken(backends, devices),
        findings=tuple(dict.fromkeys(noticed)),
        sources={
            **({"devices": ", ".join(dict.fromkeys(w for one in groups for w in one))} if groups else {}),
            **sources,
        },
    )


def made_up_uuid(tag: str, backend: Backend, key: str) -> str:
    """Give the identity of a device whose vendor gives it none: the same each time, and on this machine only."""
    digits = hashlib.sha256(f"{tag}\n{backend}\n{key}".encode()).hexdigest()
    return f"LOCAL-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"


def _identities(groups: Sequence[Group], tag: str) -> tuple[list[str], list[ProbeFinding]]:
    uuids: list[str] = []
    taken: set[str] = set()
    findings: list[ProbeFinding] = []
    for number, one in enumerate(groups):
        uuid, pci = _text(one, "uuid"), _text(one, "pci")
        if uuid.lower() in taken:
            findings.append(
                ProbeFinding(
                    code="duplicate_uuid",
                    message=f"two devices say that they are {uuid}; the one at {pci or number} got another name here",
                    hint="a virtual machine was copied together with the identity of its device",
                )
            )
            uuid = ""
        key = pci or _text(one, "name")
        while not uuid or uuid.lower() in taken:
            uuid = made_up_uuid(tag, backend_of(one), key)
            key += "+"
        taken.add(uuid.lower())
        uuids.append(uuid)
    return uuids, findings


def _device(of: Group, uuid: str, by_variables: Answer, heard: Mapping[str, Statement], facts: MachineFacts) -> Device:
    values: dict[str, object] = {}
    sources = {"uuid": first_of(of, "uuid")[1] if _text(of, "uuid") == uuid else _MADE_UP}
    for field in _FIELDS:
        value, witness = first_of(of, field)
        values[field] = value
        if witness:
            sources[field] = witness
    if values["memory_type"] is None and is_unified(of):
        values["memory_type"] = MemoryType.UNIFIED
        sources["memory_type"] = sources["name"]
    if values["memory_type"] is MemoryType.UNIFIED:
        for field, known in (("total_bytes", facts.ram_total_bytes), ("free_bytes", facts.ram_available_bytes)):
            if values[field] is None and known is not None:
                values[field], sources[field] = known, _FROM_MEMORY
    seen = visible(of, by_variables, heard, facts)
    return Device(
        uuid=uuid,
        backend=backend_of(of),
        name=_text(of, "name") or f"{backend_of(of)} device",
        index=cast("int | None", values["index"]),
        memory_type=cast("MemoryType | None", values["memory_type"]) or MemoryType.DISCRETE,
        total_bytes=cast("int | None", values["total_bytes"]),
        free_bytes=cast("int | None", values["free_bytes"]),
        driver=_text(of, "driver"),
        capability=_text(of, "capability"),
        pci=_text(of, "pci"),
        installed=installed(of),
        visible=seen,
        usable=usable(of, seen, heard),
        sources=sources,
    )


def _backends(statements: Sequence[Statement]) -> tuple[dict[Backend, str], dict[str, str]]:
    backends: dict[Backend, str] = {}
    sources: dict[str, str] = {}
    for one in statements:
        for backend, version in one.backends.items():
            if not backends.get(backend):
                backends[backend] = version
                sources[str(backend)] = one.witness
    return backends, sources


def _text(of: Group, field: str) -> str:
    return cast("str", first_of(of, field)[0] or "")
