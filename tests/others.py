"""Other users of this machine, in tests that run as root; and other processes, which are suspended."""

from __future__ import annotations

import codecs
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """Make a folder that everybody may enter. Not below pytest's own: each pytest that starts closes that to others."""
    with tempfile.TemporaryDirectory(prefix="stoker-for-all-") as name:
        # Who is somebody else may not be able to load it: this interpreter can lie in its owner's home.
        codecs.lookup("ascii")
        folder = Path(name)
        folder.chmod(0o755)
        for above in folder.parents:
            if not above.stat().st_mode & 0o001:
                above.chmod(0o755)
        yield folder


def suspend(pid: int) -> None:
    """Stop a process until SIGCONT; return when all of its threads are: the others go on until one takes the signal."""
    os.kill(pid, signal.SIGSTOP)
    deadline_s = time.monotonic() + 60
    while any(_state(status) not in "TtZX" for status in Path(f"/proc/{pid}/task").glob("*/stat")):
        assert time.monotonic() < deadline_s, f"process {pid} did not stop"
        time.sleep(0.001)


def _state(status: Path) -> str:
    try:
        return status.read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
