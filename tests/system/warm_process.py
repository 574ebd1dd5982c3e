"""A process that has imported Stoker, and becomes a command in a fork of itself for whoever asks: a tenth of the work.

What a fork runs is what `python -m stoker` runs, in a process of its own, with its own folder, environment and streams.
It stands alone, as a script; `warm` speaks to it.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
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
    "cli",
    "app",
)
_MESSAGE_BYTES = 1 << 20


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
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    path = asked["env"].get("PYTHONPATH", "")
    sys.path[:0] = [os.path.abspath(part) for part in path.split(os.pathsep) if part]
    invalidate_caches()
    sys.argv = ["stoker", *asked["words"]]
    code: str | int | None = None
    try:
        runpy.run_module("stoker", run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        code = ending.code
    # As an interpreter ends, except that it does not take every module apart: that is most of the work.
    threading._shutdown()  # type: ignore[attr-defined]  # typeshed leaves out what is not meant for callers
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    assert not isinstance(code, str)
    os._exit(code or 0)


def _import_packages() -> None:
    for name in _PACKAGES:
        package = import_module(f"stoker.{name}")
        for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"stoker.{name}."):
            # Scripts of children and of migrations stand alone; and what draws is heavy, and seldom asked for.
            if not module.name.endswith(("_child", "_main", ".png")) and ".migrations." not in module.name:
                import_module(module.name)


def _serve(control: socket.socket) -> dict | None:
    """Return in every fork what was asked of it; in the first process nothing, at the end."""
    statuses: dict[int, tuple[int, int]] = {}
    while True:
        poll = select.poll()
        for descriptor in (control.fileno(), *statuses):
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll()]
        for watched in [one for one in ready if one in statuses]:
            pid, status = statuses.pop(watched)
            _, ended = os.waitpid(pid, 0)
            os.write(status, b"%d\n" % ended)
            os.close(watched)
            os.close(status)
        if control.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 4)
        if not message:
            return None
        *streams, status = descriptors
        pid = os.fork()
        if not pid:
            _take(streams, [control.detach(), status, *statuses, *(status for _, status in statuses.values())])
            return json.loads(message)
        for descriptor in streams:
            os.close(descriptor)
        os.write(status, b"%d\n" % pid)
        statuses[os.pidfd_open(pid)] = pid, status


def _take(streams: Sequence[int], foreign: Sequence[int]) -> None:
    """Put streams in place, and close what is of no business to a command."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in (*streams, *foreign):
        os.close(descriptor)


if __name__ == "__main__":
    main()
