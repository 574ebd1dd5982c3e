"""Run as a script of its own: take the place that a command is to run at, then become the command. See `seating`.

Into the control groups of the job that it runs beside, in front of its terminal, as the job's user where that is
another one. Only the standard library, and little of it.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import termios
from typing import Any

_NOT_STARTED = 126


def main() -> None:
    """Read the order from the descriptor that is named, and become what it says."""
    descriptor = int(sys.argv[1])
    with open(descriptor, "rb", closefd=False) as file:
        order: dict[str, Any] = json.load(file)
    for path in order["procs_files"]:
        # Where the job's groups can't be entered, its mark still leads to this process.
        try:
            with open(path, "wb", buffering=0) as file:
                file.write(b"0")
        except OSError:
            continue
    if order["is_tty"]:
        # We lead a new session, which has no terminal yet.
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if "uid" in order:
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-B", order["switched"], str(descriptor)])
    os.set_inheritable(descriptor, False)
    try:
        os.chdir(order["folder"])
        os.execve(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        sys.stderr.write(f"stoker: can't run {error.filename or order['argv'][0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(_NOT_STARTED)


if __name__ == "__main__":
    main()
