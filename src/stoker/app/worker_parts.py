"""This home as jobs' code, data and environments see it, joined."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Protocol

from stoker.core.device import GIB
from stoker.core.errors import Usage
from stoker.core.text import parse_size
from stoker.devices.this_machine import host_name
from stoker.host.resources import existing_above
from stoker.worker.environments.environment_builder import Maker
from stoker.worker.environments.environment_cache import EnvironmentCache
from stoker.worker.preparation.input_check import LocalInputs
from stoker.worker.preparation.workspaces import DataCache, Workspaces

if TYPE_CHECKING:
    from stoker.app.settings import AppSettings
    from stoker.core.clock import Clock
    from stoker.host.users import OtherUser
    from stoker.store.local_store import LocalStore


# Python environments of this home, joined: their folder, the user's settings, our own interpreter and its uv.

_PART = 5
"""Of the disk, so small a part is for environments, unless STOKER_ENVS says how much."""
_LEAST_BYTES = 10 * GIB


def maker_of(settings: AppSettings, clock: Clock, *, user: OtherUser | None = None) -> Maker:
    """Return what finds and makes environments here, as a job's user if one is given. Nothing is looked at yet."""
    return Maker(
        shelf=EnvironmentCache(settings.envs, clock=clock),
        user=user,
        keep_bytes=_keep_bytes(settings),
        environment=settings.environment,
        own_prefix=sys.prefix,
        clock=clock,
    )


def _keep_bytes(settings: AppSettings) -> int:
    said = settings.environment.get("STOKER_ENVS", "")
    if said:
        try:
            return parse_size(said)
        except ValueError as error:
            raise Usage(f"STOKER_ENVS: {error}", hint="a size such as 50G") from None
    disk = os.statvfs(existing_above(settings.home))
    return max(_LEAST_BYTES, disk.f_blocks * disk.f_frsize // _PART)


class _House(Protocol):
    settings: AppSettings

    @property
    def clock(self) -> Clock: ...
    @property
    def store(self) -> LocalStore: ...


def here_of(
    house: _House, *, may_read_in_place: bool, user: OtherUser | None = None, keeps_workspaces: bool = False
) -> tuple[LocalInputs, DataCache]:
    """Return what looks for jobs' needs in a home, and the shelf that their data lies on.

    `user` is the one that the job runs as whose needs are brought: environments are built as that user.
    """
    settings = house.settings
    workspaces = os.path.join(settings.home, "workspaces")
    data = DataCache(os.path.join(workspaces, ".data"), house.store, house.clock)
    here = LocalInputs(
        store=lambda: house.store,
        maker=maker_of(settings, house.clock, user=user),
        workspaces=Workspaces(workspaces, settings.runs, keeps=keeps_workspaces),
        data=lambda: data,
        host=host_name(settings.environment)[0],
        may_read_in_place=may_read_in_place,
    )
    return here, data
