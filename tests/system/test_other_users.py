"""Another user of the same machine: the coordinator's port and names taken over, and its door tried. As root."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.host.network import listen_at
from stoker.host.users import why_not_allowed
from tests.servers.attacker import NOBODY, SYSTEM_PYTHON, subprocess_of
from tests.system.fleet_desk import FleetDesk
from tests.system.shell import PATIENCE_S, Shell, finish, wait_until

TOKEN = "the-operators-token-of-this-test"

pytestmark = pytest.mark.skipif(
    bool(why_not_allowed()) or not os.path.exists(SYSTEM_PYTHON),
    reason=f"programs of other users: {why_not_allowed() or 'no Python that everybody may use'}",
)

GETS = ("/v1/health", "/v1/jobs", "/v1/status", "/metrics", "/v1/events")
POSTS = ("/v1/hello", "/v1/claims", "/v1/renewals", "/v1/job/claim", "/v1/uploads", "/v1/jobs", "/v1/tokens")
"""What the coordinator's own user may ask."""


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that every user may enter and write to."""
    made = Path(tempfile.mkdtemp(prefix="stoker-users-"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


@contextmanager
def started(shell: Shell, *words: object) -> Iterator[subprocess.Popen[str]]:
    """Start a command; it is ended with the block."""
    process = shell.start(*words)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        finish(process)


def line_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def until_it_says(process: subprocess.Popen[str], kind: str) -> dict[str, Any]:
    while True:
        said = line_of(process)
        if said.get("kind") == kind:
            return said


def nothing_is_reached(home: Shell, url: str) -> None:
    """Have a worker and commands of a home try an address, and see what they say."""
    with started(home, "work", "--join", url, "--name", "second", "--json") as second:
        said = json.dumps(until_it_says(second, "away"))
        assert "no process of this user listens" in said
        assert f"belongs to user {NOBODY}" in said
    for words in (("jobs", "--at", url), ("submit", "--at", url, "--", "true")):
        done = home.stoker(*words)
        assert done.code == 34, done
        assert "a coordinator of another user is reached over TLS" in done.err


def test_an_impostor_on_port_and_socket_gets_no_byte_and_starts_nothing(base: Path, index: Path):
    homes = {name: Shell(base / name, index=index) for name in ("desk", "other")}
    taken, heard, mark = base / "taken", base / "heard", base / "mark"
    taken.mkdir()
    taken.chmod(0o777)
    os.chown(taken, NOBODY, NOBODY)
    for home in homes.values():
        # The folder for sockets was there first, and belongs to another user.
        home.env |= {"STOKER_RUNTIME": str(taken), "STOKER_OPERATOR_TOKEN": TOKEN}
    desk, other = homes["desk"], homes["other"]
    # Held, and never listened on: nobody else is given it while neither of them is there.
    free = listen_at("127.0.0.1", 0)
    port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    serve = ("serve", "--listen", f"127.0.0.1:{port}", "--lease", "6s", "--heartbeat", "0.5s", "--json")
    with free, ExitStack() as held:
        serving = desk.start(*serve)
        assert line_of(serving)["socket"].startswith(str(desk.home))
        working = held.enter_context(started(desk, "work", "--name", "victim", "--json"))
        until_it_says(working, "joined")
        serving.kill()
        serving.communicate()

        impostor = subprocess_of(
            "impostor", port=port, path=str(taken / f"{port}.sock"), heard=str(heard), mark=str(mark)
        )
        try:
            assert impostor.stdout is not None
            assert impostor.stdout.readline() == '"ready"\n'
            nothing_is_reached(other, url)
            assert desk.stoker("jobs", "--at", url).code == 34
            assert heard.read_bytes() == b""
        finally:
            impostor.kill()
            impostor.communicate()

        # It comes back under its port, and the worker that waited takes up its work.
        serving = desk.start(*serve)
        line_of(serving)
        held.callback(finish, serving)
        held.callback(serving.send_signal, signal.SIGTERM)
        with FleetDesk(url, desk.home) as fleet:
            script = "env > seen; cat /proc/$PPID/environ >> seen"
            fleet.submit("after", "/bin/sh", "-c", script, folder=desk.folder)
            wait_until(lambda: fleet.states()["after"] == ("completed", "victim"))
        assert TOKEN.encode() not in (desk.folder / "seen").read_bytes()
    assert heard.read_bytes() == b""
    assert not mark.exists()


def test_another_user_learns_only_that_it_serves(base: Path, index: Path):
    shell = Shell(base, index=index)
    with started(shell, "serve", "--listen", "127.0.0.1:0", "--json") as serving:
        ready = line_of(serving)
        asked = [("GET", path) for path in GETS] + [("POST", path) for path in POSTS]
        requests: list[dict[str, Any]] = [
            {"method": method, "path": path} | ({"json": {}} if method == "POST" else {}) for method, path in asked
        ]
        tcp = {"kind": "tcp", "port": int(ready["url"].rpartition(":")[2])}
        stranger = subprocess_of("ask", target=tcp, requests=requests)
        out, _ = stranger.communicate(timeout=PATIENCE_S)
        found = {
            f"{method} {path}": json.loads(line)[0]
            for (method, path), line in zip(asked, out.splitlines(), strict=True)
        }
        beside = subprocess_of("ask", target={"kind": "unix", "path": ready["socket"]}, requests=requests[:1])
        out, _ = beside.communicate(timeout=PATIENCE_S)
        assert json.loads(out) == [0, "PermissionError"]
        assert found.pop("GET /v1/health") == 200
        assert found.pop("POST /v1/job/claim") == 404, "system A's routes are off"
        assert set(found.values()) == {401}, found
        assert shell.stoker("status").code == 0
