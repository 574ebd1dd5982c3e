"""Hosts over a real SSH: keys that change, hosts that are not there, connections that are kept and closed."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stoker.core.errors import HostKeyChanged, NoBackend
from stoker.core.frozen import frozen
from stoker.host.command_runner import ProbeFailure, ProbeOutput, SubprocessRunner
from stoker.launch.commands import LOST, HostCommands, public_environment
from tests.servers.sshd import sshd, why_no_sshd


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


def test_private_variables_are_left_out() -> None:
    private = ("STOKER_HOME", "STOKER_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "WANDB_API_KEY")
    unknown = {"KEYBOARD": "us", "SLURM_JWT": "x", "HTTPS_PROXY": "http://ann:secret@proxy:3128"}
    public = {"PATH": "/bin", "HOME": "/h", "LANG": "C", "SLURM_CONF": "/c", "no_proxy": "*", "LC_ALL": "C"}
    assert public_environment({**public, **dict.fromkeys(private, "x"), **unknown}) == public
