"""System A's own routes, as a thin layer over ours: its workers and its scripts go on as they are.

Its workers send what their machine has with every claim and know neither starts nor epochs. A start is therefore called
by the host's name, and the lease that a host holds now is the one it speaks for; a worker that hands the claim's
`epoch` back is fenced like ours. A model is the worker's own archive; it is kept as the one file of a bundle.
`GET /v1/jobs` and `GET /v1/health` are ours.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from hashlib import sha256
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, Annotated, Any

from fastapi import APIRouter, Header, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from stoker.coordinator.queue.commands import CancelJobs, RequeueJobs, Write
from stoker.coordinator.service.answers import BYTES_BODY, Ref, answer, done, raw
from stoker.coordinator.service.intake import too_large
from stoker.coordinator.service.office import Office
from stoker.coordinator.service.speech import json_bytes
from stoker.coordinator.service.who import Who, recorded
from stoker.model.artifacts import TreeEntry
from stoker.model.digests import Digest, digest_value
from stoker.model.errors import BadInput, NotFound, Refused
from stoker.model.fleet_errors import NotAllowed, StaleLease
from stoker.model.frozen import frozen
from stoker.model.leases import Token
from stoker.model.names import NODE_NAME_RULE, is_node_name
from stoker.model.principals import Principal
from stoker.model.retry import Cause
from stoker.store.bundle.packing import Source, pack
from stoker.wire.asking import DoneView
from stoker.wire.leasing import (
    Claim,
    Do,
    ExitCode,
    Fail,
    Finish,
    Grant,
    Granted,
    Hello,
    LeaseReport,
    Renewal,
    Seconds,
    Start,
)
from stoker.wire.views import AttemptView

BUNDLE = "bundle"
"""What the worker's archive is called inside ours."""
_PIECE_BYTES = 1024 * 1024
_GIB = 1024**3
_SPOOLED = 1000
"""Models that were sent and not yet pointed at, in memory."""
_OF_NOBODY = "that lease is over"

JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="A job's id")]


class _Told(BaseModel):
    """What a worker of system A says; what we do not know is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ClaimA(_Told):
    """A host asks for one job."""

    hostname: Annotated[str, Field(max_length=200)] = ""
    capability: dict[str, Any]
    """System A's record (`cpu_cores`, `ram_total_gib`, `cuda_devices` …), or ours."""


class LeaseA(_Told):
    """Which lease is meant; nothing said means the one that the job has now."""

    hostname: Annotated[str, Field(max_length=200)] = ""
    attempt: int | None = None
    epoch: int | None = None


class HeartbeatA(LeaseA):
    """The job runs; what it says and measures rides along."""

    metrics: dict[str, float] = {}
    lines: Annotated[tuple[str, ...], Field(max_length=10_000)] = ()
    step: int | None = None


class CompleteA(LeaseA):
    """It completed, and its model lies with the coordinator."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    metrics: dict[str, float] = {}
    seconds: Seconds = 0.0


class FailA(LeaseA):
    """It failed."""

    error: Annotated[str, Field(max_length=4000)] = ""
    exit_code: ExitCode = 1
    seconds: Seconds = 0.0


@frozen
class Kept:
    """A worker's archive, kept as a bundle of ours."""

    tree: Digest
    archive_sha256: Digest
    size_bytes: int


