"""A real sshd for tests: on a free port of the loopback interface, for this user alone, by a key of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
PROGRAM = shutil.which("sshd", path=_PATH)
_TRIES = 5
_READY_S = 10.0
# As root it wants this folder, which a service of the machine would have made.
_PRIVILEGES = Path("/run/sshd")


def why_no_sshd() -> str:
    """Return why no sshd can be started here, or nothing."""
    if PROGRAM is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        return "there is no sshd and ssh here"
    if os.geteuid() == 0:
        try:
            _PRIVILEGES.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            return f"sshd needs {_PRIVILEGES}: {error.strerror}"
    return ""


@contextmanager
def sshd(folder: Path, **options: object) -> Iterator[list[str]]:
    """Serve until the block ends; yields the words of an `ssh` that logs in, without the command that it runs.

    `options` are further ones of sshd, such as `ForceCommand`.
    """
    assert PROGRAM is not None
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "known_hosts").write_text(f"stoker-test {(folder / 'host.pub').read_text()}")
    for turn in range(_TRIES):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with subprocess.Popen(_words(folder, port, options), stderr=subprocess.PIPE, text=True) as server:
            try:
                assert server.stderr is not None
                line = server.stderr.readline()
                if "Server listening" not in line:
                    # Another process took the port in the meantime.
                    assert turn + 1 < _TRIES, line
                    continue
                yield _login(folder, port)
                return
            finally:
                server.terminate()
                server.wait(_READY_S)


def configuration_of(hosts: Mapping[str, Sequence[str]]) -> str:
    """Return a configuration of `ssh` with names for the hosts that `sshd` yielded."""
    lines = []
    for name, words in hosts.items():
        lines += [f"Host {name}", f"HostName {words[-1]}"]
        lines += [word.replace("=", " ", 1) for word in words if "=" in word]
    return "\n".join([*lines, ""])


def _words(folder: Path, port: int, more: Mapping[str, object]) -> list[str]:
    options = {
        "ListenAddress": "127.0.0.1",
        "AuthorizedKeysFile": folder / "user.pub",
        "StrictModes": "no",
        "UsePAM": "no",
        "PidFile": "none",
        "PermitRootLogin": "prohibit-password",
        # In an inner shell bash does not read the user's own start-up file, which may take a second.
        "SetEnv": "SHLVL=3",
        **more,
    }
    said = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return [str(PROGRAM), "-D", "-e", "-f", "/dev/null", "-p", str(port), "-h", str(folder / "host"), *said]


def _login(folder: Path, port: int) -> list[str]:
    options = {
        "BatchMode": "yes",
        "IdentitiesOnly": "yes",
        "ExitOnForwardFailure": "yes",
        "HostKeyAlias": "stoker-test",
        "UserKnownHostsFile": folder / "known_hosts",
        "IdentityFile": folder / "user",
        "Port": port,
    }
    said = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-F", "none", *said, "127.0.0.1"]
