"""Capability: what one machine was found to have, as one snapshot that can be sent, compared and kept.

Only nouns. `devices.detection` takes the snapshot; declared values are laid beside it by `scheduler.offers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.core.device import Backend, Device
from stoker.core.digests import Digest, digest_value
from stoker.core.errors import BadInput
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import ReadRules, from_plain

SCHEMA = 1


@frozen
class MachineInterpreter:
    """A Python on the machine and the torch in it."""

    path: str = ""
    version: str = ""
    torch: str = ""
    """Empty: none, or it could not be asked."""
    torch_cuda: str = ""
    """The CUDA or ROCm version that torch was built for."""
    why: str = ""
    """What kept it from answering."""


@frozen
class ProbeFinding:
    """Something that probes noticed beside devices: a tool that hung, device files without a driver."""

    code: str = ""
    """A name for programs: `nvml_sees_nothing`, `probe_timeout`."""
    message: str = ""
    probe: str = ""
    hint: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "probe": self.probe, "hint": self.hint}


@frozen
class Capability:
    """One machine at one moment. `None` and empty texts mean unknown."""

    hostname: str = ""
    os: str = ""
    arch: str = ""
    cpu_name: str = ""
    cpu_cores: int = 1
    """Physical ones."""
    cpu_threads: int = 1
    ram_total_bytes: int | None = None
    ram_available_bytes: int | None = None
    devices: tuple[Device, ...] = ()
    backends: Mapping[Backend, str] = fresh(factory=dict)
    """Backend name → its version, if known."""
    python_version: str = ""
    interpreters: tuple[MachineInterpreter, ...] = ()
    recipes: tuple[str, ...] = ()
    training_commit: str = ""
    findings: tuple[ProbeFinding, ...] = ()
    sources: Mapping[str, str] = fresh(factory=dict)
    """Which probe said what: field → probe."""
    is_fake: bool = False
    """Its devices were invented by STOKER_GPU_FAKE."""

    @property
    def usable_devices(self) -> tuple[Device, ...]:
        """Devices that work may be put on."""
        return tuple(one for one in self.devices if one.may_be_used)

    @property
    def torch_version(self) -> str:
        """The first interpreter's that has one."""
        return next((one.torch for one in self.interpreters if one.torch), "")

    @property
    def digest(self) -> Digest:
        """Name what does not change from minute to minute: two snapshots of one idle and busy machine are equal."""
        steady = [
            SCHEMA,
            self.hostname,
            self.os,
            self.arch,
            self.cpu_name,
            self.cpu_cores,
            self.cpu_threads,
            self.ram_total_bytes,
            self.is_fake,
            [[one.uuid, str(one.backend), one.name, one.total_bytes, one.driver] for one in self.devices],
            {str(backend): version for backend, version in self.backends.items()},
            self.python_version,
            [[one.path, one.version, one.torch, one.torch_cuda] for one in self.interpreters],
            list(self.recipes),
            self.training_commit,
        ]
        return digest_value("capability", steady)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON: system A's fields, in which unknown memory is 0.0, then ours."""
        cuda = [one for one in self.usable_devices if one.backend is Backend.CUDA]
        return {
            "schema": SCHEMA,
            "hostname": self.hostname,
            "os": self.os,
            "arch": self.arch,
            "cpu_cores": self.cpu_cores,
            "ram_total_gib": _gib(self.ram_total_bytes or 0),
            "ram_available_gib": _gib(self.ram_available_bytes or 0),
            "cuda_available": bool(cuda),
            "cuda_devices": [
                {
                    "name": one.name,
                    "vram_total_gib": _gib(one.total_bytes or 0),
                    "vram_free_gib": _gib(one.free_bytes or 0),
                }
                for one in cuda
            ],
            "torch_version": self.torch_version or None,
            "python_version": self.python_version,
            "training_commit": self.training_commit or None,
            "digest": str(self.digest),
            "is_fake": self.is_fake,
            "cpu_name": self.cpu_name,
            "cpu_threads": self.cpu_threads,
            "ram_total_bytes": self.ram_total_bytes,
            "ram_available_bytes": self.ram_available_bytes,
            "backends": {str(backend): version for backend, version in self.backends.items()},
            "devices": [one.to_dict() for one in self.devices],
            "interpreters": [
                {
                    "path": one.path,
                    "version": one.version,
                    "torch": one.torch or None,
                    "torch_cuda": one.torch_cuda or None,
                    "why": one.why,
                }
                for one in self.interpreters
            ],
            "recipes": list(self.recipes),
            "findings": [one.to_dict() for one in self.findings],
            "sources": dict(self.sources),
        }


def _gib(size_bytes: int) -> float:
    return size_bytes / 1024**3


MOST_DEVICES = 1024
_MOST_CORES = 1 << 20
_RULES = ReadRules(
    bounds={
        "cpu_cores": (1, _MOST_CORES),
        "cpu_threads": (1, _MOST_CORES),
        "index": (0, 1 << 20),
        "devices": (0, MOST_DEVICES),
        "interpreters": (0, MOST_DEVICES),
        "findings": (0, MOST_DEVICES),
        "recipes": (0, 10_000),
    },
    null_is_missing=True,
)


@frozen
class _Versioned:
    schema: int = SCHEMA


def capability_from_dict(plain: object) -> Capability:
    """Read a capability that another machine sent: strict and bounded, so that nothing in it can do harm here.

    Raises:
        BadInput: it is none, or is larger than any machine's.

    The inverse of `Capability.to_dict`. Fields that are made from others (`cuda_devices`, sizes in GiB, the digest) are
    not read; fields that are not known are passed over, since a newer machine may send some.
    """
    rules = ReadRules(bounds={"schema": (0, 1 << 30)}, null_is_missing=True)
    schema = from_plain(_Versioned, plain, "capability", rules).schema
    if schema > SCHEMA:
        message = f"capability.schema: {schema} is newer than {SCHEMA}"
        raise BadInput(message, hint="the coordinator is older than the worker: bring it up to date")
    capability = from_plain(Capability, plain, "capability", _RULES)
    for at, device in enumerate(capability.devices):
        if not device.uuid:
            message = f"capability.devices[{at}].uuid: a device without a UUID"
            raise BadInput(message)
    uuids = [one.uuid.casefold() for one in capability.devices]
    if len(set(uuids)) < len(uuids):
        message = "capability.devices: two devices with one UUID"
        raise BadInput(message)
    return capability
