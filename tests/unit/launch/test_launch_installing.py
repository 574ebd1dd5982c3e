"""Installing with a supervisor that answers as systemctl does, from a folder instead of a bus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import BadInput, Conflict, StokerError
from stoker.host.command_runner import LIMIT_S, ProbeFailure, ProbeOutput, Reply
from stoker.launch.installer import Installer, Launchd, SystemdSupervisor, supervisor_of
from stoker.launch.service import ServiceKind, SupervisedService, make_service


class Systemctl:
    """Runs nothing; units are up once they were started, unless they are told to fail."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.up: set[str] = set()
        self.fails = False
        self.err = ""
        self.is_missing = False

    def ask(self, argv: Sequence[str], *, limit_s: float = LIMIT_S, stdin: str = "") -> Reply:
        if self.is_missing:
            return ProbeFailure(why="there is no program systemctl", code="probe_missing")
        words = tuple(argv)
        self.asked.append(words)
        if self.err:
            return ProbeOutput(out="", err=self.err, exit_code=1)
        unit = words[-1]
        if "--now" in words:
            (self.up.discard if "disable" in words else self.up.add)(unit)
        if "show" not in words:
            return ProbeOutput(out="", exit_code=1 if "reset-failed" in words else 0)
        if unit in self.up and self.fails:
            return ProbeOutput(
                out="ActiveState=failed\nSubState=failed\nResult=exit-code\nExecMainStatus=22\nMainPID=0\n"
            )
        state = "ActiveState=active\nSubState=running\n" if unit in self.up else "ActiveState=inactive\nSubState=dead\n"
        return ProbeOutput(out=f"{state}Result=success\nExecMainStatus=0\nMainPID=7\n")

    def ask_all(self, questions: Sequence[Sequence[str]], *, limit_s: float = LIMIT_S) -> tuple[Reply, ...]:
        return tuple(self.ask(one) for one in questions)

    def did(self, verb: str) -> int:
        return sum(verb in words for words in self.asked)


@pytest.fixture
def systemctl() -> Systemctl:
    return Systemctl()


@pytest.fixture
def installer(systemctl: Systemctl, tmp_path: Path) -> Installer:
    return Installer(SystemdSupervisor(str(tmp_path / "units")), systemctl, FakeClock())


def service(home: Path, *words: str) -> SupervisedService:
    return make_service(
        ServiceKind.WORK, words, python="/usr/bin/python3", home=str(home), usual_home=str(home), environment={}
    )


def test_a_service_is_written_started_and_seen_running(installer: Installer, systemctl: Systemctl, tmp_path: Path):
    installed = installer.install(service(tmp_path / "home"))
    assert installed.seen.is_running
    assert not installed.was_there
    assert "ExecStart=" in (tmp_path / "units" / "stoker-work.service").read_text()
    assert systemctl.did("daemon-reload") == 1
    assert (tmp_path / "home").is_dir(), "it could not start in a folder that is not there"


def test_the_service_of_a_watcher_gets_what_backends_read_and_no_secret(installer: Installer, tmp_path: Path):
    environment = {"SLURM_CONF": "/etc/slurm.conf", "KUBECONFIG": "/k", "STOKER_OPERATOR_TOKEN": "secret" * 9}
    watch = make_service(
        ServiceKind.LAUNCH,
        ("watch", "a100", "--relay", "login1"),
        python="/usr/bin/python3",
        home=str(tmp_path),
        usual_home=str(tmp_path),
        environment=environment,
    )
    installer.install(watch)
    text = (tmp_path / "units" / "stoker-launch.service").read_text()
    assert 'ExecStart="/usr/bin/python3" "-m" "stoker" "launch" "watch" "a100" "--relay" "login1"' in text
    assert "SLURM_CONF=/etc/slurm.conf" in text
    assert "KUBECONFIG=/k" in text
    assert "secret" not in text
    assert "KillMode=process" in text
    assert installer.words_of("stoker-launch") == ("watch", "a100", "--relay", "login1")


