"""Forks of a warm process: they outlive it and its owner, report how they end, and are never made of old code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.core.errors import ProcessLost, Unavailable
from stoker.host import fork_server
from stoker.host.fork_server import ForkServer
from stoker.host.identity import Liveness, is_alive
from tests.others import suspend

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a fork server needs Linux")

SERVER = """
import os, sys, time
sys.path.insert(0, {folder!r})
import recipes
from stoker.host.fork_server import serve_if_asked

def run():
    words = sys.stdin.readline().split()
    if words[:1] == ["exit"]:
        sys.exit(int(words[1]))
    if words[:1] == ["raise"]:
        raise ValueError("as told")
    if words[:1] == ["wait"]:
        time.sleep(60)
    print(os.getpid() == os.getsid(0), sorted(os.listdir("/proc/self/fd"))[:-1], recipes.NAME, flush=True)
    return 0

serve_if_asked(run)
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[[], ForkServer]:
    (tmp_path / "recipes.py").write_text("NAME = 'first'\n")
    (tmp_path / "server.py").write_text(SERVER.format(folder=str(tmp_path)))
    argv = (sys.executable, "-P", str(tmp_path / "server.py"))
    return lambda: ForkServer.start(argv, cwd=tmp_path, env=dict(os.environ))


def ended(server: ForkServer, words: str, said: Path) -> str:
    with open(said, "wb") as output:
        child = server.fork(output)
    assert child is not None
    with child.stdin as pipe:
        pipe.write(words.encode())
    return str(child.wait(20))


def test_children_are_their_own_sessions_and_get_no_descriptor_of_others(start, tmp_path: Path):
    with start() as server:
        with open(tmp_path / "other", "wb") as output:
            other = server.fork(output)
        assert other is not None
        assert ended(server, "\n", tmp_path / "said") == "exit status 0"
        assert (tmp_path / "said").read_text() == "True ['0', '1', '2'] first\n"
        assert ended(server, "exit 7\n", tmp_path / "said") == "exit status 7"
        assert ended(server, "raise\n", tmp_path / "said") == "exit status 1"
        assert "ValueError: as told" in (tmp_path / "said").read_text()
        assert other.poll() is None
        other.stop(grace_s=0.0)
        other.stdin.close()
        assert other.wait(0).signal in {signal.SIGTERM, signal.SIGKILL}


def test_a_child_outlives_its_server_killed_or_closed(start, tmp_path: Path):
    children = []
    for way in ("kill", "close"):
        server = start()
        with open(tmp_path / "said", "wb") as output:
            child = server.fork(output)
        assert child is not None
        with child.stdin as pipe:
            pipe.write(b"wait\n")
        if way == "kill":
            server._process.kill()
        server.close()
        assert child.poll() is None
        assert is_alive(child.identity) is Liveness.ALIVE
        children.append((child, server))
    for (child, server), end in zip(children, ("unknown exit status", "signal 9 (SIGKILL)"), strict=True):
        os.kill(child.identity.pid, signal.SIGKILL)
        assert str(child.wait(20)) == end
        server._process.wait(20)


def test_a_server_ends_with_its_owner(start, tmp_path: Path):
    code = (
        "import os, sys; from stoker.host.fork_server import ForkServer\n"
        f"server = ForkServer.start((sys.executable, '-P', {str(tmp_path / 'server.py')!r}), cwd='/', env=os.environ)\n"
        "child = server.fork(open(os.devnull, 'wb')); print(server._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    owner = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pid, until_s = int(owner.stdout), time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and "(stoker-forks) Z" not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_old_code_is_not_forked(start, tmp_path: Path):
    with start() as server:
        assert ended(server, "\n", tmp_path / "said") == "exit status 0"
        (tmp_path / "recipes.py").write_text("NAME = 'second one'\n")
        with open(tmp_path / "said", "wb") as output:
            assert server.fork(output) is None
    with start() as server:
        ended(server, "\n", tmp_path / "said")
        assert "second one" in (tmp_path / "said").read_text()


def test_a_fork_that_the_system_refuses_leaves_the_server_and_its_children_as_they_are(start, tmp_path: Path):
    full = "import os, errno\nfork = os.fork\ndef refused():\n    os.fork = fork\n"
    full += "    raise OSError(errno.EAGAIN, 'no more processes')\n"
    with start() as server:
        (tmp_path / "server.py").write_text(full + "os.fork = refused\n" + SERVER.format(folder=str(tmp_path)))
    with start() as server, open(tmp_path / "said", "wb") as output:
        with pytest.raises(Unavailable, match="no more processes"):
            server.fork(output)
        assert ended(server, "exit 3\n", tmp_path / "said") == "exit status 3"


def test_a_child_is_watched_by_a_descriptor_of_any_number(start, tmp_path: Path):
    import fcntl

    with start() as server:
        with open(tmp_path / "said", "wb") as output:
            child = server.fork(output)
        assert child is not None
        high = fcntl.fcntl(child._exit_fd, fcntl.F_DUPFD_CLOEXEC, 1100)
        try:
            watched = fork_server.IndependentChild(child.identity, child.stdin, high)
        except BaseException:
            os.close(high)
            raise
        assert watched.poll() is None
        child.stdin.close()
        assert watched.wait(20).status == 0


def test_a_server_that_dies_is_reported_with_its_last_line(tmp_path: Path):
    argv = (sys.executable, "-S", "-c", "raise SystemExit('no such machine')")
    server = ForkServer.start(argv, cwd=tmp_path, env=dict(os.environ))
    server._process.wait()
    with open(tmp_path / "said", "wb") as output, pytest.raises(ProcessLost, match="no such machine"):
        server.fork(output)
    assert not server.is_running()
    server.close()


def test_a_server_that_hangs_delays_nobody_for_long(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fork_server, "_ANSWER_S", 0.2)
    monkeypatch.setattr(fork_server, "_STOP_WAIT_S", 0.2)
    server = start()
    with open(tmp_path / "said", "wb") as output:
        child = server.fork(output)
        assert child is not None
        suspend(server._process.pid)
        with pytest.raises(ProcessLost, match="does not answer"):
            server.fork(output)
    # It has ended, and its parent does not see it.
    child.stop(grace_s=0.0)
    child.stdin.close()
    assert child.poll() is None
    server.kill()
    assert not server.is_running()
    assert str(child.wait(20)) == "unknown exit status"


def test_a_server_ends_with_its_last_child(start, tmp_path: Path):
    server = start()
    with open(tmp_path / "said", "wb") as output:
        child = server.fork(output)
    assert child is not None
    server.close()
    assert server.is_running()
    with child.stdin as pipe:
        pipe.write(b"exit 3\n")
    assert str(child.wait(20)) == "exit status 3"
    server._process.wait(20)


def test_code_that_changed_during_the_imports_is_not_forked(start, tmp_path: Path):
    with start() as server:
        # As if it had been written after the server was started and before it was imported.
        os.utime(tmp_path / "recipes.py", ns=(time.time_ns(), time.time_ns() + 60 * 10**9))
        with open(tmp_path / "said", "wb") as output:
            assert server.fork(output) is None
