"""Commands beside a running program: in its control groups, as its user, with a terminal of their own if they want one.

    seat = take_seat(argv, folder=…, env=…, size=(24, 80), procs_files=…, user=…)
    os.read(seat.outputs[0], …); os.write(seat.input, …); seat.resize(40, 120)
    seat.child.poll(); seat.close()

Nothing of the command's environment is there before it is the command (`user_switch`).
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress

from stoker.host.processes import Child
from stoker.host.resources import own_group
from stoker.host.user_switch import SEATED, SWITCHED, start_script, written
from stoker.host.users import OtherUser


class AttachedCommand:
    """A command that was started, and our ends of what it reads and writes."""

    def __init__(self, child: Child, input_fd: int, outputs: tuple[int, ...], *, is_tty: bool) -> None:
        self.child = child
        self.input = input_fd
        """It reads what is written here."""
        self.outputs = outputs
        """What it writes can be read here: its output, then its errors; of a terminal everything at one."""
        self.is_tty = is_tty
        self._open = {input_fd, *outputs}

    def resize(self, rows: int, columns: int) -> None:
        """Say how large the terminal is now."""
        if self.is_tty:
            with suppress(OSError):
                _set_size(self.input, (rows, columns))

    def end_input(self) -> None:
        """Say that nothing more follows. Of a terminal, whoever types says so."""
        if not self.is_tty:
            self.close_one(self.input)

    def close_one(self, descriptor: int) -> None:
        """Let go of one end. Twice is fine."""
        if descriptor in self._open:
            self._open.discard(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Let go of all of them."""
        for descriptor in list(self._open):
            self.close_one(descriptor)


def take_seat(
    argv: Sequence[str],
    *,
    folder: str,
    env: Mapping[str, str],
    size: tuple[int, int] | None,
    procs_files: Sequence[str] = (),
    user: OtherUser | None = None,
) -> AttachedCommand:
    """Start a command; with a `size` at a terminal of that many rows and columns. Its first word is a path.

    What can't be executed, or a folder that can't be entered, is told on its errors; it ends with 126.
    """
    order = {
        "argv": list(argv),
        "folder": folder,
        "env": dict(env),
        "procs_files": list(procs_files),
        "is_tty": size is not None,
        "switched": SWITCHED,
        **({} if user is None else user.to_dict()),
    }
    with written(order) as descriptor:
        return _at_pipes(descriptor, env) if size is None else _at_terminal(descriptor, env, size, user)


def procs_files_of(pid: int) -> tuple[str, ...]:
    """Return the files by which others enter the control groups that limit a process's memory, if it has its own."""
    found = []
    for version in (2, 1):
        theirs, ours = (own_group("memory", version, of=who) for who in (pid, "self"))
        if theirs is not None and theirs != ours:
            found.append(os.path.join(theirs, "cgroup.procs"))
    return tuple(found)


def _at_pipes(descriptor: int, env: Mapping[str, str]) -> AttachedCommand:
    pipes = [os.pipe() for _ in range(3)]
    (stdin, our_in), (our_out, stdout), (our_errors, stderr) = pipes
    try:
        child = _start(descriptor, env, (stdin, stdout, stderr))
    except BaseException:
        for end in (our_in, our_out, our_errors):
            os.close(end)
        raise
    finally:
        for end in (stdin, stdout, stderr):
            os.close(end)
    return AttachedCommand(child, our_in, (our_out, our_errors), is_tty=False)


def _at_terminal(
    descriptor: int, env: Mapping[str, str], size: tuple[int, int], user: OtherUser | None
) -> AttachedCommand:
    ours, theirs = os.openpty()
    try:
        _set_size(ours, size)
        if user is not None:
            os.fchown(theirs, user.uid, -1)
        child = _start(descriptor, env, (theirs, theirs, theirs))
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return AttachedCommand(child, ours, (ours,), is_tty=True)


def _start(descriptor: int, env: Mapping[str, str], streams: tuple[int, int, int]) -> Child:
    stdin, stdout, stderr = streams
    return start_script(SEATED, descriptor, env, stdin=stdin, stdout=stdout, stderr=stderr)


def _set_size(terminal: int, size: tuple[int, int]) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
