"""System A's own routes, as a thin layer over ours: on with `stoker serve --system-a`, and off without.

Its workers have no credentials: on loopback, without TLS, any process may claim jobs. They send what their machine has
with every claim and know neither incarnations nor epochs. The incarnation is therefore the host's name, and a claim has
an `id` that fences it. A model is the worker's own archive, stored as the one file of a tree. `GET /v1/jobs` and
`GET /v1/health` are ours.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
from collections.abc import Mapping
from hashlib import sha256
from tempfile import NamedTemporaryFile
from typing import IO, Annotated, Any

from fastapi import Header, Path, Request, Response
from pydantic import AliasChoices, Field

from stoker.coordinator.http.access import Who, changes_only, recorded
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.http_messages import (
    BYTES_BODY,
    Ref,
    RouteTable,
    answer,
    body_pieces,
    done,
    headers_of,
    json_bytes,
    raw,
)
from stoker.coordinator.queue.commands import CancelJobs, RequeueJobs, Write
from stoker.coordinator.storage.tree_storage import CoordinatorTrees, keep_own_tree
from stoker.core.capability import capability_from_dict
from stoker.core.digests import Digest, Tree, TreeEntry, digest_value
from stoker.core.errors import BadInput, Conflict, Forbidden, NotFound, Refused, StaleLease
from stoker.core.frozen import frozen
from stoker.core.leases import SYSTEM_A, AttemptToken, Principal
from stoker.core.retry import FailureCause
from stoker.core.text import NODE_NAME_RULE, is_node_name
from stoker.host.durable import open_regular
from stoker.protocol.codec import WireMessage
from stoker.protocol.lease_messages import (
    Claim,
    ClaimResponse,
    ExitCode,
    Fail,
    Finish,
    Grant,
    Hello,
    LeaseInstructionKind,
    LeaseReport,
    Release,
    Renewal,
    Seconds,
    Start,
    WorkerMeasurements,
)
from stoker.protocol.view_messages import AttemptView, DoneView

# What workers of system A send and get, translated from and to our own messages. Pure.
#
# Their job ids are opaque: the `id` of a claim names the job, its epoch and a code that only this coordinator can make.
# So a worker speaks for the claim that it got and for no other, though it knows neither epochs nor tokens.

_GIB = 1024**3
_CODE = 32
_CLAIM_ID = re.compile(rf"(?P<job>[0-9a-f]{{64}})-(?P<epoch>[0-9]{{1,18}})-(?P<code>[0-9a-f]{{{_CODE}}})")
_SHUTDOWN = "shutdown"
_MOST_LINES = 10_000

Lines = Annotated[tuple[str, ...], Field(max_length=_MOST_LINES)]


class _MessageA(WireMessage):
    """A message of a worker of system A; unknown fields are ignored."""


class ClaimA(_MessageA):
    """A host asks for one job."""

    hostname: Annotated[str, Field(max_length=200)] = ""
    capability: dict[str, Any]
    """System A's record (`cpu_cores`, `ram_total_gib`, `cuda_devices` …), or ours."""


class LeaseA(_MessageA):
    """What every word about a claim may carry; each is checked where it is said."""

    hostname: Annotated[str, Field(max_length=200)] = ""
    attempt: int | None = None
    epoch: int | None = None


class MetadataA(_MessageA):
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
        """True if the worker was stopped: the job did not fail, and is retried."""
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


BUNDLE = "bundle"
"""The path of the worker's archive in its tree."""
OUTPUT = "logs/output.log"
"""The file of an attempt that has what its heartbeats brought."""
_SPOOLED = 1000
"""Models that were sent and not yet pointed at, in memory."""
_NO_PROGRAMS = "system-a"
"""The only code that its workers accept: no program's. They run models, and bring neither code nor environments."""

ClaimId = Annotated[str, Path(max_length=200, description="The `id` of a claim")]


@frozen
class SystemAModel:
    """A worker's archive, stored as the one file of a tree."""

    sha256: str
    tree: Digest
    size_bytes: int


