"""The submitter: `user@host`, as the coordinator records it. Not authenticated."""

from __future__ import annotations

import getpass
from collections.abc import Mapping

from stoker.devices.this_machine import host_name


def who_asks(environment: Mapping[str, str]) -> str:
    """Return `user@host` of this process."""
    return f"{user_name()}@{host_name(environment)[0]}"


def user_name() -> str:
    """Return this user's name; a placeholder if the system has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
