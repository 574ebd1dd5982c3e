"""A process that has imported Stoker, and becomes a command in a fork of itself for whoever asks: a tenth of the work.

What a fork runs is what `python -m stoker` runs, in a process of its own, with its own folder, environment and streams.
It stands alone, as a script; `warm` speaks to it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module, invalidate_caches

# Rooms whose modules commands import as they go. Not cookbooks: what is imported of those is a part of their identity.
_PACKAGES = (
    "core",
    "host",
    "config",
    "store",
    "devices",
    "protocol",
    "engine",
    "transfer",
    "scheduler",
    "jobs",
    "views",
    "coordinator",
    "worker",
    "launch",
    "api",
    "web",
    "cli",
    "app",
)
# What a coordinator's server imports as it starts.
_LIBRARIES = (
    "anyio._backends._asyncio",
    "uvicorn.lifespan.off",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
)
_MESSAGE_BYTES = 1 << 20
_NAMESPACES = {"net": 0x40000000, "pid": 0x20000000, "mnt": 0x00020000, "uts": 0x04000000}
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Import, then fork for every message until nobody can send one any more."""
    _import_packages()
    import_module("stoker.core.frozen").compile_constructors()
    import_module("stoker.protocol.codec").build_messages()
    # Collecting would write to every page that forks share.
    gc.collect()
    gc.freeze()
    # Ctrl-C is for whoever runs the tests, and ends this without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asked = _Forks(socket.socket(fileno=int(sys.argv[1]))).serve()
    if asked is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in asked.get("ignored", ()):
        signal.signal(number, signal.SIG_IGN)
    if "umask" in asked:
        os.umask(asked["umask"])
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    path = asked["env"].get("PYTHONPATH", "")
    sys.path[:0] = [os.path.abspath(part) for part in path.split(os.pathsep) if part]
    invalidate_caches()
    code: str | int | None = None
    try:
        if "interpreter" in asked:
            _run_python(asked["words"], **asked["interpreter"])
        else:
            sys.argv = ["stoker", *asked["words"]]
            runpy.run_module("stoker", run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        code = ending.code
    # As an interpreter ends, except that it does not take every module apart: that is most of the work.
    threading._shutdown()  # type: ignore[attr-defined]  # typeshed leaves out what is not meant for callers
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if isinstance(code, str):
        os.write(2, f"{code}\n".encode())
        os._exit(1)
    os._exit(code or 0)


def _run_python(words: list[str], *, executable: str, path: list[str]) -> None:
    """Do what `executable` does with a script, `-m` or `-c`, where it finds more modules than this process."""
    sys.executable = executable
    sys.path[:0] = path
    match words:
        case ["-m", module, *rest]:
            sys.argv = [module, *rest]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *rest]:
            sys.argv = ["-c", *rest]
            sys.path.insert(0, "")
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case [script, *rest]:
            sys.argv = [script, *rest]
            sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
            runpy.run_path(script, run_name="__main__")


def _import_packages() -> None:
    for name in _PACKAGES:
        package = import_module(f"stoker.{name}")
        for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"stoker.{name}."):
            # Scripts of children and of migrations stand alone; and what draws is heavy, and seldom asked for.
            if not module.name.endswith(("_child", "_main", ".png")) and ".migrations." not in module.name:
                import_module(module.name)
    for name in _LIBRARIES:
        # Where it is not installed, a coordinator does without it.
        with suppress(ImportError):
            import_module(name)


class _Forks:
    """The commands that run, and where to say what came of each."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._doors: dict[int, socket.socket] = {}
        """Sockets at which clients ask (`warm_client`), by their descriptors."""
        self._running: dict[int, tuple[int, int]] = {}
        """Process and the place for its status, by the descriptor that tells of its end."""
        self._clients: dict[int, int] = {}
        """Process, by the connection of the client that waits for it."""

    def serve(self) -> dict | None:
        """Return in every fork what was asked of it; in the first process nothing, at the end."""
        while True:
            poll = select.poll()
            for descriptor in (self._control.fileno(), *self._doors, *self._running, *self._clients):
                poll.register(descriptor, select.POLLIN)
            for ready, _ in poll.poll():
                if ready in self._running:
                    self._end(ready)
                elif ready in self._clients:
                    # Its client was killed, in the place of the command.
                    os.kill(self._clients.pop(ready), signal.SIGKILL)
                elif (message := self._message(ready)) is not None:
                    return message or None

    def _end(self, descriptor: int) -> None:
        pid, status = self._running.pop(descriptor)
        self._clients.pop(status, None)
        _, ended = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):
            os.write(status, b"%d\n" % ended)
        os.close(descriptor)
        os.close(status)

    def _message(self, descriptor: int) -> dict | None:
        """Take a message; return it in a fork, nothing here, and an empty one if no other can come."""
        if descriptor in self._doors:
            connection, _ = self._doors[descriptor].accept()
            message, streams, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 3)
            client = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            status = connection.detach()
            if not message:
                os.close(status)
                return None
            message = json.dumps({**json.loads(message), "client": client}).encode()
        elif descriptor == self._control.fileno():
            message, descriptors, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 4)
            if not message:
                return {}
            *streams, status = descriptors
        else:
            # A client whose command has just ended.
            return None
        asked: dict = json.loads(message)
        if asked.get("door"):
            self._doors[status] = socket.socket(fileno=status)
            return None
        pid = os.fork()
        if not pid:
            others = [door.detach() for door in self._doors.values()]
            others += [*self._running, *(other for _, other in self._running.values())]
            if "client" in asked:
                _enter_namespaces(asked["client"])
            os.write(status, b"%d\n" % os.getpid())
            _take(streams, [self._control.detach(), status, *others])
            return asked
        for stream in streams:
            os.close(stream)
        self._running[os.pidfd_open(pid)] = pid, status
        if descriptor in self._doors:
            self._clients[status] = pid
        return None


def _enter_namespaces(client: int) -> None:
    """Go on in the namespaces of a client, in a child if it has process numbers of its own."""
    flags = sum(
        flag
        for name, flag in _NAMESPACES.items()
        if os.readlink(f"/proc/{client}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    )
    if not flags:
        return
    with open(os.pidfd_open(client)) as descriptor:
        if _libc.setns(descriptor.fileno(), flags):
            raise OSError(ctypes.get_errno(), "setns")
    if not flags & _NAMESPACES["pid"]:
        return
    # Only children get a number there. This process ends as its child does, and takes it along.
    child = os.fork()
    if not child:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _take(streams: Sequence[int], foreign: Sequence[int]) -> None:
    """Put streams in place, and close what is of no business to a command."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in (*streams, *foreign):
        os.close(descriptor)


if __name__ == "__main__":
    main()
