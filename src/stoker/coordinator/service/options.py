"""How a coordinator is to serve, and what it says of itself once it does. No library of the service is needed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stoker.model.frozen import frozen
from stoker.model.leases import FleetTimes
from stoker.wire.asking import DoneView


@frozen
class ServeOptions:
    """What was asked for; nothing said means the usual."""

    db: str = ""
    listen: str = ""
    cluster: str = ""
    """Its whole path."""
    manifest: str = ""
    """Its whole path."""
    lease_s: float | None = None
    heartbeat_s: float | None = None
    token_file: str = ""
    """Its whole path."""


@frozen
class Ready:
    """A coordinator that listens."""

    url: str
    database: str
    """Its sort and place, without secrets."""
    token_file: str
    """Where the operator's token lies; empty: only the environment has it."""
    is_open: bool
    """Reads and workers need no token."""
    times: FleetTimes
    files: DoneView
    """What cluster file and manifest changed."""

    def to_dict(self) -> dict[str, object]:
        return {
            "url": self.url,
            "database": self.database,
            "token_file": self.token_file,
            "is_open": self.is_open,
            "lease_s": self.times.lease_s,
            "heartbeat_s": self.times.heartbeat_s,
            "changed": list(self.files.changed),
            "notes": list(self.files.notes),
        }


class Coordinator(Protocol):
    """A coordinator that can be run."""

    def run(self, *, on_ready: Callable[[Ready], None], say: Callable[[str], None]) -> int:
        """Serve until a signal ends it, and give the exit code. `say` hears what a log should have."""