class SystemARoutes:
    """Answers them. `secret` makes the ids of claims; it stays the same when the coordinator starts again."""

    def __init__(self, context: ServiceContext, contents: CoordinatorTrees, secret: bytes) -> None:
        self._context = context
        self._contents = contents
        self._secret = secret
        self._greeted: dict[str, str] = {}
        self._models: dict[tuple[AttemptToken, str], SystemAModel] = {}
        """By lease and digest, in the order in which they came."""
        self._output = threading.Lock()
        self.router = RouteTable("system A")
        add = self.router.add
        add("/v1/job/claim", self.claim, methods=["POST"])
        add("/v1/job/{claim}/heartbeat", self.heartbeat, methods=["POST"])
        add("/v1/job/{claim}/complete", self.complete, methods=["POST"])
        add("/v1/job/{claim}/fail", self.fail, methods=["POST"])
        add("/v1/model/{claim}", self.put_model, methods=["PUT"], openapi_extra=BYTES_BODY)
        add("/v1/workers", self.workers)
        add("/v1/job/{ref}/cancel", self.cancel, methods=["POST"], response_model=DoneView)
        add("/v1/job/{ref}/requeue", self.requeue, methods=["POST"], response_model=DoneView)
        add("/v1/manifest/reload", self.reload, methods=["POST"], response_model=DoneView)

    async def claim(self, asked: ClaimA, who: Who) -> Response:
        """Ask for one job, with what the machine has."""
        host = asked.hostname or str(asked.capability.get("hostname") or "")
        if not host:
            raise BadInput("the claim names no host", hint="send `hostname`, or a capability that has one")
        if not is_node_name(host):
            raise BadInput(f"{host[:100]!r} can't be a machine's name", hint=NODE_NAME_RULE)
        if who.name not in ("", host):
            raise Forbidden(
                f"the certificate is for {who.name}, not for {host}",
                hint="a machine must use the name in its certificate",
            )
        capability = capability_of(host, asked.capability)
        digest = digest_value("system A's capability", steady(capability))
        if self._greeted.get(host) != digest:
            await self._greet(host, capability, digest)
        measured = measured_in(capability)
        try:
            granted = await self._claim(host, measured)
        except NotFound:
            # The machine was forgotten, and is back.
            await self._greet(host, capability, digest)
            granted = await self._claim(host, measured)
        job = self._job(granted.grants[0], host) if granted.grants else None
        return _plain({"job": job, "waiting": granted.waiting, "closed": granted.closed})

    async def heartbeat(self, claim: ClaimId, who: Who, said: HeartbeatA | None = None) -> Response:
        """Keep a lease. The first one says that the job runs."""
        said = said or HeartbeatA()
        token, attempt = await self._lease(claim, said, who)
        await self._see_started(token, attempt)
        lines = said.output()
        report = LeaseReport(
            job=token.job,
            attempt=token.attempt,
            epoch=token.epoch,
            generation=token.generation,
            metrics=said.metrics,
            step=said.step,
            says=lines[-1][:500] if lines else "",
        )
        renewal = Renewal(worker=attempt.machine, incarnation=incarnation_of(attempt.machine), leases=(report,))
        renewed = await self._context.ask(renewal)
        orders = [order.do for order in renewed.orders if order.job == token.job]
        if LeaseInstructionKind.DROP in orders:
            raise _over(token.job)
        if lines:
            await self._context.keep(self._keep_output, token, lines)
        return _plain(
            {
                "ok": True,
                "cancel": LeaseInstructionKind.CANCEL in orders,
                "release": LeaseInstructionKind.RELEASE in orders,
            }
        )

    async def complete(self, claim: ClaimId, who: Who, said: CompleteA | None = None) -> Response:
        """Record a result. The model was sent before."""
        said = said or CompleteA()
        token, attempt = await self._lease(claim, said, who)
        kept = self._model(token, said.sha256)
        if kept is None:
            named = f"model {said.sha256[:12]}" if said.sha256 else "model"
            raise Refused(f"no {named} was sent for this claim", hint=f"PUT /v1/model/{claim} first", job=token.job)
        await self._see_started(token, attempt)
        finish = Finish(
            attempt=token.attempt,
            epoch=token.epoch,
            generation=token.generation,
            tree=kept.tree,
            archive_sha256=kept.sha256,
            size_bytes=kept.size_bytes,
            metrics=said.metrics,
            seconds=said.seconds,
            facts={"model_sha256": kept.sha256},
        )
        return answer(await self._context.ask(Write(job=token.job, said=finish)))

    async def fail(self, claim: ClaimId, who: Who, said: FailA | None = None) -> Response:
        """Report a failure; a job whose worker was shut down goes back to the queue instead."""
        said = said or FailA()
        token, _ = await self._lease(claim, said, who)
        lease: dict[str, Any] = {"attempt": token.attempt, "epoch": token.epoch, "generation": token.generation}
        if said.is_shutdown:
            release = Release(**lease, why=said.error[:2000])
            return answer(await self._context.ask(Write(job=token.job, said=release)))
        fail = Fail(
            **lease, cause=FailureCause.USER, message=said.error, exit_code=said.exit_code, seconds=said.seconds
        )
        return answer(await self._context.ask(Write(job=token.job, said=fail)))

    async def put_model(
        self, request: Request, claim: ClaimId, who: Who, x_sha256: Annotated[str | None, Header(max_length=64)] = None
    ) -> Response:
        """Send a model of a job that is leased: any bytes. `X-Sha256`, where it is sent, must be theirs."""
        # Before a byte of it is read.
        token, attempt = await self._lease(claim, LeaseA(), who)
        self._check_current(token, attempt)
        with NamedTemporaryFile(dir=self._context.keeping.folder) as spool:
            digest, size_bytes = await self._take(request, spool)
            # The lease may have ended while the body was on its way.
            self._check_current(token, attempt)
            if x_sha256 is not None and x_sha256 != digest:
                raise BadInput(
                    f"the received bytes have the SHA-256 {digest}, expected {x_sha256}",
                    hint="send it again",
                    sha256=digest,
                )
            known = await self._known(digest)
            if known is None:
                spool.flush()
                kept = await self._context.keep(self._keep, spool.name, Digest(digest), size_bytes)
            else:
                kept = known
        self._models.pop((token, digest), None)
        while len(self._models) >= _SPOOLED:
            del self._models[next(iter(self._models))]
        self._models[token, digest] = kept
        return _plain({"sha256": digest, "size_bytes": size_bytes, "is_known": known is not None})

    async def workers(self) -> Response:
        """List the machines as system A did."""
        machines = await self._context.read(self._context.views.machines, "")
        listed = [
            {
                "hostname": machine.name,
                "state": machine.state,
                "last_seen": machine.last_seen_s,
                "jobs": list(machine.jobs),
                # Its own fields stand first in our record.
                "capability": capability_from_dict(machine.capability).to_dict() if machine.capability else {},
            }
            for machine in machines
        ]
        return _plain({"workers": listed})

    async def cancel(self, ref: Ref, who: Who) -> Response:
        """Cancel a job."""
        job, by = await self._meant(ref), recorded(who, "")
        return done(await self._context.ask(CancelJobs(jobs=(job,), by=by, only_of=changes_only(who))))

    async def requeue(self, ref: Ref, who: Who) -> Response:
        """Start a job that has ended again."""
        job, by = await self._meant(ref), recorded(who, "")
        return done(await self._context.ask(RequeueJobs(jobs=(job,), by=by, only_of=changes_only(who))))

    async def reload(self, who: Who) -> Response:
        """Read the cluster file and the manifest again."""
        return answer(await self._context.reload(dry_run=False, by=recorded(who, "")))

    async def _meant(self, ref: str) -> str:
        """Return the id of the job that is meant; the `id` of a claim names one, too."""
        return (await self._context.read(self._context.reader.find, job_of_claim(ref) or ref)).id

    async def _greet(self, host: str, capability: dict[str, Any], digest: Digest) -> None:
        """Say hello for a host: its capability changed, or it is not known. `Conflict` for a name of our workers."""
        known = await self._context.read(self._context.reader.machines, host)
        if any(one.incarnation != incarnation_of(host) and one.left_s is None for one in known):
            raise Conflict(
                f"{host} is a machine with a worker of Stoker",
                hint="give this worker another name (FLEET_HOST_ID), or stop the other one",
                machine=host,
            )
        hello = Hello(
            worker=host,
            incarnation=incarnation_of(host),
            version=SYSTEM_A,
            capability=capability,
            capability_digest=digest,
            slots=1,
            accepts=(_NO_PROGRAMS,),
        )
        await self._context.ask(hello)
        self._greeted[host] = digest

    async def _claim(self, host: str, measured: WorkerMeasurements) -> ClaimResponse:
        request = secrets.token_hex(16)
        claim = Claim(request_id=request, worker=host, incarnation=incarnation_of(host), measured=measured)
        granted: ClaimResponse = await self._context.ask(claim)
        return granted

    def _job(self, grant: Grant, host: str) -> dict[str, Any]:
        return job_of(grant, claim_id(self._secret, grant.token(), host))

    async def _see_started(self, token: AttemptToken, attempt: AttemptView) -> None:
        """Say that a job runs, for a worker that has no word for it."""
        if attempt.started_s is None:
            said = Start(**token.fence())
            await self._context.ask(Write(job=token.job, said=said))

    async def _lease(self, claim: str, said: LeaseA, who: Principal) -> tuple[AttemptToken, AttemptView]:
        """Return the lease of a claim, live or not: the queue fences it. `StaleLease` if it is no claim of theirs."""
        job = job_of_claim(claim)
        if not job:
            raise StaleLease("that is not the `id` of a claim", hint="use the `id` that POST /v1/job/claim answered")
        for one in await self._context.read(self._context.reader.attempts_of, job):
            token = AttemptToken(job=job, attempt=one.number, epoch=one.epoch, generation=one.generation)
            if hmac.compare_digest(claim, claim_id(self._secret, token, one.machine)):
                is_theirs = {said.hostname, who.name} <= {"", one.machine}
                if is_theirs and said.epoch in (None, one.epoch) and said.attempt in (None, one.number):
                    return token, one
        raise _over(job)

    def _check_current(self, token: AttemptToken, attempt: AttemptView) -> None:
        """Raise `StaleLease` unless a lease is live."""
        if not self._context.queue.is_current(token, attempt.machine):
            raise _over(token.job)

    def _model(self, token: AttemptToken, digest: str) -> SystemAModel | None:
        """Return the model that was sent under a lease: that of a digest, or the last one."""
        sent = [kept for (of, _), kept in self._models.items() if of == token and digest in ("", kept.sha256)]
        return sent[-1] if sent else None

    async def _known(self, digest: str) -> SystemAModel | None:
        """Return a model that was sent before and is still here: what no job came to point at may have been pruned."""
        context = self._context
        for kept in self._models.values():
            if kept.sha256 == digest:
                if await context.keep(context.keeping.has_archive, digest) is None:
                    self._contents.missed(digest)
                return kept if await context.keep(self._contents.want, kept.tree) is not None else None
        return None

    def _keep_output(self, token: AttemptToken, lines: tuple[str, ...]) -> None:
        """Add what a job printed to its attempt's file, where `stoker logs` finds it."""
        text = "".join(f"{line.rstrip(chr(10))}\n" for line in lines).encode(errors="backslashreplace")
        with self._output:
            files = self._context.keeping.attempt_files
            offset = files.size(token.job, token.attempt, OUTPUT) or 0
            self._context.keeping.append(token.job, token.attempt, OUTPUT, offset, text)

    async def _take(self, request: Request, spool: IO[bytes]) -> tuple[str, int]:
        """Write a body down as it comes, hashed on the way."""
        digest, size_bytes, most = sha256(), 0, self._context.keeping.limits.archive_bytes
        async for piece in body_pieces(request.receive, headers_of(request.scope), most):
            size_bytes += len(piece)
            digest.update(piece)
            await self._context.keep(self._context.keeping.check_room, len(piece))
            await self._context.keep(spool.write, piece)
        return digest.hexdigest(), size_bytes

    def _keep(self, path: str, digest: Digest, size_bytes: int) -> SystemAModel:
        """Store an archive of theirs as the one file of a tree."""
        tree = Tree((TreeEntry(BUNDLE, size_bytes, digest),))
        objects, shown = self._context.keeping.objects, f"model {digest[:12]}"
        keep_own_tree(self._contents, objects, tree, lambda _: open_regular(path), shown)
        return SystemAModel(sha256=digest, tree=tree.digest(), size_bytes=size_bytes)


def _over(job: str) -> StaleLease:
    return StaleLease("the lease of this claim is over", hint="stop the job and drop its result", job=job)


def _plain(value: dict[str, Any]) -> Response:
    return raw(json_bytes(value), "application/json")
