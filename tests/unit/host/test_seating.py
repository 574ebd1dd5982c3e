from __future__ import annotations

import os
import select
import sys
import time

import pytest

from stoker.host.processes import stop_group
from stoker.host.user_switch import AttachedCommand, attach

PATIENCE_S = 30.0


def said(seat: AttachedCommand, descriptor: int, until: bytes = b"") -> bytes:
    """Read what a command writes, to its end or until something stands there."""
    seen = b""
    while select.select([descriptor], [], [], PATIENCE_S)[0]:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:
            break
        seen += piece
        if not piece or (until and until in seen):
            break
    return seen


def sat(script: str, size: tuple[int, int] | None = None, folder: str = "/") -> AttachedCommand:
    return attach((sys.executable, "-c", script), folder=folder, env={"MINE": "héllo"}, size=size)


def test_a_command_at_pipes_reads_and_writes_apart_and_sees_only_its_own_environment(tmp_path):
    script = "import os,sys;print(sorted(os.environ), os.getcwd());print(sys.stdin.read(), file=sys.stderr);exit(4)"
    seat = attach((sys.executable, "-I", "-c", script), folder=str(tmp_path), env={"MINE": "1"}, size=None)
    os.write(seat.input, b"typed")
    seat.end_input()
    out, errors = said(seat, seat.outputs[0]).decode(), said(seat, seat.outputs[1]).decode()
    assert seat.child.wait(PATIENCE_S).status == 4
    seat.close()
    seat.close()
    assert "MINE" in out
    assert "STOKER" not in out
    assert str(tmp_path) in out
    assert errors == "typed\n"


def test_a_command_at_a_terminal_has_its_size_and_hears_of_another_one():
    script = (
        "import os,signal;signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH});"
        "size=lambda: print(*os.get_terminal_size(0), os.getpid() == os.tcgetpgrp(0), flush=True);"
        "size();signal.sigwait({signal.SIGWINCH});size();input();exit(3)"
    )
    seat = sat(script, size=(30, 100))
    assert b"100 30 True" in said(seat, seat.outputs[0], b"True"), "it is the terminal's own process group"
    seat.resize(50, 132)
    assert b"132 50" in said(seat, seat.outputs[0], b"132 50")
    os.write(seat.input, b"\n")
    assert seat.child.wait(PATIENCE_S).status == 3
    seat.close()


def test_a_key_that_interrupts_does():
    # One long sleep could begin just after Python looked for signals, and would hide this one to its end.
    seat = sat("import time;print('up', flush=True)\nwhile True: time.sleep(0.05)", size=(24, 80))
    try:
        said(seat, seat.outputs[0], b"up")
        os.write(seat.input, b"\x03")
        ended = seat.child.wait(PATIENCE_S)
    finally:
        stop_group(seat.child.identity, grace_s=0.0)
        seat.close()
    assert (ended.signal, ended.status) in ((2, None), (None, 130))


def test_a_folder_that_can_not_be_entered_is_told_on_its_errors():
    seat = sat("pass", folder="/no/such/folder")
    assert b"/no/such/folder" in said(seat, seat.outputs[1])
    assert seat.child.wait(PATIENCE_S).status == 126
    seat.close()


@pytest.mark.timing
def test_everything_a_command_started_is_stopped_with_it():
    seat = sat("import os,time\nif os.fork(): print('up', flush=True)\ntime.sleep(1000)")
    said(seat, seat.outputs[0], b"up")
    begun_s = time.monotonic()
    stop_group(seat.child.identity, grace_s=0.0)
    seat.child.wait(PATIENCE_S)
    assert said(seat, seat.outputs[0]) == b"", "nobody holds it open any more"
    assert time.monotonic() - begun_s < PATIENCE_S
    seat.close()
