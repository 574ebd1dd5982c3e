"""A coordinator to measure: started as a person starts it, seen from outside, ended with the block."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from peers import CHECKOUT, Installed

sys.path[:0] = [str(CHECKOUT), str(harness.SIDES)]

import procfs  # noqa: E402 - sides are scripts of that folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """One that listens."""

    url: str
    pid: int
    home: Path

    @property
    def token(self) -> Path:
        return self.home / "state" / "operator.token"

    @property
    def ca(self) -> Path:
        """Whom to trust there, where it speaks TLS."""
        return self.home / "state" / "authority" / "ca.pem"

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs to find it."""
        return {"STOKER_HOME": str(self.home)}

    def cpu_s(self) -> float:
        return procfs.used_s(self.pid)

    def rss_bytes(self, kind: str = "VmRSS") -> int:
        """What it holds now; `VmHWM` is the most it ever held."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))

    def get(self, path: str) -> Any:
        is_secure = self.url.startswith("https")
        trust = ssl.create_default_context(cafile=str(self.ca)) if is_secure else None
        shown = {"X-Operator-Token": self.token.read_text().strip()}
        request = urllib.request.Request(self.url + path, headers=shown)  # noqa: S310 - our own server
        with urllib.request.urlopen(request, timeout=120, context=trust) as answer:  # noqa: S310
            return json.loads(answer.read())


@contextmanager
def serving(
    peer: Installed,
    home: Path,
    *options: str,
    listen: str = "127.0.0.1:0",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Coordinator]:
    """Run `stoker serve` on a free port; `options` follow. It is asked over loopback, wherever it listens."""
    command = [str(peer.program("stoker")), "serve", "--listen", listen, "--json", *options]
    settings = harness.environment_with({"STOKER_HOME": str(home), **(environment or {})})
    with (home / "serve.log").open("wb") as log:
        program = subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert program.stdout is not None
            line = program.stdout.readline()
            if not line:
                raise RuntimeError(f"stoker serve does not start:\n{(home / 'serve.log').read_text()[-2000:]}")
            url = json.loads((home / "state" / "serve.json").read_text())["url"]
            yield Coordinator(url=url, pid=json.loads(line)["pid"], home=home)
        finally:
            program.send_signal(signal.SIGTERM)
            try:
                program.wait(30)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
