"""Script that moves itself to where a command is to run, then becomes the command. See `user_switch.attach`.

It enters the control groups of the job that it runs beside, takes a terminal, and becomes the job's user if that is
another one. Imports a small part of the standard library only.
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
    """Read the order from the named descriptor, and become the command in it."""
    descriptor = int(sys.argv[1])
    with open(descriptor, "rb", closefd=False) as file:
        order: dict[str, Any] = json.load(file)
    for path in order["procs_files"]:
        # If the job's groups can't be entered, its mark still leads to this process.
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
