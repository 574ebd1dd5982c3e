from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from stoker.core.errors import LocalFile, NoPermission, ProcessLost
from stoker.core.frozen import changed
from stoker.host.identity import Liveness, is_alive, mine, of_pid
from stoker.host.processes import Child, StopOutcome, group_members, start, stop_group
from tests.others import suspend
from tests.unit.host.real_processes import is_running

ENV = {"PATH": os.environ["PATH"]}
# Starts a copy of itself that ignores polite requests, and says both numbers.
STUBBORN_FAMILY = """
import os, signal, sys
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    while True: signal.pause()
{leader}
"""
LEADER_STAYS = "while True: signal.pause()"


def _python(code: str, **options) -> Child:
    return start([sys.executable, "-S", "-c", code], cwd="/", env=ENV, stdout=subprocess.PIPE, **options)


def _line_of(child: Child) -> str:
    assert child.stdout is not None
    return child.stdout.readline().decode().strip()


def _close(child: Child) -> None:
    if child.stdout is not None:
        child.stdout.close()


def test_a_program_leads_its_own_session_and_sees_only_its_own_environment(tmp_path):
    child = start(
        [sys.executable, "-c", "import os; print(os.getsid(0), os.getpgid(0), os.getcwd(), sorted(os.environ))"],
        cwd=tmp_path,
        env={"ONLY": "this", "LC_ALL": "C.UTF-8"},
        stdout=subprocess.PIPE,
    )
    pid = child.identity.pid
    assert _line_of(child) == f"{pid} {pid} {tmp_path} ['LC_ALL', 'ONLY']"
    assert child.wait(20).is_success
    _close(child)


def test_an_end_says_status_memory_and_time():
    child = _python("import sys; x = bytearray(50_000_000); sys.exit(3)")
    ended = child.wait(20)
    assert (ended.status, ended.signal, str(ended)) == (3, None, "exit status 3")
    assert ended.max_rss_bytes > 50_000_000
    assert ended.cpu_s > 0
    assert child.wait() is ended
    _close(child)


def test_a_death_by_signal_says_which():
    child = _python("import os; os.kill(os.getpid(), 9)")
    ended = child.wait(20)
    assert (ended.status, ended.signal, str(ended)) == (None, 9, "signal 9 (SIGKILL)")
    assert not ended.is_success
    _close(child)


def test_waiting_for_a_program_that_goes_on_ends_in_time():
    child = _python(LEADER_STAYS.replace("while", "import signal\nwhile"))
    assert child.poll() is None
    with pytest.raises(TimeoutError):
        child.wait(0.02)
    child.stop(grace_s=5)
    _close(child)


def test_a_program_or_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(LocalFile, match="no-such-program"):
        start(["no-such-program"], cwd="/", env=ENV)
    with pytest.raises(LocalFile, match="no-such-folder"):
        start(["true"], cwd=tmp_path / "no-such-folder", env=ENV)
    (tmp_path / "text").write_text("not a program")
    with pytest.raises(NoPermission, match="text"):
        start([str(tmp_path / "text")], cwd="/", env=ENV)


def test_a_polite_request_is_enough_for_an_ordinary_program():
    child = _python("import signal; print('on', flush=True); signal.pause()")
    _line_of(child)
    assert child.stop() is StopOutcome.POLITE
    assert child.wait().signal == signal.SIGTERM
    assert child.stop() is StopOutcome.ALREADY_GONE
    _close(child)


