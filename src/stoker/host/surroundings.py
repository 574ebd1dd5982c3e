"""This computer and this interpreter as a job's record names them, so that two runs can be told apart later."""

from __future__ import annotations

import os
import sys


def surroundings() -> dict[str, str]:
    """Give what is worth knowing of where something ran; it never enters a key."""
    about = os.uname()
    return {
        "host": about.nodename,
        "system": f"{about.sysname} {about.release}",
        "machine": about.machine,
        "cpus": str(os.cpu_count() or "?"),
        "stoker's python": f"{sys.implementation.name} {'.'.join(map(str, sys.version_info[:3]))}",
    }
