"""Commands that start in a hundredth of a second: forks of a process that has imported everything already.

They are processes like any other, except for how they begin; `make soak` begins each of them anew. Python starts them
as `WarmCommand`, a shell by the `stoker` of a folder of programs (`make_warm_programs`).
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

from hypothesis import settings

_SCRIPT = Path(__file__).with_name("warm_process.py")
_CLIENT = Path(__file__).with_name("warm_client.py")
# What an interpreter, or the C library below it, reads while it starts. PYTHONPATH is followed in the fork.
_READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_", "GLIBC_", "TZ")


def starts_warm(env: Mapping[str, str]) -> bool:
    """Return whether a command starts warm: not where tests seek, nor where it would begin with something else."""
    return is_warm_run() and may_start_warm(env)


def is_warm_run() -> bool:
    """Return whether commands start warm where that makes no difference."""
    return settings.get_current_profile_name() == "steady"


def may_start_warm(env: Mapping[str, str]) -> bool:
    """Return whether a command that starts anew would find the interpreter and the signals that a warm one has."""
    is_ignoring = signal.SIG_IGN in map(signal.getsignal, (signal.SIGINT, signal.SIGHUP, signal.SIGTERM))
    return not is_ignoring and _read_at_start(env) == _read_at_start(_own())


class WarmCommand(subprocess.Popen[str]):
    """A command as if it had been started here: a fork sits in the place of the program that would be executed."""

    def __init__(
        self, words: list[str], *, folder: Path, env: Mapping[str, str], out: IO[bytes] | int = subprocess.PIPE
    ) -> None:
        """Start it; what it says goes into a file if one is given."""
        self._status = -1
        super().__init__(words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True)

    def _execute_child(self, args: list[str], *more: Any) -> None:
        cwd, env = more[4:6]
        reads, _, _, writes, _, complains = ends = more[9:15]
        self._status, theirs = os.pipe()
        message = json.dumps({"words": args, "folder": str(cwd), "env": env}).encode()
        try:
            socket.send_fds(_warm()[0], [message], [reads, writes, complains, theirs])
        finally:
            os.close(theirs)
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]  # typeshed has no part that is not for callers
        self.pid = self._hear()
        self._child_created = True

    def _hear(self) -> int:
        """Read one number: which process it is, later how it ended."""
        line = b""
        while not line.endswith(b"\n"):
            piece = os.read(self._status, 1)
            assert piece, f"the process that forks has ended: {_last_words()}"
            line += piece
        return int(line)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        is_told = bool(select.select([self._status], [], [], 0)[0])
        if wait_flags & os.WNOHANG and not is_told:
            return 0, 0
        ended = self._hear()
        os.close(self._status)
        return self.pid, ended

    def _internal_poll(self, **_: Any) -> int | None:
        if self.returncode is None:
            pid, ended = self._try_wait(os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(ended)
        return self.returncode


def make_warm_programs(folder: Path) -> Path:
    """Make an environment like that of the tests, whose `stoker` is a warm one; return its folder of programs."""
    cold = Path(sysconfig.get_path("scripts"))
    programs = folder / "bin"
    programs.mkdir()
    for program in cold.iterdir():
        (programs / program.name).symlink_to(program)
    # An interpreter looks for its environment beside the name that it was started by.
    if (described := Path(sys.prefix, "pyvenv.cfg")).exists():
        shutil.copy(described, folder)
        (folder / "lib").symlink_to(Path(sys.prefix, "lib"))
    _write_client(programs / "stoker", cold=cold / "stoker")
    return programs


def stoker_argv(env: Mapping[str, str]) -> list[str]:
    """Return the words that start a command behind other programs, in their namespaces: a warm one where it may be."""
    return [str(_warm_stoker())] if starts_warm(env) else [sys.executable, "-P", "-m", "stoker"]


@cache
def _warm_stoker() -> Path:
    file = Path(_door()).with_name("stoker")
    _write_client(file, cold=Path(sysconfig.get_path("scripts"), "stoker"))
    return file


def make_warm_python(file: Path, *, cold: Path, path: list[Path]) -> None:
    """Write a program that does what the interpreter `cold` does, which finds modules on this path as well."""
    _write_client(file, cold=cold, path=[str(folder) for folder in path])


def _write_client(file: Path, *, cold: Path, **more: Any) -> None:
    given = {
        "door": _door(),
        "cold": str(cold),
        "read_at_start": _READ_AT_START,
        "at_start": _read_at_start(_own()),
        **more,
    }
    file.unlink(missing_ok=True)
    file.write_text(f"#!{sys.executable} -IS\n{_CLIENT.read_text('utf-8')}\n\nmain(**{given!r})\n", "utf-8")
    file.chmod(0o755)


@cache
def _door() -> str:
    """Return the address at which programs ask the process that forks."""
    folder = Path(tempfile.mkdtemp(prefix="stoker-warm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(str(folder / "door"))
        door.listen(64)
        socket.send_fds(_warm()[0], [json.dumps({"door": True}).encode()], [door.fileno()])
    return str(folder / "door")


@cache
def _warm() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Return the way to the process that forks, and it. It ends with this one, which holds the other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        forks = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT), str(theirs.fileno())],
            env=_own(),
            pass_fds=[theirs.fileno()],
            # Pipes, as commands get: a stream is made for what it stands on.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    return ours, forks


def _last_words() -> str:
    out, _ = _warm()[1].communicate()
    return out.decode()


@cache
def _own() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("STOKER", "PYTEST", "PYTHON"))}


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_START) and name != "PYTHONPATH"}
