"""`--install` with a real systemd of a user: started, started again, left alone where that mends nothing, removed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.shell import Shell, wait_until
from tests.system.user_systemd import UserSystemd

NOBODY = "http://127.0.0.1:9"
# Everything that systemd, or a shell between, could take for its own.
ODD = "st ok%h$HOME'\"é"


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[UserSystemd]:
    with UserSystemd(tmp_path / "user", tmp_path / "run") as manager:
        yield manager


@pytest.fixture
def shell(systemd: UserSystemd, tmp_path: Path, index: Path) -> Shell:
    made = Shell(tmp_path / ODD, index=index, before=systemd.before)
    made.env.update(systemd.env)
    return made


def units(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "user" / ".config" / "systemd" / "user").glob("*.service"))


def hurry(systemd: UserSystemd, tmp_path: Path, unit: str, *more: str) -> None:
    """Have a unit restarted sooner than people want it."""
    added = tmp_path / "user" / ".config" / "systemd" / "user" / f"{unit}.d" / "hurry.conf"
    added.parent.mkdir()
    added.write_text("\n".join(["[Service]", "RestartSec=50ms", "RestartMaxDelaySec=60ms", *more, ""]))
    systemd.systemctl("daemon-reload")


def test_a_worker_is_installed_comes_back_when_killed_and_is_removed(
    shell: Shell, systemd: UserSystemd, tmp_path: Path
):
    refused = shell.stoker("work", "--join", NOBODY, "--install")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert units(tmp_path) == []
    installed = shell.stoker("work", "--join", NOBODY, "--install", "--yes")
    assert installed.code == 0, installed.err + systemd.said()
    assert "ExecStart=" in installed.out, "what is written is shown"
    (unit,) = units(tmp_path)
    assert systemd.value(unit, "UnitFileState") == "enabled"
    assert systemd.value(unit, "WatchdogUSec") == "3min"
    hurry(systemd, tmp_path, unit)
    before = systemd.value(unit, "MainPID")
    systemd.signal(unit, "KILL")
    wait_until(lambda: systemd.value(unit, "NRestarts") == "1" and systemd.value(unit, "SubState") == "running")
    assert systemd.value(unit, "MainPID") != before
    again = shell.stoker("work", "--join", NOBODY, "--install", "--yes", "--json")
    assert [line.get("was_there") for line in again.objects()] == [None, True], "twice is once"
    removed = shell.stoker("work", "--uninstall")
    assert removed.code == 0
    assert units(tmp_path) == []
    assert systemd.value(unit, "ActiveState") == "inactive"
    assert shell.stoker("work", "--uninstall").code == 1


def test_a_fault_in_a_file_is_told_and_nobody_starts_it_again(shell: Shell, systemd: UserSystemd, tmp_path: Path):
    faulty = shell.folder / "cluster.yaml"
    faulty.write_text("nodes: 7\n")
    failed = shell.stoker("serve", "--listen", "127.0.0.1:0", "--cluster", faulty, "--install", "--yes")
    assert failed.code == 16
    assert "ended with 23: invalid cluster file" in failed.err
    unit = next(name for name in units(tmp_path) if "serve" in name)
    assert systemd.value(unit, "ActiveState") == "failed"
    assert systemd.value(unit, "ExecMainStatus") == "23"
    assert systemd.value(unit, "NRestarts") == "0"
    assert shell.stoker("serve", "--uninstall").code == 0
    assert units(tmp_path) == []


@pytest.mark.slow
def test_an_installed_coordinator_keeps_its_settings_and_reads_its_files_again_when_told(
    shell: Shell, systemd: UserSystemd, tmp_path: Path
):
    cluster = shell.folder / "cluster.yaml"
    cluster.write_text("nodes:\n  - { name: desk, host: localhost }\n")
    words = ("serve", "--listen", "127.0.0.1:0", "--cluster", cluster, "--install", "--yes")
    installed = shell.stoker(*words, STOKER_CONTAIN="bare", HF_TOKEN="hunter2", https_proxy="http://a:hunter2@b:1")
    assert installed.code == 0, installed.err + systemd.said()
    assert "https_proxy holds a secret" in installed.err
    assert "HF_TOKEN holds a secret" in installed.err
    assert "hunter2" not in installed.out + installed.err
    serve = next(name for name in units(tmp_path) if "serve" in name)
    before = systemd.value(serve, "MainPID")
    seen = [*systemd.before, "cat", f"/proc/{before}/environ"]
    assert b"STOKER_CONTAIN=bare" in subprocess.run(seen, capture_output=True, check=True).stdout.split(b"\0")
    cluster.write_text("nodes:\n  - { name: desk, host: localhost }\n  - { name: lab, host: lab.local }\n")
    systemd.systemctl("reload", serve)
    wait_until(lambda: "lab" in shell.stoker("machines", "--json").out)
    assert systemd.value(serve, "MainPID") == before
    assert shell.stoker("serve", "--uninstall").code == 0


@pytest.mark.slow
def test_a_worker_that_stands_still_is_started_again_and_one_that_lives_is_left_alone(
    shell: Shell, systemd: UserSystemd, tmp_path: Path
):
    assert shell.stoker("work", "--join", NOBODY, "--install", "--yes").code == 0
    (unit,) = units(tmp_path)
    hurry(systemd, tmp_path, unit, "WatchdogSec=4s", "TimeoutAbortSec=1s")
    systemd.systemctl("restart", unit)
    before, since_s = systemd.value(unit, "MainPID"), time.monotonic()
    wait_until(lambda: time.monotonic() - since_s > 6)
    assert systemd.value(unit, "MainPID") == before, "it says in time that it lives"
    systemd.signal(unit, "STOP")
    wait_until(lambda: systemd.value(unit, "NRestarts") == "1" and systemd.value(unit, "SubState") == "running")
    assert systemd.value(unit, "MainPID") != before
    assert shell.stoker("work", "--uninstall").code == 0


@pytest.mark.slow
def test_the_machine_that_stays_on_serves_works_and_invites(shell: Shell, systemd: UserSystemd, tmp_path: Path):
    installed = shell.stoker("serve", "--install", "--yes")
    assert installed.code == 0, installed.err + systemd.said()
    assert ":7717, own CA, SQLite, " in installed.out
    assert " joined." in installed.out
    assert "Add a machine (15 min):  stoker join " in installed.out
    assert installed.out.rstrip().endswith(" --install")
    _, machine = (json.loads(line) for line in shell.stoker("machines", "--json").out.splitlines())
    assert f'"{machine["name"]}" joined.' in installed.out
    second = Shell(tmp_path / "second", before=systemd.before)
    second.env.update(systemd.env)
    code = installed.out.rpartition("stoker join ")[2].partition("@")[0]
    joined = second.stoker("join", f"{code}@10.99.0.1", "--name", "lab1", "--install", "--yes")
    assert joined.code == 0, joined.err + systemd.said()
    assert "user service running" in joined.out
    wait_until(lambda: '"lab1"' in shell.stoker("machines", "--json").out)
    assert second.stoker("work", "--uninstall").code == 0
    work = next(name for name in units(tmp_path) if "work" in name)
    # Asked to end, it gives its jobs back and counts as ended well.
    systemd.systemctl("stop", work)
    assert systemd.value(work, "Result") == "success"
    assert shell.stoker("serve", "--uninstall").code == 0
    assert units(tmp_path) == []
