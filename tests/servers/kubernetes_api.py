"""A small Kubernetes API for the system's kubectl: Jobs, pods, Secrets, and rights. It runs pods as processes.

A pod starts once the Secret of its volume exists. The folders in which it mounts volumes are folders of this machine:
the ticket's path is replaced in its command.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import uuid
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

_GROUPS = {
    "/api/v1": {"pods": "Pod", "secrets": "Secret", "pods/log": "Pod"},
    "/apis/batch/v1": {"jobs": "Job"},
    "/apis/authorization.k8s.io/v1": {"selfsubjectaccessreviews": "SelfSubjectAccessReview"},
}
_PATH = re.compile(r"(/api/v1|/apis/[^/]+/v1)/(?:namespaces/([^/]+)/)?([a-z]+)(?:/([^/]+))?(/log)?")


class KubernetesApi:
    """The cluster: objects by kind and name, and the processes of pods."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, dict[str, Any]] = {"jobs": {}, "pods": {}, "secrets": {}}
        self.forbidden: set[str] = set()
        """`VERB RESOURCE`, such as `create secrets`."""
        self.is_locked = False
        """Whoever asks is not logged in."""
        self.loses: set[str] = set()
        """Requests that are processed, but get no answer."""
        self.requests: list[str] = []
        self._folder = folder
        folder.mkdir(parents=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"api": self}))
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def kubeconfig(self, url: str = "") -> Path:
        """Return a new kubeconfig of this cluster."""
        path = self._folder / f"kubeconfig-{uuid.uuid4().hex[:6]}"
        named = [
            {"clusters": [{"name": "fake", "cluster": {"server": url or self.url}}]},
            {"users": [{"name": "me", "user": {}}]},
            {"contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": "train"}}]},
        ]
        body = {"apiVersion": "v1", "kind": "Config", "current-context": "fake"}
        path.write_text(json.dumps(body | named[0] | named[1] | named[2]))
        return path

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._server.shutdown()
        self._server.server_close()

    def answer(  # noqa: PLR0911 - one case for each request
        self, method: str, path: str, query: dict[str, list[str]], body: Any
    ) -> tuple[int, Any]:
        """Return the status and the body of an answer."""
        if path in ("/api", "/apis", "/version", *_GROUPS):
            return 200, _discovery(path)
        found = _PATH.fullmatch(path)
        if found is None:
            return 404, _status(404, "NotFound", f"no {path}")
        _, namespace, resource, name, log = found.groups()
        verb = {"GET": "get" if name else "list", "POST": "create", "DELETE": "delete"}[method]
        self.requests.append(f"{verb} {resource}{log or ''}")
        if f"{verb} {resource}" in self.forbidden:
            message = f'{resource} is forbidden: User "me" cannot {verb} resource "{resource}" in the namespace'
            return 403, _status(403, "Forbidden", message)
        with self._lock:
            self._look()
            match verb:
                case "create" if resource == "selfsubjectaccessreviews":
                    wanted = body["spec"]["resourceAttributes"]
                    right = f"{wanted['verb']} {wanted['resource']}/{wanted.get('subresource', '')}".rstrip("/")
                    # Only in the namespace of the kubeconfig's context.
                    body["status"] = {"allowed": wanted["namespace"] == "train" and right not in self.forbidden}
                    return 201, body
                case "create":
                    return self._create(resource, body, namespace, is_dry="dryRun" in query)
                case "list":
                    selector = query.get("labelSelector", [""])[0]
                    items = [one for one in self.objects[resource].values() if _fits(one, selector)]
                    kind = next(group[resource] for group in _GROUPS.values() if resource in group)
                    return 200, {"kind": f"{kind}List", "apiVersion": found[1].split("/", 2)[2], "items": items}
        if name not in self.objects[resource]:
            return 404, _status(404, "NotFound", f'{resource} "{name}" not found')
        with self._lock:
            if log:
                return 200, (self._folder / name / "log").read_text()
            if method == "DELETE":
                self._delete(resource, name)
            return 200, self.objects[resource].get(name) or _status(200, "", "deleted")

    def _create(self, resource: str, body: Any, namespace: str, *, is_dry: bool) -> tuple[int, Any]:
        name = body["metadata"]["name"]
        if name in self.objects[resource]:
            return 409, _status(409, "AlreadyExists", f'{resource} "{name}" already exists')
        body["metadata"] |= {"uid": str(uuid.uuid4()), "namespace": namespace}
        if is_dry:
            return 201, body
        self.objects[resource][name] = body
        if resource == "jobs":
            metadata = body["spec"]["template"]["metadata"] | {"name": f"{name}-x7k2p", "namespace": namespace}
            spec = body["spec"]["template"]["spec"]
            waits = {"phase": "Pending", "conditions": [], "containerStatuses": []}
            pod = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": waits}
            self.objects["pods"][metadata["name"]] = pod
        self._look()
        return 201, body

    def _delete(self, resource: str, name: str) -> None:
        del self.objects[resource][name]
        if resource != "jobs":
            return
        pod = f"{name}-x7k2p"
        if pod in self.objects["pods"]:
            self.objects["pods"][pod]["metadata"]["deletionTimestamp"] = _now()
        if pod in self._processes and self._processes[pod].poll() is None:
            os.killpg(self._processes[pod].pid, signal.SIGTERM)

    def _look(self) -> None:
        """Start pods that can start, and see which have ended."""
        for name, pod in list(self.objects["pods"].items()):
            process = self._processes.get(name)
            (ticket, _) = pod["spec"]["volumes"]
            secret = self.objects["secrets"].get(ticket["secret"]["secretName"])
            if process is None and secret is not None:
                self._start(name, pod, secret)
            elif process is not None and process.poll() is not None:
                self._end(name, pod, process)
            if "deletionTimestamp" in pod["metadata"] and (process is None or process.poll() is not None):
                del self.objects["pods"][name]
                shutil.rmtree(self._folder / name, ignore_errors=True)

    def _start(self, name: str, pod: Any, secret: Any) -> None:
        (container,) = pod["spec"]["containers"]
        script = container["command"][-1]
        for mount in container["volumeMounts"]:
            folder = self._folder / name / mount["name"]
            folder.mkdir(parents=True)
            script = script.replace(f"{mount['mountPath']}/ticket", f"{folder}/ticket")
        for key, text in secret["stringData"].items():
            path = self._folder / name / "ticket" / key
            path.write_text(text)
            path.chmod(pod["spec"]["volumes"][0]["secret"]["defaultMode"])
        with (self._folder / name / "log").open("wb") as log:
            argv = [*container["command"][:-1], script]
            environment = {"PATH": os.environ["PATH"]}
            self._processes[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        now = _now()
        running = [{"name": "worker", "state": {"running": {"startedAt": now}}}]
        pod["status"] = {"phase": "Running", "startTime": now, "conditions": [], "containerStatuses": running}

    def _end(self, name: str, pod: Any, process: subprocess.Popen[bytes]) -> None:
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        pod["status"]["phase"] = "Failed" if code else "Succeeded"
        terminated = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": _now()}
        pod["status"]["containerStatuses"] = [{"name": "worker", "state": {"terminated": terminated}}]
        if job := self.objects["jobs"].get(name.removesuffix("-x7k2p")):
            ended = {"type": "Failed", "reason": "BackoffLimitExceeded"} if code else {"type": "Complete"}
            job["status"] = {"conditions": [{**ended, "status": "True", "lastTransitionTime": _now()}]}


class _Handler(BaseHTTPRequestHandler):
    api: KubernetesApi
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"null")
        url = urlsplit(self.path)
        if self.api.is_locked:
            status, answer = 401, _status(401, "Unauthorized", "Unauthorized")
        else:
            status, answer = self.api.answer(self.command, url.path, parse_qs(url.query), body)
        if self.api.loses and self.api.requests and self.api.requests[-1] in self.api.loses:
            self.close_connection = True
            return
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_DELETE = do_GET  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _discovery(path: str) -> Any:
    if path == "/version":
        return {"major": "1", "minor": "32", "gitVersion": "v1.32.4"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        names = [group.split("/")[2] for group in _GROUPS if group.startswith("/apis")]
        groups = [
            {"name": name, "versions": [version], "preferredVersion": version}
            for name in names
            for version in [{"groupVersion": f"{name}/v1", "version": "v1"}]
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    resources = [
        {"name": name, "singularName": "", "namespaced": kind != "SelfSubjectAccessReview", "kind": kind}
        | {"verbs": ["create", "delete", "get", "list"]}
        for name, kind in _GROUPS[path].items()
    ]
    version = path.removeprefix("/apis/").removeprefix("/api/")
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


def _fits(item: Any, selector: str) -> bool:
    labels = item["metadata"].get("labels", {})
    for part in re.split(r",(?![^(]*\))", selector) if selector else ():
        if several := re.fullmatch(r"(\S+) in \((.*)\)", part):
            if labels.get(several[1]) not in several[2].split(","):
                return False
        elif labels.get(part.partition("=")[0]) != part.partition("=")[2]:
            return False
    return True


def _status(code: int, reason: str, message: str) -> Any:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure" if code >= 400 else "Success",
        "reason": reason,
        "message": message,
        "code": code,
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
