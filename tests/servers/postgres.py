"""A real PostgreSQL for tests: a throwaway server of this process, on a free port of the loopback interface.

It runs in the foreground as our child, so that it can be killed, waited for and started again at once, and it ends with
the thread that started it, whatever happens. Every test gets a database of its own, copied from one that is ready.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import glob
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

USER = "stoker"
_DEADLINE_S = 60.0
_LOOK_EVERY_S = 0.02
_PORTS_TO_TRY = 5
# Quick to start and small: tests check what is promised, not what a disk can do.
_SETTINGS = {
    "max_connections": "60",
    "shared_buffers": "64MB",
    "autovacuum": "off",
    "logging_collector": "off",
    "max_wal_size": "256MB",
}


def programs_folder() -> Path | None:
    """Return where PostgreSQL's server programs lie: on the path, or where Debian puts them, the newest first."""
    found = shutil.which("postgres")
    if found and (Path(found).resolve().parent / "initdb").exists():
        return Path(found).resolve().parent
    folders = [Path(name) for name in glob("/usr/lib/postgresql/*/bin") if (Path(name) / "initdb").exists()]
    return max(folders, key=lambda folder: float(folder.parent.name), default=None)


def why_not() -> str:
    """Return why there can be no server here; nothing: there can."""
    if programs_folder() is None:
        return "PostgreSQL's server is not installed (Debian: postgresql)"
    if os.geteuid() == 0 and (_unprivileged() is None or shutil.which("setpriv") is None):
        return "PostgreSQL refuses root, and there is no user `postgres` or no setpriv to become it"
    return ""


class PostgresServer:
    """One server and its databases. What it keeps survives `kill` and `start`, not the end of its block."""

    def __init__(self, folder: Path, programs: Path, *, is_durable: bool = False) -> None:
        self.folder = folder
        self._programs = programs
        self._is_durable = is_durable
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count(1)
        self.port = 0

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def create(self, template: str = "template1") -> str:
        """Make a database from another, to which nobody may be connected; gives its URL."""
        name = f"db{next(self._names)}"
        with psycopg.connect(self.url(), autocommit=True) as admin:
            # Before 15 there is no other way; since then it is half the work, for whoever does not sync.
            how = sql.SQL(" STRATEGY FILE_COPY" if admin.info.server_version >= 150_000 else "")
            asked = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            admin.execute(asked.format(sql.Identifier(name), sql.Identifier(template)) + how)
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database, whoever is connected to it."""
        name = sql.Identifier(url.rpartition("/")[2])
        with psycopg.connect(self.url(), autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))

    def cut(self, url: str) -> int:
        """End every connection to a database from the server's side; gives how many there were."""
        name = url.rpartition("/")[2]
        with psycopg.connect(self.url(), autocommit=True) as admin:
            ended = admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            return len(ended.fetchall())

    def start(self) -> None:
        """Start it, on the port it had, and wait until it answers."""
        deadline_s = time.monotonic() + _DEADLINE_S
        if not (self.folder / "data").exists():
            self._make()
        for turn in range(_PORTS_TO_TRY):
            if not self.port or turn:
                with socket.create_server(("127.0.0.1", 0)) as taken:
                    self.port = taken.getsockname()[1]
            # Backends of one that was killed may still be on their way out: until then it refuses to start.
            while time.monotonic() < deadline_s:
                self._spawn()
                if self._answers(deadline_s):
                    return
                if "already in use" in self.log():
                    break
                time.sleep(_LOOK_EVERY_S)
        raise AssertionError(f"PostgreSQL does not start:\n{self.log()}")

    def stop(self) -> None:
        """Stop it at once, as a power cut would, but leave nothing of it running."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """Kill -9: its backends see it and go."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it, breaking every connection, and start it on the same port."""
        self._end(signal.SIGINT)
        self.start()

    def log(self) -> str:
        """Return the end of what it said since it was last started."""
        path = self.folder / "log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else ""

    def _make(self) -> None:
        user = _unprivileged()
        if os.geteuid() == 0 and user is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        asked = ("-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-U", USER, "-D", str(self.folder / "data"))
        made = subprocess.run(
            [*self._as_user(), str(self._programs / "initdb"), *asked],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr

    def _spawn(self) -> None:
        settings = {
            **_SETTINGS,
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            **({} if self._is_durable else {"fsync": "off", "full_page_writes": "off"}),
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [*self._as_user(), str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _answers(self, deadline_s: float) -> bool:
        assert self._process is not None
        while self._process.poll() is None and time.monotonic() < deadline_s:
            with suppress(psycopg.OperationalError):
                psycopg.connect(self.url(), connect_timeout=10).close()
                return True
            time.sleep(_LOOK_EVERY_S)
        return False

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(_DEADLINE_S)

    def _as_user(self) -> list[str]:
        """Return how a program is started: as somebody whom PostgreSQL accepts, and so that it ends with us."""
        if shutil.which("setpriv") is None:
            return []
        become = ["--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        return ["setpriv", "--pdeathsig=QUIT", *become, "--"]


@contextmanager
def postgres(*, is_durable: bool = False) -> Iterator[PostgresServer]:
    """Run a server until the block ends. `is_durable`: it syncs as in production; tests that only kill it need not."""
    programs = programs_folder()
    assert programs is not None
    # Not below pytest's folder: nobody else may enter that, and PostgreSQL runs as somebody else where we are root.
    folder = Path(tempfile.mkdtemp(prefix="stoker-pg-"))
    server = PostgresServer(folder, programs, is_durable=is_durable)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged() -> pwd.struct_passwd | None:
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return None
