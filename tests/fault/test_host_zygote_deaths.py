"""Kill -9 of either side: nobody outlives the one who ordered the work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from stoker.core.errors import ProcessLost
from stoker.host.zygote import Zygote
from tests.others import suspend
from tests.unit.host.real_processes import is_running, wait_until

ENTRIES = "tests.unit.host.forked_entries"
STUBBORN = {"stays": True, "descendants": [[], ["ignores"], ["ignores", "own_session"], ["ignores", "grandchild"]]}
WAIT_S = 20.0

PARENT = f"""
import json, os, sys
from stoker.host.zygote import Zygote
zygote = Zygote.start(sys.executable, ["{ENTRIES}"], env=dict(os.environ), cwd="/", sys_path=sys.path)
pids = [zygote.pid]
for _ in range(2):
    forked = zygote.fork("{ENTRIES}:leave_family", {STUBBORN!r})
    (seen,) = forked.read_events(20)
    pids += [seen["pid"], *seen["descendants"]]
if sys.argv[1] == "forked":
    # Somebody else keeps our end of the channel open.
    pids.append(os.fork())
    if pids[-1] == 0:
        sys.stdin.read()
        os._exit(0)
print(json.dumps(pids), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("manner", ["alone", "forked"])
def test_when_the_parent_is_killed_nothing_remains(manner):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, manner],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().decode().strip("[]\n ").split(",")]
    bystanders = pids[11:]
    try:
        assert all(is_running(pid) for pid in pids)
        assert len(pids) - len(bystanders) == 11
        os.kill(parent.pid, signal.SIGKILL)
        wait_until(lambda: not any(is_running(pid) for pid in pids[:11]))
        assert all(is_running(pid) for pid in bystanders)
    finally:
        parent.kill()
        parent.stdin.close()
        parent.stdout.close()
        parent.wait()


def test_when_the_parent_is_killed_while_it_imports_the_zygote_ends(tmp_path):
    (tmp_path / "slow_import.py").write_text("print('importing')\nimport threading\nthreading.Event().wait(0.3)\n")
    code = (
        "import os, sys\n"
        "from stoker.host.zygote import Zygote\n"
        "z = Zygote.start(sys.executable, ['slow_import'], env=dict(os.environ), cwd='/', sys_path=sys.path)\n"
        "print(z.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        check=False,
    )
    assert answer.returncode == -signal.SIGKILL
    zygote_pid = int(answer.stdout)
    wait_until(lambda: not is_running(zygote_pid))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_zygote_is_killed_its_work_is_stopped_and_whoever_waits_is_told(tmp_path, number):
    zygote = Zygote.start(sys.executable, [ENTRIES], env=dict(os.environ), cwd=tmp_path, sys_path=sys.path)
    try:
        forked = zygote.fork(f"{ENTRIES}:leave_family", {"stays": True, "descendants": [[], ["ignores"]]})
        (seen,) = forked.read_events(WAIT_S)
        os.kill(zygote.pid, number)
        with pytest.raises(ProcessLost, match="is gone"):
            forked.wait(WAIT_S)
        assert [pid for pid in (seen["pid"], *seen["descendants"]) if is_running(pid)] == []
        assert list(forked.events()) == []
        with pytest.raises(ProcessLost):
            zygote.fork(f"{ENTRIES}:echo", {})
    finally:
        zygote.close()


def test_a_zygote_that_hangs_is_closed_all_the_same(tmp_path):
    zygote = Zygote.start(sys.executable, [ENTRIES], env=dict(os.environ), cwd=tmp_path, sys_path=sys.path)
    forked = zygote.fork(f"{ENTRIES}:ignore_requests", {})
    forked.read_events(WAIT_S)
    suspend(zygote.pid)
    zygote.close(grace_s=-4.9)  # what is left of the five seconds that it gets on top
    assert not is_running(forked.identity.pid)
    assert not is_running(zygote.pid)
    with pytest.raises(ProcessLost):
        forked.wait(0)
