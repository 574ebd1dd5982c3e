"""`stoker serve` as people start and stop it."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from stoker.host.sockets import NamedSocket
from tests.servers.unix_http import UnixConnection, connect
from tests.system.shell import PATIENCE_S, Done, Shell, finish, wait_until

CLUSTER = "nodes:\n  - { name: desk, host: desk.local }\n"


class Served:
    """A coordinator that was started and listens."""

    def __init__(self, process: subprocess.Popen[str], ready: dict[str, Any]) -> None:
        self.process = process
        self.ready = ready
        self.url: str = ready["url"]

    def ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """Ask over its socket."""
        with closing(UnixConnection(self.ready["socket"], PATIENCE_S)) as line:
            line.request(method, path, body)
            answer = line.getresponse()
            assert answer.status == 200, answer.read()
            return json.loads(answer.read())

    def get(self, path: str) -> Any:
        return self.ask("GET", path)

    def post(self, path: str, token: str) -> Any:
        """Ask over TCP, with a token."""
        request = urllib.request.Request(f"{self.url}{path}", data=b"", method="POST")
        request.add_header("X-Operator-Token", token)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.loads(answer.read())

    def token(self) -> str:
        return Path(self.ready["token_file"]).read_text().strip()

    def end(self, number: signal.Signals = signal.SIGTERM) -> Done:
        self.process.send_signal(number)
        return finish(self.process)


@pytest.fixture
def started(shell: Shell) -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def serve(shell: Shell, started: list[subprocess.Popen[str]], *words: object) -> Served:
    process = shell.start("serve", "--listen", "127.0.0.1:0", "--json", *words)
    started.append(process)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    return Served(process, json.loads(line))


def test_it_serves_says_where_and_ends_in_order(shell: Shell, started):
    served = serve(shell, started)
    assert served.get("/v1/health")["status"] == "ok"
    told = json.loads((shell.home / "state" / "serve.json").read_text())
    assert told["url"] == served.url
    assert told["owner"]["pid"] == served.process.pid
    token_file = Path(told["token_file"])
    assert token_file.stat().st_mode & 0o777 == 0o600
    socket_file = Path(told["socket"])
    assert told["socket"] == served.ready["socket"]
    assert socket_file.name == f"{served.url.rpartition(':')[2]}.sock"
    assert socket_file.parent.stat().st_mode & 0o777 == 0o700
    ended = served.end()
    assert ended.code == 143
    assert not socket_file.exists()
    assert not (shell.home / "state" / "serve.json").exists()
    assert "Traceback" not in ended.err
    assert ended.err.endswith("\nstopped\n")
    # The token and the queue are those of the home: the next one has the same.
    token = token_file.read_text()
    again = serve(shell, started)
    assert again.token() == token.strip()
    assert again.end(signal.SIGINT).code == 130


def test_the_launcher_beside_it_ends_first_and_gives_its_pools_back(shell: Shell, started):
    pools = shell.folder / "cluster.yaml"
    pools.write_text("pools: [{name: here, backend: local, each: {cpu_cores: 1}, max: 1}]\n")
    words = ("--listen", "0.0.0.0:0", "--advertise", "127.0.0.1", "--cluster", str(pools))

    def watcher() -> str:
        done = shell.stoker("pools", "--json")
        return str(done.objects()[0].get("watcher", done.out)) if done.code == 0 else ""

    served = serve(shell, started, *words, "--launch")
    wait_until(lambda: bool(watcher()))
    ended = served.end()
    assert (ended.code, "can't be reached" in ended.err, "problem" in ended.err) == (143, False, False), ended.err
    serve(shell, started, *words)
    wait_until(lambda: shell.stoker("pools", "--json").code == 0)
    assert watcher() == ""


def test_nothing_listens_beyond_loopback_without_tls(shell: Shell, started):
    served = serve(shell, started, "--listen", "0.0.0.0:0", "--advertise", "desk.example.org")
    assert served.url.startswith("https://desk.example.org:")
    told = json.loads((shell.home / "state" / "serve.json").read_text())
    port = int(told["url"].rpartition(":")[2])
    assert told["url"] == f"https://127.0.0.1:{port}"
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as line, suppress(ConnectionError):
        line.sendall(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"HTTP" not in line.recv(100)
    trust = ssl.create_default_context(cafile=told["ca_file"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as line,
        trust.wrap_socket(line, server_hostname="desk.example.org") as secured,
    ):
        secured.sendall(b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (secured.version(), secured.recv(12)) == ("TLSv1.3", b"HTTP/1.1 401")
    # Commands of this home use its socket by themselves.
    assert shell.stoker("machines").code == 0
    assert "stoker join" in shell.stoker("machines", "invite").out
    assert served.end().code == 143


def test_a_folder_that_another_user_has_taken_is_passed_over(shell: Shell, started):
    taken = shell.folder / "taken"
    taken.mkdir(mode=0o777)
    shell.env["STOKER_RUNTIME"] = str(taken)
    served = serve(shell, started)
    assert Path(served.ready["socket"]).parent == shell.home / "state" / "sockets"
    assert shell.stoker("jobs").code == 0
    ended = served.end()
    assert f"others have access to {taken}" in ended.err
    assert not Path(served.ready["socket"]).exists()


def test_what_a_killed_coordinator_left_is_replaced_and_a_live_one_s_socket_is_not(shell: Shell, started):
    shell.env["STOKER_RUNTIME"] = str(shell.folder / "run")
    first = serve(shell, started)
    port = first.url.rpartition(":")[2]
    first.process.kill()
    finish(first.process)
    assert Path(first.ready["socket"]).exists()
    again = serve(shell, started, "--listen", f"127.0.0.1:{port}")
    assert again.ready["socket"] == first.ready["socket"]
    assert again.get("/v1/jobs")["jobs"] == []
    assert again.end().code == 143
    opened = NamedSocket(shell.env["STOKER_RUNTIME"], port).open()
    assert opened is not None
    with opened.listener:
        other = serve(shell, started, "--listen", f"127.0.0.1:{port}")
        assert Path(other.ready["socket"]).parent == shell.home / "state" / "sockets"
        assert "another coordinator of this user listens at" in other.end().err
        assert Path(first.ready["socket"]).exists(), "it belongs to the one that listens there"


def test_one_coordinator_serves_a_database(shell: Shell, started):
    serve(shell, started)
    second = shell.stoker("serve", "--listen", "127.0.0.1:0")
    assert second.code == 37
    assert "a coordinator serves" in second.err


def test_a_port_in_use_is_said_to_be(shell: Shell):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = shell.stoker("serve", "--listen", f"127.0.0.1:{port}")
    assert done.code == 16
    assert f"127.0.0.1:{port} is in use" in done.err
    assert "--listen 127.0.0.1:0" in done.err


def test_files_are_read_again_and_faults_leave_everything_as_it_was(shell: Shell, started):
    cluster = shell.folder / "cluster.yaml"
    cluster.write_text(CLUSTER)
    served = serve(shell, started, "--cluster", cluster, "--system-a")
    assert served.ready["notes"] == ["desk: new"]
    cluster.write_text(CLUSTER + "  - { name: lab, host: lab.local }\n")
    token = served.token()
    assert served.post("/v1/reload?dry_run=1", token)["notes"] == ["lab: new"]
    assert served.post("/v1/reload", token)["changed"] == ["lab"]
    assert served.post("/v1/manifest/reload", token)["changed"] == []
    cluster.write_text("nodes:\n  - { name: desk }\n")
    with pytest.raises(urllib.error.HTTPError) as caught:
        served.post("/v1/reload", token)
    assert caught.value.code == 422
    body = json.loads(caught.value.read())
    assert body["error"] == "cluster_faults"
    assert "cluster.yaml:2" in json.dumps(body)
    served.process.send_signal(signal.SIGHUP)
    assert served.process.stderr is not None
    wait_until(lambda: "reload: " in served.process.stderr.readline())  # type: ignore[union-attr]
    cluster.write_text(CLUSTER)
    wait_until(lambda: served.post("/v1/reload", token)["changed"] in (["lab"], []))
    assert served.end().code == 143


def test_a_second_signal_ends_it_at_once(shell: Shell, started):
    served = serve(shell, started)
    # An open request keeps the first signal waiting.
    listening = connect(served.ready["socket"])
    listening.sendall(b"POST /v1/claims HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 10\r\n\r\n")
    os.kill(served.process.pid, signal.SIGTERM)
    assert served.process.stderr is not None
    wait_until(lambda: "stopping" in served.process.stderr.readline())  # type: ignore[union-attr]
    os.kill(served.process.pid, signal.SIGTERM)
    assert finish(served.process).code == 143
    listening.close()


def test_what_was_answered_is_there_after_a_kill(shell: Shell, started):
    served = serve(shell, started)
    hello = {
        "worker": "desk",
        "incarnation": "incarnation-1",
        "capability": {"hostname": "desk", "os": "linux", "arch": "x86_64", "cpu_cores": 4},
        "capability_digest": "0" * 64,
    }
    served.ask("POST", "/v1/hello", json.dumps(hello).encode())
    served.process.kill()
    finish(served.process)
    process = shell.start("serve", "--listen", "127.0.0.1:0")
    started.append(process)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(4)]
    url, path = said[0].removeprefix("serving ").partition(",")[0], said[2].removeprefix("socket ").strip()
    again = Served(process, {"url": url, "socket": path})
    assert [machine["name"] for machine in again.get("/v1/machines")["machines"]] == ["desk"]
    ended = again.end()
    assert ended.code == 143
    assert "operator's token in" in said[3]
    assert f"stoker work --join {again.url}" in ended.err
