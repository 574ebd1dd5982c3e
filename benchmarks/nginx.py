"""nginx, started for one benchmark: files in memory, sent by the kernel, on free ports of the loopback interface.

Three addresses: `hub` answers like a model hub (what a revision is, what a repository holds, where a file lies, with
large files handed on to another origin), `plain` is that other origin, `tls` the same files by TLS 1.3. Everything is
static, so the server costs next to nothing and every client is asked for exactly the same work.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

COMMIT = "5" * 40
_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
_READY_S = 10.0
_PIECE_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One file of a repository, by the names that a hub gives its bytes."""

    repository: str
    name: str
    size_bytes: int
    sha256: str
    git_sha1: str
    is_large: bool
    """Large files are known by their sha256 and handed on, small ones by git's sha1 and answered at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running nginx."""

    hub: str
    plain: str
    tls: str
    certificate: Path
    process_id: int

    def address(self, file: Served, *, origin: str = "") -> str:
        return f"{origin or self.plain}/{file.repository}/{file.name}"

    def cpu_seconds(self) -> float:
        """What it has used so far, workers included."""
        children = Path(f"/proc/{self.process_id}/task/{self.process_id}/children").read_text().split()
        ran_ns = [Path(f"/proc/{number}/schedstat").read_text().split()[0] for number in (self.process_id, *children)]
        return sum(map(int, ran_ns)) / 1e9


class Shelf:
    """Where the files that will be served are made: a private folder in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[Served] = []

    def add(self, repository: str, name: str, size_bytes: int, *, is_large: bool) -> Served:
        """A file of random bytes."""
        place = self.folder / "files" / repository / name
        place.parent.mkdir(parents=True, exist_ok=True)
        sha256, git_sha1 = hashlib.sha256(), hashlib.sha1(f"blob {size_bytes}\0".encode(), usedforsecurity=False)
        with place.open("wb") as written:
            for start in range(0, size_bytes, _PIECE_BYTES):
                piece = os.urandom(min(_PIECE_BYTES, size_bytes - start))
                written.write(piece)
                sha256.update(piece)
                git_sha1.update(piece)
        made = Served(
            repository=repository,
            name=name,
            size_bytes=size_bytes,
            sha256=sha256.hexdigest(),
            git_sha1=git_sha1.hexdigest(),
            is_large=is_large,
        )
        self.files.append(made)
        return made


@contextmanager
def shelf(bench: Path) -> Iterator[Shelf]:
    """A private folder for what is served, in memory where there is such a file system; removed afterwards."""
    bench.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stoker-bench-", dir=_MEMORY if _MEMORY.is_dir() else bench) as folder:
        yield Shelf(Path(folder))


def why_not() -> str:
    """Why there is no server to be had; empty if there is one."""
    if not Path("/proc/self/schedstat").exists():
        return "this system does not tell the CPU time of a server"
    missing = [name for name in ("nginx", "openssl") if program(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def program(name: str) -> str | None:
    """A program, also from where servers are installed, which isn't on everybody's path."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")))


def version() -> str:
    """The version of nginx."""
    said = subprocess.run([program("nginx") or "nginx", "-v"], capture_output=True, text=True, check=True).stderr
    return said.strip().rpartition("/")[2]


@contextmanager
def serving(kept: Shelf) -> Iterator[Server]:
    """Serve what stands on the shelf until the block ends."""
    hub, plain, tls = _free_ports(3)
    _write_pages(kept)
    certificate = _make_certificate(kept.folder)
    config = kept.folder / "nginx.conf"
    config.write_text(_config(kept.folder, kept.files, hub=hub, plain=plain, tls=tls))
    command = [program("nginx") or "nginx", "-c", str(config), "-p", str(kept.folder), "-e", str(kept.folder / "log")]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        try:
            _wait_for(hub, process, kept.folder / "log")
            yield Server(
                hub=f"http://127.0.0.1:{hub}",
                plain=f"http://127.0.0.1:{plain}",
                tls=f"https://127.0.0.1:{tls}",
                certificate=certificate,
                process_id=process.pid,
            )
        finally:
            process.terminate()
            process.wait(_READY_S)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _READY_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"nginx does not answer: {log.read_text() if log.exists() else 'it left no log'}")


