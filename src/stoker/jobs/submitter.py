"""Who asks: `user@host`, as the coordinator records it. Said by the program itself, and proof of nothing."""

from __future__ import annotations

import getpass
from collections.abc import Mapping

from stoker.devices.this_machine import host_name


def who_asks(environment: Mapping[str, str]) -> str:
    """Name this user on this machine."""
    return f"{user_name()}@{host_name(environment)[0]}"


def user_name() -> str:
    """Name this user; one whom the system does not know is somebody all the same."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"
