"""The operating system's table of processes, as rows.

Reads only; nothing here signals anything. A row is a moment's truth: whoever acts on one checks `start_ticks` again,
because numbers are reused. On Linux rows come from `/proc`. Elsewhere they come from `ps`, which knows start times
only to the second; that half is untested. Kept free of heavy imports: every durable write asks it who we are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

if sys.platform != "linux":
    import calendar
    import subprocess
    import time


class ProcessRow(NamedTuple):
    """One process. A tuple and not a dataclass, because a scan makes hundreds."""

    pid: int
    parent_pid: int
    group: int
    session: int
    state: str
    threads: int
    start_ticks: int
    """Clock ticks since boot on Linux, seconds since 1970 elsewhere; only equality means something."""

    @property
    def is_gone(self) -> bool:
        """Whether it no longer runs: a zombie only waits to be counted.

        A process whose first thread has ended is called a zombie too while other threads go on.
        """
        return self.state in {"Z", "X"} and self.threads <= 1


def living_rows() -> Iterator[ProcessRow]:
    """Return every process that still runs."""
    return (row for row in rows() if not row.is_gone)


if sys.platform == "linux":

    def read_row(pid: int) -> ProcessRow | None:
        """Return one process, zombies included; `None` if there is none, or we are not allowed to see it."""
        try:
            fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return None
        try:
            # 52 numbers of at most 20 digits and a name of at most 64 bytes fit into one read.
            text = os.read(fd, 4096)
        except ProcessLookupError:
            return None
        finally:
            os.close(fd)
        return _parse_stat(pid, text)

    def are_numbers_ours() -> bool:
        """Whether the table is that of our own namespace: in a new one, /proc may be missing or still the old one's."""
        try:
            return os.readlink("/proc/self") == str(os.getpid())
        except OSError:
            return False

    def users_of(pid: int) -> frozenset[int]:
        """Return the users that a process acts for: real, effective, saved. None at all if that can't be told."""
        try:
            with open(f"/proc/{pid}/status", "rb") as file:
                words = next((line.split() for line in file if line.startswith(b"Uid:")), [])
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return frozenset()
        return frozenset(map(int, words[1:]))

    def rows() -> Iterator[ProcessRow]:
        """Return every process that we can see, zombies included."""
        for name in os.listdir("/proc"):
            if name.isdigit() and (row := read_row(int(name))) is not None:
                yield row

    def _parse_stat(pid: int, text: bytes) -> ProcessRow:
        # The name stands in parentheses and may itself hold spaces and parentheses: count from the last one.
        fields = text[text.rindex(b")") + 2 :].split()
        return ProcessRow(
            pid=pid,
            parent_pid=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            state=fields[0].decode("ascii"),
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
        )

else:

    def read_row(pid: int) -> ProcessRow | None:
        """Return one process, zombies included; `None` if there is none."""
        return next(_ask_ps("-p", str(pid)), None)

    def are_numbers_ours() -> bool:
        """Return whether the table is that of our own namespace."""
        return True

    def users_of(_pid: int) -> frozenset[int]:
        """Return the users that a process acts for; here nobody tells."""
        return frozenset()

    def rows() -> Iterator[ProcessRow]:
        """Return every process that we can see, zombies included."""
        return _ask_ps("-A")

    def _ask_ps(*which: str) -> Iterator[ProcessRow]:
        if sys.platform == "win32":
            return
        columns = "pid=,ppid=,pgid=,stat=,lstart="
        answer = subprocess.run(
            ["/bin/ps", *which, "-o", columns],
            env={"LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        for line in answer.stdout.splitlines():
            pid, parent_pid, group, state, started = line.split(maxsplit=4)
            yield ProcessRow(
                pid=int(pid),
                parent_pid=int(parent_pid),
                group=int(group),
                # What ps calls the session is an address on macOS. Whoever we start leads both its group and session.
                session=int(group),
                state=state[0],
                threads=1,
                start_ticks=calendar.timegm(time.strptime(started, "%a %b %d %H:%M:%S %Y")),
            )
