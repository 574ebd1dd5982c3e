"""A command that a warm process runs in a fork: the `stoker` or the `python` of a folder of programs.

It imports the standard library alone, without `site`, and so starts in a fiftieth of a second. `warm` writes it with a
call of `main` at its end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress

_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main(
    *, door: str, cold: str, read_at_start: tuple[str, ...], at_start: dict[str, str], path: list[str] | None = None
) -> None:
    """Run the command of this process by the warm one behind a socket.

    `at_start` is what that one read of its environment as it started; where it would differ, `cold` is executed.
    It is an interpreter if there is a `path`, which it puts before its own.
    """
    # Until there is a command to forward signals to, they end this process.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    ignored = [number for number in _FORWARDED if signal.getsignal(number) is signal.SIG_IGN]
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    read = {name: value for name, value in os.environ.items() if name.startswith(read_at_start)}
    folders = read.pop("PYTHONPATH", "").split(os.pathsep)
    is_customized = any(os.path.exists(os.path.join(folder, "sitecustomize.py")) for folder in folders if folder)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    is_usual = path is None or not sys.argv[1].startswith("-") or sys.argv[1] in ("-m", "-c")
    if read != at_start or is_customized or not is_usual or connection.connect_ex(door):
        os.execv(cold, [cold, *sys.argv[1:]])
    umask = os.umask(0o077)
    message = {
        "words": sys.argv[1:],
        "folder": os.getcwd(),
        "env": dict(os.environ),
        "ignored": [int(number) for number in ignored],
        "umask": umask,
    }
    if path is not None:
        message["interpreter"] = {"executable": cold, "path": path}
    socket.send_fds(connection, [json.dumps(message).encode()], [0, 1, 2])
    pid = int(_read(connection))
    for number in _FORWARDED:
        if number not in ignored:
            signal.signal(number, lambda number, _: _forward(pid, number))
    status = int(_read(connection))
    if os.WIFSIGNALED(status):
        ending = os.WTERMSIG(status)
        if ending != signal.SIGKILL:
            signal.signal(ending, signal.SIG_DFL)
        os.kill(os.getpid(), ending)
    os._exit(os.WEXITSTATUS(status))


def _forward(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _read(connection: socket.socket) -> bytes:
    received = connection.recv(64)
    if not received:
        # The process that forks has ended.
        os._exit(70)
    return received