class SystemARoutes:
    """Answers them."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._greeted: dict[str, str] = {}
        self._models: dict[str, Kept] = {}
        self.router = APIRouter(tags=["system A"])
        add = self.router.add_api_route
        add("/v1/job/claim", self.claim, methods=["POST"])
        add("/v1/job/{job}/heartbeat", self.heartbeat, methods=["POST"])
        add("/v1/job/{job}/complete", self.complete, methods=["POST"])
        add("/v1/job/{job}/fail", self.fail, methods=["POST"])
        add("/v1/model/{job}", self.put_model, methods=["PUT"], openapi_extra=BYTES_BODY)
        add("/v1/workers", self.workers)
        add("/v1/job/{ref}/cancel", self.cancel, methods=["POST"], response_model=DoneView)
        add("/v1/job/{ref}/requeue", self.requeue, methods=["POST"], response_model=DoneView)
        add("/v1/manifest/reload", self.reload, methods=["POST"], response_model=DoneView)

    async def claim(self, asked: ClaimA, who: Who) -> Response:
        """Ask for one job, with what the machine has."""
        host = asked.hostname or str(asked.capability.get("hostname") or "")
        if not host:
            raise BadInput("whose claim is it?", hint="send `hostname`, or a capability that has one")
        if not is_node_name(host):
            raise BadInput(f"{host[:100]!r} can't be a machine's name", hint=NODE_NAME_RULE)
        if who.name not in ("", host):
            raise NotAllowed(f"this is {who.name}'s certificate, not {host}'s", hint="a machine speaks for itself")
        capability = capability_of(host, asked.capability)
        digest = digest_value("system A's capability", steady(capability))
        if self._greeted.get(host) != digest:
            await self._greet(host, capability, digest)
        try:
            granted = await self._claim(host)
        except NotFound:
            # Somebody made the coordinator forget the machine, and it is back.
            await self._greet(host, capability, digest)
            granted = await self._claim(host)
        job = job_of(granted.grants[0]) if granted.grants else None
        return _plain({"job": job, "waiting": granted.waiting, "closed": granted.closed})

    async def heartbeat(self, job: JobId, who: Who, said: HeartbeatA | None = None) -> Response:
        """Keep a lease. The first one says that the job runs."""
        said = said or HeartbeatA()
        token, attempt = await self._lease(job, said, who)
        await self._see_started(token, attempt)
        report = LeaseReport(
            job=job,
            attempt=token.attempt,
            epoch=token.epoch,
            generation=token.generation,
            metrics=said.metrics,
            step=said.step,
            says=said.lines[-1][:500] if said.lines else "",
        )
        renewal = Renewal(worker=attempt.machine, incarnation=incarnation_of(attempt.machine), leases=(report,))
        renewed = await self._office.ask(renewal)
        orders = [order.do for order in renewed.orders if order.job == job]
        if Do.DROP in orders:
            raise StaleLease(_OF_NOBODY, hint="stop the job and drop its result", job=job)
        return _plain({"ok": True, "cancel": Do.CANCEL in orders, "release": Do.RELEASE in orders})

    async def complete(self, job: JobId, who: Who, said: CompleteA) -> Response:
        """Record a result. The model was sent before."""
        token, attempt = await self._lease(job, said, who)
        kept = self._models.get(said.sha256)
        if kept is None:
            raise Refused(f"no model {said.sha256[:12]} has come yet", hint=f"PUT /v1/model/{job} first", job=job)
        await self._see_started(token, attempt)
        finish = Finish(
            attempt=token.attempt,
            epoch=token.epoch,
            generation=token.generation,
            tree=kept.tree,
            archive_sha256=kept.archive_sha256,
            size_bytes=kept.size_bytes,
            metrics=said.metrics,
            seconds=said.seconds,
            facts={"model_sha256": said.sha256},
        )
        return answer(await self._office.ask(Write(job=job, said=finish)))

    async def fail(self, job: JobId, who: Who, said: FailA | None = None) -> Response:
        """Report a failure."""
        said = said or FailA()
        token, _ = await self._lease(job, said, who)
        fail = Fail(
            attempt=token.attempt,
            epoch=token.epoch,
            generation=token.generation,
            cause=Cause.USER,
            message=said.error,
            exit_code=said.exit_code,
            seconds=said.seconds,
        )
        return answer(await self._office.ask(Write(job=job, said=fail)))

    async def put_model(
        self, request: Request, job: JobId, x_sha256: Annotated[str | None, Header(max_length=64)] = None
    ) -> Response:
        """Send a model: any bytes. `X-Sha256`, where it is sent, must be theirs."""
        await self._office.read(self._office.reader.find, job)
        with NamedTemporaryFile(dir=self._office.keeping.folder) as spool:
            digest, size_bytes = await self._take(request, spool)
            if x_sha256 is not None and x_sha256 != digest:
                raise BadInput(
                    f"the bytes that came have another digest: {digest}", hint="send it again", sha256=digest
                )
            is_known = await self._is_here(self._models.get(digest))
            if not is_known:
                spool.flush()
                kept = await self._office.keep(self._keep, spool.name, Digest(digest), size_bytes)
                if len(self._models) >= _SPOOLED:
                    del self._models[next(iter(self._models))]
                self._models[digest] = kept
        return _plain({"sha256": digest, "size_bytes": size_bytes, "is_known": is_known})

    async def workers(self) -> Response:
        """List the machines as system A did."""
        machines = await self._office.read(self._office.views.machines, "")
        listed = [
            {
                "hostname": machine.name,
                "state": machine.state,
                "last_seen": machine.last_seen_s,
                "jobs": list(machine.jobs),
                "capability": machine.capability,
            }
            for machine in machines
        ]
        return _plain({"workers": listed})

    async def cancel(self, ref: Ref, who: Who) -> Response:
        """Say that a job is no longer wanted."""
        job = await self._office.read(self._office.reader.find, ref)
        return done(await self._office.ask(CancelJobs(jobs=(job.id,), by=recorded(who, ""))))

    async def requeue(self, ref: Ref, who: Who) -> Response:
        """Start a job that has ended again."""
        job = await self._office.read(self._office.reader.find, ref)
        return done(await self._office.ask(RequeueJobs(jobs=(job.id,), by=recorded(who, ""))))

    async def reload(self) -> Response:
        """Read the cluster file and the manifest again."""
        return answer(await self._office.reload(dry_run=False))

    async def _greet(self, host: str, capability: dict[str, Any], digest: Digest) -> None:
        """Say hello for a host: its capability is another now, or nobody knows it."""
        hello = Hello(
            worker=host,
            incarnation=incarnation_of(host),
            version="system A",
            capability=capability,
            capability_digest=digest,
            slots=1,
        )
        await self._office.ask(hello)
        self._greeted[host] = digest

    async def _claim(self, host: str) -> Granted:
        claim = Claim(request_id=secrets.token_hex(16), worker=host, incarnation=incarnation_of(host))
        granted: Granted = await self._office.ask(claim)
        return granted

    async def _see_started(self, token: Token, attempt: AttemptView) -> None:
        """Say that a job runs, for a worker that has no word for it."""
        if attempt.started_s is None:
            said = Start(attempt=token.attempt, epoch=token.epoch, generation=token.generation)
            await self._office.ask(Write(job=token.job, said=said))

    async def _is_here(self, kept: Kept | None) -> bool:
        """Whether a model that was sent before still lies here: what no job came to point at may have been pruned."""
        office = self._office
        return kept is not None and await office.keep(office.keeping.has_archive, kept.archive_sha256) is not None

    async def _lease(self, job: str, said: LeaseA, who: Principal) -> tuple[Token, AttemptView]:
        """Give the lease that a worker speaks for: the job's own now. `StaleLease` if it is somebody else's."""
        attempts = await self._office.read(self._office.reader.attempts_of, job)
        now = attempts[-1] if attempts else None
        is_theirs = now is not None and not now.ending and {said.hostname, who.name} <= {"", now.machine}
        if (
            now is None
            or not is_theirs
            or said.epoch not in (None, now.epoch)
            or said.attempt not in (None, now.number)
        ):
            raise StaleLease(_OF_NOBODY, hint="stop the job and drop its result", job=job)
        return Token(job=job, attempt=now.number, epoch=now.epoch, generation=now.generation), now

    async def _take(self, request: Request, spool: IO[bytes]) -> tuple[str, int]:
        """Write a body down as it comes, hashed on the way."""
        digest, size_bytes, most = sha256(), 0, self._office.keeping.limits.archive_bytes
        async for piece in request.stream():
            size_bytes += len(piece)
            if size_bytes > most:
                raise too_large(most)
            digest.update(piece)
            await self._office.keep(spool.write, piece)
        return digest.hexdigest(), size_bytes

    def _keep(self, path: str, digest: Digest, size_bytes: int) -> Kept:
        """Pack an archive of theirs as the one file of a bundle of ours."""
        office = self._office
        entry = TreeEntry(BUNDLE, size_bytes, digest)
        with TemporaryFile(dir=office.keeping.folder) as packed:
            bundle = pack([Source(entry=entry, path=path)], packed)
            packed.seek(0)
            office.keeping.bundles.put(bundle.archive_sha256, packed, size_bytes=bundle.archive_bytes)
        return Kept(tree=bundle.tree_digest, archive_sha256=bundle.archive_sha256, size_bytes=bundle.archive_bytes)


def incarnation_of(host: str) -> str:
    """Name the start of a worker that does not name its starts: always the same for a host."""
    return f"system-a-{sha256(host.encode()).hexdigest()[:32]}"


def capability_of(host: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Give system A's record as ours: sizes in bytes, devices with names of their own. One of ours stays as it is."""
    if "schema" in said or "devices" in said:
        return {**said, "hostname": host}
    devices = said.get("cuda_devices") if said.get("cuda_available", True) else ()
    return {
        "schema": 1,
        "hostname": host,
        "os": str(said.get("os") or ""),
        "arch": str(said.get("arch") or ""),
        "cpu_cores": said.get("cpu_cores") or 1,
        "ram_total_bytes": _bytes(said.get("ram_total_gib")),
        "ram_available_bytes": _bytes(said.get("ram_available_gib")),
        "python_version": str(said.get("python_version") or ""),
        "training_commit": str(said.get("training_commit") or ""),
        "devices": [
            {
                "uuid": f"{host}-cuda-{index}",
                "backend": "cuda",
                "name": str(device.get("name") or ""),
                "index": index,
                "total_bytes": _bytes(device.get("vram_total_gib")),
                "free_bytes": _bytes(device.get("vram_free_gib")),
            }
            for index, device in enumerate(devices if isinstance(devices, list | tuple) else ())
            if isinstance(device, Mapping)
        ],
    }


def steady(capability: Mapping[str, Any]) -> dict[str, Any]:
    """Give of a capability what does not change from minute to minute."""
    kept = {key: value for key, value in capability.items() if key not in ("ram_available_bytes", "ram_available_gib")}
    devices = capability.get("devices")
    if isinstance(devices, list):
        kept["devices"] = [
            {key: value for key, value in one.items() if key != "free_bytes"} if isinstance(one, Mapping) else one
            for one in devices
        ]
    return kept


def job_of(grant: Grant) -> dict[str, Any]:
    """Give a grant as system A's workers read a job, and the lease beside it."""
    return {
        "id": grant.job,
        "name": grant.name,
        "model": grant.recipe,
        "hyper": grant.args,
        "seed": grant.seed,
        "attempt": grant.attempt,
        "epoch": grant.epoch,
        "generation": grant.generation,
        "lease_s": grant.lease_s,
        "devices": list(grant.devices),
    }


def _bytes(gib: object) -> int | None:
    return int(gib * _GIB) if isinstance(gib, int | float) and 0 < gib < 2**40 else None


def _plain(value: dict[str, Any]) -> Response:
    return raw(json_bytes(value), "application/json")
