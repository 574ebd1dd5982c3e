"""What the security cases share: coordinators and workers of this user, attackers of another one, and a watch.

Everything is a real process that was started by a command. Attackers are processes of an unprivileged user
(`tests/servers/attacker.py`). The coordinator and the watch are scheduled before everything else, where that is
permitted: what is asked is what an attack makes the coordinator do, and not who gets how much of the processor.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fleet
import harness
from fleet import Coordinator
from peers import Installed

from tests.servers import attacker
from tests.servers.unix_http import UnixConnection

PATIENCE_S = 180.0
WARM = 5
ATTACKERS: tuple[str, ...] = ("nice", "-n", "10")
"""What attackers are started by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One variant of an attack. `through` says what it achieved; empty: it was refused."""

    what: str
    through: str = ""


@dataclass(slots=True, kw_only=True)
class Watched:
    """What was seen of coordinators during a case."""

    peak_bytes: int = 0
    answers_s: list[float] = field(default_factory=list)


class NotAsExpected(Exception):
    """What has to work did not, so that a refusal says nothing."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """One case: where it runs, and what is seen meanwhile."""

    peer: Installed
    folder: Path
    """Every user may enter it, and only its owner writes there."""
    quick: bool
    shared: Coordinator | None = None
    """One that serves already, for cases of a smoke run that need no other."""
    watched: Watched = field(default_factory=Watched)
    missing: dict[str, str] = field(default_factory=dict)
    """What can't be tried on this machine, each with the reason."""

    def place(self, name: str, *, mode: int = 0o755, user: int = 0) -> Path:
        """Make a folder; for an attacker if a user is named."""
        made = self.folder / name
        made.mkdir(parents=True, exist_ok=True)
        made.chmod(mode)
        os.chown(made, user, user)
        return made

    @contextmanager
    def serving(
        self, *options: str, name: str = "home", listen: str = "127.0.0.1:0", **environment: str
    ) -> Iterator[Coordinator]:
        """Run a coordinator, and watch its memory and its answers to `/v1/health` until the block ends."""
        if self.shared is not None and listen == "127.0.0.1:0":
            with watching(self.shared, self.watched, every_s=0.5):
                yield self.shared
            left = [job["id"] for job in ask_as_owner(self.shared, "GET", "/v1/jobs?state=pending")["jobs"]]
            if left:
                ask_as_owner(self.shared, "POST", "/v1/jobs/cancel", {"jobs": left})
            return
        home = self.place(name, mode=0o700)
        with (
            fleet.serving(self.peer, home, *options, listen=listen, environment=environment) as coordinator,
            watching(coordinator, self.watched, every_s=0.05),
        ):
            yield coordinator

    @contextmanager
    def started(self, home: Path, *words: object, **environment: str) -> Iterator[Started]:
        """Start a command that goes on, such as a worker; it is ended with the block."""
        said = self.folder / f"{home.name}-{words[0]}-{len(list(self.folder.iterdir()))}.said"
        with said.open("wb") as out:
            process = subprocess.Popen(
                self._command(words),
                env=self.environment(home, environment),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
            try:
                yield Started(process=process, said=said)
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def stoker(
        self, home: Path, *words: object, folder: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self._command(words),
            env=self.environment(home, environment),
            cwd=folder or self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )

    def _command(self, words: Sequence[object]) -> list[str]:
        return [str(self.peer.program("stoker")), *map(str, words)]

    def environment(self, home: Path, more: dict[str, str]) -> dict[str, str]:
        # A ledger of its own: the machine's is for its real devices.
        own = {"STOKER_HOME": str(home), "STOKER_LEDGER": str(self.folder / "ledger")}
        return harness.environment_with({**own, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A command that goes on."""

    process: subprocess.Popen[bytes]
    said: Path

    def wait_for(self, kind: str) -> dict[str, Any]:
        """Wait until it has told of something, in JSON, and return that."""
        found: list[dict[str, Any]] = []

        def is_told() -> bool:
            lines = self.said.read_text().splitlines(keepends=True)
            told = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
            found[:] = [one for one in told if one.get("kind") == kind]
            if self.process.poll() is not None and not found:
                raise NotAsExpected(f"a command ended:\n{self.said.read_text()[-1500:]}")
            return bool(found)

        wait_until(is_told, f"{kind} of {self.said.name}")
        return found[0]


def wait_until(claim: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until something is so. Raises `NotAsExpected` if that takes too long."""
    until_s = time.monotonic() + patience_s
    while not claim():
        if time.monotonic() > until_s:
            raise NotAsExpected(f"it did not come true in {patience_s:.0f} s: {what}")
        time.sleep(0.2)


@contextmanager
def watching(coordinator: Coordinator, watched: Watched, *, every_s: float) -> Iterator[None]:
    """Ask a coordinator for its health again and again, on new connections, and note the peak of its memory."""
    target = target_of(coordinator)
    # What its start takes, and that of its first answers, is no part of the case.
    for _ in range(WARM):
        attacker.health_s(target)
    for task in Path(f"/proc/{coordinator.pid}/task").iterdir():
        with suppress(OSError):
            os.sched_setscheduler(int(task.name), os.SCHED_RR, os.sched_param(1))
    Path(f"/proc/{coordinator.pid}/clear_refs").write_text("5")
    # In a process of its own: whatever this one does keeps no answer waiting.
    with attacker.subprocess_of("watch", user=os.geteuid(), target=target, every_s=every_s) as looking:
        try:
            yield
            watched.answers_s += json.loads(looking.communicate("enough\n", timeout=PATIENCE_S)[0])
            watched.peak_bytes = max(watched.peak_bytes, coordinator.rss_bytes("VmHWM"))
        finally:
            looking.kill()


def target_of(coordinator: Coordinator) -> dict[str, Any]:
    """Return how attackers reach a coordinator, over TCP or TLS."""
    kind = "tls" if coordinator.url.startswith("https") else "tcp"
    return {"kind": kind, "port": int(coordinator.url.rpartition(":")[2])}


def socket_of(coordinator: Coordinator) -> dict[str, Any]:
    return {"kind": "unix", "path": _served(coordinator.home)["socket"]}


@functools.cache
def _served(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "state" / "serve.json").read_text())
    return found


def ask_as_owner(coordinator: Coordinator, method: str, path: str, body: Any = None) -> Any:
    """Ask as the coordinator's own user, over its socket. Raises `NotAsExpected` if it does not answer well."""
    connection = UnixConnection(socket_of(coordinator)["path"], timeout=PATIENCE_S)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise NotAsExpected(f"{method} {path}: {answer.status} {text[:500]!r}")
    is_json = str(answer.getheader("content-type")).startswith("application/json")
    return json.loads(text) if is_json else text.decode("utf-8", "replace")


def state_of(coordinator: Coordinator, name: str) -> str:
    """Return the state of a job."""
    return str(ask_as_owner(coordinator, "GET", f"/v1/jobs/{name}")["job"]["state"])


@functools.cache
def token_for(coordinator: Coordinator, name: str, role: str = "submit") -> str:
    """Make a token, of which each person has one."""
    return str(ask_as_owner(coordinator, "POST", "/v1/tokens", {"name": name, "role": role})["token"])


@contextmanager
def attacking(do: str, *, user: int = attacker.NOBODY, **order: Any) -> Iterator[subprocess.Popen[str]]:
    """Start an attacker; it is killed with the block."""
    process = attacker.subprocess_of(do, user=user, before=ATTACKERS, **order)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said_by(process: subprocess.Popen[str]) -> Any:
    """Return the next thing that an attacker says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise NotAsExpected("an attacker ended before it had said what came of it")
    return json.loads(line)


def asked(target: dict[str, Any], requests: Sequence[dict[str, Any]], *, user: int = attacker.NOBODY) -> list[Any]:
    """Have an attacker ask requests; return a status and a text for each."""
    with attacking("ask", user=user, target=target, requests=requests) as process:
        return [said_by(process) for _ in requests]


def request(method: str, path: str, body: Any = None, *, token: str = "") -> dict[str, Any]:
    """Return a request for `asked`: its body is bytes, or anything else as JSON."""
    given: dict[str, Any] = {"method": method, "path": path, "token": token}
    if isinstance(body, bytes):
        given["base64"] = base64.b64encode(body).decode()
    elif body is not None:
        given["json"] = body
    return given


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