def test_a_program_gets_the_time_it_needs_to_end_politely():
    child = _python(
        "import signal, sys, threading, time\n"
        "signal.signal(15, lambda *_: (threading.Event().wait(0.2), sys.exit(7)))\n"
        "print('on', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    _line_of(child)
    assert child.stop(grace_s=20) is StopOutcome.POLITE
    assert child.wait().status == 7
    _close(child)


def test_grandchildren_that_ignore_the_request_are_killed():
    child = _python(STUBBORN_FAMILY.format(leader=LEADER_STAYS))
    grandchild = int(_line_of(child))
    assert stop_group(child.identity, grace_s=0.1) is StopOutcome.FIRM
    assert not is_running(grandchild)
    assert group_members(child.identity) == ()
    assert child.wait().signal == signal.SIGTERM
    _close(child)


def test_a_group_is_stopped_after_its_leader_has_ended():
    child = _python(STUBBORN_FAMILY.format(leader=""))
    grandchild = int(_line_of(child))
    assert child.wait(20).is_success
    assert is_alive(child.identity) is Liveness.GONE
    assert is_running(grandchild)
    assert [row.pid for row in group_members(child.identity)] == [grandchild]
    assert stop_group(child.identity, grace_s=0.05) is StopOutcome.FIRM
    assert not is_running(grandchild)
    _close(child)


def test_a_member_that_left_the_group_but_not_the_session_is_stopped():
    child = _python(
        STUBBORN_FAMILY.format(leader=LEADER_STAYS).replace("signal.signal(", "os.setpgid(0, 0); signal.signal(")
    )
    grandchild = int(_line_of(child))
    assert os.getpgid(grandchild) == grandchild
    assert stop_group(child.identity, grace_s=0.05) is StopOutcome.FIRM
    assert not is_running(grandchild)
    child.wait()
    _close(child)


def test_a_suspended_program_is_stopped_politely():
    child = _python("import signal; print('on', flush=True); signal.pause()")
    _line_of(child)
    suspend(child.identity.pid)
    assert child.stop() is StopOutcome.POLITE
    _close(child)


def test_processes_that_are_not_our_children_are_stopped():
    child = _python(
        "import os, signal, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); print(os.getpid(), flush=True); signal.pause()\n"
        "sys.stdin.read()\n",
        stdin=subprocess.PIPE,
    )
    other = of_pid(int(_line_of(child)))
    assert other is not None
    assert stop_group(other) is StopOutcome.POLITE
    assert is_alive(other) is Liveness.GONE
    assert is_alive(child.identity) is Liveness.ALIVE
    child.stop()
    assert child.stdin is not None
    child.stdin.close()
    _close(child)


def test_a_recycled_number_is_never_signalled():
    child = _python("import signal; print('on', flush=True); signal.pause()")
    _line_of(child)
    for stale in (
        changed(child.identity, start_ticks=child.identity.start_ticks - 1),
        changed(child.identity, start_ticks=child.identity.start_ticks + 1),
        changed(child.identity, boot_id="an earlier boot"),
    ):
        assert stop_group(stale, grace_s=0) is StopOutcome.ALREADY_GONE
    assert child.poll() is None
    assert is_alive(child.identity) is Liveness.ALIVE
    assert child.stop() is StopOutcome.POLITE
    assert child.wait().signal == signal.SIGTERM
    _close(child)


def test_a_process_of_another_host_is_not_ours_to_stop():
    with pytest.raises(ProcessLost, match="elsewhere"):
        stop_group(changed(mine(), host="elsewhere"))


def test_the_first_process_is_never_stopped():
    first = of_pid(1)
    assert first is not None
    with pytest.raises(ProcessLost, match="process 1"):
        stop_group(first)


def test_a_process_that_leads_nothing_is_stopped_without_its_group():
    child = _python(
        "import os, signal\n"
        "if os.fork() == 0:\n"
        "    print(os.getpid(), flush=True); signal.pause()\n"
        "os.wait(); print('reaped', flush=True); signal.pause()\n"
    )
    member = of_pid(int(_line_of(child)))
    assert member is not None
    assert stop_group(member) is StopOutcome.POLITE
    assert _line_of(child) == "reaped"
    assert child.poll() is None
    child.stop()
    _close(child)


def test_a_chain_of_processes_that_fork_and_end_is_put_out():
    child = _python(
        "import os, signal, threading\n"
        "signal.signal(15, signal.SIG_IGN)\n"
        "print('on', flush=True)\n"
        "for _ in range(2000):\n"
        "    if os.fork():\n"
        "        os._exit(0)\n"
        "    threading.Event().wait(0.001)\n"
        "print('burnt out', flush=True)\n"
    )
    assert _line_of(child) == "on"
    child.wait(20)
    stop_group(child.identity, grace_s=0.05)
    assert child.stdout is not None
    assert child.stdout.read() == b""
    _close(child)
