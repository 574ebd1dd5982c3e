"""The settings: where things lie and what they are called, as the environment says."""

from __future__ import annotations

import os
from collections.abc import Mapping

from stoker.model.frozen import frozen


@frozen
class Settings:
    """Where things lie and what they are called."""

    home: str
    folder: str
    """Where the command was given."""
    environment: Mapping[str, str]

    @property
    def store(self) -> str:
        return os.path.join(self.home, "store")

    @property
    def runs(self) -> str:
        return os.path.join(self.home, "runs")

    @property
    def state(self) -> str:
        return os.path.join(self.home, "state")

    @property
    def scratch(self) -> str:
        return os.path.join(self.home, "scratch")

    @property
    def envs(self) -> str:
        """Python environments that jobs run in."""
        return os.path.join(self.home, "envs")

    @property
    def fleet(self) -> str:
        """What a coordinator of this home keeps."""
        return os.path.join(self.home, "fleet")

    @property
    def queue(self) -> str:
        """The address of its database, unless another one is named."""
        return f"sqlite:///{os.path.join(self.fleet, 'queue.db')}"

    @property
    def out(self) -> str:
        return os.path.join(self.folder, "stoker-out")


def read_settings(environment: Mapping[str, str], folder: str) -> Settings:
    """Read the settings: STOKER_HOME, else the data folder that XDG names, else its default."""
    home = environment.get("STOKER_HOME", "")
    if not home:
        data = environment.get("XDG_DATA_HOME", "") or os.path.join(os.path.expanduser("~"), ".local", "share")
        home = os.path.join(data, "stoker")
    return Settings(
        home=os.path.abspath(os.path.join(folder, os.path.expanduser(home))), folder=folder, environment=environment
    )
