"""Capability: what one machine was found to have, as one snapshot that can be sent, compared and kept.

Only nouns. `devices.detection` takes the snapshot; declared values are laid beside it by `scheduler.offers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from stoker.core.device import Backend, Device, MemoryType, TriState, TriStateAnswer
from stoker.core.digests import Digest, digest_value
from stoker.core.errors import BadInput
from stoker.core.frozen import fresh, frozen

SCHEMA = 1


@frozen
class MachineInterpreter:
    """A Python on the machine and the torch in it."""

    path: str
    version: str
    torch: str = ""
    """Empty: none, or it could not be asked."""
    torch_cuda: str = ""
    """The CUDA or ROCm version that torch was built for."""
    why: str = ""
    """What kept it from answering."""


@frozen
class ProbeFinding:
    """Something that probes noticed beside devices: a tool that hung, device files without a driver."""

    code: str
    """A name for programs: `nvml_sees_nothing`, `probe_timeout`."""
    message: str
    probe: str = ""
    hint: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "probe": self.probe, "hint": self.hint}


@frozen
class Capability:
    """One machine at one moment. `None` and empty texts mean: nobody could say."""

    hostname: str
    os: str
    arch: str
    cpu_name: str = ""
    cpu_cores: int = 1
    """Physical ones."""
    cpu_threads: int = 1
    ram_total_bytes: int | None = None
    ram_available_bytes: int | None = None
    devices: tuple[Device, ...] = ()
    backends: Mapping[Backend, str] = fresh(factory=dict)
    """What programs can speak here → its version, if anybody says one."""
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

    def best_vram_bytes(self, backend: Backend = Backend.CUDA) -> int:
        """Return the most free memory of any one usable device; zero without one."""
        return max((one.free_bytes or 0 for one in self.usable_devices if one.backend is backend), default=0)

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
        """Return it as JSON does: system A's fields, in which memory that nobody knows is 0.0, then ours."""
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


# Reading a capability that another machine sent: strict and bounded, so that nothing it says can do harm here.
#
# The inverse of `Capability.to_dict`. Fields that are made from others (`cuda_devices`, sizes in GiB, the digest) are
# not read; fields that are not known are passed over, since a newer machine may send some.

MOST_BYTES = 1 << 60
MOST_DEVICES = 1024
MOST_ITEMS = 10_000
LONGEST_TEXT = 4000
_MOST_CORES = 1 << 20

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


def capability_from_dict(said: object) -> Capability:
    """Read a capability.

    Raises:
        BadInput: it is none, or is larger than any machine's.

    """
    known = _Map(said, "capability")
    schema = known.number("schema", most=1 << 30) or SCHEMA
    if schema > SCHEMA:
        message = f"capability.schema: {schema} is newer than {SCHEMA}"
        raise BadInput(message, hint="the coordinator is older than the worker: bring it up to date")
    capability = Capability(
        hostname=known.text("hostname"),
        os=known.text("os"),
        arch=known.text("arch"),
        cpu_name=known.text("cpu_name"),
        cpu_cores=known.number("cpu_cores", least=1, most=_MOST_CORES) or 1,
        cpu_threads=known.number("cpu_threads", least=1, most=_MOST_CORES) or 1,
        ram_total_bytes=known.number("ram_total_bytes"),
        ram_available_bytes=known.number("ram_available_bytes"),
        devices=known.items("devices", _device, most=MOST_DEVICES),
        backends={_one_of(Backend, name, known.path("backends")): text for name, text in known.texts("backends")},
        python_version=known.text("python_version"),
        interpreters=known.items("interpreters", _interpreter, most=MOST_DEVICES),
        recipes=known.items("recipes", _text),
        training_commit=known.text("training_commit"),
        findings=known.items("findings", _finding, most=MOST_DEVICES),
        sources=dict(known.texts("sources")),
        is_fake=known.flag("is_fake"),
    )
    uuids = [one.uuid.casefold() for one in capability.devices]
    if len(set(uuids)) < len(uuids):
        message = "capability.devices: two devices with one UUID"
        raise BadInput(message)
    return capability


