"""Workers as Ray jobs, by the Jobs interface of a Ray cluster's dashboard over HTTP; without a dashboard, as actors.

Ray is not imported. Actors are in `launch.ray_actors`.

A job's submission id is the allocation's name, so a request that is repeated starts nothing twice. Ray has no private
place for a ticket. It is sent as the only file of the job's working directory, with mode 0600: in no entrypoint, no
variable and no log, and the interface does not return it. But all jobs of a cluster run as the same user: whoever may
run code there can read it until the worker has used it, and a ticket works once.

Ray has no time limit and no start time of a job: the worker ends by its own clock.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import quote

from stoker.core.clock import Clock, SystemClock
from stoker.core.errors import (
    BadAnswer,
    LaunchDoubtful,
    LaunchRefused,
    LocalFile,
    NetworkFailed,
    NoBackend,
    StokerError,
)
from stoker.core.pool import LABEL, Allocation, AllocationCause, AllocationState, Pool, require_valid
from stoker.core.text import one_line
from stoker.devices.checkup import Check, CheckStatus
from stoker.host.durable import read_secret
from stoker.host.http.exchange import Request, Transport, is_this_computer, origin
from stoker.host.http.http_errors import Reason
from stoker.launch.launchers import (
    NEXT,
    AllocationStatus,
    Log,
    Rendered,
    fill,
    ids_of,
    label_of,
    not_checked,
    ticket_hole,
    with_lost,
    worker_command,
)
from stoker.launch.ray_actors import (
    EXIT_CAUSES,
    LOG_BYTES,
    RAY_PYTHON,
    TOKEN_HINT,
    TOKEN_VARIABLE,
    RayActors,
    address_of,
    resources_of,
    words_of,
)

TOKEN_PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - its name
_TICKET = "ticket"
_MOST_BYTES = 64 << 20
_LIMIT_S = 30.0
_ANSWER_S = 60.0
"""Limit of a whole answer: one that arrives byte by byte never reaches the other one."""
_TOKEN_BYTES = 1 << 16
# Failures after which the request may have been processed.
_LOST = frozenset(
    {
        *(Reason.READ_TIMEOUT, Reason.RESET, Reason.CLOSED_EARLY, Reason.SHORT_BODY, Reason.LONG_BODY),
        *(Reason.PROTOCOL, Reason.ABORTED),
    }
)
_STATES = {
    "PENDING": AllocationState.WAITING,
    "RUNNING": AllocationState.STARTED,
    "SUCCEEDED": AllocationState.ENDED,
    "FAILED": AllocationState.ENDED,
    "STOPPED": AllocationState.ENDED,
}
# The job's supervisor died with its node, or never found one: Ray gives up after 15 minutes in its queue.
_BY_RAY = frozenset(
    {
        *("JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_START_TIMEOUT", "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE"),
        "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE",
    }
)
_OUT_OF_MEMORY = ("out of memory", "outofmemory", "oom kill", "memory pressure", "low on memory")


def read_ray_token(environment: Mapping[str, str], home: str) -> str:
    """Return the token of the cluster, as Ray looks for it; empty if there is none. Raises `LocalFile`."""
    if token := environment.get(TOKEN_VARIABLE, "").strip():
        return token
    path = environment.get(TOKEN_PATH_VARIABLE) or os.path.join(home, ".ray", "auth_token")
    try:
        return read_secret(path, _TOKEN_BYTES).decode().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise LocalFile(f"token of Ray not readable: {path}: {error}", hint=f"chmod 600 {path}", path=path) from None


class RayLauncher:
    """Starts workers as jobs of a Ray cluster."""

    def __init__(
        self,
        transport: Transport,
        token: Callable[[], str],
        actors: RayActors | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """`token` returns the cluster's token, which may change; empty: the cluster needs none.

        `actors` start the workers of pools whose address is not that of a dashboard.
        """
        self._transport = transport
        self._token = token
        self._actors = actors
        self._clock = clock or SystemClock()

    def _actors_of(self, pool: Pool) -> RayActors | None:
        return None if pool.options.get("address", "http").startswith("http") else self._actors

    def prepare(self, pool: Pool, log: Log, *, is_dry: bool = False) -> Pool:
        return pool

    def render(self, pool: Pool, allocations: Sequence[Allocation], *, fleet: str) -> Rendered:
        require_valid(pool)
        if (actors := self._actors_of(pool)) is not None:
            return actors.render(pool, allocations, fleet=fleet)
        bodies = [json.dumps(_body(pool, one, fleet), indent=2) for one in allocations]
        return Rendered(
            argv=("POST", f"{address_of(pool)}/api/jobs/"),
            stdin=NEXT.join(bodies) + "\n",
            files={f"{address_of(pool)}/api/packages/gcs/{one.name}.zip": ticket_hole(one) for one in allocations},
            ids=tuple(one.id for one in allocations),
        )

    def submit(self, rendered: Rendered, tickets: Mapping[str, str]) -> Mapping[str, str]:
        if self._actors is not None and rendered.argv[0] != "POST":
            return self._actors.submit(rendered, tickets)
        made: dict[str, str] = {}
        posts = zip(rendered.ids, rendered.files.items(), rendered.stdin.rstrip("\n").split(NEXT), strict=True)
        for id, (package, ticket), body in posts:
            try:
                self._call("PUT", package, _zipped(fill(ticket, tickets)))
                made[id] = self._post(rendered.argv[1], body)
            except StokerError as error:
                if not made:
                    raise
                message = f"{len(made)} of {len(rendered.ids)} jobs submitted: {error.message}"
                raise LaunchDoubtful(message, hint=error.hint) from None
        return made

    def forecast(self, rendered: Rendered) -> str:
        return ""

    def look(self, pool: Pool, *, fleet: str, known: Sequence[Allocation] = ()) -> tuple[AllocationStatus, ...]:
        if (actors := self._actors_of(pool)) is not None:
            return actors.look(pool, fleet=fleet, known=known)
        jobs = self._read(f"{address_of(pool)}/api/jobs/")
        if not isinstance(jobs, list):
            raise NoBackend(f"{address_of(pool)} is not the Jobs interface of Ray", hint=_interface_hint(pool))
        found = [status for job in jobs if (status := _status(job, pool, fleet)) is not None]
        # A cluster forgets its jobs when it starts again.
        return with_lost(found, known, "job not found", AllocationCause.PREEMPTED)

    def cancel(self, pool: Pool, backend_ids: Sequence[str], *, is_gentle: bool = False) -> None:
        if (actors := self._actors_of(pool)) is not None:
            actors.cancel(pool, backend_ids)
            return
        for name in backend_ids:
            self._call("POST", _job_url(pool, name, "/stop"), b"{}", also=(404,))

    def log(self, pool: Pool, allocation: Allocation) -> str:
        if (actors := self._actors_of(pool)) is not None:
            return actors.log(pool, allocation)
        _, data = self._call("GET", _job_url(pool, allocation.name, "/logs"), also=(404, 500))
        try:
            answer = json.loads(data)
        except ValueError:
            return ""
        logs = answer.get("logs") if isinstance(answer, dict) else None
        return f"{logs or ''}"[-LOG_BYTES:]

    def clean(self, pool: Pool, allocations: Sequence[Allocation]) -> None:
        if (actors := self._actors_of(pool)) is not None:
            actors.clean(pool, allocations)
            return
        for one in allocations:
            # Ray refuses to delete what still runs.
            self._call("DELETE", _job_url(pool, one.name), also=(404, 500))

    def check(self, pool: Pool, *, url: str = "") -> tuple[Check, ...]:
        require_valid(pool)
        if (actors := self._actors_of(pool)) is not None:
            return actors.check(pool, url=url)
        address = address_of(pool)
        try:
            version = self._read(f"{address}/api/version")
            self.look(pool, fleet="")
        except StokerError as error:
            return (Check("reached", CheckStatus.BAD, error.message, error.hint),)
        text = version.get("ray_version", "unknown") if isinstance(version, dict) else "unknown"
        python = not_checked(f"{pool.python or RAY_PYTHON} on the cluster's nodes", "a job", url)
        return (
            Check("reached", CheckStatus.OK, f"{address}: Ray {one_line(f'{text}', 40)}"),
            self._check_token(address),
            python,
        )

    def _check_token(self, address: str) -> Check:
        is_open = address.startswith("http:") and not is_this_computer(origin(address).host)
        if is_open:
            message = "no TLS: the token and tickets can be read on the way"
            return Check(
                "token", CheckStatus.WARN, message, "ssh -L 8265:127.0.0.1:8265 HOST, address: http://127.0.0.1:8265"
            )
        if not self._token():
            return Check("token", CheckStatus.WARN, "none: all who reach the address can run code", TOKEN_HINT)
        return Check("token", CheckStatus.OK, "accepted")

    def _post(self, url: str, body: str) -> str:
        """Submit a job; return its submission id. One that Ray has already is submitted."""
        name: str = json.loads(body)["submission_id"]
        try:
            status, data = self._call("POST", url, body.encode(), also=(400, 500))
        except NoBackend as error:
            if error.data.get("reason") in _LOST:
                raise LaunchDoubtful(error.message, hint=error.hint) from None
            raise
        if status == 200:
            return name
        if b"already exists" in data:
            return name
        text = words_of(data)
        if status == 400:
            raise LaunchRefused(f"Ray: {text}", hint="stoker pools check")
        raise LaunchDoubtful(f"Ray: {text}")

    def _read(self, url: str) -> Any:
        _, data = self._call("GET", url)
        try:
            return json.loads(data)
        except ValueError:
            raise NoBackend(f"{url} returned no JSON", hint="is it the address of Ray's dashboard?") from None

    def _call(
        self, method: str, url: str, body: bytes | None = None, *, also: tuple[int, ...] = ()
    ) -> tuple[int, bytes]:
        """Send a request; return its status, 200 or one of `also`, and the body of the answer."""
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/octet-stream" if method == "PUT" else "application/json"
        if token := self._token():
            headers["Authorization"] = f"Bearer {token}"
        request = Request(url=url, method=method, headers=headers, body=body, head_s=_LIMIT_S, read_s=_LIMIT_S)
        deadline_s = self._clock.monotonic_s() + _ANSWER_S
        try:
            with closing(self._transport.send(request)) as reply:
                data = bytearray()
                while len(data) <= _MOST_BYTES and (piece := reply.read(1 << 16)):
                    data += piece
                    if self._clock.monotonic_s() > deadline_s:
                        text = f"{origin(url)} did not answer completely within {_ANSWER_S:g} s"
                        raise NetworkFailed(text, reason=Reason.READ_TIMEOUT)
                status = reply.status
        except (NetworkFailed, BadAnswer) as error:
            hint = error.hint or "is the dashboard running? ray status"
            raise NoBackend(f"Ray: {error.message}", hint=hint, reason=error.data.get("reason")) from None
        if status == 200 or status in also:
            return status, bytes(data)
        raise _failure(status, bytes(data), url)


def _job_url(pool: Pool, name: str, rest: str = "") -> str:
    return f"{address_of(pool)}/api/jobs/{quote(name, safe='')}{rest}"


def _body(pool: Pool, allocation: Allocation, fleet: str) -> dict[str, Any]:
    command = worker_command(pool, f'"$PWD/{_TICKET}"', python=RAY_PYTHON)
    body: dict[str, Any] = {
        "entrypoint": "\n".join((*pool.setup, f"exec {command}")),
        "submission_id": allocation.name,
        "metadata": {LABEL: label_of(fleet, [allocation.id])},
        "runtime_env": {
            "working_dir": f"gcs://{allocation.name}.zip",
            # Between TERM and KILL; 3 s otherwise.
            "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": f"{math.ceil(pool.end_margin_s)}"},
        },
        **{f"entrypoint_{name}": value for name, value in resources_of(pool).items()},
    }
    return body


def _zipped(ticket: str) -> bytes:
    """Return a package with the ticket as its only file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as package:
        entry = zipfile.ZipInfo(_TICKET)
        entry.external_attr = 0o600 << 16
        package.writestr(entry, ticket)
    return file.getvalue()


