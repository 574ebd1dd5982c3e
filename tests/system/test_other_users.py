"""Another user of the same machine: the coordinator's port and names taken over, and its door tried. As root."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.host.other_user import why_not_allowed
from tests.system.fleet_desk import FleetDesk
from tests.system.shell import PATIENCE_S, Shell, finish, wait_until

SYSTEM_PYTHON = "/usr/bin/python3"
ATTACKER = 65534
TOKEN = "the-operators-token-of-this-test"

pytestmark = pytest.mark.skipif(
    bool(why_not_allowed()) or not os.path.exists(SYSTEM_PYTHON),
    reason=f"programs of other users: {why_not_allowed() or 'no Python that everybody may use'}",
)

# Answers whatever is asked as a coordinator would that hands out a job, at a TCP port and at a Unix socket.
IMPOSTOR = r"""
import json, socket, sys, threading
port, path, heard, mark = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
welcome = {"worker": "victim", "generation": 1, "heartbeat_s": 1, "lease_s": 9, "start_s": 9, "claim_wait_s": 1,
           "server_s": 0, "version": "x"}
grant = {"job": "0" * 64, "attempt": 1, "epoch": 1, "generation": 1, "name": "evil", "recipe": "command",
         "args": {"argv": ["touch", mark]}, "identity": {"argv": ["touch", mark]}, "folder": "/",
         "lease_s": 9, "start_s": 9}
renewed = {"lease_s": 9, "heartbeat_s": 1, "generation": 1, "server_s": 0}
claimed = {"grants": [grant], "generation": 1}
answers = {"/v1/hello": welcome, "/v1/claims": claimed, "/v1/renewals": renewed}
def serve(taken):
    with taken, open(heard, "ab") as log:
        log.write(b"connected\n"); log.flush()
        while data := taken.recv(65536):
            log.write(data); log.flush()
            said = json.dumps(answers.get(data.split()[1].decode(), {})).encode()
            taken.sendall(b"HTTP/1.1 200 OK\r\nx-stoker-protocol: 1\r\ncontent-type: application/json\r\n"
                          b"content-length: %d\r\n\r\n" % len(said) + said)
def listen(one):
    one.listen(100)
    while True:
        threading.Thread(target=serve, args=(one.accept()[0],), daemon=True).start()
tcp = socket.socket(); tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); tcp.bind(("127.0.0.1", port))
unix = socket.socket(socket.AF_UNIX); unix.bind(path)
threading.Thread(target=listen, args=(unix,), daemon=True).start()
open(heard, "wb").close()
print("ready", flush=True)
listen(tcp)
"""
# Tries everything that the coordinator's own user may, over TCP and over its socket.
STRANGER = r"""
import http.client, json, socket, sys
port, path = int(sys.argv[1]), sys.argv[2]
found = {}
for method, what in (("GET", "/v1/health"), ("GET", "/v1/jobs"), ("GET", "/v1/status"), ("GET", "/metrics"),
                     ("GET", "/v1/events"), ("POST", "/v1/hello"), ("POST", "/v1/claims"), ("POST", "/v1/renewals"),
                     ("POST", "/v1/job/claim"), ("POST", "/v1/uploads"), ("POST", "/v1/jobs"), ("POST", "/v1/tokens")):
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    line.request(method, what, b"{}" if method == "POST" else None, {"Content-Type": "application/json"})
    found[f"{method} {what}"] = line.getresponse().status
    line.close()
link = socket.socket(socket.AF_UNIX)
try:
    link.connect(path)
    found["socket"] = "connected"
except OSError as error:
    found["socket"] = type(error).__name__
print(json.dumps(found))
"""


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that every user may enter and write to."""
    made = Path(tempfile.mkdtemp(prefix="stoker-users-"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


def as_attacker(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SYSTEM_PYTHON, "-I", "-c", *map(str, words)],
        user=ATTACKER,
        group=ATTACKER,
        extra_groups=[],
        cwd="/",
        env={},
        stdout=subprocess.PIPE,
        text=True,
    )


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
        assert f"belongs to user {ATTACKER}" in said
    for words in (("jobs", "--at", url), ("submit", "--at", url, "--", "true")):
        done = home.stoker(*words)
        assert done.code == 34, done
        assert "a coordinator of another user is reached over TLS" in done.err


def test_an_impostor_on_port_and_socket_gets_no_byte_and_starts_nothing(base: Path, index: Path):
    homes = {name: Shell(base / name, index=index) for name in ("desk", "other")}
    taken, heard, mark = base / "taken", base / "heard", base / "mark"
    taken.mkdir()
    taken.chmod(0o777)
    os.chown(taken, ATTACKER, ATTACKER)
    for home in homes.values():
        # The folder for sockets was there first, and belongs to another user.
        home.env |= {"STOKER_RUNTIME": str(taken), "STOKER_OPERATOR_TOKEN": TOKEN}
    desk, other = homes["desk"], homes["other"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    serve = ("serve", "--listen", f"127.0.0.1:{port}", "--lease", "6s", "--heartbeat", "0.5s", "--json")
    with ExitStack() as held:
        serving = desk.start(*serve)
        assert line_of(serving)["socket"].startswith(str(desk.home))
        working = held.enter_context(started(desk, "work", "--name", "victim", "--json"))
        until_it_says(working, "joined")
        serving.kill()
        serving.communicate()

        impostor = as_attacker(IMPOSTOR, port, taken / f"{port}.sock", heard, mark)
        try:
            assert impostor.stdout is not None
            assert impostor.stdout.readline() == "ready\n"
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
        stranger = as_attacker(STRANGER, ready["url"].rpartition(":")[2], ready["socket"])
        out, _ = stranger.communicate(timeout=PATIENCE_S)
        found = json.loads(out)
        assert found.pop("GET /v1/health") == 200
        assert found.pop("socket") == "PermissionError"
        assert found.pop("POST /v1/job/claim") == 404, "system A's routes are off"
        assert set(found.values()) == {401}, found
        assert shell.stoker("status").code == 0
