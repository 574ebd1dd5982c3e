"""Programs started as another user: inside their box first, as root, and then that user for good.

Nothing that the program's owner chose is there before the switch, which the few lines of `switched` make: it waits in
an order (`script_orders`). After the switch nothing leads back: no privilege can be gained, nothing of ours is open.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

from stoker.host.entry import Entry
from stoker.host.other_user import OtherUser
from stoker.host.processes import Child, Stream
from stoker.host.script_orders import SWITCHED, start_script, written
from stoker.model.errors import ContainmentUnavailable


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
    with written({"argv": list(argv), "folder": cwd, "env": dict(env), **user.to_dict()}) as descriptor:
        return start_script(SWITCHED, descriptor, env, stdout=stdout, stderr=stderr, entry=entry)
