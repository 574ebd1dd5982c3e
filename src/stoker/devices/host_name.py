"""What this machine is called: by itself, since every command asks and needs nothing else of detection for it."""

from __future__ import annotations

import os
from collections.abc import Mapping

HOST_VARIABLE = "FLEET_HOST_ID"


def host_name(environment: Mapping[str, str], override: str = "") -> tuple[str, str]:
    """Give this machine's name, and who says it: whoever overrides it, else FLEET_HOST_ID, else the machine."""
    if override:
        return override, "as asked"
    if named := environment.get(HOST_VARIABLE, "").strip():
        return named, HOST_VARIABLE
    # what `socket.gethostname` says, without the 4 ms that importing `socket` takes
    return os.uname().nodename, "hostname"
