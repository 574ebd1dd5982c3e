"""Small scripts of ours that become another program: what they are told, and how they are started.

Nothing that the program's owner chose is there before it is the program: not its environment (a library that it names
would run as us), not its folder. All of it waits in a descriptor, which never touches a disk where the system can do
without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from stoker.host.containment.box import MARK
from stoker.host.durable import write_all
from stoker.host.entry import Entry
from stoker.host.processes import Child, Stream, start

_HERE = os.path.dirname(__file__)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SEATED = os.path.join(_HERE, "seated.py")
SWITCHED = os.path.join(_HERE, "switched.py")


@contextmanager
def written(order: Mapping[str, object]) -> Iterator[int]:
    """Give a descriptor with an order in it, for the length of the block."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("stoker-order", os.MFD_CLOEXEC)
    else:
        descriptor, path = tempfile.mkstemp()
        os.unlink(path)
    try:
        write_all(descriptor, json.dumps(order).encode("ascii"), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def start_script(  # noqa: PLR0913 - what a process is made of
    script: str,
    descriptor: int,
    env: Mapping[str, str],
    *,
    stdout: Stream,
    stderr: Stream,
    stdin: Stream = subprocess.DEVNULL,
    entry: Entry | None = None,
) -> Child:
    """Start one of the scripts with an order; of the program's variables it has the mark of its box alone."""
    ours = {"PATH": _PATH, "LC_ALL": "C.UTF-8", MARK: env.get(MARK, "")}
    command = [sys.executable, "-I", "-S", "-B", script, str(descriptor)]
    return start(
        command, cwd="/", env=ours, stdin=stdin, stdout=stdout, stderr=stderr, entry=entry, pass_fds=(descriptor,)
    )
