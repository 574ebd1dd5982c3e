"""`stoker machines memory`: who holds how much of which device, and a place in line for room on one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system.shell import Shell
from tests.unit.host.real_processes import wait_until

GIB = 1024**3


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.env["STOKER_GPU_FAKE"] = "cuda:2x24GiB"
    return shell


def objects(shell: Shell) -> list[dict]:
    return shell.stoker("machines", "memory", "--json").objects()


def holders(shell: Shell, place: int = 0) -> list[dict]:
    return objects(shell)[place]["holders"]


def started(shell: Shell, *words: str) -> subprocess.Popen[str]:
    """Start a command that holds room, and wait until it does."""
    process = shell.start("machines", "memory", *words)
    wait_until(lambda: bool(holders(shell)) or process.poll() is not None)
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_nobody_holds_anything_at_first(shell: Shell) -> None:
    done = shell.stoker("machines", "memory")
    assert done.code == 0
    assert done.out.count("total 24.0 GiB  (invented by STOKER_GPU_FAKE)") == 2
    assert "usable 85 % = 20.4 GiB sharable; reserved 0 B, available 20.4 GiB" in done.out
    assert done.out.count("no reservations") == 2
    assert shell.stoker("ledger").out == done.out


def test_a_machine_without_devices_says_so(shell: Shell) -> None:
    done = shell.stoker("machines", "memory", STOKER_GPU_FAKE="none")
    assert (done.code, done.out) == (0, "no accelerators found, no reservations\n")
    refused = shell.stoker("machines", "memory", "--wait", "1GiB", "--", "true", STOKER_GPU_FAKE="none")
    assert refused.code == 50
    assert "there is none" in refused.err


def test_a_program_runs_holding_its_room_and_sees_only_its_device(shell: Shell) -> None:
    inside = f"echo $CUDA_VISIBLE_DEVICES $STOKER_VRAM_BYTES; {sys.executable} -P -m stoker machines memory; exit 7"
    done = shell.stoker("machines", "memory", "--wait", "6GiB", "--share", "--job", "mine", "--", "sh", "-c", inside)
    assert done.code == 7
    device, size = done.out.splitlines()[0].split()
    assert device.startswith("FAKE-")
    assert int(size) == 6 * GIB
    line = next(line for line in done.out.splitlines() if "process" in line)
    assert "reserved 6.0 GiB" in line
    assert "measuring" in line
    assert line.endswith("mine")
    assert "reserved 6.0 GiB, available 14.4 GiB" in done.out
    assert f"6.0 GiB on {device}" in done.err
    assert holders(shell) == []


def test_a_device_is_held_whole_unless_it_is_shared(shell: Shell) -> None:
    first = started(shell, "--wait", "6GiB", "--on", "0", "--", "sleep", "60")
    assert holders(shell)[0]["is_exclusive"] is True
    assert "exclusive" in shell.stoker("machines", "memory").out
    late = shell.stoker("machines", "memory", "--wait", "1GiB", "--on", "0", "--timeout", "100ms", "--", "true")
    assert late.code == 51
    assert "held whole by sleep" in late.err
    assert "hint:" in late.err
    # The other one is free.
    assert shell.stoker("machines", "memory", "--wait", "1GiB", "--", "true").code == 0
    first.terminate()
    assert ended(first)[0] == 128 + signal.SIGTERM
    assert holders(shell) == []


def test_a_device_is_held_whole_by_a_program_that_is_too_large_to_share_it(shell: Shell) -> None:
    done = shell.stoker("machines", "memory", "--json", "--wait", "21GiB", "--share", "--", "true")
    assert done.code == 0, done.err
    (told,) = [json.loads(line) for line in done.out.splitlines() if "is_exclusive" in line]
    assert told["is_exclusive"] is True


@pytest.mark.timing
def test_who_waits_has_a_visible_place_and_is_served_in_turn(shell: Shell, tmp_path: Path) -> None:
    order = tmp_path / "order"
    first = started(shell, "--wait", "whole", "--on", "0", "--", "sleep", "60")
    waiting = []
    for name in ("second", "third"):
        command = f"echo {name} >> {order}"
        waiting.append(
            shell.start("machines", "memory", "--wait", "6GiB", "--on", "0", "--job", name, "--", "sh", "-c", command)
        )
        wait_until(lambda: len(objects(shell)) == 2 + len(waiting))
    lines = shell.stoker("machines", "memory").out.partition("waiting\n")[2].splitlines()
    assert [line.split()[1] for line in lines] == ["1", "2"]
    assert [line.split()[-1] for line in lines] == ["second", "third"]
    begun_s = time.monotonic()
    first.terminate()
    assert [ended(process)[0] for process in waiting] == [0, 0]
    # Without being woken, each would have looked again after five seconds.
    assert time.monotonic() - begun_s < 4.5
    assert order.read_text().split() == ["second", "third"]
    ended(first)


def test_an_interrupted_wait_gives_its_place_back(shell: Shell) -> None:
    first = started(shell, "--wait", "whole", "--on", "0", "--", "sleep", "60")
    waiting = shell.start("machines", "memory", "--wait", "6GiB", "--on", "0")
    wait_until(lambda: len(objects(shell)) == 3)
    waiting.send_signal(signal.SIGINT)
    code, _, err = ended(waiting)
    assert code == 130
    assert "queue position 1" in err
    assert len(objects(shell)) == 2
    first.terminate()
    ended(first)


def test_a_killed_command_leaves_the_room_with_its_program(shell: Shell) -> None:
    first = started(shell, "--wait", "whole", "--on", "0", "--", "sleep", "60")
    program = holders(shell)[0]["pid"]
    assert program != first.pid
    first.kill()
    first.wait(30)
    assert holders(shell)[0]["pid"] == program
    os.kill(program, signal.SIGKILL)
    # It has our pipes, too.
    ended(first)
    wait_until(lambda: holders(shell) == [])


def test_ctrl_c_goes_to_the_program_and_its_exit_code_comes_back(shell: Shell) -> None:
    script = (
        "import signal, sys, time; signal.signal(signal.SIGINT, lambda *_: sys.exit(33)); "
        "print('up', flush=True); [time.sleep(0.05) for _ in range(1200)]"
    )
    process = shell.start("machines", "memory", "--wait", "1GiB", "--", sys.executable, "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 33


def test_what_a_program_leaves_behind_holds_the_room(shell: Shell) -> None:
    done = shell.stoker(
        "machines", "memory", "--wait", "whole", "--on", "0", "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"
    )
    assert done.code == 0
    assert "still holds the memory" in done.err
    behind = int(done.out)
    assert f"process {behind} is still running" in shell.stoker("machines", "memory").out
    os.kill(behind, signal.SIGKILL)
    wait_until(lambda: holders(shell) == [])


def test_without_a_program_it_ends_when_there_is_room_and_holds_nothing(shell: Shell) -> None:
    done = shell.stoker("machines", "memory", "--wait", "6GiB", "--json")
    assert done.code == 0
    (granted,) = done.objects()
    assert granted["state"] == "granted"
    assert granted["is_fake"] is True
    assert holders(shell) == []


def test_json_tells_of_waiting_granting_and_ending(shell: Shell) -> None:
    first = started(shell, "--wait", "whole", "--count", "2", "--", "sleep", "60")
    waiting = shell.start("machines", "memory", "--wait", "6GiB", "--json", "--", "sh", "-c", "echo noise; exit 3")
    wait_until(lambda: len(objects(shell)) == 3)
    first.terminate()
    ended(first)
    code, out, err = ended(waiting)
    assert code == 3
    told = [json.loads(line) for line in out.splitlines()]
    assert [one["state"] for one in told] == ["waiting", "granted", "ended"]
    assert told[0]["bound"] == "taken"
    assert told[2]["exit_code"] == 3
    assert "noise" in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--wait", "30GiB", "--", "true"], 50, "24.0 GiB, and 30.0 GiB are needed"),
        (["--wait", "30GiB", "--share", "--", "true"], 50, "24.0 GiB, and 30.0 GiB are needed"),
        (["--wait", "1GiB", "--count", "3", "--", "true"], 50, "3 devices are wanted, and there are 2"),
        (["--wait", "1x", "--", "true"], 2, "'1x' is not a size"),
        (["--wait", "1GiB", "--"], 2, "no program after"),
        (["--wait", "1GiB", "--on", "7"], 2, "no device '7'"),
        (["--wait", "1GiB", "--on", "FAKE"], 2, "could be"),
        (["--share", "--", "true"], 2, "--share needs a size"),
        (["--timeout", "1s"], 2, "--timeout without --wait"),
        (["--wait", "1GiB", "--", "no-such-program"], 16, "no-such-program"),
    ],
    ids=lambda value: "-".join(value).replace("/", "") if isinstance(value, list) else None,
)
def test_what_can_not_be_is_refused_with_a_hint(shell: Shell, words: list[str], code: int, said: str) -> None:
    done = shell.stoker("machines", "memory", *words)
    assert done.code == code
    assert said in done.err
    assert "hint:" in done.err
    assert "Traceback" not in done.err


def test_a_ledger_that_can_not_be_used_is_an_error_and_not_room(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = shell.stoker("machines", "memory", "--wait", "1GiB", "--", "true", STOKER_LEDGER=str(tmp_path / "file"))
    assert done.code == 16
    assert "hint:" in done.err or "not a folder" in done.err


def test_damage_is_told_and_the_rest_goes_on(shell: Shell, tmp_path: Path) -> None:
    assert shell.stoker("machines", "memory").code == 0
    leases = tmp_path / "ledger" / "leases"
    gone = leases / f"999999-1-{'0' * 16}"
    gone.write_bytes(b"garbage")
    os.utime(gone, (1, 1))
    done = shell.stoker("machines", "memory", "--wait", "1GiB", "--", "true")
    assert done.code == 0
    assert "warning: a damaged record" in done.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_waiter_that_is_asked_to_end_leaves_the_line_and_says_so(
    shell: Shell, tmp_path: Path, number: signal.Signals
) -> None:
    first = started(shell, "--wait", "whole", "--on", "0", "--", "sleep", "60")
    waiter = shell.start("machines", "memory", "--wait", "whole", "--on", "0", "--json", "--", "true")
    line = Path(shell.env["STOKER_LEDGER"]) / "line"
    assert waiter.stdout is not None
    # Who is killed before it knows its place leaves a ticket, which the next one to look takes away.
    assert json.loads(waiter.stdout.readline())["state"] == "waiting"
    assert len(os.listdir(line)) == 1
    waiter.send_signal(number)
    code, out, _ = ended(waiter)
    assert code == 143
    assert json.loads(out.splitlines()[-1])["error"] == "terminated"
    assert os.listdir(line) == []
    first.terminate()
    ended(first)
