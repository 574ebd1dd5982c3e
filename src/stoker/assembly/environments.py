"""Python environments of this home, joined: their folder, the user's settings, our own interpreter and its uv."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from stoker.host.disk import existing_above
from stoker.model.errors import Usage
from stoker.model.resources import GIB
from stoker.model.units import parse_size
from stoker.worker.environments.making import Maker
from stoker.worker.environments.shelf import Shelf

if TYPE_CHECKING:
    from stoker.assembly.settings import Settings
    from stoker.host.other_user import OtherUser
    from stoker.model.clock import Clock


_PART = 5
"""Of the disk, so small a part is for environments, unless STOKER_ENVS says how much."""
_LEAST_BYTES = 10 * GIB


def maker_of(settings: Settings, clock: Clock, *, user: OtherUser | None = None) -> Maker:
    """Return what finds and makes environments here, as a job's user if one is given. Nothing is looked at yet."""
    return Maker(
        shelf=Shelf(settings.envs, clock=clock),
        user=user,
        keep_bytes=_keep_bytes(settings),
        environment=settings.environment,
        own_prefix=sys.prefix,
        clock=clock,
    )


def _keep_bytes(settings: Settings) -> int:
    said = settings.environment.get("STOKER_ENVS", "")
    if said:
        try:
            return parse_size(said)
        except ValueError as error:
            raise Usage(f"STOKER_ENVS: {error}", hint="a size such as 50G") from None
    disk = os.statvfs(existing_above(settings.home))
    return max(_LEAST_BYTES, disk.f_blocks * disk.f_frsize // _PART)
