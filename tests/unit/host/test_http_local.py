"""Requests over the Unix socket of a process of this user, and to nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from stoker.core.errors import NetworkFailed
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import FleetIdentity, HttpSettings, Request
from stoker.host.sockets import NamedSocket
from stoker.host.users import why_not_allowed
from tests.servers.little import LittleServer, Said

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="for Linux")

URL = "http://127.0.0.1:9/v1/health"
SYSTEM_PYTHON = "/usr/bin/python3"
LISTENS = """
import socket, sys
one = socket.socket(socket.AF_UNIX); one.bind(sys.argv[1]); one.listen(5); print("ready", flush=True)
taken, _ = one.accept(); print(taken.recv(100), flush=True)
"""


def transport(*paths: str, **more: object) -> Urllib3Transport:
    return Urllib3Transport(HttpSettings(fleet=FleetIdentity(sockets=paths), **more))  # type: ignore[arg-type]


def asked(through: Urllib3Transport, url: str = URL) -> bytes:
    with closing(through), closing(through.send(Request(url=url, headers={}))) as reply:
        return reply.read(100)


@pytest.fixture
def door(tmp_path: Path) -> NamedSocket:
    # Longer than the kernel takes as the name of a socket.
    return NamedSocket(str(tmp_path / ("long" * 30)), "9")


@pytest.fixture
def served(door: NamedSocket) -> Iterator[list[bytes]]:
    """What came at a door that answers every connection once."""
    heard: list[bytes] = []
    opened = door.open()
    assert opened is not None

    def serve() -> None:
        with suppress(OSError):
            while True:
                taken, _ = opened.listener.accept()
                with taken:
                    heard.append(taken.recv(4096))
                    taken.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nhere")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield heard
    opened.listener.shutdown(2)
    opened.listener.close()
    thread.join()


@pytest.mark.parametrize("url", [URL, "https://desk.example.org/v1/health"])
def test_every_request_goes_to_the_socket_whatever_the_address_and_proxies_say(
    door: NamedSocket, served: list[bytes], url: str
) -> None:
    proxies = {"all": "http://127.0.0.1:1"}
    assert asked(transport(door.path, proxies=proxies), url) == b"here"
    assert b"Host: " in served[0]


def test_the_first_socket_that_answers_is_used(door: NamedSocket, served: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    paths = (str(tmp_path / "none" / "9.sock"), str(tmp_path / "open" / "9.sock"), door.path)
    assert asked(transport(*paths)) == b"here"


def test_where_nothing_of_this_user_listens_no_port_is_tried(door: NamedSocket, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with LittleServer(lambda _asked: Said()) as impostor:
        with pytest.raises(NetworkFailed, match="no process of this user listens") as caught:
            asked(transport(door.path, str(tmp_path / "open" / "9.sock")), f"{impostor.url}/v1/health")
        assert not impostor.links
    assert "others have access to" in caught.value.message
    assert caught.value.data["reason"] == "refused"
    assert not os.path.exists(door.folder), "asking makes no folder"


@pytest.mark.skipif(
    bool(why_not_allowed()) or not os.path.exists(SYSTEM_PYTHON), reason="a second user, and a Python for it"
)
def test_a_process_of_another_user_at_the_socket_gets_no_byte() -> None:
    with tempfile.TemporaryDirectory(prefix="stoker-local-") as base:
        folder = Path(base, "run")
        folder.mkdir()
        os.chmod(base, 0o755)
        folder.chmod(0o777)
        words = [SYSTEM_PYTHON, "-I", "-c", LISTENS, str(folder / "9.sock")]
        other = subprocess.Popen(words, user=65534, group=65534, extra_groups=[], cwd="/", stdout=subprocess.PIPE)
        with other, ExitStack() as held:
            held.callback(other.kill)
            assert other.stdout is not None
            assert other.stdout.readline() == b"ready\n"
            # Bound while everybody could, closed since.
            folder.chmod(0o700)
            with pytest.raises(NetworkFailed, match="a process of another user listens at"):
                asked(transport(str(folder / "9.sock")))
            assert other.stdout.readline() == b"b''\n"
