"""Script that runs as root, becomes another user for good, then the program. See `user_switch`.

Imports a small part of the standard library only: it runs before every program of a job.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from typing import Any

_PR_SET_NO_NEW_PRIVS = 38
_NOT_STARTED = 126


def main() -> None:
    """Read the order from the named descriptor, and become the program in it."""
    with open(int(sys.argv[1]), "rb") as file:
        file.seek(0)
        order: dict[str, Any] = json.load(file)
    os.setgroups(order["groups"])
    os.setresgid(order["gid"], order["gid"], order["gid"])
    os.setresuid(order["uid"], order["uid"], order["uid"])
    if ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(number) for number in (1, 0, 0, 0))):
        _give_up(order, "could gain privileges: the kernel does not forbid it")
    os.umask(0o077)
    # A core file would be where others may read it.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        os.chdir(order["folder"])
    except OSError as error:
        _give_up(order, f"can't enter {order['folder']}: {error.strerror}")
    argv = order["argv"]
    try:
        os.execve(argv[0], argv, order["env"])
    except OSError as error:
        _give_up(order, f"can't execute {argv[0]}: {error.strerror}")


def _give_up(order: dict[str, Any], why: str) -> None:
    sys.stderr.write(f"stoker: the job's user {order['name']} {why}\n")
    sys.stderr.flush()
    os._exit(_NOT_STARTED)


if __name__ == "__main__":
    main()