def _status(job: Any, pool: Pool, fleet: str) -> AllocationStatus | None:
    """Return what Ray shows of a job; None if it is not one of this fleet and pool."""
    if not isinstance(job, dict) or not isinstance(job.get("metadata"), dict):
        return None
    ids = ids_of(f"{job['metadata'].get(LABEL, '')}", fleet=fleet)
    state = _STATES.get(f"{job.get('status')}")
    if len(ids) != 1 or state is None:
        return None
    (id,) = ids
    name = Allocation(id=id, pool=pool.name).name
    if job.get("submission_id") != name:
        return None
    message = f"{job.get('message') or ''}"
    message = words_of(message.encode()) if message.startswith("Traceback") else one_line(message, 300)
    if state is not AllocationState.ENDED:
        return AllocationStatus(
            id=id, backend_id=name, state=state, reason=message if state is AllocationState.WAITING else ""
        )
    cause, reason = _end(job, message)
    return AllocationStatus(id=id, backend_id=name, state=state, reason=reason, cause=cause)


def _end(job: Mapping[str, Any], message: str) -> tuple[AllocationCause, str]:
    """Return the cause of an end, and Ray's words about it."""
    code = job.get("driver_exit_code")
    # Ray stops a job that waits once it has started, and may fail in doing so.
    if job["status"] == "STOPPED" or "NoSuchProcess" in message:
        cause = AllocationCause.CANCELLED_THERE
    elif any(text in message.lower() for text in _OUT_OF_MEMORY) and job.get("error_type") in _BY_RAY:
        cause = AllocationCause.OUT_OF_MEMORY
    elif job.get("error_type") in _BY_RAY:
        cause = AllocationCause.PREEMPTED
    elif isinstance(code, int):
        return EXIT_CAUSES.get(code, AllocationCause.FAILED), f"exit {code}"
    else:
        cause = AllocationCause.FINISHED if job["status"] == "SUCCEEDED" else AllocationCause.FAILED
    return cause, message


def _failure(status: int, data: bytes, url: str) -> StokerError:
    text = f"{origin(url)} answered {status}: {words_of(data)}"
    if status in (401, 403):
        return NoBackend(f"Ray: {text}", hint=TOKEN_HINT)
    if status == 404:
        return NoBackend(f"Ray: {text}", hint="the Jobs interface needs ray[default] and a dashboard")
    return NoBackend(f"Ray: {text}")


def _interface_hint(pool: Pool) -> str:
    return f"open {address_of(pool)}: it is the address of Ray's dashboard"
