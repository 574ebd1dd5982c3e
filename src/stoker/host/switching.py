"""Programs started as another user: inside their box first, as root, and then that user for good.

Nothing that the program's owner chose is there before the switch: not its environment (a library that it names would
run as root), not its folder. All of it waits in a descriptor, which the few lines of `switched` read, and which never
touches a disk. After the switch nothing leads back: no privilege can be gained, nothing of ours is open.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from stoker.host.containment.box import MARK
from stoker.host.durable import write_all
from stoker.host.entry import Entry
from stoker.host.other_user import OtherUser
from stoker.host.processes import Child, Stream, start
from stoker.model.errors import ContainmentUnavailable

_SCRIPT = os.path.join(os.path.dirname(__file__), "switched.py")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def start_as(  # noqa: PLR0913 - what a process is made of
    user: OtherUser,
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
    entry: Entry | None = None,
) -> Child:
    """Start a program as another user, the leader of its own session. Raises as `processes.start` does.

    A folder that the user may not enter, or a program that it may not execute, is told on the program's standard error;
    it ends with 126.
    """
    if sys.platform != "linux":
        raise ContainmentUnavailable("programs run as other users on Linux only")
    order = {"argv": list(argv), "folder": cwd, "env": dict(env), **user.to_dict()}
    descriptor = os.memfd_create("stoker-order", os.MFD_CLOEXEC)
    try:
        write_all(descriptor, json.dumps(order).encode("ascii"), 0)
        ours = {"PATH": _PATH, "LC_ALL": "C.UTF-8", MARK: env.get(MARK, "")}
        command = [sys.executable, "-I", "-S", "-B", _SCRIPT, str(descriptor)]
        return start(command, cwd="/", env=ours, stdout=stdout, stderr=stderr, entry=entry, pass_fds=(descriptor,))
    finally:
        os.close(descriptor)
