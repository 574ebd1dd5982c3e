"""The Jobs interface of a Ray cluster, as far as the launcher uses it. It runs jobs as processes of this machine.

Answers are those of Ray 2.60: a repeated submission id and a deletion of what runs are errors with a traceback.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "f00d" * 16


class RayJobs:
    """The cluster: packages, and jobs by submission id."""

    def __init__(self, folder: Path) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.packages: dict[str, bytes] = {}
        self.loses: set[str] = set()
        """Requests, such as `POST /api/jobs/`, that are processed but get no answer."""
        self.answers: dict[str, tuple[int, str]] = {}
        """Status and text instead of an answer, by request."""
        self.requests: list[str] = []
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"cluster": self}))
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: str, body: bytes) -> tuple[int, str]:  # noqa: C901, PLR0911 - one case for each request
        """Return the status and the text of an answer."""
        if request in self.answers:
            return self.answers[request]
        self._look()
        method, _, path = request.partition(" ")
        match method, path.split("/")[2:]:
            case "GET", ["version"]:
                return 200, json.dumps({"version": "4", "ray_version": "2.60.0"})
            case "PUT", ["packages", "gcs", name]:
                self.packages[name] = body
                return 200, ""
            case "POST", ["jobs", ""]:
                return self._submit(json.loads(body))
            case "GET", ["jobs", ""]:
                return 200, json.dumps(list(self.jobs.values()))
            case _, ["jobs", name, *_] if name not in self.jobs:
                return 404, f"Job {name} does not exist"
            case "POST", ["jobs", name, "stop"]:
                is_live = self._processes[name].poll() is None
                if is_live:
                    self.jobs[name]["is_stopped"] = True
                    os.killpg(self._processes[name].pid, signal.SIGTERM)
                return 200, json.dumps({"stopped": is_live})
            case "DELETE", ["jobs", name]:
                if self.jobs[name]["status"] in ("PENDING", "RUNNING"):
                    return 500, f"Traceback\nRuntimeError: job {name} is not in a terminal state\n"
                del self.jobs[name]
                shutil.rmtree(self._folder / name)
                return 200, json.dumps({"deleted": True})
            case "GET", ["jobs", name, "logs"]:
                return 200, json.dumps({"logs": (self._folder / name / "log").read_text()})
        return 404, "404: Not Found"

    def _submit(self, body: Any) -> tuple[int, str]:
        name = body["submission_id"]
        if name in self.jobs:
            text = f"Job with submission_id {name} already exists. Please use a different submission_id."
            return 500, f"Traceback (most recent call last):\nRuntimeError: {text}\n.\n"
        folder = self._folder / name
        folder.mkdir(parents=True)
        package = body["runtime_env"]["working_dir"].removeprefix("gcs://")
        with zipfile.ZipFile(io.BytesIO(self.packages[package])) as files:
            for entry in files.infolist():
                files.extract(entry, folder)
                (folder / entry.filename).chmod(entry.external_attr >> 16)
        environment = {"PATH": os.environ["PATH"], **body["runtime_env"]["env_vars"]}
        with (folder / "log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                body["entrypoint"],
                shell=True,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        facts = {"type": "SUBMISSION", "status": "RUNNING", "message": "Job is currently running.", "error_type": None}
        times = {"start_time": int(time.time() * 1000), "end_time": None, "driver_exit_code": None}
        self.jobs[name] = {**body, **facts, **times}
        return 200, json.dumps({"job_id": name, "submission_id": name})

    def _look(self) -> None:
        for name, process in self._processes.items():
            job = self.jobs.get(name)
            if job is None or job["end_time"] or process.poll() is None:
                continue
            job["end_time"] = int(time.time() * 1000)
            if job.get("is_stopped"):
                job["status"] = "STOPPED"
                continue
            job["driver_exit_code"] = process.returncode
            job["status"] = "FAILED" if process.returncode else "SUCCEEDED"
            job["error_type"] = "JOB_ENTRYPOINT_COMMAND_ERROR" if process.returncode else None


class _Handler(BaseHTTPRequestHandler):
    cluster: RayJobs
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = f"{self.command} {self.path}"
        self.cluster.requests.append(request)
        header = self.headers.get("Authorization", "")
        if not header:
            status, text = 401, "Unauthorized: Missing authentication token"
        elif header != f"Bearer {TOKEN}":
            status, text = 403, "Forbidden: Invalid authentication token"
        else:
            status, text = self.cluster.answer(request, body)
        if request in self.cluster.loses:
            self.close_connection = True
            return
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        """Print nothing."""
