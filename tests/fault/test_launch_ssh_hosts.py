"""Hosts over a real SSH: keys that change, hosts that are not there, connections that are kept and closed."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest

from stoker import __version__
from stoker.core.clock import SystemClock
from stoker.core.errors import HostKeyChanged, LaunchDoubtful, NoBackend
from stoker.core.frozen import changed, frozen
from stoker.core.pool import Allocation, AllocationState, Pool, PoolBackend
from stoker.devices.checkup import CheckStatus
from stoker.host.command_runner import ProbeFailure, ProbeOutput, SubprocessRunner
from stoker.launch import commands as commands_module
from stoker.launch.commands import LOST, HostCommands, public_environment
from stoker.launch.hosts import HostLauncher
from stoker.launch.watcher import Watcher, WatchSettings
from tests.contract.launcher_cases import make_stand_in
from tests.servers.sshd import configuration_of, sshd, why_no_sshd
from tests.system.shell import wait_until
from tests.unit.launch.fake_cluster import FLEET, FakeCoordinator


@frozen
class Reached:
    commands: HostCommands
    host: str
    folder: Path
    control: Path


@pytest.fixture
def reached(tmp_path: Path) -> Iterator[Reached]:
    if why := why_no_sshd():
        pytest.skip(why)
    with ExitStack() as ends:
        words = ends.enter_context(sshd(tmp_path / "sshd"))
        control = Path(ends.enter_context(TemporaryDirectory(prefix="stoker-ssh-"))) / "c"
        commands = HostCommands(SubprocessRunner(os.environ), control_folder=str(control), ssh=words[:-1])
        ends.callback(commands.close)
        yield Reached(commands=commands, host=words[-1], folder=tmp_path / "sshd", control=control)


def test_a_command_runs_there_with_its_words_and_its_input(reached: Reached) -> None:
    reply = reached.commands.run(reached.host, ["sh", "-c", 'cat; echo "$1"', "sh", "a  'b' $c;"], stdin="in\n")
    assert isinstance(reply, ProbeOutput)
    assert (reply.out, reply.exit_code) == ("in\na  'b' $c;\n", 0)


def test_a_connection_is_kept_for_the_next_command_and_closed_at_the_end(reached: Reached) -> None:
    reached.commands.read(reached.host, ["true"])
    (kept,) = reached.control.iterdir()
    assert reached.control.stat().st_mode & 0o777 == 0o700
    assert kept.is_socket()
    again = reached.commands.read(reached.host, ["sh", "-c", "exit 5"])
    assert again.exit_code == 5
    reached.commands.close()
    assert not list(reached.control.iterdir())


def test_an_unknown_key_is_accepted_once_and_remembered(reached: Reached) -> None:
    known = reached.folder / "known_hosts"
    before = known.read_text().split()[2]
    known.write_text("")
    assert reached.commands.read(reached.host, ["true"]).exit_code == 0
    assert before in known.read_text()


def test_the_known_keys_of_a_host_are_shown(reached: Reached) -> None:
    reached.commands.read(reached.host, ["true"])
    (known,) = reached.commands.check_host_key(reached.host)
    said = subprocess.run(
        ["ssh-keygen", "-lf", reached.folder / "host.pub"], capture_output=True, text=True, check=True
    )
    assert f"ED25519 {said.stdout.split()[1]}" in known.message
    assert reached.commands.check_host_key("") == ()


def test_a_changed_key_is_refused_with_both_fingerprints_and_the_command_that_helps(reached: Reached) -> None:
    known = reached.folder / "known_hosts"
    other = reached.folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    known.write_text(f"stoker-test {other.with_suffix('.pub').read_text()}")
    with pytest.raises(HostKeyChanged) as raised:
        reached.commands.run(reached.host, ["true"])
    for name, shown in (("host", "fingerprint"), ("other", "known_fingerprint")):
        printed = subprocess.run(
            ["ssh-keygen", "-l", "-f", reached.folder / f"{name}.pub"], capture_output=True, text=True, check=True
        )
        assert raised.value.data[shown] == printed.stdout.split()[1]
        assert printed.stdout.split()[1] in raised.value.message
    assert f"ssh-keygen -f {known} -R" in raised.value.hint
    assert raised.value.exit_code == 63


def test_a_host_that_is_not_there_is_no_backend_and_says_why(reached: Reached, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    commands = HostCommands(
        SubprocessRunner(os.environ), control_folder=str(reached.control), ssh=["ssh", "-F", "none", "-p", str(port)]
    )
    with pytest.raises(NoBackend, match=r"127\.0\.0\.1 not reachable: .*Connection refused"):
        commands.run("127.0.0.1", ["true"])
    with pytest.raises(NoBackend, match="Could not resolve"):
        commands.run("host.invalid", ["true"])


def test_a_command_that_is_missing_there_is_named(reached: Reached) -> None:
    with pytest.raises(NoBackend, match=r"squeue9 not found on 127\.0\.0\.1"):
        reached.commands.run(reached.host, ["env", "A=b", "squeue9", "--me"])


def test_a_connection_that_breaks_leaves_the_command_in_doubt(reached: Reached) -> None:
    # The parent of the command is the session's own sshd.
    reply = reached.commands.run(reached.host, ["sh", "-c", "kill -9 $PPID; sleep 5"])
    assert isinstance(reply, ProbeFailure)
    assert reply.code == LOST


# Whatever command comes, this host does what a file says.
HOSTILE = """\
#!/bin/sh
case $(cat {folder}/does) in
endless) exec yes ;;
complains) exec yes >&2 ;;
forges)
    printf 'stoker:look\\np-\\033[31mabc running 1\\np-aabbcc running 1\\n'
    printf 'p-../../x running 1\\np-ddeeff running 9\\033[0m\\n' ;;
