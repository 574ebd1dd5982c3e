"""Stopping a download: Ctrl-C once and twice, TERM, kill -9. What came is kept, and the same command goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.servers import habits as bad
from tests.servers.faulty import FaultyServer, Version, well
from tests.servers.hub import FakeHub, Served
from tests.system.fetching import MIB, fetching_shell, sha256_of, some_bytes
from tests.system.shell import PATIENCE_S, Shell, finish, wait_until

DATA = some_bytes(4 * MIB)


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(Version(data=DATA)) as server:
        yield server


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return fetching_shell(tmp_path)


def start_stalled(shell: Shell, server: FaultyServer, *words: str) -> subprocess.Popen[str]:
    """Start a download, and give it once 2 MiB of it have come and no more will."""
    reached = threading.Event()
    server.become(bad.stalling(2 * MIB, reached))
    process = shell.start("fetch", server.url, *words)
    assert reached.wait(PATIENCE_S), process.communicate()
    part = shell.folder / "file.part"
    wait_until(lambda: part.exists() and part.stat().st_size == 2 * MIB)
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_keeps_what_came_and_the_same_command_goes_on(
    shell: Shell, server: FaultyServer, number: signal.Signals, code: int
) -> None:
    process = start_stalled(shell, server)
    process.send_signal(number)
    done = finish(process)
    assert done.code == code
    assert "stopping" in done.err
    assert "hint: the same command continues where this one stopped" in done.err
    assert not (shell.folder / "file").exists()
    server.become(well)
    again = shell.stoker("fetch", server.url, "--json").objects()
    assert (again[0]["resume"], again[0]["start"]) == (True, 2 * MIB)
    assert (again[-1]["bytes_resumed"], again[-1]["bytes_from_network"]) == (2 * MIB, 2 * MIB)
    assert (shell.folder / "file").read_bytes() == DATA


def test_a_killed_download_goes_on_as_well(shell: Shell, server: FaultyServer) -> None:
    process = start_stalled(shell, server)
    process.kill()
    process.communicate()
    server.become(well)
    done = shell.stoker("fetch", server.url, "--sha256", sha256_of(DATA))
    assert done.code == 0, done.err
    assert "resumed" in done.out
    assert (shell.folder / "file").read_bytes() == DATA
    assert sorted(path.name for path in shell.folder.iterdir()) == ["file"]


def test_a_stream_of_json_ends_with_the_interruption(shell: Shell, server: FaultyServer) -> None:
    process = start_stalled(shell, server, "--json")
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 130
    last = done.objects()[-1]
    assert (last["phase"], last["error"], last["exit_code"]) == ("failed", "cancelled", 130)


def test_a_second_ctrl_c_ends_at_once_whatever_goes_on(shell: Shell, server: FaultyServer) -> None:
    # It hangs where the first signal can't reach: in the code that tells of progress.
    script = (
        "import sys, time, signal\n"
        "from stoker.transfer.download import download_events\n"
        "def hang(*_a, **_k):\n"
        "    print('hangs', flush=True)\n"
        "    while True: time.sleep(0.05)\n"
        "download_events.DownloadEvents.start = hang\n"
        "from stoker.__main__ import main\n"
        "sys.exit(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", script, "fetch", server.url],
        cwd=shell.folder,
        env=shell.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "hangs\n"
    process.send_signal(signal.SIGINT)
    assert "stopping" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130


def test_many_files_at_once_stop_together(tmp_path: Path) -> None:
    stalls = threading.Event()

    def slow(asked, answer):
        if asked.at_cdn:
            stalls.set()
            answer.cuts_at = MIB
            ended.wait(PATIENCE_S)
        return answer

    ended = threading.Event()
    with FakeHub() as hub:
        files = {f"{number}.bin": Served(some_bytes(2 * MIB, number), is_large=True) for number in range(6)}
        hub.repository("org/repo").commit({**files, "small": b"x"})
        hub.tamper = slow
        shell = fetching_shell(tmp_path, hub.endpoint)
        process = shell.start("fetch", "org/repo", "-j", "4")
        assert stalls.wait(PATIENCE_S)
        process.send_signal(signal.SIGINT)
        done = finish(process)
        ended.set()
        assert done.code == 130, done.err
        hub.tamper = None
        assert shell.stoker("fetch", "org/repo").code == 0


def test_a_terminal_shows_one_display_with_rate_and_time_left(shell: Shell, server: FaultyServer) -> None:
    seen_enough = threading.Event()
    pieces = iter(range(1000))

    def between() -> None:
        # The last piece waits until the screen has shown where the transfer is.
        seen_enough.wait(PATIENCE_S if next(pieces) == 12 else 0.03)

    server.become(bad.in_pieces(256 * 1024, between))

    def look(seen: bytes) -> None:
        if b"left" in seen:
            seen_enough.set()

    done = shell.at_a_terminal("fetch", server.url, when=look)
    text = done.out
    assert done.code == 0, text
    assert "MiB/s" in text
    assert " of 4.0 MiB" in text
    assert "━" in text
    assert "✓ file" in text
    assert str(shell.folder / "file") in text


def test_progress_comes_at_most_four_times_a_second(shell: Shell, server: FaultyServer) -> None:
    done_waiting = threading.Event()
    server.become(bad.in_pieces(128 * 1024, lambda: done_waiting.wait(0.03)))
    done = shell.stoker("fetch", server.url, "--json")
    told = [json.loads(line) for line in done.out.splitlines()]
    progress = [event for event in told if event["phase"] == "progress"]
    assert len(progress) >= 2
    assert all(later["ts"] - sooner["ts"] > 0.2 for sooner, later in pairwise(progress))
    assert all(sooner["downloaded"] <= later["downloaded"] for sooner, later in pairwise(progress))
