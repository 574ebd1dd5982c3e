"""Workers as Kubernetes Jobs: one Job with one pod for each allocation, by the system's `kubectl`.

A ticket is a Secret. A request has two documents, and the Secrets come first: a pod whose Secret never comes would wait
for good with its devices, and nothing that may be read without the right to read Secrets tells why. So a Job that is
there has its Secret, whenever its launcher died. The Secret goes with the other files of an allocation that is over. A
pod that fails is not repeated: the queue decides, and the ticket is used.

The time limit is the pod's, not the Job's: that of a Job counts from its creation, and a pod may wait for hours.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from stoker.core.errors import LaunchDoubtful, LaunchRefused, NoBackend, StokerError
from stoker.core.frozen import fresh, frozen
from stoker.core.pool import LABEL, Allocation, AllocationCause, AllocationState, Pool, require_valid
from stoker.core.text import one_line
from stoker.devices.checkup import Check, CheckStatus
from stoker.host.command_runner import ProbeFailure, ProbeOutput
from stoker.launch.commands import HostCommands
from stoker.launch.launchers import (
    NEXT,
    AllocationStatus,
    Log,
    Rendered,
    fill,
    not_checked,
    ticket_hole,
    with_lost,
    worker_command,
)

_PYTHON = "python3"
_GPU_RESOURCE = "nvidia.com/gpu"
_TICKET_FOLDER = "/run/stoker-ticket"
# In memory, and writable: a Secret's volume is neither the worker's to delete from nor private if a group is set.
_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - a volume of the pod's own
_SHOWN_AFTER_END_S = 3600
_REQUEST_S = 20
_CREATE_LIMIT_S = 90.0
_LOG_LINES = 100
_LOG_BYTES = 4096

_CREATED = 'jsonpath={.kind}{"\\t"}{.metadata.name}{"\\n"}'
_LIST = "stoker:list"
"""The first line that `_SHOWN` prints. An answer without it is not kubectl's."""
# Objects are printed as JSON, so a line break in a message does not end a line.
_SHOWN = (
    f'jsonpath={{"{_LIST}"}}{{"\\n"}}'
    '{range .items[*]}{.kind}{"\\t"}{.metadata.name}{"\\t"}{.metadata.labels.stoker-allocation}{"\\t"}'
    '{.status.phase}{"\\t"}{.status.reason}{"\\t"}{.status.startTime}{"\\t"}{.metadata.deletionTimestamp}{"\\t"}'
    '{.status.conditions}{"\\t"}{.status.containerStatuses[*].state}{"\\n"}{end}'
)
_ALLOWED = (
    'jsonpath={.status.allowed}{" "}{.spec.resourceAttributes.verb}{" "}{.spec.resourceAttributes.resource}'
    '{"/"}{.spec.resourceAttributes.subresource}{"\\n"}'
)
_RIGHTS = (
    *(("create", "jobs", "batch"), ("list", "jobs", "batch"), ("delete", "jobs", "batch")),
    *(("create", "secrets", ""), ("delete", "secrets", ""), ("list", "pods", ""), ("get", "pods/log", "")),
)
_RIGHTS_HINT = "kubectl auth can-i --list shows what the kubeconfig's user may do"

