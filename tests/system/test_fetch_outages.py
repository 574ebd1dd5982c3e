"""Downloads from a real server process that is killed in the middle and comes back later."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.clock import SystemClock
from tests.servers.slow_file import content
from tests.system.fetching import fetching_shell
from tests.system.shell import Shell

ROOT = Path(__file__).parents[2]
SIZE = 6 << 20
CLOCK = SystemClock()


class Server:
    """A server that can be away."""

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/file"

    def start(self) -> None:
        words = [sys.executable, "-m", "tests.servers.slow_file", str(self.port), str(SIZE)]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.kill()


def events_of(fetching: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert fetching.stdout is not None
    return map(json.loads, fetching.stdout)


def fetch_through_an_outage(shell: Shell, server: Server, *, outage_s: float) -> list[dict[str, Any]]:
    """Kill the server in the middle of a file and start it again after a while; return the news since then."""
    with shell.start("fetch", server.url, "--json") as fetching:
        try:
            events = events_of(fetching)
            next(one for one in events if one["phase"] == "progress" and one["downloaded"] > 1 << 20)
            server.kill()
            away_s = CLOCK.monotonic_s()
            seen: list[dict[str, Any]] = []
            # Three refusals ended a download once.
            while (
                len([one for one in seen if one.get("reason") == "refused"]) < 3
                or CLOCK.monotonic_s() < away_s + outage_s
            ):
                seen.append(next(events))
            server.start()
            return [*seen, *events]
        finally:
            fetching.kill()


@pytest.mark.parametrize("outage_s", [0.0, pytest.param(60.0, marks=pytest.mark.slow)], ids=["three-refusals", "60s"])
def test_a_download_outlives_an_outage_of_its_server(tmp_path: Path, server: Server, outage_s: float) -> None:
    shell = fetching_shell(tmp_path)
    events = fetch_through_an_outage(shell, server, outage_s=outage_s)
    done = events[-1]
    assert (done["phase"], done["bytes"], done["bytes_from_network"]) == ("done", SIZE, SIZE)
    assert (shell.folder / "file").read_bytes() == content(SIZE)
    assert [path.name for path in shell.folder.iterdir()] == ["file"]


def test_a_server_that_stays_away_ends_a_download_that_says_what_is_kept(tmp_path: Path, server: Server) -> None:
    shell = fetching_shell(tmp_path)
    with shell.start("fetch", server.url, "--timeout", "2") as fetching:
        part = shell.folder / "file.part"
        while not part.exists() or part.stat().st_size < 1 << 20:
            CLOCK.sleep(0.01)
        server.kill()
        out, err = fetching.communicate()
    assert fetching.returncode == 14
    assert "refused the connection; attempt 2, retry in" in out
    assert "downloaded data is kept (" in err.splitlines()[-1]
    assert err.splitlines()[-1].endswith("of 6.0 MiB): the same command resumes")
    server.start()
    done = shell.stoker("fetch", server.url, "--json")
    assert done.code == 0, done.err
    assert done.objects()[-1]["bytes_resumed"] >= 1 << 20
