"""What workers of system A send and get, translated from and to our own messages. Pure.

Their job ids are opaque: the `id` of a claim names the job, its epoch and a code that only this coordinator can make.
So a worker speaks for the claim that it got and for no other, though it knows neither epochs nor tokens.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any

from pydantic import AliasChoices, Field

from stoker.core.leases import AttemptToken
from stoker.protocol.codec import WireMessage
from stoker.protocol.lease_messages import ExitCode, Grant, Seconds, WorkerMeasurements

_GIB = 1024**3
_CODE = 32
_CLAIM_ID = re.compile(rf"(?P<job>[0-9a-f]{{64}})-(?P<epoch>[0-9]{{1,18}})-(?P<code>[0-9a-f]{{{_CODE}}})")
_SHUTDOWN = "shutdown"
_MOST_LINES = 10_000

Lines = Annotated[tuple[str, ...], Field(max_length=_MOST_LINES)]


class _Told(WireMessage):
    """What a worker of system A says; unknown fields are ignored."""


class ClaimA(_Told):
    """A host asks for one job."""

    hostname: Annotated[str, Field(max_length=200)] = ""
    capability: dict[str, Any]
    """System A's record (`cpu_cores`, `ram_total_gib`, `cuda_devices` …), or ours."""


class LeaseA(_Told):
    """What every word about a claim may carry; each is checked where it is said."""

    hostname: Annotated[str, Field(max_length=200)] = ""
    attempt: int | None = None
    epoch: int | None = None


class MetadataA(_Told):
    """What rides along with a heartbeat."""

    lines: Lines = ()


class HeartbeatA(LeaseA):
    """The job runs; its output and metrics ride along."""

    metrics: dict[str, float] = Field(default_factory=dict)
    lines: Lines = ()
    """What it printed since the last heartbeat; `metadata.lines` means the same."""
    metadata: MetadataA = MetadataA()
    step: int | None = None

    def output(self) -> tuple[str, ...]:
        """Return what the job printed."""
        return (*self.lines, *self.metadata.lines)


class CompleteA(LeaseA):
    """It completed; its model was sent before."""

    sha256: Annotated[
        str, Field(pattern=r"^([0-9a-f]{64})?$", validation_alias=AliasChoices("sha256", "artifact_id"))
    ] = ""
    """Of the model's bytes; empty: the model that was sent last for this claim."""
    metrics: dict[str, float] = Field(default_factory=dict)
    seconds: Seconds = 0.0


class FailA(LeaseA):
    """It failed."""

    error: Annotated[str, Field(max_length=4000, validation_alias=AliasChoices("error", "reason"))] = ""
    exit_code: ExitCode = 1
    seconds: Seconds = 0.0

    @property
    def is_shutdown(self) -> bool:
        """True if the worker was told to end: the job did not fail, and is tried again."""
        return self.error.strip().lower().startswith(_SHUTDOWN)


def claim_id(secret: bytes, token: AttemptToken, host: str) -> str:
    """Return the `id` under which a host speaks for its claim."""
    made_of = f"{token.job} {token.attempt} {token.epoch} {token.generation} {host}"
    code = hmac.new(secret, b"system A claim " + made_of.encode(), sha256).hexdigest()
    return f"{token.job}-{token.epoch}-{code[:_CODE]}"


def job_of_claim(id: str) -> str:
    """Return the job that a claim's `id` names; empty if it is none."""
    found = _CLAIM_ID.fullmatch(id)
    return found["job"] if found else ""


def incarnation_of(host: str) -> str:
    """Return the start of a worker that does not name its starts: always the same for a host."""
    return f"system-a-{sha256(host.encode()).hexdigest()[:32]}"


def job_of(grant: Grant, id: str) -> dict[str, Any]:
    """Return a grant as system A's workers read a job, with the lease beside it."""
    hyper = dict(grant.spec.args)
    mode = grant.spec.mode or hyper.pop("mode", None) or ""
    seed = hyper.pop("seed", None) if grant.spec.seed is None else grant.spec.seed
    return {
        "id": id,
        "name": grant.spec.shown,
        "model": grant.spec.recipe.rpartition("/")[2],
        "mode": mode,
        "hyper": hyper,
        "split_recipe": grant.spec.split_recipe,
        "train_hosts": list(grant.spec.train_hosts),
        "seed": seed,
        "job": grant.job,
        "recipe": grant.spec.recipe,
        "attempt": grant.attempt,
        "epoch": grant.epoch,
        "generation": grant.generation,
        "lease_s": grant.lease_s,
        "devices": list(grant.devices),
    }


def capability_of(host: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return system A's record as ours: sizes in bytes, devices with names of their own. One of ours stays as it is."""
    if "schema" in said or "devices" in said:
        return {**said, "hostname": host}
    devices = said.get("cuda_devices") if said.get("cuda_available", True) else ()
    # A machine whose memory it can't read says 0 for both.
    ram_total_bytes = _bytes(said.get("ram_total_gib")) or None
    python, torch = (str(said.get(key) or "") for key in ("python_version", "torch_version"))
    return {
        "schema": 1,
        "hostname": host,
        "os": str(said.get("os") or ""),
        "arch": str(said.get("arch") or ""),
        "cpu_cores": said.get("cpu_cores") or 1,
        "ram_total_bytes": ram_total_bytes,
        "ram_available_bytes": _bytes(said.get("ram_available_gib")) if ram_total_bytes else None,
        "python_version": python,
        "interpreters": [{"path": "python", "version": python, "torch": torch}] if torch else [],
        "training_commit": str(said.get("training_commit") or ""),
        "devices": [
            {
                "uuid": f"{host}-cuda-{index}",
                "backend": "cuda",
                "name": str(device.get("name") or ""),
                "index": index,
                "total_bytes": _bytes(device.get("vram_total_gib")) or None,
                "free_bytes": _bytes(device.get("vram_free_gib")),
            }
            for index, device in enumerate(devices if isinstance(devices, list | tuple) else ())
            if isinstance(device, Mapping)
        ],
    }


def steady(capability: Mapping[str, Any]) -> dict[str, Any]:
    """Return of a capability what does not change from minute to minute."""
    kept = {key: value for key, value in capability.items() if key not in ("ram_available_bytes", "ram_available_gib")}
    kept["devices"] = [
        {key: value for key, value in one.items() if key != "free_bytes"} for one in _devices(capability)
    ]
    return kept


def measured_in(capability: Mapping[str, Any]) -> WorkerMeasurements:
    """Return of a capability what does: what is free at this moment."""
    available = capability.get("ram_available_bytes")
    free = {str(one.get("uuid")): one.get("free_bytes") for one in _devices(capability)}
    return WorkerMeasurements(
        ram_available_bytes=available if type(available) is int else None,
        free_bytes={uuid: size for uuid, size in free.items() if type(size) is int},
    )


def _devices(capability: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    devices = capability.get("devices")
    return [one for one in devices if isinstance(one, Mapping)] if isinstance(devices, list) else []


def _bytes(gib: object) -> int | None:
    """Return GiB as bytes; None if it is no size."""
    return int(gib * _GIB) if isinstance(gib, int | float) and 0 <= gib < 2**40 else None