*) printf '\\033]0;title\\007\\033[31mred\\n' ;;
esac
"""


def test_a_hostile_host_costs_little_memory_and_time_and_can_claim_only_allocations(tmp_path: Path) -> None:
    if why := why_no_sshd():
        pytest.skip(why)
    does, program = tmp_path / "does", tmp_path / "hostile"
    program.write_text(HOSTILE.format(folder=tmp_path))
    program.chmod(0o755)
    pool = Pool(name="p", backend=PoolBackend.SSH, via="127.0.0.1")
    one = Allocation(id="aabbcc", pool="p")
    most_bytes = 1 << 20
    with ExitStack() as ends:
        words = ends.enter_context(sshd(tmp_path / "sshd", ForceCommand=program))
        control = Path(ends.enter_context(TemporaryDirectory(prefix="stoker-ssh-"))) / "c"
        runner = SubprocessRunner(os.environ, most_bytes=most_bytes)
        commands = HostCommands(runner, control_folder=str(control), ssh=words[:-1])
        ends.callback(commands.close)
        launcher = HostLauncher(commands, folder="/none", python="/none")
        for mode in ("endless", "complains"):
            does.write_text(mode)
            with pytest.raises(NoBackend, match="printed more than 1048576 bytes"):
                launcher.look(pool, fleet=FLEET)
            # It may have started before.
            with pytest.raises(LaunchDoubtful, match="printed more than"):
                launcher.submit(launcher.render(pool, [one], fleet=FLEET), {one.id: "ticket"})
        does.write_text("prints")
        with pytest.raises(NoBackend, match="ran no script") as raised:
            launcher.look(pool, fleet=FLEET)
        assert raised.value.message.isprintable()
        (reached,) = launcher.check(pool)
        assert (reached.verdict, reached.message) == (CheckStatus.BAD, raised.value.message)
        does.write_text("forges")
        assert [status.id for status in launcher.look(pool, fleet=FLEET)] == [one.id]


GOOD = [f"h{number}" for number in range(8)]
BAD = ["changed", "refusing", "silent"]


class Watched:
    """Hosts with a pool each, of at least one worker, and a watcher of a coordinator in memory."""

    def __init__(self, folder: Path, launcher: HostLauncher, silent: socket.socket) -> None:
        self.launcher = launcher
        self.silent = silent
        """Accepts connections, and says nothing."""
        python = str(make_stand_in(folder / "stand-in", __version__))
        shared = Pool(name="", backend=PoolBackend.SSH, folder=str(folder / "far"), python=python, min=1)
        self.pools = {name: changed(shared, name=name, via=name) for name in [*GOOD, *BAD]}
        self.coordinator = FakeCoordinator(*self.pools.values(), now_s=SystemClock().wall_s)
        self.named: dict[str, str] = {}
        """The problem of each pool that the watcher has logged."""
        self._threads = ThreadPoolExecutor(len(self.pools))
        self._watcher = Watcher(
            cast("Any", self.coordinator),
            lambda _backend: launcher,
            WatchSettings(watcher="w", url="https://desk:7717", local_url=""),
            clock=SystemClock(),
            log=self._log,
        )

    def started(self) -> set[str]:
        return {one.pool for one in self.coordinator.live() if one.state is AllocationState.STARTED}

    def turn_until(self, is_so: Callable[[], bool]) -> None:
        def turn() -> bool:
            self._watcher.turn(self._threads)
            return is_so()

        wait_until(turn)

    def close(self) -> None:
        """End all workers and threads."""
        self.silent.close()
        self._threads.shutdown()
        live = {one.pool: one.backend_id for one in self.coordinator.live() if one.pool in GOOD}
        for name, backend_id in live.items():
            self.launcher.cancel(self.pools[name], [backend_id])
        wait_until(lambda: all(self._has_ended(name) for name in live))

    def _has_ended(self, name: str) -> bool:
        statuses = self.launcher.look(self.pools[name], fleet=FLEET)
        return all(one.state is AllocationState.ENDED for one in statuses)

    def _log(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "launch_problem":
            self.named[fields["pool"]] = fields["why"]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    if why := why_no_sshd():
        pytest.skip(why)
    monkeypatch.setattr(commands_module, "CONNECT_S", 60)
    with ExitStack() as ends:
        control = Path(ends.enter_context(TemporaryDirectory(prefix="stoker-ssh-"))) / "c"
        silent = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports = {"refusing": free.getsockname()[1], "silent": silent.getsockname()[1]}
        hosts = {name: ends.enter_context(sshd(tmp_path / name)) for name in [*GOOD, "changed"]}
        (tmp_path / "changed" / "known_hosts").write_text((tmp_path / GOOD[0] / "known_hosts").read_text())
        hosts |= {name: ["-o", f"Port={port}", "127.0.0.1"] for name, port in ports.items()}
        (tmp_path / "config").write_text(configuration_of(hosts))
        runner = SubprocessRunner(public_environment(os.environ))
        ssh = ("ssh", "-F", str(tmp_path / "config"))
        commands = HostCommands(runner, control_folder=str(control), ssh=ssh)
        ends.callback(commands.close)
        made = Watched(tmp_path, HostLauncher(commands, folder="/none", python="/none"), silent)
        ends.callback(made.close)
        yield made


def test_three_bad_hosts_are_named_and_delay_none_of_eight_others(watched: Watched) -> None:
    watched.turn_until(lambda: watched.started() == set(GOOD))
    # Its time-out is not over: no other waited for that.
    assert "silent" not in watched.named
    watched.silent.close()
    watched.turn_until(lambda: watched.named.keys() == set(BAD))
    assert "another host key" in watched.named["changed"]
    assert "Connection refused" in watched.named["refusing"]
    assert "silent not reachable" in watched.named["silent"]
    assert watched.started() == set(GOOD)


def test_private_variables_are_left_out() -> None:
    private = ("STOKER_HOME", "STOKER_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "WANDB_API_KEY")
    unknown = {"KEYBOARD": "us", "SLURM_JWT": "x", "HTTPS_PROXY": "http://ann:secret@proxy:3128"}
    public = {"PATH": "/bin", "HOME": "/h", "LANG": "C", "SLURM_CONF": "/c", "no_proxy": "*", "LC_ALL": "C"}
    assert public_environment({**public, **dict.fromkeys(private, "x"), **unknown}) == public
