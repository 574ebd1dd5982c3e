"""What processes have used, as the kernel tells it."""

from __future__ import annotations

import os
from pathlib import Path


def used_s(process: int) -> float:
    """The CPU time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family_used_s(process: int | None) -> float:
    """The CPU time of a process and its living children."""
    if process is None:
        return 0.0
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return used_s(process) + sum(used_s(int(child)) for child in children)
