"""This home as jobs' code, data and environments see it, joined."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from stoker.assembly.environments import maker_of
from stoker.hardware.host_name import host_name
from stoker.worker.preparing.data_shelf import DataShelf
from stoker.worker.preparing.here import Here
from stoker.worker.preparing.workspaces import Workspaces

if TYPE_CHECKING:
    from stoker.assembly.settings import Settings
    from stoker.host.other_user import OtherUser
    from stoker.model.clock import Clock
    from stoker.store.local import LocalStore


class _House(Protocol):
    settings: Settings

    @property
    def clock(self) -> Clock: ...
    @property
    def store(self) -> LocalStore: ...


def here_of(
    house: _House, *, may_read_in_place: bool, user: OtherUser | None = None, keeps_workspaces: bool = False
) -> tuple[Here, DataShelf]:
    """Return what looks for jobs' needs in a home, and the shelf that their data lies on.

    `user` is the one that the job runs as whose needs are brought: environments are built as that user.
    """
    settings = house.settings
    workspaces = os.path.join(settings.home, "workspaces")
    data = DataShelf(os.path.join(workspaces, ".data"), house.store, house.clock)
    here = Here(
        store=lambda: house.store,
        maker=maker_of(settings, house.clock, user=user),
        workspaces=Workspaces(workspaces, settings.runs, keeps=keeps_workspaces),
        data=lambda: data,
        host=host_name(settings.environment)[0],
        may_read_in_place=may_read_in_place,
    )
    return here, data