# What kubectl prints if a request may have been processed although it failed.
_LOST = re.compile(
    r"EOF|connection reset|broken pipe|awaiting headers|deadline exceeded|GOAWAY|http2:|AlreadyExists"
    r"|Error from server \((Timeout|InternalError|ServerTimeout|ServiceUnavailable|Unknown|GatewayTimeout)\)",
    re.IGNORECASE,
)
_SERVER = "Error from server"
# Not the pool's fault: whoever may not log in now may do so later.
_NOT_NOW = re.compile(r"Unauthorized|must be logged in|to provide credentials|TooManyRequests")
_NO_CONFIGURATION = re.compile(r"localhost:8080|no configuration|context .* does not exist|error loading config")
# Lines of kubectl's own log.
_LOG_LINE = re.compile(r"[EWI][0-9]{4} [0-9:.]+ ")
_EVICTED = frozenset(
    {"DeadlineExceeded", "Evicted", "NodeAffinity", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"}
)
# A container that waits for one of these will not start by itself.
_BROKEN = frozenset(
    {
        *("CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull"),
        *("ErrImagePull", "ImageInspectError", "ImagePullBackOff", "InvalidImageName", "RunContainerError"),
    }
)
_CAUSES = {0: AllocationCause.FINISHED, 75: AllocationCause.FINISHED, 143: AllocationCause.PREEMPTED}


class KubernetesLauncher:
    """Starts workers as Jobs of a cluster."""

    def __init__(self, commands: HostCommands) -> None:
        """`commands` need what `kubectl` reads: HOME, KUBECONFIG, and variables of its credential plugins."""
        self._commands = commands

    def prepare(self, pool: Pool, log: Log, *, is_dry: bool = False) -> Pool:
        return pool

    def render(self, pool: Pool, allocations: Sequence[Allocation], *, fleet: str) -> Rendered:
        require_valid(pool)
        documents = (
            _text([_secret(one, fleet) for one in allocations]),
            _text([_job(pool, one, fleet) for one in allocations]),
        )
        return Rendered(
            where=pool.via,
            argv=(*_kubectl(pool), "create", "--validate=false", "-f", "-", "-o", _CREATED),
            stdin=NEXT.join(documents) + "\n",
            ids=tuple(one.id for one in allocations),
        )

    def submit(self, rendered: Rendered, tickets: Mapping[str, str]) -> Mapping[str, str]:
        secrets, _, jobs = rendered.stdin.partition(NEXT)
        texts = {id: json.dumps(text)[1:-1] for id, text in tickets.items()}
        held, failure = self._create(rendered, fill(secrets, texts))
        if not held:
            raise failure or LaunchDoubtful("kubectl create printed no Secret", hint="kubectl get secrets")
        if failure:
            # The others' pods would wait for their Secrets.
            jobs = _text([one for one in json.loads(jobs)["items"] if one["metadata"]["name"] in held])
        made, jobs_failure = self._create(rendered, jobs)
        failure = jobs_failure or failure
        if not made:
            raise failure or LaunchDoubtful("kubectl create printed no Job", hint="kubectl get jobs")
        if failure:
            message = f"{len(made)} of {len(rendered.ids)} Jobs created: {failure.message}"
            raise LaunchDoubtful(message, hint=failure.hint)
        return {name.rpartition("-")[2]: name for name in made}

    def forecast(self, rendered: Rendered) -> str:
        jobs = rendered.stdin.partition(NEXT)[2]
        reply = self._commands.read(rendered.where, (*rendered.argv, "--dry-run=server"), stdin=jobs)
        if reply.exit_code:
            return _words(reply)
        # Policies of a namespace may warn.
        return "; ".join(dict.fromkeys(["accepted in a dry run", *reply.err.splitlines()]))

    def look(self, pool: Pool, *, fleet: str, known: Sequence[Allocation] = ()) -> tuple[AllocationStatus, ...]:
        selector = f"stoker-fleet={fleet},stoker-pool={pool.name}"
        reply = self._read(pool, "get", "jobs,pods", "-l", selector, "-o", _SHOWN)
        jobs: dict[str, _Shown] = {}
        pods: dict[str, _Shown] = {}
        printed = reply.out.splitlines()
        listed = [_shown(line) for line in printed[printed.index(_LIST) + 1 :]] if _LIST in printed else [None]
        for shown in listed:
            if shown is None:
                text = one_line(reply.out, 200)
                raise NoBackend(f"kubectl printed no list of Jobs: {text!r}", hint="kubectl get jobs", host=pool.via)
            (jobs if shown.kind == "Job" else pods)[shown.id] = shown
        found = [_status(id, pool, jobs.get(id), pods.get(id)) for id in {**jobs, **pods}]
        # Nothing but a deletion ends a Job without a trace.
        return with_lost(found, known, "Job not found", AllocationCause.CANCELLED_THERE)

    def cancel(self, pool: Pool, backend_ids: Sequence[str], *, is_gentle: bool = False) -> None:
        if backend_ids:
            self._read(pool, "delete", "jobs", "--ignore-not-found", "--wait=false", "--", *backend_ids)

    def log(self, pool: Pool, allocation: Allocation) -> str:
        selector = f"stoker-allocation={allocation.id},stoker-pool={pool.name}"
        try:
            reply = self._read(pool, "logs", "-l", selector, f"--tail={_LOG_LINES}")
        except LaunchRefused:
            # A container that has not started has no log, which is an error of the request.
            return ""
        return reply.out[-_LOG_BYTES:]

    def clean(self, pool: Pool, allocations: Sequence[Allocation]) -> None:
        ids = {one.id for one in allocations}
        selector = f"stoker-pool={pool.name},stoker-allocation in ({','.join(sorted(ids))})"
        reply = self._read(pool, "get", "jobs", "-l", selector, "-o", _SHOWN)
        jobs = [shown for line in reply.out.splitlines() if (shown := _shown(line)) is not None]
        self.cancel(pool, [job.name for job in jobs if job.condition("Complete") or job.condition("Failed")])
        secrets = [Allocation(id=id, pool=pool.name).name for id in sorted(ids)]
        self._read(pool, "delete", "secrets", "--ignore-not-found", "--wait=false", "--", *secrets)

    def check(self, pool: Pool, *, url: str = "") -> tuple[Check, ...]:
        require_valid(pool)
        try:
            version = self._read(pool, "version", "-o", "json")
            server = json.loads(version.out).get("serverVersion", {}).get("gitVersion", "unknown")
            reached = Check("reached", CheckStatus.OK, f"Kubernetes {server}")
            return (reached, self._check_rights(pool), _check_python(pool, url))
        except StokerError as error:
            return (Check("reached", CheckStatus.BAD, error.message, error.hint),)
        except (ValueError, AttributeError):
            return (Check("reached", CheckStatus.BAD, "kubectl version printed no JSON", "kubectl version -o json"),)

    def _check_rights(self, pool: Pool) -> Check:
        namespace = pool.options.get("namespace", "")
        if not namespace:
            # Where kubectl makes the objects then: the namespace of the context.
            shown = self._read(pool, "config", "view", "--minify", "-o", "jsonpath={..namespace}")
            namespace = shown.out.strip() or "default"
        reviews = [
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {
                    "resourceAttributes": {
                        "namespace": namespace,
                        "verb": verb,
                        "resource": resource.partition("/")[0],
                        "subresource": resource.partition("/")[2],
                        "group": group,
                    }
                },
            }
            for verb, resource, group in _RIGHTS
        ]
        argv = ("create", "--validate=false", "-f", "-", "-o", _ALLOWED)
        reply = self._read(pool, *argv, stdin=_text(reviews))
        allowed = {
            line.removeprefix("true ").rstrip("/") for line in reply.out.splitlines() if line.startswith("true ")
        }
        missing = [f"{verb} {resource}" for verb, resource, _ in _RIGHTS if f"{verb} {resource}" not in allowed]
        if missing:
            return Check("rights", CheckStatus.BAD, f"not allowed: {', '.join(missing)}", _RIGHTS_HINT)
        return Check("rights", CheckStatus.OK, "Jobs, Secrets and pods")

    def _create(self, rendered: Rendered, document: str) -> tuple[Sequence[str], StokerError | None]:
        """Create objects; return the names of those that were created, and why the others were not."""
        reply = self._commands.run(rendered.where, rendered.argv, stdin=document, limit_s=_CREATE_LIMIT_S)
        if isinstance(reply, ProbeFailure):
            return (), LaunchDoubtful(f"kubectl create: {reply.why}")
        names = [words[1] for line in reply.out.splitlines() if len(words := line.split("\t")) == 2]
        if not reply.exit_code:
            return names, None
        text = _words(reply)
        return names, LaunchDoubtful(f"kubectl create: {text}") if _LOST.search(text) else _failure(text)

    def _read(self, pool: Pool, *words: str, stdin: str = "") -> ProbeOutput:
        """Run kubectl; raise `NoBackend` if there is no answer, `LaunchRefused` if the server refuses."""
        reply = self._commands.read(pool.via, (*_kubectl(pool), *words), stdin=stdin)
        if reply.exit_code:
            raise _failure(_words(reply))
        return reply


