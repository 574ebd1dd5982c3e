"""A real nginx for tests: on a free port of loopback one folder, as slow as is asked for, or another server's proxy."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAM = shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")))
_TRIES = 5
_READY_S = 10.0


@contextmanager
def nginx(folder: Path, *, beside: Path, rate: str = "") -> Iterator[str]:
    """Serve a folder until the block ends; gives its address. Its own files lie beside the folder, not in it."""
    limit = f"limit_rate {rate};" if rate else ""
    with _serving(f"{limit} sendfile on; root {folder};", beside) as url:
        yield url


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def reverse_proxy(to: str, *, at: int, prefix: str, is_stripped: bool, beside: Path) -> Iterator[str]:
    """Pass requests below a prefix on to a server; gives the address of that prefix, at a port that was free."""
    passed = f"location {prefix}/ {{ proxy_pass {to}{'/' if is_stripped else ''}; proxy_set_header Host $http_host; "
    rules = f"{passed} proxy_http_version 1.1; proxy_buffering off; }}"
    with _serving(rules, beside, at) as url:
        yield f"{url}{prefix}/"


@contextmanager
def _serving(rules: str, beside: Path, at: int = 0) -> Iterator[str]:
    assert PROGRAM is not None
    beside.mkdir(parents=True, exist_ok=True)
    for turn in range(_TRIES):
        port = at or free_port()
        config = beside / "nginx.conf"
        config.write_text(_config(rules, beside, port))
        command = [PROGRAM, "-c", str(config), "-p", str(beside), "-e", str(beside / "log")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                if not _answers(port, server):
                    # Somebody else took the port in the meantime.
                    assert turn + 1 < (1 if at else _TRIES), (beside / "log").read_text()
                    continue
                yield f"http://127.0.0.1:{port}"
                return
            finally:
                server.terminate()
                server.wait(_READY_S)


def _answers(port: int, server: subprocess.Popen[bytes]) -> bool:
    while server.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_READY_S):
            return True
    return False


def _config(rules: str, beside: Path, port: int) -> str:
    paths = "".join(
        f"{name}_temp_path {beside}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    return (
        f"daemon off; {user} worker_processes 1; pid {beside}/pid; events {{}} "
        f"http {{ access_log off; {paths} server {{ listen 127.0.0.1:{port}; {rules} }} }}\n"
    )