def _device(said: object, where: str) -> Device:
    known = _Map(said, where)
    uuid = known.text("uuid")
    if not uuid:
        message = f"{known.path('uuid')}: a device without a UUID"
        raise BadInput(message)
    return Device(
        uuid=uuid,
        backend=_one_of(Backend, known.text("backend"), known.path("backend")),
        name=known.text("name"),
        index=known.number("index", most=1 << 20),
        memory_type=_one_of(MemoryType, known.text("memory_type") or MemoryType.DISCRETE, known.path("memory_type")),
        total_bytes=known.number("total_bytes"),
        free_bytes=known.number("free_bytes"),
        driver=known.text("driver"),
        capability=known.text("capability"),
        pci=known.text("pci"),
        installed=known.answer("installed"),
        visible=known.answer("visible"),
        usable=known.answer("usable"),
        is_fake=known.flag("is_fake"),
        sources=dict(known.texts("sources")),
    )


def _interpreter(said: object, where: str) -> MachineInterpreter:
    known = _Map(said, where)
    return MachineInterpreter(**{name: known.text(name) for name in ("path", "version", "torch", "torch_cuda", "why")})


def _finding(said: object, where: str) -> ProbeFinding:
    known = _Map(said, where)
    return ProbeFinding(**{name: known.text(name) for name in ("code", "message", "probe", "hint")})


class _Map:
    """An object as JSON gives it, and where it stands. What is absent or null is as if nobody could say."""

    def __init__(self, said: object, where: str) -> None:
        if not isinstance(said, Mapping):
            raise _wrong(where, "an object", said)
        self._said = said
        self._where = where

    def path(self, name: str) -> str:
        return f"{self._where}.{name}"

    def text(self, name: str) -> str:
        value = self._said.get(name)
        return "" if value is None else _text(value, self.path(name))

    def flag(self, name: str) -> bool:
        value = self._said.get(name, False)
        if not isinstance(value, bool):
            raise _wrong(self.path(name), "true or false", value)
        return value

    def number(self, name: str, *, least: int = 0, most: int = MOST_BYTES) -> int | None:
        value = self._said.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise _wrong(self.path(name), f"a whole number from {least} to {most}", value)
        return value

    def items(self, name: str, read: Callable[[object, str], T], *, most: int = MOST_ITEMS) -> tuple[T, ...]:
        value = self._said.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or len(value) > most:
            raise _wrong(self.path(name), f"a list of at most {most}", value)
        return tuple([read(one, f"{self.path(name)}[{at}]") for at, one in enumerate(value)])

    def texts(self, name: str) -> list[tuple[str, str]]:
        value = self._said.get(name)
        if value is None:
            return []
        if not isinstance(value, Mapping) or len(value) > MOST_ITEMS:
            raise _wrong(self.path(name), f"an object of at most {MOST_ITEMS} texts", value)
        where = self.path(name)
        return [(_text(key, where), "" if text is None else _text(text, where)) for key, text in value.items()]

    def answer(self, name: str) -> TriStateAnswer:
        value = self._said.get(name)
        if value is None:
            return TriStateAnswer(verdict=TriState.UNKNOWN)
        known = _Map(value, self.path(name))
        return TriStateAnswer(
            verdict=_one_of(TriState, known.text("verdict"), known.path("verdict")), why=known.text("why")
        )


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise _wrong(where, f"a text of at most {LONGEST_TEXT} characters", value)
    return value


def _one_of(kind: type[E], value: str, where: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise _wrong(where, f"one of {', '.join(kind)}", value) from None


def _wrong(where: str, wanted: str, value: object) -> BadInput:
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return BadInput(f"{where}: {wanted}, not {shown[:60]}")
