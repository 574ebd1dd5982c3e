"""A worker and a script of system A, written only from what its behaviours say (A-01 … A-57).

Nothing of Stoker is imported: the standard library alone, as A-40 has it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any


class Refused(Exception):
    """The coordinator said no."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


def capability(hostname: str, *, ram_available_gib: float = 12.0, vram_free_gib: float | None = None) -> dict[str, Any]:
    """A-01: every field of the record, and no other."""
    has_cuda = vram_free_gib is not None
    return {
        "hostname": hostname,
        "os": "Linux",
        "arch": "x86_64",
        "cpu_cores": 4,
        "ram_total_gib": 16.0,
        "ram_available_gib": ram_available_gib,
        "cuda_available": has_cuda,
        "cuda_devices": [{"name": "RTX", "vram_total_gib": 8.0, "vram_free_gib": vram_free_gib}] if has_cuda else [],
        "torch_version": "2.3.0" if has_cuda else None,
        "python_version": "3.11.2",
        "training_commit": "f" * 40,
    }


def tarball(text: str) -> bytes:
    """A compressed model."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        info = tarfile.TarInfo("model.txt")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text.encode()))
    return gzip.compress(made.getvalue(), mtime=0)


class Caller:
    """A-33, A-34: the eleven routes; operators send X-Operator-Token."""

    def __init__(self, url: str, *, token: str = "") -> None:
        self.url = url
        self.token = token

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/v1/{path}", data=data, method=method)
        request.add_header(
            "Content-Type", "application/octet-stream" if isinstance(body, bytes) else "application/json"
        )
        if self.token:
            request.add_header("X-Operator-Token", self.token)
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise Refused(error.code, json.loads(error.read() or b"null")) from None

    def jobs(self) -> dict[str, dict[str, Any]]:
        return {job["name"]: job for job in self.ask("GET", "jobs")["jobs"]}

    def workers(self) -> dict[str, dict[str, Any]]:
        return {worker["hostname"]: worker for worker in self.ask("GET", "workers")["workers"]}

    def cancel(self, job: str) -> Any:
        return self.ask("POST", f"job/{job}/cancel")

    def requeue(self, job: str) -> Any:
        return self.ask("POST", f"job/{job}/requeue")

    def reload(self) -> Any:
        return self.ask("POST", "manifest/reload")


class Worker(Caller):
    """A-37: detect, claim, train, heartbeat with output lines, upload, complete or fail, repeat."""

    def __init__(self, url: str, hostname: str) -> None:
        super().__init__(url)
        self.hostname = hostname
        self.detect: Callable[[], dict[str, Any]] = lambda: capability(hostname)

    def claim(self) -> dict[str, Any] | None:
        found = self.ask("POST", "job/claim", {"hostname": self.hostname, "capability": self.detect()})["job"]
        return dict(found) if found is not None else None

    def heartbeat(self, job: dict[str, Any], *lines: str) -> Any:
        return self.ask("POST", f"job/{job['id']}/heartbeat", {"metadata": {"lines": list(lines)}})

    def put_model(self, job: dict[str, Any], data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        answer = self.ask("PUT", f"model/{job['id']}", data, {"X-Sha256": digest})
        assert answer["sha256"] == digest
        return digest

    def complete(self, job: dict[str, Any], digest: str) -> Any:
        return self.ask("POST", f"job/{job['id']}/complete", {"sha256": digest})

    def fail(self, job: dict[str, Any], error: str) -> Any:
        return self.ask("POST", f"job/{job['id']}/fail", {"error": error})

    def work(self, train: Callable[[dict[str, Any]], bytes]) -> list[dict[str, Any]]:
        """Do everything that it is given; the loop without its sleeps."""
        done = []
        while (job := self.claim()) is not None:
            done.append(job)
            self.heartbeat(job, f"training {job['model']}", "epoch 1")
            try:
                model = train(job)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
                self.fail(job, f"{type(error).__name__}: {error}")
                continue
            self.heartbeat(job, "epoch 2", "saved")
            self.complete(job, self.put_model(job, model))
        return done