def _kubectl(pool: Pool) -> tuple[str, ...]:
    flags = [f"--{name}={pool.options[name]}" for name in ("context", "namespace") if name in pool.options]
    return ("kubectl", f"--request-timeout={_REQUEST_S}s", *flags)


def _text(items: Sequence[Mapping[str, Any]]) -> str:
    # JSON and not YAML: kubectl would read an id such as 12e456 as a number.
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2)


def _labels(pool: str, id: str, fleet: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": LABEL,
        "stoker-fleet": fleet,
        "stoker-pool": pool,
        "stoker-allocation": id,
    }


def _job(pool: Pool, allocation: Allocation, fleet: str) -> dict[str, Any]:
    labels = _labels(pool.name, allocation.id, fleet)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": allocation.name, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": _SHOWN_AFTER_END_S,
            "template": {"metadata": {"labels": labels}, "spec": _pod(pool, allocation)},
        },
    }


def _pod(pool: Pool, allocation: Allocation) -> dict[str, Any]:
    ticket = f"{_MEMORY_FOLDER}/ticket"
    script = [
        *pool.setup,
        f"(umask 077; cat {_TICKET_FOLDER}/ticket > {ticket}) || exit 1",
        f"exec {worker_command(pool, ticket, python=_PYTHON)}",
    ]
    resources = {"cpu": f"{pool.each.cpu_cores}"}
    if pool.each.ram_mb is not None:
        resources["memory"] = f"{pool.each.ram_mb}Mi"
    if pool.each.gpus:
        resources[pool.options.get("gpu-resource", _GPU_RESOURCE)] = f"{len(pool.each.gpus)}"
    return {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": math.ceil(pool.wall_s),
        "terminationGracePeriodSeconds": math.ceil(pool.end_margin_s),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **_pod_options(pool),
        "containers": [
            {
                "name": "worker",
                "image": pool.options["image"],
                "command": ["/bin/sh", "-c", "\n".join(script)],
                "resources": {"requests": resources, "limits": resources},
                "securityContext": {"allowPrivilegeEscalation": False},
                "volumeMounts": [
                    {"name": "ticket", "mountPath": _TICKET_FOLDER, "readOnly": True},
                    {"name": "memory", "mountPath": _MEMORY_FOLDER},
                ],
            }
        ],
        "volumes": [
            {"name": "ticket", "secret": {"secretName": allocation.name, "defaultMode": 0o400}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _pod_options(pool: Pool) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    options = pool.options
    names = {
        "priority-class": "priorityClassName",
        "runtime-class": "runtimeClassName",
        "service-account": "serviceAccountName",
    }
    fields |= {field: options[name] for name, field in names.items() if name in options}
    if "image-pull-secret" in options:
        fields["imagePullSecrets"] = [{"name": options["image-pull-secret"]}]
    if "node-selector" in options:
        pairs = (one.partition("=") for one in options["node-selector"].split(","))
        fields["nodeSelector"] = {key: value for key, _, value in pairs}
    if "run-as-user" in options:
        number = int(options["run-as-user"])
        # The group may read the Secret, which is root's.
        fields["securityContext"] = {"runAsUser": number, "runAsGroup": number, "fsGroup": number}
    if "tolerations" in options:
        fields["tolerations"] = [_toleration(one) for one in options["tolerations"].split(",")]
    return fields


def _toleration(text: str) -> dict[str, str]:
    """Read `KEY`, `KEY=VALUE`, either with `:EFFECT`."""
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    fields = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return {**fields, "effect": effect} if effect else fields


def _secret(allocation: Allocation, fleet: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": allocation.name,
            "labels": _labels(allocation.pool, allocation.id, fleet),
        },
        "immutable": True,
        "stringData": {"ticket": ticket_hole(allocation)},
    }


@frozen
class _Shown:
    """A Job or a pod as kubectl prints it."""

    kind: str
    name: str
    id: str
    phase: str
    reason: str
    start: str
    deleted: str
    conditions: Sequence[Mapping[str, Any]] = ()
    container: Mapping[str, Mapping[str, Any]] = fresh(factory=dict)
    """Its state: `waiting`, `running` or `terminated`, each with details."""

    def condition(self, name: str) -> Mapping[str, Any] | None:
        """Return a condition that holds."""
        return next((one for one in self.conditions if one.get("type") == name and one.get("status") == "True"), None)


def _shown(line: str) -> _Shown | None:
    words = line.split("\t")
    if len(words) != 9 or words[0] not in ("Job", "Pod") or not words[2]:
        return None
    try:
        conditions = json.loads(words[7] or "[]")
        # Of several containers the first.
        container, _ = json.JSONDecoder().raw_decode(words[8] or "{}")
    except ValueError:
        return None
    if not isinstance(conditions, list) or not isinstance(container, dict):
        return None
    if not all(isinstance(one, dict) for one in (*conditions, *container.values())):
        return None
    return _Shown(
        kind=words[0],
        name=words[1],
        id=words[2],
        phase=words[3],
        reason=words[4],
        start=words[5],
        deleted=words[6],
        conditions=conditions,
        container=container,
    )


def _status(id: str, pool: Pool, job: _Shown | None, pod: _Shown | None) -> AllocationStatus:
    name = job.name if job else Allocation(id=id, pool=pool.name).name
    end = (job.condition("Complete") or job.condition("Failed")) if job else None
    if end is not None or (pod is not None and pod.phase in ("Succeeded", "Failed")):
        cause, reason = _end(end, pod)
        if job is None and cause is not AllocationCause.FINISHED:
            cause, reason = AllocationCause.CANCELLED_THERE, f"Job deleted; {reason}"
        return AllocationStatus(id=id, backend_id=name, state=AllocationState.ENDED, reason=reason, cause=cause)
    if pod is None:
        return AllocationStatus(id=id, backend_id=name, state=AllocationState.WAITING, reason="no pod yet")
    waiting = pod.container.get("waiting", {})
    is_broken = waiting.get("reason") in _BROKEN
    if pod.phase == "Pending" and not is_broken:
        return AllocationStatus(id=id, backend_id=name, state=AllocationState.WAITING, reason=_waiting(pod))
    # The time limit counts from the pod's start, before its image is pulled.
    pod_start_s = _seconds(pod.start)
    return AllocationStatus(
        id=id,
        backend_id=name,
        state=AllocationState.STARTED,
        reason=_sentence(waiting) if is_broken else "terminating" if pod.deleted or job is None else "",
        ends_s=pod_start_s + pool.wall_s if pod_start_s else None,
    )


def _end(end: Mapping[str, Any] | None, pod: _Shown | None) -> tuple[AllocationCause, str]:
    """Return the cause of an end, and the backend's words about it."""
    if end is not None and end.get("type") == "Complete":
        return AllocationCause.FINISHED, "Complete"
    if pod is None:
        # Evicted, or deleted with its node.
        return AllocationCause.PREEMPTED, f"{_sentence(end or {})}; its pod is gone"
    if disruption := pod.condition("DisruptionTarget"):
        return AllocationCause.PREEMPTED, f"DisruptionTarget: {_sentence(disruption)}"
    terminated = pod.container.get("terminated", {})
    code = terminated.get("exitCode")
    reason = pod.reason or (end or {}).get("reason", "")
    if terminated.get("reason") == "OOMKilled":
        cause, reason = AllocationCause.OUT_OF_MEMORY, "OOMKilled"
    elif reason in _EVICTED:
        cause = AllocationCause.PREEMPTED
    elif code is None:
        cause, reason = AllocationCause.FAILED, _sentence(end or {}) or pod.phase
    else:
        cause, reason = _CAUSES.get(code, AllocationCause.FAILED), f"exit {code}"
    return cause, reason


def _waiting(pod: _Shown) -> str:
    unscheduled = next(
        (one for one in pod.conditions if one.get("type") == "PodScheduled" and one.get("status") == "False"), None
    )
    return _sentence(unscheduled or pod.container.get("waiting", {})) or "Pending"


def _sentence(condition: Mapping[str, Any]) -> str:
    """Return the reason and the message of a condition, or of a container's state."""
    parts = (f"{condition.get('reason') or ''}", one_line(f"{condition.get('message') or ''}", 300))
    return ": ".join(part for part in parts if part)


def _seconds(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


def _words(reply: ProbeOutput) -> str:
    """Return what kubectl printed about a failure."""
    lines = [line for line in reply.err.splitlines() if not _LOG_LINE.match(line)]
    return one_line(" ".join(dict.fromkeys(lines)) or reply.err or f"exit {reply.exit_code}", 400)


def _failure(text: str) -> StokerError:
    """Return the error of a request that was certainly not processed."""
    if _NOT_NOW.search(text):
        return NoBackend(f"Kubernetes: {text}", hint="log in again, then: kubectl get jobs")
    if _SERVER in text:
        return LaunchRefused(f"Kubernetes: {text}", hint=_RIGHTS_HINT if "(Forbidden)" in text else "")
    if _NO_CONFIGURATION.search(text):
        hint = "set KUBECONFIG, or the pool's option context: kubectl config get-contexts"
        return NoBackend(f"Kubernetes: {text}", hint=hint)
    return NoBackend(f"Kubernetes: {text}", hint="kubectl cluster-info")


def _check_python(pool: Pool, url: str) -> Check:
    return not_checked(f"{pool.python or _PYTHON} in {pool.options['image']}", "a pod", url)