def _make_certificate(folder: Path) -> Path:
    certificate = folder / "certificate.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    places = ["-keyout", str(folder / "key.pem"), "-out", str(certificate)]
    subprocess.run(["openssl", *words, *names, *places], check=True, capture_output=True)
    return certificate


def _write_pages(kept: Shelf) -> None:
    """What a hub tells about each repository: its commit, and every file in it."""
    for repository in {file.repository for file in kept.files}:
        pages = kept.folder / "pages" / repository
        pages.mkdir(parents=True, exist_ok=True)
        held = [file for file in kept.files if file.repository == repository]
        siblings = [{"rfilename": file.name} for file in held]
        told = {"id": repository, "modelId": repository, "sha": COMMIT, "private": False, "tags": []}
        (pages / "revision.json").write_text(json.dumps({**told, "siblings": siblings}))
        (pages / "tree.json").write_text(json.dumps([_entry(file) for file in held]))


def _entry(file: Served) -> dict[str, object]:
    entry = {"type": "file", "oid": file.git_sha1, "size": file.size_bytes, "path": file.name}
    lfs = {"oid": file.sha256, "size": file.size_bytes, "pointerSize": 134}
    return {**entry, "lfs": lfs} if file.is_large else entry


def _config(folder: Path, files: Sequence[Served], *, hub: int, plain: int, tls: int) -> str:
    user = f"user {pwd.getpwuid(os.getuid()).pw_name};" if os.getuid() == 0 else ""
    temporary = "\n  ".join(
        f"{kind}_temp_path {folder}/temporary;" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    small = "\n    ".join(f'"{file.repository}/{file.name}" "{file.git_sha1}";' for file in files if not file.is_large)
    large = "\n    ".join(f'"{file.repository}/{file.name}" "{file.sha256}";' for file in files if file.is_large)
    sizes = "\n    ".join(f'"{file.repository}/{file.name}" {file.size_bytes};' for file in files if file.is_large)
    # nginx makes a header only of what is not empty, so each answer carries only the names that its file has
    return f"""
worker_processes 1;
daemon off;
pid {folder}/pid;
{user}
events {{ worker_connections 256; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 100000;
  default_type application/octet-stream;
  types {{ }}
  {temporary}
  map_hash_max_size 16384;
  map_hash_bucket_size 256;
  map "$repository/$file" $small {{
    default "";
    {small}
  }}
  map "$repository/$file" $large {{
    default "";
    {large}
  }}
  map "$repository/$file" $size {{
    default "";
    {sizes}
  }}
  map $small $small_etag {{ "" ""; default '"$small"'; }}
  map $large $large_etag {{ "" ""; default '"$large"'; }}
  server {{
    listen 127.0.0.1:{hub};
    etag off;
    location ~ ^/api/models/(?<repository>[^/]+/[^/]+)/revision/ {{
      default_type application/json;
      root {folder}/pages;
      try_files /$repository/revision.json =404;
    }}
    location ~ ^/api/models/(?<repository>[^/]+/[^/]+)/tree/ {{
      default_type application/json;
      root {folder}/pages;
      try_files /$repository/tree.json =404;
    }}
    location ~ ^/(?<repository>[^/]+/[^/]+)/resolve/[^/]+/(?<file>.+)$ {{
      add_header X-Repo-Commit {COMMIT};
      add_header X-Linked-Size $size;
      add_header X-Linked-Etag $large_etag;
      add_header ETag $small_etag;
      if ($large) {{ return 302 http://127.0.0.1:{plain}/$repository/$file; }}
      root {folder}/files;
      try_files /$repository/$file =404;
    }}
  }}
  server {{
    listen 127.0.0.1:{plain};
    listen 127.0.0.1:{tls} ssl;
    ssl_protocols TLSv1.3;
    ssl_certificate {folder}/certificate.pem;
    ssl_certificate_key {folder}/key.pem;
    root {folder}/files;
  }}
}}
"""
