"""The folders of a home (`STOKER_HOME`). The only module that names them; `store.places` names those of a store."""

from __future__ import annotations

import os
from enum import StrEnum


class HomeFolder(StrEnum):
    """One folder of a home, by its name on disk."""

    STORE = "store"
    """Results, stored trees, code and data, each under its digest."""
    RUNS = "runs"
    """A folder for each job that ran here: spec, journal, logs, end."""
    STATE = "state"
    """Indexes, histories, receipts, credentials, what was measured."""
    SCRATCH = "scratch"
    """Checkpoints of work that has not succeeded yet."""
    WORKSPACES = "workspaces"
    """A worker's: a folder for each attempt, and data of jobs as plain folders."""
    ENVS = "envs"
    """Python environments that jobs run in."""
    KERNELS = "kernels"
    """What was compiled for devices, kept from one run to the next."""
    FLEET = "fleet"
    """A coordinator's: database, results, logs."""

    def below(self, home: str) -> str:
        return os.path.join(home, self)