def test_twice_is_once_and_a_running_service_is_not_disturbed(
    installer: Installer, systemctl: Systemctl, tmp_path: Path
):
    installer.install(service(tmp_path))
    before = (tmp_path / "units" / "stoker-work.service").stat()
    assert installer.install(service(tmp_path)).was_there
    assert (tmp_path / "units" / "stoker-work.service").stat().st_ino == before.st_ino
    assert systemctl.did("restart") == 0
    assert systemctl.did("daemon-reload") == 1


def test_another_text_restarts_it(installer: Installer, systemctl: Systemctl, tmp_path: Path):
    installer.install(service(tmp_path))
    installer.install(service(tmp_path, "--slots", "2"))
    assert systemctl.did("restart") == 1


def test_a_file_of_somebody_else_is_not_touched(installer: Installer, tmp_path: Path):
    unit = tmp_path / "units" / "stoker-work.service"
    unit.parent.mkdir()
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    with pytest.raises(Conflict):
        installer.install(service(tmp_path))
    with pytest.raises(Conflict):
        installer.uninstall("stoker-work")
    assert unit.read_text().endswith("/bin/true\n")


def test_a_link_in_its_place_is_not_followed(installer: Installer, tmp_path: Path):
    (tmp_path / "units").mkdir()
    (tmp_path / "units" / "stoker-work.service").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Conflict):
        installer.install(service(tmp_path))
    assert not (tmp_path / "elsewhere").exists()


def test_a_service_that_does_not_stay_up_is_an_error_with_its_code(
    installer: Installer, systemctl: Systemctl, tmp_path: Path
):
    systemctl.fails = True
    with pytest.raises(StokerError) as failed:
        installer.install(service(tmp_path))
    assert "ended with 22" in failed.value.message
    assert "journalctl --user -u stoker-work" in failed.value.hint


def test_uninstalling_stops_and_removes_and_the_second_time_finds_nothing(
    installer: Installer, systemctl: Systemctl, tmp_path: Path
):
    installer.install(service(tmp_path))
    assert installer.uninstall("stoker-work")
    assert not systemctl.up
    assert not list((tmp_path / "units").iterdir())
    assert not installer.uninstall("stoker-work")


def test_without_the_program_nothing_is_written(installer: Installer, systemctl: Systemctl, tmp_path: Path):
    systemctl.is_missing = True
    with pytest.raises(StokerError) as refused:
        installer.install(service(tmp_path))
    assert "systemd does not answer here" in refused.value.message
    assert not (tmp_path / "units").exists()


def test_without_a_session_the_reason_is_told(installer: Installer, systemctl: Systemctl, tmp_path: Path):
    systemctl.err = "Failed to connect to bus: No medium found"
    with pytest.raises(StokerError) as refused:
        installer.check(service(tmp_path))
    assert "No medium found" in refused.value.message
    assert "enable-linger" in refused.value.hint


@pytest.mark.parametrize(("platform", "kind"), [("linux", SystemdSupervisor), ("darwin", Launchd)], ids=str)
def test_each_platform_has_its_supervisor(platform: str, kind: type, tmp_path: Path):
    supervisor = supervisor_of(platform, {"HOME": str(tmp_path)}, user=501)
    assert isinstance(supervisor, kind)
    assert supervisor.is_ours(supervisor.render(service(tmp_path)).text)
    assert not supervisor.is_ours("")
    assert all(command[0] == supervisor.looking("x")[0] for command in supervisor.starting("x"))


@pytest.mark.parametrize("platform", ["win32", "plan9"])
def test_a_platform_without_a_supervisor_is_told(platform: str):
    with pytest.raises(BadInput, match=f"no service manager is known for {platform}"):
        supervisor_of(platform, {}, user=1)


def test_what_launchd_says_is_read():
    launchd = Launchd("/agents", 501)
    seen = launchd.read_look(
        "gui/501/stoker-work = {\n\tstate = running\n\tpid = 12\n\tlast exit code = (never exited)\n}", 0
    )
    assert (seen.is_running, seen.is_failed, seen.pid) == (True, False, 12)
    assert launchd.read_look("\tstate = not running\n\tlast exit code = 22\n", 0).is_failed
