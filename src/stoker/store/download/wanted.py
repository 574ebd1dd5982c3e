"""What is to be had, where it shall land, and what came of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum

from stoker.model.digests import Digest
from stoker.model.frozen import fresh, frozen


@frozen
class Wanted:
    """One file to be had: where from, and everything that is known of its bytes beforehand."""

    url: str
    """Pinned to a commit where the server knows commits."""
    label: str = ""
    """What people call it: `org/repo: model.gguf`."""
    commit: str = ""
    size_bytes: int | None = None
    sha256: Digest | None = None
    git_sha1: str = ""
    """Of the git blob (header and content), where that is what the server names a small file by."""
    headers: Mapping[str, str] = fresh(factory=dict)
    """Credentials among them: sent to the url's own origin and to nobody else."""


@frozen
class Landing:
    """Where a file shall lie: a name below a folder that exists or is made. Nothing is written outside the folder."""

    folder: str
    name: str
    """Relative, `/`-separated, safe by the rules of `host.names`."""
    keeps_validators: bool = False
    """Whether `.etag` and `.lastmod` are left beside it, for a cheap look whether it is still the newest."""
    lock_path: str = ""
    """Where its lock lies if not beside it: other programs may use the same one."""

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.name)


class Status(StrEnum):
    """How a wanted file came to be there."""

    DOWNLOADED = "downloaded"
    CACHED = "cached"
    """It was there, and its bytes are what was wanted."""
    LINKED = "linked"
    """Its bytes were on this machine under another name."""


@frozen
class Fetched:
    """A wanted file that is there now, durable and checked."""

    path: str
    status: Status
    size_bytes: int
    sha256: Digest
    bytes_from_network: int = 0
    bytes_resumed: int = 0
    seconds: float = 0.0
    url: str = ""
    """Without its query: signatures are secrets."""
    commit: str = ""
    etag: str = ""
    last_modified: str = ""
