"""How a child enters its box before it becomes the program or runs the stage.

A program is started through a few lines of `/bin/sh` that move their own process into the box, set its limits and then
become the program: same process number, same start, and not one instruction of the program outside. (Python's own
hook between fork and exec is unsafe in a process with threads.) Forked work does the same by `enter`.

Both report at their gate, a socket: an optional wait for a line that lets them in, then `in`, or the reason why not.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import stat
from collections.abc import Mapping, Sequence

from stoker.core.errors import ContainmentUnavailable
from stoker.core.frozen import frozen
from stoker.host.durable import StrPath, translate

BOX_REFUSED = "box_refused"
"""The only event of forked work that could not enter its box; it carries the reason."""

_INSIDE = b"in\n"
_GO = b"go\n"
_ENTRY_WAIT_S = 10.0
# Variables that shells add if the program's environment does not have them. Bash as `sh` insists on the last two,
# which do no harm.
_SHELL_VARIABLES = ("OLDPWD", "PWD", "SHLVL", "_")

# Standard input is the gate: a shell can only name descriptors of one digit, and only the first three can be placed.
_SHIM = """
if [ "$1" = gated ]; then read -r stoker_word || exit 125; fi
stoker_limit=$2 stoker_files=$3 stoker_unset=$4
shift 4
while [ "$stoker_files" -gt 0 ]; do
  { echo 0 > "$1"; } 2>&0 || exit 125
  shift
  stoker_files=$((stoker_files - 1))
done
if [ -n "$stoker_limit" ]; then { ulimit -v "$stoker_limit"; } 2>&0 || exit 125; fi
echo in >&0
unset -v $stoker_unset stoker_word stoker_limit stoker_files stoker_unset
exec "$@" </dev/null
"""


@frozen
class ChildSetup:
    """What a child does itself before it becomes the program."""

    procs_files: tuple[str, ...] = ()
    """Files of control groups; the child writes itself into each."""
    address_space_bytes: int | None = None
    gate_fd: int | None = None
    """The child's end of a gate at which it waits until its box lets it in. The box owns it."""

    @property
    def is_empty(self) -> bool:
        return not self.procs_files and self.address_space_bytes is None and self.gate_fd is None


def find_program(name: str, *, cwd: StrPath, env: Mapping[str, str]) -> str:
    """Return the file that would be run, as the operating system would find it in the child.

    Raises `LocalFile` or `NoPermission`, as a start without a box does.
    """
    folder = os.fspath(cwd)
    if not os.path.isdir(folder):
        raise translate(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), folder)
    places = [""] if "/" in name else env.get("PATH", os.defpath).split(os.pathsep)
    number = errno.ENOENT
    for place in places:
        path = os.path.join(place, name)
        try:
            mode = os.stat(os.path.join(folder, path)).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            number = error.errno or number
            continue
        if stat.S_ISREG(mode) and os.access(os.path.join(folder, path), os.X_OK):
            _check_interpreter(os.path.join(folder, path))
            return path if "/" in path else os.path.join(".", path)
        number = errno.EACCES
    raise translate(OSError(number, os.strerror(number)), name)


def through_shell(entry: ChildSetup, program: str, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the command that enters a box and then becomes the program."""
    limit_bytes = _lowered(entry.address_space_bytes)
    unset = [name for name in _SHELL_VARIABLES if name not in env]
    # `env` sets it again, unless it would take the program for an assignment.
    dropped = [] if "=" in program else [f"{name}={value}" for name, value in env.items() if _is_dropped(name)]
    return [
        "/bin/sh", "-c", _SHIM, "sh",
        "open" if entry.gate_fd is None else "gated",
        "" if limit_bytes is None else str(limit_bytes // 1024),
        str(len(entry.procs_files)), " ".join(unset), *entry.procs_files,
        *(["/usr/bin/env", *dropped] if dropped else []), program, *argv[1:],
    ]  # fmt: skip


def enter(entry: ChildSetup) -> None:
    """Enter the box: for a process of ours that has just been forked. Raises `OSError` if it can't."""
    door = None if entry.gate_fd is None else socket.socket(fileno=entry.gate_fd)
    if door is not None and not door.recv(len(_GO)):
        raise ConnectionResetError(errno.ECONNRESET, "the box was closed")
    for path in entry.procs_files:
        fd = os.open(path, os.O_WRONLY)
        try:
            # Zero stands for the writing process.
            os.write(fd, b"0")
        finally:
            os.close(fd)
    limit_bytes = _lowered(entry.address_space_bytes)
    if limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    if door is not None:
        door.sendall(_INSIDE)
        door.close()


def let_in(door: socket.socket) -> None:
    """Let a child in that waits at its gate, and wait until it is inside. Raises `ContainmentUnavailable`."""
    try:
        door.sendall(_GO)
    except OSError as error:
        raise ContainmentUnavailable(f"the program did not wait for its box: {error.strerror}") from error
    see_in(door)


def see_in(door: socket.socket) -> None:
    """Wait until a child reports at its gate that it is inside. Raises `ContainmentUnavailable` with its reason."""
    received = b""
    poller = select.poll()
    poller.register(door, select.POLLIN)
    while poller.poll(_ENTRY_WAIT_S * 1000):
        try:
            chunk = door.recv(4096)
        except ConnectionResetError:
            chunk = b""
        received += chunk
        if received == _INSIDE:
            return
        if not chunk:
            reason = (
                received.decode(errors="replace").strip().replace("\n", "; ") or "the process exited before it entered"
            )
            raise not_let_in(reason)
    raise ContainmentUnavailable(f"a program is not in its box after {_ENTRY_WAIT_S:.0f} s")


def not_let_in(reason: str) -> ContainmentUnavailable:
    """Return the error for a process that could not enter."""
    return ContainmentUnavailable(f"a process can't enter its box: {reason}", hint="choose another containment")


def _is_dropped(name: str) -> bool:
    """Return True if some shell hides a variable: one that it can't name, or uses itself."""
    return not (name.isascii() and name.isidentifier()) or name in {"IFS", "OPTIND", "PPID"}


def _lowered(limit_bytes: int | None) -> int | None:
    """Return a limit that an unprivileged process may set: never above its current one."""
    if limit_bytes is None:
        return None
    _, hard_bytes = resource.getrlimit(resource.RLIMIT_AS)
    return limit_bytes if hard_bytes == resource.RLIM_INFINITY else min(limit_bytes, hard_bytes)


def _check_interpreter(path: str) -> None:
    """Check that a script's first line names a program: once a shell has become it, the error would be lost."""
    try:
        with open(path, "rb") as file:
            first = file.read(256)
    except OSError:
        return
    if not first.startswith(b"#!"):
        return
    words = first[2:].split(b"\n", 1)[0].split()
    if words and not os.path.exists(words[0]):
        name = os.fsdecode(words[0])
        error = translate(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), name)
        error.hint = f"the first line of {path} names it"
        raise error
