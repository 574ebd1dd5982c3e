"""A real nginx for tests: one folder by HTTP on a free port of the loopback interface, as slow as is asked for."""

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
    assert PROGRAM is not None
    beside.mkdir(parents=True, exist_ok=True)
    for turn in range(_TRIES):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        config = beside / "nginx.conf"
        config.write_text(_config(folder, beside, port, rate))
        command = [PROGRAM, "-c", str(config), "-p", str(beside), "-e", str(beside / "log")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                if not _answers(port, server):
                    # Somebody else took the port in the meantime.
                    assert turn + 1 < _TRIES, (beside / "log").read_text()
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


def _config(folder: Path, beside: Path, port: int, rate: str) -> str:
    paths = "".join(
        f"{name}_temp_path {beside}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    limit = f"limit_rate {rate};" if rate else ""
    return (
        f"daemon off; {user} worker_processes 1; pid {beside}/pid; events {{}} "
        f"http {{ access_log off; {paths} {limit} sendfile on; "
        f"server {{ listen 127.0.0.1:{port}; root {folder}; }} }}\n"
    )
