"""Where one run of a plan keeps what is not a result: logs, metrics and, for all runs, scratch folders."""

from __future__ import annotations

import os

from stoker.core.frozen import frozen
from stoker.engine.metrics.metrics_file import SUFFIX


@frozen
class RunFolders:
    """Folders that exist, except for `scratch`, which is made when somebody needs it."""

    run_id: str
    logs: str
    metrics: str
    scratch: str
    """Shared by all runs: below it each piece of work has a folder under its key."""
    name: str = ""
    """What people call the job."""

    @property
    def job(self) -> str:
        """By what somebody else may ask about this run."""
        return self.name or self.run_id

    def log_of(self, node: str) -> str:
        """Name the log of a node."""
        return os.path.join(self.logs, f"{safe_name(node)}.log")

    def curves_of(self, node: str) -> str:
        """Name the file of metrics that we write for a node."""
        return os.path.join(self.metrics, f"{safe_name(node)}{SUFFIX}")

    def metrics_of(self, node: str) -> str:
        """Name the file of metrics that a node's own program may write."""
        return os.path.join(self.metrics, f"{safe_name(node)}.program{SUFFIX}")

    def control_of(self, node: str, attempt: int) -> str:
        """Name the file through which an attempt's own program reports; hidden, for it goes nowhere else."""
        return os.path.join(self.metrics, f".{safe_name(node)}.{attempt}.control.jsonl")


def safe_name(name: str) -> str:
    """Return a node's name as one that a file may have."""
    return "".join(char if char.isalnum() or char in "-_.[]=,+" else "_" for char in name)
