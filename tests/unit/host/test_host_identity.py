from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from stoker.core.frozen import changed
from stoker.host.identity import (
    Liveness,
    ProcessIdentity,
    ProcessRow,
    are_numbers_ours,
    is_alive,
    is_of_this_boot,
    living_rows,
    mine,
    of_pid,
    read_row,
    rows,
    users_of,
)
from tests.unit.host.real_processes import code_of, fork, kill_and_reap, signal_pipe, wait_until


def test_this_process_is_alive_and_knows_itself():
    assert mine() == of_pid(os.getpid())
    assert is_alive(mine()) is Liveness.ALIVE
    assert is_of_this_boot(mine())


def test_a_forked_child_is_somebody_else():
    parent = mine()
    assert code_of(fork(lambda: os._exit(0 if mine().pid == os.getpid() and mine() != parent else 1))) == 0


def test_a_process_that_ended_is_gone_first_as_a_zombie_and_then_for_good():
    with signal_pipe() as (say, await_it):
        pid = fork(await_it)
        identity = of_pid(pid)
        assert identity is not None
        assert is_alive(identity) is Liveness.ALIVE
        say()
        wait_until(lambda: is_alive(identity) is Liveness.GONE)
        row = read_row(pid)
        assert row is not None
        assert row.state == "Z"
        assert code_of(pid) == 0
    assert is_alive(identity) is Liveness.GONE
    assert of_pid(pid) is None


def test_a_number_that_was_recycled_is_another_process():
    assert is_alive(changed(mine(), start_ticks=mine().start_ticks - 1)) is Liveness.GONE


def test_another_boot_is_gone_and_another_host_is_unknown():
    assert is_alive(changed(mine(), boot_id="another")) is Liveness.GONE
    elsewhere = changed(mine(), host="elsewhere")
    assert is_alive(elsewhere) is Liveness.UNKNOWN
    assert is_alive(changed(elsewhere, boot_id="another")) is Liveness.UNKNOWN
    assert not is_of_this_boot(elsewhere)


def test_another_container_of_this_host_is_unknown():
    assert is_alive(changed(mine(), pid_space="pid:[1]")) is Liveness.UNKNOWN
    assert is_alive(changed(mine(), pid_space="")) is Liveness.ALIVE


def test_impossible_numbers_are_gone():
    assert is_alive(changed(mine(), pid=2**31 - 1)) is Liveness.GONE
    assert is_alive(changed(mine(), pid=2**80)) is Liveness.GONE


def test_an_identity_survives_its_plain_form():
    assert ProcessIdentity.from_dict(mine().to_dict()) == mine()
    assert ProcessIdentity.from_dict({"pid": 7, "start_ticks": 8}) == ProcessIdentity(
        pid=7, start_ticks=8, boot_id="", host=""
    )


@pytest.mark.parametrize("data", [{}, {"pid": "7", "start_ticks": 8}, {"pid": 7}])
def test_what_is_not_an_identity_is_refused(data):
    with pytest.raises(ValueError, match="not a process identity"):
        ProcessIdentity.from_dict(data)


@pytest.mark.parametrize("pid", [0, -1, -7])
def test_numbers_that_stand_for_groups_are_refused(pid):
    with pytest.raises(ValueError, match="not the number of a process"):
        ProcessIdentity.from_dict({"pid": pid, "start_ticks": 8})


def test_a_name_with_parentheses_and_spaces_does_not_confuse_the_table():
    with signal_pipe() as (say, await_it):

        def act() -> None:
            with open("/proc/self/comm", "w") as file:
                file.write("a) R 1 (b")
            say()
            signal.pause()

        pid = fork(act)
        await_it()
        row = read_row(pid)
        kill_and_reap(pid)
    assert row is not None
    assert (row.parent_pid, row.group, row.session) == (os.getpid(), os.getpgid(0), os.getsid(0))
    assert row.state in {"S", "R"}


def test_a_process_whose_first_thread_ended_still_runs():
    code = (
        "import ctypes, threading, sys\n"
        "def go_on():\n"
        "    print('on', flush=True); sys.stdin.read()\n"
        "threading.Thread(target=go_on).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"on\n"
        identity = of_pid(process.pid)
        assert identity is not None
        wait_until(lambda: (row := read_row(process.pid)) is not None and row.state == "Z")
        assert is_alive(identity) is Liveness.ALIVE
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()


def test_the_table_lists_us_and_the_living_are_a_part_of_it():
    everybody = {row.pid for row in rows()}
    assert {os.getpid(), os.getppid()} <= everybody
    assert all(not row.is_gone for row in living_rows())
    assert ProcessRow(1, 0, 1, 1, "Z", 1, 0).is_gone


def test_we_act_for_our_own_user_and_nobody_for_none():
    assert users_of(os.getpid()) == set(os.getresuid())
    assert users_of(2**30) == frozenset()


def test_the_table_of_another_namespace_is_told_from_ours():
    assert are_numbers_ours()
    ask = "from stoker.host.identity import are_numbers_ours; print(are_numbers_ours())"
    for more, expected in (((), "False"), (("--mount-proc",), "True")):
        command = ["unshare", "--pid", "--fork", *more, sys.executable, "-P", "-c", ask]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "unshare" in done.stderr:
            pytest.skip("no new namespace of processes may be made here")
        assert done.stdout.strip() == expected, done.stderr
