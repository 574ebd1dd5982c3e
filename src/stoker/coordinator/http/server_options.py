"""Options of a coordinator, and its description once it listens. Imports no library of the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from stoker.core.digests import OpenEntry, Tree
from stoker.core.frozen import frozen
from stoker.core.leases import FleetTimes

if TYPE_CHECKING:
    from stoker.protocol.job_messages import Submission
    from stoker.protocol.view_messages import DoneView

KeepTree = Callable[[Tree, OpenEntry], None]
"""Stores a tree whose files are on the coordinator's own machine."""
ReadManifest: TypeAlias = "Callable[[str, KeepTree, str], Submission]"
"""Reads the manifest at a path for a coordinator at an address, which stores the trees that its jobs need."""


@frozen
class ServeOptions:
    """Options of `stoker serve`; empty or None: the default."""

    db: str = ""
    listen: str = ""
    cluster: str = ""
    """Its whole path."""
    manifest: str = ""
    """Its whole path."""
    lease_s: float | None = None
    heartbeat_s: float | None = None
    events_kept_s: float | None = None
    objects: str = ""
    """`s3://BUCKET/PREFIX`; empty: where they are, by default on the coordinator's own disk."""
    upload_limit_bytes: int | None = None
    """Of one tree, one file of it, or one result or checkpoint."""
    token_file: str = ""
    """Its whole path."""
    advertise: str = ""
    """`NAME[,NAME]`: more names by which other machines reach it."""
    certificate_life_s: float | None = None
    """Of machines' certificates."""
    code_repository: str = ""
    """Path of the repository whose commits are accepted as programs; empty: any code."""
    code_branch: str = ""
    public_url: str = ""
    """The address of the web pages behind a proxy: other names, a path prefix."""
    system_a: bool = False
    """Serve the routes of system A, whose workers have no credentials."""
    launch_token: str = ""
    """Accepted with the role `launch` while this coordinator runs; empty: none is."""


@frozen
class ListeningCoordinator:
    """A coordinator that listens."""

    url: str
    database: str
    """Its kind and address, without secrets."""
    objects: str
    """Where its objects are, if not on its own disk."""
    token_file: str
    """Where the operator's token is; empty: only the environment has it."""
    socket: str
    """Unix socket for commands of its own user."""
    is_open: bool
    """It listens on loopback only, without TLS."""
    ca_file: str
    """The fleet's CA if it uses TLS, else empty."""
    times: FleetTimes
    system_a: bool
    """It serves the routes of system A."""
    files: DoneView
    """What cluster file and manifest changed."""
    pages_url: str = ""
    """Where browsers open the web pages."""

    def to_dict(self) -> dict[str, object]:
        return {
            "url": self.url,
            "pages_url": self.pages_url,
            "database": self.database,
            "objects": self.objects,
            "token_file": self.token_file,
            "socket": self.socket,
            "is_open": self.is_open,
            "ca_file": self.ca_file,
            "system_a": self.system_a,
            "lease_s": self.times.lease_s,
            "heartbeat_s": self.times.heartbeat_s,
            "changed": list(self.files.changed),
            "notes": list(self.files.notes),
        }


class RunnableCoordinator(Protocol):
    """A coordinator that can be run."""

    def run(
        self,
        *,
        on_ready: Callable[[ListeningCoordinator], None],
        say: Callable[[str], None],
        before_end: Callable[[], None],
    ) -> int:
        """Serve until a signal, and return the exit code. `say` is called with log lines, `before_end` after one.

        Until `before_end` returns, requests are answered.
        """
